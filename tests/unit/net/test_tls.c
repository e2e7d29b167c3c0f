#include "net/tls.h"

#include <fcntl.h>

#include "common/rand.h"
#include "common/torture.h"
#include "loop_util.h"
#include "net/tcp.h"
#include "net/tls_priv.h"
#include "tls_util.h"

#include "common/poison.h"

static struct test_cert cert;
static struct cv_tls_server_ctx *server_ctx;

struct pair {
    struct raw_client client;
    struct mem_stream below;
    struct cv_stream *server;
    unsigned events; /* that the server's owner has seen */
};

static void on_event(void *arg, struct cv_stream *s, unsigned events)
{
    struct pair *p = arg;
    T_OK(s == p->server);
    p->events |= events;
}

static void pair_begin(struct pair *p, int version)
{
    memset(p, 0, sizeof(*p));
    raw_init(&p->client, version);
    raw_connect(&p->client, "name.example", NULL);
    mem_init(&p->below);
    if (cv_tls_server(server_ctx, &p->below.super, NULL, 0, &p->server) != 0)
        abort();
    cv_stream_set_cb(p->server, on_event, p);
}

static void pair_open(struct pair *p, int version)
{
    pair_begin(p, version);
    T_INT_EQ(raw_handshake(&p->client, &p->below, p->server, SIZE_MAX), 0);
    T_OK(SSL_is_init_finished(p->client.ssl));
}

static void pair_end(struct pair *p)
{
    cv_stream_close(p->server, false);
    T_OK(p->below.closed);
    mem_done(&p->below);
    raw_done(&p->client);
}

/* The server receives what is there as text; "EAGAIN", "END" or the error as text otherwise. */
static const char *got(struct cv_stream *s)
{
    static char buf[4096];
    size_t n = 0;
    int ret = cv_stream_recv(s, buf, sizeof(buf) - 1, &n);
    if (ret == -EAGAIN)
        return "EAGAIN";
    if (ret != 0)
        return cv_err_text(ret);
    buf[n] = '\0';
    return n == 0 ? "END" : buf;
}

static int put(struct cv_stream *s, const char *text)
{
    size_t n = 0;
    int ret = cv_stream_send(s, text, strlen(text), &n);
    if (ret == 0)
        T_INT_EQ(n, strlen(text));
    return ret;
}

static const char *client_got(struct raw_client *c)
{
    static char buf[4096];
    int n = raw_read(c, buf, sizeof(buf) - 1);
    buf[n > 0 ? n : 0] = '\0';
    return n > 0 ? buf : n == 0 ? "END" : "EAGAIN";
}

/* CV_MIN would draw a random number twice. */
static size_t at_most(size_t most, size_t n)
{
    return CV_MIN(most, n);
}

static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};

static void handshake_in_any_pieces(void)
{
    static const size_t splits[] = {1, 2, 3, 7, 100, 1000, SIZE_MAX};
    for (size_t v = 0; v < CV_ARRAY_SIZE(versions); v++)
        for (size_t i = 0; i < CV_ARRAY_SIZE(splits); i++) {
            struct pair p;
            pair_begin(&p, versions[v]);
            T_OK(!cv_tls_is_established(p.server));
            T_OK(cv_tls_version(p.server) == NULL);
            T_INT_EQ(raw_handshake(&p.client, &p.below, p.server, splits[i]), 0);
            T_OK(cv_tls_is_established(p.server));
            T_STR_EQ(cv_tls_version(p.server), v == 0 ? "TLSv1.2" : "TLSv1.3");
            T_STR_EQ(cv_tls_sni(p.server), "name.example");
            T_OK(cv_tls_fault(p.server) == NULL);
            SSL_write(p.client.ssl, "hello", 5);
            while (raw_shuttle(&p.client, &p.below, splits[i]))
                ;
            T_STR_EQ(got(p.server), "hello");
            T_STR_EQ(got(p.server), "EAGAIN");
            T_INT_EQ(put(p.server, "world"), 0);
            while (raw_shuttle(&p.client, &p.below, splits[i]))
                ;
            T_STR_EQ(client_got(&p.client), "world");
            pair_end(&p);
        }
}

/* The owner knows of no handshake: it only receives, or only sends. */
static void handshake_within_recv_and_send(void)
{
    for (int sends = 0; sends < 2; sends++) {
        struct pair p;
        pair_begin(&p, 0);
        bool sent = false;
        for (int i = 0; i < 100; i++) {
            if (!SSL_is_init_finished(p.client.ssl))
                (void)SSL_do_handshake(p.client.ssl);
            if (sends && !sent)
                sent = put(p.server, "first") == 0;
            else if (!sends && cv_tls_is_established(p.server))
                break;
            else if (!sends)
                T_STR_EQ(got(p.server), "EAGAIN");
            if (!raw_shuttle(&p.client, &p.below, 50))
                break;
        }
        T_OK(cv_tls_is_established(p.server));
        if (sends)
            T_STR_EQ(client_got(&p.client), "first");
        T_OK((p.events & (CV_STREAM_READ | CV_STREAM_WRITE)) == (CV_STREAM_READ | CV_STREAM_WRITE));
        pair_end(&p);
    }
}

static void early_bytes_come_first(void)
{
    for (size_t take = 1; take < 400; take += take < 10 ? 1 : 50) {
        struct pair p;
        memset(&p, 0, sizeof(p));
        raw_init(&p.client, 0);
        raw_connect(&p.client, NULL, NULL);
        (void)SSL_do_handshake(p.client.ssl);
        mem_init(&p.below);
        uint8_t early[400];
        int n = BIO_read(p.client.wr, early, (int)take);
        T_REQUIRE(n > 0);
        T_REQUIRE(cv_tls_server(server_ctx, &p.below.super, early, (size_t)n, &p.server) == 0);
        memset(early, 0, sizeof(early)); /* they were copied */
        T_INT_EQ(raw_handshake(&p.client, &p.below, p.server, SIZE_MAX), 0);
        T_OK(cv_tls_sni(p.server) == NULL);
        pair_end(&p);
    }
}

static void half_close_by_the_client(void)
{
    for (size_t v = 0; v < CV_ARRAY_SIZE(versions); v++) {
        struct pair p;
        pair_open(&p, versions[v]);
        SSL_write(p.client.ssl, "last words", 10);
        SSL_shutdown(p.client.ssl);
        raw_shuttle(&p.client, &p.below, SIZE_MAX);
        T_STR_EQ(got(p.server), "last words");
        T_STR_EQ(got(p.server), "END");
        T_STR_EQ(got(p.server), "END");
        T_INT_EQ(put(p.server, "answer"), 0); /* the other direction goes on */
        raw_shuttle(&p.client, &p.below, SIZE_MAX);
        T_STR_EQ(client_got(&p.client), "answer");
        T_OK(!p.below.out_fin);
        T_INT_EQ(cv_stream_shutdown_send(p.server), 0);
        T_OK(p.below.out_fin); /* both are done */
        T_INT_EQ(cv_stream_shutdown_send(p.server), 0);
        raw_shuttle(&p.client, &p.below, SIZE_MAX);
        T_STR_EQ(client_got(&p.client), "END");
        pair_end(&p);
    }
}

static void half_close_by_the_server(void)
{
    struct pair p;
    pair_open(&p, TLS1_3_VERSION);
    T_INT_EQ(put(p.server, "all"), 0);
    T_INT_EQ(cv_stream_shutdown_send(p.server), 0);
    T_INT_EQ(put(p.server, "more"), -EPIPE);
    T_OK(!p.below.out_fin);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(client_got(&p.client), "all");
    T_STR_EQ(client_got(&p.client), "END");
    SSL_write(p.client.ssl, "still here", 10);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(got(p.server), "still here");
    SSL_shutdown(p.client.ssl);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(got(p.server), "END");
    T_OK(p.below.out_fin);
    pair_end(&p);
}

/* shutdown_send is through only when every byte was taken below. */
static void shutdown_waits_for_the_stream_below(void)
{
    struct pair p;
    pair_open(&p, 0);
    p.below.room = 5;
    T_INT_EQ(put(p.server, "some text"), 0);
    T_INT_EQ(cv_stream_shutdown_send(p.server), -EAGAIN);
    T_INT_EQ(cv_stream_shutdown_send(p.server), -EAGAIN);
    int rounds = 0;
    p.events = 0;
    while (cv_stream_shutdown_send(p.server) == -EAGAIN && rounds++ < 100)
        raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_OK(rounds > 5 && rounds < 100);
    T_OK((p.events & CV_STREAM_WRITE) != 0);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(client_got(&p.client), "some text");
    T_STR_EQ(client_got(&p.client), "END");
    pair_end(&p);
}

static void shutdown_before_the_handshake(void)
{
    struct pair p;
    pair_begin(&p, 0);
    T_INT_EQ(cv_stream_shutdown_send(p.server), -EAGAIN);
    for (int i = 0; i < 20; i++) {
        if (!SSL_is_init_finished(p.client.ssl))
            (void)SSL_do_handshake(p.client.ssl);
        if (cv_stream_shutdown_send(p.server) == 0)
            break;
        raw_shuttle(&p.client, &p.below, SIZE_MAX);
    }
    T_OK(cv_tls_is_established(p.server));
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(client_got(&p.client), "END");
    pair_end(&p);
}

/* A FIN without close_notify may be an attacker's; what came before it is still delivered. */
static void truncation(void)
{
    for (size_t v = 0; v < CV_ARRAY_SIZE(versions); v++) {
        struct pair p;
        pair_open(&p, versions[v]);
        SSL_write(p.client.ssl, "cut", 3);
        raw_shuttle(&p.client, &p.below, SIZE_MAX);
        p.below.in_fin = true;
        T_STR_EQ(got(p.server), "cut");
        T_STR_EQ(got(p.server), cv_err_text(CV_E_TLS));
        T_STR_EQ(got(p.server), cv_err_text(CV_E_TLS));
        T_STR_EQ(cv_tls_fault(p.server), "unexpected eof while reading");
        T_INT_EQ(put(p.server, "x"), CV_E_TLS);
        pair_end(&p);
    }
    /* In the handshake, and in the middle of a record. */
    struct pair p;
    pair_begin(&p, 0);
    p.below.in_fin = true;
    T_INT_EQ(cv_tls_handshake(p.server), CV_E_TLS);
    pair_end(&p);
    pair_open(&p, 0);
    SSL_write(p.client.ssl, "half a record", 13);
    raw_shuttle(&p.client, &p.below, 20);
    p.below.in_fin = true;
    T_STR_EQ(got(p.server), cv_err_text(CV_E_TLS));
    pair_end(&p);
}

static void errors_below_keep_their_code(void)
{
    struct pair p;
    pair_open(&p, 0);
    SSL_write(p.client.ssl, "before", 6);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    p.below.recv_err = -ECONNRESET;
    p.below.send_err = -EPIPE;
    T_INT_EQ(put(p.server, "x"), -EPIPE);
    T_INT_EQ(put(p.server, "x"), -EPIPE);
    T_STR_EQ(got(p.server), "before"); /* a failed send does not lose what was received */
    T_STR_EQ(got(p.server), cv_err_text(-ECONNRESET));
    T_STR_EQ(got(p.server), cv_err_text(-ECONNRESET));
    T_INT_EQ(cv_stream_shutdown_send(p.server), -EPIPE);
    T_OK(cv_tls_fault(p.server) == NULL);
    pair_end(&p);

    pair_begin(&p, 0);
    p.below.recv_err = -ECONNRESET;
    T_STR_EQ(got(p.server), cv_err_text(-ECONNRESET));
    T_INT_EQ(put(p.server, "x"), -ECONNRESET);
    pair_end(&p);

    /* An error that a waiting ciphertext meets in the background. */
    pair_open(&p, 0);
    p.below.room = 3;
    T_INT_EQ(put(p.server, "x"), 0);
    p.below.send_err = -ECONNRESET;
    mem_event(&p.below, CV_STREAM_WRITE);
    T_INT_EQ(put(p.server, "y"), -ECONNRESET);
    pair_end(&p);
}

static void garbage(void)
{
    static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\x05\x01\x00\x00\x00",
                                        "\x16\x03\x01\x40\x01\x01\x00", "CONNECT a:1 HTTP/1.1\r\n"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(texts); i++) {
        struct pair p;
        pair_begin(&p, 0);
        mem_put(&p.below.in, texts[i], strlen(texts[i]));
        p.below.in_fin = true;
        T_STR_EQ(got(p.server), cv_err_text(CV_E_TLS));
        T_INT_EQ(put(p.server, "x"), CV_E_TLS);
        T_INT_EQ(cv_stream_shutdown_send(p.server), CV_E_TLS);
        T_OK(cv_tls_fault(p.server) != NULL);
        T_OK(!cv_tls_is_established(p.server));
        pair_end(&p);
    }
    for (int i = 0; i < 300; i++) {
        struct pair p;
        uint8_t junk[600];
        pair_begin(&p, 0);
        cv_rand_bytes(junk, sizeof(junk));
        if (i & 1)
            memcpy(junk, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
        mem_put(&p.below.in, junk, sizeof(junk));
        p.below.in_fin = true;
        if (!T_OK(strcmp(got(p.server), cv_err_text(CV_E_TLS)) == 0))
            i = 300;
        pair_end(&p);
    }
    /* A record that was tampered with, after the handshake. */
    struct pair p;
    pair_open(&p, 0);
    SSL_write(p.client.ssl, "first", 5);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    SSL_write(p.client.ssl, "second", 6);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    p.below.in.b[p.below.in.len - 1] ^= 1;
    T_STR_EQ(got(p.server), "first");
    T_STR_EQ(got(p.server), cv_err_text(CV_E_TLS));
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    char buf[16];
    T_INT_EQ(raw_read(&p.client, buf, sizeof(buf)), -1); /* the alert */
    pair_end(&p);
}

static void what_is_refused(void)
{
    /* TLS 1.1. */
    struct pair p;
    pair_begin(&p, 0);
    SSL_CTX_set_security_level(p.client.ctx, 0);
    SSL_CTX_set_min_proto_version(p.client.ctx, TLS1_1_VERSION);
    SSL_CTX_set_max_proto_version(p.client.ctx, TLS1_1_VERSION);
    SSL_CTX_set_cipher_list(p.client.ctx, "ALL:@SECLEVEL=0");
    raw_connect(&p.client, NULL, NULL);
    T_INT_EQ(raw_handshake(&p.client, &p.below, p.server, SIZE_MAX), CV_E_TLS);
    T_OK(cv_tls_fault(p.server) != NULL);
    pair_end(&p);

    /* A cipher without forward secrecy. */
    pair_begin(&p, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(p.client.ctx, "AES128-GCM-SHA256:AES256-SHA");
    raw_connect(&p.client, NULL, NULL);
    T_INT_EQ(raw_handshake(&p.client, &p.below, p.server, SIZE_MAX), CV_E_TLS);
    pair_end(&p);

    /* Renegotiation: the connection goes on without. */
    pair_open(&p, TLS1_2_VERSION);
    SSL_renegotiate(p.client.ssl);
    (void)SSL_do_handshake(p.client.ssl);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(got(p.server), "EAGAIN");
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_OK(cv_tls_is_established(p.server));
    T_INT_EQ(SSL_num_renegotiations(cv_tls_of(p.server)->ssl), 0);
    pair_end(&p);
}

static void key_updates(void)
{
    struct pair p;
    pair_open(&p, TLS1_3_VERSION);
    SSL_key_update(p.client.ssl, SSL_KEY_UPDATE_REQUESTED);
    SSL_write(p.client.ssl, "new keys", 8);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(got(p.server), "new keys");
    T_INT_EQ(put(p.server, "mine too"), 0);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(client_got(&p.client), "mine too");

    /* A peer that asks for ever more of them and reads nothing: what waits stays bounded, and a
     * send right after one of them keeps its bytes. */
    p.below.room = 0;
    for (int i = 0; i < 5000; i++) {
        SSL_key_update(p.client.ssl, SSL_KEY_UPDATE_REQUESTED);
        if (SSL_write(p.client.ssl, "k", 1) != 1)
            break;
        uint8_t tmp[512];
        int n;
        while ((n = BIO_read(p.client.wr, tmp, sizeof(tmp))) > 0)
            mem_put(&p.below.in, tmp, (size_t)n);
        if (i % 50 == 0)
            (void)got(p.server);
        T_OK(cv_buf_len(&cv_tls_of(p.server)->out) <= 65536);
    }
    T_INT_EQ(put(p.server, "x"), -EAGAIN);
    pair_end(&p);
}

static void pieces_make_one_record(void)
{
    struct pair p;
    pair_open(&p, 0);
    struct iovec iov[] = {{.iov_base = (char[]){""}, .iov_len = 0},
                          {.iov_base = (char[]){"head "}, .iov_len = 5},
                          {.iov_base = (char[]){""}, .iov_len = 0},
                          {.iov_base = (char[]){"body"}, .iov_len = 4},
                          {.iov_base = (char[]){""}, .iov_len = 0}};
    int before = p.below.sends;
    size_t n = 0;
    T_INT_EQ(cv_stream_sendv(p.server, iov, 5, &n), 0);
    T_INT_EQ(n, 9);
    T_INT_EQ(p.below.sends - before, 1);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(client_got(&p.client), "head body");
    n = 1;
    T_INT_EQ(cv_stream_sendv(p.server, iov, 1, &n), 0); /* nothing to send */
    T_INT_EQ(n, 0);
    pair_end(&p);
}

/* Small pieces, large ones, a stream below that blocks at any byte: whatever send() took arrives,
 * once and in order, though after -EAGAIN the owner comes back with other bytes. */
static void bytes_that_were_taken_arrive(void)
{
    enum { TOTAL = 400000 };
    uint8_t *data = cv_alloc(TOTAL), *seen = cv_alloc(TOTAL);
    for (int round = 0; round < 12; round++) {
        struct pair p;
        pair_open(&p, round & 1 ? TLS1_2_VERSION : TLS1_3_VERSION);
        cv_rand_bytes(data, TOTAL);
        p.below.room = 1 + cv_rand_below(round < 6 ? 2000 : 60000);
        p.below.chunk = 1 + cv_rand_below(20000);
        size_t sent = 0, n_seen = 0;
        int idle = 0;
        while (n_seen < TOTAL && idle < 1000) {
            struct iovec iov[4];
            size_t at = sent, n = 0;
            for (int i = 0; i < 4; i++) {
                iov[i].iov_base = data + at;
                iov[i].iov_len = at_most(TOTAL - at, cv_rand_below(i == 3 ? 50000 : 3000));
                at += iov[i].iov_len;
            }
            int ret = sent < TOTAL ? cv_stream_sendv(p.server, iov, 4, &n) : -EAGAIN;
            if (ret != 0 && ret != -EAGAIN)
                T_FAIL("send: %d", ret);
            if (ret == -EAGAIN && sent < TOTAL)
                data[sent] ^= 0x5a; /* not taken: it may change */
            sent += ret == 0 ? n : 0;
            bool moved = raw_shuttle(&p.client, &p.below, 1 + cv_rand_below(30000));
            int r;
            while (n_seen < TOTAL && (r = raw_read(&p.client, seen + n_seen, TOTAL - n_seen)) > 0) {
                n_seen += (size_t)r;
                moved = true;
            }
            idle = moved ? 0 : idle + 1;
        }
        T_INT_EQ(n_seen, TOTAL);
        T_MEM_EQ(seen, data, n_seen);
        T_INT_EQ(cv_buf_len(&cv_tls_of(p.server)->out), 0);
        pair_end(&p);
    }
    cv_free(data);
    cv_free(seen);
}

static void receiving_in_any_pieces(void)
{
    enum { TOTAL = 300000 };
    uint8_t *data = cv_alloc(TOTAL), *seen = cv_alloc(TOTAL);
    for (int round = 0; round < 8; round++) {
        struct pair p;
        pair_open(&p, round & 1 ? TLS1_2_VERSION : TLS1_3_VERSION);
        cv_rand_bytes(data, TOTAL);
        p.below.chunk = 1 + cv_rand_below(round < 4 ? 100 : 40000);
        size_t sent = 0, n_seen = 0;
        int idle = 0;
        while (n_seen < TOTAL && idle < 1000) {
            size_t want = at_most(TOTAL - sent, 1 + cv_rand_below(20000));
            if (want > 0 && SSL_write(p.client.ssl, data + sent, (int)want) > 0)
                sent += want;
            bool moved = raw_shuttle(&p.client, &p.below, 1 + cv_rand_below(30000));
            for (;;) {
                size_t n = 0, cap = at_most(TOTAL - n_seen, 1 + cv_rand_below(70000));
                if (cap == 0 || cv_stream_recv(p.server, seen + n_seen, cap, &n) != 0)
                    break;
                n_seen += n;
                moved = true;
            }
            idle = moved ? 0 : idle + 1;
        }
        T_INT_EQ(n_seen, TOTAL);
        T_MEM_EQ(seen, data, n_seen);
        pair_end(&p);
    }
    cv_free(data);
    cv_free(seen);
}

/* One call empties what is here, so that a relay moves much per turn. */
static void several_records_per_call(void)
{
    struct pair p;
    pair_open(&p, 0);
    for (int i = 0; i < 50; i++)
        SSL_write(p.client.ssl, "0123456789", 10);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    int before = p.below.recvs;
    T_INT_EQ(strlen(got(p.server)), 500);
    T_INT_EQ(p.below.recvs - before, 1); /* read ahead: not two reads for each record */
    pair_end(&p);
}

static void sessions_are_resumed_by_tickets(void)
{
    for (size_t v = 0; v < CV_ARRAY_SIZE(versions); v++) {
        struct pair p;
        pair_open(&p, versions[v]);
        T_OK(!cv_tls_is_resumed(p.server));
        T_INT_EQ(put(p.server, "x"), 0);
        raw_shuttle(&p.client, &p.below, SIZE_MAX);
        (void)client_got(&p.client);
        T_REQUIRE(p.client.session != NULL);
        T_INT_EQ(SSL_SESSION_get_max_early_data(p.client.session), 0); /* no 0-RTT, no replay */
        SSL_SESSION *session = p.client.session;
        SSL_SESSION_up_ref(session);
        pair_end(&p);
        pair_begin(&p, versions[v]);
        raw_connect(&p.client, "name.example", session);
        T_INT_EQ(raw_handshake(&p.client, &p.below, p.server, SIZE_MAX), 0);
        T_OK(cv_tls_is_resumed(p.server));
        T_OK(SSL_session_reused(p.client.ssl));
        T_STR_EQ(cv_tls_sni(p.server), "name.example");
        SSL_SESSION_free(session);
        pair_end(&p);
    }
}

static void closing(void)
{
    /* In mid-handshake, after each exchange. */
    for (int rounds = 0; rounds < 4; rounds++) {
        struct pair p;
        pair_begin(&p, 0);
        for (int i = 0; i < rounds; i++) {
            (void)SSL_do_handshake(p.client.ssl);
            (void)cv_tls_handshake(p.server);
            raw_shuttle(&p.client, &p.below, 300);
        }
        pair_end(&p);
    }
    /* In order: the client sees close_notify, though shutdown_send was not called. */
    struct pair p;
    pair_open(&p, 0);
    cv_stream_close(p.server, false);
    T_OK(p.below.closed && !p.below.aborted);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    T_STR_EQ(client_got(&p.client), "END");
    mem_done(&p.below);
    raw_done(&p.client);
    /* Aborted: not a word, and a reset below. */
    pair_open(&p, 0);
    raw_shuttle(&p.client, &p.below, SIZE_MAX);
    size_t before = p.below.out.len;
    cv_stream_close(p.server, true);
    T_OK(p.below.closed && p.below.aborted);
    T_INT_EQ(p.below.out.len, before);
    mem_done(&p.below);
    raw_done(&p.client);
    cv_stream_close(NULL, false);
}

static void questions(void)
{
    struct pair p;
    pair_open(&p, 0);
    T_INT_EQ(cv_stream_raw_fd(p.server), -1); /* its bytes are not those of the socket */
    T_INT_EQ(cv_stream_socket_fd(p.server), 77);
    size_t len;
    T_OK(cv_tls_alpn(p.server, &len) == NULL);
    T_INT_EQ(len, 0);
    p.events = 0;
    mem_event(&p.below, CV_STREAM_READ);
    T_INT_EQ(p.events, CV_STREAM_READ | CV_STREAM_WRITE);
    mem_event(&p.below, CV_STREAM_HUP);
    T_INT_EQ(p.events, CV_STREAM_READ | CV_STREAM_WRITE | CV_STREAM_HUP);
    p.server->ops->detach(p.server);
    T_INT_EQ(p.below.detached, 1);
    T_INT_EQ(p.server->ops->attach(p.server, NULL), 0);
    T_INT_EQ(p.below.attached, 1);
    pair_end(&p);
}

/* ---- over sockets, both ends of our own ---- */

enum { BULK = 3 << 20 };

struct end {
    struct cv_stream *s;
    const uint8_t *data;
    size_t sent, seen;
    size_t slow; /* most bytes received per event; 0 = all */
    uint64_t sum_seen;
    bool said_end, saw_end;
    int err;
};

static uint64_t mix(uint64_t sum, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum = sum * 31 + p[i];
    return sum;
}

static void end_work(struct end *e)
{
    while (!e->said_end && e->err == 0) {
        size_t n = 0;
        int ret = e->sent < BULK
                      ? cv_stream_send(e->s, e->data + e->sent, CV_MIN(BULK - e->sent, 65536U), &n)
                      : cv_stream_shutdown_send(e->s);
        if (ret == -EAGAIN)
            break;
        e->err = ret;
        if (ret == 0 && e->sent == BULK)
            e->said_end = true;
        e->sent += n;
    }
    static uint8_t buf[65536];
    size_t budget = e->slow > 0 ? e->slow : SIZE_MAX;
    while (!e->saw_end && e->err == 0 && budget > 0) {
        size_t n = 0;
        int ret = cv_stream_recv(e->s, buf, CV_MIN(sizeof(buf), budget), &n);
        if (ret == -EAGAIN)
            break;
        e->err = ret;
        e->saw_end = ret == 0 && n == 0;
        e->sum_seen = mix(e->sum_seen, buf, n);
        e->seen += n;
        budget -= n;
    }
}

static void on_end(void *arg, struct cv_stream *s, unsigned events)
{
    struct end *e = arg;
    T_OK(e->s == s);
    T_OK(events != 0);
    end_work(e);
}

struct bulk {
    struct cv_loop *loops[2];
    struct end ends[2]; /* server, client */
    struct cv_tls_client_ctx *client_ctx;
};

static void bulk_open(struct bulk *b, struct cv_loop *client_loop, const uint8_t *data)
{
    int fds[2];
    test_tcp_pair(fds);
    int flags = fcntl(fds[1], F_GETFL);
    fcntl(fds[1], F_SETFL, flags | O_NONBLOCK);
    struct cv_stream *tcp;
    struct cv_target target = {.port = 443};
    snprintf(target.host.name, sizeof(target.host.name), "name.example");
    target.host.name_len = (uint8_t)strlen(target.host.name);
    struct cv_tls_client_conf conf = {.ca_file = cert.cert_file};
    if (cv_tls_client_ctx_new(&conf, NULL, &b->client_ctx) != 0 ||
        cv_tcp_adopt(b->loops[0], fds[0], &tcp) != 0 ||
        cv_tls_server(server_ctx, tcp, NULL, 0, &b->ends[0].s) != 0 ||
        cv_tcp_adopt(client_loop, fds[1], &tcp) != 0 ||
        cv_tls_client(b->client_ctx, tcp, &target, &b->ends[1].s) != 0)
        abort();
    for (int i = 0; i < 2; i++) {
        b->ends[i].data = data;
        cv_stream_set_cb(b->ends[i].s, on_end, &b->ends[i]);
    }
}

static void bulk_check(struct bulk *b, const uint8_t *data)
{
    uint64_t sum = mix(0, data, BULK);
    for (int i = 0; i < 2; i++) {
        T_INT_EQ(b->ends[i].err, 0);
        T_INT_EQ(b->ends[i].seen, BULK);
        T_OK(b->ends[i].sum_seen == sum);
        T_OK(b->ends[i].said_end && b->ends[i].saw_end);
        cv_stream_close(b->ends[i].s, false);
    }
    cv_tls_client_ctx_unref(b->client_ctx);
}

static bool bulk_is_over(const struct bulk *b)
{
    bool over = true;
    for (int i = 0; i < 2; i++)
        over &= b->ends[i].err != 0 || (b->ends[i].said_end && b->ends[i].saw_end);
    return over;
}

/* Both ways at once, with a reader that takes little per turn. */
static void bulk_over_sockets(void)
{
    uint8_t *data = cv_alloc(BULK);
    cv_rand_bytes(data, BULK);
    for (size_t slow = 0; slow <= 50000; slow += 50000) {
        struct bulk b = {.loops = {test_loop()}};
        bulk_open(&b, b.loops[0], data);
        b.ends[1].slow = slow;
        for (int i = 0; i < 20000 && !bulk_is_over(&b); i++) {
            for (int k = 0; k < 2; k++)
                if (i == 0 || b.ends[k].slow > 0)
                    end_work(&b.ends[k]);
            cv_loop_turn(b.loops[0], slow > 0 ? 0 : 5);
        }
        bulk_check(&b, data);
        cv_loop_turn(b.loops[0], 0);
        test_loop_end(b.loops[0]);
    }
    cv_free(data);
}

/* The server's end changes its loop again and again, in the handshake and in the transfer. */
static void moved_between_loops(void)
{
    uint8_t *data = cv_alloc(BULK);
    cv_rand_bytes(data, BULK);
    struct bulk b = {.loops = {test_loop(), test_loop()}};
    bulk_open(&b, b.loops[0], data);
    int on = 0;
    for (int i = 0; i < 20000 && !bulk_is_over(&b); i++) {
        if (i == 0) {
            end_work(&b.ends[0]);
            end_work(&b.ends[1]);
        }
        if (i % 3 == 0) {
            struct cv_stream *s = b.ends[0].s;
            s->ops->detach(s);
            T_OK(s->loop == NULL);
            on = !on;
            T_INT_EQ(s->ops->attach(s, b.loops[on]), 0);
            T_OK(s->loop == b.loops[on]);
        }
        cv_loop_turn(b.loops[0], 0);
        cv_loop_turn(b.loops[1], 0);
    }
    bulk_check(&b, data);
    for (int i = 0; i < 2; i++) {
        cv_loop_turn(b.loops[i], 0);
        test_loop_end(b.loops[i]);
    }
    cv_free(data);
}

/* TLS within TLS, as with a proxy that is reached by TLS and itself carries it. */
static void tls_over_tls(void)
{
    struct mem_stream a, b;
    mem_init(&a);
    mem_init(&b);
    struct cv_tls_client_conf conf = {.ca_file = cert.cert_file};
    struct cv_tls_client_ctx *ctx;
    T_REQUIRE(cv_tls_client_ctx_new(&conf, NULL, &ctx) == 0);
    struct cv_target target = {.port = 443, .host = {.name = "name.example", .name_len = 12}};
    struct cv_stream *server, *client;
    T_REQUIRE(cv_tls_server(server_ctx, &a.super, NULL, 0, &server) == 0);
    T_REQUIRE(cv_tls_server(server_ctx, server, NULL, 0, &server) == 0);
    T_REQUIRE(cv_tls_client(ctx, &b.super, &target, &client) == 0);
    T_REQUIRE(cv_tls_client(ctx, client, &target, &client) == 0);
    for (int i = 0; i < 50; i++) {
        (void)cv_tls_handshake(client);
        (void)cv_tls_handshake(server);
        if (!mem_shuttle(&a, &b, 777))
            break;
    }
    T_OK(cv_tls_is_established(client) && cv_tls_is_established(server));
    T_INT_EQ(put(client, "inner"), 0);
    mem_shuttle(&a, &b, SIZE_MAX);
    T_STR_EQ(got(server), "inner");
    T_INT_EQ(cv_stream_shutdown_send(client), 0);
    mem_shuttle(&a, &b, SIZE_MAX);
    T_STR_EQ(got(server), "END");
    T_INT_EQ(put(server, "back"), 0);
    T_INT_EQ(cv_stream_shutdown_send(server), 0);
    mem_shuttle(&a, &b, SIZE_MAX);
    T_STR_EQ(got(client), "back");
    T_STR_EQ(got(client), "END");
    cv_stream_close(server, false);
    cv_stream_close(client, false);
    mem_done(&a);
    mem_done(&b);
    cv_tls_client_ctx_unref(ctx);
}

#ifdef CV_TORTURE
static void torture(void)
{
    static const uint8_t early[1] = {0x16};
    uint64_t count = UINT64_MAX; /* calls in the last run; fewer than its number: none failed */
    uint64_t n = 1;
    for (; count >= n - 1; n++) {
        struct pair p;
        memset(&p, 0, sizeof(p));
        raw_init(&p.client, 0);
        raw_connect(&p.client, "name.example", NULL);
        (void)SSL_do_handshake(p.client.ssl);
        char first;
        T_INT_EQ(BIO_read(p.client.wr, &first, 1), 1);
        mem_init(&p.below);
        cv_torture_arm(n);
        int ret = cv_tls_server(server_ctx, &p.below.super, early, 1, &p.server);
        if (ret == 0) {
            p.below.room = 10; /* so that ciphertext has to be kept */
            int result = -EAGAIN;
            for (int i = 0; i < 2000 && result == -EAGAIN; i++) {
                if (!SSL_is_init_finished(p.client.ssl))
                    (void)SSL_do_handshake(p.client.ssl);
                result = cv_tls_handshake(p.server);
                raw_shuttle(&p.client, &p.below, SIZE_MAX);
            }
            if (result == 0)
                result = put(p.server, "text");
            T_OK(result == 0 || result == -EAGAIN || result == -ENOMEM);
            cv_stream_close(p.server, false);
        } else {
            T_INT_EQ(ret, -ENOMEM);
        }
        count = cv_torture_count();
        cv_torture_arm(0);
        T_OK(p.below.closed);
        mem_done(&p.below);
        raw_done(&p.client);
    }
    T_OK(n > 4);
}
#endif

int main(void)
{
    test_dir_begin();
    test_cert_make(
        &cert, &(struct test_cert_opts){.cn = "test", .san = "DNS:name.example", .is_ca = true});
    server_ctx = test_server_ctx(&cert);
    T_RUN(handshake_in_any_pieces);
    T_RUN(handshake_within_recv_and_send);
    T_RUN(early_bytes_come_first);
    T_RUN(half_close_by_the_client);
    T_RUN(half_close_by_the_server);
    T_RUN(shutdown_waits_for_the_stream_below);
    T_RUN(shutdown_before_the_handshake);
    T_RUN(truncation);
    T_RUN(errors_below_keep_their_code);
    T_RUN(garbage);
    T_RUN(what_is_refused);
    T_RUN(key_updates);
    T_RUN(pieces_make_one_record);
    T_RUN(bytes_that_were_taken_arrive);
    T_RUN(receiving_in_any_pieces);
    T_RUN(several_records_per_call);
    T_RUN(sessions_are_resumed_by_tickets);
    T_RUN(closing);
    T_RUN(questions);
    T_RUN(bulk_over_sockets);
    T_RUN(moved_between_loops);
    T_RUN(tls_over_tls);
#ifdef CV_TORTURE
    T_RUN(torture);
#endif
    cv_tls_server_ctx_unref(server_ctx);
    test_cert_done(&cert);
    test_dir_end();
    return t_done();
}

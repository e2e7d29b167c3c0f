/* Opening through a proxy, byte by byte: what is sent when, every refusal, every split of the
 * reply, what comes behind it, silence, drips, TLS, the PROXY protocol. */
#include "egress/upstream_priv.h"

#include "common/err.h"
#include "net/tcp.h"
#include "unit/net/tls_util.h"
#include "upstream_util.h"

static struct cv_upstream up;
static struct cv_upstream_request request;
static struct cv_upstream_answer answer;
static struct cv_upstream_open *opened;
static int answers;
static struct fake fake;

static void on_answer(void *arg, const struct cv_upstream_answer *a)
{
    (void)arg;
    answer = *a;
    answers++;
    opened = NULL;
}

static void begin(enum cv_backend_kind kind, const char *host, int64_t timeout_ms)
{
    bench_open();
    fake_open(&fake);
    up = (struct cv_upstream){.kind = kind};
    T_INT_EQ(cv_host_parse("127.0.0.1", 9, &up.server.host), 0);
    up.server.port = fake.port;
    bench.target.port = 80;
    T_INT_EQ(cv_host_parse(host, strlen(host), &bench.target.host), 0);
    request = (struct cv_upstream_request){
        .worker = bench.worker,
        .cmd = CV_SOCKS5_CMD_CONNECT,
        .target = &bench.target,
        .deadline_ms = cv_loop_now(bench.worker->loop) + timeout_ms,
    };
    answers = 0;
    answer = (struct cv_upstream_answer){0};
}

static void start(void)
{
    T_INT_EQ(cv_upstream_open(&up, &request, on_answer, NULL, &opened), 0);
    T_INT_EQ(answers, 0);
    fake_accept(&fake);
}

static void await(void)
{
    int64_t end = cv_clock_mono_ms() + 10000;
    while (answers == 0 && cv_clock_mono_ms() < end)
        cv_loop_turn(bench.worker->loop, 10);
    T_INT_EQ(answers, 1);
}

static void end(void)
{
    cv_stream_close(answer.stream, false);
    answer.stream = NULL;
    cv_rcstr_unref(up.user);
    cv_rcstr_unref(up.pass);
    cv_tls_client_ctx_unref(up.tls);
    fake_close(&fake);
    bench_close();
}

/* The stream gives exactly this text, and then waits. */
static void payload_is(const char *want)
{
    char got[512];
    size_t have = 0, n;
    T_REQUIRE(answer.stream != NULL);
    int64_t until = cv_clock_mono_ms() + 5000;
    while (have < strlen(want) && cv_clock_mono_ms() < until) {
        if (cv_stream_recv(answer.stream, got + have, sizeof(got) - 1 - have, &n) != 0)
            cv_loop_turn(bench.worker->loop, 5);
        else if (n == 0)
            break;
        else
            have += n;
    }
    got[have] = '\0';
    T_STR_EQ(got, want);
    T_INT_EQ(cv_stream_recv(answer.stream, got, sizeof(got), &n), -EAGAIN);
}

/* Replies with each kind of BND, split at every byte, with and without a banner behind them. */
static void test_socks_replies(void)
{
    static const struct {
        const char *in;
        size_t len;
        const char *bnd;
    } t[] = {
        {LIT("\x05\x00\x00\x01\x01\x02\x03\x04\x00\x50"), "1.2.3.4:80"},
        {LIT("\x05\x00\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50"),
         "[2001:db8::1]:80"},
        {LIT("\x05\x00\x00\x03\x05proxy\x00\x50"), ""},
        {LIT("\x05\x00\x00\x03\x00\x00\x50"), ""},
    };
    static const char *const banners[] = {"", "BANNER", "\x05\x00\x00\x01"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(t) * CV_ARRAY_SIZE(banners); i++) {
        const char *banner = banners[i % CV_ARRAY_SIZE(banners)];
        size_t row = i / CV_ARRAY_SIZE(banners), len = t[row].len + (size_t)strlen(banner);
        char in[64], buf[CV_ENDPOINT_STRLEN];
        memcpy(in, t[row].in, t[row].len);
        memcpy(in + t[row].len, banner, len - t[row].len);
        for (size_t cut = 0; cut <= len; cut++) {
            begin(CV_BACKEND_SOCKS5, "192.0.2.1", 5000);
            start();
            fake_expect(&fake, LIT("\x05\x01\x00"));
            fake_say(&fake, "\x05\x00", 2, cut % 3);
            fake_expect(&fake, LIT("\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50"));
            fake_say(&fake, in, len, cut);
            await();
            T_INT_EQ(answer.err, 0);
            T_INT_EQ(answer.bnd.port, 80);
            T_STR_EQ(answer.bnd.ip.family != CV_AF_NONE ? cv_endpoint_format(&answer.bnd, buf) : "",
                     t[row].bnd);
            payload_is(banner);
            end();
        }
    }
}

/* Method, login, reply and banner in one piece: a proxy that does not wait to be asked. */
static void test_socks_all_at_once(void)
{
    begin(CV_BACKEND_SOCKS5, "192.0.2.1", 5000);
    up.user = text("u");
    up.pass = text("p");
    start();
    fake_expect(&fake, LIT("\x05\x01\x02"));
    fake_say(&fake, LIT("\x05\x02\x01\x00\x05\x00\x00\x01\0\0\0\0\0\0HELLO"), 0);
    fake_expect(&fake, LIT("\x01\x01u\x01p\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50"));
    await();
    T_INT_EQ(answer.err, 0);
    payload_is("HELLO");
    end();
}

static void test_addresses_as_addresses(void)
{
    static const struct {
        const char *host;
        const char *socks;
        size_t socks_len;
        const char *http;
    } t[] = {
        {"192.0.2.1", LIT("\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50"),
         "CONNECT 192.0.2.1:80 HTTP/1.1\r\nHost: 192.0.2.1:80\r\n"},
        {"2001:db8::1", LIT("\x05\x01\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50"),
         "CONNECT [2001:db8::1]:80 HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n"},
        {"0x7f.1", LIT("\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"), "CONNECT 127.0.0.1:80 "},
        {"Name.Test.", LIT("\x05\x01\x00\x03\x09name.test\x00\x50"), "CONNECT name.test:80 "},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        begin(CV_BACKEND_SOCKS5, t[i].host, 5000);
        start();
        fake_expect(&fake, LIT("\x05\x01\x00"));
        fake_say(&fake, "\x05\x00", 2, 0);
        fake_expect(&fake, t[i].socks, t[i].socks_len);
        fake_expect_silence(&fake);
        cv_upstream_cancel(opened);
        end();
        begin(CV_BACKEND_HTTP, t[i].host, 5000);
        start();
        fake_expect(&fake, t[i].http, strlen(t[i].http));
        cv_upstream_cancel(opened);
        end();
    }
}

static void test_http_replies(void)
{
    static const char reply[] =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 Connection established\r\n"
        "Proxy-Agent: x\r\n\r\n";
    static const char asked[] = "CONNECT name.test:80 HTTP/1.1\r\nHost: name.test:80\r\n"
                                "Proxy-Authorization: Basic dTpw\r\n"
                                "Proxy-Connection: keep-alive\r\n\r\n";
    static const char *const banners[] = {"", "SSH-2.0-x\r\n\r\n"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(banners); i++) {
        char in[256];
        size_t len = (size_t)snprintf(in, sizeof(in), "%s%s", reply, banners[i]);
        for (size_t cut = 0; cut <= len; cut++) {
            begin(CV_BACKEND_HTTP, "name.test", 5000);
            up.user = text("u");
            up.pass = text("p");
            start();
            fake_expect(&fake, LIT(asked));
            fake_expect_silence(&fake); /* exactly that, once */
            fake_say(&fake, in, len, cut);
            await();
            T_INT_EQ(answer.err, 0);
            T_INT_EQ(answer.bnd.ip.family, CV_AF_NONE);
            payload_is(banners[i]);
            end();
        }
    }
}

static void test_refusals(void)
{
    static const struct {
        enum cv_backend_kind kind;
        const char *login;
        const char *in;
        size_t len;
        int err;
    } t[] = {
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\xff"), CV_E_AUTH},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x02"), CV_E_AUTH},
        {CV_BACKEND_SOCKS5, "u", LIT("\x05\x02\x01\x01"), CV_E_AUTH},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x01"), CV_E_PROTO},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x04\x00"), CV_E_PROTO},
        {CV_BACKEND_SOCKS5, NULL, LIT("HTTP/1.1 400 Bad Request\r\n\r\n"), CV_E_PROTO},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x00\x00\x02"), CV_E_PROTO},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x01"), CV_E_UNAVAILABLE},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x02\x00\x01\0\0\0\0\0\0"), CV_E_POLICY},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x03"), -ENETUNREACH},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x04"), -EHOSTUNREACH},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x05"), -ECONNREFUSED},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x06"), -ETIMEDOUT},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x07"), CV_E_UNSUPPORTED},
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05\x00\x05\x08"), -EAFNOSUPPORT},
        {CV_BACKEND_HTTP, NULL, LIT("HTTP/1.1 407 x\r\nContent-Length: 0\r\n\r\n"), CV_E_AUTH},
        {CV_BACKEND_HTTP, NULL, LIT("HTTP/1.1 403 x\r\n\r\nblocked"), CV_E_POLICY},
        {CV_BACKEND_HTTP, NULL, LIT("HTTP/1.1 504 x\r\n\r\n"), -ETIMEDOUT},
        {CV_BACKEND_HTTP, NULL, LIT("HTTP/1.1 502 x\r\n\r\n"), CV_E_UNAVAILABLE},
        {CV_BACKEND_HTTP, NULL, LIT("\x05\xff\r\n\r\n"), CV_E_PROTO},
        /* Closed without an answer, or in the middle of one. */
        {CV_BACKEND_SOCKS5, NULL, LIT("\x05"), -ECONNRESET},
        {CV_BACKEND_HTTP, NULL, LIT("HTTP/1.1 200 OK\r\n"), -ECONNRESET},
        {CV_BACKEND_HTTP, NULL, LIT(""), -ECONNRESET},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        begin(t[i].kind, "name.test", 5000);
        up.user = text(t[i].login);
        start();
        fake_say(&fake, t[i].in, t[i].len, t[i].len / 2);
        if (t[i].err == -ECONNRESET)
            shutdown(fake.fd, SHUT_WR);
        await();
        if (!T_INT_EQ(answer.err, t[i].err))
            printf("#   row %zu\n", i);
        T_INT_EQ(answer.stage, CV_STAGE_OUTBOUND);
        T_OK(answer.stream == NULL);
        T_INT_EQ(answer.peer.port, fake.port);
        end();
    }
}

/* Silence, and a byte now and then: the deadline is one for all of it. */
static void test_deadline(void)
{
    static const enum cv_backend_kind kinds[] = {CV_BACKEND_SOCKS5, CV_BACKEND_HTTP};
    for (size_t i = 0; i < 2 * CV_ARRAY_SIZE(kinds); i++) {
        enum cv_backend_kind kind = kinds[i % 2];
        bool drips = i >= 2;
        begin(kind, "name.test", 300);
        int64_t began = cv_clock_mono_ms();
        start();
        if (drips && kind == CV_BACKEND_SOCKS5)
            fake_say(&fake, "\x05\x00\x05\x00\x00\x03\xff", 7, 7);
        else if (drips)
            fake_say(&fake, LIT("HTTP/1.1 200 OK\r\nX: "), 0);
        int64_t next = 0;
        while (answers == 0 && cv_clock_mono_ms() - began < 5000) {
            if (drips && cv_clock_mono_ms() >= next) {
                (void)!write(fake.fd, "x", 1);
                next = cv_clock_mono_ms() + 20;
            }
            cv_loop_turn(bench.worker->loop, 20);
        }
        T_INT_EQ(answers, 1);
        T_INT_EQ(answer.err, -ETIMEDOUT);
        T_INT_EQ(answer.stage, CV_STAGE_OUTBOUND);
        T_OK(cv_clock_mono_ms() - began >= 295);
        T_OK(cv_clock_mono_ms() - began < 2000);
        end();
    }
}

static void test_cancel(void)
{
    /* While it connects, in the middle of the talk, and one that never was. */
    begin(CV_BACKEND_SOCKS5, "name.test", 5000);
    T_INT_EQ(cv_upstream_open(&up, &request, on_answer, NULL, &opened), 0);
    cv_upstream_cancel(opened);
    fake_accept(&fake); /* the kernel had made it already */
    char byte;
    T_INT_EQ(read(fake.fd, &byte, 1), 0);
    fake_hang_up(&fake);
    start();
    fake_expect(&fake, LIT("\x05\x01\x00"));
    cv_upstream_cancel(opened);
    T_INT_EQ(read(fake.fd, &byte, 1), 0);
    cv_upstream_cancel(NULL);
    for (int i = 0; i < 5; i++)
        cv_loop_turn(bench.worker->loop, 5);
    T_INT_EQ(answers, 0);
    end();
}

static void test_commands(void)
{
    begin(CV_BACKEND_HTTP, "0.0.0.0", 5000);
    request.cmd = CV_SOCKS5_CMD_UDP;
    T_INT_EQ(cv_upstream_open(&up, &request, on_answer, NULL, &opened), CV_E_UNSUPPORTED);
    T_INT_EQ(cv_upstream_open_stage(CV_E_UNSUPPORTED), CV_STAGE_OUTBOUND);
    end();
    begin(CV_BACKEND_SOCKS5, "0.0.0.0", 5000);
    request.cmd = CV_SOCKS5_CMD_UDP;
    bench.target.port = 0;
    start();
    fake_expect(&fake, LIT("\x05\x01\x00"));
    fake_say(&fake, "\x05\x00", 2, 0);
    fake_expect(&fake, LIT("\x05\x03\x00\x01\0\0\0\0\0\0"));
    fake_say(&fake, LIT("\x05\x00\x00\x01\x7f\x00\x00\x01\x12\x34"), 3);
    await();
    T_INT_EQ(answer.err, 0);
    T_INT_EQ(answer.bnd.port, 0x1234);
    end();
}

static void test_proxy_protocol(void)
{
    begin(CV_BACKEND_SOCKS5, "name.test", 5000);
    up.proxy_protocol = CV_PROXY_PROTOCOL_V1;
    request.client.port = 5000;
    T_INT_EQ(cv_ip_parse("203.0.113.9", 11, &request.client.ip), 0);
    start();
    char line[120];
    int n = snprintf(line, sizeof(line), "PROXY TCP4 203.0.113.9 127.0.0.1 5000 %u\r\n\x05\x01",
                     fake.port);
    fake_expect(&fake, line, (size_t)n);
    cv_upstream_cancel(opened);
    end();
    begin(CV_BACKEND_HTTP, "name.test", 5000);
    up.proxy_protocol = CV_PROXY_PROTOCOL_V2; /* of an unknown client: a Unix socket */
    start();
    fake_expect(&fake, LIT("\r\n\r\n\0\r\nQUIT\n\x21\x00\x00\x00"
                           "CONNECT name.test:80 "));
    cv_upstream_cancel(opened);
    end();
}

/* ---- TLS ---- */

static struct test_cert root, good, foreign;

static struct cv_tls_client_ctx *client_ctx(const char *ca_file, bool no_verify)
{
    struct cv_tls_client_conf conf = {.ca_file = ca_file, .no_verify = no_verify};
    struct cv_tls_client_ctx *base = NULL;
    char *why = NULL;
    T_INT_EQ(cv_tls_client_ctx_new(&conf, &why, &base), 0);
    struct cv_tls_client_ctx *ctx = cv_tls_client_ctx_like(base);
    cv_tls_client_ctx_unref(base);
    return ctx;
}

/* The proxy's side of TLS on its accepted descriptor, on the same loop. */
static struct cv_stream *serve_tls(const struct test_cert *cert)
{
    struct cv_tls_server_ctx *ctx = test_server_ctx(cert);
    struct cv_stream *below, *s = NULL;
    T_INT_EQ(cv_tcp_adopt(bench.worker->loop, fake.fd, &below), 0);
    fake.fd = -1;
    T_INT_EQ(cv_tls_server(ctx, below, NULL, 0, &s), 0);
    cv_tls_server_ctx_unref(ctx);
    return s;
}

/* Until 'len' bytes are there, the stream fails, or the open has answered. */
static size_t tls_read(struct cv_stream *s, char *buf, size_t len)
{
    size_t have = 0, n;
    int64_t until = cv_clock_mono_ms() + 5000;
    while (have < len && answers == 0 && cv_clock_mono_ms() < until) {
        int ret = cv_stream_recv(s, buf + have, len - have, &n);
        if (ret == -EAGAIN)
            cv_loop_turn(bench.worker->loop, 5);
        else if (ret != 0 || n == 0)
            break;
        else
            have += n;
    }
    return have;
}

static void tls_row(const struct test_cert *cert, const char *name, bool trust, bool no_verify,
                    int err)
{
    char buf[64];
    size_t n;
    begin(CV_BACKEND_HTTP, "name.test", 5000);
    up.tls = client_ctx(trust ? root.cert_file : good.cert_file, no_verify);
    T_INT_EQ(cv_host_parse(name, strlen(name), &up.server.host), 0);
    start();
    struct cv_stream *s = serve_tls(cert);
    size_t got = tls_read(s, buf, 21);
    if (err == 0) {
        T_INT_EQ(got, 21);
        T_MEM_EQ(buf, "CONNECT name.test:80 ", 21);
        T_STR_EQ(cv_tls_sni(s), cv_host_is_ip(&up.server.host) ? NULL : name);
        T_INT_EQ(cv_stream_send(s, LIT("HTTP/1.1 200 OK\r\n\r\nBANNER"), &n), 0);
        await();
        T_INT_EQ(answer.err, 0);
        payload_is("BANNER");
        T_INT_EQ(cv_stream_raw_fd(answer.stream), -1);
    } else {
        T_INT_EQ(got, 0); /* nothing of the request, and no login, went to whoever that was */
        await();
        T_INT_EQ(answer.err, err);
        T_INT_EQ(answer.stage, CV_STAGE_TLS);
    }
    cv_stream_close(s, false);
    end();
}

static void test_tls(void)
{
    test_dir_begin();
    test_cert_make(&root, &(struct test_cert_opts){.cn = "root", .is_ca = true});
    test_cert_make(&good, &(struct test_cert_opts){
                              .cn = "x", .san = "DNS:localhost,IP:127.0.0.1", .issuer = &root});
    test_cert_make(
        &foreign, &(struct test_cert_opts){.cn = "x", .san = "DNS:other.example", .issuer = &root});
    tls_row(&good, "localhost", true, false, 0);
    tls_row(&good, "127.0.0.1", true, false, 0);
    tls_row(&foreign, "localhost", true, false, CV_E_TLS);
    tls_row(&foreign, "127.0.0.1", true, false, CV_E_TLS);
    tls_row(&good, "localhost", false, false, CV_E_TLS);
    tls_row(&foreign, "localhost", false, true, 0);

    /* A proxy without TLS, and one that is silent: the stage tells. */
    begin(CV_BACKEND_SOCKS5, "name.test", 5000);
    up.tls = client_ctx(root.cert_file, false);
    start();
    fake_say(&fake, LIT("HTTP/1.1 400 Bad Request\r\n\r\n"), 0);
    await();
    T_INT_EQ(answer.err, CV_E_TLS);
    T_INT_EQ(answer.stage, CV_STAGE_TLS);
    end();
    begin(CV_BACKEND_SOCKS5, "name.test", 200);
    up.tls = client_ctx(root.cert_file, false);
    start();
    await();
    T_INT_EQ(answer.err, -ETIMEDOUT);
    T_INT_EQ(answer.stage, CV_STAGE_TLS);
    end();
    test_cert_done(&root);
    test_cert_done(&good);
    test_cert_done(&foreign);
    test_dir_end();
}

int main(void)
{
    T_RUN(test_socks_replies);
    T_RUN(test_socks_all_at_once);
    T_RUN(test_addresses_as_addresses);
    T_RUN(test_http_replies);
    T_RUN(test_refusals);
    T_RUN(test_deadline);
    T_RUN(test_cancel);
    T_RUN(test_commands);
    T_RUN(test_proxy_protocol);
    T_RUN(test_tls);
    return t_done();
}

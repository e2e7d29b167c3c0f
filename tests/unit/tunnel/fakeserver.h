/* An OpenVPN server in the test's own loop, over UDP on a free port: our codecs turned round, with
 * faults on demand. It serves one client at a time and sends every data packet back. */
#pragma once

#include <errno.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../net/loop_util.h"
#include "common/alloc.h"
#include "common/err.h"
#include "common/rand.h"
#include "net/loop.h"
#include "tunnel/datakey.h"
#include "tunnel/frame.h"
#include "tunnel/keymethod.h"
#include "tunnel/reliable.h"
#include "tunnel/wire.h"
#include "tunnel/wrap.h"

struct fake_slot {
    bool used, keyed, wrote_keys;
    uint8_t key_id;
    SSL *ssl;
    BIO *in, *out;
    struct cv_reliable rel;
    struct cv_keymethod_random own, peer;
    struct cv_datakey data;
};

struct fake_server {
    struct cv_loop *loop;
    struct cv_io io;
    struct cv_timer timer;
    uint16_t port;
    SSL_CTX *ctx;
    struct sockaddr_in client;
    uint8_t sid[8], peer_sid[8];
    struct fake_slot slots[8];
    int newest; /* index of the slot that sends */
    char user[64], password[64], options[512], info[512];
    /* What it does. */
    const char *push;   /* the reply; NULL: none */
    const char *push2;  /* a second part */
    const char *answer; /* in place of a reply to PUSH_REQUEST: AUTH_FAILED */
    const char *their_options;
    bool silent;   /* answers nothing at all */
    unsigned lose; /* of 100 packets, both ways */
    int32_t peer_id;
    bool ekm;
    const char *cipher, *auth;
    /* What it saw. */
    unsigned pushes, data_in, resets, exits, pings;
    char last_text[128];
};

/* ---- certificate ---- */

static char fake_ca[4096], fake_cert_cn[] = "fake.example";
static X509 *fake_x509;
static EVP_PKEY *fake_key;

static inline void fake_ext(X509 *x, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    X509_add_ext(x, e, -1);
    X509_EXTENSION_free(e);
}

static inline void fake_cert_begin(void)
{
    fake_key = EVP_EC_gen("P-256");
    X509 *x = fake_x509 = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_set_version(x, 2);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 86400);
    X509_NAME *n = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(n, "C", MBSTRING_ASC, (const uint8_t *)"JP", -1, -1, 0);
    X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_ASC, (const uint8_t *)fake_cert_cn, -1, -1, 0);
    X509_set_issuer_name(x, n);
    X509_set_pubkey(x, fake_key);
    fake_ext(x, NID_basic_constraints, "critical,CA:TRUE");
    fake_ext(x, NID_key_usage, "digitalSignature,keyCertSign");
    fake_ext(x, NID_ext_key_usage, "serverAuth");
    X509_sign(x, fake_key, EVP_sha256());
    BIO *b = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(b, x);
    int len = BIO_read(b, fake_ca, sizeof(fake_ca) - 1);
    fake_ca[len > 0 ? len : 0] = '\0';
    BIO_free(b);
}

static inline void fake_cert_end(void)
{
    X509_free(fake_x509);
    EVP_PKEY_free(fake_key);
}

/* ---- packets ---- */

static inline void fake_send(struct fake_server *f, const void *p, size_t n)
{
    if (f->silent || rand() % 100 < (int)f->lose)
        return;
    (void)!sendto(f->io.fd, p, n, MSG_DONTWAIT, (struct sockaddr *)&f->client, sizeof(f->client));
}

static inline void fake_pump(struct fake_server *f, struct fake_slot *s)
{
    const struct cv_reliable_out *o;
    uint8_t buf[1400];
    size_t n = 0;
    int got;
    while (s->ssl != NULL && cv_reliable_room(&s->rel) > 0 &&
           (got = BIO_read(s->out, buf, 1100)) > 0)
        (void)cv_reliable_push(&s->rel, CV_WIRE_CONTROL, buf, (size_t)got);
    for (bool more = true; more;) {
        o = cv_reliable_next(&s->rel, cv_loop_now(f->loop));
        struct cv_wire_ctl c = {.op = CV_WIRE_ACK, .key_id = s->key_id};
        c.n_acks = (uint8_t)cv_reliable_take_acks(&s->rel, c.acks, 4);
        memcpy(c.sid, f->sid, 8);
        memcpy(c.peer_sid, f->peer_sid, 8);
        more = o != NULL || c.n_acks > 0;
        if (o != NULL) {
            c.op = o->op;
            c.id = o->id;
            c.piece = o->data;
            c.piece_len = o->len;
        }
        if (more && cv_wire_encode(&c, buf, sizeof(buf), &n) == 0)
            fake_send(f, buf, n);
    }
    cv_loop_timer(f->loop, &f->timer, 50);
}

static inline struct fake_slot *fake_slot_open(struct fake_server *f, uint8_t key_id,
                                               enum cv_wire_op op)
{
    struct fake_slot *s = &f->slots[key_id];
    if (s->used) {
        SSL_free(s->ssl);
        if (s->keyed)
            cv_datakey_done(&s->data);
    }
    memset(s, 0, sizeof(*s));
    s->used = true;
    s->key_id = key_id;
    cv_reliable_init(&s->rel, 4);
    (void)cv_reliable_push(&s->rel, op, NULL, 0);
    s->ssl = SSL_new(f->ctx);
    s->in = BIO_new(BIO_s_mem());
    s->out = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(s->in, -1);
    BIO_set_mem_eof_return(s->out, -1);
    SSL_set_bio(s->ssl, s->in, s->out);
    SSL_set_accept_state(s->ssl);
    return s;
}

static inline void fake_say(struct fake_server *f, const char *text)
{
    struct fake_slot *s = &f->slots[f->newest];
    SSL_write(s->ssl, text, (int)strlen(text) + 1);
    fake_pump(f, s);
}

static inline void fake_keys(struct fake_server *f, struct fake_slot *s)
{
    uint8_t keys[256], swapped[256];
    int ok = f->ekm ? SSL_export_keying_material(s->ssl, keys, 256, "EXPORTER-OpenVPN-datakeys", 25,
                                                 NULL, 0, 0) == 1
                    : cv_keymethod_derive(&s->peer, &s->own, f->peer_sid, f->sid, keys) == 0;
    memcpy(swapped, keys + 128, 128);
    memcpy(swapped + 128, keys, 128);
    if (!ok || cv_datakey_init(&s->data, f->cipher, f->auth, swapped, s->key_id, f->peer_id) != 0)
        abort();
    s->keyed = true;
    f->newest = s->key_id;
}

static inline size_t fake_text(const uint8_t *p, size_t left, char *out, size_t cap)
{
    size_t n = left >= 2 ? (size_t)(p[0] << 8 | p[1]) : 0;
    if (n > 0 && n <= left - 2)
        snprintf(out, cap, "%.*s", (int)n, (const char *)p + 2);
    return 2 + n;
}

/* The client's key method message, and ours. */
static inline void fake_on_keys(struct fake_server *f, struct fake_slot *s, const uint8_t *p,
                                size_t n)
{
    size_t at = 117;
    memcpy(&s->peer, p + 5, 112);
    at += fake_text(p + at, n - at, f->options, sizeof(f->options));
    at += fake_text(p + at, n - at, f->user, sizeof(f->user));
    at += fake_text(p + at, n - at, f->password, sizeof(f->password));
    fake_text(p + at, n - at, f->info, sizeof(f->info));
    uint8_t out[512] = {0, 0, 0, 0, 2};
    cv_rand_bytes(&s->own, sizeof(s->own));
    memcpy(out + 5, s->own.r1, 64);
    size_t len = strlen(f->their_options) + 1;
    out[69] = (uint8_t)(len >> 8);
    out[70] = (uint8_t)len;
    memcpy(out + 71, f->their_options, len);
    SSL_write(s->ssl, out, (int)(71 + len + 6));
    s->wrote_keys = true;
    fake_keys(f, s);
}

static inline void fake_on_plain(struct fake_server *f, struct fake_slot *s, uint8_t *p, size_t n)
{
    if (!s->wrote_keys) {
        fake_on_keys(f, s, p, n);
        return;
    }
    snprintf(f->last_text, sizeof(f->last_text), "%.*s", (int)CV_MIN(n, (size_t)100),
             (const char *)p);
    f->exits += strcmp(f->last_text, "EXIT") == 0;
    if (strcmp(f->last_text, "PUSH_REQUEST") != 0)
        return;
    f->pushes++;
    const char *text = f->answer != NULL ? f->answer : f->push;
    if (text != NULL)
        SSL_write(s->ssl, text, (int)strlen(text) + 1);
    if (f->answer == NULL && f->push2 != NULL)
        SSL_write(s->ssl, f->push2, (int)strlen(f->push2) + 1);
}

static inline void fake_on_control(struct fake_server *f, const uint8_t *p, size_t n)
{
    struct cv_wire_ctl c;
    uint8_t plain[4096];
    const struct cv_reliable_in *in;
    if (cv_wire_decode(p, n, &c) != 0)
        return;
    struct fake_slot *s = &f->slots[c.key_id];
    if (c.op == CV_WIRE_RESET_CLIENT && (!f->slots[0].used || memcmp(f->peer_sid, c.sid, 8) != 0)) {
        memcpy(f->peer_sid, c.sid, 8);
        cv_rand_bytes(f->sid, 8);
        f->resets++;
        f->newest = 0;
        for (int i = 1; i < 8; i++)
            f->slots[i].rel.n = 0;
        s = fake_slot_open(f, 0, CV_WIRE_RESET_SERVER);
    } else if (c.op == CV_WIRE_SOFT_RESET && (!s->used || s->keyed)) {
        s = fake_slot_open(f, c.key_id, CV_WIRE_SOFT_RESET);
    }
    if (!s->used)
        return;
    for (unsigned i = 0; i < c.n_acks; i++)
        cv_reliable_on_ack(&s->rel, c.acks[i], cv_loop_now(f->loop));
    if (c.op != CV_WIRE_ACK)
        (void)cv_reliable_on_message(&s->rel, &c);
    while ((in = cv_reliable_peek(&s->rel)) != NULL) {
        if (in->len > 0)
            BIO_write(s->in, in->data, in->len);
        cv_reliable_shift(&s->rel);
    }
    int got;
    while ((got = SSL_read(s->ssl, plain, sizeof(plain))) > 0)
        fake_on_plain(f, s, plain, (size_t)got);
    ERR_clear_error();
    fake_pump(f, s);
}

static inline void fake_send_data(struct fake_server *f, const void *p, size_t n)
{
    struct fake_slot *s = &f->slots[f->newest];
    uint8_t out[2048];
    size_t len = 0;
    struct iovec iov = {(void *)(uintptr_t)p, n};
    if (s->keyed && cv_datakey_seal(&s->data, &iov, 1, n, out, sizeof(out), &len) == 0)
        fake_send(f, out, len);
}

static inline void fake_on_data(struct fake_server *f, uint8_t *p, size_t n)
{
    struct fake_slot *s = &f->slots[p[0] & 7];
    uint8_t *plain;
    size_t len = 0;
    if (!s->keyed || cv_datakey_open(&s->data, p, n, &plain, &len) != 0)
        return;
    if (len == 16 && memcmp(plain, cv_frame_ping, 16) == 0) {
        f->pings++;
        return;
    }
    f->exits += len == 17 && memcmp(plain, cv_frame_exit, 17) == 0;
    f->data_in++;
    fake_send_data(f, plain, len);
}

static inline void fake_on_io(struct cv_io *io, unsigned events)
{
    struct fake_server *f = CV_CONTAINER_OF(io, struct fake_server, io);
    uint8_t p[2048];
    for (;;) {
        struct sockaddr_in from;
        socklen_t len = sizeof(from);
        ssize_t n = recvfrom(io->fd, p, sizeof(p), MSG_DONTWAIT, (struct sockaddr *)&from, &len);
        if (n <= 0)
            return;
        if (f->silent || rand() % 100 < (int)f->lose)
            continue;
        f->client = from;
        if (cv_wire_is_data(p[0]))
            fake_on_data(f, p, (size_t)n);
        else
            fake_on_control(f, p, (size_t)n);
    }
}

static inline void fake_on_timer(struct cv_timer *timer)
{
    struct fake_server *f = CV_CONTAINER_OF(timer, struct fake_server, timer);
    for (int i = 0; i < 8; i++)
        if (f->slots[i].used)
            fake_pump(f, &f->slots[i]);
}

/* ---- life ---- */

static inline void fake_begin(struct fake_server *f, struct cv_loop *loop)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    memset(f, 0, sizeof(*f));
    f->loop = loop;
    f->peer_id = 3;
    f->cipher = "AES-256-GCM";
    f->auth = "SHA1";
    f->their_options = "V4,dev-type tun,tls-server";
    f->push = "PUSH_REPLY,ifconfig 10.1.0.2 255.255.255.0,topology subnet,dhcp-option DNS "
              "10.1.0.1,peer-id "
              "3,cipher AES-256-GCM";
    f->ctx = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(f->ctx, fake_x509);
    SSL_CTX_use_PrivateKey(f->ctx, fake_key);
    f->io.fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(f->io.fd, (struct sockaddr *)&sa, sizeof(sa)) != 0 ||
        getsockname(f->io.fd, (struct sockaddr *)&sa, &len) != 0 ||
        cv_io_add(loop, &f->io, f->io.fd, fake_on_io) != 0)
        abort();
    f->port = ntohs(sa.sin_port);
    cv_timer_init(&f->timer, fake_on_timer);
}

static inline void fake_end(struct fake_server *f)
{
    cv_loop_timer_stop(f->loop, &f->timer);
    cv_io_del(&f->io);
    close(f->io.fd);
    for (int i = 0; i < 8; i++) {
        SSL_free(f->slots[i].ssl);
        if (f->slots[i].keyed)
            cv_datakey_done(&f->slots[i].data);
    }
    SSL_CTX_free(f->ctx);
}

/* The SOCKS5 codec on arbitrary bytes, both sides. What is checked beside memory: that the bytes in
 * pieces give the same as the bytes at once, that nothing is taken that was not given, and that
 * what the server side reads from our own client is what the client was told to send.
 *
 * Input: byte 0 chooses the side, bytes 1..4 seed the split points, the rest comes from the peer.
 */
#include "proto/socks5.h"

#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

#define OUT_MAX 4096

/* Everything that one run shows to the outside. */
struct trace {
    int ret;
    size_t used;
    size_t out_len;
    uint8_t out[OUT_MAX];
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void emit(struct trace *t, const void *p, size_t n)
{
    CV_ASSERT(n <= OUT_MAX - t->out_len);
    if (n > 0)
        memcpy(t->out + t->out_len, p, n);
    t->out_len += n;
}

/* The length of the next piece: 1..left, by a generator that the input seeds. */
static size_t piece(uint32_t *seed, size_t left)
{
    *seed = *seed * 1664525u + 1013904223u;
    size_t n = (*seed >> 24) % 16 == 0 ? left : 1 + (*seed >> 16) % 24;
    return CV_MIN(n, left);
}

/* The server's order of messages; each result goes to the trace as an answer would. */
static int server_step(int *state, const uint8_t *in, size_t len, size_t *ret_used, struct trace *t)
{
    struct cv_socks5_greeting g;
    struct cv_socks5_login l;
    struct cv_socks5_request q;
    struct cv_target target;
    uint8_t b[2];
    int ret;
    switch (*state) {
    case 0:
        ret = cv_socks5_greeting_parse(in, len, &g, ret_used);
        if (ret == 0) {
            cv_socks5_method_encode(b, g.login  ? CV_SOCKS5_METHOD_LOGIN
                                       : g.none ? CV_SOCKS5_METHOD_NONE
                                                : CV_SOCKS5_METHOD_REFUSED);
            emit(t, b, 2);
            *state = g.login ? 1 : 2;
        }
        return ret;
    case 1:
        ret = cv_socks5_login_parse(in, len, &l, ret_used);
        if (ret == 0) {
            emit(t, l.user, l.user_len);
            emit(t, l.pass, l.pass_len);
            *state = 2;
        }
        return ret;
    default:
        ret = cv_socks5_request_parse(in, len, &q, ret_used);
        if (ret == 0) {
            emit(t, q.addr, q.addr_len);
            if (cv_socks5_request_target(&q, &target) == 0)
                emit(t, target.host.name, target.host.name_len);
            *state = 3;
        }
        return ret;
    }
}

/* Run a side over 'in' in pieces ('seed' NULL: at once). Each call sees memory of exact size. */
static void run(bool server, const uint8_t *in, size_t len, uint32_t *seed, struct trace *t)
{
    struct cv_target target = {0};
    CV_ASSERT(cv_target_parse("example.test:443", 16, 0, &target) == 0);
    struct cv_socks5_client c;
    CV_ASSERT(cv_socks5_client_init(&c, CV_SOCKS5_CMD_CONNECT, "user", 4, "pass", 4, &target) == 0);
    *t = (struct trace){.ret = CV_E_MORE};
    int state = 0;
    size_t have = 0;
    bool done = false;
    while (!done) {
        uint8_t *p = cv_alloc(have - t->used + 1);
        if (have > t->used)
            memcpy(p, in + t->used, have - t->used);
        size_t used = 0;
        do {
            size_t left = have - t->used, step = 0, n = 0;
            const uint8_t *at = p + used;
            if (server) {
                t->ret = server_step(&state, at, left, &step, t);
                done = t->ret == 0 && state == 3;
            } else {
                uint8_t out[CV_SOCKS5_CLIENT_OUT_MAX];
                t->ret = cv_socks5_client_step(&c, at, left, &step, out, &n);
                CV_ASSERT(n <= sizeof(out));
                emit(t, out, n);
                done = t->ret == 0;
            }
            CV_ASSERT(step <= left);
            used += step;
            t->used += step;
        } while (server && t->ret == 0 && !done);
        cv_free(p);
        if (t->ret != CV_E_MORE || have == len)
            done = true;
        else
            have += seed != NULL ? piece(seed, len - have) : len - have;
    }
}

/* What our client writes is read back by our server side as the very same values. */
static void round_trip(const uint8_t *data, size_t size)
{
    if (size < 3 || data[0] == 0 || data[1] == 0 || size - 2 < (size_t)data[0] + data[1])
        return;
    const char *user = (const char *)data + 2, *pass = user + data[0];
    const char *host = pass + data[1];
    size_t host_len = CV_MIN(size - 2 - data[0] - data[1], (size_t)255);
    struct cv_target target, got;
    if (cv_host_parse(host, host_len, &target.host) != 0)
        return;
    target.port = 443;
    struct cv_socks5_client c;
    CV_ASSERT(cv_socks5_client_init(&c, CV_SOCKS5_CMD_CONNECT, user, data[0], pass, data[1],
                                    &target) == 0);
    static const uint8_t answers[] = {5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0};
    uint8_t out[CV_SOCKS5_CLIENT_OUT_MAX];
    size_t used, n, at = 0;
    CV_ASSERT(cv_socks5_client_step(&c, answers, sizeof(answers), &used, out, &n) == 0);
    CV_ASSERT(used == sizeof(answers));
    struct cv_socks5_greeting g;
    struct cv_socks5_login l;
    struct cv_socks5_request q;
    CV_ASSERT(cv_socks5_greeting_parse(out, n, &g, &used) == 0 && g.login);
    at += used;
    CV_ASSERT(cv_socks5_login_parse(out + at, n - at, &l, &used) == 0);
    CV_ASSERT(l.user_len == data[0] && memcmp(l.user, user, l.user_len) == 0);
    CV_ASSERT(l.pass_len == data[1] && memcmp(l.pass, pass, l.pass_len) == 0);
    at += used;
    CV_ASSERT(cv_socks5_request_parse(out + at, n - at, &q, &used) == 0 && at + used == n);
    CV_ASSERT(cv_socks5_request_target(&q, &got) == 0 && got.port == 443);
    CV_ASSERT(strcmp(got.host.name, target.host.name) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct trace whole, parts;
    if (size < 5 || size > 2048)
        return 0;
    bool server = (data[0] & 1) != 0;
    uint32_t seed;
    memcpy(&seed, data + 1, sizeof(seed));
    run(server, data + 5, size - 5, NULL, &whole);
    run(server, data + 5, size - 5, &seed, &parts);
    CV_ASSERT(whole.ret == parts.ret);
    /* A fault stops the client before its answers of that step are out, so only the fault counts.
     */
    if (whole.ret == 0 || whole.ret == CV_E_MORE || server) {
        CV_ASSERT(whole.used == parts.used);
        CV_ASSERT(whole.out_len == parts.out_len);
        CV_ASSERT(memcmp(whole.out, parts.out, whole.out_len) == 0);
    }
    round_trip(data + 5, size - 5);
    return 0;
}

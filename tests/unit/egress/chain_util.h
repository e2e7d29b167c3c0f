/* Egresses that do as the test tells them, as members of a chain. */
#pragma once

#include "egress/egress.h"
#include "egress/member.h"
#include "egress_util.h"
#include "net/tcp.h"

#define FAKES_MAX 26

enum fake_mode {
    FAKE_WORKS,
    FAKE_FAILS, /* with its stage, error and blame */
    FAKE_HANGS, /* until it is cancelled; its deadline is not its own business */
};

struct fake {
    struct cv_egress super;
    unsigned index;
};

static struct {
    enum fake_mode mode[FAKES_MAX];
    enum cv_stage stage[FAKES_MAX];
    int err[FAKES_MAX];
    enum cv_blame blame[FAKES_MAX];
    bool tcp_only[FAKES_MAX]; /* made without open_udp */
    int peer_fd;              /* of the last connection; the test closes it */
    int dials[FAKES_MAX], cancels;
    char tried[64];      /* "ab": in this order */
    struct cv_dial last; /* the request of the last dial */
    _Atomic int live;
    int made, fail_at; /* the factory has no memory at this one */
    struct cv_members *members;
} fakes;

static inline struct fake *fake_of(struct cv_egress *e)
{
    return CV_CONTAINER_OF(e, struct fake, super);
}

struct fake_dial {
    struct cv_task task; /* first */
    struct cv_dial *dial;
    struct fake *fake;
};

static inline void fake_answer(struct cv_task *task)
{
    struct fake_dial *fd = (struct fake_dial *)task;
    struct cv_dial *d = fd->dial;
    unsigned i = fd->fake->index;
    int fds[2];
    d->_impl = NULL;
    cv_free(fd);
    if (fakes.mode[i] == FAKE_FAILS) {
        d->err = fakes.err[i];
        d->stage = fakes.stage[i];
        d->blame = fakes.blame[i];
        cv_dial_done(d);
        return;
    }
    if (d->udp) { /* nobody looks into it here */
        static struct cv_dgram dgram;
        d->dgram = &dgram;
        cv_dial_done(d);
        return;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0 ||
        cv_tcp_adopt(d->worker->loop, fds[0], &d->stream) != 0)
        abort();
    fakes.peer_fd = fds[1];
    d->err = 0;
    d->local = (struct cv_endpoint){.ip = {.family = CV_AF_IP4, .b = {192, 0, 2, 1}}, .port = 99};
    d->peer = (struct cv_endpoint){.ip = {.family = CV_AF_IP4, .b = {192, 0, 2, 9}}, .port = 80};
    cv_dial_done(d);
}

static inline void fake_connect(struct cv_egress *e, struct cv_dial *d)
{
    struct fake *f = fake_of(e);
    size_t len = strlen(fakes.tried);
    fakes.dials[f->index]++;
    fakes.last = *d;
    if (len + 1 < sizeof(fakes.tried))
        fakes.tried[len] = (char)('a' + f->index);
    d->blame = fakes.blame[f->index];
    struct fake_dial *fd = cv_zalloc(sizeof(*fd));
    *fd = (struct fake_dial){.task = {.fn = fake_answer}, .dial = d, .fake = f};
    d->_impl = fd;
    if (fakes.mode[f->index] != FAKE_HANGS)
        cv_loop_next(d->worker->loop, &fd->task);
}

static inline void fake_cancel(struct cv_egress *e, struct cv_dial *d)
{
    struct fake_dial *fd = d->_impl;
    (void)e;
    fakes.cancels++;
    (void)cv_loop_next_cancel(d->worker->loop, &fd->task);
    cv_free(fd);
    d->_impl = NULL;
}

static inline void fake_free(struct cv_egress *e)
{
    fakes.live--;
    cv_free(fake_of(e));
}

static inline bool fake_same(const struct cv_egress *a, const struct cv_egress *b)
{
    return strcmp(a->label->s, b->label->s) == 0;
}

static const struct cv_egress_ops fake_ops = {.kind = "fake",
                                              .connect = fake_connect,
                                              .open_udp = fake_connect,
                                              .same = fake_same,
                                              .cancel = fake_cancel,
                                              .free = fake_free};
static const struct cv_egress_ops fake_tcp_ops = {
    .kind = "tcp", .connect = fake_connect, .cancel = fake_cancel, .free = fake_free};

/* By the letter of its id, or of its address when it has none. */
static inline struct cv_egress *fake_factory(void *arg, const struct cv_egress_def *def)
{
    (void)arg;
    if (++fakes.made == fakes.fail_at)
        return NULL;
    struct fake *f = cv_zalloc(sizeof(*f));
    const struct cv_chain_member *m = &def->members[0];
    T_OK(!def->is_chain && def->n_members == 1);
    f->index = (unsigned)((m->id != NULL ? m->id->s[0] : m->backend.addr->s[0]) - 'a');
    cv_egress_init(&f->super, fakes.tcp_only[f->index] ? &fake_tcp_ops : &fake_ops, def->label,
                   cv_registry_egress(bench.registry, def->label->s));
    fakes.live++;
    return &f->super;
}

/* A policy with the chain "fo" of the members that the letters name, and 'more' others of the same
 * members. */
static inline struct cv_snapshot *chains_snapshot(const char *letters, int more)
{
    char json[16384];
    struct cv_snapshot_error e;
    struct cv_snapshot *s = NULL;
    size_t len = (size_t)snprintf(
        json, sizeof(json),
        "{\"schema_version\":1,\"version\":1,\"users\":{},\"routing_policies\":{},\"egresses\":{"
        "\"one\":{\"type\":\"upstream\",\"backend\":{\"kind\":\"socks5\",\"addr\":\"p:1\"}}");
    for (int k = 0; k <= more; k++) {
        len += (size_t)snprintf(json + len, sizeof(json) - len,
                                ",\"fo%.*d\":{\"type\":\"chain\",\"members\":[", k > 0, k);
        for (size_t i = 0; letters[i] != '\0'; i++)
            len += (size_t)snprintf(json + len, sizeof(json) - len,
                                    "%s{\"id\":\"%c\",\"priority\":%zu,\"backend\":"
                                    "{\"kind\":\"socks5\",\"addr\":\"%c:1\"}}",
                                    i > 0 ? "," : "", letters[i], i * 10, letters[i]);
        len += (size_t)snprintf(json + len, sizeof(json) - len, "]}");
    }
    snprintf(json + len, sizeof(json) - len, "}}");
    if (cv_snapshot_compile(json, strlen(json), "n", &e, &s) != 0) {
        printf("# %s: %s\n", e.path, e.text);
        abort();
    }
    return s;
}

static inline struct cv_snapshot *chain_snapshot(const char *letters)
{
    return chains_snapshot(letters, 0);
}

static inline const struct cv_egress_def *egress_def(const struct cv_snapshot *s, const char *id)
{
    for (uint32_t i = 0; i < cv_snapshot_n_egresses(s); i++)
        if (strcmp(cv_snapshot_egress(s, i)->id->s, id) == 0)
            return cv_snapshot_egress(s, i);
    abort();
}

static inline struct cv_egress *chain_new(const char *letters)
{
    struct cv_snapshot *s = chain_snapshot(letters);
    struct cv_egress *e =
        cv_egress_chain_new(egress_def(s, "fo"), cv_registry_egress(bench.registry, "chain:fo"),
                            fakes.members, fake_factory, NULL, cv_loop_now(bench.worker->loop));
    cv_snapshot_unref(s);
    return e;
}

static inline void fakes_open(void)
{
    memset(&fakes, 0, sizeof(fakes));
    fakes.peer_fd = -1;
    fakes.members = cv_members_new();
    bench_open();
    bench.settings->chain_attempt_timeout_ms = 200;
    bench.settings->chain_total_timeout_ms = 500;
    bench.settings->chain_backoff_ms = 300;
    bench.settings->chain_backoff_max_ms = 2000;
}

static inline void fakes_close(void)
{
    bench_close();
    T_INT_EQ(fakes.live, 0);
    cv_members_free(fakes.members);
    if (fakes.peer_fd >= 0)
        close(fakes.peer_fd);
}

/* Index i fails like this from now on. */
static inline void fake_fails(unsigned i, enum cv_stage stage, int err, enum cv_blame blame)
{
    fakes.mode[i] = FAKE_FAILS;
    fakes.stage[i] = stage;
    fakes.err[i] = err;
    fakes.blame[i] = blame;
}

static inline void hang_up(void)
{
    cv_stream_close(bench.dial.stream, false);
    bench.dial.stream = NULL;
    close(fakes.peer_fd);
    fakes.peer_fd = -1;
}

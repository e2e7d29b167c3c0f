/* A proxy that is played by the test: a listening socket on the worker's loop's host, whose side of
 * the conversation is written out by hand. */
#pragma once

#include <fcntl.h>

#include "common/rcstr.h"
#include "egress_util.h"

struct fake {
    int listener, fd;
    uint16_t port;
};

static inline void fake_open(struct fake *f)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    f->fd = -1;
    f->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (f->listener < 0 || bind(f->listener, (struct sockaddr *)&sa, sizeof(sa)) != 0 ||
        listen(f->listener, 8) != 0 || getsockname(f->listener, (struct sockaddr *)&sa, &len) != 0)
        abort();
    f->port = ntohs(sa.sin_port);
}

static inline void fake_hang_up(struct fake *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

static inline void fake_close(struct fake *f)
{
    fake_hang_up(f);
    close(f->listener);
}

static inline void fake_accept(struct fake *f)
{
    int64_t end = cv_clock_mono_ms() + 10000;
    do {
        cv_loop_turn(bench.worker->loop, 10);
        f->fd = accept4(f->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (f->fd < 0 && cv_clock_mono_ms() < end);
    T_OK(f->fd >= 0);
}

/* Exactly these bytes come next. */
static inline bool fake_expect(struct fake *f, const void *want, size_t len)
{
    uint8_t got[4096];
    size_t have = 0;
    int64_t end = cv_clock_mono_ms() + 5000;
    while (have < len && cv_clock_mono_ms() < end) {
        ssize_t n = read(f->fd, got + have, len - have);
        if (n > 0)
            have += (size_t)n;
        else if (n == 0)
            break;
        else
            cv_loop_turn(bench.worker->loop, 5);
    }
    if (!T_INT_EQ(have, len))
        return false;
    return T_MEM_EQ(got, want, len);
}

/* Nothing more has come; the connection is still there. */
static inline void fake_expect_silence(struct fake *f)
{
    uint8_t byte;
    for (int i = 0; i < 3; i++)
        cv_loop_turn(bench.worker->loop, 1);
    T_INT_EQ(read(f->fd, &byte, 1), -1);
    T_INT_EQ(errno, EAGAIN);
}

/* In two pieces: each of them is seen by the node alone. */
static inline void fake_say(struct fake *f, const void *data, size_t len, size_t first)
{
    if (first > 0)
        T_INT_EQ(write(f->fd, data, first), (intmax_t)first);
    for (int i = 0; i < 2; i++)
        cv_loop_turn(bench.worker->loop, 1);
    if (len > first)
        T_INT_EQ(write(f->fd, (const char *)data + first, len - first), (intmax_t)(len - first));
}

static inline struct cv_rcstr *text(const char *s)
{
    struct cv_rcstr *r = s != NULL ? cv_rcstr_new(s, strlen(s)) : NULL;
    if (s != NULL && r == NULL)
        abort();
    return r;
}

#define LIT(s) (s), sizeof(s) - 1

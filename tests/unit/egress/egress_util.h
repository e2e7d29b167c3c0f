/* What the tests of this module share: a worker, and one dial at a time. */
#pragma once

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "egress/egress.h"
#include "flow/registry.h"
#include "flow/worker.h"
#include "tap.h"

struct bench {
    struct cv_node node;
    struct cv_settings *settings;
    struct cv_registry *registry;
    struct cv_worker *worker;
    struct cv_egress *egress;
    struct cv_target target;
    struct cv_dial dial;
    int answers;
};

static struct bench bench;

static inline void on_dialled(struct cv_dial *d)
{
    (void)d;
    bench.answers++;
}

static inline void bench_open(void)
{
    bench = (struct bench){0};
    bench.settings = cv_settings_new();
    bench.registry = cv_registry_new();
    if (cv_worker_new(0, &bench.node, bench.settings, &bench.worker) != 0)
        abort();
}

static inline void bench_close(void)
{
    cv_egress_unref(bench.egress);
    for (int i = 0; i < 3; i++)
        cv_loop_turn(bench.worker->loop, 0);
    T_INT_EQ(cv_loop_io_count(bench.worker->loop), 0);
    T_INT_EQ(cv_timers_count(cv_loop_timers(bench.worker->loop)), 0);
    cv_worker_free(bench.worker);
    cv_settings_unref(bench.settings);
    cv_registry_free(bench.registry);
}

static inline void dial_start(const char *host, uint16_t port, int64_t timeout_ms)
{
    if (cv_host_parse(host, strlen(host), &bench.target.host) != 0)
        abort();
    bench.target.port = port;
    bench.answers = 0;
    bench.dial = (struct cv_dial){
        .worker = bench.worker,
        .target = &bench.target,
        .names_special = bench.dial.names_special,
        .special = bench.dial.special,
        .deadline_ms = cv_loop_now(bench.worker->loop) + timeout_ms,
        .done = on_dialled,
    };
    cv_dial_start(bench.egress, &bench.dial);
    T_INT_EQ(bench.answers, 0); /* never from inside the call */
}

static inline void dial_wait(void)
{
    int64_t end = cv_clock_mono_ms() + 60000;
    while (bench.answers == 0 && cv_clock_mono_ms() < end)
        cv_loop_turn(bench.worker->loop, 20);
    T_INT_EQ(bench.answers, 1);
}

static inline int dial_host(const char *host, uint16_t port)
{
    dial_start(host, port, 5000);
    dial_wait();
    return bench.dial.err;
}

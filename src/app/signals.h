/* Signals as events of the control loop. */
#pragma once

#include "net/loop.h"

struct cv_signals;
typedef void (*cv_signals_cb)(struct cv_signals *s, int signo);

struct cv_signals {
    struct cv_io _io;
    int _fd;
    cv_signals_cb _cb;
};

/* Block SIGTERM, SIGINT and SIGHUP, which become events, and ignore SIGPIPE. To be called before
 * any other thread is started, which inherit this. 0 or -errno. */
int cv_signals_start(struct cv_signals *s, struct cv_loop *loop, cv_signals_cb cb) CV_MUST_CHECK;
void cv_signals_stop(struct cv_signals *s); /* not started: nothing */

#include "app/signals.h"

#include <signal.h>
#include <unistd.h>

#include "tap.h"

static int t_seen[64];

static void on_signal(struct cv_signals *s, int signo)
{
    t_seen[signo]++;
    if (signo == SIGINT)
        cv_signals_stop(s); /* allowed from inside */
}

static void test_events(void)
{
    struct cv_loop *loop;
    struct cv_signals s = {0};
    cv_signals_stop(&s); /* not started */
    T_INT_EQ(cv_loop_new(&loop), 0);
    T_INT_EQ(cv_signals_start(&s, loop, on_signal), 0);
    kill(getpid(), SIGHUP);
    cv_loop_turn(loop, 1000);
    T_INT_EQ(t_seen[SIGHUP], 1);
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGPIPE); /* ignored */
    cv_loop_turn(loop, 1000);
    T_INT_EQ(t_seen[SIGTERM], 1);
    kill(getpid(), SIGINT);
    cv_loop_turn(loop, 1000);
    T_INT_EQ(t_seen[SIGINT], 1);
    T_INT_EQ(cv_loop_io_count(loop), 0);
    cv_loop_free(loop);
}

int main(void)
{
    T_RUN(test_events);
    return t_done();
}

/* Closing so that the last answer can be read. */
#include "inbound_util.h"

#include "inbound/linger.h"

static struct cv_session session;

static void on_kill(struct cv_session *s, int err)
{
    cv_session_drop(s);
}

/* Send "bye" to a new client and linger; the session that it belonged to ends. */
static int start(struct rig *g, bool unread)
{
    static const struct cv_session_ops ops = {.kill = on_kill};
    struct cv_endpoint from = {.port = 1};
    int fds[2];
    size_t n;
    rig_tcp_pair(fds);
    cv_session_begin(&session, g->w, &ops, "test", g->conf->stats, &from);
    struct cv_stream *s = rig_adopt(g, fds[0]);
    if (unread)
        SAY(fds[1], "not read by anybody");
    T_INT_EQ(cv_stream_send(s, "bye", 3, &n), 0);
    cv_linger_close(&session, s);
    cv_session_end(&session);
    return fds[1];
}

static void test_readable(void)
{
    struct rig *g = rig_new();
    int fd = start(g, true);
    SAY(fd, "and more");
    rig_settle(g);
    T_INT_EQ(g->w->n_sessions, 1);
    HEAR(g, fd, "bye");
    HEAR_END(g, fd);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(alog_lines, 1); /* of the session that ended */
    rig_free(g);
}

/* It ends with the client, by a reset, by an operator, by bytes; and a time is set. */
static void test_ends(void)
{
    struct rig *g = rig_new();
    int fd = start(g, false);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);

    fd = start(g, false);
    struct linger reset = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);

    fd = start(g, true);
    T_INT_EQ(cv_timers_count(cv_loop_timers(g->w->loop)), 1);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    T_INT_EQ(g->w->n_sessions, 0);
    close(fd);

    fd = start(g, false);
    static char junk[16384];
    size_t sent = 0;
    int64_t end = cv_clock_mono_ms() + 60000;
    while (g->w->n_sessions > 0 && cv_clock_mono_ms() < end) {
        ssize_t n = send(fd, junk, sizeof(junk), MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        cv_loop_turn(g->w->loop, 0);
    }
    T_OK(sent >= CV_LINGER_MAX_BYTES);
    T_INT_EQ(g->w->n_sessions, 0);
    close(fd);
    rig_free(g);
}

static void test_time(void)
{
    struct rig *g = rig_new();
    int64_t start_ms = cv_clock_mono_ms();
    int fd = start(g, false);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_OK(cv_clock_mono_ms() - start_ms >= CV_LINGER_TIMEOUT_MS - 50);
    close(fd);
    rig_free(g);
}

int main(void)
{
    T_RUN(test_readable);
    T_RUN(test_ends);
    T_RUN(test_time);
    return t_done();
}

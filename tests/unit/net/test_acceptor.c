#include "net/acceptor.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "loop_util.h"
#include "net/tcp.h"

struct server {
    struct cv_acceptor a;
    int fds[600];
    size_t n;
    int pause_err;
    struct cv_endpoint last_peer;
    bool stop_after_one;
    bool stop_on_pause;
};

static void on_accept(struct cv_acceptor *a, int fd, const struct cv_sockaddr *peer)
{
    struct server *s = CV_CONTAINER_OF(a, struct server, a);
    cv_endpoint_from_sockaddr(&s->last_peer, &peer->sa);
    if (s->n < CV_ARRAY_SIZE(s->fds))
        s->fds[s->n++] = fd;
    else
        close(fd);
    if (s->stop_after_one)
        cv_acceptor_stop(a, false);
}

static void on_pause(struct cv_acceptor *a, int err)
{
    struct server *s = CV_CONTAINER_OF(a, struct server, a);
    s->pause_err = err;
    if (s->stop_on_pause)
        cv_acceptor_stop(a, true);
}

static void start(struct server *s, struct cv_loop *loop, int listener, bool shared)
{
    memset(s, 0, sizeof(*s));
    s->a.on_accept = on_accept;
    s->a.on_pause = on_pause;
    T_INT_EQ(cv_acceptor_start(&s->a, loop, listener, shared), 0);
}

static void close_all(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
}

static void test_accept(void)
{
    static struct server s;
    struct cv_loop *loop = test_loop();
    int listener = test_listener();
    start(&s, loop, listener, false);
    int client = test_client(listener);
    TURN_UNTIL(loop, s.n == 1);
    T_OK((fcntl(s.fds[0], F_GETFL) & O_NONBLOCK) != 0);
    T_OK((fcntl(s.fds[0], F_GETFD) & FD_CLOEXEC) != 0);
    T_INT_EQ(s.last_peer.ip.family, CV_AF_IP4);
    struct sockaddr_in local;
    socklen_t len = sizeof(local);
    T_INT_EQ(getsockname(client, (struct sockaddr *)&local, &len), 0);
    T_INT_EQ(s.last_peer.port, ntohs(local.sin_port));
    T_INT_EQ(s.a.accepted, 1);
    T_INT_EQ(s.a.paused, 0);
    cv_acceptor_stop(&s.a, false);
    cv_acceptor_stop(&s.a, true); /* not started: nothing */
    close(client);
    close_all(s.fds, s.n);
    /* Startable again. */
    T_INT_EQ(cv_acceptor_start(&s.a, loop, listener, false), 0);
    client = test_client(listener);
    TURN_UNTIL(loop, s.a.accepted == 2);
    cv_acceptor_stop(&s.a, false);
    close(s.fds[1]);
    close(client);
    close(listener);
    T_INT_EQ(cv_acceptor_start(&s.a, loop, listener, false), -EBADF);
    test_loop_end(loop);
}

/* A backlog is taken in bursts that grow to their maximum, so that other work gets its turn. */
static void burst_run(bool shared, size_t max)
{
    enum { N = 300 };
    static struct server s;
    static int clients[N];
    struct cv_loop *loop = test_loop();
    int listener = test_listener();
    for (size_t i = 0; i < N; i++)
        clients[i] = test_client(listener);
    start(&s, loop, listener, shared);
    size_t largest = 0;
    unsigned turns = 0;
    while (s.n < N && turns < 1000) {
        size_t before = s.n;
        cv_loop_turn(loop, 100);
        turns++;
        largest = CV_MAX(largest, s.n - before);
    }
    T_INT_EQ(s.n, N);
    T_INT_EQ(largest, max);
    T_OK(turns <= N / max + 10);
    cv_acceptor_stop(&s.a, false);
    close_all(s.fds, s.n);
    close_all(clients, N);
    close(listener);
    test_loop_end(loop);
}

static void test_bursts(void)
{
    burst_run(false, CV_ACCEPTOR_BATCH);
    burst_run(true, CV_ACCEPTOR_BATCH_SHARED);
}

static void test_two_loops(void)
{
    static struct server a, b;
    struct cv_loop *one = test_loop(), *two = test_loop();
    int listener = test_listener(), clients[40];
    start(&a, one, listener, true);
    start(&b, two, listener, true);
    for (size_t i = 0; i < 40; i++)
        clients[i] = test_client(listener);
    cv_loop_turn(two, 0);
    T_OK(b.n > 0);
    TURN_UNTIL(one, a.n + b.n == 40);
    cv_loop_turn(two, 0); /* woken for nothing: no harm */
    T_INT_EQ(a.n + b.n, 40);
    cv_acceptor_stop(&a.a, false);
    cv_acceptor_stop(&b.a, false);
    close_all(a.fds, a.n);
    close_all(b.fds, b.n);
    close_all(clients, 40);
    close(listener);
    test_loop_end(one);
    test_loop_end(two);
}

static void test_unix_peer(void)
{
    static struct server s;
    struct cv_loop *loop = test_loop();
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(sa_family_t); /* the kernel picks an abstract name */
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    T_INT_EQ(bind(listener, (struct sockaddr *)&sa, len), 0);
    T_INT_EQ(listen(listener, 5), 0);
    len = sizeof(sa);
    T_INT_EQ(getsockname(listener, (struct sockaddr *)&sa, &len), 0);
    start(&s, loop, listener, false);
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    T_INT_EQ(connect(client, (struct sockaddr *)&sa, len), 0);
    TURN_UNTIL(loop, s.n == 1);
    T_INT_EQ(s.last_peer.ip.family, CV_AF_NONE);
    cv_acceptor_stop(&s.a, false);
    close_all(s.fds, s.n);
    close(client);
    close(listener);
    test_loop_end(loop);
}

static void test_stop(void)
{
    static struct server s;
    struct cv_loop *loop = test_loop();
    int listener = test_listener(), clients[20];
    for (size_t i = 0; i < 20; i++)
        clients[i] = test_client(listener);
    /* From its own callback. */
    start(&s, loop, listener, false);
    s.stop_after_one = true;
    cv_loop_turn(loop, 100);
    cv_loop_turn(loop, 0);
    T_INT_EQ(s.n, 1);
    T_INT_EQ(cv_loop_io_count(loop), 0);
    close_all(s.fds, s.n);
    /* Also while it drains. */
    start(&s, loop, listener, false);
    s.stop_after_one = true;
    cv_acceptor_stop(&s.a, true);
    T_INT_EQ(s.n, 1);
    close_all(s.fds, s.n);
    /* Draining hands over what waits, in one go. */
    start(&s, loop, listener, false);
    cv_acceptor_stop(&s.a, true);
    T_INT_EQ(s.n, 18);
    T_INT_EQ(cv_loop_io_count(loop), 0);
    close_all(s.fds, s.n);
    close_all(clients, 20);
    close(listener);
    test_loop_end(loop);
}

/* Use up all descriptors but 'spare'; the old limit goes to *ret_old. */
static void limit_fds(int spare, struct rlimit *ret_old)
{
    struct rlimit lim;
    getrlimit(RLIMIT_NOFILE, ret_old);
    /* The number of the lowest free descriptor; all below are in use. */
    int next = fcntl(0, F_DUPFD_CLOEXEC, 0);
    close(next);
    lim = (struct rlimit){.rlim_cur = (rlim_t)(next + spare), .rlim_max = ret_old->rlim_max};
    setrlimit(RLIMIT_NOFILE, &lim);
}

static void test_out_of_descriptors(void)
{
    static struct server s;
    struct cv_loop *loop = test_loop();
    struct rlimit old;
    int listener = test_listener(), clients[10];
    for (size_t i = 0; i < 10; i++)
        clients[i] = test_client(listener);
    start(&s, loop, listener, false);
    limit_fds(3, &old);
    TURN_UNTIL(loop, s.a.paused == 1);
    T_INT_EQ(s.n, 3);
    T_INT_EQ(s.pause_err, -EMFILE);
    /* Connections keep waiting in the backlog, and nothing spins: between two tries the loop
     * sleeps. A try is one turn in which the timer fires and the listener is registered, and one in
     * which it is ready. */
    uint64_t turns = cv_loop_turns(loop);
    TURN_UNTIL(loop, s.a.paused == 3);
    T_OK(cv_loop_turns(loop) - turns <= 6);
    T_INT_EQ(s.n, 3);
    /* Descriptors are free again: it resumes by itself. */
    setrlimit(RLIMIT_NOFILE, &old);
    TURN_UNTIL(loop, s.n == 10);
    T_INT_EQ(s.a.paused, 3);

    /* Stopped during a pause. */
    int more = test_client(listener);
    limit_fds(0, &old);
    TURN_UNTIL(loop, s.a.paused == 4);
    T_INT_EQ(cv_timers_count(cv_loop_timers(loop)), 1);
    cv_acceptor_stop(&s.a, true);
    T_INT_EQ(cv_timers_count(cv_loop_timers(loop)), 0);

    /* And by the callback that tells of it. */
    static struct server t;
    start(&t, loop, listener, false);
    t.stop_on_pause = true;
    TURN_UNTIL(loop, t.a.paused == 1);
    T_INT_EQ(t.n, 0);
    setrlimit(RLIMIT_NOFILE, &old);
    close(more);
    close_all(s.fds, s.n);
    close_all(clients, 10);
    close(listener);
    test_loop_end(loop);
}

/* A connection that is reset while it waits is no reason to stop. */
static void test_reset_in_backlog(void)
{
    static struct server s;
    struct cv_loop *loop = test_loop();
    int listener = test_listener();
    struct linger reset = {.l_onoff = 1};
    int bad = test_client(listener), good = test_client(listener);
    setsockopt(bad, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(bad);
    start(&s, loop, listener, false);
    for (int i = 0; i < 5; i++)
        cv_loop_turn(loop, 10);
    T_OK(s.n >= 1 && s.n <= 2); /* Linux hands the dead one over; others may not */
    T_INT_EQ(s.a.paused, 0);
    cv_acceptor_stop(&s.a, false);
    close_all(s.fds, s.n);
    close(good);
    close(listener);
    test_loop_end(loop);
}

int main(void)
{
    T_RUN(test_accept);
    T_RUN(test_bursts);
    T_RUN(test_two_loops);
    T_RUN(test_unix_peer);
    T_RUN(test_stop);
    T_RUN(test_out_of_descriptors);
    T_RUN(test_reset_in_backlog);
    return t_done();
}

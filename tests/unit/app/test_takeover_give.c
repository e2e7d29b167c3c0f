#include "app/takeover_give.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/err.h"
#include "common/log.h"
#include "net/packet.h"
#include "tap.h"

/* A giver with two sockets to give (descriptors of /dev/null serve) and its own one, and the other
 * side of the conversation played by hand. */
static struct cv_loop *t_loop;
static struct cv_giver *t_giver;
static char t_dir[32], t_path[64];
static int t_refuse, t_collected, t_broken, t_shared, t_given, t_pid, t_taken;

static void on_log(void *arg, const char *line, size_t len)
{
    (void)arg;
    (void)line;
    (void)len;
}

static int collect(void *arg, struct cv_handed *handed, struct cv_takeover_msg *offer,
                   const char **why)
{
    (void)arg;
    t_collected++;
    *why = "not now";
    if (t_refuse)
        return CV_E_DRAINING;
    offer->watchdog_ms = 5;
    for (int i = 0; i < 2; i++) {
        struct cv_takeover_item about = {.kind = CV_TAKEOVER_ADDRESS, .n_fds = 2};
        int fds[2] = {STDIN_FILENO, STDOUT_FILENO};
        if (cv_handed_add(handed, &about, fds) != 0)
            abort();
    }
    return cv_giver_offer(t_giver, handed);
}

static void failed(void *arg, bool shared)
{
    (void)arg;
    t_broken++;
    t_shared += shared;
}

static void given(void *arg, int32_t pid, const struct cv_handed *handed)
{
    (void)arg;
    t_given++;
    t_pid = pid;
    t_taken = 0;
    for (size_t i = 0; i < handed->n; i++)
        t_taken = t_taken * 2 + handed->v[i]->taken;
}

static const struct cv_giver_ops ops = {.collect = collect, .failed = failed, .given = given};

static void begin(void)
{
    cv_log_set_sink(on_log, NULL);
    snprintf(t_dir, sizeof(t_dir), "/tmp/cv-give-XXXXXX");
    if (mkdtemp(t_dir) == NULL || cv_loop_new(&t_loop) != 0)
        abort();
    snprintf(t_path, sizeof(t_path), "%s/sub/s", t_dir);
    t_refuse = t_collected = t_broken = t_shared = t_given = 0;
    T_INT_EQ(cv_giver_start(t_loop, &(struct cv_giver_conf){.path = t_path, .ops = &ops}, &t_giver),
             0);
}

static void end(void)
{
    char sub[64];
    cv_giver_free(t_giver);
    t_giver = NULL;
    cv_loop_turn(t_loop, 0);
    T_INT_EQ(cv_loop_io_count(t_loop), 0);
    cv_loop_free(t_loop);
    snprintf(sub, sizeof(sub), "%s/sub", t_dir);
    T_INT_EQ(rmdir(sub), 0);
    T_INT_EQ(rmdir(t_dir), 0);
    cv_log_set_sink(NULL, NULL);
}

static void turns(void)
{
    for (int i = 0; i < 5; i++)
        cv_loop_turn(t_loop, 0);
}

static int dial(void)
{
    int fd = -1;
    T_INT_EQ(cv_packet_connect(t_path, &fd), 0);
    turns();
    return fd;
}

static void say(int fd, const struct cv_takeover_msg *m)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    T_INT_EQ(cv_packet_send(fd, data, cv_takeover_encode(m, data), NULL, 0), 0);
    turns();
}

static void say_type(int fd, enum cv_takeover_type type)
{
    say(fd, &(struct cv_takeover_msg){.type = type, .text = "x"});
}

/* The type of the next message; 0: the end; -1: none. Descriptors are closed. */
static int hear(int fd, struct cv_takeover_msg *m)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    int fds[CV_TAKEOVER_FDS_MAX];
    size_t len, n;
    int ret = cv_packet_recv(fd, data, sizeof(data), &len, fds, CV_TAKEOVER_FDS_MAX, &n);
    if (ret != 0)
        return ret == -EPIPE ? 0 : -1;
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
    T_INT_EQ(cv_takeover_decode(data, len, m), 0);
    T_INT_EQ(n, m->type == CV_TAKEOVER_ITEM ? m->item.n_fds : 0);
    return m->type;
}

/* Get all three items. */
static void fetch(int fd)
{
    struct cv_takeover_msg m;
    say_type(fd, CV_TAKEOVER_HELLO);
    T_INT_EQ(hear(fd, &m), CV_TAKEOVER_OFFER);
    T_INT_EQ(m.n_items, 3);
    T_INT_EQ(m.pid, getpid());
    T_INT_EQ(m.watchdog_ms, 5);
    for (uint16_t i = 0; i < 3; i++) {
        T_INT_EQ(hear(fd, &m), CV_TAKEOVER_ITEM);
        T_INT_EQ(m.item.index, i);
        T_INT_EQ(hear(fd, &m), -1); /* not before it was confirmed */
        say(fd, &(struct cv_takeover_msg){.type = CV_TAKEOVER_NEXT, .index = i});
    }
    T_OK(cv_giver_is_busy(t_giver));
}

static void prepare(int fd, unsigned taken)
{
    struct cv_takeover_msg m = {.type = CV_TAKEOVER_PREPARED, .n_items = 3};
    m.taken[0] = (uint8_t)taken;
    say(fd, &m);
}

static void test_given(void)
{
    struct cv_takeover_msg m;
    struct stat sb;
    begin();
    T_INT_EQ(stat(t_path, &sb), 0);
    T_INT_EQ(sb.st_mode & 0777, 0600);
    int fd = dial();
    fetch(fd);
    prepare(fd, 1 | 4);
    T_INT_EQ(hear(fd, &m), CV_TAKEOVER_COMMIT);
    T_INT_EQ(t_given, 0);
    say_type(fd, CV_TAKEOVER_SERVING);
    T_INT_EQ(t_given, 1);
    T_INT_EQ(t_pid, getpid());
    T_INT_EQ(t_taken, 5);
    T_INT_EQ(hear(fd, &m), CV_TAKEOVER_DONE);
    T_INT_EQ(hear(fd, &m), 0);
    T_OK(!cv_giver_is_busy(t_giver));
    T_INT_EQ(t_broken, 0);
    close(fd);
    /* The control socket was handed over, so its file stays. */
    cv_giver_free(t_giver);
    t_giver = NULL;
    T_INT_EQ(unlink(t_path), 0);
    end();
}

static void test_control_stays_ours(void)
{
    struct cv_takeover_msg m;
    begin();
    int fd = dial();
    fetch(fd);
    prepare(fd, 3);
    T_INT_EQ(hear(fd, &m), CV_TAKEOVER_COMMIT);
    say_type(fd, CV_TAKEOVER_SERVING);
    T_INT_EQ(t_taken, 6);
    close(fd);
    end(); /* which asserts that the file is gone */
}

/* Whatever is said in whatever state: refused and forgotten, and the next one is served. */
static void test_wrong_messages(void)
{
    struct cv_takeover_msg m;
    begin();
    for (int state = 0; state < 3; state++) {
        for (int type = CV_TAKEOVER_HELLO; type <= CV_TAKEOVER_ABORT; type++) {
            bool right = (state == 0 && type == CV_TAKEOVER_HELLO) ||
                         (state == 2 && type == CV_TAKEOVER_SERVING);
            int fd = dial(), before = t_broken;
            if (right) {
                close(fd);
                turns();
                continue;
            }
            if (state > 0)
                fetch(fd);
            if (state > 1) {
                prepare(fd, 0);
                T_INT_EQ(hear(fd, &m), CV_TAKEOVER_COMMIT);
            }
            say_type(fd, type);
            T_INT_EQ(t_broken, before + 1);
            T_INT_EQ(hear(fd, &m), CV_TAKEOVER_ABORT);
            T_INT_EQ(hear(fd, &m), 0);
            T_OK(!cv_giver_is_busy(t_giver));
            close(fd);
        }
    }
    T_INT_EQ(t_given, 0);
    T_INT_EQ(t_shared, 8); /* those after COMMIT */
    end();
}

static void test_refused(void)
{
    struct cv_takeover_msg m;
    begin();
    /* By the node. */
    t_refuse = 1;
    int fd = dial();
    say_type(fd, CV_TAKEOVER_HELLO);
    T_INT_EQ(hear(fd, &m), CV_TAKEOVER_ABORT);
    T_STR_EQ(m.text, "not now");
    close(fd);
    /* Two at a time. */
    t_refuse = 0;
    fd = dial();
    int second = dial();
    T_INT_EQ(hear(second, &m), CV_TAKEOVER_ABORT);
    close(second);
    fetch(fd);
    /* The end of the node. */
    cv_giver_free(t_giver);
    t_giver = NULL;
    T_INT_EQ(hear(fd, &m), CV_TAKEOVER_ABORT);
    close(fd);
    end();
}

static void test_cannot_listen(void)
{
    struct cv_giver *g;
    char longer[200];
    begin();
    T_INT_EQ(cv_giver_start(t_loop, &(struct cv_giver_conf){.path = t_path, .ops = &ops}, &g),
             -EADDRINUSE);
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    T_INT_EQ(cv_giver_start(t_loop, &(struct cv_giver_conf){.path = longer, .ops = &ops}, &g),
             -ENAMETOOLONG);
    T_INT_EQ(cv_giver_start(t_loop, &(struct cv_giver_conf){.path = "/proc/x/y", .ops = &ops}, &g),
             -ENOENT);
    end();
}

int main(void)
{
    T_RUN(test_given);
    T_RUN(test_control_stays_ours);
    T_RUN(test_wrong_messages);
    T_RUN(test_refused);
    T_RUN(test_cannot_listen);
    return t_done();
}

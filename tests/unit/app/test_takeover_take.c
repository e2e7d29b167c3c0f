#include "app/takeover_take.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/takeover_give.h"
#include "common/err.h"
#include "common/log.h"
#include "net/packet.h"
#include "tap.h"

/* Both sides: a giver on a thread of its own, and the taker here. */
#define ITEMS 300

static struct cv_loop *t_loop; /* of the giver */
static struct cv_giver *t_giver;
static pthread_t t_thread;
static char t_dir[32], t_path[64];
static atomic_int t_broken, t_given, t_taken;

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
    (void)why;
    snprintf(offer->notify, sizeof(offer->notify), "@n");
    for (int i = 0; i < ITEMS; i++) {
        struct cv_takeover_item about = {.kind = CV_TAKEOVER_ADDRESS, .n_fds = 3};
        int fds[3] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
        snprintf(about.name, sizeof(about.name), "n%d", i);
        if (cv_handed_add(handed, &about, fds) != 0)
            abort();
    }
    return 0;
}

static void failed(void *arg, bool shared)
{
    (void)arg;
    (void)shared;
    atomic_fetch_add(&t_broken, 1);
}

static void given(void *arg, int32_t pid, const struct cv_handed *handed)
{
    (void)arg;
    (void)pid;
    for (size_t i = 0; i < handed->n; i++)
        atomic_fetch_add(&t_taken, handed->v[i]->taken);
    atomic_fetch_add(&t_given, 1);
}

static const struct cv_giver_ops ops = {.collect = collect, .failed = failed, .given = given};

static void *giver_main(void *arg)
{
    (void)arg;
    cv_loop_run(t_loop);
    return NULL;
}

static void begin(void)
{
    cv_log_set_sink(on_log, NULL);
    snprintf(t_dir, sizeof(t_dir), "/tmp/cv-take-XXXXXX");
    if (mkdtemp(t_dir) == NULL || cv_loop_new(&t_loop) != 0)
        abort();
    snprintf(t_path, sizeof(t_path), "%s/s", t_dir);
    atomic_store(&t_broken, 0);
    atomic_store(&t_given, 0);
    atomic_store(&t_taken, 0);
    T_INT_EQ(cv_giver_start(t_loop, &(struct cv_giver_conf){.path = t_path, .ops = &ops}, &t_giver),
             0);
    pthread_create(&t_thread, NULL, giver_main, NULL);
}

static void end_giver(void)
{
    cv_loop_stop(t_loop);
    pthread_join(t_thread, NULL);
    cv_giver_free(t_giver);
    cv_loop_free(t_loop);
}

static void end(void)
{
    (void)unlink(t_path);
    T_INT_EQ(rmdir(t_dir), 0);
    cv_log_set_sink(NULL, NULL);
}

static enum cv_taker_end t_end;
static void on_end(void *arg, enum cv_taker_end how)
{
    t_end = how;
    cv_loop_stop(arg);
}

static int open_fds(void)
{
    struct stat sb;
    int n = 0;
    for (int fd = 0; fd < 4096; fd++)
        n += fstat(fd, &sb) == 0;
    return n;
}

static void test_done(void)
{
    struct cv_handed handed = {0};
    struct cv_takeover_msg offer;
    struct cv_taker *t = NULL;
    struct cv_loop *loop;
    char why[200] = "";
    int fds[CV_TAKEOVER_FDS_MAX];
    begin();
    int before = open_fds();
    T_INT_EQ(cv_taker_fetch(t_path, &handed, &offer, &t, why, sizeof(why)), 0);
    T_STR_EQ(why, "");
    T_STR_EQ(offer.notify, "@n");
    T_INT_EQ(handed.n, ITEMS);
    T_STR_EQ(handed.v[ITEMS - 1]->about.name, "n299");
    T_INT_EQ(cv_handed_take(handed.v[1], fds), 3);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    T_INT_EQ(cv_taker_commit(t, &handed, why, sizeof(why)), 0);
    cv_handed_done(&handed);
    T_INT_EQ(atomic_load(&t_given), 0);
    T_INT_EQ(cv_loop_new(&loop), 0);
    T_INT_EQ(cv_taker_confirm(t, loop, on_end, loop), 0);
    cv_loop_run(loop);
    T_INT_EQ(t_end, CV_TAKER_DONE);
    T_INT_EQ(atomic_load(&t_given), 1);
    T_INT_EQ(atomic_load(&t_taken), 1);
    cv_taker_free(t);
    cv_loop_free(loop);
    end_giver();
    T_OK(open_fds() < before); /* those of the giver are gone, too */
    end();
}

static void test_given_up(void)
{
    struct cv_handed handed = {0};
    struct cv_takeover_msg offer;
    struct cv_taker *t = NULL;
    char why[200];
    begin();
    int before = open_fds();
    T_INT_EQ(cv_taker_fetch(t_path, &handed, &offer, &t, why, sizeof(why)), 0);
    cv_taker_abort(t, "bad\nluck");
    cv_taker_free(t);
    cv_handed_done(&handed);
    T_INT_EQ(open_fds() <= before + 1, true); /* the giver may not have hung up yet */
    /* Once it has, the next one is served. */
    int ret;
    do
        ret = cv_taker_fetch(t_path, &handed, &offer, &t, why, sizeof(why));
    while (ret == CV_E_CANCELED);
    T_INT_EQ(ret, 0);
    T_INT_EQ(atomic_load(&t_broken), 1);
    /* The old one ends in an orderly way: its ABORT counts, not its end. */
    end_giver();
    T_INT_EQ(cv_taker_commit(t, &handed, why, sizeof(why)), CV_E_CANCELED);
    T_STR_EQ(why, "the running node refuses: the node is shutting down");
    cv_taker_free(t);
    cv_handed_done(&handed);
    end();
}

static void test_nobody(void)
{
    struct cv_handed handed = {0};
    struct cv_takeover_msg offer;
    struct cv_taker *t = NULL;
    char why[200] = "";
    T_INT_EQ(cv_taker_fetch("/nowhere/s", &handed, &offer, &t, why, sizeof(why)), -ENOENT);
    T_OK(strstr(why, "no running node answers on '/nowhere/s'") != NULL);
    T_OK(t == NULL);
}

int main(void)
{
    T_RUN(test_done);
    T_RUN(test_given_up);
    T_RUN(test_nobody);
    return t_done();
}

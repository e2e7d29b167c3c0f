#include "app/takeover_give.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "common/sys.h"
#include "net/acceptor.h"
#include "net/packet.h"
#include "net/tcp.h"

#include "common/poison.h"

#define DOMAIN      "takeover"
#define SOCKET_MODE 0600
/* Time limits. To prepare is to load the config and the snapshot, and to start threads. */
#define STEP_MS    (10 * 1000)
#define PREPARE_MS (120 * 1000)

enum give_state {
    GIVE_IDLE = 0,  /* nobody is connected */
    GIVE_GREETING,  /* ... the other one is to say HELLO */
    GIVE_SENDING,   /* ... items go out one by one */
    GIVE_PREPARING, /* ... it has all and gets ready */
    GIVE_COMMITTED, /* ... it was told to accept; so do we */
    GIVE_GIVEN,     /* ... it serves, we do not */
};

struct cv_giver {
    enum give_state state;
    struct cv_loop *loop; /* borrowed */
    const struct cv_giver_ops *ops;
    void *arg;
    char *path; /* owned */
    int fd;     /* owned; listening */
    dev_t dev;  /* of the socket's file */
    ino_t ino;
    struct cv_acceptor acceptor;
    int peer; /* owned; -1: nobody */
    int32_t peer_pid;
    struct cv_io io;
    struct cv_timer timer;
    struct cv_handed handed;
    size_t sent; /* items */
    struct cv_task free_task;
};

static void give_up(struct cv_giver *g, const char *why);

/* ---- the conversation ---- */

static void go(struct cv_giver *g, enum give_state state, int64_t limit_ms)
{
    g->state = state;
    cv_loop_timer_stop(g->loop, &g->timer);
    if (limit_ms > 0)
        cv_loop_timer(g->loop, &g->timer, limit_ms);
}

static int say(int fd, const struct cv_takeover_msg *m, const int *fds, size_t n_fds)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    return cv_packet_send(fd, data, cv_takeover_encode(m, data), fds, n_fds);
}

static void say_abort(int fd, const char *why)
{
    struct cv_takeover_msg m = {.type = CV_TAKEOVER_ABORT};
    snprintf(m.text, sizeof(m.text), "%s", why);
    (void)say(fd, &m, NULL, 0);
}

static void hang_up(struct cv_giver *g)
{
    cv_io_del(&g->io);
    cv_sys_close(g->peer);
    g->peer = -1;
    cv_handed_done(&g->handed);
    go(g, GIVE_IDLE, 0);
}

static void give_up(struct cv_giver *g, const char *why)
{
    bool shared = g->state == GIVE_COMMITTED;
    cv_warn(DOMAIN, "takeover by pid=%d has failed, this node goes on: %s", (int)g->peer_pid, why);
    say_abort(g->peer, why);
    hang_up(g);
    g->ops->failed(g->arg, shared);
}

static void send_item(struct cv_giver *g)
{
    if (g->sent == g->handed.n) {
        go(g, GIVE_PREPARING, PREPARE_MS);
        return;
    }
    const struct cv_handed_item *item = g->handed.v[g->sent++];
    struct cv_takeover_msg m = {.type = CV_TAKEOVER_ITEM, .item = item->about};
    int ret = say(g->peer, &m, item->fd, item->about.n_fds);
    if (ret != 0) {
        give_up(g, cv_err_text(ret));
        return;
    }
    go(g, GIVE_SENDING, STEP_MS);
}

static void on_hello(struct cv_giver *g, const struct cv_takeover_msg *hello)
{
    struct cv_takeover_msg offer = {.type = CV_TAKEOVER_OFFER, .pid = (uint32_t)getpid()};
    const char *why = "the sockets cannot be listed";
    cv_info(DOMAIN, "a takeover begins pid=%d version='%s'", (int)g->peer_pid, hello->text);
    if (g->ops->collect(g->arg, &g->handed, &offer, &why) != 0) {
        give_up(g, why);
        return;
    }
    snprintf(offer.text, sizeof(offer.text), "%s", CV_VERSION);
    offer.n_items = (uint16_t)g->handed.n;
    int ret = say(g->peer, &offer, NULL, 0);
    if (ret != 0) {
        give_up(g, cv_err_text(ret));
        return;
    }
    g->sent = 0;
    send_item(g);
}

static void on_next(struct cv_giver *g, const struct cv_takeover_msg *m)
{
    if (m->index + 1u != g->sent)
        give_up(g, "the wrong item was confirmed");
    else
        send_item(g);
}

static void on_prepared(struct cv_giver *g, const struct cv_takeover_msg *m)
{
    if (m->n_items != g->handed.n) {
        give_up(g, "the number of sockets differs");
        return;
    }
    for (size_t i = 0; i < g->handed.n; i++)
        g->handed.v[i]->taken = cv_takeover_is_taken(m, i);
    go(g, GIVE_COMMITTED, STEP_MS);
    int ret = say(g->peer, &(struct cv_takeover_msg){.type = CV_TAKEOVER_COMMIT}, NULL, 0);
    if (ret != 0)
        give_up(g, cv_err_text(ret));
}

/* True if the other process has gone; what else it may have sent by now is nonsense. */
static bool has_gone(struct cv_giver *g)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    size_t len, n;
    return cv_packet_recv(g->peer, data, sizeof(data), &len, NULL, 0, &n) != -EAGAIN;
}

static void on_serving(struct cv_giver *g)
{
    if (has_gone(g)) {
        give_up(g, "it ended as soon as it served");
        return;
    }
    go(g, GIVE_GIVEN, 0);
    cv_acceptor_stop(&g->acceptor, false);
    g->ops->given(g->arg, g->peer_pid, &g->handed);
    /* If it cannot be told, it sees the end of the connection, which says the same. */
    (void)say(g->peer, &(struct cv_takeover_msg){.type = CV_TAKEOVER_DONE}, NULL, 0);
    cv_io_del(&g->io);
    cv_sys_close(g->peer);
    g->peer = -1;
}

static void on_message(struct cv_giver *g, const struct cv_takeover_msg *m)
{
    char why[CV_TAKEOVER_TEXT_MAX + 32];
    if (m->type == CV_TAKEOVER_ABORT) {
        snprintf(why, sizeof(why), "it says: %s", m->text);
        give_up(g, why);
    } else if (g->state == GIVE_GREETING && m->type == CV_TAKEOVER_HELLO) {
        on_hello(g, m);
    } else if (g->state == GIVE_SENDING && m->type == CV_TAKEOVER_NEXT) {
        on_next(g, m);
    } else if (g->state == GIVE_PREPARING && m->type == CV_TAKEOVER_PREPARED) {
        on_prepared(g, m);
    } else if (g->state == GIVE_COMMITTED && m->type == CV_TAKEOVER_SERVING) {
        on_serving(g);
    } else {
        give_up(g, "it sent a message that does not belong here");
    }
}

static const char *reason(int err)
{
    if (err == -EPIPE)
        return "it has ended";
    if (err == CV_E_PROTO)
        return "it sent something else than the messages of a takeover";
    return cv_err_text(err);
}

/* Everything that has come. */
static void receive(struct cv_giver *g)
{
    while (g->peer >= 0) {
        uint8_t data[CV_TAKEOVER_BYTES_MAX];
        struct cv_takeover_msg m;
        size_t len, n;
        int ret = cv_packet_recv(g->peer, data, sizeof(data), &len, NULL, 0, &n);
        if (ret == -EAGAIN)
            return;
        if (ret == 0)
            ret = cv_takeover_decode(data, len, &m);
        if (ret == CV_E_UNSUPPORTED)
            give_up(g, "it speaks another version of the takeover protocol, this node speaks 1");
        else if (ret != 0)
            give_up(g, reason(ret));
        else
            on_message(g, &m);
    }
}

static void on_io(struct cv_io *io, unsigned events)
{
    (void)events;
    receive(CV_CONTAINER_OF(io, struct cv_giver, io));
}

static void on_timer(struct cv_timer *t)
{
    struct cv_giver *g = CV_CONTAINER_OF(t, struct cv_giver, timer);
    enum give_state state = g->state;
    /* This process may have been the one that stood still. */
    receive(g);
    if (g->peer >= 0 && g->state == state)
        give_up(g, "it was silent for too long");
}

static void on_accept(struct cv_acceptor *a, int fd, const struct cv_sockaddr *sa)
{
    struct cv_giver *g = CV_CONTAINER_OF(a, struct cv_giver, acceptor);
    struct cv_packet_peer peer;
    (void)sa;
    if (cv_packet_peer(fd, &peer) != 0 || !cv_packet_peer_is_trusted(&peer)) {
        cv_log_limited(CV_LOG_WARN, DOMAIN, "a process of another user was refused");
        cv_sys_close(fd);
        return;
    }
    if (g->state != GIVE_IDLE) {
        say_abort(fd, "another takeover is on its way");
        cv_sys_close(fd);
        return;
    }
    if (cv_io_add(g->loop, &g->io, fd, on_io) != 0) {
        cv_sys_close(fd);
        return;
    }
    g->peer = fd;
    g->peer_pid = peer.pid;
    go(g, GIVE_GREETING, STEP_MS);
}

/* ---- life ---- */

static int listen_on(struct cv_giver *g, const struct cv_giver_conf *conf)
{
    struct cv_sockaddr sa = {.len = sizeof(sa.un), .un.sun_family = AF_UNIX};
    struct stat sb;
    if (strlen(conf->path) >= sizeof(sa.un.sun_path)) {
        if (conf->inherited)
            cv_sys_close(conf->fd);
        return -ENAMETOOLONG;
    }
    memcpy(sa.un.sun_path, conf->path, strlen(conf->path));
    if (conf->inherited) {
        g->fd = conf->fd;
    } else {
        int ret = cv_file_make_parents(conf->path);
        if (ret != 0)
            return ret;
        struct cv_tcp_listen_opts opts = {.packets = true, .unix_mode = SOCKET_MODE};
        ret = cv_tcp_listen(&sa, &opts, &g->fd);
        if (ret != 0)
            return ret;
    }
    if (stat(conf->path, &sb) == 0) {
        g->dev = sb.st_dev;
        g->ino = sb.st_ino;
    }
    return 0;
}

int cv_giver_start(struct cv_loop *loop, const struct cv_giver_conf *conf,
                   struct cv_giver **ret_giver)
{
    struct cv_giver *g = cv_zalloc(sizeof(*g));
    g->loop = loop;
    g->ops = conf->ops;
    g->arg = conf->arg;
    g->fd = g->peer = -1;
    g->path = cv_strdup(conf->path);
    cv_timer_init(&g->timer, on_timer);
    int ret = listen_on(g, conf);
    g->acceptor.on_accept = on_accept;
    if (ret == 0)
        ret = cv_acceptor_start(&g->acceptor, loop, g->fd, false);
    if (ret != 0) {
        cv_sys_close(g->fd);
        cv_free(g->path);
        cv_free(g);
        return ret;
    }
    *ret_giver = g;
    return 0;
}

bool cv_giver_is_busy(const struct cv_giver *g)
{
    return g != NULL && g->state != GIVE_IDLE && g->state != GIVE_GIVEN;
}

int cv_giver_offer(const struct cv_giver *g, struct cv_handed *handed)
{
    struct cv_takeover_item about = {
        .kind = CV_TAKEOVER_CONTROL, .n_fds = 1, .dev = g->dev, .ino = g->ino};
    snprintf(about.listen, sizeof(about.listen), "unix:%s", g->path);
    return cv_handed_add(handed, &about, &g->fd);
}

static bool was_handed_over(const struct cv_giver *g)
{
    for (size_t i = 0; i < g->handed.n && g->state == GIVE_GIVEN; i++)
        if (g->handed.v[i]->about.kind == CV_TAKEOVER_CONTROL)
            return g->handed.v[i]->taken;
    return false;
}

static void on_free(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct cv_giver, free_task));
}

void cv_giver_free(struct cv_giver *g)
{
    struct stat sb;
    if (g == NULL)
        return;
    if (g->peer >= 0) {
        say_abort(g->peer, "the node is shutting down");
        cv_io_del(&g->io);
        cv_sys_close(g->peer);
    }
    cv_loop_timer_stop(g->loop, &g->timer);
    cv_acceptor_stop(&g->acceptor, false);
    cv_sys_close(g->fd);
    if (!was_handed_over(g) && stat(g->path, &sb) == 0 && sb.st_dev == g->dev &&
        sb.st_ino == g->ino)
        (void)unlink(g->path);
    cv_handed_done(&g->handed);
    cv_free(g->path);
    g->free_task.fn = on_free;
    cv_loop_defer(g->loop, &g->free_task);
}

#include "app/takeover_take.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/sys.h"
#include "net/packet.h"

#include "common/poison.h"

#define DOMAIN  "takeover"
#define STEP_MS (10 * 1000)

struct cv_taker {
    int fd; /* owned */
    struct cv_io io;
    struct cv_timer timer;
    struct cv_loop *loop; /* borrowed; NULL until confirmed */
    cv_taker_cb cb;
    void *arg;
    struct cv_task free_task;
    bool gone; /* the old node ended before it could say COMMIT */
};

/* That nobody listens any more is no failure here: what was said before that is still to be read,
 * and tells why. */
static int say(struct cv_taker *t, const struct cv_takeover_msg *m)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    int ret = cv_packet_send(t->fd, data, cv_takeover_encode(m, data), NULL, 0);
    return ret == -EPIPE || ret == -ECONNRESET ? 0 : ret;
}

/* Wait for the next message. 'fds' has room for CV_TAKEOVER_FDS_MAX. */
static int hear(struct cv_taker *t, struct cv_takeover_msg *m, int *fds, size_t *ret_n_fds)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    int64_t until = cv_clock_mono_ms() + STEP_MS;
    size_t len, n = 0;
    for (;;) {
        int ret = cv_packet_recv(t->fd, data, sizeof(data), &len, fds, CV_TAKEOVER_FDS_MAX, &n);
        if (ret == 0) {
            ret = cv_takeover_decode(data, len, m);
            size_t wanted = ret == 0 && m->type == CV_TAKEOVER_ITEM ? m->item.n_fds : 0;
            if (ret == 0 && wanted != n)
                ret = CV_E_PROTO;
            for (size_t i = 0; i < n && ret != 0; i++)
                cv_sys_close(fds[i]);
            *ret_n_fds = ret == 0 ? n : 0;
            return ret;
        }
        if (ret != -EAGAIN)
            return ret;
        int64_t left = until - cv_clock_mono_ms();
        if (left <= 0)
            return -ETIMEDOUT;
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        (void)poll(&p, 1, (int)left);
    }
}

static int explain(int err, const struct cv_takeover_msg *m, char *why, size_t why_cap)
{
    if (err == 0 && m->type == CV_TAKEOVER_ABORT) {
        snprintf(why, why_cap, "the running node refuses: %s", m->text);
        return CV_E_CANCELED;
    }
    if (err == 0)
        err = CV_E_PROTO;
    if (err == -EPIPE)
        snprintf(why, why_cap, "the running node has ended before it handed everything over");
    else if (err == -ETIMEDOUT)
        snprintf(why, why_cap, "the running node does not answer");
    else if (err == CV_E_PROTO)
        snprintf(why, why_cap, "what answers does not follow the takeover protocol");
    else if (err == CV_E_UNSUPPORTED)
        snprintf(why, why_cap, "the running node speaks another version of the takeover protocol");
    else if (err == -EMFILE)
        snprintf(why, why_cap, "not enough file descriptors for its sockets: raise LimitNOFILE=");
    else
        snprintf(why, why_cap, "%s", cv_err_text(err));
    return err;
}

static int fetch_items(struct cv_taker *t, struct cv_handed *handed, size_t n, char *why,
                       size_t why_cap)
{
    for (size_t i = 0; i < n; i++) {
        struct cv_takeover_msg m = {0};
        int fds[CV_TAKEOVER_FDS_MAX];
        size_t n_fds;
        int ret = hear(t, &m, fds, &n_fds);
        if (ret != 0 || m.type != CV_TAKEOVER_ITEM)
            return explain(ret, &m, why, why_cap);
        if (m.item.index != i || cv_handed_add(handed, &m.item, fds) != 0) {
            for (size_t k = 0; k < n_fds; k++)
                cv_sys_close(fds[k]);
            return explain(CV_E_PROTO, &m, why, why_cap);
        }
        m = (struct cv_takeover_msg){.type = CV_TAKEOVER_NEXT, .index = (uint16_t)i};
        if ((ret = say(t, &m)) != 0)
            return explain(ret, &m, why, why_cap);
    }
    return 0;
}

static int fetch(struct cv_taker *t, struct cv_handed *handed, struct cv_takeover_msg *ret_offer,
                 char *why, size_t why_cap)
{
    struct cv_packet_peer peer;
    struct cv_takeover_msg hello = {.type = CV_TAKEOVER_HELLO}, m = {0};
    int fds[CV_TAKEOVER_FDS_MAX];
    size_t n_fds;
    int ret = cv_packet_peer(t->fd, &peer);
    if (ret == 0 && !cv_packet_peer_is_trusted(&peer)) {
        snprintf(why, why_cap, "what answers belongs to another user");
        return -EPERM;
    }
    snprintf(hello.text, sizeof(hello.text), "%s", CV_VERSION);
    if (ret == 0)
        ret = say(t, &hello);
    if (ret == 0)
        ret = hear(t, &m, fds, &n_fds);
    if (ret != 0 || m.type != CV_TAKEOVER_OFFER)
        return explain(ret, &m, why, why_cap);
    *ret_offer = m;
    return fetch_items(t, handed, m.n_items, why, why_cap);
}

static void on_io(struct cv_io *io, unsigned events);
static void on_timer(struct cv_timer *timer);

int cv_taker_fetch(const char *path, struct cv_handed *handed, struct cv_takeover_msg *ret_offer,
                   struct cv_taker **ret_taker, char *why, size_t why_cap)
{
    struct cv_taker *t = cv_zalloc(sizeof(*t));
    t->fd = -1;
    cv_timer_init(&t->timer, on_timer);
    handed->owned = true;
    int ret = cv_packet_connect(path, &t->fd);
    if (ret != 0)
        snprintf(why, why_cap, "no running node answers on '%s': %s", path, cv_err_text(ret));
    else
        ret = fetch(t, handed, ret_offer, why, why_cap);
    if (ret != 0) {
        cv_handed_done(handed);
        cv_taker_free(t);
        return ret;
    }
    *ret_taker = t;
    return 0;
}

int cv_taker_commit(struct cv_taker *t, const struct cv_handed *handed, char *why, size_t why_cap)
{
    struct cv_takeover_msg m = {.type = CV_TAKEOVER_PREPARED, .n_items = (uint16_t)handed->n};
    int fds[CV_TAKEOVER_FDS_MAX];
    size_t n_fds;
    for (size_t i = 0; i < handed->n; i++)
        if (handed->v[i]->taken)
            cv_takeover_set_taken(&m, i);
    int ret = say(t, &m);
    if (ret == 0)
        ret = hear(t, &m, fds, &n_fds);
    t->gone = ret == -EPIPE;
    if (t->gone || (ret == 0 && m.type == CV_TAKEOVER_COMMIT))
        return 0;
    return explain(ret, &m, why, why_cap);
}

static void finish(struct cv_taker *t, enum cv_taker_end end)
{
    cv_loop_timer_stop(t->loop, &t->timer);
    cv_io_del(&t->io);
    t->cb(t->arg, end);
}

static void on_io(struct cv_io *io, unsigned events)
{
    struct cv_taker *t = CV_CONTAINER_OF(io, struct cv_taker, io);
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    struct cv_takeover_msg m;
    size_t len, n;
    (void)events;
    int ret = cv_packet_recv(t->fd, data, sizeof(data), &len, NULL, 0, &n);
    if (ret == -EAGAIN)
        return;
    if (ret == 0)
        ret = cv_takeover_decode(data, len, &m);
    if (ret == 0 && m.type == CV_TAKEOVER_DONE) {
        finish(t, CV_TAKER_DONE);
    } else if (ret == 0 && m.type == CV_TAKEOVER_ABORT) {
        cv_error(DOMAIN, "the old node goes on: %s", m.text);
        finish(t, CV_TAKER_ABORTED);
    } else {
        cv_warn(DOMAIN, "the old node has ended without a last word");
        finish(t, CV_TAKER_GONE);
    }
}

static void on_timer(struct cv_timer *timer)
{
    struct cv_taker *t = CV_CONTAINER_OF(timer, struct cv_taker, timer);
    (void)t;
    cv_warn(DOMAIN, "the old node does not say that it has stopped accepting, both go on");
}

int cv_taker_confirm(struct cv_taker *t, struct cv_loop *loop, cv_taker_cb cb, void *arg)
{
    t->cb = cb;
    t->arg = arg;
    t->loop = loop;
    if (!t->gone)
        (void)say(t, &(struct cv_takeover_msg){.type = CV_TAKEOVER_SERVING});
    int ret = cv_io_add(loop, &t->io, t->fd, on_io);
    if (ret == 0)
        cv_loop_timer(loop, &t->timer, STEP_MS);
    return ret;
}

void cv_taker_abort(struct cv_taker *t, const char *why)
{
    struct cv_takeover_msg m = {.type = CV_TAKEOVER_ABORT};
    size_t n = (size_t)snprintf(m.text, sizeof(m.text), "%s", why);
    for (size_t i = 0; i < CV_MIN(n, sizeof(m.text) - 1); i++)
        if ((unsigned char)m.text[i] < ' ' || m.text[i] == 0x7f)
            m.text[i] = '?';
    (void)say(t, &m);
}

static void on_free(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct cv_taker, free_task));
}

void cv_taker_free(struct cv_taker *t)
{
    if (t == NULL)
        return;
    if (t->loop == NULL) {
        cv_sys_close(t->fd);
        cv_free(t);
        return;
    }
    cv_loop_timer_stop(t->loop, &t->timer);
    cv_io_del(&t->io);
    cv_sys_close(t->fd);
    t->free_task.fn = on_free;
    cv_loop_defer(t->loop, &t->free_task);
}

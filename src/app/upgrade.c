#include "app/upgrade.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "app/respawn.h"
#include "common/err.h"
#include "common/log.h"
#include "common/sys.h"

#include "common/poison.h"

#define DOMAIN "takeover"

void cv_upgrade_init(struct cv_upgrade *u, struct cv_systemd *systemd,
                     const struct cv_upgrade_ops *ops, void *arg)
{
    *u = (struct cv_upgrade){.systemd = systemd, .ops = ops, .arg = arg, ._control_fd = -1};
    cv_respawn_path(u->_exe, sizeof(u->_exe));
}

static void close_control(struct cv_upgrade *u)
{
    cv_sys_close(u->_control_fd);
    u->_control_fd = -1;
}

void cv_upgrade_done(struct cv_upgrade *u)
{
    cv_giver_free(u->_giver);
    u->_giver = NULL;
    cv_taker_free(u->_taker);
    u->_taker = NULL;
    if (u->front != NULL)
        cv_front_inherit(u->front, NULL);
    cv_handed_done(&u->_handed);
    close_control(u);
}

bool cv_upgrade_is_taking(const struct cv_upgrade *u)
{
    return u->_taker != NULL;
}

bool cv_upgrade_is_busy(const struct cv_upgrade *u)
{
    return cv_upgrade_is_taking(u) || cv_giver_is_busy(u->_giver);
}

/* ---- as the old node ---- */

static int offer_systemd(const struct cv_systemd *s, struct cv_handed *handed)
{
    int ret = 0;
    for (int i = 0; i < s->n_fds && ret == 0; i++) {
        struct cv_takeover_item about = {
            .kind = CV_TAKEOVER_PASSED, .n_fds = 1, .number = s->numbers[i]};
        /* LISTEN_FDS may name descriptors that nobody opened. */
        struct stat sb;
        if (fstat(s->fds[i], &sb) != 0)
            continue;
        snprintf(about.name, sizeof(about.name), "%s", s->names[i]);
        ret = cv_handed_add(handed, &about, &s->fds[i]);
    }
    return ret;
}

static int offer_admin(const struct cv_upgrade *u, struct cv_handed *handed)
{
    struct cv_takeover_item about = {.kind = CV_TAKEOVER_ADMIN, .n_fds = 1};
    struct stat sb;
    int fd = u->admin != NULL ? cv_admin_fd(u->admin) : -1;
    if (fd < 0)
        return 0;
    snprintf(about.listen, sizeof(about.listen), "%s", u->admin_listen);
    if (strncmp(about.listen, "unix:", 5) == 0 && stat(about.listen + 5, &sb) == 0) {
        about.dev = sb.st_dev;
        about.ino = sb.st_ino;
    }
    return cv_handed_add(handed, &about, &fd);
}

static int collect(void *arg, struct cv_handed *handed, struct cv_takeover_msg *offer,
                   const char **why)
{
    struct cv_upgrade *u = arg;
    if (!u->ops->may_give(u->arg)) {
        *why = "the node is not serving";
        return CV_E_DRAINING;
    }
    offer->watchdog_ms = (uint32_t)CV_MIN(u->systemd->watchdog_ms, (int64_t)UINT32_MAX);
    cv_systemd_notify_text(u->systemd, offer->notify, sizeof(offer->notify));
    int ret = cv_front_offer(u->front, handed);
    if (ret == 0)
        ret = offer_systemd(u->systemd, handed);
    if (ret == 0)
        ret = offer_admin(u, handed);
    if (ret == 0)
        ret = cv_giver_offer(u->_giver, handed);
    return ret;
}

static void on_failed(void *arg, bool shared)
{
    struct cv_upgrade *u = arg;
    if (shared)
        cv_front_rearm(u->front);
    u->ops->failed(u->arg);
}

static void on_given(void *arg, int32_t pid, const struct cv_handed *handed)
{
    struct cv_upgrade *u = arg;
    char state[64];
    cv_info(DOMAIN, "replaced by pid=%d, accepting no more", (int)pid);
    cv_front_hand_over(u->front, handed);
    for (size_t i = 0; i < handed->n && u->admin != NULL; i++)
        if (handed->v[i]->about.kind == CV_TAKEOVER_ADMIN && handed->v[i]->taken)
            cv_admin_leave(u->admin);
    /* From the process that systemd takes for the main one, and before the other one says READY=1:
     * so NotifyAccess=main is enough. */
    snprintf(state, sizeof(state), "MAINPID=%d", (int)pid);
    cv_systemd_notify(u->systemd, state);
    u->ops->given(u->arg);
}

static const struct cv_giver_ops giver_ops = {
    .collect = collect, .failed = on_failed, .given = on_given};

void cv_upgrade_listen(struct cv_upgrade *u, const char *socket)
{
    struct cv_giver_conf conf = {.path = socket, .ops = &giver_ops, .arg = u};
    if (socket[0] == '\0') {
        close_control(u);
        return;
    }
    conf.inherited = u->_control_fd >= 0;
    conf.fd = u->_control_fd;
    u->_control_fd = -1;
    int ret = cv_giver_start(u->loop, &conf, &u->_giver);
    if (ret != 0)
        cv_warn(DOMAIN,
                "takeover.socket '%s' cannot be used, this node cannot be replaced while it "
                "runs: %s",
                socket, cv_err_text(ret));
}

void cv_upgrade_refuse(struct cv_upgrade *u)
{
    cv_giver_free(u->_giver);
    u->_giver = NULL;
}

void cv_upgrade_spawn(struct cv_upgrade *u, const char *config_path)
{
    char run[] = "run", config[] = "--config", takeover[] = "--takeover", path[PATH_MAX];
    if (u->_giver == NULL) {
        cv_error(DOMAIN, "takeover.socket is off, no new process is started");
        return;
    }
    if (u->_child != 0 || cv_upgrade_is_busy(u)) {
        cv_warn(DOMAIN, "a takeover is on its way already, ignoring");
        return;
    }
    snprintf(path, sizeof(path), "%s", config_path);
    char *argv[] = {u->_exe, run, config, path, takeover, NULL};
    int ret = cv_respawn(u->_exe, argv, &u->_child);
    if (ret != 0) {
        u->_child = 0;
        cv_error(DOMAIN, "'%s' cannot be started: %s", u->_exe, cv_err_text(ret));
        return;
    }
    cv_info(DOMAIN, "started the new node file='%s' pid=%d", u->_exe, (int)u->_child);
}

void cv_upgrade_reap(struct cv_upgrade *u)
{
    int status;
    if (u->_child == 0 || waitpid(u->_child, &status, WNOHANG) != u->_child)
        return;
    if (WIFEXITED(status))
        cv_warn(DOMAIN, "the new node has ended pid=%d exit_code=%d", (int)u->_child,
                WEXITSTATUS(status));
    else
        cv_warn(DOMAIN, "the new node has ended pid=%d signal=%d", (int)u->_child,
                WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    u->_child = 0;
}

/* ---- as the new node ---- */

static int take_systemd(struct cv_upgrade *u, char *why, size_t why_cap)
{
    for (size_t i = 0; i < u->_handed.n; i++) {
        struct cv_handed_item *item = u->_handed.v[i];
        int fd[CV_TAKEOVER_FDS_MAX];
        if (item->about.kind != CV_TAKEOVER_PASSED)
            continue;
        (void)cv_handed_take(item, fd);
        int ret = cv_systemd_add(u->systemd, item->about.name, item->about.number, fd[0]);
        if (ret != 0) {
            cv_sys_close(fd[0]);
            snprintf(why, why_cap, "more sockets of systemd than there is room for");
            return ret;
        }
    }
    return 0;
}

int cv_upgrade_fetch(struct cv_upgrade *u, const char *socket, char *why, size_t why_cap)
{
    struct cv_takeover_msg offer = {0};
    if (socket[0] == '\0') {
        snprintf(why, why_cap, "takeover.socket is off in this config");
        return CV_E_INVALID;
    }
    int ret = cv_taker_fetch(socket, &u->_handed, &offer, &u->_taker, why, why_cap);
    if (ret != 0)
        return ret;
    if (u->systemd->notify.len == 0)
        cv_systemd_set_notify(u->systemd, offer.notify);
    if (u->systemd->watchdog_ms == 0)
        u->systemd->watchdog_ms = offer.watchdog_ms;
    cv_info(DOMAIN, "taking over from pid=%u version='%s' sockets=%zu", offer.pid, offer.text,
            u->_handed.n);
    ret = take_systemd(u, why, why_cap);
    if (ret != 0)
        cv_upgrade_abort(u, why);
    return ret;
}

void cv_upgrade_inherit(struct cv_upgrade *u)
{
    if (u->_taker != NULL)
        cv_front_inherit(u->front, &u->_handed);
}

void cv_upgrade_admin(struct cv_upgrade *u, const char *listen, struct cv_admin_conf *conf)
{
    int fds[CV_TAKEOVER_FDS_MAX];
    struct cv_handed_item *item =
        strncmp(listen, "unix:", 5) == 0
            ? cv_handed_find_file(&u->_handed, CV_TAKEOVER_ADMIN, listen + 5)
            : cv_handed_find(&u->_handed, CV_TAKEOVER_ADMIN, listen, NULL);
    if (item == NULL)
        return;
    (void)cv_handed_take(item, fds);
    conf->inherited = true;
    conf->fd = fds[0];
}

int cv_upgrade_commit(struct cv_upgrade *u, const char *socket, char *why, size_t why_cap)
{
    struct cv_handed_item *item = cv_handed_find_file(&u->_handed, CV_TAKEOVER_CONTROL, socket);
    int fds[CV_TAKEOVER_FDS_MAX];
    if (item != NULL) {
        (void)cv_handed_take(item, fds);
        u->_control_fd = fds[0];
    }
    return cv_taker_commit(u->_taker, &u->_handed, why, why_cap);
}

static void on_settled(void *arg, enum cv_taker_end end)
{
    struct cv_upgrade *u = arg;
    struct cv_taker *t = u->_taker;
    if (end != CV_TAKER_ABORTED)
        cv_info(DOMAIN, "this node has taken over");
    u->_taker = NULL;
    u->ops->settled(u->arg, end);
    cv_taker_free(t);
}

int cv_upgrade_confirm(struct cv_upgrade *u)
{
    /* What this config has no use for is closed by the old node, which takes the backlog first. */
    cv_front_inherit(u->front, NULL);
    cv_handed_done(&u->_handed);
    return cv_taker_confirm(u->_taker, u->loop, on_settled, u);
}

void cv_upgrade_abort(struct cv_upgrade *u, const char *why)
{
    if (u->_taker != NULL)
        cv_taker_abort(u->_taker, why);
}

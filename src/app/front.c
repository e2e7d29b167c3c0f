#include "app/front.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/tlsconf.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/sys.h"
#include "net/tcp.h"
#include "net/tls_tickets.h"

#include "common/poison.h"

/* Where one listener listens. */
struct place {
    struct cv_listener_conf *conf; /* a reference */
    struct cv_listener_conf *next; /* a reference; what a change in progress will make of it */
    struct cv_listen listen;
    char address[CV_SOCKADDR_STRLEN]; /* the real one, for people */
    uint16_t port;                    /* TCP; the real one */
    bool shared;                      /* one descriptor for all workers: fd[0] */
    /* A slot is what accepts: of a shared place each worker, of an address each of its sockets.
     * Slot i belongs to worker i modulo their number, since sockets that came from a node with
     * more workers are all served. */
    unsigned n_slots;
    int fd[CV_WORKERS_MAX]; /* owned until the ports are open; then only a shared one */
    /* It is another process's, too, which has the file of a Unix socket: that one goes on with the
     * backlog. So after it was handed over, and before that process said it is through with it. */
    bool left;
    dev_t dev; /* of a Unix socket, so that only our own file is removed */
    ino_t ino;
    /* Digests of its certificate files at the last tick, and when they were last refused. */
    uint64_t tls_seen, tls_refused;
    char *tls_error; /* owned; or NULL */
    /* By slot; written and read on the worker that has the slot only, while the crew runs. */
    struct cv_listener_port *ports[CV_WORKERS_MAX];
    int open_err[CV_WORKERS_MAX];
};

struct places {
    struct place **v; /* owned */
    size_t n;
};

struct cv_front {
    struct cv_crew *crew;
    struct cv_registry *registry;
    const struct cv_systemd *systemd;
    struct cv_tls_tickets *tickets; /* a reference */
    int64_t rotate_ms;              /* monotonic; when the next key is due */
    int64_t look_ms;                /* ... and the next look at files */
    struct cv_handed *handed;       /* borrowed; NULL: nothing was taken over */
    struct places now;
};

/* A change that is prepared. */
struct cv_front_change {
    struct places kept, fresh;
};

/* One step of a change, as each worker takes it. */
struct step {
    struct places places;
    unsigned n_workers;
};

struct cv_front *cv_front_new(struct cv_crew *crew, struct cv_registry *registry,
                              const struct cv_systemd *systemd)
{
    struct cv_front *f = cv_zalloc(sizeof(*f));
    f->crew = crew;
    f->registry = registry;
    f->systemd = systemd;
    f->tickets = cv_tls_tickets_new();
    f->rotate_ms = cv_clock_mono_ms() + CV_TLS_TICKET_MS;
    return f;
}

/* ---- sockets (control thread) ---- */

static bool is_any_port(const struct cv_listener_conf *c)
{
    size_t len = strlen(c->listen);
    return len >= 2 && strcmp(c->listen + len - 2, ":0") == 0;
}

static void unlink_own(const struct place *p)
{
    struct stat sb;
    const char *path = p->listen.sa.un.sun_path;
    if (p->listen.kind == CV_LISTEN_UNIX && !p->left && stat(path, &sb) == 0 &&
        sb.st_dev == p->dev && sb.st_ino == p->ino)
        (void)unlink(path);
}

/* Close what the control thread owns. What systemd passed stays open, to be used again. */
static void sockets_close(struct place *p)
{
    if (p->shared) {
        unlink_own(p);
        if (p->listen.kind != CV_LISTEN_FD)
            cv_sys_close(p->fd[0]);
        p->fd[0] = -1;
        return;
    }
    for (size_t i = 0; i < CV_ARRAY_SIZE(p->fd); i++) {
        cv_sys_close(p->fd[i]);
        p->fd[i] = -1;
    }
}

static void place_free(struct place *p)
{
    if (p == NULL)
        return;
    sockets_close(p);
    cv_listener_conf_unref(p->conf);
    cv_listener_conf_unref(p->next);
    cv_free(p->tls_error);
    cv_free(p);
}

static int learn_address(struct place *p, int fd)
{
    struct cv_sockaddr sa = {.len = sizeof(sa.un)};
    struct cv_endpoint ep;
    if (getsockname(fd, &sa.sa, &sa.len) != 0)
        return -errno;
    cv_sockaddr_format(&sa, p->address);
    cv_endpoint_from_sockaddr(&ep, &sa.sa);
    p->port = ep.port;
    return 0;
}

static bool port_is_ours(const struct cv_front *f, uint16_t port)
{
    for (size_t i = 0; i < f->now.n; i++)
        if (f->now.v[i]->listen.kind == CV_LISTEN_ADDRESS && f->now.v[i]->port == port)
            return true;
    return false;
}

/* SO_REUSEPORT lets two nodes of one user bind the same port without a word. So the port is first
 * bound without it; this fails when anyone else has it. */
static int probe(const struct cv_front *f, const struct cv_sockaddr *sa)
{
    struct cv_endpoint ep;
    int fd;
    cv_endpoint_from_sockaddr(&ep, &sa->sa);
    if (ep.port == 0 || port_is_ours(f, ep.port))
        return 0;
    int ret = cv_tcp_listen(sa, &(struct cv_tcp_listen_opts){.reuse_port = false}, &fd);
    if (ret == 0)
        cv_sys_close(fd);
    return ret;
}

static void set_port(struct cv_sockaddr *sa, uint16_t port)
{
    if (sa->sa.sa_family == AF_INET6)
        sa->in6.sin6_port = htons(port);
    else
        sa->in4.sin_port = htons(port);
}

/* Open sockets until there is one for each worker. The descriptor of a new slot is set. */
static int add_sockets(const struct cv_front *f, struct place *p)
{
    struct cv_sockaddr sa = p->listen.sa;
    int ret = 0;
    while (ret == 0 && p->n_slots < cv_crew_count(f->crew)) {
        /* Port 0 is chosen by the kernel once; the other workers join it. */
        if (p->n_slots > 0)
            set_port(&sa, p->port);
        ret = cv_tcp_listen(&sa, &(struct cv_tcp_listen_opts){.reuse_port = true},
                            &p->fd[p->n_slots]);
        if (ret == 0 && p->n_slots++ == 0)
            ret = learn_address(p, p->fd[0]);
    }
    return ret;
}

static int open_address(const struct cv_front *f, struct place *p)
{
    int ret = probe(f, &p->listen.sa);
    return ret == 0 ? add_sockets(f, p) : ret;
}

static int open_unix(struct place *p)
{
    struct stat sb;
    struct cv_tcp_listen_opts opts = {.unix_mode = (mode_t)p->next->unix_mode};
    p->shared = true;
    int ret = cv_tcp_listen(&p->listen.sa, &opts, &p->fd[0]);
    if (ret != 0)
        return ret;
    if (stat(p->listen.sa.un.sun_path, &sb) == 0) {
        p->dev = sb.st_dev;
        p->ino = sb.st_ino;
    }
    snprintf(p->address, sizeof(p->address), "unix:%s", p->listen.sa.un.sun_path);
    return 0;
}

static int open_passed(const struct cv_front *f, struct place *p, char *why, size_t why_cap)
{
    p->shared = true;
    int fd = cv_systemd_fd(f->systemd, p->listen.fd_name);
    if (fd < 0) {
        snprintf(why, why_cap, "no socket of this name was passed (LISTEN_FDNAMES)");
        return CV_E_NOTFOUND;
    }
    int ret = cv_tcp_listen_inherit(fd);
    if (ret == -EINVAL) {
        snprintf(why, why_cap, "descriptor %d is not a listening stream socket", fd);
        return ret;
    }
    if (ret != 0)
        return ret;
    p->fd[0] = fd;
    return learn_address(p, fd);
}

/* The sockets of this place, if the node before this one had it. */
static bool open_handed(const struct cv_front *f, struct place *p, int *ret_err)
{
    struct cv_handed_item *item = NULL;
    if (f->handed == NULL)
        return false;
    if (p->listen.kind == CV_LISTEN_ADDRESS)
        item = cv_handed_find(f->handed, CV_TAKEOVER_ADDRESS, p->next->listen,
                              is_any_port(p->next) ? p->next->name : NULL);
    else if (p->listen.kind == CV_LISTEN_UNIX)
        item = cv_handed_find_file(f->handed, CV_TAKEOVER_UNIX, p->listen.sa.un.sun_path);
    if (item == NULL)
        return false;
    size_t n = cv_handed_take(item, p->fd);
    p->left = true;
    if (p->listen.kind == CV_LISTEN_ADDRESS) {
        p->n_slots = (unsigned)n;
        *ret_err = learn_address(p, p->fd[0]);
        return true;
    }
    p->shared = true;
    p->dev = (dev_t)item->about.dev;
    p->ino = (ino_t)item->about.ino;
    snprintf(p->address, sizeof(p->address), "unix:%s", p->listen.sa.un.sun_path);
    *ret_err = 0;
    return true;
}

/* Make the sockets of a new place. On failure the place holds none. */
static int sockets_open(const struct cv_front *f, struct place *p, char *why, size_t why_cap)
{
    char reason[200] = "";
    int ret = 0;
    switch (open_handed(f, p, &ret) ? 0 : p->listen.kind) {
    case 0:
        break;
    case CV_LISTEN_UNIX:
        ret = open_unix(p);
        break;
    case CV_LISTEN_FD:
        ret = open_passed(f, p, reason, sizeof(reason));
        break;
    default:
        ret = open_address(f, p);
        break;
    }
    if (ret != 0)
        snprintf(why, why_cap, "listener '%s' cannot listen on '%s': %s", p->next->name,
                 p->next->listen, reason[0] != '\0' ? reason : cv_err_text(ret));
    if (p->shared)
        p->n_slots = cv_crew_count(f->crew);
    return ret;
}

/* ---- ports (each worker) ---- */

static void on_open_ports(struct cv_worker *w, void *arg)
{
    struct step *s = arg;
    for (size_t k = 0; k < s->places.n; k++) {
        struct place *p = s->places.v[k];
        for (unsigned i = w->index; i < p->n_slots; i += s->n_workers) {
            if (p->ports[i] != NULL)
                continue;
            int fd = p->shared ? p->fd[0] : p->fd[i];
            p->open_err[i] = cv_listener_port_open(w, p->next != NULL ? p->next : p->conf, fd,
                                                   p->shared, &p->ports[i]);
            if (!p->shared)
                p->fd[i] = -1; /* the port owns it, or has closed it */
        }
    }
}

static void on_close_ports(struct cv_worker *w, void *arg)
{
    struct step *s = arg;
    for (size_t k = 0; k < s->places.n; k++) {
        struct place *p = s->places.v[k];
        for (unsigned i = w->index; i < p->n_slots; i += s->n_workers) {
            if (p->left)
                cv_listener_port_leave(p->ports[i]);
            else
                cv_listener_port_close(p->ports[i]);
            p->ports[i] = NULL;
        }
    }
}

static void on_set_confs(struct cv_worker *w, void *arg)
{
    struct step *s = arg;
    for (size_t k = 0; k < s->places.n; k++) {
        struct place *p = s->places.v[k];
        for (unsigned i = w->index; i < p->n_slots; i += s->n_workers)
            if (p->ports[i] != NULL && p->conf != p->next)
                cv_listener_port_set_conf(p->ports[i], p->next);
    }
}

static void on_rearm_ports(struct cv_worker *w, void *arg)
{
    struct step *s = arg;
    for (size_t k = 0; k < s->places.n; k++) {
        struct place *p = s->places.v[k];
        for (unsigned i = w->index; i < p->n_slots; i += s->n_workers)
            if (p->ports[i] != NULL)
                p->open_err[i] = cv_listener_port_rearm(p->ports[i]);
    }
}

static void on_workers(const struct cv_front *f, cv_crew_fn fn, const struct places *places)
{
    if (places->n > 0)
        cv_crew_run(f->crew, fn,
                    &(struct step){.places = *places, .n_workers = cv_crew_count(f->crew)});
}

/* ---- a change ---- */

/* The present place that the listener 'c' goes on with, if any. Places are told apart by where they
 * are; those with port 0 by their name, since each has its own port. */
static struct place *find_present(const struct cv_front *f, const struct cv_listener_conf *c)
{
    for (size_t i = 0; i < f->now.n; i++) {
        struct place *p = f->now.v[i];
        if (p->next == NULL && strcmp(p->conf->listen, c->listen) == 0 &&
            (!is_any_port(c) || strcmp(p->conf->name, c->name) == 0))
            return p;
    }
    return NULL;
}

static struct place *place_new(struct cv_listener_conf *conf)
{
    struct place *p = cv_zalloc(sizeof(*p));
    char why[200];
    for (size_t i = 0; i < CV_ARRAY_SIZE(p->fd); i++)
        p->fd[i] = -1;
    p->next = conf;
    /* The config has checked it. */
    CV_ASSERT(cv_listen_parse(conf->listen, &p->listen, why, sizeof(why)) == 0);
    return p;
}

/* Load certificates, find what stays, bind what is new. 'kept' and 'fresh' have room for all. */
static int prepare(struct cv_front *f, const struct cv_config *c, struct places *kept,
                   struct places *fresh, char *why, size_t why_cap)
{
    for (size_t i = 0; i < c->listeners.n; i++) {
        struct cv_listener_conf *conf = NULL;
        char *text = NULL;
        int ret = cv_tlsconf_listener(&c->listeners.v[i], f->registry, f->tickets, &text, &conf);
        if (ret != 0) {
            snprintf(why, why_cap, "listener '%s': %s", c->listeners.v[i].name,
                     text != NULL ? text : cv_err_text(ret));
            cv_free(text);
            return ret;
        }
        struct place *p = find_present(f, conf);
        if (p != NULL) {
            p->next = conf;
            kept->v[kept->n++] = p;
            continue;
        }
        p = place_new(conf);
        fresh->v[fresh->n++] = p;
        ret = sockets_open(f, p, why, why_cap);
        if (ret != 0)
            return ret;
    }
    return 0;
}

static int open_ports(struct cv_front *f, struct places *fresh, char *why, size_t why_cap)
{
    on_workers(f, on_open_ports, fresh);
    for (size_t k = 0; k < fresh->n; k++)
        for (unsigned i = 0; i < fresh->v[k]->n_slots; i++) {
            struct place *p = fresh->v[k];
            if (p->open_err[i] == 0)
                continue;
            snprintf(why, why_cap, "listener '%s' cannot listen on '%s': %s", p->next->name,
                     p->next->listen, cv_err_text(p->open_err[i]));
            on_workers(f, on_close_ports, fresh);
            return p->open_err[i];
        }
    return 0;
}

static void undo(struct places *kept, struct places *fresh)
{
    for (size_t i = 0; i < kept->n; i++) {
        cv_listener_conf_unref(kept->v[i]->next);
        kept->v[i]->next = NULL;
    }
    for (size_t i = 0; i < fresh->n; i++)
        place_free(fresh->v[i]);
}

static void warn_expired(const struct place *p)
{
    const struct cv_tls_server_ctx *tls = p->conf->tls;
    for (size_t i = 0; tls != NULL && i < cv_tls_server_ctx_count(tls); i++) {
        struct cv_tls_cert_info info;
        cv_tls_server_ctx_cert(tls, i, &info);
        if (info.not_after_s < cv_clock_unix_ms() / 1000)
            cv_warn("node", "listener '%s': the certificate in '%s' has expired", p->conf->name,
                    info.cert_file);
    }
}

static void become(struct place *p)
{
    if (p->listen.kind == CV_LISTEN_UNIX && p->conf != NULL &&
        p->conf->unix_mode != p->next->unix_mode)
        (void)chmod(p->listen.sa.un.sun_path, (mode_t)p->next->unix_mode);
    cv_listener_conf_unref(p->conf);
    p->conf = p->next;
    p->next = NULL;
    CV_FREE(p->tls_error);
    p->tls_seen = p->conf->tls != NULL ? cv_tls_server_ctx_loaded(p->conf->tls) : 0;
    p->tls_refused = p->tls_seen;
    warn_expired(p);
}

static void log_place(const struct place *p)
{
    const char *user = p->conf->no_auth_user != NULL ? p->conf->no_auth_user : p->conf->identity;
    cv_info("node", "listening name='%s' protocol='%s' tls=%s login=%s address='%s'", p->conf->name,
            cv_tlsconf_protocol_name((int)p->conf->protocol - 1),
            p->conf->tls != NULL ? "yes" : "no", user != NULL ? "no" : "yes", p->address);
    if (user != NULL)
        cv_warn("node", "listener '%s' asks for no login: whoever reaches it is user '%s'",
                p->conf->name, user);
}

/* Everything is bound: switch over. Takes the arrays. */
static void commit(struct cv_front *f, struct places *kept, struct places *fresh)
{
    struct places gone = {.v = cv_zalloc((f->now.n + 1) * sizeof(*gone.v))};
    for (size_t i = 0; i < f->now.n; i++)
        if (f->now.v[i]->next == NULL)
            gone.v[gone.n++] = f->now.v[i];

    on_workers(f, on_set_confs, kept);
    on_workers(f, on_close_ports, &gone);
    for (size_t i = 0; i < kept->n; i++)
        become(kept->v[i]);
    for (size_t i = 0; i < fresh->n; i++) {
        become(fresh->v[i]);
        log_place(fresh->v[i]);
        kept->v[kept->n++] = fresh->v[i];
    }
    for (size_t i = 0; i < gone.n; i++) {
        cv_info("node", "listener closed name='%s' address='%s'", gone.v[i]->conf->name,
                gone.v[i]->address);
        place_free(gone.v[i]);
    }
    cv_free(gone.v);
    cv_free(f->now.v);
    f->now = *kept;
    *kept = (struct places){0};
}

int cv_front_prepare(struct cv_front *f, const struct cv_config *c, struct cv_front_change **ret,
                     char *why, size_t why_cap)
{
    struct cv_front_change *change = cv_zalloc(sizeof(*change));
    change->kept.v = cv_zalloc((c->listeners.n + 1) * sizeof(struct place *));
    change->fresh.v = cv_zalloc((c->listeners.n + 1) * sizeof(struct place *));
    why[0] = '\0';
    int err = prepare(f, c, &change->kept, &change->fresh, why, why_cap);
    if (err == 0)
        *ret = change;
    else
        cv_front_cancel(change);
    return err;
}

static void change_free(struct cv_front_change *change)
{
    cv_free(change->kept.v);
    cv_free(change->fresh.v);
    cv_free(change);
}

void cv_front_cancel(struct cv_front_change *change)
{
    if (change == NULL)
        return;
    undo(&change->kept, &change->fresh);
    change_free(change);
}

int cv_front_finish(struct cv_front *f, struct cv_front_change *change, char *why, size_t why_cap)
{
    why[0] = '\0';
    int ret = open_ports(f, &change->fresh, why, why_cap);
    if (ret != 0) {
        cv_front_cancel(change);
        return ret;
    }
    commit(f, &change->kept, &change->fresh);
    change_free(change);
    return 0;
}

int cv_front_apply(struct cv_front *f, const struct cv_config *c, char *why, size_t why_cap)
{
    struct cv_front_change *change;
    int ret = cv_front_prepare(f, c, &change, why, why_cap);
    return ret == 0 ? cv_front_finish(f, change, why, why_cap) : ret;
}

/* ---- from process to process ---- */

void cv_front_inherit(struct cv_front *f, struct cv_handed *handed)
{
    f->handed = handed;
}

void cv_front_complete(struct cv_front *f)
{
    for (size_t i = 0; i < f->now.n; i++) {
        struct place *p = f->now.v[i];
        if (p->left && p->listen.kind == CV_LISTEN_UNIX)
            (void)chmod(p->listen.sa.un.sun_path, (mode_t)p->conf->unix_mode);
        p->left = false;
        if (p->listen.kind != CV_LISTEN_ADDRESS || p->n_slots >= cv_crew_count(f->crew))
            continue;
        int ret = add_sockets(f, p);
        on_workers(f, on_open_ports, &(struct places){.v = &p, .n = 1});
        for (unsigned k = 0; k < p->n_slots && ret == 0; k++)
            ret = p->open_err[k];
        if (ret != 0)
            cv_warn("node", "listener '%s' has sockets for %u of %u workers: %s", p->conf->name,
                    p->n_slots, cv_crew_count(f->crew), cv_err_text(ret));
    }
}

int cv_front_offer(const struct cv_front *f, struct cv_handed *handed)
{
    int ret = 0;
    for (size_t i = 0; i < f->now.n && ret == 0; i++) {
        const struct place *p = f->now.v[i];
        struct cv_takeover_item about = {
            .kind = p->listen.kind == CV_LISTEN_UNIX ? CV_TAKEOVER_UNIX : CV_TAKEOVER_ADDRESS,
            .dev = p->dev,
            .ino = p->ino,
        };
        int fds[CV_WORKERS_MAX];
        if (p->listen.kind == CV_LISTEN_FD)
            continue; /* what systemd passed goes with the rest of it */
        snprintf(about.listen, sizeof(about.listen), "%s", p->conf->listen);
        snprintf(about.name, sizeof(about.name), "%s", p->conf->name);
        if (p->shared)
            fds[about.n_fds++] = p->fd[0];
        for (unsigned k = 0; k < p->n_slots && !p->shared; k++)
            if (p->ports[k] != NULL)
                fds[about.n_fds++] = cv_listener_port_fd(p->ports[k]);
        if (about.n_fds > 0)
            ret = cv_handed_add(handed, &about, fds);
    }
    return ret;
}

/* ---- certificates that change ---- */

/* Are the files of 'p' other ones than those it has, the same as a second ago, and not such as were
 * refused already? */
static bool is_due(struct place *p)
{
    uint64_t now = cv_tls_server_ctx_look(p->conf->tls);
    bool settled = now == p->tls_seen;
    p->tls_seen = now;
    if (now != cv_tls_server_ctx_loaded(p->conf->tls))
        return settled && now != p->tls_refused;
    /* The old files are back. */
    CV_FREE(p->tls_error);
    p->tls_refused = now;
    return false;
}

static const struct cv_config_listener *find_config(const struct cv_config *c, const char *name)
{
    for (size_t i = 0; i < c->listeners.n; i++)
        if (strcmp(c->listeners.v[i].name, name) == 0)
            return &c->listeners.v[i];
    return NULL;
}

/* Load into p->next. */
static bool reload_tls(struct cv_front *f, struct place *p, const struct cv_config *c)
{
    const struct cv_config_listener *l = find_config(c, p->conf->name);
    char *text = NULL;
    if (l == NULL || l->tls == NULL)
        return false;
    int ret = cv_tlsconf_listener(l, f->registry, f->tickets, &text, &p->next);
    if (ret == 0)
        return true;
    /* What is wrong with the files stays wrong until they change; the rest may pass. */
    if (ret == CV_E_INVALID || ret == CV_E_LIMIT || ret == -ENOENT || ret == -EACCES)
        p->tls_refused = p->tls_seen;
    cv_log_limited(CV_LOG_ERROR, "node",
                   "certificates of listener '%s' refused, the old ones stay in force: %s",
                   p->conf->name, text != NULL ? text : cv_err_text(ret));
    cv_free(p->tls_error);
    p->tls_error = text != NULL ? text : cv_strdup(cv_err_text(ret));
    return false;
}

static size_t look_at_files(struct cv_front *f, const struct cv_config *c)
{
    struct places changed = {.v = cv_zalloc((f->now.n + 1) * sizeof(*changed.v))};
    size_t files = 0;
    for (size_t i = 0; i < f->now.n; i++) {
        struct place *p = f->now.v[i];
        if (p->conf->tls == NULL)
            continue;
        files += cv_tls_server_ctx_files(p->conf->tls);
        if (is_due(p) && reload_tls(f, p, c))
            changed.v[changed.n++] = p;
    }
    on_workers(f, on_set_confs, &changed);
    for (size_t i = 0; i < changed.n; i++) {
        cv_info("node", "certificates reloaded listener='%s'", changed.v[i]->conf->name);
        become(changed.v[i]);
    }
    cv_free(changed.v);
    return files;
}

void cv_front_tick(struct cv_front *f, const struct cv_config *c)
{
    int64_t now = cv_clock_mono_ms();
    if (now >= f->rotate_ms) {
        f->rotate_ms = now + CV_TLS_TICKET_MS;
        cv_tls_tickets_rotate(f->tickets);
    }
    /* With thousands of files a look takes its time, so there are fewer. */
    if (now >= f->look_ms)
        f->look_ms = now + (int64_t)look_at_files(f, c);
}

void cv_front_hand_over(struct cv_front *f, const struct cv_handed *handed)
{
    for (size_t i = 0; i < f->now.n; i++) {
        struct place *p = f->now.v[i];
        for (size_t k = 0; k < handed->n && !p->left; k++) {
            const struct cv_takeover_item *about = &handed->v[k]->about;
            if (p->listen.kind == CV_LISTEN_FD)
                p->left = about->kind == CV_TAKEOVER_PASSED && handed->v[k]->taken &&
                          handed->v[k]->fd[0] == p->fd[0];
            else
                p->left = handed->v[k]->taken && strcmp(about->listen, p->conf->listen) == 0 &&
                          strcmp(about->name, p->conf->name) == 0 &&
                          (about->kind == CV_TAKEOVER_ADDRESS || about->kind == CV_TAKEOVER_UNIX);
        }
    }
    cv_front_close(f);
}

void cv_front_rearm(struct cv_front *f)
{
    on_workers(f, on_rearm_ports, &f->now);
    for (size_t i = 0; i < f->now.n; i++)
        for (unsigned k = 0; k < f->now.v[i]->n_slots; k++)
            if (f->now.v[i]->open_err[k] != 0)
                cv_error("node", "listener '%s' accepts no more on a worker: %s",
                         f->now.v[i]->conf->name, cv_err_text(f->now.v[i]->open_err[k]));
}

/* ---- the end ---- */

void cv_front_close(struct cv_front *f)
{
    on_workers(f, on_close_ports, &f->now);
    for (size_t i = 0; i < f->now.n; i++)
        place_free(f->now.v[i]);
    CV_FREE(f->now.v);
    f->now.n = 0;
}

void cv_front_free(struct cv_front *f)
{
    if (f == NULL)
        return;
    cv_front_close(f);
    cv_tls_tickets_unref(f->tickets);
    cv_free(f);
}

size_t cv_front_count(const struct cv_front *f)
{
    return f->now.n;
}

void cv_front_get(const struct cv_front *f, size_t i, struct cv_front_entry *ret)
{
    const struct place *p = f->now.v[i];
    *ret = (struct cv_front_entry){
        .name = p->conf->name,
        .protocol = cv_tlsconf_protocol_name((int)p->conf->protocol - 1),
        .address = p->address,
        .tls = p->conf->tls != NULL,
        .tls_ctx = p->conf->tls,
        .tls_error = p->tls_error,
    };
}

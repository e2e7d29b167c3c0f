/* Replacing a running node by a new process, as the runtime sees it: both sides of a takeover
 * (takeover_give.h, takeover_take.h) joined to the front, the admin API and systemd, and the
 * starting of the new process.
 *
 * As the new node: fetch, then start everything but accepting (front and admin ask here for the
 * sockets), commit, accept, confirm; 'settled' comes when the old one accepts no more. As a node
 * that serves: listen, and 'given' comes when it has been replaced. Control thread only. */
#pragma once

#include <limits.h>
#include <sys/types.h>

#include "admin/admin.h"
#include "app/front.h"
#include "app/systemd.h"
#include "app/takeover_give.h"
#include "app/takeover_take.h"

struct cv_upgrade_ops {
    /* As the old node: may it be replaced now? */
    bool (*may_give)(void *arg);
    /* It did not come to it, and what had to wait can be done. */
    void (*failed)(void *arg);
    /* Listeners and admin have been left to the new node: drain. */
    void (*given)(void *arg);
    /* As the new node: CV_TAKER_ABORTED = this one has to end. */
    void (*settled)(void *arg, enum cv_taker_end end);
};

/* Embedded; the owner sets the pointers of the first part as the things come into life. */
struct cv_upgrade {
    struct cv_loop *loop;
    struct cv_front *front;
    struct cv_admin *admin;
    const char *admin_listen; /* as in the config */
    struct cv_systemd *systemd;
    const struct cv_upgrade_ops *ops;
    void *arg;

    struct cv_giver *_giver;  /* owned; NULL: off */
    struct cv_taker *_taker;  /* owned; NULL once settled */
    struct cv_handed _handed; /* what was fetched */
    int _control_fd;          /* owned; from the old node, -1: none */
    pid_t _child;             /* the new process; 0: none */
    char _exe[PATH_MAX];
};

void cv_upgrade_init(struct cv_upgrade *u, struct cv_systemd *systemd,
                     const struct cv_upgrade_ops *ops, void *arg);
/* Stop both sides. NULL pointers of the first part are accepted. */
void cv_upgrade_done(struct cv_upgrade *u);

/* Get the sockets of the node that answers on 'socket'; those of systemd and its notify address go
 * to 'systemd'. 0, or a code with a sentence. */
int cv_upgrade_fetch(struct cv_upgrade *u, const char *socket, char *why,
                     size_t why_cap) CV_MUST_CHECK;
/* The front takes its sockets from here. Nothing was fetched: nothing. */
void cv_upgrade_inherit(struct cv_upgrade *u);
/* Put the socket for the admin API in 'conf', if there is one for that place. */
void cv_upgrade_admin(struct cv_upgrade *u, const char *listen, struct cv_admin_conf *conf);
/* Everything but accepting is ready. 'socket': the control socket of the new config. */
int cv_upgrade_commit(struct cv_upgrade *u, const char *socket, char *why,
                      size_t why_cap) CV_MUST_CHECK;
/* This process accepts; 'settled' comes later. */
int cv_upgrade_confirm(struct cv_upgrade *u) CV_MUST_CHECK;
/* The start has failed: tell the old node. Nothing is on its way: nothing. */
void cv_upgrade_abort(struct cv_upgrade *u, const char *why);

/* Be ready to be replaced. Failure is logged. "" = off. */
void cv_upgrade_listen(struct cv_upgrade *u, const char *socket);
void cv_upgrade_refuse(struct cv_upgrade *u); /* ... no more */
/* Start this program anew to take over (SIGUSR2), and look for its end (SIGCHLD). */
void cv_upgrade_spawn(struct cv_upgrade *u, const char *config_path);
void cv_upgrade_reap(struct cv_upgrade *u);
/* A takeover is on its way: listeners must stay as they are. */
bool cv_upgrade_is_busy(const struct cv_upgrade *u);
/* Not yet settled as the new node. */
bool cv_upgrade_is_taking(const struct cv_upgrade *u);

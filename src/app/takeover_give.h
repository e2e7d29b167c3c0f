/* The old node's side of a takeover: it listens on the control socket, offers its listening sockets
 * to a process of the same user, and stops only when that one serves (takeover_msg.h has the
 * messages).
 *
 *   idle -> greeting -> sending -> preparing -> committed -> given
 *
 * Whatever goes wrong before "given" (the end of the other process, silence, nonsense, an ABORT)
 * leads back to idle, and the node has served all the time. One takeover at a time; each step has a
 * time limit. Control thread only. */
#pragma once

#include "app/handed.h"
#include "net/loop.h"

struct cv_giver;

struct cv_giver_ops {
    /* List what there is to hand over, with the notify address and the like. 0, or a code: the
     * takeover is refused with 'why'. The descriptors stay the node's and stay open until giving is
     * over, so the listeners are left alone while cv_giver_is_busy(). */
    int (*collect)(void *arg, struct cv_handed *handed, struct cv_takeover_msg *offer,
                   const char **why);
    /* It did not come to it. 'shared': both have accepted for a moment, so that the backlogs must
     * be looked at anew. */
    void (*failed)(void *arg, bool shared);
    /* The process 'pid' serves what is marked as taken: stop accepting, now. DONE is sent
     * afterwards, and the giver is to be freed soon, not from within. */
    void (*given)(void *arg, int32_t pid, const struct cv_handed *handed);
};

struct cv_giver_conf {
    const char *path; /* of the control socket; copied */
    /* 'fd' listens there already: it came from the node before. Ownership moves, also on failure.
     */
    bool inherited;
    int fd;
    const struct cv_giver_ops *ops;
    void *arg;
};

/* Missing folders of the path are created with mode 0700, the socket has 0600. 0 or -errno. */
int cv_giver_start(struct cv_loop *loop, const struct cv_giver_conf *conf,
                   struct cv_giver **ret_giver) CV_MUST_CHECK;
/* True while a takeover is on its way. */
bool cv_giver_is_busy(const struct cv_giver *g);
/* Put the control socket itself on the list. */
int cv_giver_offer(const struct cv_giver *g, struct cv_handed *handed) CV_MUST_CHECK;
/* Give up what is on its way, close; the file is removed unless the socket was handed over. NULL is
 * accepted. Not from within a callback. */
void cv_giver_free(struct cv_giver *g);

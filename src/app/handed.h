/* The listening sockets that go from one process to the next: what the old node offers, and what
 * the new one has received. Both sides fill the same list, so that the index of an entry is the
 * same on both. */
#pragma once

#include "app/takeover_msg.h"

struct cv_handed_item {
    struct cv_takeover_item about;
    int fd[CV_TAKEOVER_FDS_MAX]; /* about.n_fds of them; -1: moved to a new owner */
    bool taken;
};

/* Cleared: empty. */
struct cv_handed {
    struct cv_handed_item **v; /* owned, with their items */
    size_t n;
    bool owned; /* the descriptors in it are to be closed when nobody took them */
};

/* Append a copy of 'about' with 'about->n_fds' descriptors; its index is set. CV_E_LIMIT when the
 * list is full. */
int cv_handed_add(struct cv_handed *h, const struct cv_takeover_item *about,
                  const int *fds) CV_MUST_CHECK;
/* The first item of this kind and place that nobody has taken; NULL: none. 'name' NULL: any. */
struct cv_handed_item *cv_handed_find(const struct cv_handed *h, enum cv_takeover_kind kind,
                                      const char *listen, const char *name);
/* The same for a Unix socket: by the file that 'path' names now. */
struct cv_handed_item *cv_handed_find_file(const struct cv_handed *h, enum cv_takeover_kind kind,
                                           const char *path);
/* The descriptors of 'item' move to 'fds' (room for CV_TAKEOVER_FDS_MAX); how many. */
size_t cv_handed_take(struct cv_handed_item *item, int *fds);
/* Forget everything; closes what was not taken if 'owned'. */
void cv_handed_done(struct cv_handed *h);

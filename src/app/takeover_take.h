/* The new node's side of a takeover (takeover_msg.h has the messages).
 *
 * It runs within the start of the node, before its loop does, so each step waits by poll() with a
 * time limit and nothing else goes on meanwhile: fetch the sockets, [start everything but
 * accepting], commit, [accept], confirm. From then on the loop waits for the old node's last word:
 * it accepts no more (go on), it has ended without a word (go on: all sockets are here), or it
 * wants to go on itself (end). */
#pragma once

#include "app/handed.h"
#include "net/loop.h"

enum cv_taker_end {
    CV_TAKER_DONE = 1, /* the old node accepts no more */
    CV_TAKER_GONE,     /* the old node has ended; everything is ours all the same */
    CV_TAKER_ABORTED,  /* the old node goes on, this one has to end */
};

struct cv_taker;
typedef void (*cv_taker_cb)(void *arg, enum cv_taker_end end);

/* Connect to the control socket of the running node and receive its sockets to 'handed', which then
 * owns them. 'ret_offer' has what the old node says of itself. 0, or a code with a sentence in
 * 'why'. */
int cv_taker_fetch(const char *path, struct cv_handed *handed, struct cv_takeover_msg *ret_offer,
                   struct cv_taker **ret_taker, char *why, size_t why_cap) CV_MUST_CHECK;
/* Everything is ready: tell which items were taken, and wait for the word to accept. 0 also when
 * the old node has just ended. */
int cv_taker_commit(struct cv_taker *t, const struct cv_handed *handed, char *why,
                    size_t why_cap) CV_MUST_CHECK;
/* Confirm that this process accepts; 'cb' gets the end, once. */
int cv_taker_confirm(struct cv_taker *t, struct cv_loop *loop, cv_taker_cb cb,
                     void *arg) CV_MUST_CHECK;
/* Tell the old node why it does not come to it. */
void cv_taker_abort(struct cv_taker *t, const char *why);
/* Also from within 'cb', as the last use. NULL is accepted. */
void cv_taker_free(struct cv_taker *t);

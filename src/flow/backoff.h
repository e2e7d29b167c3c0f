/* Keeping guessers of passwords waiting, without locking anybody else out.
 *
 * Wrong logins are counted for each pair of user name and source, and for each source; the source
 * is an IPv4 address or the /64 of an IPv6 address. Who has failed too often is refused, right
 * login or not, before a password is looked at, until a pause is over that doubles with each
 * further failure. Refused attempts do not make it longer.
 *
 * - A user is never refused for what other sources do: there is no count by user alone.
 * - The count of a source is meant for many users being tried from one place. It is high, because
 *   a source may be many people behind one address, and it does not hold up a user who has logged
 *   in from there within the last hour.
 * - The same wrong password again teaches nobody anything: it is answered without a check and not
 *   counted, so that a browser with an old password does not shut out its user.
 *
 * Memory is fixed: two tables of CV_BACKOFF_ENTRIES, made once, in which a new key takes the place
 * of the least interesting of eight. Keys are hashed under a random key of the process, so nobody
 * can aim at a place; to push out one that waits takes eight others that have failed as often. Any
 * thread, no locks: an entry is one atomic word. */
#pragma once

#include "common/addr.h"
#include "flow/settings.h"

#define CV_BACKOFF_ENTRIES 65536

struct cv_backoff;

struct cv_backoff *cv_backoff_new(void);
void cv_backoff_free(struct cv_backoff *b); /* NULL: nothing */

/* Who logs in from where. */
struct cv_backoff_key {
    uint64_t pair, source; /* hashes; 0: not known, nothing is counted (a Unix socket) */
};
struct cv_backoff_key cv_backoff_key(const struct cv_ip *client, const char *user, size_t len);

/* Milliseconds until a login may be tried again; 0: now. */
int64_t cv_backoff_wait(struct cv_backoff *b, const struct cv_login_settings *conf,
                        const struct cv_backoff_key *key, int64_t now_ms);
/* Is this the wrong login that was the last one of this pair? 'wrong' stands for all that the
 * answer depends on. */
bool cv_backoff_is_repeated(struct cv_backoff *b, const struct cv_backoff_key *key, uint64_t wrong);
/* A login was wrong; again the same one changes nothing. Returns for how long its pair or source is
 * refused from now on; 0: it is not.
 */
int64_t cv_backoff_failed(struct cv_backoff *b, const struct cv_login_settings *conf,
                          const struct cv_backoff_key *key, uint64_t wrong, int64_t now_ms);
/* A login was right. */
void cv_backoff_succeeded(struct cv_backoff *b, const struct cv_backoff_key *key, int64_t now_ms);

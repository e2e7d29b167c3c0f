/* Checking a login against the policy in force. Plain and sha256 passwords and remembered logins
 * are answered at once; argon2id runs on the offload threads. Unknown users cost the same. Who has
 * guessed too often is refused before anything is looked at (backoff.h). */
#pragma once

#include "flow/session.h"

struct cv_auth;
/* err 0 and 'account' (borrowed; take a reference), or CV_E_AUTH, CV_E_EXPIRED, CV_E_BACKOFF,
 * CV_E_LIMIT (too many logins are being checked), -ENOMEM. */
typedef void (*cv_auth_cb)(void *arg, int err, struct cv_account *account);

/* Check a login of the client of 's', which outlives the check. 0, CV_E_AUTH, CV_E_EXPIRED ...:
 * answered at once, *ret_account is set on 0 (borrowed to the end of the turn). -EINPROGRESS: 'cb'
 * will come, unless cv_auth_cancel(*ret_auth) is called first. 'user' and 'pass' are copied when
 * needed, and cleared afterwards. With a right login the session is bound to the password that it
 * was checked against: cv_session_recheck() ends it when the user has another one. */
int cv_auth_check(struct cv_session *s, const char *user, size_t user_len, const char *pass,
                  size_t pass_len, cv_auth_cb cb, void *arg, struct cv_account **ret_account,
                  struct cv_auth **ret_auth);
/* The same for a client of whom it is known that it can be 'only' (NULL: anybody): every other name
 * is CV_E_AUTH. */
int cv_auth_check_as(struct cv_session *s, const struct cv_rcstr *only, const char *user,
                     size_t user_len, const char *pass, size_t pass_len, cv_auth_cb cb, void *arg,
                     struct cv_account **ret_account, struct cv_auth **ret_auth);
void cv_auth_cancel(struct cv_auth *a);
/* After CV_E_BACKOFF: milliseconds until the client may try to log in as 'user' again; 0: now. */
int64_t cv_auth_wait_ms(struct cv_session *s, const char *user, size_t user_len);

/* The account of a user without a password check, for listeners with no_auth_user and for clients
 * whose certificate names it. CV_E_AUTH when there is no such user, CV_E_EXPIRED. */
int cv_auth_trust(struct cv_session *s, const char *user, struct cv_account **ret_account);

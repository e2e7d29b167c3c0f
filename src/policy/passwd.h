/* Password forms of the snapshot, and checking a login against them.
 *
 *   plain text                          as Rove writes them
 *   sha256:<salt hex>:<hash hex>        SHA-256 of salt || password; salt of 1..64 bytes
 *   $argon2id$v=19$m=..,t=..,p=..$...   PHC string, verified by libargon2
 *
 * A text that begins like a hashed form but does not follow it is refused at compile. */
#pragma once

#include "policy/snapshot.h"

enum cv_passwd_kind {
    CV_PASSWD_PLAIN = 1,
    CV_PASSWD_SHA256,
    CV_PASSWD_ARGON2ID,
};

/* Kind of a stored password; CV_E_PARSE when it begins like a hash ("sha256:", "$argon2") but is
 * malformed, or asks for more than 1 GiB of memory, 64 passes or 16 lanes (each is a thread). */
int cv_passwd_kind(const char *stored, size_t len, enum cv_passwd_kind *ret_kind);

/* 0 when 'given' is right, CV_E_AUTH when not, -ENOMEM. Constant time in the password. Plain and
 * sha256 take microseconds, argon2id as long as its parameters say. An empty plain password is
 * never right: RFC 1929 has none, and a user without a password must not be open to all. */
int cv_passwd_verify(const char *stored, size_t stored_len, const char *given, size_t given_len);

/* The stored password that a login of an unknown user is checked against, so that it takes as long
 * as a known one: that of some user of this snapshot, chosen by a keyed hash of the given name, and
 * a fixed one when there are no users. The result of that check is to be ignored. */
struct cv_rcstr *cv_passwd_decoy(const struct cv_snapshot *s, const char *name, size_t len);

/* New stored form under a random salt. 'kind' sha256 or argon2id (19 MiB, 2 passes, 1 lane). 'out'
 * gets a NUL-terminated text; CV_PASSWD_STRLEN is enough. 0; CV_E_LIMIT when 'cap' is too small;
 * CV_E_INVALID for another kind; -ENOMEM. */
#define CV_PASSWD_STRLEN 256
int cv_passwd_hash(enum cv_passwd_kind kind, const char *password, size_t len, char *out,
                   size_t cap);

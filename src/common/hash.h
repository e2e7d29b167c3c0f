/* Keyed hash for tables and caches: SipHash-1-3 under a random process key unless one is given. */
#pragma once

#include "common/defs.h"

struct cv_hash_key {
    uint64_t k[2];
};

/* The random key of this process; the same for its whole life. */
const struct cv_hash_key *cv_hash_process_key(void);
/* 'key' NULL: the process key. */
uint64_t cv_hash_bytes(const struct cv_hash_key *key, const void *data, size_t len);

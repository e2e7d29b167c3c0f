/* One index over the selectors of all policies: what is the smallest route of policy P that matches
 * host H? The cost grows with the labels of the name, or with the number of distinct prefix lengths
 * that the policy uses, never with the number of rules.
 *
 * Names and prefixes are in one open-addressing hash table under (policy, bytes); an entry holds
 * the smallest route by "full:" and by suffix. A name is looked up once per label boundary, from
 * the right, and only for those numbers of labels that the policy has rules for; an address once
 * for each prefix length that the policy has. The hash is SipHash under a secret key, so no
 * document can be made to collide; hits are compared byte by byte. Keywords: keywords.h.
 *
 * Built once by cv_snapshot_compile(), then read by any number of threads. */
#pragma once

#include "common/hash.h"
#include "common/target.h"
#include "policy/decide.h"
#include "policy/keywords.h"
#include "policy/vec.h"

/* A selector ready for the index. */
struct cv_index_rule {
    uint32_t policy;
    uint32_t route;
    uint32_t off; /* of its bytes in the text */
    uint8_t kind; /* enum cv_selector_kind */
    uint8_t len;
};

struct cv_index_policy {
    uint64_t _seed;      /* makes the hash of one policy independent of that of another */
    uint64_t _labels[2]; /* bit n: a name of n labels has a rule, by full or suffix */
    uint64_t _len4;      /* bit n: a rule for an IPv4 prefix of that length */
    uint64_t _len6[3];   /* the same for IPv6, 0..128 */
    uint32_t _keywords;  /* base, or CV_KEYWORDS_NONE */
};

struct cv_index_slot {
    uint32_t tag;   /* high half of the hash */
    uint32_t entry; /* 1-based; 0: empty */
};

struct cv_index_entry {
    uint32_t policy;
    uint32_t off;
    uint32_t route_full; /* for a prefix: its route */
    uint32_t route_suffix;
    uint8_t len;
    bool is_prefix;
};

struct cv_index {
    struct cv_index_policy *_policies; /* owned */
    struct cv_index_slot *_slots;      /* owned; NULL: no names and prefixes at all */
    struct cv_index_entry *_entries;   /* owned */
    char *_text;                       /* owned; the bytes of all entries */
    uint64_t _mask;
    uint64_t _key; /* second half of the hash key */
    uint32_t n_policies;
    size_t n_entries;
    size_t _text_len;
    struct cv_keywords _keywords;
};

struct cv_index_hit {
    uint32_t route; /* UINT32_MAX: none */
    /* For an address: the most specific prefix of that route that matches. */
    struct cv_prefix prefix;
};

/* Append the bytes of a prefix, as the index looks it up. 0 or -ENOMEM. */
int cv_index_add_prefix(struct cv_vec *text, const struct cv_prefix *p) CV_MUST_CHECK;

/* Build from 'rules', whose bytes are in 'text'. Takes the text over, even on failure. Rules for
 * nothing (CV_SEL_NONE) are passed over. 0 or -ENOMEM. */
int cv_index_build(struct cv_index *ix, uint32_t n_policies, const struct cv_index_rule *rules,
                   size_t n_rules, struct cv_vec *text) CV_MUST_CHECK;
void cv_index_done(struct cv_index *ix);

void cv_index_find(const struct cv_index *ix, uint32_t policy, const struct cv_host *host,
                   struct cv_index_hit *ret_hit);
size_t cv_index_bytes(const struct cv_index *ix);

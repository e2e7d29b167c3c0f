#include "policy/index.h"

#include <errno.h>
#include <string.h>

#include "common/poison.h"

/* family, prefix length, address */
#define PREFIX_KEY_MAX (2 + 16)

static size_t prefix_key(const struct cv_ip *ip, unsigned len, uint8_t out[PREFIX_KEY_MAX])
{
    size_t n = ip->family == CV_AF_IP4 ? 4 : 16, whole = len / 8;

    out[0] = ip->family;
    out[1] = (uint8_t)len;
    memset(out + 2, 0, n);
    memcpy(out + 2, ip->b, whole);
    if (len % 8 != 0)
        out[2 + whole] = (uint8_t)(ip->b[whole] & (0xff00u >> (len % 8)));
    return 2 + n;
}

int cv_index_add_prefix(struct cv_vec *text, const struct cv_prefix *p)
{
    uint8_t key[PREFIX_KEY_MAX];
    size_t n = prefix_key(&p->ip, p->len, key);
    char *to = cv_vec_add(text, n, 1);

    if (to == NULL)
        return -ENOMEM;
    memcpy(to, key, n);
    return 0;
}

static inline uint64_t hash_of(const struct cv_index *ix, uint32_t policy, const void *data,
                               size_t len)
{
    struct cv_hash_key key = {{ix->_policies[policy]._seed, ix->_key}};

    return cv_hash_bytes(&key, data, len);
}

/* The entry, or NULL; *ret_slot is where it is or would be. */
static struct cv_index_entry *lookup(const struct cv_index *ix, uint32_t policy, bool is_prefix,
                                     const void *data, size_t len, uint64_t *ret_slot,
                                     uint32_t *ret_tag)
{
    uint64_t h = hash_of(ix, policy, data, len);
    uint32_t tag = (uint32_t)(h >> 32);
    uint64_t i = h & ix->_mask;

    for (; ix->_slots[i].entry != 0; i = (i + 1) & ix->_mask) {
        if (ix->_slots[i].tag != tag)
            continue;
        struct cv_index_entry *e = &ix->_entries[ix->_slots[i].entry - 1];
        if (e->policy == policy && e->len == len && e->is_prefix == is_prefix &&
            memcmp(ix->_text + e->off, data, len) == 0)
            return e;
    }
    *ret_slot = i;
    *ret_tag = tag;
    return NULL;
}

static const struct cv_index_entry *find(const struct cv_index *ix, uint32_t policy, bool is_prefix,
                                         const void *data, size_t len)
{
    uint64_t slot;
    uint32_t tag;

    return lookup(ix, policy, is_prefix, data, len, &slot, &tag);
}

static unsigned count_labels(const char *name, size_t len)
{
    unsigned n = 1;

    for (size_t i = 0; i < len; i++)
        n += name[i] == '.';
    return n;
}

static void set_bit(uint64_t *words, unsigned bit)
{
    words[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static bool get_bit(const uint64_t *words, unsigned bit)
{
    return (words[bit / 64] >> (bit % 64) & 1) != 0;
}

static void add_rule(struct cv_index *ix, const struct cv_index_rule *r)
{
    struct cv_index_policy *p = &ix->_policies[r->policy];
    const char *bytes = ix->_text + r->off;
    bool is_prefix = r->kind == CV_SEL_PREFIX;

    if (is_prefix) {
        uint8_t len = (uint8_t)bytes[1];
        set_bit(bytes[0] == CV_AF_IP4 ? &p->_len4 : p->_len6, len);
    } else {
        unsigned labels = count_labels(bytes, r->len);
        if (labels > 127) /* a name of 253 bytes has no more: only a pattern with empty labels */
            return;
        set_bit(p->_labels, labels);
    }

    uint64_t slot;
    uint32_t tag;
    struct cv_index_entry *e = lookup(ix, r->policy, is_prefix, bytes, r->len, &slot, &tag);
    if (e == NULL) {
        e = &ix->_entries[ix->n_entries++];
        *e = (struct cv_index_entry){.policy = r->policy,
                                     .off = r->off,
                                     .route_full = UINT32_MAX,
                                     .route_suffix = UINT32_MAX,
                                     .len = r->len,
                                     .is_prefix = is_prefix};
        ix->_slots[slot] = (struct cv_index_slot){tag, (uint32_t)ix->n_entries};
    }
    uint32_t *route = r->kind == CV_SEL_SUFFIX ? &e->route_suffix : &e->route_full;
    *route = CV_MIN(*route, r->route);
}

/* Twice as many slots as entries, at least. */
static int make_table(struct cv_index *ix, size_t n)
{
    uint64_t slots = 16;

    while (slots < 2 * n)
        slots *= 2;
    ix->_mask = slots - 1;
    ix->_slots = cv_try_zalloc(slots * sizeof(*ix->_slots));
    ix->_entries = cv_try_alloc(n * sizeof(*ix->_entries));
    return ix->_slots != NULL && ix->_entries != NULL ? 0 : -ENOMEM;
}

static int build_keywords(struct cv_index *ix, const struct cv_index_rule *rules, size_t n_rules,
                          size_t n_words)
{
    if (n_words == 0)
        return 0;
    struct cv_keyword *words = cv_try_alloc(n_words * sizeof(*words));
    if (words == NULL)
        return -ENOMEM;
    size_t n = 0;
    for (size_t i = 0; i < n_rules; i++) {
        if (rules[i].kind == CV_SEL_KEYWORD)
            words[n++] = (struct cv_keyword){.text = ix->_text + rules[i].off,
                                             .policy = rules[i].policy,
                                             .route = rules[i].route,
                                             .len = rules[i].len};
    }
    int ret = cv_keywords_build(&ix->_keywords, words, n, &ix->_policies[0]._keywords,
                                sizeof(ix->_policies[0]));
    cv_free(words);
    return ret;
}

static int make_policies(struct cv_index *ix, uint32_t n)
{
    const struct cv_hash_key *key = cv_hash_process_key();

    ix->_policies = cv_try_zalloc(CV_MAX(n, 1u) * sizeof(*ix->_policies));
    if (ix->_policies == NULL)
        return -ENOMEM;
    ix->n_policies = n;
    ix->_key = key->k[1];
    for (uint32_t i = 0; i < n; i++) {
        ix->_policies[i]._seed = cv_hash_bytes(key, &i, sizeof(i));
        ix->_policies[i]._keywords = CV_KEYWORDS_NONE;
    }
    return 0;
}

int cv_index_build(struct cv_index *ix, uint32_t n_policies, const struct cv_index_rule *rules,
                   size_t n_rules, struct cv_vec *text)
{
    *ix = (struct cv_index){._text = text->base, ._text_len = text->n};
    *text = (struct cv_vec){0};

    size_t n_words = 0, n_hashed = 0;
    for (size_t i = 0; i < n_rules; i++) {
        n_words += rules[i].kind == CV_SEL_KEYWORD;
        n_hashed += rules[i].kind != CV_SEL_KEYWORD && rules[i].kind != CV_SEL_NONE;
    }
    int ret = make_policies(ix, n_policies);
    if (ret == 0 && n_hashed > 0)
        ret = make_table(ix, n_hashed);
    if (ret == 0)
        ret = build_keywords(ix, rules, n_rules, n_words);
    if (ret != 0) {
        cv_index_done(ix);
        return ret;
    }
    for (size_t i = 0; i < n_rules; i++) {
        if (rules[i].kind != CV_SEL_KEYWORD && rules[i].kind != CV_SEL_NONE)
            add_rule(ix, &rules[i]);
    }
    return 0;
}

void cv_index_done(struct cv_index *ix)
{
    cv_free(ix->_policies);
    cv_free(ix->_slots);
    cv_free(ix->_entries);
    cv_free(ix->_text);
    cv_keywords_done(&ix->_keywords);
    *ix = (struct cv_index){0};
}

static void find_name(const struct cv_index *ix, uint32_t policy, const struct cv_host *host,
                      struct cv_index_hit *hit)
{
    const struct cv_index_policy *p = &ix->_policies[policy];
    unsigned labels = 0;

    for (size_t i = host->name_len; (p->_labels[0] | p->_labels[1]) != 0 && i-- > 0;) {
        if (i > 0 && host->name[i - 1] != '.')
            continue;
        if (++labels > 127 || !get_bit(p->_labels, labels))
            continue;
        const struct cv_index_entry *e =
            find(ix, policy, false, host->name + i, host->name_len - i);
        if (e == NULL)
            continue;
        hit->route = CV_MIN(hit->route, e->route_suffix);
        if (i == 0)
            hit->route = CV_MIN(hit->route, e->route_full);
    }
    if (p->_keywords != CV_KEYWORDS_NONE)
        hit->route =
            cv_keywords_find(&ix->_keywords, p->_keywords, host->name, host->name_len, hit->route);
}

/* From the longest prefix to the shortest, so that of several in one route the most specific is
 * reported. */
static void find_ip(const struct cv_index *ix, uint32_t policy, const struct cv_ip *ip,
                    struct cv_index_hit *hit)
{
    const struct cv_index_policy *p = &ix->_policies[policy];
    const uint64_t *words = ip->family == CV_AF_IP4 ? &p->_len4 : p->_len6;
    uint8_t key[PREFIX_KEY_MAX];

    for (int w = ip->family == CV_AF_IP4 ? 0 : 2; w >= 0; w--) {
        for (uint64_t left = words[w]; left != 0;) {
            unsigned bit = 63u - (unsigned)__builtin_clzll(left);
            left ^= UINT64_C(1) << bit;
            unsigned len = (unsigned)w * 64 + bit;
            size_t n = prefix_key(ip, len, key);
            const struct cv_index_entry *e = find(ix, policy, true, key, n);
            if (e == NULL || e->route_full >= hit->route)
                continue;
            hit->route = e->route_full;
            hit->prefix = (struct cv_prefix){.ip.family = ip->family, .len = (uint8_t)len};
            memcpy(hit->prefix.ip.b, key + 2, n - 2);
        }
    }
}

void cv_index_find(const struct cv_index *ix, uint32_t policy, const struct cv_host *host,
                   struct cv_index_hit *ret_hit)
{
    struct cv_ip ip4[CV_IP_EMBEDDED_MAX];

    ret_hit->route = UINT32_MAX;
    if (!cv_host_is_ip(host)) {
        find_name(ix, policy, host, ret_hit);
        return;
    }
    find_ip(ix, policy, &host->ip, ret_hit);
    if (ix->_policies[policy]._len4 == 0)
        return;
    size_t n = cv_ip_embedded4(&host->ip, ip4);
    for (size_t i = 0; i < n; i++) {
        struct cv_index_hit inner = {.route = UINT32_MAX};
        find_ip(ix, policy, &ip4[i], &inner);
        /* At a tie the one that names special addresses is the selector that says more. */
        if (inner.route < ret_hit->route ||
            (inner.route == ret_hit->route && inner.route != UINT32_MAX &&
             !cv_prefix_is_special(&ret_hit->prefix)))
            *ret_hit = inner;
    }
}

size_t cv_index_bytes(const struct cv_index *ix)
{
    size_t slots = ix->_slots != NULL ? ix->_mask + 1 : 0;

    return ix->n_policies * sizeof(*ix->_policies) + slots * sizeof(*ix->_slots) +
           ix->n_entries * sizeof(*ix->_entries) + ix->_text_len +
           cv_keywords_bytes(&ix->_keywords);
}

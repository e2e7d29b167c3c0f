#include "policy/keywords.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#include "common/poison.h"

/* The keywords that share the path to one node. */
struct range {
    uint32_t lo, hi;
};

struct builder {
    const struct cv_keyword *words;
    uint32_t *first, *fail, *out; /* at the automaton's base */
    uint8_t *byte;
    uint32_t next; /* number of the next new node */
    struct range *level, *below;
};

static int compare(const void *pa, const void *pb)
{
    const struct cv_keyword *a = pa, *b = pb;

    if (a->policy != b->policy)
        return a->policy < b->policy ? -1 : 1;
    int diff = memcmp(a->text, b->text, CV_MIN(a->len, b->len));
    if (diff != 0)
        return diff;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return a->route < b->route ? -1 : a->route > b->route;
}

/* The child of 'node' by 'c', 0 if there is none (the root is nobody's child). Nodes near the root
 * have dozens of children, the others hardly ever more than one. */
static inline uint32_t child(const uint32_t *first, const uint8_t *byte, uint32_t node, uint8_t c)
{
    uint32_t i = first[node], end = first[node + 1];

    if (end - i > 4) {
        const uint8_t *p = memchr(byte + i, c, end - i);
        return p != NULL ? (uint32_t)(p - byte) : 0;
    }
    for (; i < end; i++) {
        if (byte[i] == c)
            return i;
    }
    return 0;
}

/* Make the node for 'c' below 'parent'. The parent's fail link is shorter than the parent, so all
 * nodes that are asked here are complete with their children. */
static void add_child(struct builder *b, uint32_t parent, uint8_t c)
{
    uint32_t node = b->next++, fail = 0;

    if (parent != 0) {
        uint32_t f = b->fail[parent];
        while ((fail = child(b->first, b->byte, f, c)) == 0 && f != 0)
            f = b->fail[f];
    }
    b->byte[node] = c;
    b->fail[node] = fail;
    b->out[node] = UINT32_MAX;
}

/* Split the keywords of 'node' at depth 'depth' into its children; returns their number. */
static uint32_t expand(struct builder *b, uint32_t node, struct range r, uint32_t depth,
                       struct range *to)
{
    uint32_t n = 0;

    b->first[node] = b->next;
    b->out[node] = b->out[b->fail[node]];
    for (; r.lo < r.hi && b->words[r.lo].len == depth; r.lo++) /* they end here, and sort first */
        b->out[node] = CV_MIN(b->out[node], b->words[r.lo].route);
    while (r.lo < r.hi) {
        uint8_t c = (uint8_t)b->words[r.lo].text[depth];
        struct range sub = {r.lo, r.lo};
        while (sub.hi < r.hi && (uint8_t)b->words[sub.hi].text[depth] == c)
            sub.hi++;
        add_child(b, node, c);
        to[n++] = sub;
        r.lo = sub.hi;
    }
    return n;
}

/* Build the automaton of one policy, level by level. */
static void build_one(struct builder *b, uint32_t lo, uint32_t hi)
{
    uint32_t node = 0, width = 1;

    b->next = 1;
    b->fail[0] = 0;
    b->byte[0] = 0;
    b->out[0] = UINT32_MAX;
    b->level[0] = (struct range){lo, hi};
    for (uint32_t depth = 0; width > 0; depth++) {
        uint32_t below = 0;
        for (uint32_t i = 0; i < width; i++)
            below += expand(b, node++, b->level[i], depth, b->below + below);
        struct range *swap = b->level;
        b->level = b->below;
        b->below = swap;
        width = below;
    }
    b->first[b->next] = b->next; /* closes the last node */
}

/* Nodes of all automata: a root and a closing entry for each policy, and for each keyword what it
 * does not share with the one before it. */
static size_t count_nodes(const struct cv_keyword *w, size_t n)
{
    size_t nodes = 0;

    for (size_t i = 0; i < n; i++) {
        size_t shared = 0;
        if (i == 0 || w[i].policy != w[i - 1].policy) {
            nodes += 2;
        } else {
            size_t max = CV_MIN(w[i].len, w[i - 1].len);
            while (shared < max && w[i].text[shared] == w[i - 1].text[shared])
                shared++;
        }
        nodes += w[i].len - shared;
    }
    return nodes;
}

static uint32_t *base_of(uint32_t *ret_base, size_t stride, uint32_t policy)
{
    return (uint32_t *)(void *)((char *)ret_base + policy * stride);
}

int cv_keywords_build(struct cv_keywords *k, struct cv_keyword *words, size_t n, uint32_t *ret_base,
                      size_t stride)
{
    *k = (struct cv_keywords){0};
    if (n == 0)
        return 0;

    int ret = -ENOMEM;
    qsort(words, n, sizeof(*words), compare);
    k->n_nodes = count_nodes(words, n);
    k->_first = cv_try_alloc(k->n_nodes * sizeof(uint32_t));
    k->_fail = cv_try_alloc(k->n_nodes * sizeof(uint32_t));
    k->_out = cv_try_alloc(k->n_nodes * sizeof(uint32_t));
    k->_byte = cv_try_alloc(k->n_nodes);
    /* A level of a trie has at most one node per keyword. */
    struct range *scratch = cv_try_alloc(2 * n * sizeof(*scratch));
    if (k->_first == NULL || k->_fail == NULL || k->_out == NULL || k->_byte == NULL ||
        scratch == NULL)
        goto Exit;

    uint32_t base = 0;
    for (size_t lo = 0, hi; lo < n; lo = hi) {
        for (hi = lo + 1; hi < n && words[hi].policy == words[lo].policy; hi++)
            ;
        struct builder b = {.words = words,
                            .first = k->_first + base,
                            .fail = k->_fail + base,
                            .out = k->_out + base,
                            .byte = k->_byte + base,
                            .level = scratch,
                            .below = scratch + n};
        *base_of(ret_base, stride, words[lo].policy) = base;
        build_one(&b, (uint32_t)lo, (uint32_t)hi);
        base += b.next + 1;
    }
    ret = 0;

Exit:
    cv_free(scratch);
    if (ret != 0)
        cv_keywords_done(k);
    return ret;
}

void cv_keywords_done(struct cv_keywords *k)
{
    cv_free(k->_first);
    cv_free(k->_fail);
    cv_free(k->_out);
    cv_free(k->_byte);
    *k = (struct cv_keywords){0};
}

uint32_t cv_keywords_find(const struct cv_keywords *k, uint32_t base, const char *name, size_t len,
                          uint32_t best)
{
    const uint32_t *first = k->_first + base, *fail = k->_fail + base, *out = k->_out + base;
    const uint8_t *byte = k->_byte + base;
    uint32_t node = 0;

    for (size_t i = 0; i < len; i++) {
        uint32_t next;
        while ((next = child(first, byte, node, (uint8_t)name[i])) == 0 && node != 0)
            node = fail[node];
        node = next;
        best = CV_MIN(best, out[node]);
    }
    return best;
}

size_t cv_keywords_bytes(const struct cv_keywords *k)
{
    return k->n_nodes * (3 * sizeof(uint32_t) + 1);
}

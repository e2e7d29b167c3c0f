/* All "keyword:" selectors of all policies as Aho-Corasick automata, one per policy, in shared flat
 * arrays: 13 bytes per node, and no more nodes than the keywords have bytes. One pass over a host
 * name finds the smallest route of all the keywords in it, however many there are.
 *
 * The nodes of an automaton are numbered breadth first, so the children of a node are neighbours
 * and lie between first[node] and first[node + 1], sorted by byte. */
#pragma once

#include "common/defs.h"

struct cv_keyword {
    const char *text; /* borrowed while building */
    uint32_t policy;
    uint32_t route;
    uint8_t len; /* > 0 */
};

struct cv_keywords {
    uint32_t *_first; /* owned; first child; one more entry per automaton closes the last node */
    uint32_t *_fail;  /* owned; the node of the longest proper suffix */
    uint32_t *_out;   /* owned; smallest route of what ends here, UINT32_MAX none */
    uint8_t *_byte;   /* owned; the byte that leads to the node */
    size_t n_nodes;
};

#define CV_KEYWORDS_NONE UINT32_MAX

/* Build from 'n' keywords, which are sorted in place. 'ret_base' has one entry per policy and gets
 * where its automaton begins, CV_KEYWORDS_NONE without one; 'stride' is the distance in bytes
 * between two such entries. 0 or -ENOMEM. */
int cv_keywords_build(struct cv_keywords *k, struct cv_keyword *words, size_t n, uint32_t *ret_base,
                      size_t stride) CV_MUST_CHECK;
void cv_keywords_done(struct cv_keywords *k);

/* The smallest route whose keyword is in 'name', or 'best' if that is smaller still. */
uint32_t cv_keywords_find(const struct cv_keywords *k, uint32_t base, const char *name, size_t len,
                          uint32_t best);
size_t cv_keywords_bytes(const struct cv_keywords *k);

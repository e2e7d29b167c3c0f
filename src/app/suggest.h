/* "Did you mean": the known word that is nearest to one that is not known. */
#pragma once

#include "common/defs.h"

struct cv_suggest {
    const char *_word;
    const char *_best;
    unsigned _distance;
};

void cv_suggest_init(struct cv_suggest *s, const char *word);
/* 'candidate' must outlive the use of the result. */
void cv_suggest_add(struct cv_suggest *s, const char *candidate);
/* The nearest candidate, or NULL when none is near enough to be a slip of the hand. */
const char *cv_suggest_best(const struct cv_suggest *s);

#include "app/suggest.h"

#include <string.h>

#include "common/poison.h"

#define WORD_MAX 40

void cv_suggest_init(struct cv_suggest *s, const char *word)
{
    *s = (struct cv_suggest){._word = word, ._distance = UINT32_MAX};
}

/* Optimal string alignment distance: insertions, deletions, changes, swapped neighbours. */
static unsigned distance(const char *a, size_t la, const char *b, size_t lb)
{
    unsigned row[3][WORD_MAX + 1];
    for (size_t j = 0; j <= lb; j++)
        row[1][j] = (unsigned)j;
    for (size_t i = 1; i <= la; i++) {
        unsigned *before = row[(i + 2) % 3], *last = row[i % 3], *now = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            unsigned best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = CV_MIN(best, last[j] + 1);
            best = CV_MIN(best, now[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = CV_MIN(best, before[j - 2] + 1);
            now[j] = best;
        }
    }
    return row[(la + 1) % 3][lb];
}

void cv_suggest_add(struct cv_suggest *s, const char *candidate)
{
    size_t la = strlen(s->_word), lb = strlen(candidate);
    if (la == 0 || la > WORD_MAX || lb > WORD_MAX)
        return;
    unsigned d = distance(s->_word, la, candidate, lb);
    if (d < s->_distance) {
        s->_distance = d;
        s->_best = candidate;
    }
}

const char *cv_suggest_best(const struct cv_suggest *s)
{
    size_t len = strlen(s->_word);
    unsigned limit = len <= 3 ? 1 : len <= 7 ? 2 : 3;
    return s->_distance <= limit ? s->_best : NULL;
}

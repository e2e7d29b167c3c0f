/* The keyword automata against memmem. */
#include "policy/keywords.h"

#include "policy_util.h"

#define POLICIES 5
#define WORDS    200

static void empty(void)
{
    struct cv_keywords k;
    uint32_t base = CV_KEYWORDS_NONE;

    T_INT_EQ(cv_keywords_build(&k, NULL, 0, &base, sizeof(base)), 0);
    T_INT_EQ(base, CV_KEYWORDS_NONE);
    T_INT_EQ(cv_keywords_bytes(&k), 0);
    cv_keywords_done(&k);
}

static void overlapping(void)
{
    struct cv_keyword words[] = {{"hers", 0, 4, 4}, {"he", 0, 7, 2}, {"she", 0, 3, 3},
                                 {"his", 0, 1, 3},  {"he", 0, 6, 2}, {"ushers", 2, 9, 6},
                                 {"a", 2, 2, 1}};
    uint32_t base[3] = {CV_KEYWORDS_NONE, CV_KEYWORDS_NONE, CV_KEYWORDS_NONE};
    struct cv_keywords k;

    T_INT_EQ(cv_keywords_build(&k, words, CV_ARRAY_SIZE(words), base, sizeof(base[0])), 0);
    T_OK(base[0] != CV_KEYWORDS_NONE && base[2] != CV_KEYWORDS_NONE);
    T_INT_EQ(base[1], CV_KEYWORDS_NONE);
    T_INT_EQ(cv_keywords_find(&k, base[0], "he", 2, UINT32_MAX), 6);
    T_INT_EQ(cv_keywords_find(&k, base[0], "ushe", 4, UINT32_MAX), 3);
    T_INT_EQ(cv_keywords_find(&k, base[0], "hhers", 5, UINT32_MAX), 4);
    T_INT_EQ(cv_keywords_find(&k, base[0], "shis", 4, UINT32_MAX), 1);
    T_INT_EQ(cv_keywords_find(&k, base[0], "hi", 2, UINT32_MAX), UINT32_MAX);
    T_INT_EQ(cv_keywords_find(&k, base[0], "his", 3, 0), 0);
    T_INT_EQ(cv_keywords_find(&k, base[0], "", 0, UINT32_MAX), UINT32_MAX);
    T_INT_EQ(cv_keywords_find(&k, base[2], "ushers", 6, UINT32_MAX), 9);
    T_INT_EQ(cv_keywords_find(&k, base[2], "she", 3, UINT32_MAX), UINT32_MAX);
    /* root, h, s, he, hi, sh, her, his, she, hers; root, a, u, us, ... ushers; two closings */
    T_INT_EQ(k.n_nodes, 10 + 8 + 2);
    cv_keywords_done(&k);
}

static void random_words(uint64_t seed)
{
    static char text[WORDS][9];
    struct cv_keyword words[WORDS], sorted[WORDS];
    uint32_t base[POLICIES];
    struct cv_keywords k;

    memset(base, 0xff, sizeof(base));
    for (int i = 0; i < WORDS; i++) {
        uint8_t len = (uint8_t)(1 + pu_random(&seed) % 8);
        for (int j = 0; j < len; j++)
            text[i][j] = "ab-"[pu_random(&seed) % 3];
        words[i] = (struct cv_keyword){.text = text[i],
                                       .policy = pu_random(&seed) % POLICIES,
                                       .route = pu_random(&seed) % 50,
                                       .len = len};
    }
    memcpy(sorted, words, sizeof(words));
    T_INT_EQ(cv_keywords_build(&k, sorted, WORDS, base, sizeof(base[0])), 0);
    for (int i = 0; i < 300; i++) {
        char host[40];
        size_t len = pu_random(&seed) % sizeof(host);
        uint32_t policy = pu_random(&seed) % POLICIES, want = UINT32_MAX, got = UINT32_MAX;
        for (size_t j = 0; j < len; j++)
            host[j] = "ab-."[pu_random(&seed) % 4];
        for (int j = 0; j < WORDS; j++) {
            if (words[j].policy == policy && memmem(host, len, words[j].text, words[j].len))
                want = CV_MIN(want, words[j].route);
        }
        if (base[policy] != CV_KEYWORDS_NONE)
            got = cv_keywords_find(&k, base[policy], host, len, UINT32_MAX);
        T_INT_EQ(got, want);
    }
    cv_keywords_done(&k);
}

static void agrees_with_memmem(void)
{
    for (uint64_t seed = 1; seed <= 30; seed++)
        random_words(seed * 0x9e3779b97f4a7c15);
}

int main(void)
{
    T_RUN(empty);
    T_RUN(overlapping);
    T_RUN(agrees_with_memmem);
    return t_done();
}

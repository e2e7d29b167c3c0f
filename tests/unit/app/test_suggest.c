#include "app/suggest.h"

#include "tap.h"

static void test_words(void)
{
    static const char *const known[] = {"run", "check", "explain", "passwd", "max_sessions"};
    static const struct {
        const char *word, *want;
    } rows[] = {
        {"rnu", "run"},
        {"run", "run"},
        {"chekc", "check"},
        {"exlpain", "explain"},
        {"password", "passwd"},
        {"max_session", "max_sessions"},
        {"zzz", NULL},
        {"", NULL},
        {"something-else", NULL},
        {"r", NULL},
        {"a-word-that-is-longer-than-the-limit-of-forty-bytes", NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_suggest s;
        cv_suggest_init(&s, rows[i].word);
        for (size_t k = 0; k < CV_ARRAY_SIZE(known); k++)
            cv_suggest_add(&s, known[k]);
        T_STR_EQ(cv_suggest_best(&s), rows[i].want);
    }
}

static void test_nothing_known(void)
{
    struct cv_suggest s;
    cv_suggest_init(&s, "run");
    T_OK(cv_suggest_best(&s) == NULL);
}

int main(void)
{
    T_RUN(test_words);
    T_RUN(test_nothing_known);
    return t_done();
}

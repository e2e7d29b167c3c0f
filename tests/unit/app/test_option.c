#include "app/option.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/file.h"
#include "tap.h"

/* doc/config.md is what the table says today, and every option has help. */
static void test_reference(void)
{
    char path[512], *have = NULL, *want = NULL;
    size_t have_len = 0, want_len = 0;
    FILE *f = open_memstream(&want, &want_len);
    T_REQUIRE(f != NULL);
    cv_option_reference(f);
    fclose(f);
    snprintf(path, sizeof(path), "%s/doc/config.md", getenv("CV_SOURCE_ROOT"));
    T_INT_EQ(cv_file_read(path, 1 << 20, &have, &have_len), 0);
    T_OK(have != NULL && strcmp(have, want) == 0);
    cv_free(have);
    free(want);
}

static void check_help(const struct cv_section *s)
{
    T_OK(s->help != NULL && s->help[0] != '\0');
    for (size_t i = 0; i < s->n; i++) {
        const struct cv_option *o = &s->options[i];
        size_t len = o->help != NULL ? strlen(o->help) : 0;
        if (len < 10 || o->help[len - 1] != '.')
            T_FAIL("option '%s' has no help that ends with a full stop", o->key);
        T_OK(cv_option_find(s, o->key) == o);
        if (o->section != NULL)
            check_help(o->section);
    }
}

static void test_help(void)
{
    check_help(&cv_option_root);
}

static void test_durations(void)
{
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = {{0, "0s"},
                {1, "1ms"},
                {1000, "1s"},
                {90000, "1m30s"},
                {3600000, "1h"},
                {86400000, "1d"},
                {90061001, "1d1h1m1s1ms"}};
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        char text[32];
        int64_t back = -1;
        T_STR_EQ(cv_option_duration(rows[i].ms, text, sizeof(text)), rows[i].text);
        T_INT_EQ(cv_duration_parse(text, &back), 0);
        T_INT_EQ(back, rows[i].ms);
    }
}

static void test_find(void)
{
    const struct cv_option *o = cv_option_find(&cv_option_root, "limits");
    T_REQUIRE(o != NULL && o->section != NULL);
    T_OK(cv_option_find(o->section, "max_sessions") != NULL);
    T_OK(cv_option_find(o->section, "max_session") == NULL);
    T_OK(cv_option_find(&cv_option_root, "") == NULL);
}

int main(void)
{
    T_RUN(test_reference);
    T_RUN(test_help);
    T_RUN(test_durations);
    T_RUN(test_find);
    return t_done();
}

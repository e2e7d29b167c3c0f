#include "app/faults.h"

#include "tap.h"

/* The sentences themselves are in test_config.c. Here: nothing is found in what is good, and the
 * first fault of several, in the order of the file, is the one that is told. */
static bool find(const char *text, struct cv_config_error *e)
{
    struct cv_yamlmap map = {0};
    struct cv_yamlmap_error yaml_err;
    T_INT_EQ(cv_yamlmap_parse(text, strlen(text), &yaml_err, &map), 0);
    bool found = cv_faults_find(&map, &cv_option_root, e);
    cv_yamlmap_done(&map);
    return found;
}

static void test_good(void)
{
    static const char *const rows[] = {
        "", "node_id: n\nlisteners: [{ name: a, listen: x, tls: { cert: a, key: b } }]\n",
        "node_id: n\nlisteners: []\nlimits:\ndirect: { allow: [], prefer: nonsense }\n"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_config_error e;
        T_OK(!find(rows[i], &e));
    }
}

static void test_first(void)
{
    struct cv_config_error e;
    T_OK(find("one: 1\ntwo: 2\n", &e));
    T_STR_EQ(e.path, "one");
    T_OK(find("node_id: n\nlisteners:\n  - { name: a, lisen: x }\n  - 5\n", &e));
    T_STR_EQ(e.path, "listeners[0].lisen");
    T_INT_EQ(e.line, 3);
    T_INT_EQ(e.column, 16);
    T_STR_EQ(e.text, "unknown key, did you mean 'listen'?");
}

static void test_set(void)
{
    struct cv_yamlmap map = {0};
    struct cv_config_error e;
    cv_faults_set(&e, &map, CV_YAMLMAP_NONE, "text");
    T_INT_EQ(e.line, 0);
    T_STR_EQ(e.path, "");
    T_STR_EQ(e.text, "text");
}

int main(void)
{
    T_RUN(test_good);
    T_RUN(test_first);
    T_RUN(test_set);
    return t_done();
}

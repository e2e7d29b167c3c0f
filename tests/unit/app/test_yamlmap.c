#include "app/yamlmap.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "tap.h"

static void test_places(void)
{
    static const char text[] = "a: 1\nb:\n  - x\n  - { c: \"y z\", d: [] }\ne: ~\n";
    struct cv_yamlmap m;
    struct cv_yamlmap_error e;
    char path[100], cut[8];
    T_INT_EQ(cv_yamlmap_parse(text, strlen(text), &e, &m), 0);
    uint32_t b = cv_yamlmap_child(&m, 0, "b");
    T_INT_EQ(m.nodes[b].kind, CV_YAML_SEQ);
    T_INT_EQ(m.nodes[b].children, 2);
    T_INT_EQ(m.nodes[b].key_line, 2);
    uint32_t item = cv_yamlmap_item(&m, b, 1);
    uint32_t c = cv_yamlmap_child(&m, item, "c");
    T_STR_EQ(m.nodes[c].text, "y z");
    T_INT_EQ(m.nodes[c].line, 4);
    T_INT_EQ(m.nodes[c].column, 10);
    T_INT_EQ(m.nodes[c].key_column, 7);
    T_STR_EQ(cv_yamlmap_path(&m, c, path, sizeof(path)), "b[1].c");
    T_STR_EQ(cv_yamlmap_path(&m, c, cut, 3), "b[");
    T_STR_EQ(cv_yamlmap_path(&m, 0, path, sizeof(path)), "");
    T_OK(m.nodes[cv_yamlmap_child(&m, 0, "e")].null);
    T_OK(!m.nodes[c].null);
    T_INT_EQ(cv_yamlmap_child(&m, 0, "none"), CV_YAMLMAP_NONE);
    T_INT_EQ(cv_yamlmap_item(&m, b, 2), CV_YAMLMAP_NONE);
    cv_yamlmap_done(&m);
}

static void test_empty(void)
{
    struct cv_yamlmap m;
    struct cv_yamlmap_error e;
    T_INT_EQ(cv_yamlmap_parse("", 0, &e, &m), 0);
    T_INT_EQ(m.n, 0);
    cv_yamlmap_done(&m);
}

/* The bound on nodes, and that every beginning of a good document is handled without a leak. */
static void test_bounds(void)
{
    struct cv_yamlmap m;
    struct cv_yamlmap_error e;
    size_t len = 3 * (CV_YAMLMAP_NODES + 10);
    char *text = cv_alloc(len + 1);
    for (size_t i = 0; i < len; i += 3)
        memcpy(text + i, "- \n", 3);
    T_OK(cv_yamlmap_parse(text, len, &e, &m) != 0);
    T_STR_EQ(e.text, "the document has too many entries");
    T_OK(e.line > CV_YAMLMAP_NODES - 10);
    cv_free(text);

    static const char whole[] = "a: { b: [c, {d: e}, \"f\\x41\"], g: 'h' }\ni: |\n  j\n";
    for (size_t n = 0; n <= strlen(whole); n++)
        if (cv_yamlmap_parse(whole, n, &e, &m) == 0)
            cv_yamlmap_done(&m);
        else
            T_OK(e.text[0] != '\0');
    T_OK(cv_yamlmap_parse("a: \xff\n", 5, &e, &m) != 0);
}

int main(void)
{
    T_RUN(test_places);
    T_RUN(test_empty);
    T_RUN(test_bounds);
    return t_done();
}

#include "app/advice.h"

#include <stdlib.h>
#include <string.h>

#include "tap.h"

/* The remarks on a document, as one text. */
static size_t advise(const char *doc, char *out, size_t cap)
{
    struct cv_snapshot_error e;
    struct cv_snapshot *s = NULL;
    if (cv_snapshot_compile(doc, strlen(doc), "n", &e, &s) != 0) {
        T_FAIL("%s: %s", e.path, e.text);
        exit(1);
    }
    memset(out, 0, cap);
    FILE *f = fmemopen(out, cap - 1, "w");
    size_t n = cv_advice_write(f, "s.json", s, NULL, NULL);
    fclose(f);
    cv_snapshot_unref(s);
    return n;
}

#define DOC(selectors, addr)                                                                       \
    "{\"schema_version\":1,\"version\":1,\"users\":{\"u\":{\"password\":\"p\",\"policy\":\"d\"}}," \
    "\"routing_policies\":{\"d\":{\"routes\":[{\"selectors\":[" selectors                          \
    "],\"action\":{\"type\":"                                                                      \
    "\"block\"}}]}},\"egresses\":{\"e\":{\"type\":\"upstream\",\"backend\":{\"kind\":\"http\","    \
    "\"addr\":\"" addr "\"}}}}"

static void test_selectors(void)
{
    static const char *const good[] = {
        "\"a.test\"", "\"*.a.test\"",      "\"full:a.test\"", "\"keyword:1\"",   "\"10.0.0.0/8\"",
        "\"::1\"",    "\"domain:a.test\"", "\"test\"",        "\"oops:a.test\"", "\"_x.a.test\"",
    };
    static const char *const dead[] = {
        "\"10.0.0.0/33\"",    "\"127.1\"",      "\"full:192.0.2.7\"",
        "\"2001:db8::/129\"", "\"1.2.3.4:80\"", "\"a b.test\"",
    };
    char doc[1024], out[4096];
    for (size_t i = 0; i < CV_ARRAY_SIZE(good); i++) {
        snprintf(doc, sizeof(doc), DOC("%s", "h:1"), good[i]);
        if (advise(doc, out, sizeof(out)) != 0)
            T_FAIL("%s", out);
    }
    for (size_t i = 0; i < CV_ARRAY_SIZE(dead); i++) {
        snprintf(doc, sizeof(doc), DOC("\"a.test\",%s", "h:1"), dead[i]);
        T_INT_EQ(advise(doc, out, sizeof(out)), 1);
        if (strstr(out, "s.json: warning: routing_policies.d.routes[0].selectors[1]: ") != out)
            T_FAIL("%s: %s", dead[i], out);
    }
}

static void test_upstream(void)
{
    char out[4096];
    T_INT_EQ(advise(DOC("\"a.test\"", "h"), out, sizeof(out)), 1);
    T_STR_EQ(out, "s.json: warning: egresses.e: the address 'h' is not host:port, every connection "
                  "will fail\n");
}

static void test_bound(void)
{
    char doc[8192] = "", list[4096] = "\"10.0.0.0/99\"", out[16384];
    for (int i = 1; i < 30; i++)
        snprintf(list + strlen(list), sizeof(list) - strlen(list), ",\"10.0.0.0/%d\"", 100 + i);
    snprintf(doc, sizeof(doc), DOC("%s", "h:1"), list);
    T_INT_EQ(advise(doc, out, sizeof(out)), 30);
    T_OK(strstr(out, "s.json: 10 more warnings are left out\n") != NULL);
}

int main(void)
{
    T_RUN(test_selectors);
    T_RUN(test_upstream);
    T_RUN(test_bound);
    return t_done();
}

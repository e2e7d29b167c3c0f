/* Compiling a snapshot with each of its allocations failing in turn: it is refused as a whole, with
 * a sentence, and nothing leaks. */
#include <stdlib.h>

#include "common/torture.h"
#include "policy/decide.h"
#include "tap.h"

static const char doc[] =
    "{\"schema_version\":1,\"version\":7,\"users\":{\"u1\":{\"password\":\"p1\",\"policy\":\"a\"},"
    "\"u2\":{\"password\":\"p2\",\"policy\":\"b\",\"frontends\":{\"tuic\":{\"uuid\":\"x\","
    "\"password\":\"y\"}}}},"
    "\"routing_policies\":{\"a\":{\"routes\":[{\"selectors\":[\"full:a.test\",\"keyword:track\","
    "\"b.test\",\"10.0.0.0/8\",\"2001:db8::/32\"],\"action\":{\"type\":\"egress\",\"egress\":"
    "\"px\"}}]},\"b\":{\"default_action\":{\"type\":\"block\"}}},"
    "\"egresses\":{\"px\":{\"type\":\"upstream\",\"backend\":{\"kind\":\"socks5\",\"addr\":"
    "\"px.test:1080\",\"username\":\"a\",\"password\":\"b\"}},\"ch\":{\"type\":\"chain\","
    "\"members\":[{\"id\":\"m\",\"priority\":1,\"backend\":{\"kind\":\"reverse\",\"addr\":\"h\"}}]"
    "}}}";

static void test_compile(void)
{
    uint64_t nth = 0;
    bool touched = true;
    while (touched && nth < 20000) {
        struct cv_snapshot_error e = {0};
        struct cv_snapshot *s = NULL;
        cv_torture_arm(++nth);
        int ret = cv_snapshot_compile(doc, sizeof(doc) - 1, "n", &e, &s);
        touched = cv_torture_count() >= nth;
        cv_torture_arm(0);
        if (ret != 0) {
            T_OK(touched);
            T_OK(s == NULL);
            T_OK(e.text[0] != '\0');
        } else {
            T_INT_EQ(cv_snapshot_version(s), 7);
            T_INT_EQ(cv_snapshot_n_selectors(s), 5);
            cv_snapshot_unref(s);
        }
    }
    T_OK(nth > 10 && nth < 20000);
    printf("# %ju calls\n", (uintmax_t)nth - 1);
}

int main(void)
{
    T_RUN(test_compile);
    return t_done();
}

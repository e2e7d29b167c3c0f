#include "flow/registry.h"

#include "tap.h"

struct seen {
    size_t n;
    char labels[8][96];
};

static void on_listener(void *arg, struct cv_listener_stats *s)
{
    struct seen *seen = arg;
    snprintf(seen->labels[seen->n++ % 8], sizeof(seen->labels[0]), "%s/%s", s->name, s->protocol);
}

static void on_egress(void *arg, const char *label, struct cv_egress_stats *s)
{
    struct seen *seen = arg;
    (void)s;
    snprintf(seen->labels[seen->n++ % 8], sizeof(seen->labels[0]), "%s", label);
}

static void test_found_or_made(void)
{
    struct cv_registry *r = cv_registry_new();
    struct cv_listener_stats *l = cv_registry_listener(r, "main", "mixed");
    T_OK(cv_registry_listener(r, "main", "mixed") == l);
    T_OK(cv_registry_listener(r, "main", "http") != l);
    T_OK(cv_registry_listener(r, "mai", "mixed") != l);
    struct cv_egress_stats *e = cv_registry_egress(r, "direct");
    T_OK(cv_registry_egress(r, "direct") == e);
    T_OK(cv_registry_egress(r, "direct2") != e);
    T_OK(cv_registry_egress(r, "direc") != e);

    /* Listed in the order in which they were made: deltas rely on it. */
    struct seen seen = {0};
    cv_registry_each_listener(r, on_listener, &seen);
    T_INT_EQ(seen.n, 3);
    T_STR_EQ(seen.labels[0], "main/mixed");
    T_STR_EQ(seen.labels[2], "mai/mixed");
    seen.n = 0;
    cv_registry_each_egress(r, on_egress, &seen);
    T_INT_EQ(seen.n, 3);
    T_STR_EQ(seen.labels[0], "direct");
    T_STR_EQ(seen.labels[2], "direc");
    cv_registry_free(r);
    cv_registry_free(NULL);
}

static void test_long_names(void)
{
    char name[300];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    struct cv_registry *r = cv_registry_new();
    struct cv_listener_stats *l = cv_registry_listener(r, name, name);
    T_INT_EQ(strlen(l->name), sizeof(l->name) - 1);
    T_INT_EQ(strlen(l->protocol), sizeof(l->protocol) - 1);
    cv_registry_free(r);
}

static void test_bounded(void)
{
    struct cv_registry *r = cv_registry_new();
    char label[32];
    for (int i = 0; i < 20000; i++) {
        snprintf(label, sizeof(label), "upstream:%d", i);
        cv_registry_egress(r, label);
    }
    struct cv_egress_stats *first = cv_registry_egress(r, "upstream:0");
    struct cv_egress_stats *last = cv_registry_egress(r, "upstream:19999");
    struct cv_egress_stats *over = cv_registry_egress(r, "upstream:20000");
    T_OK(first != last && last != over);
    T_OK(cv_registry_egress(r, "upstream:20001") == over);
    T_OK(cv_registry_egress(r, "upstream:19999") == last);
    struct seen seen = {0};
    cv_registry_each_egress(r, on_egress, &seen);
    T_INT_EQ(seen.n, 20001);
    T_STR_EQ(seen.labels[20000 % 8], "other");
    cv_registry_free(r);
}

int main(void)
{
    T_RUN(test_found_or_made);
    T_RUN(test_long_names);
    T_RUN(test_bounded);
    return t_done();
}

/* The index against a scan over all rules, on random rules and hosts. */
#include "policy/index.h"

#include "common/alloc.h"
#include "policy_util.h"

#define POLICIES 4
#define RULES    400

/* Few labels and few prefixes, so that much overlaps. */
static void random_selector(uint64_t *seed, char *out, size_t cap)
{
    static const char *const names[] = {"a", "b", "c", "aa", "a-b", "x1"};
    char name[64] = "";
    int labels = 1 + (int)(pu_random(seed) % 4);

    for (int i = 0; i < labels; i++)
        snprintf(name + strlen(name), sizeof(name) - strlen(name), "%s%s", i > 0 ? "." : "",
                 names[pu_random(seed) % CV_ARRAY_SIZE(names)]);
    switch (pu_random(seed) % 8) {
    case 0:
        snprintf(out, cap, "full:%s", name);
        break;
    case 1:
        snprintf(out, cap, "keyword:%.*s", 1 + (int)(pu_random(seed) % 5), name);
        break;
    case 2:
        snprintf(out, cap, "*.%s.", name);
        break;
    case 3:
        snprintf(out, cap, "10.%u.%u.0/%u", pu_random(seed) % 4, pu_random(seed) % 4,
                 pu_random(seed) % 33);
        break;
    case 4:
        snprintf(out, cap, "2001:db8:%x::%x/%u", pu_random(seed) % 4, pu_random(seed) % 4,
                 pu_random(seed) % 129);
        break;
    case 5:
        snprintf(out, cap, "10.%u.%u.%u", pu_random(seed) % 4, pu_random(seed) % 4,
                 pu_random(seed) % 4);
        break;
    case 6:
        snprintf(out, cap, "64:ff9b::a%02x:0/%u", pu_random(seed) % 4, 90 + pu_random(seed) % 39);
        break;
    default:
        snprintf(out, cap, "%s", name);
    }
}

static void random_host(uint64_t *seed, struct cv_host *host)
{
    char text[96], name[64] = "";
    int labels = 1 + (int)(pu_random(seed) % 5);
    unsigned a = pu_random(seed) % 4, b = pu_random(seed) % 4, c = pu_random(seed) % 4;

    for (int i = 0; i < labels; i++)
        snprintf(
            name + strlen(name), sizeof(name) - strlen(name), "%s%s", i > 0 ? "." : "",
            (const char *const[]){"a", "b", "c", "aa", "a-b", "x1", "zz"}[pu_random(seed) % 7]);
    switch (pu_random(seed) % 6) {
    case 0:
        snprintf(text, sizeof(text), "10.%u.%u.%u", a, b, c);
        break;
    case 1:
        snprintf(text, sizeof(text), "2001:db8:%x::%x", a, b);
        break;
    case 2:
        snprintf(text, sizeof(text), "64:ff9b::a%02x:%02x%02x", a, b, c);
        break;
    case 3:
        snprintf(text, sizeof(text), "2002:a%02x:%02x%02x::1", a, b, c);
        break;
    default:
        snprintf(text, sizeof(text), "%s", name);
    }
    *host = pu_host(text);
}

static void random_rules(uint64_t seed)
{
    struct cv_selector *sel = cv_alloc(RULES * sizeof(*sel));
    struct cv_index_rule rules[RULES];
    struct cv_vec text = {0};
    struct cv_index ix;

    for (int i = 0; i < RULES; i++) {
        char s[96];
        random_selector(&seed, s, sizeof(s));
        T_INT_EQ(cv_selector_parse(s, strlen(s), &sel[i]), 0);
        rules[i] = (struct cv_index_rule){.policy = pu_random(&seed) % POLICIES,
                                          .route = pu_random(&seed) % 100,
                                          .off = (uint32_t)text.n,
                                          .kind = (uint8_t)sel[i].kind};
        if (sel[i].kind == CV_SEL_PREFIX)
            T_INT_EQ(cv_index_add_prefix(&text, &sel[i].prefix), 0);
        else
            memcpy(cv_vec_add(&text, sel[i].len, 1), sel[i].text, sel[i].len);
        rules[i].len = (uint8_t)(text.n - rules[i].off);
    }
    /* Policy POLICIES has no rules at all. */
    T_INT_EQ(cv_index_build(&ix, POLICIES + 1, rules, RULES, &text), 0);
    T_OK(text.base == NULL);
    for (int i = 0; i < 500; i++) {
        struct cv_host host;
        struct cv_index_hit hit;
        uint32_t policy = pu_random(&seed) % (POLICIES + 1), want = UINT32_MAX;
        random_host(&seed, &host);
        cv_index_find(&ix, policy, &host, &hit);
        for (int j = 0; j < RULES; j++) {
            if (rules[j].policy == policy && cv_selector_matches(&sel[j], &host))
                want = CV_MIN(want, rules[j].route);
        }
        if (!T_INT_EQ(hit.route, want))
            printf("#   policy %u, host %s\n", policy, host.name);
    }
    T_OK(cv_index_bytes(&ix) > 0);
    cv_index_done(&ix);
    cv_free(sel);
}

static void agrees_with_scan(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        random_rules(seed * 0x9e3779b97f4a7c15);
}

static void without_rules(void)
{
    struct cv_vec text = {0};
    struct cv_index ix;
    struct cv_index_hit hit;
    struct cv_host name = pu_host("example.com"), ip = pu_host("10.0.0.1"), ip6 = pu_host("::1");

    T_INT_EQ(cv_index_build(&ix, 1, NULL, 0, &text), 0);
    cv_index_find(&ix, 0, &name, &hit);
    T_INT_EQ(hit.route, UINT32_MAX);
    cv_index_find(&ix, 0, &ip, &hit);
    T_INT_EQ(hit.route, UINT32_MAX);
    cv_index_find(&ix, 0, &ip6, &hit);
    T_INT_EQ(hit.route, UINT32_MAX);
    cv_index_done(&ix);
}

/* As long as names get: 127 labels, and one of 253 bytes. */
static void longest_names(void)
{
    char name[CV_NAME_MAX + 1];
    struct cv_vec text = {0};
    struct cv_index_rule rules[2];
    struct cv_index ix;
    struct cv_index_hit hit;

    for (int i = 0; i < CV_NAME_MAX; i++)
        name[i] = i % 2 == 0 ? 'a' : '.';
    name[CV_NAME_MAX] = '\0';
    memcpy(cv_vec_add(&text, CV_NAME_MAX, 1), name, CV_NAME_MAX);
    rules[0] = (struct cv_index_rule){.kind = CV_SEL_FULL, .len = CV_NAME_MAX, .route = 3};
    rules[1] = (struct cv_index_rule){.kind = CV_SEL_SUFFIX, .len = 1, .route = 5};
    T_INT_EQ(cv_index_build(&ix, 1, rules, 2, &text), 0);
    struct cv_host host = pu_host(name);
    cv_index_find(&ix, 0, &host, &hit);
    T_INT_EQ(hit.route, 3);
    host = pu_host(name + 2);
    cv_index_find(&ix, 0, &host, &hit);
    T_INT_EQ(hit.route, 5);
    cv_index_done(&ix);
}

int main(void)
{
    T_RUN(agrees_with_scan);
    T_RUN(without_rules);
    T_RUN(longest_names);
    return t_done();
}

/* decide(): order, sniffed names, dodges, special addresses, explain. */
#include "common/buf.h"
#include "policy_util.h"

#define HEAD                                                                                       \
    "{'schema_version':1,'version':1,'users':{'u':{'password':'p','policy':'p'}},"                 \
    "'egresses':{'e':{'type':'upstream','backend':{'kind':'http','addr':'e:1'}},"                  \
    "'f':{'type':'upstream','backend':{'kind':'http','addr':'f:1'}}},'routing_policies':{'p':{"
#define R(sel, act) "{'selectors':[" sel "],'action':" act "}"
#define BLOCK       "{'type':'block'}"
#define DIRECT      "{'type':'direct'}"
#define VIA(e)      "{'type':'egress','egress':'" e "'}"

static void first_route_wins(void)
{
    static const struct {
        const char *host;
        int route;
    } rows[] = {
        {"a.example.com", 0}, /* a suffix in route 0 before full in 1 */
        {"b.example.com", 2}, /* keyword before suffix */
        {"xxb.example.com", 2},  {"c.example.com", 3}, {"example.com", 3},
        {"full.example.com", 3}, /* the same name by suffix comes first */
        {"10.1.2.3", 5},         {"10.1.9.9", 6},      {"10.9.9.9", 7},
        {"11.0.0.1", -1},        {"other.net", -1},
    };
    struct cv_snapshot *s = pu_compile(
        HEAD "'routes':[" R("'a.example.com'", BLOCK) "," R("'full:a.example.com'", DIRECT) "," R(
            "'keyword:b.ex'",
            DIRECT) "," R("'example.com'",
                          DIRECT) "," R("'full:full.example.com'",
                                        BLOCK) "," R("'10.1.2.0/24'",
                                                     DIRECT) "," R("'10.1.0.0/16', '10.1.2.3'",
                                                                   BLOCK) "," R("'10.0.0.0/8'",
                                                                                DIRECT) "]}}}",
        "n");

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_verdict v = pu_decide(s, "u", rows[i].host, NULL);
        if (!T_INT_EQ(v.route, rows[i].route))
            printf("#   for %s\n", rows[i].host);
    }
    cv_snapshot_unref(s);
}

static void sniffed_names(void)
{
    static const struct {
        const char *host, *sniffed, *label;
        int route;
        bool by_sniffed;
    } rows[] = {
        {"via.test", NULL, "upstream:e:1", 1, false},
        {"via.test", "bad.test", "block", 0, true},  /* a sniffed block vetoes */
        {"bad.test", "via.test", "block", 0, false}, /* a requested block comes first */
        {"bad.test", "bad.test", "block", 0, false},
        {"via.test", "direct.test", "upstream:e:1", 1, false}, /* a name is not re-routed */
        {"none.test", "direct.test", "upstream:f:1", -1, false},
        {"none.test", "none2.test", "upstream:f:1", -1, false},
        {"192.0.2.1", "direct.test", "direct", 2, true}, /* an address is */
        {"192.0.2.1", "none.test", "upstream:e:1", 1, false},
        {"192.0.2.9", "via.test", "upstream:e:1", 1, true},
        {"192.0.2.9", "none.test", "upstream:f:1", -1, false},
        {"192.0.2.66", "via.test", "block", 0, false},
        {"192.0.2.1", "bad.test", "block", 0, true},
        {"192.0.2.9", "192.0.2.66", "block", 0, true},
    };
    struct cv_snapshot *s = pu_compile(
        HEAD "'routes':[" R("'bad.test','192.0.2.66'", BLOCK) "," R(
            "'via.test','192.0.2.1'", VIA("e")) "," R("'direct.test'",
                                                      DIRECT) "],'default_action':" VIA("f") "}}}",
        "n");

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_verdict v = pu_decide(s, "u", rows[i].host, rows[i].sniffed);
        bool ok = T_STR_EQ(cv_verdict_label(s, &v)->s, rows[i].label);
        ok &= T_INT_EQ(v.route, rows[i].route);
        ok &= T_INT_EQ(v.by_sniffed, rows[i].by_sniffed);
        ok &= T_INT_EQ(v.policy, 0);
        if (!ok)
            printf("#   %s, sniffed %s\n", rows[i].host, rows[i].sniffed);
    }
    cv_snapshot_unref(s);
}

/* A default block is no match, so a sniffed name that is allowed rescues an address. */
static void sniffed_name_rescues(void)
{
    struct cv_snapshot *s =
        pu_compile(HEAD "'routes':[" R("'ok.test'", DIRECT) "],'default_action':" BLOCK "}}}", "n");
    struct cv_verdict v = pu_decide(s, "u", "192.0.2.1", "ok.test");

    T_INT_EQ(v.action, CV_ACTION_DIRECT);
    T_OK(v.by_sniffed);
    v = pu_decide(s, "u", "192.0.2.1", "other.test");
    T_INT_EQ(v.action, CV_ACTION_BLOCK);
    T_INT_EQ(v.route, -1);
    cv_snapshot_unref(s);
}

static void unknown_user(void)
{
    struct cv_snapshot *s = pu_compile(HEAD "}}}", "n");
    struct cv_verdict v = pu_decide(s, "U", "example.com", NULL);

    T_INT_EQ(v.action, CV_ACTION_BLOCK);
    T_INT_EQ(v.policy, UINT32_MAX);
    T_INT_EQ(v.route, -1);
    v = pu_decide(s, "u", "example.com", NULL);
    T_INT_EQ(v.action, CV_ACTION_DIRECT); /* no default action */
    cv_snapshot_unref(s);

    s = cv_snapshot_new_empty();
    v = pu_decide(s, "u", "example.com", NULL);
    T_INT_EQ(v.action, CV_ACTION_BLOCK);
    T_STR_EQ(cv_verdict_label(s, &v)->s, "block");
    cv_snapshot_unref(s);
}

/* No way of writing a host dodges a rule. */
static void dodges(void)
{
    static const char *const blocked[] = {
        "google.com",
        "google.coM",
        "GOOGLE.COM.",
        "www.Google.com.",
        "capitals.test",
        "CAPITALS.TEST",
        "b\xc3\xbc"
        "cher.example",
        "XN--BCHER-KVA.example",
        "B\xc3\x9c"
        "CHER.example.",
        "127.0.0.1",
        "0x7f.1",
        "127.1",
        "017700000001",
        "2130706433",
        "[::ffff:127.0.0.1]",
        "::ffff:7f00:1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1:7f00:0:100::",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1:7f00:0:100:808:808",
        "64:ff9b:1:808:8:800:7f00:1",
        "2002:7f00:1::",
        "2002:a01:203::1",
        "2001:0:53aa:64c:0:0:80ff:fffe", /* Teredo: the client 127.0.0.1, inverted */
        "fe80::5efe:10.1.2.3",           /* ISATAP */
        "10.1.2.3",
        "::ffff:10.1.2.3",
        "169.254.169.254",
        "::ffff:a9fe:a9fe",
        "100.64.0.1",
    };
    struct cv_snapshot *s = pu_compile(
        HEAD
        "'routes':[" R("'google.com','CAPITALS.Test.','b\xc3\xbc"
                       "cher.example'",
                       BLOCK) "," R("'127.0.0.0/8','10.0.0.0/8','169.254.0.0/16','100.64.0.0/10'",
                                    BLOCK) "]}}}",
        "n");

    for (size_t i = 0; i < CV_ARRAY_SIZE(blocked); i++) {
        struct cv_verdict v = pu_decide(s, "u", blocked[i], NULL);
        if (!T_INT_EQ(v.action, CV_ACTION_BLOCK))
            printf("#   %s\n", blocked[i]);
    }
    struct cv_verdict v = pu_decide(s, "u", "2001:db8::1", NULL);
    T_INT_EQ(v.action, CV_ACTION_DIRECT);
    v = pu_decide(s, "u", "google.com.example.net", NULL);
    T_INT_EQ(v.action, CV_ACTION_DIRECT);
    cv_snapshot_unref(s);
}

static void special_addresses(void)
{
    static const struct {
        const char *host, *special; /* NULL: not named */
        int route;
    } rows[] = {
        {"10.0.0.5", "10.0.0.5/32", 0},
        {"10.0.0.6", NULL, 4}, /* a rule for everything names nothing */
        {"192.168.1.9", "192.168.1.0/24", 1},
        {"192.168.2.9", "192.168.0.0/16", 1},
        {"::ffff:192.168.1.9", "192.168.1.0/24", 1},
        {"64:ff9b::c0a8:109", "192.168.1.0/24", 1}, /* by the address within */
        {"127.9.9.9", "127.0.0.0/8", 2},
        {"fd00::1", "fd00::/8", 3},
        {"8.8.8.8", NULL, 4},
        {"172.16.0.1", NULL, 4},
        {"intranet.test", NULL, 2}, /* a name names no address */
        {"2001:db8::9", NULL, -1},
    };
    struct cv_snapshot *s = pu_compile(
        HEAD "'routes':[" R("'10.0.0.5'", DIRECT) "," R(
            "'192.168.0.0/16','192.168.1.0/24','64:ff9b::/96'",
            DIRECT) "," R("'intranet.test','127.0.0.0/8'",
                          DIRECT) "," R("'fd00::/8'", DIRECT) "," R("'0.0.0.0/0','172.0.0.0/6'",
                                                                    DIRECT) "]}}}",
        "n");

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_verdict v = pu_decide(s, "u", rows[i].host, NULL);
        char text[CV_PREFIX_STRLEN];
        bool ok = T_INT_EQ(v.route, rows[i].route);
        ok &= T_INT_EQ(v.names_special, rows[i].special != NULL);
        if (v.names_special && rows[i].special != NULL)
            ok &= T_STR_EQ(cv_prefix_format(&v.special, text), rows[i].special);
        if (!ok)
            printf("#   %s\n", rows[i].host);
    }
    /* When a sniffed name decides, the matched selector is a name. */
    struct cv_verdict v = pu_decide(s, "u", "10.0.0.5", "intranet.test");
    T_OK(v.by_sniffed && !v.names_special);
    cv_snapshot_unref(s);
}

static void explains(void)
{
    struct cv_snapshot *s =
        pu_compile(HEAD "'routes':[" R("'','full:x.test',' *.Example.COM ','10.0.0.0/8'",
                                       BLOCK) "," R("'keyword:am'", DIRECT) "]}}}",
                   "n");
    static const struct {
        const char *host;
        int route;
        enum cv_selector_kind kind;
        unsigned index;
        const char *text;
    } rows[] = {
        {"a.example.com", 0, CV_SEL_SUFFIX, 2, " *.Example.COM "},
        {"x.test", 0, CV_SEL_FULL, 1, "full:x.test"},
        {"2002:a00:1::", 0, CV_SEL_PREFIX, 3, "10.0.0.0/8"},
        {"amazon.test", 1, CV_SEL_KEYWORD, 0, "keyword:am"},
        {"none.test", -1, CV_SEL_NONE, 0, ""},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_host host = pu_host(rows[i].host);
        struct cv_selector_match m;
        T_INT_EQ(cv_decide_explain(s, 0, &host, &m), rows[i].route);
        T_INT_EQ(m.kind, rows[i].kind);
        T_INT_EQ(m.index, rows[i].index);
        T_STR_EQ(m.text, rows[i].text);
    }
    struct cv_host host = pu_host("x.test");
    struct cv_selector_match m;
    T_INT_EQ(cv_decide_explain(s, 9, &host, &m), -1);
    cv_snapshot_unref(s);
}

static void random_document(uint64_t seed)
{
    static const char *const labels[] = {"a", "b", "c", "aa", "a-b"};
    static const char *const kinds[] = {"", "full:", "keyword:", "domain:", "*."};
    struct cv_buf b;
    char text[64];

    cv_buf_init(&b, 1 << 20);
    T_INT_EQ(cv_buf_append_str(&b, HEAD "'routes':["), 0);
    for (int r = 0; r < 40; r++) {
        T_INT_EQ(cv_buf_printf(&b, "%s{'selectors':['z'", r > 0 ? "," : ""), 0);
        for (int i = 0; i < 3; i++) {
            if (pu_random(&seed) % 3 == 0)
                snprintf(text, sizeof(text), "10.%u.%u.0/%u", pu_random(&seed) % 3,
                         pu_random(&seed) % 3, 14 + pu_random(&seed) % 18);
            else
                snprintf(text, sizeof(text), "%s%s.%s", kinds[pu_random(&seed) % 5],
                         labels[pu_random(&seed) % 5], labels[pu_random(&seed) % 5]);
            T_INT_EQ(cv_buf_printf(&b, ",'%s'", text), 0);
        }
        T_INT_EQ(cv_buf_append_str(&b, pu_random(&seed) % 4 == 0 ? "],'action':" BLOCK "}"
                                                                 : "],'action':" DIRECT "}"),
                 0);
    }
    T_INT_EQ(cv_buf_append(&b, "]}}}", 5), 0);
    struct cv_snapshot *s = pu_compile((const char *)cv_buf_data(&b), "n");
    cv_buf_done(&b);
    for (int i = 0; i < 300; i++) {
        struct cv_selector_match m;
        struct cv_verdict v;
        if (pu_random(&seed) % 3 == 0)
            snprintf(text, sizeof(text), pu_random(&seed) % 2 ? "10.%u.%u.9" : "::10.%u.%u.9",
                     pu_random(&seed) % 3, pu_random(&seed) % 3);
        else
            snprintf(text, sizeof(text), "%s.%s.%s", labels[pu_random(&seed) % 5],
                     labels[pu_random(&seed) % 5], labels[pu_random(&seed) % 5]);
        struct cv_host host = pu_host(text);
        cv_decide(s, 0, &host, NULL, &v);
        if (!T_INT_EQ(v.route, cv_decide_explain(s, 0, &host, &m)))
            printf("#   %s\n", text);
    }
    cv_snapshot_unref(s);
}

static void explain_agrees_with_decide(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        random_document(seed * 0x9e3779b97f4a7c15);
}

static void labels_outlive_sessions(void)
{
    struct cv_snapshot *s = pu_compile(HEAD "'default_action':" VIA("e") "}}}", "n");
    struct cv_verdict v = pu_decide(s, "u", "x.test", NULL);
    struct cv_rcstr *label = cv_rcstr_ref(cv_verdict_label(s, &v));

    cv_snapshot_unref(s);
    T_STR_EQ(label->s, "upstream:e:1");
    cv_rcstr_unref(label);
    s = cv_snapshot_new_empty();
    v.action = CV_ACTION_DIRECT;
    label = cv_rcstr_ref(cv_verdict_label(s, &v));
    cv_snapshot_unref(s);
    T_STR_EQ(label->s, "direct");
    cv_rcstr_unref(label);
}

int main(void)
{
    T_RUN(first_route_wins);
    T_RUN(sniffed_names);
    T_RUN(sniffed_name_rescues);
    T_RUN(unknown_user);
    T_RUN(dodges);
    T_RUN(special_addresses);
    T_RUN(explains);
    T_RUN(explain_agrees_with_decide);
    T_RUN(labels_outlive_sessions);
    return t_done();
}

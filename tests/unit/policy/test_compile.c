/* Compiling: limits, references, overrides, and what the tables say afterwards. */
#include <stdarg.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "policy_util.h"

#define HEAD "{'schema_version':1,'version':7,"
#define UP   "{'type':'upstream','backend':"
#define EGR  HEAD "'egresses':{'e':" UP
#define CH   HEAD "'egresses':{'c':{'type':'chain','members':["
#define B    "'backend':{'kind':'http','addr':'a:1'}"
#define POL  "'routing_policies':{'p':{}}"
#define USR  HEAD POL ",'users':{'u':{'password':'SECRET',"
#define RT   HEAD "'routing_policies':{'p':{'routes':[{"
#define BLK  "'action':{'type':'block'}"

/* The document of the schema reference, with every construct that this node takes. */
static const char complete[] =
    "{ 'schema_version': 1, 'version': 7,"
    "  'users': {"
    "    'u1': { 'password': 'p1', 'expire': '2030-01-31', 'up_rate': 0, 'down_rate': 500000,"
    "            'max_connections': 3, 'policy': 'pol',"
    "            'frontends': { 'tuic': { 'uuid': ' 0A0B0C0D-0000-4000-8000-000000000001',"
    "                                     'password': 't1' } } },"
    "    'u2': { 'password': 'p2', 'policy': 'strict' } },"
    "  'routing_policies': {"
    "    'pol': { 'routes': ["
    "        { 'selectors': ['full:ads.test', 'keyword:track'], 'action': { 'type': 'block' } },"
    "        { 'selectors': ['corp.test', '192.0.2.0/24', '2001:db8::1'],"
    "          'action': { 'type': 'egress', 'egress': ' fo ' } } ],"
    "      'default_action': { 'type': 'egress', 'egress': 'px' } },"
    "    'strict': { 'routes': [ { 'selectors': ['ok.test'], 'action': { 'type': 'direct' } } ],"
    "      'default_action': { 'type': 'block' } } },"
    "  'egresses': {"
    "    'px': { 'type': 'upstream', 'backend': { 'kind': 'socks5', 'addr': 'px.test:1080',"
    "            'tls': true, 'username': 'a', 'password': 'b', 'skip_cert_verify': false } },"
    "    'fo': { 'type': 'chain', 'members': ["
    "            { 'id': 'm2', 'priority': 20,"
    "              'backend': { 'kind': 'https', 'addr': 'h.test:8443', 'tls': true } },"
    "            { 'id': ' m1 ', 'priority': 10,"
    "              'backend': { 'kind': 'Reverse', 'addr': ' rove-hop-x ' } } ] } },"
    "  'node_overrides': { 'edge-a': { 'egresses': {"
    "    'px': { 'type': 'upstream', 'backend': { 'kind': 'http', 'addr': '127.0.0.1:3128' } } } } "
    "} }";

static void complete_document(void)
{
    struct cv_snapshot *s = pu_compile(complete, "edge-b");

    T_INT_EQ(cv_snapshot_version(s), 7);
    T_INT_EQ(cv_snapshot_n_users(s), 2);
    T_INT_EQ(cv_snapshot_n_policies(s), 2);
    T_INT_EQ(cv_snapshot_n_egresses(s), 2);
    T_INT_EQ(cv_snapshot_n_selectors(s), 6);
    T_REQUIRE(cv_snapshot_n_users(s) == 2);

    const struct cv_user_def *u = cv_snapshot_user(s, cv_snapshot_user_find(s, "u1", 2));
    T_STR_EQ(u->name->s, "u1");
    T_STR_EQ(u->password->s, "p1");
    T_INT_EQ(u->expire_day, 21945); /* 2030-01-31 */
    T_INT_EQ(u->up_rate, 0);
    T_INT_EQ(u->down_rate, 500000);
    T_INT_EQ(u->max_connections, 3);
    T_STR_EQ(cv_snapshot_policy_id(s, u->policy)->s, "pol");
    u = cv_snapshot_user(s, cv_snapshot_user_find(s, "u2", 2));
    T_INT_EQ(u->expire_day, INT32_MAX);
    T_STR_EQ(cv_snapshot_policy_id(s, u->policy)->s, "strict");

    T_REQUIRE(cv_snapshot_n_frontends(s) == 1);
    const struct cv_frontend_def *f = cv_snapshot_frontend(s, 0);
    T_STR_EQ(f->proto->s, "tuic");
    T_STR_EQ(f->uuid->s, "0a0b0c0d-0000-4000-8000-000000000001");
    T_STR_EQ(f->password->s, "t1");
    T_INT_EQ(f->user, 0);

    const struct cv_egress_def *e = cv_snapshot_egress(s, 0);
    T_STR_EQ(e->id->s, "px");
    T_STR_EQ(e->label->s, "upstream:px.test:1080");
    T_OK(!e->is_chain);
    T_INT_EQ(e->n_members, 1);
    T_OK(e->members[0].id == NULL);
    T_INT_EQ(e->members[0].backend.kind, CV_BACKEND_SOCKS5);
    T_OK(e->members[0].backend.tls && !e->members[0].backend.skip_cert_verify);
    T_STR_EQ(e->members[0].backend.username->s, "a");
    T_STR_EQ(e->members[0].backend.password->s, "b");

    e = cv_snapshot_egress(s, 1);
    T_STR_EQ(e->label->s, "chain:fo");
    T_OK(e->is_chain);
    T_REQUIRE(e->n_members == 2);
    T_STR_EQ(e->members[0].id->s, "m1"); /* sorted by priority */
    T_INT_EQ(e->members[0].priority, 10);
    T_INT_EQ(e->members[0].backend.kind, CV_BACKEND_REVERSE);
    T_STR_EQ(e->members[0].backend.addr->s, "rove-hop-x");
    T_STR_EQ(e->members[0].backend.label->s, "reverse:rove-hop-x");
    T_STR_EQ(e->members[1].id->s, "m2");
    T_INT_EQ(e->members[1].backend.kind, CV_BACKEND_HTTP);
    T_STR_EQ(e->members[1].backend.label->s, "upstream:h.test:8443");
    T_OK(e->members[1].backend.tls);
    T_OK(e->members[1].backend.username == NULL && e->members[1].backend.password == NULL);
    cv_snapshot_unref(s);
}

static void complete_document_decides(void)
{
    static const struct {
        const char *user, *host, *label;
        int route;
    } rows[] = {
        {"u1", "ads.test", "block", 0},
        {"u1", "sub.ads.test", "upstream:px.test:1080", -1},
        {"u1", "mytracker.corp.test", "block", 0},
        {"u1", "CORP.test.", "chain:fo", 1},
        {"u1", "a.b.corp.test", "chain:fo", 1},
        {"u1", "notcorp.test", "upstream:px.test:1080", -1},
        {"u1", "192.0.2.255", "chain:fo", 1},
        {"u1", "192.0.3.0", "upstream:px.test:1080", -1},
        {"u1", "[2001:db8:0::1]", "chain:fo", 1},
        {"u1", "2001:db8::2", "upstream:px.test:1080", -1},
        {"u2", "ok.test", "direct", 0},
        {"u2", "x.ok.test", "direct", 0},
        {"u2", "corp.test", "block", -1},
        {"nobody", "ok.test", "block", -1},
    };
    struct cv_snapshot *s = pu_compile(complete, "edge-b");

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_verdict v = pu_decide(s, rows[i].user, rows[i].host, NULL);
        if (!T_STR_EQ(cv_verdict_label(s, &v)->s, rows[i].label) ||
            !T_INT_EQ(v.route, rows[i].route))
            printf("#   for %s to %s\n", rows[i].user, rows[i].host);
    }
    cv_snapshot_unref(s);
}

static void override_replaces_whole(void)
{
    struct cv_snapshot *s = pu_compile(complete, "edge-a");
    const struct cv_egress_def *e = cv_snapshot_egress(s, 0);

    T_STR_EQ(e->id->s, "px");
    T_STR_EQ(e->label->s, "upstream:127.0.0.1:3128");
    T_INT_EQ(e->members[0].backend.kind, CV_BACKEND_HTTP);
    T_OK(!e->members[0].backend.tls); /* not merged: the base had it on */
    T_OK(e->members[0].backend.username == NULL);
    T_STR_EQ(cv_snapshot_egress(s, 1)->label->s, "chain:fo");
    cv_snapshot_unref(s);
}

static const struct pu_refusal refusals[] = {
    /* References. */
    {HEAD "'users':{'u':{'password':'SECRET','policy':'gone'}}}", NULL, CV_E_INVALID,
     "users.u.policy", "user u: unknown policy \"gone\""},
    {USR "'policy':' p'}}}", NULL, CV_E_INVALID, "users.u.policy", "user u: unknown policy \" p\""},
    {USR "'policy':'  '}}}", NULL, CV_E_INVALID, "users.u.policy", "user u: policy is required"},
    {HEAD "'routing_policies':{'p':{'default_action':{'type':'egress','egress':'gone'}}}}", NULL,
     CV_E_INVALID, "routing_policies.p.default_action.egress",
     "policy p default: references unknown egress \"gone\""},
    {HEAD "'routing_policies':{'p':{'default_action':{'type':'egress','egress':' '}}}}", NULL,
     CV_E_INVALID, "routing_policies.p.default_action.egress",
     "policy p default: egress action requires an egress id"},
    {RT "'selectors':['a'],'action':{'type':'egress','egress':''}}]}}}", NULL, CV_E_INVALID,
     "routing_policies.p.routes[0].action.egress",
     "policy p route 0: egress action requires an egress id"},
    {RT "'selectors':['a']," BLK "},{'selectors':['b'],"
        "'action':{'type':'egress','egress':'x'}}]}}}",
     NULL, CV_E_INVALID, "routing_policies.p.routes[1].action.egress",
     "policy p route 1: references unknown egress \"x\""},
    {HEAD "'routing_policies':{' ':{}}}", NULL, CV_E_INVALID, "routing_policies[\" \"]",
     "routing policy id is required"},
    /* Selectors. */
    {RT BLK "}]}}}", NULL, CV_E_INVALID, "routing_policies.p.routes[0].selectors",
     "policy p route 0: at least one selector is required"},
    {RT "'selectors':['',' \\t']," BLK "}]}}}", NULL, CV_E_INVALID,
     "routing_policies.p.routes[0].selectors",
     "policy p route 0: at least one selector is required"},
    {RT "'selectors':['a',' book:cloud/x ']," BLK "}]}}}", NULL, CV_E_INVALID,
     "routing_policies.p.routes[0].selectors[1]",
     "policy p route 0: selectors: \"book:cloud/x\" needs an address book, and this node has none"},
    {RT "'selectors':['book: /']," BLK "}]}}}", NULL, CV_E_INVALID,
     "routing_policies.p.routes[0].selectors[0]", "policy p route 0: selectors: empty book: rule"},
    /* Backends. */
    {EGR "{'kind':'ftp','addr':'a:1'}}}}", NULL, CV_E_INVALID, "egresses.e.backend.kind",
     "egress e: unsupported upstream kind \"ftp\" (http, https, socks5, socks, reverse, subnetra "
     "or tunnel)"},
    {EGR "{'kind':'Chain','addr':'a:1'}}}}", NULL, CV_E_INVALID, "egresses.e.backend.kind",
     "egress e: upstream backend must not be a chain (use \"type\":\"chain\")"},
    {EGR "{'kind':'reverse','addr':' '}}}}", NULL, CV_E_INVALID, "egresses.e.backend.addr",
     "egress e: reverse upstream requires a non-empty hop_id in addr"},
    {EGR "{'kind':'reverse','addr':'h','username':''}}}}", NULL, CV_E_INVALID,
     "egresses.e.backend.username",
     "egress e: reverse upstream must not set username/password (auth is the hop session token)"},
    {EGR "{'kind':'reverse','addr':'h','skip_cert_verify':true}}}}", NULL, CV_E_INVALID,
     "egresses.e.backend.skip_cert_verify",
     "egress e: reverse upstream must not set tls/skip_cert_verify (QUIC transport already "
     "encrypts)"},
    {EGR "{'kind':'subnetra','addr':'','password':'SECRET'}}}}", NULL, CV_E_INVALID,
     "egresses.e.backend.password",
     "egress e: subnetra upstream must not set username/password (the overlay has its own keys)"},
    {EGR "{'kind':'subnetra','addr':'','tls':true}}}}", NULL, CV_E_INVALID,
     "egresses.e.backend.tls",
     "egress e: subnetra upstream must not set tls/skip_cert_verify (the overlay already "
     "encrypts)"},
    {EGR "{'kind':'tunnel','addr':''}}}}", NULL, CV_E_INVALID, "egresses.e.backend.addr",
     "egress e: tunnel upstream requires the name of a pool or tunnel in addr"},
    {EGR "{'kind':'tunnel','addr':'jp','username':'x'}}}}", NULL, CV_E_INVALID,
     "egresses.e.backend.username",
     "egress e: tunnel upstream must not set username/password (the node's own configuration has "
     "them)"},
    {EGR "{'kind':'tunnel','addr':'jp','tls':true}}}}", NULL, CV_E_INVALID,
     "egresses.e.backend.tls",
     "egress e: tunnel upstream must not set tls/skip_cert_verify (the tunnel already encrypts)"},
    {HEAD "'egresses':{'':" UP "{'kind':'http','addr':'a:1'}}}}", NULL, CV_E_INVALID,
     "egresses[\"\"]", "egress id is required"},
    /* Chains. */
    {CH "]}}}", NULL, CV_E_INVALID, "egresses.c.members", "chain c: must have at least one member"},
    {CH "{'id':' ','priority':1," B "}]}}}", NULL, CV_E_INVALID, "egresses.c.members[0].id",
     "chain c: member id is required"},
    {CH "{'id':'m','priority':1," B "},{'id':' m ','priority':2," B "}]}}}", NULL, CV_E_INVALID,
     "egresses.c.members[1].id", "chain c: duplicate member id \"m\""},
    {CH "{'id':'m','priority':9," B "},{'id':'n','priority':9," B "}]}}}", NULL, CV_E_INVALID,
     "egresses.c.members[1].priority", "chain c: duplicate member priority 9"},
    {CH "{'id':'m','priority':9,'backend':{'kind':'chain','addr':'c'}}]}}}", NULL, CV_E_INVALID,
     "egresses.c.members[0].backend.kind", "chain c: member m backend must not be another chain"},
    {CH "{'id':' m','priority':9,'backend':{'kind':'x','addr':'c'}}]}}}", NULL, CV_E_INVALID,
     "egresses.c.members[0].backend.kind",
     "chain c member m: unsupported upstream kind \"x\" (http, https, socks5, socks, reverse, "
     "subnetra or tunnel)"},
    /* Overrides. */
    {HEAD "'node_overrides':{'n1':{'egresses':{'new':" UP "{'kind':'http','addr':'a:1'}}}}}}", NULL,
     CV_E_INVALID, "node_overrides.n1.egresses.new",
     "node override egress \"new\" does not replace an existing base egress"},
    {HEAD "'node_overrides':{'n1':{'egresses':{' ':" UP "{'kind':'http','addr':'a:1'}}}}}}", NULL,
     CV_E_INVALID, "node_overrides.n1.egresses[\" \"]", "node override egress id is required"},
    {EGR "{'kind':'http','addr':'a:1'}}},'node_overrides':{'n1':{'egresses':{'e':"
         "{'type':'chain','members':[]}}}}}",
     NULL, CV_E_INVALID, "node_overrides.n1.egresses.e.members",
     "chain e: must have at least one member"},
    {EGR "{'kind':'http','addr':'a:1'}}},'node_overrides':{'n1':{'egresses':{'e':" UP
         "{'kind':'x','addr':''}}}}}}",
     NULL, CV_E_INVALID, "node_overrides.n1.egresses.e.backend.kind",
     "egress e: unsupported upstream kind \"x\" (http, https, socks5, socks, reverse, subnetra or "
     "tunnel)"},
    /* Users. */
    {USR "'policy':'p','expire':'2030-02-30'}}}", NULL, CV_E_INVALID, "users.u.expire",
     "user u: bad expire \"2030-02-30\": must be a date of the calendar, YYYY-MM-DD"},
    {USR "'policy':'p','expire':'soon\\u0007'}}}", NULL, CV_E_INVALID, "users.u.expire",
     "user u: bad expire \"soon?\": must be a date of the calendar, YYYY-MM-DD"},
    {HEAD POL ",'users':{'u':{'policy':'p','password':'sha256:00:SECRET'}}}", NULL, CV_E_INVALID,
     "users.u.password",
     "user u: begins like a hashed password but is not one that this node takes: "
     "sha256:<salt hex>:<hash hex> or $argon2id$v=19$m=,t=,p=$salt$hash"},
    {HEAD POL
     ",'users':{"
     "'a':{'policy':'p','password':'','frontends':{'x':{'uuid':'AB'},'tuic':{'uuid':'ab'}}},"
     "'b':{'policy':'p','password':'','frontends':{'tuic':{'uuid':' aB '}}}}}",
     NULL, CV_E_INVALID, "users.b.frontends.tuic.uuid",
     "frontend tuic uuid ab claimed by both a and b"},
};

static void refuses_with_path(void)
{
    pu_refuse(refusals, CV_ARRAY_SIZE(refusals), CV_SNAPSHOT_COMPILE);
}

/* What looks wrong and is not. */
static void accepts(void)
{
    static const char *const docs[] = {
        HEAD "'users':{}}",
        /* An address that cannot work fails when it is dialled, as in Rove. */
        EGR "{'kind':'http','addr':'no port'}}}}",
        EGR "{'kind':'SOCKS','addr':'','username':'x'}}}}",
        EGR "{'kind':'subnetra','addr':'whatever','tls':false}}}}",
        EGR "{'kind':'Tunnel','addr':' jp '}}}}",
        /* The override of another node does nothing, even a wrong one. */
        HEAD "'node_overrides':{'n2':{'egresses':{'new':" UP "{'kind':'x','addr':''}}}}}}",
        HEAD "'node_overrides':{'n1':{}}}",
        HEAD "'routing_policies':{'p':{'routes':[],'default_action':null}}}",
        RT "'selectors':['', 'full:', '*.', 'keyword:.', 'x y']," BLK "}]}}}",
        USR "'policy':'p','expire':' '}}}",
        USR
        "'policy':'p','expire':null,'frontends':{'tuic':{},'x':{'uuid':' ','password':null}}}}}",
        HEAD POL ",'users':{'':{'policy':'p','password':''}}}",
        /* The same uuid in two protocols. */
        HEAD POL ",'users':{'a':{'policy':'p','password':'','frontends':{'x':{'uuid':'1'}}},"
                 "'b':{'policy':'p','password':'','frontends':{'y':{'uuid':'1'}}}}}",
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(docs); i++) {
        struct cv_snapshot *s = pu_compile(docs[i], "n1");
        T_INT_EQ(cv_snapshot_version(s), 7);
        cv_snapshot_unref(s);
    }
}

static void add(struct cv_buf *b, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (cv_buf_append(b, text, (size_t)n) != 0)
        abort();
}

/* 'head', then 'n' times 'item' (with its number) separated by commas, then 'tail'. */
static int compile_many(const char *head, const char *item, int n, const char *tail,
                        struct cv_snapshot_error *err, struct cv_snapshot **s)
{
    struct cv_buf b;
    char *h = pu_json(head), *i = pu_json(item), *t = pu_json(tail);

    cv_buf_init(&b, CV_SNAPSHOT_MAX_BYTES);
    add(&b, "%s", h);
    for (int k = 0; k < n; k++) {
        if (k > 0)
            add(&b, ",");
        add(&b, i, k);
    }
    add(&b, "%s", t);
    int ret = cv_snapshot_compile((const char *)cv_buf_data(&b), cv_buf_len(&b), "n", err, s);
    cv_buf_done(&b);
    free(h);
    free(i);
    free(t);
    return ret;
}

static void limits_are_exact(void)
{
    static const struct {
        const char *head, *item, *tail;
        int max;
        const char *path, *text;
    } rows[] = {
        {HEAD POL ",'users':{", "'%d':{'password':'','policy':'p'}", "}}", CV_SNAPSHOT_MAX_USERS,
         "users", "snapshot has too many users: 100001 > 100000"},
        {HEAD "'routing_policies':{", "'%d':{}", "}}", CV_SNAPSHOT_MAX_POLICIES, "routing_policies",
         "snapshot has too many routing policies: 10001 > 10000"},
        {HEAD "'node_overrides':{", "'%d':{}", "}}", CV_SNAPSHOT_MAX_OVERRIDES, "node_overrides",
         "snapshot has too many node overrides: 10001 > 10000"},
        {HEAD "'egresses':{", "'%d':" UP "{'kind':'http','addr':''}}", "}}",
         CV_SNAPSHOT_MAX_EGRESSES, "egresses", "snapshot has too many egresses: 10001 > 10000"},
        {RT BLK ",'selectors':['',' ',", "'%d.a'", "]}]}}}", CV_SNAPSHOT_MAX_SELECTORS,
         "routing_policies", "snapshot has too many policy rules: 200001 > 200000"},
        {CH, "{'id':'m%1$d','priority':%1$d," B "}", "]}}}", CV_CHAIN_MAX_MEMBERS,
         "egresses.c.members", "chain c: too many members: 17 > 16"},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_snapshot_error err;
        struct cv_snapshot *s = NULL;
        int ret = compile_many(rows[i].head, rows[i].item, rows[i].max, rows[i].tail, &err, &s);
        if (!T_INT_EQ(ret, 0))
            printf("#   %s: %s\n", err.path, err.text);
        cv_snapshot_unref(s);
        s = NULL;
        T_INT_EQ(compile_many(rows[i].head, rows[i].item, rows[i].max + 1, rows[i].tail, &err, &s),
                 CV_E_LIMIT);
        T_INT_EQ(err.stage, CV_SNAPSHOT_COMPILE);
        T_STR_EQ(err.path, rows[i].path);
        T_STR_EQ(err.text, rows[i].text);
        T_OK(s == NULL);
    }
}

/* 'len' times 'c' at %s of 'fmt'. */
static int compile_long(const char *fmt, char c, size_t len, struct cv_snapshot_error *err)
{
    char *json = pu_json(fmt), *fill = cv_alloc(len + 1), *doc = cv_alloc(strlen(json) + len + 1);
    struct cv_snapshot *s = NULL;

    memset(fill, c, len);
    fill[len] = '\0';
    snprintf(doc, strlen(json) + len + 1, json, fill);
    int ret = cv_snapshot_compile(doc, strlen(doc), "n", err, &s);
    T_OK(strstr(err->text, "AAAA") == NULL);
    cv_snapshot_unref(s);
    free(json);
    cv_free(fill);
    cv_free(doc);
    return ret;
}

/* RFC 1929 gives one byte for the length of either. */
static void credentials_of_255_bytes(void)
{
    static const struct {
        const char *fmt, *path, *text;
    } rows[] = {
        {EGR "{'kind':'socks5','addr':'a:1','username':'%s'}}}}", "egresses.e.backend.username",
         "egress e: longer than 255 bytes"},
        {EGR "{'kind':'http','addr':'a:1','username':'u','password':'%s'}}}}",
         "egresses.e.backend.password", "egress e: longer than 255 bytes"},
        {CH "{'id':'m','priority':1,'backend':{'kind':'socks','addr':'a:1','password':'%s'}}]}}}",
         "egresses.c.members[0].backend.password", "chain c member m: longer than 255 bytes"},
    };
    struct cv_snapshot_error err;

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        T_INT_EQ(compile_long(rows[i].fmt, 'A', 255, &err), 0);
        T_INT_EQ(compile_long(rows[i].fmt, 'A', 256, &err), CV_E_INVALID);
        T_STR_EQ(err.path, rows[i].path);
        T_STR_EQ(err.text, rows[i].text);
    }
    /* A user's own may be longer: HTTP carries it, SOCKS5 cannot. */
    T_INT_EQ(
        compile_long(HEAD POL ",'users':{'u':{'policy':'p','password':'%s'}}}", 'A', 1000, &err),
        0);
    T_INT_EQ(
        compile_long(HEAD POL ",'users':{'%s':{'policy':'p','password':''}}}", 'a', 1024, &err), 0);
}

static void long_texts(void)
{
    static const char *const docs[] = {
        HEAD POL ",'users':{'%s':{'policy':'p','password':''}}}",
        HEAD "'routing_policies':{'%s':{}}}",
        HEAD "'egresses':{'%s':" UP "{'kind':'http','addr':''}}}}",
        EGR "{'kind':'http','addr':'%s'}}}}",
        EGR "{'kind':'reverse','addr':'%s'}}}}",
        CH "{'id':'%s','priority':1," B "}]}}}",
    };
    struct cv_snapshot_error err;

    for (size_t i = 0; i < CV_ARRAY_SIZE(docs); i++) {
        T_INT_EQ(compile_long(docs[i], 'x', 1024, &err), 0);
        T_OK(compile_long(docs[i], 'x', 1025, &err) < 0);
        T_OK(strstr(err.text, "too long: 1025 > 1024 bytes") != NULL);
        T_OK(err.path[0] != '\0' && strlen(err.path) < 150);
    }
    /* Selectors of any length are accepted; no host is that long. */
    T_INT_EQ(compile_long(RT "'selectors':['%s']," BLK "}]}}}", 'x', 100000, &err), 0);
    T_INT_EQ(compile_long(RT "'selectors':['keyword:%s']," BLK "}]}}}", 'x', 100000, &err), 0);
}

static void error_may_be_omitted(void)
{
    struct cv_snapshot *s = NULL;

    T_INT_EQ(cv_snapshot_compile("{", 1, "n", NULL, &s), CV_E_PARSE);
    T_OK(s == NULL);
}

int main(void)
{
    T_RUN(complete_document);
    T_RUN(complete_document_decides);
    T_RUN(override_replaces_whole);
    T_RUN(refuses_with_path);
    T_RUN(accepts);
    T_RUN(limits_are_exact);
    T_RUN(credentials_of_255_bytes);
    T_RUN(long_texts);
    T_RUN(error_may_be_omitted);
    return t_done();
}

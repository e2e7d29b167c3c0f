/* Decoding: what is no snapshot at all is refused, with the place and the reason. */
#include "policy_util.h"

#define HEAD "{'schema_version':1,'version':7,"
#define USER HEAD "'users':{'u':"
#define POL  HEAD "'routing_policies':{'p':"
#define ACT  POL "{'default_action':"
#define EGR  HEAD "'egresses':{'e':"

#define TOP_NAMES                                                                                  \
    "unknown member, known here are: schema_version, version, users, routing_policies, egresses, " \
    "node_overrides"
#define USER_NAMES                                                                                 \
    "unknown member, known here are: password, policy, expire, up_rate, down_rate, "               \
    "max_connections, frontends"
#define POLICY_NAMES "unknown member, known here are: routes, default_action"

static const struct pu_refusal refusals[] = {
    /* The top level. */
    {"{}", NULL, CV_E_INVALID, "schema_version", "this member is required"},
    {"{'schema_version':1}", NULL, CV_E_INVALID, "version", "this member is required"},
    {"{'schema_version':4,'version':1,'default_egress':'x'}", NULL, CV_E_INVALID, "schema_version",
     "unsupported snapshot schema_version 4 (this node supports 1..=1)"},
    {"{'schema_version':0,'version':1}", NULL, CV_E_INVALID, "schema_version",
     "unsupported snapshot schema_version 0 (this node supports 1..=1)"},
    {"{'schema_version':'1','version':1}", NULL, CV_E_INVALID, "schema_version",
     "must be a whole number, not a string"},
    {"{'schema_version':1,'version':-1}", NULL, CV_E_INVALID, "version",
     "must be a whole number of 0 to 9223372036854775807"},
    {"{'schema_version':1,'version':1.0}", NULL, CV_E_INVALID, "version",
     "must be a whole number, not a number with a fraction or exponent"},
    {HEAD "'groups':{}}", NULL, CV_E_INVALID, "groups", TOP_NAMES},
    {HEAD "'chains':{}}", NULL, CV_E_INVALID, "chains", TOP_NAMES},
    {HEAD "'a b\\n\\'x':{}}", NULL, CV_E_INVALID, "[\"a b?\\\"x\"]", TOP_NAMES},
    {HEAD "'users':null}", NULL, CV_E_INVALID, "users", "must be an object, not null"},
    {HEAD "'users':[]}", NULL, CV_E_INVALID, "users", "must be an object, not an array"},
    {HEAD "'egresses':1}", NULL, CV_E_INVALID, "egresses", "must be an object, not a number"},
    /* Users. */
    {USER "7}}", NULL, CV_E_INVALID, "users.u", "must be an object, not a number"},
    {USER "{'policy':'p'}}}", NULL, CV_E_INVALID, "users.u.password", "this member is required"},
    {USER "{'password':'SECRET'}}}", NULL, CV_E_INVALID, "users.u.policy",
     "this member is required"},
    {USER "{'password':17,'policy':'p'}}}", NULL, CV_E_INVALID, "users.u.password",
     "must be a string, not a number"},
    {USER "{'password':null,'policy':'p'}}}", NULL, CV_E_INVALID, "users.u.password",
     "must be a string, not null"},
    {USER "{'password':'SECRET','policy':'p','group':'g'}}}", NULL, CV_E_INVALID, "users.u.group",
     USER_NAMES},
    {USER "{'password':'SECRET','policy':'p','up_rate':-5}}}", NULL, CV_E_INVALID,
     "users.u.up_rate", "must be a whole number of 0 to 9223372036854775807"},
    {USER "{'password':'SECRET','policy':'p','down_rate':null}}}", NULL, CV_E_INVALID,
     "users.u.down_rate", "must be a whole number, not null"},
    {USER "{'password':'SECRET','policy':'p','max_connections':1.5}}}", NULL, CV_E_INVALID,
     "users.u.max_connections", "must be a whole number, not a number with a fraction or exponent"},
    {USER "{'password':'SECRET','policy':'p','expire':20300101}}}", NULL, CV_E_INVALID,
     "users.u.expire", "must be a string, not a number"},
    {USER "{'password':'SECRET','policy':'p','frontends':{'tuic':[]}}}}", NULL, CV_E_INVALID,
     "users.u.frontends.tuic", "must be an object, not an array"},
    {USER "{'password':'SECRET','policy':'p','frontends':{'tuic':{'uuid':1}}}}}", NULL,
     CV_E_INVALID, "users.u.frontends.tuic.uuid", "must be a string, not a number"},
    {HEAD "'users':{'a.b':{}}}", NULL, CV_E_INVALID, "users[\"a.b\"].password",
     "this member is required"},
    /* Policies, routes, actions. */
    {POL "{'default_egress':'e'}}}", NULL, CV_E_INVALID, "routing_policies.p.default_egress",
     POLICY_NAMES},
    {POL "{'routes':{}}}}", NULL, CV_E_INVALID, "routing_policies.p.routes",
     "must be an array, not an object"},
    {POL "{'routes':[{'selectors':['a']}]}}}", NULL, CV_E_INVALID,
     "routing_policies.p.routes[0].action", "this member is required"},
    {POL "{'routes':[{'selectors':['a','b',3],'action':{'type':'block'}}]}}}", NULL, CV_E_INVALID,
     "routing_policies.p.routes[0].selectors[2]", "must be a string, not a number"},
    {POL "{'routes':[{'selectors':['a'],'action':{'type':'block'},'name':'x'}]}}}", NULL,
     CV_E_INVALID, "routing_policies.p.routes[0].name",
     "unknown member, known here are: selectors, action"},
    {ACT "{}}}}", NULL, CV_E_INVALID, "routing_policies.p.default_action.type",
     "this member is required"},
    {ACT "{'type':'Block'}}}}", NULL, CV_E_INVALID, "routing_policies.p.default_action.type",
     "unknown action type \"Block\" (\"egress\", \"direct\" or \"block\")"},
    {ACT "{'type':'egress'}}}}", NULL, CV_E_INVALID, "routing_policies.p.default_action.egress",
     "action type \"egress\" requires an \"egress\" id"},
    {ACT "{'type':'egress','egress':null}}}}", NULL, CV_E_INVALID,
     "routing_policies.p.default_action.egress",
     "action type \"egress\" requires an \"egress\" id"},
    {ACT "{'type':'direct','egress':'e'}}}}", NULL, CV_E_INVALID,
     "routing_policies.p.default_action.egress", "action type \"direct\" must not set \"egress\""},
    {ACT "{'type':'block','egress':'e'}}}}", NULL, CV_E_INVALID,
     "routing_policies.p.default_action.egress", "action type \"block\" must not set \"egress\""},
    {ACT "{'type':'block','via':'e'}}}}", NULL, CV_E_INVALID,
     "routing_policies.p.default_action.via", "unknown member, known here are: type, egress"},
    /* Egresses. */
    {EGR "{}}}", NULL, CV_E_INVALID, "egresses.e.type", "this member is required"},
    {EGR "{'type':'proxy'}}}", NULL, CV_E_INVALID, "egresses.e.type",
     "unknown egress type \"proxy\" (\"upstream\" or \"chain\")"},
    {EGR "{'type':'upstream'}}}", NULL, CV_E_INVALID, "egresses.e.backend",
     "egress type \"upstream\" requires a \"backend\""},
    {EGR "{'type':'upstream','backend':{'kind':'http','addr':'a:1'},'members':[]}}}", NULL,
     CV_E_INVALID, "egresses.e.members", "egress type \"upstream\" must not set \"members\""},
    {EGR "{'type':'chain'}}}", NULL, CV_E_INVALID, "egresses.e.members",
     "egress type \"chain\" requires \"members\""},
    {EGR "{'type':'chain','members':[],'backend':{'kind':'http','addr':'a:1'}}}}", NULL,
     CV_E_INVALID, "egresses.e.backend", "egress type \"chain\" must not set \"backend\""},
    {EGR "{'type':'upstream','backend':{'kind':'subnetra'}}}}", NULL, CV_E_INVALID,
     "egresses.e.backend.addr", "this member is required"},
    {EGR "{'type':'upstream','backend':{'kind':'http','addr':'a:1','tls':1}}}}", NULL, CV_E_INVALID,
     "egresses.e.backend.tls", "must be true or false, not a number"},
    {EGR "{'type':'upstream','backend':{'kind':'http','addr':'a:1','tls':null}}}}", NULL,
     CV_E_INVALID, "egresses.e.backend.tls", "must be true or false, not null"},
    {EGR "{'type':'chain','members':[{'id':'m','priority':4294967296,'backend':"
         "{'kind':'http','addr':'a:1'}}]}}}",
     NULL, CV_E_INVALID, "egresses.e.members[0].priority",
     "must be a whole number of 0 to 4294967295"},
    {EGR "{'type':'chain','members':[{'priority':1,'backend':{'kind':'http','addr':'a:1'}}]}}}",
     NULL, CV_E_INVALID, "egresses.e.members[0].id", "this member is required"},
    {EGR "{'type':'upstream','tag':1,'backend':{'kind':'http','addr':'a:1'}}}}", NULL, CV_E_INVALID,
     "egresses.e.tag", "unknown member, known here are: type, backend, members"},
    /* Overrides: those of other nodes must decode too. */
    {HEAD "'node_overrides':{'other':{'users':{}}}}", NULL, CV_E_INVALID,
     "node_overrides.other.users", "unknown member, known here are: egresses"},
    {HEAD "'node_overrides':{'other':{'egresses':{'e':{'type':'x'}}}}}", NULL, CV_E_INVALID,
     "node_overrides.other.egresses.e.type",
     "unknown egress type \"x\" (\"upstream\" or \"chain\")"},
};

static void refuses_with_path(void)
{
    pu_refuse(refusals, CV_ARRAY_SIZE(refusals), CV_SNAPSHOT_DECODE);
}

static void refuses_no_json(void)
{
    static const struct {
        const char *json;
        unsigned line, column;
        const char *text;
    } rows[] = {
        {"", 1, 1, "the document ends too early"},
        {"[]", 1, 1, "not a JSON object"},
        {"{'a':1", 1, 6, "the document ends too early"},
        {"{'a':1}\n x", 2, 2, "something follows the end of the document"},
        {"{\n 'a':'SECRET' 'b'}", 2, 17, "',' or '}' is expected"},
        {"{\n 'password':SECRET}", 2, 18, "not a JSON value; texts need double quotes"},
        {"{'a':1,\n'a':2}", 2, 3, "the object has this member twice"},
        {"{'a':99999999999999999999}", 1, 25,
         "the number is too large (at most 9223372036854775807)"},
        {"{'a':'SECRET\xff'}", 1, 12, "not valid UTF-8"},
        {"{'a':'SECRET\\u0000'}", 1, 19, "\\u0000 is not allowed"},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_snapshot_error err;
        struct cv_snapshot *s = NULL;
        char *json = pu_json(rows[i].json);
        T_INT_EQ(cv_snapshot_compile(json, strlen(json), "n", &err, &s), CV_E_PARSE);
        T_INT_EQ(err.stage, CV_SNAPSHOT_DECODE);
        T_INT_EQ(err.line, rows[i].line);
        T_INT_EQ(err.column, rows[i].column);
        T_STR_EQ(err.path, "");
        T_STR_EQ(err.text, rows[i].text);
        T_OK(s == NULL);
        free(json);
    }
}

/* The three inner objects in which unknown members are passed over. */
static void lenient_where_stated(void)
{
    struct cv_snapshot *s = pu_compile(
        HEAD
        "'users':{'u':{'password':'x','policy':'p','frontends':{'tuic':{'uuid':'A','new':[{}]}}}},"
        "'routing_policies':{'p':{}},"
        "'egresses':{'e':{'type':'upstream','members':null,'backend':{'kind':'http',"
        "'addr':'a:1','weight':3}},"
        "'c':{'type':'chain','backend':null,'members':[{'id':'m','priority':0,'note':{},"
        "'backend':{'kind':'SOCKS','addr':'b:1','x':null}}]}}}",
        "n");

    T_INT_EQ(cv_snapshot_n_egresses(s), 2);
    T_INT_EQ(cv_snapshot_n_frontends(s), 1);
    cv_snapshot_unref(s);
}

static void nested_deeply(void)
{
    enum { DEPTH = 100000 };
    char *json = malloc(DEPTH + 32);
    struct cv_snapshot_error err;
    struct cv_snapshot *s = NULL;

    memcpy(json, "{\"a\":", 5);
    memset(json + 5, '[', DEPTH);
    T_INT_EQ(cv_snapshot_compile(json, DEPTH + 5, "n", &err, &s), CV_E_PARSE);
    T_STR_EQ(err.text, "nested too deeply");
    free(json);
}

static void too_large(void)
{
    size_t n = CV_SNAPSHOT_MAX_BYTES + 1;
    char *json = malloc(n);
    struct cv_snapshot_error err;
    struct cv_snapshot *s = NULL;

    memset(json, ' ', n);
    memcpy(json, "{\"schema_version\":1,\"version\":2}", 32);
    T_INT_EQ(cv_snapshot_compile(json, n, "n", &err, &s), CV_E_LIMIT);
    T_INT_EQ(err.stage, CV_SNAPSHOT_READ);
    T_STR_EQ(err.text, "snapshot is too large: 8388609 > 8388608 bytes");
    T_INT_EQ(cv_snapshot_compile(json, n - 1, "n", &err, &s), 0);
    T_INT_EQ(err.stage, 0);
    cv_snapshot_unref(s);
    free(json);
}

int main(void)
{
    T_RUN(refuses_with_path);
    T_RUN(refuses_no_json);
    T_RUN(lenient_where_stated);
    T_RUN(nested_deeply);
    T_RUN(too_large);
    return t_done();
}

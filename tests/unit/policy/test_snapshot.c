/* Life and lookups of a snapshot. */
#include <errno.h>

#include "common/torture.h"
#include "policy_util.h"

#define DOC                                                                                        \
    "{'schema_version':1,'version':12,'users':{'alice':{'password':'a','policy':'p'},"             \
    "'Alice':{'password':'b','policy':'p','frontends':{'tuic':{'uuid':'1','password':'x'},"        \
    "'other':{}}},'':{'password':'c','policy':'p','frontends':{'tuic':{'uuid':'2'}}}},"            \
    "'routing_policies':{'p':{}}}"

static void finds_users(void)
{
    struct cv_snapshot *s = pu_compile(DOC, "n");

    T_INT_EQ(cv_snapshot_user_find(s, "alice", 5), 0);
    T_INT_EQ(cv_snapshot_user_find(s, "Alice", 5), 1);
    T_INT_EQ(cv_snapshot_user_find(s, "", 0), 2);
    T_INT_EQ(cv_snapshot_user_find(s, "alice ", 6), CV_USER_NONE);
    T_INT_EQ(cv_snapshot_user_find(s, "alic", 4), CV_USER_NONE);
    T_INT_EQ(cv_snapshot_user_find(s, "alice\0", 6), CV_USER_NONE);
    cv_snapshot_unref(s);
}

static void frontends_in_order(void)
{
    struct cv_snapshot *s = pu_compile(DOC, "n");

    T_REQUIRE(cv_snapshot_n_frontends(s) == 3);
    const struct cv_frontend_def *f = cv_snapshot_frontend(s, 0);
    T_STR_EQ(f->proto->s, "tuic");
    T_STR_EQ(f->uuid->s, "1");
    T_STR_EQ(f->password->s, "x");
    T_INT_EQ(f->user, 1);
    f = cv_snapshot_frontend(s, 1);
    T_STR_EQ(f->proto->s, "other");
    T_OK(f->uuid == NULL && f->password == NULL);
    f = cv_snapshot_frontend(s, 2);
    T_STR_EQ(f->proto->s, "tuic");
    T_STR_EQ(f->uuid->s, "2");
    T_INT_EQ(f->user, 2);
    cv_snapshot_unref(s);
}

static void references(void)
{
    struct cv_snapshot *s = pu_compile(DOC, "n");

    T_OK(cv_snapshot_ref(s) == s);
    cv_snapshot_unref(s);
    T_INT_EQ(cv_snapshot_version(s), 12);
    T_OK(cv_snapshot_bytes(s) > 100 && cv_snapshot_bytes(s) < 10000);
    cv_snapshot_unref(s);
    cv_snapshot_unref(NULL);
}

static void empty(void)
{
    struct cv_snapshot *s = cv_snapshot_new_empty();

    T_INT_EQ(cv_snapshot_version(s), 0);
    T_INT_EQ(cv_snapshot_n_users(s), 0);
    T_INT_EQ(cv_snapshot_n_policies(s), 0);
    T_INT_EQ(cv_snapshot_n_egresses(s), 0);
    T_INT_EQ(cv_snapshot_n_selectors(s), 0);
    T_INT_EQ(cv_snapshot_n_frontends(s), 0);
    T_INT_EQ(cv_snapshot_user_find(s, "", 0), CV_USER_NONE);
    cv_snapshot_unref(s);
}

/* What the errors of a compile leave behind is seen by the leak checker; what is handed out must
 * not depend on the document, which the caller may reuse at once. */
static void document_may_go(void)
{
    char *json = pu_json(DOC);
    struct cv_snapshot_error err;
    struct cv_snapshot *s = NULL;

    T_REQUIRE(cv_snapshot_compile(json, strlen(json), "n", &err, &s) == 0);
    memset(json, 'x', strlen(json));
    free(json);
    T_STR_EQ(cv_snapshot_user(s, 0)->name->s, "alice");
    T_STR_EQ(cv_snapshot_policy_id(s, 0)->s, "p");
    cv_snapshot_unref(s);
}

/* Every allocation of a compile fails once: an error each time, nothing handed out, no leak. */
static void survives_lack_of_memory(void)
{
#ifdef CV_TORTURE
    char *json = pu_json(
        "{'schema_version':1,'version':1,'users':{'u':{'password':'p','policy':'p',"
        "'frontends':{'tuic':{'uuid':'1','password':'x'}}}},'egresses':{'e':{'type':'upstream',"
        "'backend':{'kind':'socks5','addr':'a:1','username':'u','password':'p'}},'c':{'type':"
        "'chain','members':[{'id':'m','priority':1,'backend':{'kind':'http','addr':'b:1'}}]}},"
        "'routing_policies':{'p':{'routes':[{'selectors':['a.test','keyword:k','10.0.0.0/8'],"
        "'action':{'type':'egress','egress':'c'}}]}},'node_overrides':{'n':{'egresses':{'e':"
        "{'type':'upstream','backend':{'kind':'http','addr':'c:1'}}}}}}");
    for (uint64_t nth = 1;; nth++) {
        struct cv_snapshot_error err;
        struct cv_snapshot *s = NULL;
        cv_torture_arm(nth);
        int ret = cv_snapshot_compile(json, strlen(json), "n", &err, &s);
        bool reached = cv_torture_count() >= nth;
        cv_torture_arm(0);
        if (!reached) {
            T_INT_EQ(ret, 0);
            T_OK(nth > 20);
            cv_snapshot_unref(s);
            break;
        }
        T_INT_EQ(ret, -ENOMEM);
        T_STR_EQ(err.text, "no memory");
        T_OK(err.stage != 0 && s == NULL);
    }
    free(json);
#else
    T_OK(true); /* only in the torture build */
#endif
}

int main(void)
{
    T_RUN(finds_users);
    T_RUN(frontends_in_order);
    T_RUN(references);
    T_RUN(empty);
    T_RUN(document_may_go);
    T_RUN(survives_lack_of_memory);
    return t_done();
}

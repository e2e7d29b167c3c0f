/* Snapshot documents of arbitrary bytes. What is checked beside memory: that a refusal says where
 * and why, that nothing is handed out with it, that decide() by the index agrees with the plain
 * scan of explain, and that a verdict refers to what exists. Hosts are a few fixed ones and every
 * text of the document that is one. */
#include "policy/snapshot.h"

#include <string.h>

#include "policy/decide.h"
#include "policy/passwd.h"

#include "common/poison.h"

#define TEXTS_MAX 48
#define USERS_MAX 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_verdict(const struct cv_snapshot *s, const struct cv_verdict *v)
{
    CV_ASSERT(v->policy < cv_snapshot_n_policies(s));
    CV_ASSERT(v->route >= -1);
    CV_ASSERT(v->action == CV_ACTION_BLOCK || v->action == CV_ACTION_DIRECT ||
              (v->action == CV_ACTION_EGRESS && v->egress < cv_snapshot_n_egresses(s)));
    CV_ASSERT(cv_verdict_label(s, v) != NULL);
    CV_ASSERT(!v->names_special || cv_prefix_is_special(&v->special));
}

static void check_host(const struct cv_snapshot *s, const struct cv_host *host)
{
    static const char sniffed_text[] = "sniffed.test";
    struct cv_host sniffed;

    CV_ASSERT(cv_host_parse(sniffed_text, sizeof(sniffed_text) - 1, &sniffed) == 0);
    for (uint32_t u = 0; u < cv_snapshot_n_users(s) && u < USERS_MAX; u++) {
        struct cv_selector_match m;
        struct cv_verdict v;
        uint32_t policy = cv_snapshot_user(s, u)->policy;
        cv_decide(s, u, host, NULL, &v);
        check_verdict(s, &v);
        CV_ASSERT(v.policy == policy);
        CV_ASSERT(cv_decide_explain(s, policy, host, &m) == v.route);
        CV_ASSERT((m.kind == CV_SEL_NONE) == (v.route < 0));
        cv_decide(s, u, host, &sniffed, &v);
        check_verdict(s, &v);
    }
}

/* Every text in double quotes as a host. */
static void check_texts(const struct cv_snapshot *s, const char *json, size_t len)
{
    const char *end = json + len;

    for (int i = 0; i < TEXTS_MAX && json < end; i++) {
        const char *open = memchr(json, '"', (size_t)(end - json));
        const char *close = open != NULL ? memchr(open + 1, '"', (size_t)(end - open - 1)) : NULL;
        struct cv_host host;
        if (close == NULL)
            return;
        const char *colon = memchr(open, ':', (size_t)(close - open));
        if (colon != NULL && cv_host_parse(colon + 1, (size_t)(close - colon - 1), &host) == 0)
            check_host(s, &host);
        if (cv_host_parse(open + 1, (size_t)(close - open - 1), &host) == 0)
            check_host(s, &host);
        json = close + 1;
    }
}

static void check_users(const struct cv_snapshot *s)
{
    for (uint32_t u = 0; u < cv_snapshot_n_users(s); u++) {
        const struct cv_user_def *def = cv_snapshot_user(s, u);
        enum cv_passwd_kind kind;
        CV_ASSERT(cv_snapshot_user_find(s, def->name->s, def->name->len) == u);
        CV_ASSERT(cv_passwd_kind(def->password->s, def->password->len, &kind) == 0);
    }
}

static void check_error(const struct cv_snapshot_error *err)
{
    CV_ASSERT(err->stage >= CV_SNAPSHOT_READ && err->stage <= CV_SNAPSHOT_COMPILE);
    CV_ASSERT(err->text[0] != '\0');
    CV_ASSERT(memchr(err->text, '\0', sizeof(err->text)) != NULL);
    CV_ASSERT(memchr(err->path, '\0', sizeof(err->path)) != NULL);
    CV_ASSERT(err->line == 0 || err->stage == CV_SNAPSHOT_DECODE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const hosts[] = {"example.com", "a.b.c.test",      "10.0.0.1",
                                        "192.0.2.7",   "::ffff:10.0.0.1", "64:ff9b::a00:1",
                                        "2001:db8::1"};
    const char *json = (const char *)data;
    struct cv_snapshot_error err;
    struct cv_snapshot *s = NULL;

    if (cv_snapshot_compile(json, size, "edge-a", &err, &s) != 0) {
        CV_ASSERT(s == NULL);
        check_error(&err);
        return 0;
    }
    check_users(s);
    for (size_t i = 0; i < CV_ARRAY_SIZE(hosts); i++) {
        struct cv_host host;
        CV_ASSERT(cv_host_parse(hosts[i], strlen(hosts[i]), &host) == 0);
        check_host(s, &host);
    }
    check_texts(s, json, size);
    cv_snapshot_unref(s);
    return 0;
}

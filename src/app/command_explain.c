#include <string.h>
#include <time.h>

#include "app/command.h"
#include "app/config.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/secret.h"
#include "egress/egress.h"
#include "policy/decide.h"
#include "proto/sniff.h"

#include "common/poison.h"

struct question {
    const struct cv_cli_call *call;
    const struct cv_snapshot *snapshot;
    const struct cv_config *config; /* NULL: none was given */
    uint32_t user;
    struct cv_target target;
    struct cv_host sniffed;
    bool is_sniffed; /* 'sniffed' is set */
};

static void line(const struct question *q, const char *name, const char *value)
{
    fprintf(q->call->out, "%-10s %s\n", name, value);
}

static void tell_user(const struct question *q)
{
    const struct cv_user_def *u = cv_snapshot_user(q->snapshot, q->user);
    char text[400], day[16] = "";
    int32_t today = cv_date_today();
    if (u->expire_day != INT32_MAX) {
        time_t t = (time_t)u->expire_day * 86400;
        struct tm tm;
        if (gmtime_r(&t, &tm) != NULL)
            strftime(day, sizeof(day), "%Y-%m-%d", &tm);
    }
    snprintf(text, sizeof(text), "%.255s%s%s%s", cv_rcstr_text(u->name),
             u->expire_day == INT32_MAX ? ""
             : u->expire_day < today    ? ", expired: every login fails, last valid day "
                                        : ", last valid day ",
             day, "");
    line(q, "user", text);
}

static const char *kind_name(enum cv_selector_kind kind)
{
    switch (kind) {
    case CV_SEL_SUFFIX:
        return "suffix";
    case CV_SEL_FULL:
        return "full name";
    case CV_SEL_KEYWORD:
        return "keyword";
    case CV_SEL_PREFIX:
        return "address range";
    case CV_SEL_NONE:
        break;
    }
    return "none";
}

static void tell_route(const struct question *q, const struct cv_verdict *v)
{
    struct cv_selector_match m = {0};
    char text[700];
    snprintf(text, sizeof(text), "%.500s",
             cv_rcstr_text(cv_snapshot_policy_id(q->snapshot, v->policy)));
    line(q, "policy", text);
    if (v->route < 0) {
        line(q, "route", "none matches, the default action decides");
        return;
    }
    snprintf(text, sizeof(text), "routes[%d]%s", v->route,
             v->by_sniffed ? ", by the sniffed name" : "");
    line(q, "route", text);
    const struct cv_host *host = v->by_sniffed ? &q->sniffed : &q->target.host;
    if (cv_decide_explain(q->snapshot, v->policy, host, &m) == v->route) {
        snprintf(text, sizeof(text), "selectors[%u] '%s' (%s)", m.index, m.text, kind_name(m.kind));
        line(q, "selector", text);
    }
}

/* What the node's config adds to the egress. */
static void tell_config(const struct question *q, const struct cv_config_egress *c)
{
    char text[5000];
    if (c->proxy_protocol != 0) {
        snprintf(text, sizeof(text), "v%d header with the client's address is sent first",
                 c->proxy_protocol);
        line(q, "  proxy protocol", text);
    }
    if (c->tls_ca[0] != '\0') {
        snprintf(text, sizeof(text), "certificates are checked against %.4096s", c->tls_ca);
        line(q, "  tls", text);
    }
    if (c->health != NULL) {
        snprintf(text, sizeof(text), "checked by connections to %.400s", c->health->target);
        line(q, "  health", text);
    }
}

static void tell_egress(const struct question *q, const struct cv_egress_def *e)
{
    char text[1400];
    snprintf(text, sizeof(text), "%.500s, %.600s", cv_rcstr_text(e->id), cv_rcstr_text(e->label));
    line(q, "egress", text);
    for (uint32_t i = 0; e->is_chain && i < e->n_members; i++) {
        snprintf(text, sizeof(text), "%.500s, priority %u, %.600s", cv_rcstr_text(e->members[i].id),
                 e->members[i].priority, cv_rcstr_text(e->members[i].backend.label));
        line(q, "  member", text);
    }
    const struct cv_config_egress *conf =
        q->config != NULL ? cv_config_egress(q->config, cv_rcstr_text(e->id)) : NULL;
    if (conf != NULL)
        tell_config(q, conf);
}

/* What the direct egress would say to the address. */
static void tell_guard(const struct question *q, const struct cv_verdict *v)
{
    const struct cv_ip *ip = &q->target.host.ip;
    char text[200], ip_text[CV_IP_STRLEN], prefix[CV_PREFIX_STRLEN];
    if (!cv_host_is_ip(&q->target.host)) {
        line(q, "guard", "each address that the name resolves to is checked when it is dialled");
        return;
    }
    enum cv_ip_class class = cv_ip_class(ip);
    const struct cv_prefix *allow = q->config != NULL ? q->config->direct.allow.v : NULL;
    size_t n_allow = q->config != NULL ? q->config->direct.allow.n : 0;
    cv_ip_format(ip, ip_text);
    if (cv_egress_guard(ip, allow, n_allow, v->names_special, &v->special) != 0)
        snprintf(text, sizeof(text),
                 "refused: %s is %s; name it in a selector of the policy or in direct.allow",
                 ip_text, cv_ip_class_name(class));
    else if (class == CV_IP_GLOBAL)
        snprintf(text, sizeof(text), "allowed: %s is a public address", ip_text);
    else if (v->names_special && cv_prefix_contains(&v->special, ip))
        snprintf(text, sizeof(text), "allowed: %s is %s, and the selector names %s", ip_text,
                 cv_ip_class_name(class), cv_prefix_format(&v->special, prefix));
    else
        snprintf(text, sizeof(text), "allowed: %s is %s, and direct.allow names it", ip_text,
                 cv_ip_class_name(class));
    line(q, "guard", text);
}

static void answer(const struct question *q)
{
    char text[CV_TARGET_STRLEN];
    struct cv_verdict v;
    cv_decide(q->snapshot, q->user, &q->target.host, q->is_sniffed ? &q->sniffed : NULL, &v);
    tell_user(q);
    line(q, "target", cv_target_format(&q->target, text));
    if (q->is_sniffed)
        line(q, "sniffed", q->sniffed.name);
    tell_route(q, &v);
    switch (v.action) {
    case CV_ACTION_BLOCK:
        line(q, "action", "block");
        break;
    case CV_ACTION_DIRECT:
        line(q, "action", "direct");
        tell_guard(q, &v);
        break;
    case CV_ACTION_EGRESS:
        line(q, "action", "egress");
        tell_egress(q, cv_snapshot_egress(q->snapshot, v.egress));
        break;
    }
}

/* The snapshot of the call. 0 or a code, with a message. */
static int load_snapshot(const struct cv_cli_call *call, const char *node_id,
                         struct cv_snapshot **ret)
{
    const char *path = cv_cli_value(call, "snapshot");
    struct cv_snapshot_error e = {0};
    char *data = NULL;
    size_t len = 0;
    int err = cv_file_read(path, CV_SNAPSHOT_MAX_BYTES, &data, &len);
    if (err != 0) {
        fprintf(call->err, "culvert: %s cannot be read: %s\n", path, cv_err_text(err));
        return err;
    }
    err = cv_snapshot_compile(data, len, node_id, &e, ret);
    cv_secret_clear(data, len);
    cv_free(data);
    if (err != 0 && e.line > 0)
        fprintf(call->err, "%s:%u:%u: %s\n", path, e.line, e.column, e.text);
    else if (err != 0)
        fprintf(call->err, "%s: %s%s%s\n", path, e.path, e.path[0] != '\0' ? ": " : "", e.text);
    return err;
}

int cv_command_explain(const struct cv_cli_call *call)
{
    const char *user = cv_cli_value(call, "user"), *target = cv_cli_value(call, "target");
    const char *sniffed = cv_cli_value(call, "sniffed");
    const char *config_path = cv_cli_value(call, "config"),
               *node_id = cv_cli_value(call, "node-id");
    struct question q = {.call = call};
    struct cv_config *config = NULL;
    struct cv_snapshot *snapshot = NULL;
    struct cv_config_error e;
    char text[1024];
    int code = CV_CLI_EXIT_FAILED;

    if (cv_target_parse(target, strlen(target), 0, &q.target) != 0) {
        fprintf(call->err,
                "culvert: '%.200s' is no target, wanted HOST:PORT such as example.com:443 or "
                "[2001:db8::1]:80\n",
                target);
        return CV_CLI_EXIT_FAILED;
    }
    if (sniffed != NULL) {
        q.is_sniffed = cv_sniff_host(sniffed, strlen(sniffed), &q.sniffed) == 0;
        if (!q.is_sniffed) {
            fprintf(call->err, "culvert: '%.200s' is no name that a client's first bytes can say\n",
                    sniffed);
            return CV_CLI_EXIT_FAILED;
        }
    }
    if (config_path != NULL && cv_config_load(config_path, &e, &config) != 0) {
        fprintf(call->err, "%s\n", cv_config_error_format(&e, config_path, text, sizeof(text)));
        goto Exit;
    }
    if (node_id == NULL)
        node_id = config != NULL ? config->node_id : "";
    if (load_snapshot(call, node_id, &snapshot) != 0)
        goto Exit;
    q.snapshot = snapshot;
    q.config = config;
    q.user = cv_snapshot_user_find(snapshot, user, strlen(user));
    if (q.user == CV_USER_NONE) {
        fprintf(call->err, "culvert: the snapshot has no user '%.255s': every login fails\n", user);
        goto Exit;
    }
    answer(&q);
    code = 0;
Exit:
    cv_snapshot_unref(snapshot);
    cv_config_free(config);
    return code;
}

#include <string.h>

#include "app/advice.h"
#include "app/command.h"
#include "app/config.h"
#include "app/tlsconf.h"
#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"
#include "common/jsonw.h"
#include "common/secret.h"
#include "net/tls.h"
#include "policy/snapshot.h"
#include "tunnel/profile.h"

#include "common/poison.h"

#define DEFAULT_CONFIG "culvert.yaml"
#define LINE_MAX_BYTES 8192

/* What was found wrong first. */
struct fault {
    const char *stage; /* "config", "read", "decode", "compile" */
    char text[2048];
};

static int check_config(const char *path, struct fault *fault, struct cv_config **ret_config)
{
    struct cv_config_error e;
    struct cv_config *c = NULL;
    fault->stage = "config";
    int ret = cv_config_load(path, &e, &c);
    if (ret != 0) {
        cv_config_error_format(&e, path, fault->text, sizeof(fault->text));
        return ret;
    }
    for (size_t i = 0; i < c->listeners.n; i++) {
        struct cv_tls_server_ctx *tls = NULL;
        char *text = NULL;
        ret = cv_tlsconf_load(&c->listeners.v[i], NULL, &text, &tls);
        if (ret != 0) {
            snprintf(fault->text, sizeof(fault->text), "%s: listeners[%zu].tls: %s", path, i,
                     text != NULL ? text : cv_err_text(ret));
            cv_free(text);
            cv_config_free(c);
            return ret;
        }
        cv_tls_server_ctx_unref(tls);
    }
    for (size_t i = 0; i < c->egresses.n; i++) {
        struct cv_tls_client_conf conf = {.ca_file = c->egresses.v[i].tls_ca};
        struct cv_tls_client_ctx *tls = NULL;
        char *text = NULL;
        if (conf.ca_file[0] == '\0')
            continue;
        ret = cv_tls_client_ctx_new(&conf, &text, &tls);
        if (ret != 0) {
            snprintf(fault->text, sizeof(fault->text), "%s: egresses[%zu].tls_ca: %s", path, i,
                     text != NULL ? text : cv_err_text(ret));
            cv_free(text);
            cv_config_free(c);
            return ret;
        }
        cv_tls_client_ctx_unref(tls);
    }
    *ret_config = c;
    return 0;
}

/* The profiles of tunnels. */
static int check_profiles(const char *path, const struct cv_config *c, struct fault *fault)
{
    for (size_t i = 0; i < c->tunnels.n; i++) {
        const struct cv_config_tunnel *t = &c->tunnels.v[i];
        struct cv_profile_error e = {0};
        struct cv_profile *profile = NULL;
        char text[600];
        int ret = cv_profile_load(t->profile, t->strict != 0, &e, &profile);
        cv_profile_free(profile);
        if (ret == 0)
            continue;
        fault->stage = "config";
        snprintf(fault->text, sizeof(fault->text), "%s: tunnels[%zu].profile: %s", path, i,
                 cv_profile_error_format(&e, t->profile, text, sizeof(text)));
        return ret;
    }
    return 0;
}

static bool has_tunnel(const struct cv_config *c, const char *name)
{
    for (size_t i = 0; i < c->tunnels.n; i++)
        if (strcmp(c->tunnels.v[i].name, name) == 0)
            return true;
    return false;
}

/* Tunnels are the node's own: those that the snapshot names must be there. */
static int check_tunnel_names(const char *path, const struct cv_snapshot *s,
                              const struct cv_config *c, struct fault *fault)
{
    for (uint32_t i = 0; i < cv_snapshot_n_egresses(s); i++) {
        const struct cv_egress_def *e = cv_snapshot_egress(s, i);
        for (uint32_t k = 0; k < e->n_members; k++) {
            const struct cv_backend *b = &e->members[k].backend;
            if (b->kind != CV_BACKEND_TUNNEL || has_tunnel(c, b->addr->s))
                continue;
            fault->stage = "compile";
            snprintf(fault->text, sizeof(fault->text),
                     "%s: egresses.%s: the config has no tunnel named '%s'", path, e->id->s,
                     b->addr->s);
            return CV_E_NOTFOUND;
        }
    }
    return 0;
}

static const char *stage_name(enum cv_snapshot_stage stage)
{
    switch (stage) {
    case CV_SNAPSHOT_READ:
        return "read";
    case CV_SNAPSHOT_DECODE:
        return "decode";
    case CV_SNAPSHOT_COMPILE:
        return "compile";
    }
    return "compile";
}

static int check_snapshot(const char *path, const char *node_id, struct fault *fault,
                          struct cv_snapshot **ret_snapshot)
{
    const char *shown = strcmp(path, "-") == 0 ? "standard input" : path;
    struct cv_snapshot_error e = {0};
    char *data = NULL;
    size_t len = 0;
    int ret = cv_file_read(path, CV_SNAPSHOT_MAX_BYTES, &data, &len);
    if (ret != 0) {
        fault->stage = "read";
        if (ret == CV_E_LIMIT)
            snprintf(fault->text, sizeof(fault->text), "%s: larger than %u bytes", shown,
                     CV_SNAPSHOT_MAX_BYTES);
        else
            snprintf(fault->text, sizeof(fault->text), "%s: cannot be read: %s", shown,
                     cv_err_text(ret));
        return ret;
    }
    ret = cv_snapshot_compile(data, len, node_id, &e, ret_snapshot);
    cv_secret_clear(data, len);
    cv_free(data);
    if (ret != 0) {
        fault->stage = stage_name(e.stage);
        if (e.line > 0)
            snprintf(fault->text, sizeof(fault->text), "%s:%u:%u: %s", shown, e.line, e.column,
                     e.text);
        else
            snprintf(fault->text, sizeof(fault->text), "%s: %s%s%s", shown, e.path,
                     e.path[0] != '\0' ? ": " : "", e.text);
    }
    return ret;
}

static void print_json(const struct cv_cli_call *call, bool ok, const struct fault *fault,
                       const struct cv_snapshot *s)
{
    struct cv_buf buf;
    struct cv_jsonw w;
    cv_buf_init(&buf, LINE_MAX_BYTES);
    cv_jsonw_init(&w, &buf);
    cv_jsonw_object(&w, NULL);
    cv_jsonw_bool(&w, "ok", ok);
    if (ok)
        cv_jsonw_uint(&w, "schema_version", 1);
    if (ok && s != NULL) {
        cv_jsonw_uint(&w, "version", cv_snapshot_version(s));
        cv_jsonw_uint(&w, "users", cv_snapshot_n_users(s));
        cv_jsonw_uint(&w, "routing_policies", cv_snapshot_n_policies(s));
        cv_jsonw_uint(&w, "egresses", cv_snapshot_n_egresses(s));
    } else if (!ok) {
        cv_jsonw_str(&w, "stage", fault->stage);
        cv_jsonw_str(&w, "error", fault->text);
    }
    cv_jsonw_object_end(&w);
    if (cv_jsonw_end(&w) == 0)
        fprintf(call->out, "%.*s\n", (int)cv_buf_len(&buf), (const char *)cv_buf_data(&buf));
    cv_buf_done(&buf);
}

int cv_command_check(const struct cv_cli_call *call)
{
    const char *config_path = cv_cli_value(call, "config");
    const char *snapshot_path = cv_cli_value(call, "snapshot");
    const char *node_id = cv_cli_value(call, "node-id");
    bool json = cv_cli_is_set(call, "json");
    struct fault fault = {0};
    struct cv_config *config = NULL;
    struct cv_snapshot *snapshot = NULL;
    int ret = 0;

    if (config_path == NULL && snapshot_path == NULL)
        config_path = DEFAULT_CONFIG;
    if (config_path != NULL)
        ret = check_config(config_path, &fault, &config);
    if (ret == 0 && config != NULL)
        ret = check_profiles(config_path, config, &fault);
    if (ret == 0 && config != NULL && !json)
        fprintf(call->out, "%s: good, node_id '%s', %zu listener%s\n", config_path, config->node_id,
                config->listeners.n, config->listeners.n == 1 ? "" : "s");
    if (ret == 0 && snapshot_path == NULL && config->control_plane.snapshot_url[0] != '\0') {
        if (!json)
            fprintf(call->out, "the snapshot is fetched and was not looked at\n");
    } else if (ret == 0) {
        if (snapshot_path == NULL)
            snapshot_path = config->snapshot.file;
        if (node_id == NULL)
            node_id = config != NULL ? config->node_id : "";
        ret = check_snapshot(snapshot_path, node_id, &fault, &snapshot);
    }
    if (ret == 0 && config != NULL && snapshot != NULL)
        ret = check_tunnel_names(snapshot_path, snapshot, config, &fault);
    if (json)
        print_json(call, ret == 0, &fault, snapshot);
    else if (ret != 0)
        fprintf(call->err, "%s\n", fault.text);
    else if (snapshot != NULL)
        fprintf(
            call->out,
            "%s: good, version %llu, %u users, %u routing policies, %u egresses, %u selectors\n",
            snapshot_path, (unsigned long long)cv_snapshot_version(snapshot),
            cv_snapshot_n_users(snapshot), cv_snapshot_n_policies(snapshot),
            cv_snapshot_n_egresses(snapshot), cv_snapshot_n_selectors(snapshot));
    if (ret == 0 && snapshot != NULL && !json)
        cv_advice_write(call->err, snapshot_path, snapshot, config_path, config);
    cv_snapshot_unref(snapshot);
    cv_config_free(config);
    return ret == 0 ? 0 : CV_CLI_EXIT_FAILED;
}

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "app/command.h"
#include "app/config.h"
#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"
#include "common/rand.h"
#include "common/secret.h"
#include "policy/passwd.h"
#include "policy/snapshot.h"

#include "common/poison.h"

#define DEFAULT_CONFIG  "culvert.yaml"
#define PASSWORD_LENGTH 20

static const char config_text[] =
    "# Written by 'culvert init' for trying Culvert out on one machine.\n"
    "# All options: examples/culvert.yaml and doc/config.md. Check: culvert check -c FILE\n"
    "node_id: local\n"
    "workers: 0\n"
    "snapshot: { file: snapshot.json, cache: data/snapshot.cache.json }\n"
    "listeners:\n"
    "  - { name: main, protocol: mixed, listen: \"127.0.0.1:1080\" }\n"
    "admin: { listen: \"127.0.0.1:9090\", token: \"\" }\n"
    "access_log: { file: \"-\", stats_interval: 60s }\n"
    "log: { level: info, format: text }\n"
    "limits: { max_sessions: 20000, drain_grace: 5s }\n"
    "# Only this machine can reach the listener, so its users may reach this machine as well. "
    "Where\n"
    "# others come in, write  allow: []  or what they shall reach.\n"
    "direct: { allow: [\"127.0.0.0/8\", \"::1\"], prefer: ipv4 }\n"
    "dns: { servers: [], timeout: 2s, attempts: 2, cache_size: 4096 }\n";

/* %s: the password, of letters and digits only. */
static const char snapshot_text[] =
    "{\n"
    "  \"schema_version\": 1,\n"
    "  \"version\": 1,\n"
    "  \"users\": {\n"
    "    \"user\": { \"password\": \"%s\", \"policy\": \"default\" }\n"
    "  },\n"
    "  \"routing_policies\": {\n"
    "    \"default\": {\n"
    "      \"routes\": [],\n"
    "      \"default_action\": { \"type\": \"direct\" }\n"
    "    }\n"
    "  },\n"
    "  \"egresses\": {}\n"
    "}\n";

static void random_password(char out[PASSWORD_LENGTH + 1])
{
    static const char letters[] = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
    for (size_t i = 0; i < PASSWORD_LENGTH; i++)
        out[i] = letters[cv_rand_below(sizeof(letters) - 1)];
    out[PASSWORD_LENGTH] = '\0';
}

/* Write 'text' to 'path' if there is nothing. 0, -EEXIST when there is, or another code. */
static int write_new(const char *path, const char *text, mode_t mode)
{
    if (access(path, F_OK) == 0)
        return -EEXIST;
    return cv_file_write_atomic(path, text, strlen(text), mode);
}

static int make_config(const struct cv_cli_call *call, const char *path)
{
    int ret = write_new(path, config_text, 0644);
    if (ret == 0)
        fprintf(call->out, "wrote %s\n", path);
    else if (ret != -EEXIST)
        fprintf(call->err, "culvert: %s cannot be written: %s\n", path, cv_err_text(ret));
    return ret == -EEXIST ? 0 : ret;
}

static int make_snapshot(const struct cv_cli_call *call, const char *path)
{
    char password[PASSWORD_LENGTH + 1];
    char text[sizeof(snapshot_text) + PASSWORD_LENGTH];
    random_password(password);
    snprintf(text, sizeof(text), snapshot_text, password);
    int ret = write_new(path, text, 0600);
    if (ret == 0)
        fprintf(call->out, "wrote %s\n", path);
    else if (ret != -EEXIST)
        fprintf(call->err, "culvert: %s cannot be written: %s\n", path, cv_err_text(ret));
    cv_secret_clear(password, sizeof(password));
    cv_secret_clear(text, sizeof(text));
    return ret == -EEXIST ? 0 : ret;
}

/* True for what needs no quoting in a URL or a shell. */
static bool is_plain_word(const char *s)
{
    for (; *s != '\0'; s++) {
        bool ok = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                  (*s >= '0' && *s <= '9') || strchr("._-", *s) != NULL;
        if (!ok)
            return false;
    }
    return true;
}

/* A user whose password is written in the snapshot, so that the line can be copied as it is. */
static const struct cv_user_def *find_user(const struct cv_snapshot *s)
{
    for (uint32_t i = 0; i < cv_snapshot_n_users(s) && i < 100; i++) {
        const struct cv_user_def *u = cv_snapshot_user(s, i);
        enum cv_passwd_kind kind;
        if (cv_passwd_kind(u->password->s, u->password->len, &kind) == 0 &&
            kind == CV_PASSWD_PLAIN && is_plain_word(u->name->s) && is_plain_word(u->password->s))
            return u;
    }
    return NULL;
}

/* The one place that prints a password: the caller owns the file that it is read from, and the line
 * is there to be copied. */
static void print_curl(const struct cv_cli_call *call, const struct cv_config *c)
{
    struct cv_snapshot_error e;
    struct cv_snapshot *s = NULL;
    const struct cv_user_def *u = NULL;
    char *data = NULL;
    size_t len = 0;
    const char *listen = NULL;

    for (size_t i = 0; i < c->listeners.n && listen == NULL; i++)
        if (strncmp(c->listeners.v[i].listen, "unix:", 5) != 0 &&
            strncmp(c->listeners.v[i].listen, "fd:", 3) != 0 && c->listeners.v[i].tls == NULL &&
            c->listeners.v[i].protocol != CV_CONFIG_HTTP)
            listen = c->listeners.v[i].listen;
    if (listen == NULL)
        return;
    if (strncmp(listen, "[::]:", 5) == 0)
        listen += 4; /* any address: by way of the loopback */
    if (cv_file_read(c->snapshot.file, CV_SNAPSHOT_MAX_BYTES, &data, &len) == 0 &&
        cv_snapshot_compile(data, len, c->node_id, &e, &s) == 0)
        u = find_user(s);
    fprintf(call->out,
            "\ntry it from another terminal:\n  curl -x socks5h://%s:%s@%s%s "
            "https://example.com/\n\n",
            u != NULL ? u->name->s : "USER", u != NULL ? u->password->s : "PASSWORD",
            listen[0] == ':' ? "127.0.0.1" : "", listen);
    if (data != NULL)
        cv_secret_clear(data, len);
    cv_free(data);
    cv_snapshot_unref(s);
}

int cv_command_init(const struct cv_cli_call *call)
{
    const char *path = cv_cli_value(call, "config");
    struct cv_config_error e;
    struct cv_config *c = NULL;
    char text[1024];

    if (path == NULL)
        path = DEFAULT_CONFIG;
    if (make_config(call, path) != 0)
        return CV_CLI_EXIT_FAILED;
    /* An own config may want its snapshot elsewhere. */
    if (cv_config_load(path, &e, &c) != 0) {
        fprintf(call->err, "%s\n", cv_config_error_format(&e, path, text, sizeof(text)));
        return CV_CLI_EXIT_FAILED;
    }
    int ret = make_snapshot(call, c->snapshot.file);
    if (ret == 0)
        print_curl(call, c);
    cv_config_free(c);
    return ret == 0 ? 0 : CV_CLI_EXIT_FAILED;
}

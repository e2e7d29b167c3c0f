#include "app/command.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/config.h"
#include "common/alloc.h"
#include "common/file.h"
#include "tap.h"

static char t_dir[64];

/* Run culvert with these words; the exit code, and what it wrote (free() both). */
static int run(char *const argv[], char **ret_out, char **ret_err)
{
    size_t out_len, err_len;
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    FILE *out = open_memstream(ret_out, &out_len), *err = open_memstream(ret_err, &err_len);
    int code = cv_cli_main(&cv_command_program, argc, argv, out, err);
    fclose(out);
    fclose(err);
    return code;
}
#define RUN(out, err, ...) run((char *[]){W("culvert"), __VA_ARGS__, NULL}, out, err)
#define W(s)               ((char *)(uintptr_t)(s))

static char *path_of(const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", t_dir, name);
    return out;
}

static void put(const char *name, const char *text)
{
    char path[128];
    T_INT_EQ(cv_file_write_atomic(path_of(name, path), text, strlen(text), 0600), 0);
}

static const char good[] =
    "{\"schema_version\":1,\"version\":7,\"users\":{"
    "\"u\":{\"password\":\"hidden-pw\",\"policy\":\"p\"},"
    "\"old\":{\"password\":\"x\",\"policy\":\"p\",\"expire\":\"2020-01-31\"}},"
    "\"routing_policies\":{\"p\":{\"routes\":["
    "{\"selectors\":[\"ads.test\"],\"action\":{\"type\":\"block\"}},"
    "{\"selectors\":[\"\",\"full:www.corp.test\",\"10.0.0.0/8\"],\"action\":{\"type\":\"direct\"}},"
    "{\"selectors\":[\"keyword:far\"],\"action\":{\"type\":\"egress\",\"egress\":\"c\"}}]}},"
    "\"egresses\":{\"c\":{\"type\":\"chain\",\"members\":["
    "{\"id\":\"m2\",\"priority\":2,\"backend\":{\"kind\":\"socks5\",\"addr\":\"b.test:1080\"}},"
    "{\"id\":\"m1\",\"priority\":1,\"backend\":{\"kind\":\"http\",\"addr\":\"a.test:80\"}}]}}}";

static void test_check_snapshot(void)
{
    char path[128], *out, *err, want[200];
    put("s.json", good);
    T_INT_EQ(RUN(&out, &err, W("check"), W("--snapshot"), path_of("s.json", path), W("--json")), 0);
    T_STR_EQ(out, "{\"ok\":true,\"schema_version\":1,\"version\":7,\"users\":2,"
                  "\"routing_policies\":1,\"egresses\":1}\n");
    free(out);
    free(err);
    T_INT_EQ(RUN(&out, &err, W("check"), W("--snapshot"), path), 0);
    snprintf(want, sizeof(want),
             "%s: good, version 7, 2 users, 1 routing policies, 1 egresses, 4 selectors\n", path);
    T_STR_EQ(out, want);
    free(out);
    free(err);

    static const struct {
        const char *text, *stage, *place;
    } bad[] = {
        {"{\n \"schema_version\": 1,\n oops }", "decode", "s.json:3:"},
        {"{\"schema_version\":1,\"version\":1,\"extra\":1}", "decode", "extra"},
        {"{\"schema_version\":1,\"version\":1,\"users\":{\"u\":{\"password\":\"hidden-pw\","
         "\"policy\":\"nope\"}}}",
         "compile", "users.u"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(bad); i++) {
        char stage[64];
        put("s.json", bad[i].text);
        T_INT_EQ(RUN(&out, &err, W("check"), W("--snapshot"), path, W("--json")), 1);
        snprintf(stage, sizeof(stage), "{\"ok\":false,\"stage\":\"%s\",\"error\":\"", bad[i].stage);
        T_OK(strncmp(out, stage, strlen(stage)) == 0);
        T_OK(strstr(out, bad[i].place) != NULL);
        T_OK(strstr(out, "hidden-pw") == NULL);
        T_OK(strchr(out, '\n') == out + strlen(out) - 1);
        T_STR_EQ(err, "");
        free(out);
        free(err);
        T_INT_EQ(RUN(&out, &err, W("check"), W("--snapshot"), path), 1);
        T_STR_EQ(out, "");
        T_OK(strstr(err, bad[i].place) != NULL);
        free(out);
        free(err);
    }
    T_INT_EQ(unlink(path), 0);
    T_INT_EQ(RUN(&out, &err, W("check"), W("--snapshot"), path, W("--json")), 1);
    T_OK(strstr(out, "\"stage\":\"read\"") != NULL);
    free(out);
    free(err);
}

static void test_check_config(void)
{
    char path[128], *out, *err;
    static const char head[] = "node_id: n\nlisteners:\n  - { name: a, listen: \":1\"";
    char text[300];
    put("s.json", good);
    snprintf(text, sizeof(text), "%s }\nsnapshot: { file: s.json }\n", head);
    put("c.yaml", text);
    T_INT_EQ(RUN(&out, &err, W("check"), W("-c"), path_of("c.yaml", path)), 0);
    T_OK(strstr(out, "c.yaml: good, node_id 'n', 1 listener\n") != NULL);
    T_OK(strstr(out, "s.json: good, version 7") != NULL);
    free(out);
    free(err);

    static const struct {
        const char *rest, *want;
    } bad[] = {
        {" }\nsnapshot: { file: none.json }\n", "none.json: cannot be read: No such file"},
        {" }\nworkerz: 1\n", "c.yaml:4:1: workerz: unknown key, did you mean 'workers'?"},
        {", tls: { cert: no.pem, key: no.key } }\n", "listeners[0].tls: "},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(bad); i++) {
        snprintf(text, sizeof(text), "%s%s", head, bad[i].rest);
        put("c.yaml", text);
        T_INT_EQ(RUN(&out, &err, W("check"), W("-c"), path), 1);
        T_OK(strstr(err, bad[i].want) != NULL);
        free(out);
        free(err);
    }
    unlink(path);
    unlink(path_of("s.json", path));
}

static void test_explain(void)
{
    static const struct {
        const char *user, *target, *words[6];
    } rows[] = {
        {"u", "x.Ads.test.:443", {"x.ads.test:443", "routes[0]", "'ads.test' (suffix)", "block"}},
        {"u",
         "www.corp.test:1",
         {"routes[1]", "selectors[1]", "(full name)", "direct",
          "each address that the name resolves to"}},
        {"u",
         "0x0a.1:80",
         {"10.0.0.1:80", "selectors[2]", "(address range)",
          "allowed: 10.0.0.1 is private, and the selector names 10.0.0.0/8"}},
        {"u", "127.1:80", {"127.0.0.1:80", "none matches", "refused: 127.0.0.1 is loopback"}},
        {"u", "1.1.1.1:80", {"allowed: 1.1.1.1 is a public address"}},
        {"u",
         "afarb.test:1",
         {"routes[2]", "(keyword)", "c, chain:c",
          "m1, priority 1, "
          "upstream:a.test:80",
          "m2, priority 2, upstream:b.test:1080"}},
        {"old", "a.test:1", {"expired", "2020-01-31"}},
    };
    char path[128], *out, *err;
    put("s.json", good);
    path_of("s.json", path);
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        T_INT_EQ(RUN(&out, &err, W("explain"), W("--snapshot"), path, W("--user"), W(rows[i].user),
                     W("--target"), W(rows[i].target)),
                 0);
        for (size_t k = 0; k < CV_ARRAY_SIZE(rows[i].words) && rows[i].words[k] != NULL; k++)
            if (!T_OK(strstr(out, rows[i].words[k]) != NULL))
                printf("#   no '%s' in: %s\n", rows[i].words[k], out);
        T_OK(strstr(out, "hidden-pw") == NULL);
        free(out);
        free(err);
    }
    T_INT_EQ(RUN(&out, &err, W("explain"), W("-s"), path, W("-u"), W("nobody"), W("-t"), W("a:1")),
             1);
    T_OK(strstr(err, "no user 'nobody'") != NULL);
    free(out);
    free(err);
    T_INT_EQ(RUN(&out, &err, W("explain"), W("-s"), path, W("-u"), W("u"), W("-t"), W("nohost")),
             1);
    T_OK(strstr(err, "wanted HOST:PORT") != NULL);
    free(out);
    free(err);
    unlink(path);
}

static void test_init(void)
{
    char config[128], snapshot[128], *out, *err, *again;
    char *first = NULL, *second = NULL;
    size_t first_len, second_len;
    struct stat sb;
    path_of("culvert.yaml", config);
    path_of("snapshot.json", snapshot);
    T_INT_EQ(RUN(&out, &err, W("init"), W("-c"), config), 0);
    T_OK(strstr(out, "  curl -x socks5h://user:") != NULL);
    T_OK(strstr(out, "@127.0.0.1:1080 https://") != NULL);
    T_INT_EQ(stat(snapshot, &sb), 0);
    T_INT_EQ(sb.st_mode & 07777, 0600);
    T_INT_EQ(cv_file_read(snapshot, 10000, &first, &first_len), 0);
    free(err);
    T_INT_EQ(RUN(&again, &err, W("check"), W("-c"), config), 0);
    free(again);
    free(err);

    /* A second time nothing is overwritten, and the line is the same. */
    T_INT_EQ(RUN(&again, &err, W("init"), W("-c"), config), 0);
    T_INT_EQ(cv_file_read(snapshot, 10000, &second, &second_len), 0);
    T_STR_EQ(second, first);
    T_OK(strstr(out, again) != NULL);
    cv_free(first);
    cv_free(second);
    free(again);
    free(out);
    free(err);
    unlink(config);
    unlink(snapshot);
}

/* doc/cli.md is what the tables say today, and everything in them has help. */
static void test_reference(void)
{
    char path[512], *have = NULL, *out, *err;
    size_t len;
    T_INT_EQ(RUN(&out, &err, W("cli-reference")), 0);
    snprintf(path, sizeof(path), "%s/doc/cli.md", getenv("CV_SOURCE_ROOT"));
    T_INT_EQ(cv_file_read(path, 1 << 20, &have, &len), 0);
    T_OK(have != NULL && strcmp(have, out) == 0);
    cv_free(have);
    free(out);
    free(err);
    for (size_t i = 0; i < cv_command_program.n_commands; i++) {
        const struct cv_cli_command *c = &cv_command_program.commands[i];
        T_OK(c->summary != NULL && c->help != NULL && strlen(c->help) > 20 && c->run != NULL);
        T_OK(c->n_options <= CV_CLI_OPTIONS_MAX);
        for (size_t k = 0; k < c->n_options; k++)
            T_OK(c->options[k].help != NULL && strlen(c->options[k].help) > 5);
    }
}

static void test_version(void)
{
    char *out, *err;
    T_INT_EQ(RUN(&out, &err, W("version")), 0);
    T_OK(strncmp(out, "culvert " CV_VERSION "\n", strlen("culvert " CV_VERSION "\n")) == 0);
    T_OK(strstr(out, "OpenSSL 3") != NULL);
    free(out);
    free(err);
}

int main(void)
{
    snprintf(t_dir, sizeof(t_dir), "/tmp/cv-command-XXXXXX");
    if (mkdtemp(t_dir) == NULL)
        return 1;
    T_RUN(test_check_snapshot);
    T_RUN(test_check_config);
    T_RUN(test_explain);
    T_RUN(test_init);
    T_RUN(test_reference);
    T_RUN(test_version);
    rmdir(t_dir);
    return t_done();
}

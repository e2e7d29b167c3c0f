#include "app/cli.h"

#include <stdlib.h>

#include "tap.h"

/* A small program whose commands say how they were called. */
static char t_said[256];

static int say(const struct cv_cli_call *call)
{
    size_t len = (size_t)snprintf(t_said, sizeof(t_said), "%s", call->command->name);
    for (size_t i = 0; i < call->command->n_options; i++) {
        const char *v = cv_cli_value(call, call->command->options[i].name);
        if (v != NULL)
            len += (size_t)snprintf(t_said + len, sizeof(t_said) - len, " %s=%s",
                                    call->command->options[i].name, v);
    }
    return 7;
}

static const struct cv_cli_option go_options[] = {
    {.name = "file", .letter = 'f', .arg = "FILE", .help = "what to read"},
    {.name = "user", .arg = "NAME", .required = true, .help = "who"},
    {.name = "json", .letter = 'j', .help = "as JSON"},
};
static const struct cv_cli_command commands[] = {
    {.name = "go",
     .summary = "go",
     .help = "Go there.",
     .options = go_options,
     .n_options = CV_ARRAY_SIZE(go_options),
     .run = say},
    {.name = "stop", .summary = "stop", .help = "Stop.", .run = say},
    {.name = "secret", .summary = "s", .help = "Hidden.", .hidden = true, .run = say},
};
static const struct cv_cli_program program = {.name = "prog",
                                              .summary = "A program.",
                                              .commands = commands,
                                              .n_commands = CV_ARRAY_SIZE(commands)};

/* Run it with the words of 'line'; the exit code, and what it wrote (free() both). */
static int run(const char *line, char **ret_out, char **ret_err)
{
    char words[256];
    char *argv[16];
    int argc = 0;
    size_t out_len, err_len;
    snprintf(words, sizeof(words), "prog %s", line);
    for (char *rest = words, *w; (w = strsep(&rest, " ")) != NULL;)
        if (*w != '\0')
            argv[argc++] = w;
    argv[argc] = NULL;
    t_said[0] = '\0';
    FILE *out = open_memstream(ret_out, &out_len), *err = open_memstream(ret_err, &err_len);
    int code = cv_cli_main(&program, argc, argv, out, err);
    fclose(out);
    fclose(err);
    return code;
}

static void test_calls(void)
{
    static const struct {
        const char *line, *said;
    } rows[] = {
        {"go --user u", "go user=u"},
        {"go --user=u -f x", "go file=x user=u"},
        {"go -j --user u --file -", "go file=- user=u json="},
        {"go --user= -j", "go user= json="},
        {"go --user=-x", "go user=-x"},
        {"stop", "stop"},
        {"secret", "secret"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        char *out, *err;
        T_INT_EQ(run(rows[i].line, &out, &err), 7);
        T_STR_EQ(t_said, rows[i].said);
        T_STR_EQ(out, "");
        T_STR_EQ(err, "");
        free(out);
        free(err);
    }
}

static void test_wrong(void)
{
    static const struct {
        const char *line, *want; /* the first line of the error */
    } rows[] = {
        {"", "prog: a command is missing\n"},
        {"og", "prog: unknown command 'og', did you mean 'go'?\n"},
        {"xyzzy", "prog: unknown command 'xyzzy'\n"},
        {"secre", "prog: unknown command 'secre'\n"}, /* hidden ones are not suggested */
        {"-f x", "prog: unknown option '-f', a command comes first\n"},
        {"go", "prog: option '--user NAME' is required\n"},
        {"go --usr u", "prog: unknown option '--usr', did you mean '--user'?\n"},
        {"go --usr=topsecret", "prog: unknown option '--usr', did you mean '--user'?\n"},
        {"go --zzzzzz", "prog: unknown option '--zzzzzz'\n"},
        {"go -z", "prog: unknown option '-z'\n"},
        {"go -jf x", "prog: unknown option '-jf'\n"},
        {"go --user", "prog: option '--user' needs a value (NAME)\n"},
        {"go --user --json", "prog: option '--user' needs a value (NAME), got '--json'; write "
                             "--user=--json if that is meant\n"},
        {"go --user u --user v", "prog: option '--user' is given twice\n"},
        {"go --user u --json=1", "prog: option '--json' takes no value\n"},
        {"go --user u extra", "prog: 'go' takes no argument 'extra'\n"},
        {"stop -", "prog: 'stop' takes no argument '-'\n"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        char *out, *err;
        T_INT_EQ(run(rows[i].line, &out, &err), CV_CLI_EXIT_USAGE);
        T_STR_EQ(t_said, "");
        T_STR_EQ(out, "");
        char *nl = strchr(err, '\n');
        T_OK(nl != NULL && strncmp(nl + 1, "try 'prog", 9) == 0);
        if (nl != NULL)
            nl[1] = '\0';
        T_STR_EQ(err, rows[i].want);
        free(out);
        free(err);
    }
}

static void test_help(void)
{
    static const char *const lines[] = {"--help", "-h", "help"};
    static const char *const of_go[] = {"go --help", "go -h", "help go", "go --user u --help"};
    char *out, *err;
    for (size_t i = 0; i < CV_ARRAY_SIZE(lines); i++) {
        T_INT_EQ(run(lines[i], &out, &err), 0);
        T_OK(strstr(out, "  go ") != NULL && strstr(out, "  stop ") != NULL);
        T_OK(strstr(out, "secret") == NULL);
        T_STR_EQ(err, "");
        free(out);
        free(err);
    }
    for (size_t i = 0; i < CV_ARRAY_SIZE(of_go); i++) {
        T_INT_EQ(run(of_go[i], &out, &err), 0);
        T_STR_EQ(t_said, "");
        T_OK(strstr(out, "usage: prog go [-f FILE] --user NAME [-j]\n") != NULL);
        T_OK(strstr(out, "Go there.") != NULL);
        T_OK(strstr(out, "  -f, --file FILE            what to read\n") != NULL);
        T_OK(strstr(out, "      --user NAME            who\n") != NULL);
        free(out);
        free(err);
    }
}

int main(void)
{
    T_RUN(test_calls);
    T_RUN(test_wrong);
    T_RUN(test_help);
    return t_done();
}

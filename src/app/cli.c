#include "app/cli.h"

#include <stdarg.h>
#include <string.h>

#include "app/suggest.h"

#include "common/poison.h"

const char *cv_cli_value(const struct cv_cli_call *call, const char *option)
{
    for (size_t i = 0; i < call->command->n_options; i++)
        if (strcmp(call->command->options[i].name, option) == 0)
            return call->value[i];
    CV_ASSERT(!"the command has such an option");
    return NULL;
}

bool cv_cli_is_set(const struct cv_cli_call *call, const char *option)
{
    return cv_cli_value(call, option) != NULL;
}

/* ---- help ---- */

static void usage_line(const struct cv_cli_program *p, const struct cv_cli_command *c, FILE *out)
{
    fprintf(out, "%s %s%s%s", p->name, c->name, c->args != NULL ? " " : "",
            c->args != NULL ? c->args : "");
    for (size_t i = 0; i < c->n_options; i++) {
        const struct cv_cli_option *o = &c->options[i];
        fprintf(out, o->required ? " " : " [");
        if (o->letter != '\0')
            fprintf(out, "-%c", o->letter);
        else
            fprintf(out, "--%s", o->name);
        fprintf(out, "%s%s%s", o->arg != NULL ? " " : "", o->arg != NULL ? o->arg : "",
                o->required ? "" : "]");
    }
    fprintf(out, "\n");
}

static void option_line(const struct cv_cli_option *o, FILE *out)
{
    char left[64], letter[8] = "    ";
    if (o->letter != '\0')
        snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name, o->arg != NULL ? " " : "",
             o->arg != NULL ? o->arg : "");
    fprintf(out, "  %-26s %s\n", left, o->help);
}

static const struct cv_cli_option help_option = {
    .name = "help", .letter = 'h', .help = "show this and leave"};

static int help_program(const struct cv_cli_program *p, FILE *out)
{
    fprintf(out, "%s\n\nusage: %s COMMAND [OPTIONS]\n\ncommands:\n", p->summary, p->name);
    for (size_t i = 0; i < p->n_commands; i++)
        if (!p->commands[i].hidden)
            fprintf(out, "  %-10s %s\n", p->commands[i].name, p->commands[i].summary);
    fprintf(out, "\n'%s COMMAND --help' tells more about one.\n", p->name);
    return 0;
}

static int help_command(const struct cv_cli_program *p, const struct cv_cli_command *c, FILE *out)
{
    fprintf(out, "usage: ");
    usage_line(p, c, out);
    fprintf(out, "\n%s\n\noptions:\n", c->help);
    for (size_t i = 0; i < c->n_options; i++)
        option_line(&c->options[i], out);
    option_line(&help_option, out);
    return 0;
}

/* ---- parsing ---- */

CV_PRINTF(4, 5)
static int usage_error(const struct cv_cli_program *p, const struct cv_cli_command *c, FILE *err,
                       const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(err, "%s: ", p->name);
    vfprintf(err, fmt, ap);
    va_end(ap);
    fprintf(err, "\ntry '%s%s%s --help'\n", p->name, c != NULL ? " " : "",
            c != NULL ? c->name : "");
    return CV_CLI_EXIT_USAGE;
}

static int unknown_command(const struct cv_cli_program *p, const char *word, FILE *err)
{
    struct cv_suggest s;
    cv_suggest_init(&s, word);
    for (size_t i = 0; i < p->n_commands; i++)
        if (!p->commands[i].hidden)
            cv_suggest_add(&s, p->commands[i].name);
    const char *best = cv_suggest_best(&s);
    if (best != NULL)
        return usage_error(p, NULL, err, "unknown command '%s', did you mean '%s'?", word, best);
    return usage_error(p, NULL, err, "unknown command '%s'", word);
}

static int unknown_option(const struct cv_cli_program *p, const struct cv_cli_command *c,
                          const char *word, FILE *err)
{
    struct cv_suggest s;
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    cv_suggest_init(&s, name);
    for (size_t i = 0; i < c->n_options; i++)
        cv_suggest_add(&s, c->options[i].name);
    cv_suggest_add(&s, help_option.name);
    const char *best = word[1] == '-' ? cv_suggest_best(&s) : NULL;
    if (best != NULL)
        return usage_error(p, c, err, "unknown option '--%s', did you mean '--%s'?", name, best);
    return usage_error(p, c, err, "unknown option '%.*s'", (int)strcspn(word, "="), word);
}

/* The option that 'word' names ("--name", "--name=VALUE", "-n"), or n_options. */
static size_t find_option(const struct cv_cli_command *c, const char *word, const char **ret_inline)
{
    *ret_inline = NULL;
    for (size_t i = 0; i < c->n_options; i++) {
        const struct cv_cli_option *o = &c->options[i];
        if (word[1] != '-') {
            if (o->letter != '\0' && word[1] == o->letter && word[2] == '\0')
                return i;
            continue;
        }
        size_t len = strlen(o->name);
        if (strncmp(word + 2, o->name, len) != 0)
            continue;
        if (word[2 + len] == '\0')
            return i;
        if (word[2 + len] == '=') {
            *ret_inline = word + 2 + len + 1;
            return i;
        }
    }
    return c->n_options;
}

/* One option and its value. 0, or the exit code of a wrong one. */
static int take_option(const struct cv_cli_program *p, struct cv_cli_call *call, int argc,
                       char *const argv[], int *at)
{
    const struct cv_cli_command *c = call->command;
    const char *word = argv[*at], *value;
    size_t i = find_option(c, word, &value);
    if (i == c->n_options)
        return unknown_option(p, c, word, call->err);
    const struct cv_cli_option *o = &c->options[i];
    if (call->value[i] != NULL)
        return usage_error(p, c, call->err, "option '--%s' is given twice", o->name);
    if (o->arg == NULL) {
        if (value != NULL)
            return usage_error(p, c, call->err, "option '--%s' takes no value", o->name);
        call->value[i] = "";
        return 0;
    }
    if (value == NULL) {
        if (*at + 1 >= argc)
            return usage_error(p, c, call->err, "option '--%s' needs a value (%s)", o->name,
                               o->arg);
        value = argv[++*at];
        /* "-" alone is a file name; anything else with a dash is a forgotten value. */
        if (value[0] == '-' && value[1] != '\0')
            return usage_error(p, c, call->err,
                               "option '--%s' needs a value (%s), got '%s'; write --%s=%s if that "
                               "is meant",
                               o->name, o->arg, value, o->name, value);
    }
    call->value[i] = value;
    return 0;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int run_command(const struct cv_cli_program *p, const struct cv_cli_command *c, int argc,
                       char *const argv[], FILE *out, FILE *err)
{
    struct cv_cli_call call = {.command = c, .out = out, .err = err};
    for (int i = 0; i < argc; i++)
        if (is_help(argv[i]))
            return help_command(p, c, out);
    size_t n_args = 0;
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            if (n_args >= c->n_args)
                return usage_error(p, c, err, "'%s' takes no argument '%s'", c->name, argv[i]);
            call.args[n_args++] = argv[i];
            continue;
        }
        int ret = take_option(p, &call, argc, argv, &i);
        if (ret != 0)
            return ret;
    }
    for (size_t i = 0; i < c->n_options; i++)
        if (c->options[i].required && call.value[i] == NULL)
            return usage_error(p, c, err, "option '--%s %s' is required", c->options[i].name,
                               c->options[i].arg);
    if (n_args < c->n_args)
        return usage_error(p, c, err, "'%s' needs: %s", c->name, c->args);
    return c->run(&call);
}

int cv_cli_main(const struct cv_cli_program *program, int argc, char *const argv[], FILE *out,
                FILE *err)
{
    if (argc < 2)
        return usage_error(program, NULL, err, "a command is missing");
    const char *word = argv[1];
    if (is_help(word))
        return help_program(program, out);
    if (strcmp(word, "help") == 0 && argc == 2)
        return help_program(program, out);
    bool help = strcmp(word, "help") == 0;
    if (help)
        word = argv[2];
    if (strcmp(word, "--version") == 0)
        word = "version";
    for (size_t i = 0; i < program->n_commands; i++) {
        const struct cv_cli_command *c = &program->commands[i];
        if (strcmp(c->name, word) != 0)
            continue;
        return help ? help_command(program, c, out)
                    : run_command(program, c, argc - 2, argv + 2, out, err);
    }
    if (word[0] == '-')
        return usage_error(program, NULL, err, "unknown option '%s', a command comes first", word);
    return unknown_command(program, word, err);
}

void cv_cli_reference(const struct cv_cli_program *program, FILE *out)
{
    fprintf(out,
            "# Command line: reference\n\n"
            "Made from the command tables in `src/app/command.c` by `%s cli-reference`; a test "
            "fails when this page\nand the tables differ. `%s COMMAND --help` shows the same.\n\n"
            "Exit codes: 0 done; 1 the work failed, or what was checked is bad; 2 the command line "
            "is wrong.\n",
            program->name, program->name);
    for (size_t i = 0; i < program->n_commands; i++) {
        const struct cv_cli_command *c = &program->commands[i];
        if (c->hidden)
            continue;
        fprintf(out, "\n## %s %s\n\n```\n", program->name, c->name);
        help_command(program, c, out);
        fprintf(out, "```\n");
    }
}

/* The command line: a table of commands, each with a table of options (command.c), from which the
 * arguments are parsed and --help and doc/cli.md are made.
 *
 * Exit codes: 0 done; 1 the work failed or what was checked is bad; 2 the command line is wrong. */
#pragma once

#include <stdio.h>

#include "common/defs.h"

#define CV_CLI_OPTIONS_MAX 8
#define CV_CLI_ARGS_MAX    2
#define CV_CLI_EXIT_FAILED 1
#define CV_CLI_EXIT_USAGE  2

struct cv_cli_option {
    const char *name; /* without the dashes */
    char letter;      /* '\0': none */
    const char *arg;  /* what it takes, for the help ("FILE"); NULL: a switch */
    const char *help;
    bool required;
};

struct cv_cli_call;

struct cv_cli_command {
    const char *name;
    const char *summary; /* one line of the list of commands */
    const char *help;    /* paragraphs of its own help */
    const char *args;    /* words that it takes, for the help ("test PROFILE"); NULL: none */
    size_t n_args;       /* their number, all required; at most CV_CLI_ARGS_MAX */
    const struct cv_cli_option *options;
    size_t n_options;                           /* at most CV_CLI_OPTIONS_MAX */
    bool hidden;                                /* not listed: for building and testing */
    int (*run)(const struct cv_cli_call *call); /* the exit code */
};

/* One command line that was understood. */
struct cv_cli_call {
    const struct cv_cli_command *command;
    const char *value[CV_CLI_OPTIONS_MAX]; /* by option; NULL: not given; "" for a switch */
    const char *args[CV_CLI_ARGS_MAX];     /* the words, command->n_args of them */
    FILE *out, *err;
};

struct cv_cli_program {
    const char *name;
    const char *summary;
    const struct cv_cli_command *commands;
    size_t n_commands;
};

/* The value of an option of the call's command; NULL: not given. */
const char *cv_cli_value(const struct cv_cli_call *call, const char *option);
bool cv_cli_is_set(const struct cv_cli_call *call, const char *option);

/* Parse, run, and return the exit code. */
int cv_cli_main(const struct cv_cli_program *program, int argc, char *const argv[], FILE *out,
                FILE *err);
/* The reference page as Markdown. */
void cv_cli_reference(const struct cv_cli_program *program, FILE *out);

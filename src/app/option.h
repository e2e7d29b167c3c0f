/* The table of all options of the node's config: one row each, from which the loader, the checks
 * and the reference page (doc/config.md) are made. */
#pragma once

#include <stdio.h>

#include "common/defs.h"

enum cv_option_type {
    CV_OPTION_TEXT = 1, /* char *; min..max = length in bytes */
    CV_OPTION_ID,       /* char *; letters, digits and . _ - : */
    CV_OPTION_PATH,     /* char *; relative to the folder of the config file */
    CV_OPTION_LISTEN,   /* char *; see listen.h */
    CV_OPTION_UINT,     /* uint64_t; min..max */
    CV_OPTION_MODE,     /* uint64_t; octal permission bits */
    CV_OPTION_DURATION, /* int64_t milliseconds; min..max */
    CV_OPTION_ENUM,     /* int; index in 'names' */
    /* Lists; max = number of items. */
    CV_OPTION_TEXTS,    /* CV_CONFIG_LIST(char *) */
    CV_OPTION_SERVERS,  /* CV_CONFIG_LIST(char *); DNS servers */
    CV_OPTION_PREFIXES, /* CV_CONFIG_LIST(struct cv_prefix) */
    /* Nested. */
    CV_OPTION_SECTION,     /* the struct itself; always there, with its defaults */
    CV_OPTION_SECTION_PTR, /* pointer to the struct; NULL when it is not given */
    CV_OPTION_SECTIONS,    /* CV_CONFIG_LIST of the struct */
};

enum {
    CV_OPTION_REQUIRED = 1,
    CV_OPTION_SECRET = 2,  /* its value is not shown */
    CV_OPTION_RESTART = 4, /* a change takes effect at the next start */
    CV_OPTION_NO_FD = 8,   /* LISTEN: fd:NAME is not accepted */
    CV_OPTION_STDOUT = 16, /* PATH: "-" is standard output */
};

struct cv_section;

struct cv_option {
    const char *key;
    enum cv_option_type type;
    unsigned flags;
    const char *def; /* as it is written in the file; NULL: required, or an empty list */
    int64_t min, max;
    const char *const *names; /* ENUM; ends with NULL */
    const struct cv_section *section;
    size_t offset; /* in the struct of its section */
    const char *help;
};

struct cv_section {
    const struct cv_option *options;
    size_t n;
    size_t size; /* of its struct */
    const char *help;
};

/* The whole config: struct cv_config. */
extern const struct cv_section cv_option_root;

const struct cv_option *cv_option_find(const struct cv_section *section, const char *key);
/* "a duration", "a whole number", "ipv4 or ipv6". Returns 'out'. */
char *cv_option_wanted(const struct cv_option *o, char *out, size_t cap);
/* Milliseconds as the config writes them: "1m30s". Returns 'out'. */
char *cv_option_duration(int64_t ms, char *out, size_t cap);
/* Write the reference page as Markdown. */
void cv_option_reference(FILE *out);

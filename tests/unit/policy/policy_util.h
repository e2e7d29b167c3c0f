/* For the tests of this module: documents written with single quotes, and compiled. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/decide.h"
#include "policy/selector.h"

#include "tap.h"

/* 's' with every ' as ". The caller frees it. */
static inline char *pu_json(const char *s)
{
    char *out = strdup(s);

    for (char *p = out; *p != '\0'; p++) {
        if (*p == '\'')
            *p = '"';
    }
    return out;
}

/* Compile; a failure is a failed check and gives the empty snapshot. */
static inline struct cv_snapshot *pu_compile(const char *quoted, const char *node)
{
    struct cv_snapshot_error err;
    struct cv_snapshot *s = NULL;
    char *json = pu_json(quoted);

    if (cv_snapshot_compile(json, strlen(json), node, &err, &s) != 0) {
        T_FAIL("line %u: %s: %s", err.line, err.path, err.text);
        s = cv_snapshot_new_empty();
    }
    free(json);
    return s;
}

static inline struct cv_host pu_host(const char *text)
{
    struct cv_host h;

    if (cv_host_parse(text, strlen(text), &h) != 0) {
        T_FAIL("host '%s' does not parse", text);
        memset(&h, 0, sizeof(h));
    }
    return h;
}

static inline struct cv_verdict pu_decide(const struct cv_snapshot *s, const char *user,
                                          const char *host, const char *sniffed)
{
    struct cv_host r = pu_host(host), n;
    struct cv_verdict v;

    if (sniffed != NULL)
        n = pu_host(sniffed);
    cv_decide(s, cv_snapshot_user_find(s, user, strlen(user)), &r, sniffed != NULL ? &n : NULL, &v);
    return v;
}

/* A document that must be refused. */
struct pu_refusal {
    const char *json, *node;
    int err;
    const char *path, *text;
};

static inline void pu_refuse(const struct pu_refusal *r, size_t n, enum cv_snapshot_stage stage)
{
    for (size_t i = 0; i < n; i++) {
        struct cv_snapshot_error err;
        struct cv_snapshot *s = NULL;
        char *json = pu_json(r[i].json);
        int ret =
            cv_snapshot_compile(json, strlen(json), r[i].node != NULL ? r[i].node : "n1", &err, &s);
        bool ok = T_INT_EQ(ret, r[i].err);
        ok &= T_INT_EQ(err.stage, stage);
        ok &= T_STR_EQ(err.path, r[i].path);
        ok &= T_STR_EQ(err.text, r[i].text);
        ok &= T_OK(s == NULL);
        ok &= T_OK(strstr(err.text, "SECRET") == NULL && strstr(err.path, "SECRET") == NULL);
        if (!ok)
            printf("#   in refusal %zu: %s\n", i, r[i].json);
        free(json);
        cv_snapshot_unref(s);
    }
}

/* A small xorshift, so that a failure can be repeated. */
static inline uint32_t pu_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

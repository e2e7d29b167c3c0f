#include "flow/registry.h"

#include <string.h>

#include "common/alloc.h"
#include "common/hash.h"

#include "common/poison.h"

#define EGRESS_ROWS_MAX 20000
#define EGRESS_OVERFLOW "other"
#define BUCKETS         4096 /* chains stay short up to the maximum of rows */
#define LABEL_SHOWN_MAX 512

struct listener_row {
    struct listener_row *next; /* in the order in which they were made */
    struct cv_listener_stats stats;
};

struct egress_row {
    struct egress_row *next;  /* in the order in which they were made */
    struct egress_row *chain; /* same bucket */
    struct cv_egress_stats stats;
    char label[];
};

struct cv_registry {
    struct listener_row *listeners; /* owned */
    struct listener_row **listeners_tail;
    struct egress_row *egresses; /* owned */
    struct egress_row **egresses_tail;
    size_t n_egresses;
    struct egress_row *other; /* owned; made beforehand so that a row can always be given */
    bool other_used;          /* it is in the list */
    struct egress_row *buckets[BUCKETS];
};

struct cv_registry *cv_registry_new(void)
{
    struct cv_registry *r = cv_zalloc(sizeof(*r));
    r->listeners_tail = &r->listeners;
    r->egresses_tail = &r->egresses;
    r->other = cv_zalloc(sizeof(*r->other) + sizeof(EGRESS_OVERFLOW));
    memcpy(r->other->label, EGRESS_OVERFLOW, sizeof(EGRESS_OVERFLOW));
    return r;
}

void cv_registry_free(struct cv_registry *r)
{
    if (r == NULL)
        return;
    if (!r->other_used)
        cv_free(r->other);
    while (r->listeners != NULL) {
        struct listener_row *row = r->listeners;
        r->listeners = row->next;
        cv_free(row);
    }
    while (r->egresses != NULL) {
        struct egress_row *row = r->egresses;
        r->egresses = row->next;
        cv_free(row);
    }
    cv_free(r);
}

static void copy_bounded(char *to, size_t cap, const char *from)
{
    size_t len = strnlen(from, cap - 1);
    memcpy(to, from, len);
    to[len] = '\0';
}

struct cv_listener_stats *cv_registry_listener(struct cv_registry *r, const char *name,
                                               const char *protocol)
{
    for (struct listener_row *row = r->listeners; row != NULL; row = row->next) {
        if (strncmp(row->stats.name, name, sizeof(row->stats.name) - 1) == 0 &&
            strcmp(row->stats.protocol, protocol) == 0)
            return &row->stats;
    }
    struct listener_row *row = cv_zalloc(sizeof(*row));
    copy_bounded(row->stats.name, sizeof(row->stats.name), name);
    copy_bounded(row->stats.protocol, sizeof(row->stats.protocol), protocol);
    *r->listeners_tail = row;
    r->listeners_tail = &row->next;
    return &row->stats;
}

static struct egress_row *egress_find(struct cv_registry *r, const char *label, size_t len,
                                      size_t bucket)
{
    for (struct egress_row *row = r->buckets[bucket]; row != NULL; row = row->chain) {
        if (strncmp(row->label, label, len) == 0 && row->label[len] == '\0')
            return row;
    }
    return NULL;
}

static struct egress_row *egress_row_new(const char *label, size_t len)
{
    struct egress_row *row = cv_try_zalloc(sizeof(*row) + len + 1);
    if (row != NULL)
        memcpy(row->label, label, len);
    return row;
}

static void egress_link(struct cv_registry *r, struct egress_row *row)
{
    *r->egresses_tail = row;
    r->egresses_tail = &row->next;
}

struct cv_egress_stats *cv_registry_egress(struct cv_registry *r, const char *label)
{
    size_t len = strnlen(label, LABEL_SHOWN_MAX);
    size_t bucket = cv_hash_bytes(cv_hash_process_key(), label, len) % BUCKETS;
    struct egress_row *row = egress_find(r, label, len, bucket);
    if (row != NULL)
        return &row->stats;

    row = r->n_egresses < EGRESS_ROWS_MAX ? egress_row_new(label, len) : NULL;
    if (row == NULL) {
        if (!r->other_used)
            egress_link(r, r->other);
        r->other_used = true;
        return &r->other->stats;
    }
    row->chain = r->buckets[bucket];
    r->buckets[bucket] = row;
    egress_link(r, row);
    r->n_egresses++;
    return &row->stats;
}

void cv_registry_each_listener(struct cv_registry *r,
                               void (*fn)(void *arg, struct cv_listener_stats *s), void *arg)
{
    for (struct listener_row *row = r->listeners; row != NULL; row = row->next)
        fn(arg, &row->stats);
}

void cv_registry_each_egress(struct cv_registry *r,
                             void (*fn)(void *arg, const char *label, struct cv_egress_stats *s),
                             void *arg)
{
    for (struct egress_row *row = r->egresses; row != NULL; row = row->next)
        fn(arg, row->label, &row->stats);
}

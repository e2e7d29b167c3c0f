#include "net/hosts.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/name.h"

#include "common/poison.h"

#define FILE_MAX    (8U << 20)
#define RECORDS_MAX 262144U
#define NONE        UINT32_MAX

/* One name of one line. */
struct record {
    struct cv_ip ip;
    uint8_t name_len;
    uint32_t name; /* offset in names */
    uint32_t next; /* record in the same bucket, in file order; NONE at the end */
};

struct table {
    struct record *records; /* owned */
    char *names;            /* owned; canonical, not terminated */
    uint32_t *heads;        /* owned; n_heads is a power of two, 0 for an empty table */
    size_t n_records, cap_records;
    size_t n_names, cap_names;
    size_t n_heads;
};

struct cv_hosts {
    char *path; /* owned */
    bool have_stamp;
    struct cv_file_stamp stamp;
    struct table t;
};

static void table_done(struct table *t)
{
    cv_free(t->records);
    cv_free(t->names);
    cv_free(t->heads);
    *t = (struct table){0};
}

static int table_reserve(struct table *t, size_t name_len)
{
    if (t->n_records == t->cap_records) {
        size_t cap = t->cap_records == 0 ? 16 : t->cap_records * 2;
        void *p = cv_try_realloc_array(t->records, cap, sizeof(struct record));
        if (p == NULL)
            return -ENOMEM;
        t->records = p;
        t->cap_records = cap;
    }
    if (t->cap_names - t->n_names < name_len) {
        size_t cap = t->cap_names * 2 + 512;
        char *p = cv_try_realloc_array(t->names, cap, 1);
        if (p == NULL)
            return -ENOMEM;
        t->names = p;
        t->cap_names = cap;
    }
    return 0;
}

static int table_add(struct table *t, const struct cv_ip *ip, const char *word, size_t len)
{
    char name[CV_NAME_MAX + 1];
    size_t name_len;
    if (cv_name_canon(word, len, name, &name_len) != 0)
        return 0;
    if (t->n_records >= RECORDS_MAX)
        return CV_E_LIMIT;
    int ret = table_reserve(t, name_len);
    if (ret != 0)
        return ret;
    struct record *r = &t->records[t->n_records++];
    *r = (struct record){
        .ip = *ip, .name_len = (uint8_t)name_len, .name = (uint32_t)t->n_names, .next = NONE};
    memcpy(t->names + t->n_names, name, name_len);
    t->n_names += name_len;
    return 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

/* The next word of [*p, end), or NULL. */
static const char *next_word(const char **p, const char *end, size_t *ret_len)
{
    const char *s = *p;
    while (s < end && is_blank(*s))
        s++;
    const char *word = s;
    while (s < end && !is_blank(*s))
        s++;
    *p = s;
    *ret_len = (size_t)(s - word);
    return s > word ? word : NULL;
}

static int parse_line(struct table *t, const char *line, const char *end)
{
    const char *hash = memchr(line, '#', (size_t)(end - line));
    if (hash != NULL)
        end = hash;
    size_t len;
    const char *word = next_word(&line, end, &len);
    struct cv_ip ip;
    if (word == NULL || cv_ip_parse(word, len, &ip) != 0)
        return 0;
    while ((word = next_word(&line, end, &len)) != NULL) {
        int ret = table_add(t, &ip, word, len);
        if (ret != 0)
            return ret;
    }
    return 0;
}

static size_t bucket_of(const struct table *t, const char *name, size_t len)
{
    return (size_t)cv_hash_bytes(cv_hash_process_key(), name, len) & (t->n_heads - 1);
}

static int table_index(struct table *t)
{
    if (t->n_records == 0)
        return 0;
    size_t n = 16;
    while (n < t->n_records)
        n *= 2;
    t->heads = cv_try_realloc_array(NULL, n, sizeof(uint32_t));
    if (t->heads == NULL)
        return -ENOMEM;
    t->n_heads = n;
    memset(t->heads, 0xff, n * sizeof(uint32_t));
    /* Backwards, so that each chain is in the order of the file. */
    for (size_t i = t->n_records; i-- > 0;) {
        struct record *r = &t->records[i];
        uint32_t *head = &t->heads[bucket_of(t, t->names + r->name, r->name_len)];
        r->next = *head;
        *head = (uint32_t)i;
    }
    return 0;
}

static int table_load(struct table *t, const char *path)
{
    char *data = NULL;
    size_t len = 0;
    int ret = cv_file_read(path, FILE_MAX, &data, &len);
    if (ret != 0)
        return ret;
    const char *p = data, *end = data + len;
    while (ret == 0 && p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        if (nl == NULL)
            nl = end;
        ret = parse_line(t, p, nl);
        p = nl < end ? nl + 1 : end;
    }
    if (ret == 0)
        ret = table_index(t);
    cv_free(data);
    return ret;
}

int cv_hosts_new(const char *path, struct cv_hosts **ret_hosts)
{
    struct cv_hosts *h = cv_zalloc(sizeof(*h));
    h->path = cv_strdup(path);
    *ret_hosts = h;
    return 0;
}

void cv_hosts_free(struct cv_hosts *h)
{
    if (h == NULL)
        return;
    table_done(&h->t);
    cv_free(h->path);
    cv_free(h);
}

bool cv_hosts_refresh(struct cv_hosts *h)
{
    struct cv_file_stamp stamp;
    if (cv_file_stamp(h->path, &stamp) != 0) {
        bool had = h->t.n_records > 0;
        h->have_stamp = false;
        table_done(&h->t);
        return had;
    }
    if (h->have_stamp && cv_file_stamp_equal(&stamp, &h->stamp))
        return false;
    /* Remembered even if loading fails: a bad file is not read again at every look. */
    h->have_stamp = true;
    h->stamp = stamp;
    struct table fresh = {0};
    if (table_load(&fresh, h->path) != 0) {
        table_done(&fresh);
        return false;
    }
    table_done(&h->t);
    h->t = fresh;
    return true;
}

bool cv_hosts_find(const struct cv_hosts *h, const char *name, enum cv_family family,
                   struct cv_ip *ips, size_t cap, size_t *ret_n)
{
    const struct table *t = &h->t;
    if (t->n_heads == 0)
        return false;
    size_t len = strlen(name);
    bool found = false;
    size_t n = 0;
    for (uint32_t i = t->heads[bucket_of(t, name, len)]; i != NONE; i = t->records[i].next) {
        const struct record *r = &t->records[i];
        if (r->name_len != len || memcmp(t->names + r->name, name, len) != 0)
            continue;
        found = true;
        if (r->ip.family == family && n < cap)
            ips[n++] = r->ip;
    }
    if (found)
        *ret_n = n;
    return found;
}

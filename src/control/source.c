#include "control/source.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/secret.h"
#include "control/watch.h"

#include "common/poison.h"

#define CACHE_GAP_MS 1000 /* least time between two writes of the cache */

/* Names a content. Not kept in full: a document may have 8 MiB. */
struct digest {
    uint64_t hash;
    size_t len;
    bool valid;
};

struct cv_source {
    struct cv_loop *loop; /* borrowed */
    struct cv_watch watch;
    struct cv_source_conf conf; /* its strings are the owned ones below */
    char *file;                 /* NULL: documents are offered */
    char *origin, *cache, *node_id;

    struct digest in_force; /* of the document in force */
    struct digest bad;      /* of the document that the error below is about */
    struct cv_source_status st;
    char error_path[sizeof(((struct cv_snapshot_error *)0)->path)];
    char error_text[sizeof(((struct cv_snapshot_error *)0)->text)];
    char cache_error[160];

    struct cv_timer cache_timer;
    char *due; /* owned; a document that the cache lacks, NULL: none */
    size_t due_len;
    int64_t cache_ms; /* loop clock of the last write */
    bool cache_written;
};

static void on_change(struct cv_watch *w);
static void on_cache_timer(struct cv_timer *t);
static void load(struct cv_source *s);
static void load_cache(struct cv_source *s);
static int apply(struct cv_source *s, const char *data, size_t len, bool from_cache,
                 uint64_t newer_than, struct cv_snapshot_error *reterr);
static void cache_later(struct cv_source *s, char *data, size_t len);
static void cache_write(struct cv_source *s);

int cv_source_new(struct cv_loop *loop, const struct cv_source_conf *conf,
                  struct cv_source **ret_source)
{
    struct cv_source *s = cv_try_zalloc(sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    s->loop = loop;
    s->conf = *conf;
    s->file = conf->file != NULL ? cv_strdup(conf->file) : NULL;
    s->origin = cv_strdup(conf->file != NULL ? conf->file : conf->origin);
    s->cache = cv_strdup(conf->cache);
    s->node_id = cv_strdup(conf->node_id);
    cv_timer_init(&s->cache_timer, on_cache_timer);

    if (s->file != NULL) {
        cv_watch_start(&s->watch, loop, s->file, conf->poll_ms, on_change);
        load(s);
    }
    if (!s->st.loaded)
        load_cache(s);
    *ret_source = s;
    return 0;
}

static struct digest digest_of(const char *data, size_t len)
{
    return (struct digest){
        .hash = cv_hash_bytes(cv_hash_process_key(), data, len), .len = len, .valid = true};
}

static bool digest_equal(const struct digest *a, const struct digest *b)
{
    return a->valid && b->valid && a->hash == b->hash && a->len == b->len;
}

/* Documents hold passwords: their bytes do not stay behind in freed memory. */
static void free_document(char *data, size_t len)
{
    if (data == NULL)
        return;
    cv_secret_clear(data, len);
    cv_free(data);
}

static void read_error(const char *path, int err, struct cv_snapshot_error *reterr)
{
    *reterr = (struct cv_snapshot_error){.stage = CV_SNAPSHOT_READ};
    if (err == CV_E_LIMIT)
        snprintf(reterr->text, sizeof(reterr->text), "the file is larger than %u bytes",
                 CV_SNAPSHOT_MAX_BYTES);
    else if (err == -ENOENT)
        snprintf(reterr->text, sizeof(reterr->text), "the file does not exist");
    else
        snprintf(reterr->text, sizeof(reterr->text), "the file cannot be read: %s",
                 cv_err_text(err));
}

/* "routing_policies.p: ", "line 3, column 7: " or nothing. */
static const char *place(const struct cv_snapshot_error *e, char *out, size_t cap)
{
    if (e->line > 0)
        snprintf(out, cap, "line %u, column %u: ", e->line, e->column);
    else if (e->path[0] != '\0')
        snprintf(out, cap, "%s: ", e->path);
    else
        out[0] = '\0';
    return out;
}

/* Lines of the same kind that were left out before this one, if any. */
static void left_out_suffix(uint32_t left_out, char *out, size_t cap)
{
    out[0] = '\0';
    if (left_out > 0)
        snprintf(out, cap, " left_out=%u", left_out);
}

static void refuse(struct cv_source *s, const struct cv_snapshot_error *e)
{
    struct cv_source_status *st = &s->st;
    cv_counter_add(&s->conf.stats->snapshot_refused, 1);
    st->failures++;
    bool again = st->has_error && st->line == e->line && st->column == e->column &&
                 strcmp(s->error_path, e->path) == 0 && strcmp(s->error_text, e->text) == 0;
    if (again)
        return;
    st->has_error = true;
    st->last_error_ms = st->last_attempt_ms;
    st->line = e->line;
    st->column = e->column;
    snprintf(s->error_path, sizeof(s->error_path), "%s", e->path);
    snprintf(s->error_text, sizeof(s->error_text), "%s", e->text);

    static struct cv_log_limit limit;
    char where[sizeof(e->path) + 40], suffix[32];
    uint32_t left_out;
    if (!cv_log_limit_pass(&limit, &left_out))
        return;
    place(e, where, sizeof(where));
    left_out_suffix(left_out, suffix, sizeof(suffix));
    if (st->loaded)
        cv_warn("source", "snapshot '%s' refused, version %llu stays in force: %s%s%s", s->origin,
                (unsigned long long)st->version, where, e->text, suffix);
    else
        cv_warn("source", "snapshot '%s' refused and none is in force, every login fails: %s%s%s",
                s->origin, where, e->text, suffix);
}

static void accept_ok(struct cv_source *s)
{
    if (s->st.has_error && s->st.loaded)
        cv_info("source", "snapshot '%s' is good again", s->origin);
    s->st.has_error = false;
    s->st.failures = 0;
    s->st.line = s->st.column = 0;
    s->error_path[0] = s->error_text[0] = '\0';
    s->bad.valid = false;
}

/* Put new content (ownership moves) in force, or say why not. */
static int judge(struct cv_source *s, char *data, size_t len, const struct digest *d,
                 uint64_t newer_than)
{
    struct cv_snapshot_error e;
    int ret = apply(s, data, len, false, newer_than, &e);
    if (ret == 0) {
        accept_ok(s);
        s->in_force = *d;
        cache_later(s, data, len);
        return 0;
    }
    refuse(s, &e);
    s->bad = *d;
    /* Running out of memory is no fault of the document: try the same content again. */
    if (ret == -ENOMEM)
        s->bad.valid = false;
    free_document(data, len);
    return ret;
}

/* Read the file and put it in force if it is new and good. */
static void load(struct cv_source *s)
{
    char *data = NULL;
    size_t len = 0;
    struct cv_snapshot_error e;

    s->st.last_attempt_ms = cv_clock_unix_ms();
    int ret = cv_file_read(s->file, CV_SNAPSHOT_MAX_BYTES, &data, &len);
    /* A file that could not be read may become readable without a new time stamp. */
    s->watch.retry = ret != 0;
    if (ret != 0) {
        read_error(s->file, ret, &e);
        s->bad.valid = false;
        refuse(s, &e);
        return;
    }
    struct digest d = digest_of(data, len);
    if (digest_equal(&d, &s->in_force)) {
        accept_ok(s);
        s->st.from_cache = false;
    } else if (!digest_equal(&d, &s->bad)) {
        ret = judge(s, data, len, &d, 0);
        s->watch.retry = ret == -ENOMEM;
        return;
    }
    free_document(data, len);
}

int cv_source_offer(struct cv_source *s, char *data, size_t len)
{
    struct digest d = digest_of(data, len);
    s->st.last_attempt_ms = cv_clock_unix_ms();
    if (digest_equal(&d, &s->in_force)) {
        cv_source_confirm(s);
        free_document(data, len);
        return 0;
    }
    return judge(s, data, len, &d, s->st.loaded ? s->st.version : 0);
}

void cv_source_fail(struct cv_source *s, const char *text)
{
    struct cv_snapshot_error e = {.stage = CV_SNAPSHOT_READ};
    s->st.last_attempt_ms = cv_clock_unix_ms();
    snprintf(e.text, sizeof(e.text), "%s", text);
    s->bad.valid = false;
    refuse(s, &e);
}

void cv_source_confirm(struct cv_source *s)
{
    s->st.last_attempt_ms = cv_clock_unix_ms();
    accept_ok(s);
    s->st.from_cache = false;
}

static void load_cache(struct cv_source *s)
{
    char *data = NULL;
    size_t len = 0;
    struct cv_snapshot_error e;
    char where[sizeof(e.path) + 40];

    if (s->cache[0] == '\0')
        return;
    int ret = cv_file_read(s->cache, CV_SNAPSHOT_MAX_BYTES, &data, &len);
    if (ret == -ENOENT)
        return; /* a first start */
    if (ret != 0) {
        read_error(s->cache, ret, &e);
    } else {
        ret = apply(s, data, len, true, 0, &e);
        if (ret == 0)
            s->in_force = digest_of(data, len);
    }
    if (ret != 0)
        cv_warn("source", "snapshot cache '%s' is of no use, ignoring it: %s%s", s->cache,
                place(&e, where, sizeof(where)), e.text);
    else
        cv_warn("source", "snapshot version %llu was taken from the cache '%s'",
                (unsigned long long)s->st.version, s->cache);
    free_document(data, len);
}

/* An operator may replace the file many times a second; a few lines of each minute are enough. */
static void log_in_force(const struct cv_source_status *st, uint64_t before, const char *from)
{
    static struct cv_log_limit limit;
    char suffix[32], older[64] = "";
    uint32_t left_out;
    if (!cv_log_limit_pass(&limit, &left_out))
        return;
    left_out_suffix(left_out, suffix, sizeof(suffix));
    if (before > 0 && st->version <= before)
        snprintf(older, sizeof(older), " not_newer_than=%llu", (unsigned long long)before);
    cv_info("source",
            "snapshot in force version=%llu%s users=%u policies=%u egresses=%u selectors=%u "
            "from='%s' compile_us=%lld%s",
            (unsigned long long)st->version, older, st->users, st->policies, st->egresses,
            st->selectors, from, (long long)st->last_compile_us, suffix);
}

static int too_old(uint64_t version, uint64_t in_force, struct cv_snapshot_error *reterr)
{
    *reterr = (struct cv_snapshot_error){.stage = CV_SNAPSHOT_DECODE};
    snprintf(reterr->path, sizeof(reterr->path), "version");
    snprintf(reterr->text, sizeof(reterr->text), "%llu is not newer than %llu, which is in force",
             (unsigned long long)version, (unsigned long long)in_force);
    return CV_E_INVALID;
}

/* Compile and hand over. On success the status tells about the new one. 'newer_than' 0: any version
 * will do. */
static int apply(struct cv_source *s, const char *data, size_t len, bool from_cache,
                 uint64_t newer_than, struct cv_snapshot_error *reterr)
{
    struct cv_source_status *st = &s->st;
    struct cv_snapshot *snapshot = NULL;
    int64_t t0 = cv_clock_mono_us();

    *reterr = (struct cv_snapshot_error){0};
    int ret = cv_snapshot_compile(data, len, s->node_id, reterr, &snapshot);
    if (ret != 0)
        return ret;
    int64_t took_us = cv_clock_mono_us() - t0;
    if (newer_than > 0 && cv_snapshot_version(snapshot) <= newer_than) {
        ret = too_old(cv_snapshot_version(snapshot), newer_than, reterr);
        cv_snapshot_unref(snapshot);
        return ret;
    }
    struct cv_source_status next = *st;
    next.version = cv_snapshot_version(snapshot);
    next.users = cv_snapshot_n_users(snapshot);
    next.policies = cv_snapshot_n_policies(snapshot);
    next.egresses = cv_snapshot_n_egresses(snapshot);
    next.selectors = cv_snapshot_n_selectors(snapshot);
    ret = s->conf.on_snapshot(s->conf.arg, snapshot);
    if (ret != 0) {
        *reterr = (struct cv_snapshot_error){.stage = CV_SNAPSHOT_COMPILE};
        snprintf(reterr->text, sizeof(reterr->text), "it could not be put in force: %s",
                 cv_err_text(ret));
        return ret;
    }
    uint64_t before = st->loaded ? st->version : 0;
    *st = next;
    st->loaded = true;
    st->from_cache = from_cache;
    st->loaded_ms = cv_clock_unix_ms();
    st->last_compile_us = took_us;
    cv_counter_add(&s->conf.stats->snapshot_swaps, 1);
    log_in_force(st, before, from_cache ? "cache" : s->file != NULL ? "file" : s->origin);
    return 0;
}

/* Remember that the cache lacks 'data' (ownership moves). */
static void cache_later(struct cv_source *s, char *data, size_t len)
{
    if (s->cache[0] == '\0') {
        free_document(data, len);
        return;
    }
    free_document(s->due, s->due_len);
    s->due = data;
    s->due_len = len;
    int64_t since = cv_loop_now(s->loop) - s->cache_ms;
    if (!s->cache_written || since >= CACHE_GAP_MS)
        cache_write(s);
    else if (!cv_timer_is_armed(&s->cache_timer))
        cv_loop_timer(s->loop, &s->cache_timer, CACHE_GAP_MS - since);
}

static void on_cache_timer(struct cv_timer *t)
{
    cache_write(CV_CONTAINER_OF(t, struct cv_source, cache_timer));
}

static void cache_write(struct cv_source *s)
{
    cv_loop_timer_stop(s->loop, &s->cache_timer);
    if (s->due == NULL)
        return;
    int ret = cv_file_write_atomic(s->cache, s->due, s->due_len, 0600);
    s->cache_ms = cv_loop_now(s->loop);
    s->cache_written = true;
    if (ret == 0) {
        s->cache_error[0] = '\0';
    } else if (strcmp(s->cache_error, cv_err_text(ret)) != 0) {
        snprintf(s->cache_error, sizeof(s->cache_error), "%s", cv_err_text(ret));
        cv_warn("source", "snapshot cache '%s' cannot be written, ignoring: %s", s->cache,
                cv_err_text(ret));
    }
    free_document(s->due, s->due_len);
    s->due = NULL;
    s->due_len = 0;
}

static void on_change(struct cv_watch *w)
{
    load(CV_CONTAINER_OF(w, struct cv_source, watch));
}

void cv_source_reload(struct cv_source *s)
{
    s->bad.valid = false; /* asked for by a person: compile it again and say what is wrong */
    if (s->file != NULL)
        load(s);
}

int cv_source_set_paths(struct cv_source *s, const char *file, const char *cache)
{
    char *new_file = cv_try_strndup(file, strlen(file));
    char *new_cache = cv_try_strndup(cache, strlen(cache));
    if (new_file == NULL || new_cache == NULL) {
        cv_free(new_file);
        cv_free(new_cache);
        return -ENOMEM;
    }
    CV_ASSERT(s->file != NULL);
    cache_write(s);
    cv_watch_stop(&s->watch);
    cv_free(s->file);
    cv_free(s->origin);
    cv_free(s->cache);
    s->file = new_file;
    s->origin = cv_strdup(new_file);
    s->cache = new_cache;
    s->cache_error[0] = '\0';
    s->cache_written = false;
    /* The new cache has nothing yet: let the document be written again although it is in force. */
    s->in_force.valid = false;
    s->bad.valid = false;
    s->st.has_error = false;
    cv_watch_start(&s->watch, s->loop, s->file, s->conf.poll_ms, on_change);
    load(s);
    return 0;
}

void cv_source_status(const struct cv_source *s, struct cv_source_status *ret)
{
    *ret = s->st;
    ret->file = s->file;
    ret->origin = s->origin;
    ret->cache = s->cache;
    ret->error_path = s->error_path;
    ret->error_text = s->error_text;
    ret->cache_error = s->cache_error;
}

void cv_source_free(struct cv_source *s)
{
    if (s == NULL)
        return;
    cache_write(s);
    cv_watch_stop(&s->watch);
    cv_free(s->file);
    cv_free(s->origin);
    cv_free(s->cache);
    cv_free(s->node_id);
    cv_free(s);
}

/* Where the policy comes from: a snapshot file on disk, watched, or documents that somebody else
 * fetches and offers (sync.h).
 *
 * The source reads the file at start, whenever it changes (watch.h) and when it is told to
 * (SIGHUP), compiles it on the control thread and hands a good snapshot to its owner, which swaps
 * it in whole. Whatever fails leaves the snapshot in force untouched, is counted, and is logged
 * once for each distinct error, with its path in the document.
 *
 * The cache is a copy of the last document that compiled, written atomically with mode 0600. It is
 * read at start only, and only when the file itself is missing or bad. Writes are at most one a
 * second, the last document always gets there, and cv_source_free() writes what is left. A document
 * that does not compile never touches the cache.
 *
 * Only content that changed is compiled again. Any changed content of the file is taken, also with
 * a version that is lower than or equal to the current one, because an operator who puts an old
 * file back means it; that is logged. Of what is offered only newer versions are taken: an old copy
 * that a cache on the way or somebody else plays back is refused.
 *
 * Life: cv_source_new() loads (file, else cache, else nothing) and watches; on_snapshot may be
 * called from inside it and later from the loop. Control thread only. */
#pragma once

#include "flow/stats.h"
#include "net/loop.h"
#include "policy/snapshot.h"

struct cv_source;

struct cv_source_conf {
    const char *file;    /* copied; NULL: documents are offered */
    const char *origin;  /* copied; without a file: what the log calls where they come from */
    const char *cache;   /* copied; "" = no cache */
    const char *node_id; /* copied; chooses the override */
    /* Put 'snapshot' (ownership moves) in force. 0, or a code: the old one stayed. */
    int (*on_snapshot)(void *arg, struct cv_snapshot *snapshot);
    void *arg;
    struct cv_node_stats *stats; /* borrowed; snapshot_swaps and snapshot_refused are counted */
    int64_t poll_ms;             /* how often stat(2) looks beside inotify; 0 = 1000 */
};

/* What is shown to people. Times are unix milliseconds, 0 = never. */
struct cv_source_status {
    const char *file;   /* borrowed from the source; NULL: documents are offered */
    const char *origin; /* borrowed; the file, or where documents come from */
    const char *cache;  /* borrowed; "" = none */
    bool loaded;        /* false: the empty snapshot is in force */
    bool from_cache;    /* what is in force came from the cache */
    uint64_t version;   /* 0 unless loaded */
    uint32_t users, policies, egresses, selectors;
    int64_t loaded_ms;       /* when the snapshot in force was put there */
    int64_t last_attempt_ms; /* when the file was last read */
    int64_t last_compile_us; /* how long the last good compile took */
    uint32_t failures;       /* attempts that failed since the last good one */
    bool has_error;          /* the last attempt failed, because of: */
    int64_t last_error_ms;   /* when this error was first seen */
    uint32_t line, column;   /* of the document, 0 when unknown */
    const char *error_path;  /* JSON path or ""; borrowed */
    const char *error_text;  /* borrowed */
    const char *cache_error; /* why the cache could not be written, "" = it could; borrowed */
};

/* 0 also when nothing could be loaded: see the status. -ENOMEM and such when it cannot run. */
int cv_source_new(struct cv_loop *loop, const struct cv_source_conf *conf,
                  struct cv_source **ret_source) CV_MUST_CHECK;
/* Write a cache that is due, stop watching, free. NULL is accepted. */
void cv_source_free(struct cv_source *s);

/* Read the file now, whatever stat says. */
void cv_source_reload(struct cv_source *s);
/* A document that was fetched; 'data' is the source's from here on, and cleared after use. 0: it is
 * in force, now or already; else why not, which the status tells, too. */
int cv_source_offer(struct cv_source *s, char *data, size_t len);
/* No document could be had: 'text' says why, for the status and the log. */
void cv_source_fail(struct cv_source *s, const char *text);
/* There is nothing newer. */
void cv_source_confirm(struct cv_source *s);

/* Use another file and cache from now on, and load at once. What is in force stays until the new
 * file compiles; the cache is not read. 0 or a negative code, then nothing has changed. */
int cv_source_set_paths(struct cv_source *s, const char *file, const char *cache) CV_MUST_CHECK;

void cv_source_status(const struct cv_source *s, struct cv_source_status *ret);

/* Memory. Two allocators: cv_alloc() aborts when memory runs out and is for small sizes chosen by
 * us; cv_try_alloc() returns NULL and is for anything whose size or number a peer, a file or an
 * API user controls. Only this module calls malloc and free by those names. */
#pragma once

#include "common/defs.h"

/* Allocate or abort. cv_zalloc clears. Release with cv_free(). */
void *cv_alloc(size_t size) __attribute__((malloc, returns_nonnull));
void *cv_zalloc(size_t size) __attribute__((malloc, returns_nonnull));
char *cv_strdup(const char *s) __attribute__((malloc, returns_nonnull));
char *cv_strndup(const char *s, size_t len) __attribute__((malloc, returns_nonnull));

/* Allocate or return NULL; the torture build makes the Nth of these fail. */
void *cv_try_alloc(size_t size) CV_MUST_CHECK;
void *cv_try_zalloc(size_t size) CV_MUST_CHECK;
char *cv_try_strndup(const char *s, size_t len) CV_MUST_CHECK;

/* Resize 'p' to 'n' elements of 'size' bytes; NULL on overflow or lack of memory, 'p' untouched. */
void *cv_try_realloc_array(void *p, size_t n, size_t size) CV_MUST_CHECK;

void cv_free(void *p);

/* Free and forget. */
#define CV_FREE(p)                                                                                 \
    do {                                                                                           \
        cv_free(p);                                                                                \
        (p) = NULL;                                                                                \
    } while (0)

/* Function-local scratch memory that is freed when the variable leaves its scope. */
static inline void cv_auto_free_(void *pp)
{
    cv_free(*(void **)pp);
}
#define cv_auto_free __attribute__((cleanup(cv_auto_free_)))

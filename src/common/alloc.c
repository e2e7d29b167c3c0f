#include "common/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/torture.h"

#include "common/poison.h"

CV_NORETURN static void out_of_memory(size_t size)
{
    fprintf(stderr, "culvert: out of memory, wanted %zu bytes\n", size);
    abort();
}

/* malloc(0) may return NULL, which callers would take for a lack of memory. */
static size_t at_least_one(size_t size)
{
    return size > 0 ? size : 1;
}

void *cv_alloc(size_t size)
{
    void *p = malloc(at_least_one(size));
    if (CV_UNLIKELY(p == NULL))
        out_of_memory(size);
    return p;
}

void *cv_zalloc(size_t size)
{
    void *p = calloc(1, at_least_one(size));
    if (CV_UNLIKELY(p == NULL))
        out_of_memory(size);
    return p;
}

char *cv_strndup(const char *s, size_t len)
{
    char *p = cv_alloc(len + 1);
    if (len > 0)
        memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

char *cv_strdup(const char *s)
{
    return cv_strndup(s, strlen(s));
}

void *cv_try_alloc(size_t size)
{
    if (cv_torture_fail("alloc"))
        return NULL;
    return malloc(at_least_one(size));
}

void *cv_try_zalloc(size_t size)
{
    if (cv_torture_fail("alloc"))
        return NULL;
    return calloc(1, at_least_one(size));
}

char *cv_try_strndup(const char *s, size_t len)
{
    size_t size;
    if (CV_ADD_OVERFLOW(len, (size_t)1, &size))
        return NULL;
    char *p = cv_try_alloc(size);
    if (p == NULL)
        return NULL;
    if (len > 0)
        memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

void *cv_try_realloc_array(void *p, size_t n, size_t size)
{
    size_t total;
    if (CV_MUL_OVERFLOW(n, size, &total) || cv_torture_fail("realloc"))
        return NULL;
    return realloc(p, at_least_one(total));
}

void cv_free(void *p)
{
    free(p);
}

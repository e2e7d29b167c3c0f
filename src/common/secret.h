/* Secrets: compared in constant time, cleared before release, never logged. */
#pragma once

#include "common/defs.h"

/* True if both have the same length and bytes; the time depends on the lengths only. */
bool cv_ct_equal(const void *a, size_t a_len, const void *b, size_t b_len);
/* Overwrite in a way that the compiler keeps. */
void cv_secret_clear(void *p, size_t len);
/* Clear and free a string; NULL is accepted. */
void cv_secret_free(char *s);

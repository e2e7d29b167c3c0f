/* Random bytes from the kernel's generator. */
#pragma once

#include "common/defs.h"

void cv_rand_bytes(void *p, size_t len);
uint64_t cv_rand_u64(void);
/* Uniform in 0..bound-1; bound > 0. */
uint32_t cv_rand_below(uint32_t bound);

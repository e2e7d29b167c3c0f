/* What lwIP wants to know of the compiler and the platform. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LWIP_NO_CTYPE_H 0

uint32_t cv_lwip_rand(void);
_Noreturn void cv_lwip_assert(const char *message, const char *file, int line);
uint16_t cv_lwip_checksum(const void *data, int len);
uint16_t cv_lwip_netif_mss(void *netif);
void cv_lwip_rexmit(unsigned netif_idx);
void *cv_lwip_route(void);
void *cv_lwip_malloc(size_t size);
void cv_lwip_free(void *p);

#define LWIP_RAND()             cv_lwip_rand()
#define LWIP_PLATFORM_DIAG(x)   ((void)0)
#define LWIP_PLATFORM_ASSERT(x) cv_lwip_assert(x, __FILE__, __LINE__)
/* Wrong arguments are bugs of ours, but never a reason to end the process. */
#define LWIP_ERROR(message, expression, handler)                                                   \
    do {                                                                                           \
        if (!(expression)) {                                                                       \
            handler;                                                                               \
        }                                                                                          \
    } while (0)

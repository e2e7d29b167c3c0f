#include "common/secret.h"

#include <string.h>

#include <openssl/crypto.h>

#include "common/alloc.h"

#include "common/poison.h"

bool cv_ct_equal(const void *a, size_t a_len, const void *b, size_t b_len)
{
    if (a_len != b_len)
        return false;
    return a_len == 0 || CRYPTO_memcmp(a, b, a_len) == 0;
}

void cv_secret_clear(void *p, size_t len)
{
    if (len > 0)
        explicit_bzero(p, len);
}

void cv_secret_free(char *s)
{
    if (s == NULL)
        return;
    explicit_bzero(s, strlen(s));
    cv_free(s);
}

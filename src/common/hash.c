#include "common/hash.h"

#include <pthread.h>
#include <string.h>

#include "common/rand.h"

#include "common/poison.h"

static struct cv_hash_key process_key;

static void make_process_key(void)
{
    cv_rand_bytes(&process_key, sizeof(process_key));
}

const struct cv_hash_key *cv_hash_process_key(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_process_key);
    return &process_key;
}

struct sip {
    uint64_t v0, v1, v2, v3;
};

static inline uint64_t rotl(uint64_t x, int b)
{
    return x << b | x >> (64 - b);
}

static inline void sip_round(struct sip *s)
{
    s->v0 += s->v1;
    s->v1 = rotl(s->v1, 13) ^ s->v0;
    s->v0 = rotl(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotl(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotl(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotl(s->v1, 17) ^ s->v2;
    s->v2 = rotl(s->v2, 32);
}

static inline uint64_t load_le64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

uint64_t cv_hash_bytes(const struct cv_hash_key *key, const void *data, size_t len)
{
    if (key == NULL)
        key = cv_hash_process_key();
    struct sip s = {
        .v0 = key->k[0] ^ 0x736f6d6570736575ULL,
        .v1 = key->k[1] ^ 0x646f72616e646f6dULL,
        .v2 = key->k[0] ^ 0x6c7967656e657261ULL,
        .v3 = key->k[1] ^ 0x7465646279746573ULL,
    };
    const uint8_t *p = data;
    size_t left = len;
    for (; left >= 8; left -= 8, p += 8) {
        uint64_t m = load_le64(p);
        s.v3 ^= m;
        sip_round(&s);
        s.v0 ^= m;
    }
    uint64_t last = (uint64_t)len << 56;
    for (size_t i = 0; i < left; i++)
        last |= (uint64_t)p[i] << (8 * i);
    s.v3 ^= last;
    sip_round(&s);
    s.v0 ^= last;
    s.v2 ^= 0xff;
    sip_round(&s);
    sip_round(&s);
    sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

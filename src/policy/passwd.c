#include "policy/passwd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <argon2.h>
#include <openssl/evp.h>

#include "common/base64.h"
#include "common/hash.h"
#include "common/rand.h"
#include "common/secret.h"
#include "policy/snapshot_priv.h"

#include "common/poison.h"

#define SHA256_LEN      32
#define SHA256_SALT_MAX 64
#define NEW_SALT_LEN    16

/* What a stored argon2id password may ask of the machine that checks it. */
#define ARGON2_MEMORY_MAX (1u << 20) /* KiB */
#define ARGON2_PASSES_MAX 64u
#define ARGON2_LANES_MAX  16u
#define ARGON2_SALT_MIN   8 /* bytes; the library's own minimum */
#define ARGON2_SALT_MAX   64
#define ARGON2_HASH_MIN   12
#define ARGON2_HASH_MAX   64
#define ARGON2_TEXT_MAX   255

/* For new passwords: OWASP's recommendation for argon2id. */
#define ARGON2_NEW_MEMORY 19456 /* KiB */
#define ARGON2_NEW_PASSES 2
#define ARGON2_NEW_HASH   32

static const char sha256_prefix[] = "sha256:";
static const char argon2_prefix[] = "$argon2";
static const char argon2id_prefix[] = "$argon2id$v=19$";

/* What an unknown user is checked against when there are no users. Never released. */
static struct cv_rcstr decoy_fixed = {
    ._refs = 1, .len = sizeof("-no-such-user-") - 1, .s = "-no-such-user-"};

static bool starts_with(const char *s, size_t len, const char *prefix)
{
    size_t n = strlen(prefix);
    return len >= n && memcmp(s, prefix, n) == 0;
}

struct sha256_form {
    uint8_t salt[SHA256_SALT_MAX];
    size_t salt_len;
    uint8_t hash[SHA256_LEN];
};

static int parse_sha256(const char *s, size_t len, struct sha256_form *ret_form)
{
    size_t n;

    s += strlen(sha256_prefix);
    len -= strlen(sha256_prefix);
    const char *colon = memchr(s, ':', len);
    if (colon == NULL)
        return CV_E_PARSE;
    size_t salt_len = (size_t)(colon - s);
    if (cv_hex_decode(s, salt_len, ret_form->salt, sizeof(ret_form->salt), &ret_form->salt_len) !=
            0 ||
        ret_form->salt_len == 0)
        return CV_E_PARSE;
    if (cv_hex_decode(colon + 1, len - salt_len - 1, ret_form->hash, sizeof(ret_form->hash), &n) !=
            0 ||
        n != SHA256_LEN)
        return CV_E_PARSE;
    return 0;
}

/* A cursor over a PHC string. */
struct phc {
    const char *p;
    size_t left;
};

/* "<name><decimal><end>"; no leading zero, 1..max. */
static bool phc_number(struct phc *c, const char *name, uint32_t max, char end, uint32_t *ret_n)
{
    size_t n = strlen(name), digits = 0;
    uint64_t v = 0;

    if (!starts_with(c->p, c->left, name))
        return false;
    c->p += n;
    c->left -= n;
    for (; digits < c->left && digits < 10 && c->p[digits] >= '0' && c->p[digits] <= '9'; digits++)
        v = v * 10 + (uint64_t)(c->p[digits] - '0');
    if (digits == 0 || digits == c->left || c->p[0] == '0' || c->p[digits] != end || v > max)
        return false;
    c->p += digits + 1;
    c->left -= digits + 1;
    *ret_n = (uint32_t)v;
    return true;
}

/* The bytes that 'len' characters of base64 without padding stand for; 0 if they are no such. */
static size_t base64_bytes(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '+' || c == '/'))
            return 0;
    }
    return len % 4 == 1 ? 0 : len * 3 / 4;
}

/* The library reads the string again; this makes sure before that it asks for nothing absurd. */
static int check_argon2id(const char *s, size_t len)
{
    uint32_t memory, passes, lanes;

    if (!starts_with(s, len, argon2id_prefix) || len > ARGON2_TEXT_MAX)
        return CV_E_PARSE;
    struct phc c = {s + strlen(argon2id_prefix), len - strlen(argon2id_prefix)};
    if (!phc_number(&c, "m=", ARGON2_MEMORY_MAX, ',', &memory) ||
        !phc_number(&c, "t=", ARGON2_PASSES_MAX, ',', &passes) ||
        !phc_number(&c, "p=", ARGON2_LANES_MAX, '$', &lanes) || memory < 8 * lanes)
        return CV_E_PARSE;
    const char *dollar = memchr(c.p, '$', c.left);
    if (dollar == NULL)
        return CV_E_PARSE;
    size_t salt_chars = (size_t)(dollar - c.p);
    size_t salt = base64_bytes(c.p, salt_chars);
    size_t hash = base64_bytes(dollar + 1, c.left - salt_chars - 1);
    if (salt < ARGON2_SALT_MIN || salt > ARGON2_SALT_MAX || hash < ARGON2_HASH_MIN ||
        hash > ARGON2_HASH_MAX)
        return CV_E_PARSE;
    return 0;
}

int cv_passwd_kind(const char *stored, size_t len, enum cv_passwd_kind *ret_kind)
{
    enum cv_passwd_kind kind = CV_PASSWD_PLAIN;
    int ret = 0;

    if (starts_with(stored, len, sha256_prefix)) {
        struct sha256_form form;
        kind = CV_PASSWD_SHA256;
        ret = parse_sha256(stored, len, &form);
    } else if (starts_with(stored, len, argon2_prefix)) {
        kind = CV_PASSWD_ARGON2ID;
        ret = check_argon2id(stored, len);
    }
    if (ret == 0)
        *ret_kind = kind;
    return ret;
}

static int sha256(const void *salt, size_t salt_len, const char *password, size_t len,
                  uint8_t out[SHA256_LEN])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    unsigned n = 0;

    if (ctx == NULL)
        return -ENOMEM;
    bool ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1 &&
              EVP_DigestUpdate(ctx, salt, salt_len) == 1 &&
              EVP_DigestUpdate(ctx, password, len) == 1 && EVP_DigestFinal_ex(ctx, out, &n) == 1 &&
              n == SHA256_LEN;
    EVP_MD_CTX_free(ctx);
    return ok ? 0 : -ENOMEM;
}

static int verify_sha256(const char *stored, size_t stored_len, const char *given, size_t len)
{
    struct sha256_form form;
    uint8_t hash[SHA256_LEN];

    if (parse_sha256(stored, stored_len, &form) != 0)
        return CV_E_AUTH;
    int ret = sha256(form.salt, form.salt_len, given, len, hash);
    if (ret == 0 && !cv_ct_equal(hash, sizeof(hash), form.hash, sizeof(form.hash)))
        ret = CV_E_AUTH;
    cv_secret_clear(hash, sizeof(hash));
    return ret;
}

static int verify_argon2id(const char *stored, size_t stored_len, const char *given, size_t len)
{
    char text[ARGON2_TEXT_MAX + 1];

    if (check_argon2id(stored, stored_len) != 0)
        return CV_E_AUTH;
    memcpy(text, stored, stored_len);
    text[stored_len] = '\0';
    int rc = argon2id_verify(text, given, len);
    cv_secret_clear(text, sizeof(text));
    if (rc == ARGON2_OK)
        return 0;
    if (rc == ARGON2_MEMORY_ALLOCATION_ERROR || rc == ARGON2_THREAD_FAIL)
        return -ENOMEM;
    return CV_E_AUTH;
}

int cv_passwd_verify(const char *stored, size_t stored_len, const char *given, size_t given_len)
{
    if (starts_with(stored, stored_len, sha256_prefix))
        return verify_sha256(stored, stored_len, given, given_len);
    if (starts_with(stored, stored_len, argon2_prefix))
        return verify_argon2id(stored, stored_len, given, given_len);
    bool same = cv_ct_equal(stored, stored_len, given, given_len);
    return same && stored_len > 0 ? 0 : CV_E_AUTH;
}

struct cv_rcstr *cv_passwd_decoy(const struct cv_snapshot *s, const char *name, size_t len)
{
    if (s->n_users == 0)
        return &decoy_fixed;
    /* Under a key, so that nobody can tell from the time whose password stands in for a name. */
    return s->users[cv_hash_bytes(cv_hash_process_key(), name, len) % s->n_users].password;
}

static int hash_sha256(const char *password, size_t len, char *out, size_t cap)
{
    uint8_t salt[NEW_SALT_LEN], hash[SHA256_LEN];
    char salt_hex[2 * NEW_SALT_LEN + 1], hash_hex[2 * SHA256_LEN + 1];

    cv_rand_bytes(salt, sizeof(salt));
    int ret = sha256(salt, sizeof(salt), password, len, hash);
    if (ret != 0)
        return ret;
    cv_hex_encode(salt, sizeof(salt), salt_hex);
    cv_hex_encode(hash, sizeof(hash), hash_hex);
    int n = snprintf(out, cap, "%s%s:%s", sha256_prefix, salt_hex, hash_hex);
    cv_secret_clear(hash, sizeof(hash));
    cv_secret_clear(hash_hex, sizeof(hash_hex));
    return n >= 0 && (size_t)n < cap ? 0 : CV_E_LIMIT;
}

static int hash_argon2id(const char *password, size_t len, char *out, size_t cap)
{
    uint8_t salt[NEW_SALT_LEN];

    cv_rand_bytes(salt, sizeof(salt));
    if (cap < argon2_encodedlen(ARGON2_NEW_PASSES, ARGON2_NEW_MEMORY, 1, sizeof(salt),
                                ARGON2_NEW_HASH, Argon2_id))
        return CV_E_LIMIT;
    int rc = argon2id_hash_encoded(ARGON2_NEW_PASSES, ARGON2_NEW_MEMORY, 1, password, len, salt,
                                   sizeof(salt), ARGON2_NEW_HASH, out, cap);
    return rc == ARGON2_OK ? 0 : -ENOMEM;
}

int cv_passwd_hash(enum cv_passwd_kind kind, const char *password, size_t len, char *out,
                   size_t cap)
{
    switch (kind) {
    case CV_PASSWD_SHA256:
        return hash_sha256(password, len, out, cap);
    case CV_PASSWD_ARGON2ID:
        return hash_argon2id(password, len, out, cap);
    case CV_PASSWD_PLAIN:
        break;
    }
    return CV_E_INVALID;
}

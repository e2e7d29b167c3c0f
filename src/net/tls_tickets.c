#include "net/tls_tickets.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/alloc.h"
#include "common/rand.h"
#include "common/secret.h"
#include "net/tls_priv.h"

#include "common/poison.h"

#define KEYS 2 /* the newest first */

struct key {
    uint8_t name[16]; /* goes in the clear with the ticket */
    uint8_t cipher[32];
    uint8_t mac[32];
};

struct cv_tls_tickets {
    atomic_uint refs;
    /* Held to copy a key only; a handshake takes many locks of OpenSSL beside it. */
    pthread_mutex_t lock;
    struct key keys[KEYS];
};

static void key_make(struct key *k)
{
    cv_rand_bytes(k, sizeof(*k));
}

struct cv_tls_tickets *cv_tls_tickets_new(void)
{
    struct cv_tls_tickets *t = cv_zalloc(sizeof(*t));
    atomic_init(&t->refs, 1);
    pthread_mutex_init(&t->lock, NULL);
    for (size_t i = 0; i < KEYS; i++)
        key_make(&t->keys[i]);
    return t;
}

struct cv_tls_tickets *cv_tls_tickets_ref(struct cv_tls_tickets *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void cv_tls_tickets_unref(struct cv_tls_tickets *t)
{
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) > 1)
        return;
    pthread_mutex_destroy(&t->lock);
    cv_secret_clear(t->keys, sizeof(t->keys));
    cv_free(t);
}

void cv_tls_tickets_rotate(struct cv_tls_tickets *t)
{
    struct key fresh;
    key_make(&fresh);
    pthread_mutex_lock(&t->lock);
    memmove(&t->keys[1], &t->keys[0], (KEYS - 1) * sizeof(t->keys[0]));
    t->keys[0] = fresh;
    pthread_mutex_unlock(&t->lock);
    cv_secret_clear(&fresh, sizeof(fresh));
}

/* The index of the key with this name (the newest for NULL), or -1. */
static int key_get(struct cv_tls_tickets *t, const uint8_t *name, struct key *ret_key)
{
    int found = -1;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < KEYS && found < 0; i++)
        if (name == NULL || memcmp(t->keys[i].name, name, sizeof(t->keys[i].name)) == 0)
            found = i;
    if (found >= 0)
        *ret_key = t->keys[found];
    pthread_mutex_unlock(&t->lock);
    return found;
}

static bool mac_init(EVP_MAC_CTX *mac, struct key *k)
{
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, k->mac, sizeof(k->mac)),
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, sizeof(digest) - 1),
        OSSL_PARAM_construct_end(),
    };
    return EVP_MAC_CTX_set_params(mac, params) == 1;
}

/* On any thread, from inside a handshake. -1 error; 0 not one of ours: a full handshake; 1 good;
 * 2 good, and a new ticket is due. */
static int on_ticket(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher,
                     EVP_MAC_CTX *mac, int seal)
{
    struct cv_tls_tickets *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    struct key k;
    int at = key_get(t, seal ? NULL : name, &k);
    if (at < 0)
        return 0;
    bool ok = mac_init(mac, &k);
    if (ok && seal) {
        memcpy(name, k.name, sizeof(k.name));
        cv_rand_bytes(iv, (size_t)EVP_CIPHER_get_iv_length(EVP_aes_256_cbc()));
        ok = EVP_EncryptInit_ex(cipher, EVP_aes_256_cbc(), NULL, k.cipher, iv) == 1;
    } else if (ok) {
        ok = EVP_DecryptInit_ex(cipher, EVP_aes_256_cbc(), NULL, k.cipher, iv) == 1;
    }
    cv_secret_clear(&k, sizeof(k));
    if (!ok)
        return -1;
    return at > 0 ? 2 : 1;
}

bool cv_tls_tickets_use(struct cv_tls_tickets *t, SSL_CTX *ssl)
{
    SSL_CTX_set_app_data(ssl, t);
    SSL_CTX_set_timeout(ssl, CV_TLS_TICKET_MS / 1000);
    return SSL_CTX_set_tlsext_ticket_key_evp_cb(ssl, on_ticket) == 1;
}

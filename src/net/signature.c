#include "net/signature.h"

#include <errno.h>
#include <string.h>

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/err.h"
#include "common/file.h"

#include "common/poison.h"

#define KEY_FILE_MAX 16384

struct cv_verify_key {
    EVP_PKEY *pkey; /* owned */
};

int cv_verify_key_load(const char *path, struct cv_verify_key **ret_key)
{
    char *text = NULL;
    size_t len = 0;
    int ret = cv_file_read(path, KEY_FILE_MAX, &text, &len);
    if (ret != 0)
        return ret == CV_E_LIMIT ? CV_E_PARSE : ret;
    BIO *bio = BIO_new_mem_buf(text, (int)len);
    EVP_PKEY *pkey = bio != NULL ? PEM_read_bio_PUBKEY(bio, NULL, NULL, NULL) : NULL;
    BIO_free(bio);
    cv_free(text);
    if (pkey == NULL || EVP_PKEY_get_id(pkey) != EVP_PKEY_ED25519) {
        EVP_PKEY_free(pkey);
        return CV_E_PARSE;
    }
    struct cv_verify_key *k = cv_zalloc(sizeof(*k));
    k->pkey = pkey;
    *ret_key = k;
    return 0;
}

void cv_verify_key_free(struct cv_verify_key *k)
{
    if (k == NULL)
        return;
    EVP_PKEY_free(k->pkey);
    cv_free(k);
}

int cv_verify(const struct cv_verify_key *k, const char *text, const void *data, size_t len)
{
    uint8_t signature[CV_SIGNATURE_LEN + 1];
    size_t n = 0;
    if (cv_base64_decode(text, strlen(text), signature, sizeof(signature), &n) != 0 ||
        n != CV_SIGNATURE_LEN)
        return CV_E_PARSE;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (ctx == NULL)
        return -ENOMEM;
    bool good = EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, k->pkey) == 1 &&
                EVP_DigestVerify(ctx, signature, n, data, len) == 1;
    EVP_MD_CTX_free(ctx);
    return good ? 0 : CV_E_AUTH;
}

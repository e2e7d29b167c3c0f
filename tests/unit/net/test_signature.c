#include "net/signature.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base64.h"
#include "common/err.h"
#include "tap.h"

/* RFC 8032 section 7.1, test 2: one byte. */
static const char public_key[] = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
static const char signature_hex[] =
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";
static const uint8_t message[] = {0x72};

/* The key as a SubjectPublicKeyInfo (RFC 8410) in PEM. */
static void write_key(const char *path)
{
    static const char prefix[] = "302a300506032b6570032100";
    char hex[sizeof(prefix) + sizeof(public_key)], text[128];
    uint8_t der[64];
    size_t len = 0;
    snprintf(hex, sizeof(hex), "%s%s", prefix, public_key);
    if (cv_hex_decode(hex, strlen(hex), der, sizeof(der), &len) != 0 ||
        cv_base64_encode(der, len, text, sizeof(text)) != 0)
        abort();
    FILE *f = fopen(path, "w");
    if (f == NULL)
        abort();
    fprintf(f, "-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n", text);
    fclose(f);
}

static void test_verify(void)
{
    char path[] = "/tmp/cv-signature-XXXXXX", text[128];
    uint8_t raw[CV_SIGNATURE_LEN];
    struct cv_verify_key *k = NULL;
    size_t len = 0;
    int fd = mkstemp(path);
    if (fd < 0)
        abort();
    close(fd);
    T_INT_EQ(cv_verify_key_load(path, &k), CV_E_PARSE);
    write_key(path);
    T_INT_EQ(cv_verify_key_load(path, &k), 0);
    T_INT_EQ(cv_hex_decode(signature_hex, strlen(signature_hex), raw, sizeof(raw), &len), 0);
    T_INT_EQ(cv_base64_encode(raw, len, text, sizeof(text)), 0);
    T_INT_EQ(cv_verify(k, text, message, sizeof(message)), 0);
    T_INT_EQ(cv_verify(k, text, message, 0), CV_E_AUTH);
    T_INT_EQ(cv_verify(k, text, "s", 1), CV_E_AUTH);
    raw[5] ^= 1;
    T_INT_EQ(cv_base64_encode(raw, len, text, sizeof(text)), 0);
    T_INT_EQ(cv_verify(k, text, message, sizeof(message)), CV_E_AUTH);
    T_INT_EQ(cv_verify(k, "", message, sizeof(message)), CV_E_PARSE);
    T_INT_EQ(cv_verify(k, "AAAA", message, sizeof(message)), CV_E_PARSE);
    T_INT_EQ(cv_verify(k, "not base64!", message, sizeof(message)), CV_E_PARSE);
    cv_verify_key_free(k);
    cv_verify_key_free(NULL);
    unlink(path);
    T_OK(cv_verify_key_load(path, &k) < 0);
}

int main(void)
{
    T_RUN(test_verify);
    return t_done();
}

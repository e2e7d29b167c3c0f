/* Ed25519 signatures (RFC 8032) of documents, by a public key in a PEM file as `openssl pkey
 * -pubout` writes it. */
#pragma once

#include "common/defs.h"

#define CV_SIGNATURE_LEN 64

struct cv_verify_key;

/* Read the key. 0; -ENOENT and such when the file cannot be read; CV_E_PARSE: it holds no Ed25519
 * public key. */
int cv_verify_key_load(const char *path, struct cv_verify_key **ret_key) CV_MUST_CHECK;
void cv_verify_key_free(struct cv_verify_key *k); /* NULL is accepted */
/* Is 'text', base64 of 64 bytes, the key's signature of the data? 0; CV_E_PARSE: no signature at
 * all; CV_E_AUTH: it is of another key or of other data. */
int cv_verify(const struct cv_verify_key *k, const char *text, const void *data,
              size_t len) CV_MUST_CHECK;

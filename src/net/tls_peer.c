/* Certificates of clients: whom a server trusts to issue them, and whom they name. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"
#include "common/utf8.h"
#include "net/tls.h"
#include "net/tls_priv.h"

#include "common/poison.h"

#define CA_FILE_MAX   (1U << 20)
#define CRL_FILE_MAX  (16U << 20)
#define CERT_LIST_MAX 32768 /* bytes of a client's chain */
#define VERIFY_DEPTH  8
#define ISSUERS_NAMED 32 /* beyond, the client has to choose without a hint */

/* ---- whom we trust ---- */

static int read_infos(const char *path, size_t max, const char *what, char **reterr_text,
                      STACK_OF(X509_INFO) * *ret_infos)
{
    char *data = NULL;
    size_t len = 0;
    int ret = cv_file_read(path, max, &data, &len);
    if (ret != 0)
        return cv_tls_say(ret, reterr_text, false, "%s file '%s': %s", what, path,
                          cv_err_text(ret));
    ERR_clear_error();
    BIO *bio = BIO_new_mem_buf(data, (int)len);
    STACK_OF(X509_INFO) *infos = NULL;
    if (bio != NULL)
        infos = PEM_X509_INFO_read_bio(bio, NULL, cv_tls_no_passphrase, NULL);
    BIO_free(bio);
    cv_free(data);
    if (infos == NULL)
        return cv_tls_say(bio != NULL ? CV_E_INVALID : -ENOMEM, reterr_text, true,
                          "%s file '%s' is not usable", what, path);
    *ret_infos = infos;
    return 0;
}

static int add_cas(X509_STORE *store, STACK_OF(X509_NAME) * names, STACK_OF(X509_INFO) * infos)
{
    int n = 0;
    for (int i = 0; i < sk_X509_INFO_num(infos); i++) {
        X509_INFO *info = sk_X509_INFO_value(infos, i);
        if (info->x509 == NULL || info->crl != NULL || info->x_pkey != NULL)
            return CV_E_INVALID;
        if (X509_STORE_add_cert(store, info->x509) != 1)
            return -ENOMEM;
        X509_NAME *name = X509_NAME_dup(X509_get_subject_name(info->x509));
        if (name == NULL || sk_X509_NAME_push(names, name) == 0) {
            X509_NAME_free(name);
            return -ENOMEM;
        }
        n++;
    }
    return n > 0 ? 0 : CV_E_INVALID;
}

static int add_crls(X509_STORE *store, STACK_OF(X509_INFO) * infos)
{
    int n = 0;
    for (int i = 0; i < sk_X509_INFO_num(infos); i++) {
        X509_INFO *info = sk_X509_INFO_value(infos, i);
        if (info->crl == NULL || info->x509 != NULL || info->x_pkey != NULL)
            return CV_E_INVALID;
        if (X509_STORE_add_crl(store, info->crl) != 1)
            return -ENOMEM;
        n++;
    }
    return n > 0 ? 0 : CV_E_INVALID;
}

static int load_cas(struct cv_tls_trust *t, const char *path, char **reterr_text)
{
    STACK_OF(X509_INFO) *infos = NULL;
    int ret = read_infos(path, CA_FILE_MAX, "client authority", reterr_text, &infos);
    if (ret != 0)
        return ret;
    ret = add_cas(t->store, t->names, infos);
    sk_X509_INFO_pop_free(infos, X509_INFO_free);
    if (ret != 0)
        cv_tls_say(ret, reterr_text, ret != CV_E_INVALID,
                   "client authority file '%s' must hold certificates and nothing else", path);
    return ret;
}

/* With a list, each certificate of a chain is looked up in that of its issuer, and is refused when
 * there is none for it or it is out of date. */
static int load_crls(struct cv_tls_trust *t, const char *path, char **reterr_text)
{
    STACK_OF(X509_INFO) *infos = NULL;
    int ret = read_infos(path, CRL_FILE_MAX, "revocation list", reterr_text, &infos);
    if (ret != 0)
        return ret;
    ret = add_crls(t->store, infos);
    sk_X509_INFO_pop_free(infos, X509_INFO_free);
    if (ret == 0 &&
        X509_STORE_set_flags(t->store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL) != 1)
        ret = -ENOMEM;
    if (ret != 0)
        cv_tls_say(ret, reterr_text, ret != CV_E_INVALID,
                   "revocation list file '%s' must hold revocation lists and nothing else", path);
    return ret;
}

int cv_tls_trust_load(struct cv_tls_trust *t, const struct cv_tls_server_opts *o,
                      char **reterr_text)
{
    t->store = X509_STORE_new();
    t->names = sk_X509_NAME_new_null();
    if (t->store == NULL || t->names == NULL)
        return cv_tls_say(-ENOMEM, reterr_text, true, "client authorities");
    int ret = load_cas(t, o->client_ca, reterr_text);
    if (ret == 0 && o->client_crl != NULL)
        ret = load_crls(t, o->client_crl, reterr_text);
    t->required = o->client_required;
    return ret;
}

void cv_tls_trust_done(struct cv_tls_trust *t)
{
    X509_STORE_free(t->store);
    sk_X509_NAME_pop_free(t->names, X509_NAME_free);
    *t = (struct cv_tls_trust){0};
}

int cv_tls_trust_use(const struct cv_tls_trust *t, SSL_CTX *ssl)
{
    SSL_CTX_set1_cert_store(ssl, t->store);
    if (sk_X509_NAME_num(t->names) <= ISSUERS_NAMED) {
        STACK_OF(X509_NAME) *names = SSL_dup_CA_list(t->names);
        if (names == NULL)
            return -ENOMEM;
        SSL_CTX_set_client_CA_list(ssl, names);
    }
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | (t->required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                       NULL);
    SSL_CTX_set_verify_depth(ssl, VERIFY_DEPTH);
    SSL_CTX_set_max_cert_list(ssl, CERT_LIST_MAX);
    /* A resumed session would bring its old verdict along: a certificate that was revoked or has
     * expired since would still be good. So there are none. */
    SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(ssl, 0);
    return 0;
}

/* ---- whom they name ---- */

/* Text that may be a user's name: UTF-8 without control characters. */
static int take_text(const ASN1_STRING *s, char out[CV_TLS_USER_MAX + 1])
{
    const char *p = (const char *)ASN1_STRING_get0_data(s);
    int len = ASN1_STRING_length(s), type = ASN1_STRING_type(s);
    if (len < 1 || len > CV_TLS_USER_MAX)
        return CV_E_AUTH;
    if (type != V_ASN1_UTF8STRING && type != V_ASN1_PRINTABLESTRING && type != V_ASN1_IA5STRING)
        return CV_E_AUTH;
    for (size_t i = 0, n; i < (size_t)len; i += n) {
        uint32_t cp;
        n = cv_utf8_decode(p + i, (size_t)len - i, &cp);
        if (n == 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0) ||
            (n > 1 && type != V_ASN1_UTF8STRING))
            return CV_E_AUTH;
    }
    memcpy(out, p, (size_t)len);
    out[len] = '\0';
    return 0;
}

static int common_name(const X509 *x, char out[CV_TLS_USER_MAX + 1])
{
    const X509_NAME *name = X509_get_subject_name(x);
    int at = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
    if (at < 0 || X509_NAME_get_index_by_NID(name, NID_commonName, at) >= 0)
        return CV_E_AUTH;
    return take_text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at)), out);
}

static int alternative_name(const X509 *x, int kind, char out[CV_TLS_USER_MAX + 1])
{
    const ASN1_STRING *found = NULL;
    int critical, n = 0, ret = CV_E_AUTH;
    /* NULL also when the extension is there twice, or is garbage. */
    GENERAL_NAMES *names = X509_get_ext_d2i(x, NID_subject_alt_name, &critical, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        int type;
        const ASN1_STRING *s = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
        if (type != kind)
            continue;
        found = s;
        n++;
    }
    if (n == 1)
        ret = take_text(found, out);
    GENERAL_NAMES_free(names);
    return ret;
}

int cv_tls_name_of(const X509 *x, enum cv_tls_user_from from, char out[CV_TLS_USER_MAX + 1])
{
    switch (from) {
    case CV_TLS_USER_CN:
        return common_name(x, out);
    case CV_TLS_USER_EMAIL:
        return alternative_name(x, GEN_EMAIL, out);
    case CV_TLS_USER_DNS:
        return alternative_name(x, GEN_DNS, out);
    case CV_TLS_USER_URI:
        return alternative_name(x, GEN_URI, out);
    }
    return CV_E_AUTH;
}

/* c-ares 1.34 recommends other functions, which 1.18 does not have. */
#define CARES_NO_DEPRECATED 1

#include "net/dnsmsg.h"

#include <ares.h>
#include <arpa/nameser.h>
#include <limits.h>
#include <string.h>

#include "common/err.h"

#include "common/poison.h"

#define HEADER    12
#define OPT_SIZE  11
#define FLAG_QR   0x80 /* of the third byte */
#define FLAG_TC   0x02
#define RCODE(m)  ((m)[3] & 0x0f)
#define QDCOUNT_1 1

int cv_dnsmsg_query(const char *name, enum cv_family family, uint16_t id,
                    uint8_t out[CV_DNSMSG_QUERY_MAX], size_t *ret_len)
{
    unsigned char *buf = NULL;
    int len = 0;
    int type = family == CV_AF_IP6 ? ns_t_aaaa : ns_t_a;
    if (ares_create_query(name, ns_c_in, type, id, 1, &buf, &len, CV_DNSMSG_UDP_SIZE) !=
        ARES_SUCCESS)
        return CV_E_INVALID;
    int ret = CV_E_INVALID;
    if (len > 0 && len <= CV_DNSMSG_QUERY_MAX) {
        memcpy(out, buf, (size_t)len);
        *ret_len = (size_t)len;
        ret = 0;
    }
    ares_free_string(buf);
    return ret;
}

/* The question is repeated by the server; some change the case of letters. */
static bool same_question(const uint8_t *query, size_t query_len, const uint8_t *msg, size_t len)
{
    size_t end = query_len - OPT_SIZE;
    if (len < end)
        return false;
    for (size_t i = HEADER; i < end; i++) {
        uint8_t a = query[i], b = msg[i];
        if (a >= 'A' && a <= 'Z')
            a = (uint8_t)(a + 32);
        if (b >= 'A' && b <= 'Z')
            b = (uint8_t)(b + 32);
        if (a != b)
            return false;
    }
    return true;
}

static int read_a(const uint8_t *msg, size_t len, struct cv_dnsmsg_answer *a)
{
    struct ares_addrttl rec[CV_DNSMSG_ADDRS_MAX];
    int n = CV_DNSMSG_ADDRS_MAX;
    int rc = ares_parse_a_reply(msg, (int)len, NULL, rec, &n);
    if (rc != ARES_SUCCESS)
        return rc;
    for (int i = 0; i < n; i++) {
        a->ips[i] = (struct cv_ip){.family = CV_AF_IP4};
        memcpy(a->ips[i].b, &rec[i].ipaddr, 4);
        a->ttl_s = CV_MIN(a->ttl_s, (uint32_t)CV_MAX(rec[i].ttl, 0));
    }
    a->n = (size_t)n;
    return ARES_SUCCESS;
}

static int read_aaaa(const uint8_t *msg, size_t len, struct cv_dnsmsg_answer *a)
{
    struct ares_addr6ttl rec[CV_DNSMSG_ADDRS_MAX];
    int n = CV_DNSMSG_ADDRS_MAX;
    int rc = ares_parse_aaaa_reply(msg, (int)len, NULL, rec, &n);
    if (rc != ARES_SUCCESS)
        return rc;
    for (int i = 0; i < n; i++) {
        a->ips[i] = (struct cv_ip){.family = CV_AF_IP6};
        memcpy(a->ips[i].b, &rec[i].ip6addr, 16);
        cv_ip_fold_mapped(&a->ips[i]);
        a->ttl_s = CV_MIN(a->ttl_s, (uint32_t)CV_MAX(rec[i].ttl, 0));
    }
    a->n = (size_t)n;
    return ARES_SUCCESS;
}

int cv_dnsmsg_answer(const uint8_t *query, size_t query_len, const uint8_t *msg, size_t len,
                     struct cv_dnsmsg_answer *ret_answer)
{
    struct cv_dnsmsg_answer a = {.ttl_s = UINT32_MAX};
    if (query_len < HEADER + OPT_SIZE + 5 || len < HEADER || len > UINT16_MAX ||
        memcmp(query, msg, 2) != 0 || !(msg[2] & FLAG_QR))
        return CV_E_PROTO;
    /* A server that did not understand the question may leave it out. */
    if (RCODE(msg) == ns_r_formerr || RCODE(msg) == ns_r_notimpl)
        return CV_E_DNS_FAIL;
    if (msg[4] != 0 || msg[5] != QDCOUNT_1 || !same_question(query, query_len, msg, len))
        return CV_E_PROTO;
    if (msg[2] & FLAG_TC)
        return CV_E_MORE;
    if (RCODE(msg) == ns_r_nxdomain)
        return CV_E_DNS_NXDOMAIN;
    if (RCODE(msg) != ns_r_noerror)
        return CV_E_DNS_FAIL;
    bool v6 = query[query_len - OPT_SIZE - 3] == ns_t_aaaa;
    int rc = v6 ? read_aaaa(msg, len, &a) : read_a(msg, len, &a);
    if (rc == ARES_ENODATA || (rc == ARES_SUCCESS && a.n == 0))
        return CV_E_DNS_NXDOMAIN;
    if (rc != ARES_SUCCESS)
        return CV_E_DNS_FAIL;
    *ret_answer = a;
    return 0;
}

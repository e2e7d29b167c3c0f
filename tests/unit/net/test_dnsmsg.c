#include "net/dnsmsg.h"

#include "common/err.h"
#include "tap.h"

static uint8_t query[CV_DNSMSG_QUERY_MAX], msg[600];
static size_t query_len;

/* An answer to the question with the given records behind it. */
static size_t reply(uint8_t flags, uint8_t rcode, uint8_t n, const uint8_t *rec, size_t len)
{
    size_t end = query_len - 11;
    memcpy(msg, query, end);
    msg[2] = (uint8_t)(0x81 | flags);
    msg[3] = (uint8_t)(0x80 | rcode);
    msg[7] = n;
    msg[11] = 0;
    if (len > 0)
        memcpy(msg + end, rec, len);
    return end + len;
}

static int read_reply(size_t len, struct cv_dnsmsg_answer *a)
{
    return cv_dnsmsg_answer(query, query_len, msg, len, a);
}

static void test_a(void)
{
    static const uint8_t rec[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1,
                                  0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 2};
    struct cv_dnsmsg_answer a;
    T_INT_EQ(cv_dnsmsg_query("www.example.org", CV_AF_IP4, 0x1234, query, &query_len), 0);
    T_INT_EQ(query[0], 0x12);
    T_INT_EQ(query[1], 0x34);
    size_t len = reply(0, 0, 2, rec, sizeof(rec));
    T_INT_EQ(read_reply(len, &a), 0);
    T_INT_EQ(a.n, 2);
    T_INT_EQ(a.ttl_s, 30);
    T_INT_EQ(a.ips[0].b[3], 1);
    T_INT_EQ(a.ips[1].b[3], 2);
    msg[13] = 'W'; /* some servers change case */
    T_INT_EQ(read_reply(len, &a), 0);
    msg[13] = 'x';
    T_INT_EQ(read_reply(len, &a), CV_E_PROTO);
    msg[13] = 'w';
    msg[0] ^= 1;
    T_INT_EQ(read_reply(len, &a), CV_E_PROTO);
    msg[0] ^= 1;
    msg[2] &= 0x7f;
    T_INT_EQ(read_reply(len, &a), CV_E_PROTO);
    for (size_t cut = 0; cut < len; cut++) {
        len = reply(0, 0, 2, rec, sizeof(rec));
        T_OK(read_reply(cut, &a) != 0);
    }
}

static void test_aaaa(void)
{
    static const uint8_t rec[] = {0xc0, 12,   0, 28, 0, 1, 0, 0, 0, 60, 0, 16, 0x20, 1,
                                  0xd,  0xb8, 0, 0,  0, 0, 0, 0, 0, 0,  0, 0,  0,    7};
    struct cv_dnsmsg_answer a;
    T_INT_EQ(cv_dnsmsg_query("v6.test", CV_AF_IP6, 7, query, &query_len), 0);
    T_INT_EQ(read_reply(reply(0, 0, 1, rec, sizeof(rec)), &a), 0);
    T_INT_EQ(a.n, 1);
    T_INT_EQ(a.ips[0].family, CV_AF_IP6);
    T_INT_EQ(a.ips[0].b[15], 7);
    T_INT_EQ(read_reply(reply(0, 0, 0, NULL, 0), &a), CV_E_DNS_NXDOMAIN);
}

static void test_refusals(void)
{
    struct cv_dnsmsg_answer a;
    T_INT_EQ(cv_dnsmsg_query("x.test", CV_AF_IP4, 7, query, &query_len), 0);
    T_INT_EQ(read_reply(reply(2, 0, 0, NULL, 0), &a), CV_E_MORE);
    T_INT_EQ(read_reply(reply(0, 3, 0, NULL, 0), &a), CV_E_DNS_NXDOMAIN);
    T_INT_EQ(read_reply(reply(0, 2, 0, NULL, 0), &a), CV_E_DNS_FAIL);
    T_INT_EQ(read_reply(reply(0, 5, 0, NULL, 0), &a), CV_E_DNS_FAIL);
    T_INT_EQ(read_reply(reply(0, 1, 0, NULL, 0), &a), CV_E_DNS_FAIL);
}

int main(void)
{
    T_RUN(test_a);
    T_RUN(test_aaaa);
    T_RUN(test_refusals);
    return t_done();
}

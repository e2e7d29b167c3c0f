#include "proto/http_connect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base64.h"
#include "common/err.h"
#include "common/secret.h"

#include "common/poison.h"

#define CREDENTIAL_MAX 255
#define LOGIN_MAX      (2 * CREDENTIAL_MAX + 1)

static size_t append(char *out, size_t at, const char *text)
{
    size_t n = strlen(text);
    CV_ASSERT(n < CV_HTTP_CONNECT_REQUEST_MAX - at);
    memcpy(out + at, text, n);
    return at + n;
}

static size_t append_login(char *out, size_t at, const char *user, size_t user_len,
                           const char *pass, size_t pass_len)
{
    char login[LOGIN_MAX], code[4 * ((LOGIN_MAX + 2) / 3) + 1];
    CV_ASSERT(user_len <= CREDENTIAL_MAX && pass_len <= CREDENTIAL_MAX);
    memcpy(login, user, user_len);
    login[user_len] = ':';
    if (pass_len > 0)
        memcpy(login + user_len + 1, pass, pass_len);
    int ret = cv_base64_encode(login, user_len + 1 + pass_len, code, sizeof(code));
    CV_ASSERT(ret == 0);
    at = append(out, at, "Proxy-Authorization: Basic ");
    at = append(out, at, code);
    cv_secret_clear(login, sizeof(login));
    cv_secret_clear(code, sizeof(code));
    return append(out, at, "\r\n");
}

size_t cv_http_connect_request(char out[CV_HTTP_CONNECT_REQUEST_MAX],
                               const struct cv_target *target, const char *user, size_t user_len,
                               const char *pass, size_t pass_len)
{
    char name[CV_TARGET_STRLEN];
    cv_target_format(target, name);
    size_t n = append(out, 0, "CONNECT ");
    n = append(out, n, name);
    n = append(out, n, " HTTP/1.1\r\nHost: ");
    n = append(out, n, name);
    n = append(out, n, "\r\n");
    if (user != NULL)
        n = append_login(out, n, user, user_len, pass, pass_len);
    /* Not in any RFC, but proxies of old close the connection without it. */
    return append(out, n, "Proxy-Connection: keep-alive\r\n\r\n");
}

int cv_http_connect_step(struct cv_http_connect *c, const uint8_t *in, size_t len, size_t *ret_used)
{
    struct cv_http1_response r;
    struct cv_http1_fault fault;
    *ret_used = 0;
    while (len > *ret_used) {
        const char *at = (const char *)in + *ret_used;
        size_t left = len - *ret_used, room = CV_HTTP_CONNECT_REPLY_MAX - c->_taken, head;
        int ret =
            cv_http1_scan(&c->_scan, CV_HTTP1_RESPONSE, at, CV_MIN(left, room), &head, &fault);
        if (ret == CV_E_MORE && left >= room)
            return CV_E_LIMIT;
        if (ret == 0)
            ret = cv_http1_response_parse(&r, at, head, CV_HTTP1_CONNECT, &fault);
        if (ret != 0)
            return ret;
        c->status = r.status;
        c->_taken += (uint32_t)head;
        c->_scan = (struct cv_http1_scan){0};
        *ret_used += head;
        if (r.status >= 200)
            return r.status < 300 ? 0 : CV_E_UNAVAILABLE;
        if (r.status == 101) /* nobody asked for another protocol */
            return CV_E_PROTO;
    }
    return CV_E_MORE;
}

int cv_http_connect_status_err(unsigned status)
{
    switch (status) {
    case 401: /* some servers mean 407 */
    case 407:
        return CV_E_AUTH;
    case 403:
        return CV_E_POLICY;
    case 504:
        return -ETIMEDOUT;
    default:
        return CV_E_UNAVAILABLE;
    }
}

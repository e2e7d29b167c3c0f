#include "proto/tls_hello.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/rd.h"

#include "common/poison.h"

#define RECORD_ALERT     21
#define RECORD_HANDSHAKE 22
#define RECORD_MAX       (1u << 14) /* RFC 8446 section 5.1 */
#define CLIENT_HELLO     1
#define MESSAGE_HEADER   4u
#define EXT_SERVER_NAME  0
#define EXT_ECH          0xfe0d
#define NAME_TYPE_HOST   0
#define SESSION_ID_MAX   32

/* The first bytes of the message are here; more than the header is of no use. */
static int take_head(struct cv_tls_hello_scan *s, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n && s->_got + i < MESSAGE_HEADER; i++)
        s->_head[s->_got + i] = p[i];
    s->_got += (uint32_t)n;
    if (s->_got > 0 && s->_head[0] != CLIENT_HELLO)
        return CV_E_PROTO;
    if (s->_want == 0 && s->_got >= MESSAGE_HEADER) {
        s->_want = MESSAGE_HEADER +
                   ((uint32_t)s->_head[1] << 16 | (uint32_t)s->_head[2] << 8 | s->_head[3]);
        if (s->_want > CV_TLS_HELLO_MAX)
            return CV_E_LIMIT;
    }
    return 0;
}

/* As much of a record header as there is must be that of a handshake record. */
static int check_record(const uint8_t *p, size_t len)
{
    if (len >= 1 && p[0] != RECORD_HANDSHAKE)
        return CV_E_PROTO;
    if (len >= 2 && p[1] != 3) /* legacy_record_version, of which servers ignore the rest */
        return CV_E_PROTO;
    if (len < CV_TLS_RECORD_HEADER)
        return CV_E_MORE;
    size_t n = (size_t)p[3] << 8 | p[4];
    return n == 0 || n > RECORD_MAX ? CV_E_PROTO : 0;
}

int cv_tls_hello_scan(struct cv_tls_hello_scan *s, const void *data, size_t len)
{
    const uint8_t *base = data;

    while (s->_want == 0 || s->_got < s->_want) {
        const uint8_t *p = base + s->_pos;
        size_t left = len - s->_pos;
        int ret = check_record(p, left);
        if (ret != 0)
            return ret;
        size_t n = (size_t)p[3] << 8 | p[4];
        size_t have = CV_MIN(n, left - CV_TLS_RECORD_HEADER);
        struct cv_tls_hello_scan before = *s;
        ret = take_head(s, p + CV_TLS_RECORD_HEADER, have);
        if (ret != 0)
            return ret;
        /* What a record that is not whole holds of the hello may be all of it. */
        if (have < n && (s->_want == 0 || s->_got < s->_want)) {
            *s = before;
            return CV_E_MORE;
        }
        s->_pos += (uint32_t)(CV_TLS_RECORD_HEADER + have);
    }
    return 0;
}

/* Copy the message out of its records. */
static void gather(const struct cv_tls_hello_scan *s, const uint8_t *p, uint8_t *out)
{
    size_t got = 0;
    while (got < s->_want) {
        size_t n = (size_t)p[3] << 8 | p[4];
        n = CV_MIN(n, s->_want - got);
        memcpy(out + got, p + CV_TLS_RECORD_HEADER, n);
        got += n;
        p += CV_TLS_RECORD_HEADER + n;
    }
}

int cv_tls_hello_read(const struct cv_tls_hello_scan *s, const void *data, size_t len,
                      struct cv_tls_hello *ret_hello)
{
    const uint8_t *p = data;

    CV_ASSERT(s->_want > 0 && s->_got >= s->_want && len >= s->_pos);
    if (((size_t)p[3] << 8 | p[4]) >= s->_want)
        return cv_tls_hello_parse(p + CV_TLS_RECORD_HEADER, s->_want, ret_hello);
    uint8_t *message = cv_try_alloc(s->_want);
    if (message == NULL)
        return -ENOMEM;
    gather(s, p, message);
    int ret = cv_tls_hello_parse(message, s->_want, ret_hello);
    cv_free(message);
    return ret;
}

/* A vector with a length of 'width' bytes; an empty cursor after a fault. */
static struct cv_rd vector(struct cv_rd *r, int width)
{
    struct cv_rd v;
    size_t n = width == 1 ? cv_rd_u8(r) : cv_rd_u16(r);
    const uint8_t *p = cv_rd_bytes(r, n);
    cv_rd_init(&v, p, p != NULL ? n : 0);
    return v;
}

/* RFC 6066 section 3. One type of name was ever defined; should there be others, their form is that
 * of this one (RFC 8446 section 4.2 has the list as "opaque"). */
static void parse_server_name(struct cv_rd *ext, struct cv_tls_hello *h)
{
    struct cv_rd list = vector(ext, 2);

    if (list.left == 0 || ext->left != 0)
        cv_rd_fail(ext);
    while (ext->err == 0 && list.left > 0) {
        uint8_t type = cv_rd_u8(&list);
        struct cv_rd name = vector(&list, 2);
        if (list.err != 0 || name.left == 0) {
            cv_rd_fail(ext);
        } else if (type == NAME_TYPE_HOST) {
            if (h->has_name || name.left >= sizeof(h->name)) {
                cv_rd_fail(ext);
                return;
            }
            h->has_name = true;
            h->name_len = (uint8_t)name.left;
            memcpy(h->name, name.p, name.left);
            h->name[name.left] = '\0';
        }
    }
}

static void parse_extensions(struct cv_rd *r, struct cv_tls_hello *h)
{
    bool seen = false;
    struct cv_rd all = vector(r, 2);

    while (r->err == 0 && all.left > 0) {
        uint16_t type = cv_rd_u16(&all);
        struct cv_rd ext = vector(&all, 2);
        if (all.err != 0)
            cv_rd_fail(r);
        if (r->err == 0 && type == EXT_SERVER_NAME) {
            if (seen) /* RFC 8446 section 4.2: one of each type */
                cv_rd_fail(&ext);
            seen = true;
            parse_server_name(&ext, h);
            if (ext.err != 0)
                cv_rd_fail(r);
        }
        h->ech |= type == EXT_ECH;
    }
}

int cv_tls_hello_parse(const void *message, size_t len, struct cv_tls_hello *ret_hello)
{
    struct cv_tls_hello *h = ret_hello;
    struct cv_rd r;

    h->has_name = h->ech = false;
    h->name_len = 0;
    h->name[0] = '\0';
    cv_rd_init(&r, message, len);
    if (cv_rd_u8(&r) != CLIENT_HELLO)
        cv_rd_fail(&r);
    size_t body = (size_t)cv_rd_u8(&r) << 16;
    body |= cv_rd_u16(&r);
    if (r.err != 0 || body != r.left)
        return CV_E_PROTO;
    (void)cv_rd_u16(&r);       /* legacy_version */
    (void)cv_rd_bytes(&r, 32); /* random */
    struct cv_rd session_id = vector(&r, 1);
    struct cv_rd suites = vector(&r, 2);
    struct cv_rd compression = vector(&r, 1);
    if (session_id.left > SESSION_ID_MAX || suites.left == 0 || suites.left % 2 != 0 ||
        compression.left == 0)
        cv_rd_fail(&r);
    if (r.err == 0 && r.left > 0) /* before TLS 1.3 there may be no extensions at all */
        parse_extensions(&r, h);
    return r.err != 0 || r.left > 0 ? CV_E_PROTO : 0;
}

size_t cv_tls_alert_encode(uint8_t out[CV_TLS_ALERT_LEN], enum cv_tls_alert alert)
{
    const uint8_t record[CV_TLS_ALERT_LEN] = {
        RECORD_ALERT, 3, 3, 0, 2, 2 /* fatal */, (uint8_t)alert,
    };
    memcpy(out, record, sizeof(record));
    return sizeof(record);
}

#include "app/takeover_msg.h"

#include <string.h>

#include "common/err.h"
#include "common/rd.h"

#include "common/poison.h"

#define MAGIC 0x4356544fu /* "CVTO" */

static void put_u32(struct cv_wr *w, uint32_t v)
{
    cv_wr_u16(w, (uint16_t)(v >> 16));
    cv_wr_u16(w, (uint16_t)v);
}

static void put_u64(struct cv_wr *w, uint64_t v)
{
    put_u32(w, (uint32_t)(v >> 32));
    put_u32(w, (uint32_t)v);
}

static uint64_t get_u64(struct cv_rd *r)
{
    uint64_t high = cv_rd_u32(r);
    return high << 32 | cv_rd_u32(r);
}

static void put_text(struct cv_wr *w, const char *s)
{
    size_t len = strlen(s);
    cv_wr_u8(w, (uint8_t)len);
    cv_wr_bytes(w, s, len);
}

/* Texts are shown in logs and compared with those of a config: nothing but printable bytes. */
static void get_text(struct cv_rd *r, char out[CV_TAKEOVER_TEXT_MAX + 1])
{
    size_t len = cv_rd_u8(r);
    const uint8_t *p = len <= CV_TAKEOVER_TEXT_MAX ? cv_rd_bytes(r, len) : NULL;
    if (p == NULL) {
        cv_rd_fail(r);
        return;
    }
    for (size_t i = 0; i < len; i++)
        if (p[i] < ' ' || p[i] == 0x7f)
            cv_rd_fail(r);
    memcpy(out, p, len);
    out[len] = '\0';
}

static void put_item(struct cv_wr *w, const struct cv_takeover_item *item)
{
    cv_wr_u16(w, item->index);
    cv_wr_u8(w, (uint8_t)item->kind);
    cv_wr_u16(w, item->n_fds);
    put_text(w, item->listen);
    put_text(w, item->name);
    put_u32(w, item->number);
    put_u64(w, item->dev);
    put_u64(w, item->ino);
}

static void get_item(struct cv_rd *r, struct cv_takeover_item *item)
{
    item->index = cv_rd_u16(r);
    uint8_t kind = cv_rd_u8(r);
    item->n_fds = cv_rd_u16(r);
    get_text(r, item->listen);
    get_text(r, item->name);
    item->number = cv_rd_u32(r);
    item->dev = get_u64(r);
    item->ino = get_u64(r);
    if (item->index >= CV_TAKEOVER_ITEMS_MAX || kind < CV_TAKEOVER_ADDRESS ||
        kind > CV_TAKEOVER_CONTROL || item->n_fds < 1 || item->n_fds > CV_TAKEOVER_FDS_MAX ||
        (kind != CV_TAKEOVER_ADDRESS && item->n_fds != 1))
        cv_rd_fail(r);
    item->kind = kind;
}

static void get_prepared(struct cv_rd *r, struct cv_takeover_msg *m)
{
    m->n_items = cv_rd_u16(r);
    if (m->n_items > CV_TAKEOVER_ITEMS_MAX) {
        cv_rd_fail(r);
        return;
    }
    size_t len = (m->n_items + 7u) / 8;
    const uint8_t *p = cv_rd_bytes(r, len);
    if (p == NULL || len == 0)
        return;
    memcpy(m->taken, p, len);
    if (m->n_items % 8 != 0 && p[len - 1] >> m->n_items % 8 != 0)
        cv_rd_fail(r);
}

size_t cv_takeover_encode(const struct cv_takeover_msg *m, uint8_t *out)
{
    struct cv_wr w;
    cv_wr_init(&w, out, CV_TAKEOVER_BYTES_MAX);
    put_u32(&w, MAGIC);
    cv_wr_u16(&w, CV_TAKEOVER_VERSION);
    cv_wr_u16(&w, (uint16_t)m->type);
    switch (m->type) {
    case CV_TAKEOVER_HELLO:
    case CV_TAKEOVER_ABORT:
        put_text(&w, m->text);
        break;
    case CV_TAKEOVER_OFFER:
        put_text(&w, m->text);
        put_u32(&w, m->pid);
        cv_wr_u16(&w, m->n_items);
        put_u32(&w, m->watchdog_ms);
        put_text(&w, m->notify);
        break;
    case CV_TAKEOVER_ITEM:
        put_item(&w, &m->item);
        break;
    case CV_TAKEOVER_NEXT:
        cv_wr_u16(&w, m->index);
        break;
    case CV_TAKEOVER_PREPARED:
        cv_wr_u16(&w, m->n_items);
        cv_wr_bytes(&w, m->taken, (m->n_items + 7u) / 8);
        break;
    case CV_TAKEOVER_COMMIT:
    case CV_TAKEOVER_SERVING:
    case CV_TAKEOVER_DONE:
        break;
    }
    CV_ASSERT(w.err == 0);
    return w.len;
}

int cv_takeover_decode(const void *data, size_t len, struct cv_takeover_msg *ret_m)
{
    struct cv_takeover_msg m = {0};
    struct cv_rd r;
    cv_rd_init(&r, data, len);
    uint32_t magic = cv_rd_u32(&r);
    uint16_t version = cv_rd_u16(&r), type = cv_rd_u16(&r);
    if (r.err != 0 || magic != MAGIC)
        return CV_E_PROTO;
    if (version != CV_TAKEOVER_VERSION && type != CV_TAKEOVER_ABORT)
        return CV_E_UNSUPPORTED;
    switch (type) {
    case CV_TAKEOVER_HELLO:
    case CV_TAKEOVER_ABORT:
        get_text(&r, m.text);
        break;
    case CV_TAKEOVER_OFFER:
        get_text(&r, m.text);
        m.pid = cv_rd_u32(&r);
        m.n_items = cv_rd_u16(&r);
        m.watchdog_ms = cv_rd_u32(&r);
        get_text(&r, m.notify);
        if (m.n_items > CV_TAKEOVER_ITEMS_MAX)
            cv_rd_fail(&r);
        break;
    case CV_TAKEOVER_ITEM:
        get_item(&r, &m.item);
        break;
    case CV_TAKEOVER_NEXT:
        m.index = cv_rd_u16(&r);
        break;
    case CV_TAKEOVER_PREPARED:
        get_prepared(&r, &m);
        break;
    case CV_TAKEOVER_COMMIT:
    case CV_TAKEOVER_SERVING:
    case CV_TAKEOVER_DONE:
        break;
    default:
        return CV_E_PROTO;
    }
    if (r.err != 0 || r.left != 0)
        return CV_E_PROTO;
    m.type = type;
    *ret_m = m;
    return 0;
}

#include "app/takeover_msg.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "tap.h"

static struct cv_takeover_msg sample(enum cv_takeover_type type)
{
    struct cv_takeover_msg m = {.type = type};
    snprintf(m.text, sizeof(m.text), "0.1.0");
    m.pid = 4711;
    m.n_items = 19;
    m.index = 300;
    m.watchdog_ms = 15000;
    snprintf(m.notify, sizeof(m.notify), "@/org/x");
    m.item = (struct cv_takeover_item){.index = 7,
                                       .kind = CV_TAKEOVER_ADDRESS,
                                       .n_fds = 4,
                                       .listen = "127.0.0.1:1080",
                                       .name = "main",
                                       .number = 3,
                                       .dev = 0x1122334455667788u,
                                       .ino = UINT64_MAX};
    cv_takeover_set_taken(&m, 0);
    cv_takeover_set_taken(&m, 18);
    return m;
}

static bool item_equal(const struct cv_takeover_item *a, const struct cv_takeover_item *b)
{
    return a->index == b->index && a->kind == b->kind && a->n_fds == b->n_fds &&
           strcmp(a->listen, b->listen) == 0 && strcmp(a->name, b->name) == 0 &&
           a->number == b->number && a->dev == b->dev && a->ino == b->ino;
}

static void test_round_trip(void)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    for (int type = CV_TAKEOVER_HELLO; type <= CV_TAKEOVER_ABORT; type++) {
        struct cv_takeover_msg in = sample(type), out;
        size_t len = cv_takeover_encode(&in, data);
        T_INT_EQ(cv_takeover_decode(data, len, &out), 0);
        T_INT_EQ(out.type, type);
        bool has_text =
            type == CV_TAKEOVER_HELLO || type == CV_TAKEOVER_OFFER || type == CV_TAKEOVER_ABORT;
        T_STR_EQ(out.text, has_text ? in.text : "");
        if (type == CV_TAKEOVER_OFFER) {
            T_INT_EQ(out.pid, 4711);
            T_INT_EQ(out.watchdog_ms, 15000);
            T_STR_EQ(out.notify, "@/org/x");
        }
        if (type == CV_TAKEOVER_OFFER || type == CV_TAKEOVER_PREPARED)
            T_INT_EQ(out.n_items, 19);
        if (type == CV_TAKEOVER_NEXT)
            T_INT_EQ(out.index, 300);
        if (type == CV_TAKEOVER_ITEM)
            T_OK(item_equal(&in.item, &out.item));
        for (size_t i = 0; i < 19 && type == CV_TAKEOVER_PREPARED; i++)
            T_INT_EQ(cv_takeover_is_taken(&out, i), i == 0 || i == 18);
        /* Nothing shorter and nothing longer is accepted. */
        for (size_t n = 0; n < len; n++)
            T_INT_EQ(cv_takeover_decode(data, n, &out), CV_E_PROTO);
        T_INT_EQ(cv_takeover_decode(data, len + 1, &out), CV_E_PROTO);
    }
}

static void test_largest(void)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    struct cv_takeover_msg in = sample(CV_TAKEOVER_ITEM), out;
    memset(in.item.listen, 'l', CV_TAKEOVER_TEXT_MAX);
    memset(in.item.name, 'n', CV_TAKEOVER_TEXT_MAX);
    in.item.index = CV_TAKEOVER_ITEMS_MAX - 1;
    in.item.n_fds = CV_TAKEOVER_FDS_MAX;
    size_t len = cv_takeover_encode(&in, data);
    T_INT_EQ(cv_takeover_decode(data, len, &out), 0);
    T_OK(item_equal(&in.item, &out.item));
    in = sample(CV_TAKEOVER_PREPARED);
    in.n_items = CV_TAKEOVER_ITEMS_MAX;
    cv_takeover_set_taken(&in, CV_TAKEOVER_ITEMS_MAX - 1);
    len = cv_takeover_encode(&in, data);
    T_INT_EQ(cv_takeover_decode(data, len, &out), 0);
    T_OK(cv_takeover_is_taken(&out, CV_TAKEOVER_ITEMS_MAX - 1));
    in.n_items = 0;
    len = cv_takeover_encode(&in, data);
    T_INT_EQ(cv_takeover_decode(data, len, &out), 0);
}

/* Overwrite one byte at a time by each value: never a crash, and what is accepted is in bounds. */
static void test_changed_bytes(void)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX], copy[CV_TAKEOVER_BYTES_MAX];
    struct cv_takeover_msg out;
    for (int type = CV_TAKEOVER_HELLO; type <= CV_TAKEOVER_ABORT; type++) {
        struct cv_takeover_msg in = sample(type);
        size_t len = cv_takeover_encode(&in, data);
        for (size_t at = 0; at < len * 256; at++) {
            memcpy(copy, data, len);
            copy[at / 256] = (uint8_t)at;
            if (cv_takeover_decode(copy, len, &out) != 0)
                continue;
            T_OK(out.n_items <= CV_TAKEOVER_ITEMS_MAX);
            T_OK(out.type != CV_TAKEOVER_ITEM ||
                 (out.item.index < CV_TAKEOVER_ITEMS_MAX && out.item.n_fds >= 1 &&
                  out.item.n_fds <= CV_TAKEOVER_FDS_MAX));
        }
    }
}

static void test_refused(void)
{
    uint8_t data[CV_TAKEOVER_BYTES_MAX];
    struct cv_takeover_msg in = sample(CV_TAKEOVER_HELLO), out;
    size_t len = cv_takeover_encode(&in, data);
    data[5] = 2; /* the version */
    T_INT_EQ(cv_takeover_decode(data, len, &out), CV_E_UNSUPPORTED);
    in = sample(CV_TAKEOVER_ABORT);
    len = cv_takeover_encode(&in, data);
    data[5] = 9;
    T_INT_EQ(cv_takeover_decode(data, len, &out), 0);
    T_STR_EQ(out.text, "0.1.0");
    data[9] = '\n';
    T_INT_EQ(cv_takeover_decode(data, len, &out), CV_E_PROTO);
    data[9] = '\0';
    T_INT_EQ(cv_takeover_decode(data, len, &out), CV_E_PROTO);
    data[0] = 'X';
    T_INT_EQ(cv_takeover_decode(data, len, &out), CV_E_PROTO);
    /* Several descriptors are for addresses only. */
    in = sample(CV_TAKEOVER_ITEM);
    in.item.kind = CV_TAKEOVER_ADMIN;
    len = cv_takeover_encode(&in, data);
    T_INT_EQ(cv_takeover_decode(data, len, &out), CV_E_PROTO);
    /* A bit beyond the last item. */
    in = sample(CV_TAKEOVER_PREPARED);
    cv_takeover_set_taken(&in, 19);
    len = cv_takeover_encode(&in, data);
    T_INT_EQ(cv_takeover_decode(data, len, &out), CV_E_PROTO);
}

int main(void)
{
    T_RUN(test_round_trip);
    T_RUN(test_largest);
    T_RUN(test_changed_bytes);
    T_RUN(test_refused);
    return t_done();
}

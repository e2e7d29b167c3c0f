#include "tunnel/reliable.h"

#include <stdlib.h>

#include "common/err.h"

#include "tap.h"

static struct cv_reliable a, b;

static void test_window_and_back_off(void)
{
    cv_reliable_init(&a, 1);
    T_INT_EQ(cv_reliable_push(&a, CV_WIRE_RESET_CLIENT, NULL, 0), 0);
    T_INT_EQ(cv_reliable_push(&a, CV_WIRE_CONTROL, "x", 1), 0);
    const struct cv_reliable_out *o = cv_reliable_next(&a, 0);
    T_REQUIRE(o != NULL && o->id == 0);
    T_OK(cv_reliable_next(&a, 0) == NULL); /* one at a time */
    T_INT_EQ(cv_reliable_due(&a, 0), 1000);
    T_OK(cv_reliable_next(&a, 999) == NULL);
    T_OK(cv_reliable_next(&a, 1000) != NULL);
    T_INT_EQ(cv_reliable_due(&a, 1000), 3000);
    T_INT_EQ(a.retransmits, 1);
    cv_reliable_on_ack(&a, 1, 1000); /* not sent yet: of no use */
    cv_reliable_on_ack(&a, 0, 1100);
    o = cv_reliable_next(&a, 1100);
    T_REQUIRE(o != NULL && o->id == 1 && o->len == 1);
    cv_reliable_on_ack(&a, 1, 1150);
    T_INT_EQ(a.srtt_ms, 50);
    T_INT_EQ(cv_reliable_due(&a, 1150), INT64_MAX);
    T_INT_EQ(a.n, 0);
}

static void test_fast(void)
{
    cv_reliable_init(&a, 6);
    for (int i = 0; i < 5; i++)
        T_INT_EQ(cv_reliable_push(&a, CV_WIRE_CONTROL, "x", 1), 0);
    for (int i = 0; i < 5; i++)
        T_OK(cv_reliable_next(&a, 0) != NULL);
    for (uint32_t i = 1; i < 4; i++)
        cv_reliable_on_ack(&a, i, 10);
    const struct cv_reliable_out *o = cv_reliable_next(&a, 10);
    T_OK(o != NULL && o->id == 0);
    T_OK(cv_reliable_next(&a, 10) == NULL);
    while (cv_reliable_push(&a, CV_WIRE_CONTROL, "x", 1) == 0)
        ;
    T_INT_EQ(a.n, CV_RELIABLE_QUEUE);
}

static void test_receive(void)
{
    uint32_t acks[8];
    struct cv_wire_ctl c = {.op = CV_WIRE_CONTROL, .piece = (const uint8_t *)"y", .piece_len = 1};
    cv_reliable_init(&a, 1);
    c.id = 1;
    T_OK(cv_reliable_on_message(&a, &c));
    T_OK(cv_reliable_peek(&a) == NULL);
    c.id = 0;
    T_OK(cv_reliable_on_message(&a, &c));
    T_OK(!cv_reliable_on_message(&a, &c));
    T_OK(cv_reliable_peek(&a) != NULL);
    cv_reliable_shift(&a);
    cv_reliable_shift(&a);
    T_OK(cv_reliable_peek(&a) == NULL);
    T_INT_EQ(cv_reliable_take_acks(&a, acks, 4), 2);
    T_OK(acks[0] == 1 && acks[1] == 0);
    T_OK(!cv_reliable_on_message(&a, &c)); /* again: its ack was lost */
    T_INT_EQ(cv_reliable_take_acks(&a, acks, 4), 1);
    c.id = 2 + CV_RELIABLE_WINDOW;
    T_OK(!cv_reliable_on_message(&a, &c)); /* too far ahead: no ack */
    T_INT_EQ(cv_reliable_take_acks(&a, acks, 4), 0);
    c.id = 2;
    c.piece_len = CV_RELIABLE_IN_MAX + 1;
    T_OK(!cv_reliable_on_message(&a, &c));
    T_INT_EQ(cv_reliable_take_acks(&a, acks, 4), 0);
}

/* Two ends over a channel that loses, repeats and delays: every byte arrives, in order. */
static void lossy(unsigned seed, unsigned window)
{
    static struct flying {
        bool used, to_b;
        int64_t at;
        uint8_t data[1300];
        size_t len;
    } air[64];
    uint32_t sent = 0, got = 0;
    int64_t now = 0;
    memset(air, 0, sizeof(air));
    srand(seed);
    cv_reliable_init(&a, window);
    cv_reliable_init(&b, window);
    for (int turn = 0; turn < 200000 && got < 300; turn++, now += 20) {
        while (sent < 300 && cv_reliable_room(&a) > 4) {
            uint8_t v[2] = {(uint8_t)(sent >> 8), (uint8_t)sent};
            (void)cv_reliable_push(&a, CV_WIRE_CONTROL, v, 2);
            sent++;
        }
        struct cv_reliable *ends[2] = {&a, &b};
        for (int e = 0; e < 2; e++) {
            for (int k = 0; k < 8; k++) {
                const struct cv_reliable_out *o = cv_reliable_next(ends[e], now);
                struct cv_wire_ctl c = {.op = CV_WIRE_ACK};
                c.n_acks = (uint8_t)cv_reliable_take_acks(ends[e], c.acks, 4);
                if (o == NULL && c.n_acks == 0)
                    break;
                if (o != NULL) {
                    c.op = o->op;
                    c.id = o->id;
                    c.piece = o->data;
                    c.piece_len = o->len;
                }
                for (int copies = rand() % 10 == 0 ? 2 : 1; copies > 0; copies--) {
                    struct flying *f = &air[rand() % 64];
                    if (rand() % 100 < 15 || f->used)
                        continue;
                    f->used = true;
                    f->to_b = e == 0;
                    f->at = now + rand() % 200;
                    (void)cv_wire_encode(&c, f->data, sizeof(f->data), &f->len);
                }
            }
        }
        for (int i = 0; i < 64; i++) {
            struct cv_wire_ctl c;
            if (!air[i].used || air[i].at > now || cv_wire_decode(air[i].data, air[i].len, &c) != 0)
                continue;
            air[i].used = false;
            struct cv_reliable *r = air[i].to_b ? &b : &a;
            for (unsigned k = 0; k < c.n_acks; k++)
                cv_reliable_on_ack(r, c.acks[k], now);
            if (c.op != CV_WIRE_ACK)
                (void)cv_reliable_on_message(r, &c);
        }
        const struct cv_reliable_in *in;
        while ((in = cv_reliable_peek(&b)) != NULL) {
            T_OK(in->len == 2 && (uint32_t)(in->data[0] << 8 | in->data[1]) == got);
            got++;
            cv_reliable_shift(&b);
        }
    }
    T_INT_EQ(got, 300);
}

static void test_lossy(void)
{
    for (unsigned seed = 1; seed < 6; seed++) {
        lossy(seed, 1);
        lossy(seed, 6);
    }
}

int main(void)
{
    T_RUN(test_window_and_back_off);
    T_RUN(test_fast);
    T_RUN(test_receive);
    T_RUN(test_lossy);
    return t_done();
}

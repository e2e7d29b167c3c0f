#include "tunnel/reliable.h"

#include <string.h>

#include "common/err.h"

#include "common/poison.h"

#define RTO_FIRST_MS 1000
#define RTO_MIN_MS   250
#define RTO_MAX_MS   8000
#define FAST_AFTER   3

void cv_reliable_init(struct cv_reliable *r, unsigned window)
{
    memset(r, 0, offsetof(struct cv_reliable, out));
    for (unsigned i = 0; i < CV_RELIABLE_WINDOW; i++)
        r->in[i].used = false;
    r->window = window;
    r->rto_ms = RTO_FIRST_MS;
    r->srtt_ms = -1;
}

static struct cv_reliable_out *at(struct cv_reliable *r, unsigned i)
{
    return &r->out[(r->head + i) % CV_RELIABLE_QUEUE];
}

int cv_reliable_push(struct cv_reliable *r, enum cv_wire_op op, const void *data, size_t len)
{
    CV_ASSERT(len <= CV_WIRE_PIECE_MAX);
    if (r->n == CV_RELIABLE_QUEUE)
        return CV_E_LIMIT;
    struct cv_reliable_out *o = at(r, r->n++);
    o->op = op;
    o->id = r->next_id++;
    o->len = (uint16_t)len;
    o->acked = false;
    o->sends = o->overtaken = 0;
    o->sent_ms = o->due_ms = 0;
    if (len > 0)
        memcpy(o->data, data, len);
    return 0;
}

const struct cv_reliable_out *cv_reliable_next(struct cv_reliable *r, int64_t now_ms)
{
    for (unsigned i = 0; i < r->n && i < r->window; i++) {
        struct cv_reliable_out *o = at(r, i);
        if (o->acked || (o->sends > 0 && now_ms < o->due_ms && o->overtaken < FAST_AFTER))
            continue;
        if (o->sends > 0)
            r->retransmits++;
        int64_t pause = r->rto_ms << CV_MIN(o->sends, 5);
        o->overtaken = 0;
        o->sends += o->sends < UINT8_MAX;
        o->sent_ms = now_ms;
        o->due_ms = now_ms + CV_MIN(pause, RTO_MAX_MS);
        return o;
    }
    return NULL;
}

int64_t cv_reliable_due(const struct cv_reliable *r, int64_t now_ms)
{
    int64_t due = INT64_MAX;
    for (unsigned i = 0; i < r->n && i < r->window; i++) {
        const struct cv_reliable_out *o = &r->out[(r->head + i) % CV_RELIABLE_QUEUE];
        if (o->acked)
            continue;
        int64_t t = o->sends == 0 || o->overtaken >= FAST_AFTER ? now_ms : o->due_ms;
        due = CV_MIN(due, t);
    }
    return due;
}

void cv_reliable_on_ack(struct cv_reliable *r, uint32_t id, int64_t now_ms)
{
    bool found = false;
    for (unsigned i = 0; i < r->n; i++) {
        struct cv_reliable_out *o = at(r, i);
        if (o->id != id || o->sends == 0 || o->acked)
            continue;
        found = o->acked = true;
        if (o->sends == 1) { /* a repeated one does not tell which sending was answered */
            int64_t rtt = now_ms - o->sent_ms;
            r->srtt_ms = r->srtt_ms < 0 ? rtt : (7 * r->srtt_ms + rtt) / 8;
            int64_t rto = 3 * r->srtt_ms + 100;
            r->rto_ms = CV_MIN(CV_MAX(rto, RTO_MIN_MS), RTO_FIRST_MS * 2);
        }
        break;
    }
    for (unsigned i = 0; found && i < r->n; i++) {
        struct cv_reliable_out *o = at(r, i);
        if (!o->acked && o->id < id && o->overtaken < UINT8_MAX)
            o->overtaken++;
    }
    while (r->n > 0 && at(r, 0)->acked) {
        r->head = (r->head + 1) % CV_RELIABLE_QUEUE;
        r->n--;
    }
}

static void acknowledge(struct cv_reliable *r, uint32_t id)
{
    for (unsigned i = 0; i < r->n_pending; i++)
        if (r->pending[i] == id)
            return;
    if (r->n_pending < CV_RELIABLE_PENDING)
        r->pending[r->n_pending++] = id;
}

bool cv_reliable_on_message(struct cv_reliable *r, const struct cv_wire_ctl *c)
{
    uint32_t ahead = c->id - r->next_in;
    if (ahead >= CV_RELIABLE_WINDOW) {
        /* An old one again: its acknowledgement was lost. One far ahead: it will come again. */
        if (c->id < r->next_in)
            acknowledge(r, c->id);
        return false;
    }
    if (c->piece_len > CV_RELIABLE_IN_MAX)
        return false;
    acknowledge(r, c->id);
    struct cv_reliable_in *in = &r->in[c->id % CV_RELIABLE_WINDOW];
    if (in->used)
        return false;
    in->used = true;
    in->op = c->op;
    in->len = (uint16_t)c->piece_len;
    if (c->piece_len > 0)
        memcpy(in->data, c->piece, c->piece_len);
    return true;
}

const struct cv_reliable_in *cv_reliable_peek(const struct cv_reliable *r)
{
    const struct cv_reliable_in *in = &r->in[r->next_in % CV_RELIABLE_WINDOW];
    return in->used ? in : NULL;
}

void cv_reliable_shift(struct cv_reliable *r)
{
    r->in[r->next_in % CV_RELIABLE_WINDOW].used = false;
    r->next_in++;
}

unsigned cv_reliable_take_acks(struct cv_reliable *r, uint32_t *out, unsigned max)
{
    unsigned n = CV_MIN(max, r->n_pending);
    memcpy(out, r->pending, n * sizeof(out[0]));
    memmove(r->pending, r->pending + n, (r->n_pending - n) * sizeof(out[0]));
    r->n_pending -= n;
    return n;
}

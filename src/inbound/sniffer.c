#include "inbound/sniffer.h"

#include <errno.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "common/err.h"

#include "common/poison.h"

struct cv_sniffer {
    struct cv_session *session; /* borrowed */
    cv_sniffer_cb on_timeout;
    void *arg;
    struct cv_timer timer;
    struct cv_sniff sniff;
    struct cv_buf buf; /* all bytes so far; without 'keep' only while the outcome is not known */
    size_t max;        /* bytes that are looked at */
    bool keep;
    bool settled;
};

static void on_timer(struct cv_timer *t);

int cv_sniffer_new(struct cv_session *session, const struct cv_sniff_conf *conf, bool keep,
                   cv_sniffer_cb on_timeout, void *arg, struct cv_sniffer **ret_sniffer)
{
    struct cv_sniffer *sn = cv_try_zalloc(sizeof(*sn));
    if (sn == NULL)
        return -ENOMEM;
    sn->session = session;
    sn->on_timeout = on_timeout;
    sn->arg = arg;
    sn->keep = keep;
    sn->max = conf->max_bytes;
    /* What a protocol has read already is not lost, however little is looked at. */
    cv_buf_init(&sn->buf, keep ? sn->max + CV_SNIFFER_EARLY_MAX : sn->max);
    cv_timer_init(&sn->timer, on_timer);
    if (conf->timeout_ms > 0)
        cv_loop_timer(session->worker->loop, &sn->timer, conf->timeout_ms);
    *ret_sniffer = sn;
    return 0;
}

static int settle(struct cv_sniffer *sn, enum cv_sniff_outcome outcome, const struct cv_host *host)
{
    int ret = cv_session_set_sniffed(sn->session, outcome, host);
    if (ret != 0)
        return ret;
    sn->settled = true;
    cv_loop_timer_stop(sn->session->worker->loop, &sn->timer);
    if (!sn->keep)
        cv_buf_done(&sn->buf);
    return 0;
}

void cv_sniffer_free(struct cv_sniffer *sn)
{
    if (sn == NULL)
        return;
    if (!sn->settled)
        (void)settle(sn, CV_SNIFF_INCOMPLETE, NULL); /* without a host it cannot fail */
    cv_buf_done(&sn->buf);
    cv_free(sn);
}

static void on_timer(struct cv_timer *t)
{
    struct cv_sniffer *sn = CV_CONTAINER_OF(t, struct cv_sniffer, timer);
    (void)settle(sn, CV_SNIFF_TIMEOUT, NULL);
    sn->on_timeout(sn->arg);
}

/* Look at all bytes so far, as far as that goes. */
static int look(struct cv_sniffer *sn, const void *data, size_t len)
{
    enum cv_sniff_outcome outcome;
    struct cv_host host;

    int ret = cv_sniff_look(&sn->sniff, data, CV_MIN(len, sn->max), &outcome, &host);
    if (ret == 0)
        return settle(sn, outcome, &host);
    if (ret == CV_E_MORE && len >= sn->max)
        return settle(sn, CV_SNIFF_LIMIT, NULL);
    return ret;
}

int cv_sniffer_add(struct cv_sniffer *sn, const void *data, size_t len)
{
    if (sn->settled && !sn->keep)
        return 0;
    if (len == 0)
        return sn->settled ? 0 : settle(sn, CV_SNIFF_INCOMPLETE, NULL);
    if (!sn->keep && cv_buf_is_empty(&sn->buf)) {
        int ret = look(sn, data, len);
        if (ret != CV_E_MORE)
            return ret;
    }
    size_t room = cv_buf_room(&sn->buf);
    int ret = cv_buf_append(&sn->buf, data, sn->keep ? len : CV_MIN(len, room));
    if (ret != 0 || sn->settled)
        return ret;
    return look(sn, cv_buf_data(&sn->buf), cv_buf_len(&sn->buf));
}

int cv_sniffer_read(struct cv_sniffer *sn, struct cv_stream *stream)
{
    uint8_t *scratch = sn->session->worker->scratch;
    int ret = sn->settled ? 0 : CV_E_MORE;

    while (ret == CV_E_MORE) {
        size_t n, cap = CV_MIN(sn->max - cv_buf_len(&sn->buf), (size_t)CV_SCRATCH_SIZE);
        ret = cv_stream_recv(stream, scratch, cap, &n);
        if (ret == -EAGAIN)
            return CV_E_MORE;
        if (ret == 0 && n == 0 && cv_buf_is_empty(&sn->buf))
            return CV_E_CANCELED;
        if (ret == 0)
            ret = cv_sniffer_add(sn, scratch, n);
    }
    return ret;
}

uint8_t *cv_sniffer_take(struct cv_sniffer *sn, size_t *ret_len)
{
    *ret_len = cv_buf_len(&sn->buf);
    return cv_buf_steal(&sn->buf);
}

int cv_sniffer_first_byte(const struct cv_sniffer *sn)
{
    return cv_buf_is_empty(&sn->buf) ? -1 : cv_buf_data(&sn->buf)[0];
}

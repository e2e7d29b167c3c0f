#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "inbound/http_priv.h"

#include "common/poison.h"

static void on_relay_bytes(struct cv_relay *r, bool up, size_t n)
{
    struct http_conn *c = CV_CONTAINER_OF(r, struct http_conn, relay);

    if (up) {
        cv_session_count_up(&c->super, n);
        return;
    }
    size_t own = CV_MIN(n, (size_t)c->skip_down);
    c->skip_down -= (uint32_t)own;
    cv_session_count_down(&c->super, n - own);
}

static void on_relay_end(struct cv_relay *r, int err)
{
    struct http_conn *c = CV_CONTAINER_OF(r, struct http_conn, relay);

    if (err != 0)
        cv_session_fail(&c->super, CV_STAGE_SPLICE, err);
    cv_http_end(c, false, false);
}

/* ---- the first bytes ---- */

static void sniffer_done(struct http_conn *c)
{
    cv_sniffer_free(c->sniffer);
    c->sniffer = NULL;
}

/* The outcome is known: take the bytes back and dial. */
static void sniffed(struct http_conn *c)
{
    struct cv_buf *in = &c->work->client.in;
    size_t len;
    uint8_t *p = cv_sniffer_take(c->sniffer, &len);
    int ret = len > 0 ? cv_buf_append(in, p, len) : 0;

    cv_free(p);
    sniffer_done(c);
    if (ret == 0)
        cv_http_dial_tunnel(c);
    else
        cv_http_client_gone(c, ret);
}

static void on_sniff_timeout(void *arg)
{
    struct http_conn *c = arg;

    if (c->state == HTTP_STATE_SNIFF) {
        sniffed(c);
        cv_http_run(c);
    } else {
        c->relay.tap = NULL;
        sniffer_done(c);
    }
}

void cv_http_sniff_start(struct http_conn *c)
{
    struct http_work *w = c->work;

    int ret = cv_flow_screen(&c->super, &w->target);
    if (ret != 0) {
        cv_http_refuse(c, c->super.stage, c->super.err);
        return;
    }
    ret = cv_sniffer_new(&c->super, &w->conf->sniff, true, on_sniff_timeout, c, &c->sniffer);
    if (ret == 0)
        ret = cv_buf_append_str(&w->client.out, CV_HTTP_CONNECTED);
    if (ret != 0) {
        sniffer_done(c);
        cv_http_refuse(c, CV_STAGE_DIAL, ret);
        return;
    }
    w->replied = true;
    w->client_ready = true;
    cv_http_go(c, HTTP_STATE_SNIFF);
    cv_http_arm(c, INT64_MAX);
    if (cv_buf_is_empty(&w->client.in))
        return;
    ret = cv_sniffer_add(c->sniffer, cv_buf_data(&w->client.in), cv_buf_len(&w->client.in));
    cv_buf_done(&w->client.in);
    if (ret != 0 && ret != CV_E_MORE)
        cv_http_client_gone(c, ret);
}

enum http_step cv_http_sniff_step(struct http_conn *c)
{
    struct http_work *w = c->work;
    size_t n;

    int ret = cv_http_side_send(&w->client, NULL, 0, &n);
    if (ret != 0) {
        cv_http_client_gone(c, ret);
        return HTTP_AGAIN;
    }
    ret = cv_sniffer_read(c->sniffer, w->client.stream);
    if (ret == CV_E_MORE)
        return HTTP_WAIT;
    if (ret == 0)
        sniffed(c);
    else
        cv_http_client_gone(c, ret);
    return HTTP_AGAIN;
}

static void on_relay_tap(struct cv_relay *r, const void *data, size_t len)
{
    struct http_conn *c = CV_CONTAINER_OF(r, struct http_conn, relay);

    if (cv_sniffer_add(c->sniffer, data, len) == CV_E_MORE)
        return;
    r->tap = NULL;
    sniffer_done(c);
}

/* Have the relay looked at. It works as well if that cannot be done. */
static bool observe(struct http_conn *c, const struct cv_sniff_conf *conf)
{
    return conf->mode == CV_SNIFF_OBSERVE &&
           cv_sniffer_new(&c->super, conf, false, on_sniff_timeout, c, &c->sniffer) == 0;
}

/* ---- the tunnel ---- */

void cv_http_tunnel_start(struct http_conn *c, const char *hello)
{
    struct http_work *w = c->work;
    struct cv_stream *client = w->client.stream, *origin = w->origin.stream;
    struct cv_buf up = w->client.in, down = w->client.out;
    bool tap = w->x.method == CV_HTTP1_CONNECT && observe(c, &w->conf->sniff);
    int ret = cv_buf_append_str(&down, hello);

    c->skip_down = (uint32_t)cv_buf_len(&down);
    if (ret == 0 && !cv_buf_is_empty(&w->origin.in))
        ret = cv_buf_append(&down, cv_buf_data(&w->origin.in), cv_buf_len(&w->origin.in));
    w->client.stream = w->origin.stream = NULL;
    cv_buf_init(&w->client.in, 0);
    cv_buf_init(&w->client.out, 0);
    cv_http_work_free(c);
    cv_http_go(c, HTTP_STATE_TUNNEL);
    c->relay = (struct cv_relay){
        .account = c->super.account,
        .on_end = on_relay_end,
        .on_bytes = on_relay_bytes,
        .tap = tap ? on_relay_tap : NULL,
    };
    if (ret == 0) {
        ret = cv_relay_start(&c->relay, c->super.worker, client, origin, cv_buf_data(&up),
                             cv_buf_len(&up), cv_buf_data(&down), cv_buf_len(&down));
    } else {
        cv_stream_close(client, true);
        cv_stream_close(origin, true);
    }
    cv_buf_done(&up);
    cv_buf_done(&down);
    if (ret != 0) {
        cv_session_fail(&c->super, CV_STAGE_SPLICE, ret);
        cv_http_end(c, false, false);
    }
}

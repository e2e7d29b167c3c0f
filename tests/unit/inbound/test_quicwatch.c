#include "inbound/quicwatch.h"

#include "../net/quic_samples.h"
#include "inbound_util.h"

void cv_http_serve(const struct cv_inbound *in)
{
    cv_stream_close(in->stream, false);
}

static void on_kill(struct cv_session *s, int err)
{
}

static const struct cv_session_ops ops = {.kill = on_kill};

static void begin(struct rig *g, struct cv_session *s, struct cv_quicwatch *w)
{
    static const struct cv_endpoint client = {.port = 1};
    cv_session_begin(s, g->w, &ops, "socks5-udp", g->conf->stats, &client);
    cv_quicwatch_init(w);
}

static void end(struct cv_session *s, struct cv_quicwatch *w)
{
    cv_quicwatch_done(w, s);
    cv_session_end(s);
}

static void test_first_connection(void)
{
    struct rig *g = rig_new();
    struct cv_session s;
    struct cv_quicwatch w;
    begin(g, &s, &w);
    cv_quicwatch_look(&w, &s, "\x12\x34\x01\x00", 4); /* not QUIC: no outcome */
    cv_quicwatch_look(&w, &s, "", 0);
    T_INT_EQ(s.sniff, CV_SNIFF_NONE);
    cv_quicwatch_look(&w, &s, quic_mixed1, sizeof(quic_mixed1));
    T_INT_EQ(s.sniff, CV_SNIFF_NONE);
    cv_quicwatch_look(&w, &s, quic_mixed2, sizeof(quic_mixed2));
    T_INT_EQ(s.sniff, CV_SNIFF_QUIC);
    T_STR_EQ(s.sniffed_host->s, "example.com");
    T_OK(w._q == NULL);
    cv_quicwatch_look(&w, &s, quic_ngtcp2, sizeof(quic_ngtcp2)); /* a second connection */
    T_STR_EQ(s.sniffed_host->s, "example.com");
    end(&s, &w);
    T_INT_EQ(cv_counter_get(&g->conf->stats->sniff[CV_SNIFF_QUIC]), 1);
    T_OK(log_has("\"sniffed_host\":\"example.com\",\"sniff_protocol\":\"quic\","
                 "\"sniff_outcome\":\"matched\""));

    begin(g, &s, &w); /* a flight that never ends */
    cv_quicwatch_look(&w, &s, quic_mixed1, sizeof(quic_mixed1));
    end(&s, &w);
    T_OK(log_has("\"sniff_outcome\":\"incomplete\""));
    begin(g, &s, &w);
    end(&s, &w);
    T_OK(!log_has("sniff"));
    rig_free(g);
}

int main(void)
{
    T_RUN(test_first_connection);
    return t_done();
}

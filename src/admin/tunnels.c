#include "admin/tunnels.h"

#include <stddef.h>
#include <string.h>

#include "common/clock.h"
#include "netstack/netstack.h"
#include "tunnel/tunnel.h"

#include "common/poison.h"

/* Seconds since a unix time in milliseconds; 0 when it is 0. */
static int64_t age_s(int64_t since_ms)
{
    return since_ms == 0 ? 0 : CV_MAX(cv_clock_unix_ms() - since_ms, 0) / 1000;
}

static void put_report(void *arg, const struct cv_admin_tunnel *t)
{
    struct cv_jsonw *w = arg;
    const struct cv_netif_stats *n = t->net;
    cv_jsonw_object(w, NULL);
    cv_jsonw_str(w, "name", t->name);
    cv_jsonw_str(w, "state", cv_tunnel_state_name((enum cv_tunnel_state)t->state));
    if (t->stats != NULL) {
        cv_jsonw_int(w, "rtt_us", cv_gauge_get(&t->stats->rtt_us));
        cv_jsonw_int(w, "up_s", age_s(cv_gauge_get(&t->stats->up_since_ms)));
        cv_jsonw_int(w, "key_age_s", age_s(cv_gauge_get(&t->stats->key_since_ms)));
        cv_jsonw_uint(w, "connects", cv_counter_get(&t->stats->connects));
        cv_jsonw_uint(w, "ups", cv_counter_get(&t->stats->ups));
    }
    cv_jsonw_uint(w, "tcp_rtt_us", cv_counter_get(&n->rtt_us));
    cv_jsonw_int(w, "tcp", cv_gauge_get(&n->tcp));
    cv_jsonw_int(w, "udp", cv_gauge_get(&n->udp));
    cv_jsonw_uint(w, "tcp_established", cv_counter_get(&n->connects));
    cv_jsonw_uint(w, "tcp_reset", cv_counter_get(&n->resets));
    cv_jsonw_uint(w, "retransmits", cv_counter_get(&n->retransmits));
    cv_jsonw_uint(w, "packets_in", cv_counter_get(&n->packets_in));
    cv_jsonw_uint(w, "packets_out", cv_counter_get(&n->packets_out));
    cv_jsonw_uint(w, "bytes_in", cv_counter_get(&n->bytes_in));
    cv_jsonw_uint(w, "bytes_out", cv_counter_get(&n->bytes_out));
    cv_jsonw_uint(w, "dropped", cv_counter_get(&n->dropped));
    cv_jsonw_object_end(w);
}

void cv_admin_tunnels_report(struct cv_jsonw *w, const struct cv_admin_view *v)
{
    if (v->each_tunnel == NULL)
        return;
    cv_jsonw_array(w, "tunnels");
    v->each_tunnel(v->arg, put_report, w);
    cv_jsonw_array_end(w);
}

enum kind {
    KIND_UP,
    KIND_RTT,
    KIND_COUNTER, /* of cv_netif_stats, as are gauges */
    KIND_GAUGE,
};

static const struct family {
    const char *name, *help;
    enum kind kind;
    size_t offset;
} families[] = {
    {"culvert_tunnel_up", "1 if packets travel through the tunnel.", KIND_UP, 0},
    {"culvert_tunnel_rtt_seconds", "Round trip of control packets to its server.", KIND_RTT, 0},
    {"culvert_tunnel_tcp_connections", "TCP connections open in the tunnel.", KIND_GAUGE,
     offsetof(struct cv_netif_stats, tcp)},
    {"culvert_tunnel_udp_flows", "UDP flows open in the tunnel.", KIND_GAUGE,
     offsetof(struct cv_netif_stats, udp)},
    {"culvert_tunnel_tcp_established_total", "TCP connections established.", KIND_COUNTER,
     offsetof(struct cv_netif_stats, connects)},
    {"culvert_tunnel_retransmits_total", "TCP segments sent again.", KIND_COUNTER,
     offsetof(struct cv_netif_stats, retransmits)},
    {"culvert_tunnel_packets_in_total", "IP packets received.", KIND_COUNTER,
     offsetof(struct cv_netif_stats, packets_in)},
    {"culvert_tunnel_packets_out_total", "IP packets sent.", KIND_COUNTER,
     offsetof(struct cv_netif_stats, packets_out)},
    {"culvert_tunnel_bytes_in_total", "Bytes of IP packets received.", KIND_COUNTER,
     offsetof(struct cv_netif_stats, bytes_in)},
    {"culvert_tunnel_bytes_out_total", "Bytes of IP packets sent.", KIND_COUNTER,
     offsetof(struct cv_netif_stats, bytes_out)},
    {"culvert_tunnel_dropped_total", "IP packets dropped on this side.", KIND_COUNTER,
     offsetof(struct cv_netif_stats, dropped)},
};

struct samples {
    struct cv_prom *p;
    const struct family *f;
    size_t n; /* tunnels seen */
};

static void put_sample(void *arg, const struct cv_admin_tunnel *t)
{
    struct samples *s = arg;
    const char *net = (const char *)t->net;
    struct cv_prom_label label = {"tunnel", t->name, strlen(t->name)};
    if (s->n++ == 0)
        cv_prom_family(s->p, s->f->name, s->f->kind == KIND_COUNTER ? "counter" : "gauge",
                       s->f->help);
    switch (s->f->kind) {
    case KIND_UP:
        cv_prom_uint(s->p, "", &label, 1, t->state == CV_TUNNEL_UP);
        break;
    case KIND_RTT:
        cv_prom_seconds(s->p, "", &label, 1,
                        t->stats != NULL ? (uint64_t)cv_gauge_get(&t->stats->rtt_us) : 0);
        break;
    case KIND_COUNTER:
        cv_prom_uint(s->p, "", &label, 1,
                     cv_counter_get((const struct cv_counter *)(net + s->f->offset)));
        break;
    case KIND_GAUGE:
        cv_prom_int(s->p, "", &label, 1,
                    cv_gauge_get((const struct cv_gauge *)(net + s->f->offset)));
        break;
    }
}

void cv_admin_tunnels_expose(struct cv_prom *p, const struct cv_admin_view *v)
{
    if (v->each_tunnel == NULL)
        return;
    for (size_t i = 0; i < CV_ARRAY_SIZE(families); i++) {
        struct samples s = {.p = p, .f = &families[i]};
        v->each_tunnel(v->arg, put_sample, &s);
    }
}

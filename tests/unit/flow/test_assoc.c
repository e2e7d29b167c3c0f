/* The association over ways out that the test plays itself. */
#include "flow/assoc.h"

#include "flow_util.h"

/* -- an egress whose flows of datagrams are kept in memory -- */

struct flow_dgram {
    struct cv_dgram super;
    struct cv_loop *loop;
    struct cv_task release;
    bool open;
    int sent, answer;      /* 'answer': what send says to each */
    char last[64];         /* what was sent last, and to whom */
    const char *incoming;  /* datagrams of one byte each that recv gives, then -EAGAIN */
    struct cv_egress *via; /* borrowed */
};

static struct {
    bool carries; /* it has open_udp at all */
    bool hang;    /* no answer to the dial */
    int err;      /* the dial fails with it */
    int opened, cancelled, closed;
    struct cv_dial *dial;
    struct flow_dgram *flows[64];
    struct cv_prefix grant;
    bool granted;
} play;

static void flow_send(struct cv_dgram *super, struct cv_dgram_out *msgs, size_t n)
{
    struct flow_dgram *f = CV_CONTAINER_OF(super, struct flow_dgram, super);
    char text[CV_TARGET_STRLEN];
    for (size_t i = 0; i < n; i++) {
        f->sent++;
        snprintf(f->last, sizeof(f->last), "%.*s>%s", (int)msgs[i].len, (const char *)msgs[i].data,
                 cv_target_format(msgs[i].to, text));
        msgs[i].err = f->answer;
        play.granted = msgs[i].grant != NULL;
        if (play.granted)
            play.grant = *msgs[i].grant;
    }
}

static int flow_recv(struct cv_dgram *super, struct cv_dgram_in *msgs, size_t n, size_t *ret_n)
{
    struct flow_dgram *f = CV_CONTAINER_OF(super, struct flow_dgram, super);
    size_t got = 0;
    while (got < n && f->incoming != NULL && *f->incoming != '\0') {
        msgs[got].buf[0] = (uint8_t)*f->incoming++;
        msgs[got].data = msgs[got].buf;
        msgs[got].len = 1;
        msgs[got].from =
            (struct cv_endpoint){.ip = {.family = CV_AF_IP4, .b = {9, 9, 9, 9}}, .port = 53};
        got++;
    }
    *ret_n = got;
    return got > 0 ? 0 : -EAGAIN;
}

static void flow_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct flow_dgram, release));
}

static void flow_close(struct cv_dgram *super)
{
    struct flow_dgram *f = CV_CONTAINER_OF(super, struct flow_dgram, super);
    T_OK(f->open);
    f->open = false;
    play.closed++;
    cv_dgram_set_cb(super, NULL, NULL, NULL);
    f->release = (struct cv_task){.fn = flow_release};
    cv_loop_defer(f->loop, &f->release);
}

static const struct cv_dgram_ops flow_ops = {
    .name = "play",
    .send = flow_send,
    .recv = flow_recv,
    .close = flow_close,
};

static void play_open(struct cv_egress *e, struct cv_dial *d)
{
    play.opened++;
    if (play.hang) {
        play.dial = d;
        return;
    }
    if (play.err != 0) {
        cv_dial_fail_later(d, CV_STAGE_DIAL, play.err);
        return;
    }
    struct flow_dgram *f = cv_zalloc(sizeof(*f));
    f->super.ops = &flow_ops;
    f->loop = d->worker->loop;
    f->open = true;
    f->via = e;
    play.flows[play.opened - 1] = f;
    d->dgram = &f->super;
    cv_dial_done_later(d);
}

static void play_cancel(struct cv_egress *e, struct cv_dial *d)
{
    (void)e;
    T_OK(d->udp && d == play.dial);
    play.cancelled++;
    play.dial = NULL;
}

static bool play_same(const struct cv_egress *a, const struct cv_egress *b)
{
    return strcmp(a->label->s, b->label->s) == 0;
}

static const struct cv_egress_ops play_ops = {
    .kind = "play",
    .connect = fake_connect,
    .open_udp = play_open,
    .same = play_same,
    .cancel = play_cancel,
    .free = fake_free,
};

static struct cv_egress *play_factory(void *arg, const struct cv_egress_def *def)
{
    struct cv_egress *e = fake_factory(arg, def);
    if (play.carries)
        e->ops = &play_ops;
    return e;
}

/* -- the protocol's side: keys are targets as text -- */

static struct {
    struct test_node n;
    struct cv_session s;
    struct cv_assoc a;
    char got[4096]; /* payloads that were delivered */
    size_t n_got;
    bool deaf; /* delivery fails */
    int idles;
} rig;

static int on_target(const uint8_t *key, size_t key_len, struct cv_target *ret_target)
{
    return cv_target_parse((const char *)key, key_len, 0, ret_target);
}

static void on_deliver(struct cv_assoc *a, struct cv_dgram_in *msgs, size_t n, size_t *ret_n,
                       size_t *ret_bytes)
{
    (void)a;
    for (size_t i = 0; i < n && !rig.deaf; i++) {
        /* There is room before the payload. */
        memset(msgs[i].data - CV_DGRAM_HEADROOM, 'h', CV_DGRAM_HEADROOM);
        rig.got[rig.n_got++ % sizeof(rig.got)] = (char)msgs[i].data[0];
        ++*ret_n;
        *ret_bytes += msgs[i].len;
    }
}

static void on_idle(struct cv_assoc *a)
{
    rig.idles++;
    cv_assoc_end(a);
}

static void on_kill(struct cv_session *s, int err)
{
    (void)s;
    (void)err;
}

static const struct cv_assoc_ops assoc_ops = {
    .target = on_target,
    .deliver = on_deliver,
    .idle = on_idle,
};
static const struct cv_session_ops session_ops = {.kill = on_kill};

#define UP(name)                                                                                   \
    "\"" name "\":{\"type\":\"upstream\",\"backend\":{\"kind\":\"socks5\",\"addr\":\"" name        \
    ".test:1\"}}"
#define POLICY(version, routes)                                                                    \
    "{\"schema_version\":1,\"version\":" version                                                   \
    ",\"users\":{\"u\":{\"password\":\"p\",\"policy\":\"d\",\"max_connections\":1}},"              \
    "\"routing_policies\":{\"d\":{\"routes\":[" routes                                             \
    "]}},\"egresses\":{" UP("one") "," UP("two") "}}"
#define TO(selector, egress)                                                                       \
    "{\"selectors\":[\"" selector "\"],\"action\":{\"type\":\"egress\",\"egress\":\"" egress "\"}" \
    "}"
#define BLOCK(selector) "{\"selectors\":[\"" selector "\"],\"action\":{\"type\":\"block\"}}"

static void rig_open(const char *policy)
{
    memset(&rig, 0, sizeof(rig));
    memset(&play, 0, sizeof(play));
    play.carries = true;
    test_node_start(&rig.n);
    cv_active_holder_free(rig.n.node.active);
    rig.n.node.active = cv_active_holder_new(rig.n.accounts, play_factory, rig.n.registry);
    test_policy(&rig.n, policy);
    struct cv_rcstr *name = cv_rcstr_new("u", 1);
    struct cv_account *account = cv_accounts_get(rig.n.accounts, name);
    struct cv_endpoint client = {.ip = {.family = CV_AF_IP4, .b = {192, 0, 2, 1}}, .port = 99};
    cv_session_begin(&rig.s, rig.n.worker, &session_ops, "socks5-udp", rig.n.listener, &client);
    cv_session_set_user(&rig.s, name, account);
    cv_account_unref(account);
    cv_rcstr_unref(name);
    T_INT_EQ(cv_assoc_start(&rig.a, &rig.s, &assoc_ops), 0);
}

static void rig_settle(void)
{
    for (int i = 0; i < 6; i++)
        cv_loop_turn(rig.n.worker->loop, 0);
}

static void rig_close(void)
{
    cv_assoc_end(&rig.a);
    cv_session_end(&rig.s);
    rig_settle();
    T_INT_EQ(cv_gauge_get(&rig.n.node.stats.udp_associations), 0);
    T_INT_EQ(rig.n.worker->dgram_budget.used, 0);
    T_INT_EQ(play.closed + play.cancelled, play.opened - (play.err != 0 ? play.opened : 0));
    test_node_end(&rig.n);
}

static void send_to(const char *key, const char *data)
{
    struct cv_assoc_msg m = {
        .key = (const uint8_t *)key,
        .key_len = strlen(key),
        .data = (const uint8_t *)data,
        .len = strlen(data),
    };
    cv_assoc_send(&rig.a, &m, 1);
}

static uint64_t dropped(enum cv_udp_drop why)
{
    return cv_counter_get(&rig.n.node.stats.udp_dropped[why]);
}

/* -- tests -- */

static void test_one_way(void)
{
    rig_open(POLICY("1", BLOCK("blocked.test")));
    T_INT_EQ(cv_gauge_get(&rig.s.account->active), 1);
    T_INT_EQ(cv_gauge_get(&rig.n.node.stats.udp_associations), 1);
    send_to("a.test:53", "one"); /* waits for the way */
    send_to("b.test:54", "two");
    T_INT_EQ(play.opened, 1);
    T_INT_EQ(cv_counter_get(&rig.a.counts.up), 0);
    rig_settle();
    struct flow_dgram *f = play.flows[0];
    T_INT_EQ(f->sent, 2);
    T_STR_EQ(f->last, "two>b.test:54");
    send_to("A.TEST.:55", "three"); /* canonical */
    T_STR_EQ(f->last, "three>a.test:55");
    T_INT_EQ(play.opened, 1);
    T_INT_EQ(cv_counter_get(&rig.a.counts.up), 3);
    T_INT_EQ(cv_counter_get(&rig.s.bytes_up), 11);
    T_INT_EQ(cv_gauge_get(&f->via->stats->row.active), 1);
    T_INT_EQ(cv_counter_get(&f->via->stats->row.bytes_up), 11);
    T_STR_EQ(rig.s.outlet->s, "direct");

    f->incoming = "xyz";
    cv_dgram_notify(&f->super, CV_DGRAM_READ);
    T_MEM_EQ(rig.got, "xyz", 3);
    T_INT_EQ(cv_counter_get(&rig.a.counts.down), 3);
    T_INT_EQ(cv_counter_get(&rig.s.bytes_down), 3);
    T_INT_EQ(cv_counter_get(&f->via->stats->row.bytes_down), 3);
    rig.deaf = true;
    f->incoming = "v";
    cv_dgram_notify(&f->super, CV_DGRAM_READ);
    T_INT_EQ(dropped(CV_UDP_DROP_SEND), 1);
    T_INT_EQ(cv_counter_get(&rig.a.counts.down), 3);

    send_to("blocked.test:1", "x");
    send_to("no port", "x");
    f->answer = CV_E_GUARD;
    send_to("a.test:53", "x");
    f->answer = -EMSGSIZE;
    send_to("a.test:53", "x");
    cv_dgram_dropped(&f->super, CV_E_DNS_TIMEOUT);
    cv_dgram_dropped(&f->super, CV_E_PROTO);
    T_INT_EQ(dropped(CV_UDP_DROP_POLICY), 1);
    T_INT_EQ(dropped(CV_UDP_DROP_GUARD), 1);
    T_INT_EQ(dropped(CV_UDP_DROP_SEND), 2);
    T_INT_EQ(dropped(CV_UDP_DROP_DNS), 1);
    T_INT_EQ(dropped(CV_UDP_DROP_MALFORMED), 2);
    T_INT_EQ(cv_counter_get(&rig.a.counts.dropped), 7);
    struct cv_account *account = cv_account_ref(rig.s.account);
    cv_assoc_end(&rig.a);
    T_INT_EQ(rig.s.err, 0); /* something got through */
    rig_close();
    T_INT_EQ(cv_gauge_get(&account->active), 0);
    cv_account_unref(account);
}

static void test_several_ways(void)
{
    rig_open(
        POLICY("1", TO("one.test", "one") "," TO("two.test", "two") "," TO("10.0.0.0/8", "two")));
    static const char *const keys[] = {"one.test:1", "two.test:2", "three.test:3", "x.one.test:4",
                                       "10.1.2.3:5"};
    struct cv_assoc_msg m[CV_ARRAY_SIZE(keys)];
    for (size_t i = 0; i < CV_ARRAY_SIZE(keys); i++)
        m[i] = (struct cv_assoc_msg){.key = (const uint8_t *)keys[i],
                                     .key_len = strlen(keys[i]),
                                     .data = (const uint8_t *)"d",
                                     .len = 1};
    for (int round = 1; round <= 2; round++) {
        cv_assoc_send(&rig.a, m, CV_ARRAY_SIZE(m));
        rig_settle();
        T_INT_EQ(play.opened, 3);
        T_INT_EQ(play.flows[0]->sent, 2 * round);
        T_STR_EQ(play.flows[0]->via->label->s, "upstream:one.test:1");
        T_INT_EQ(play.flows[1]->sent, 2 * round);
        T_STR_EQ(play.flows[1]->last, "d>10.1.2.3:5");
        T_INT_EQ(play.flows[2]->sent, round);
        T_STR_EQ(play.flows[2]->via->label->s, "direct");
    }
    T_OK(play.granted); /* the last one went by a selector that names private space */
    T_INT_EQ(play.grant.len, 8);
    rig_close();
}

/* A swap decides anew, but a way that is the same goes on. */
static void test_swap(void)
{
    rig_open(POLICY("1", ""));
    send_to("a.test:1", "x");
    rig_settle();
    T_INT_EQ(rig.s.snapshot_version, 1);
    test_policy(&rig.n, POLICY("2", BLOCK("a.test")));
    send_to("a.test:1", "x");
    T_INT_EQ(dropped(CV_UDP_DROP_POLICY), 1);
    T_INT_EQ(rig.s.snapshot_version, 1); /* of the last that had a way out */
    test_policy(&rig.n, POLICY("3", ""));
    send_to("a.test:1", "y");
    T_INT_EQ(play.opened, 1);
    T_INT_EQ(play.flows[0]->sent, 2);
    T_INT_EQ(rig.s.snapshot_version, 3);
    test_policy(&rig.n, POLICY("4", TO("a.test", "one")));
    send_to("a.test:1", "z");
    rig_settle();
    T_INT_EQ(play.opened, 2);
    T_STR_EQ(play.flows[1]->last, "z>a.test:1");
    rig_close();
}

static void test_no_udp(void)
{
    rig_open(POLICY("1", ""));
    play.carries = false;
    test_policy(&rig.n, POLICY("2", ""));
    send_to("a.test:1", "x");
    rig_settle();
    T_INT_EQ(dropped(CV_UDP_DROP_EGRESS), 1);
    send_to("a.test:1", "x"); /* not tried again at once */
    T_INT_EQ(dropped(CV_UDP_DROP_EGRESS), 2);
    cv_assoc_end(&rig.a);
    T_INT_EQ(rig.s.stage, CV_STAGE_EGRESS);
    T_INT_EQ(rig.s.err, -EPROTONOSUPPORT);
    T_STR_EQ(cv_stage_message(rig.s.stage, rig.s.err), "egress cannot carry udp");
    T_INT_EQ(cv_stage_socks_rep(rig.s.stage, rig.s.err), 7);
    rig_close();
}

static void test_failed_way(void)
{
    rig_open(POLICY("1", ""));
    play.err = -ECONNREFUSED;
    send_to("a.test:1", "x");
    rig_settle();
    T_INT_EQ(play.opened, 1);
    T_INT_EQ(dropped(CV_UDP_DROP_EGRESS), 1);
    send_to("a.test:1", "x");
    T_INT_EQ(play.opened, 1);
    int64_t end = cv_clock_mono_ms() + 10000;
    while (play.opened == 1 && cv_clock_mono_ms() < end) {
        send_to("a.test:1", "x");
        cv_loop_turn(rig.n.worker->loop, 20);
    }
    T_INT_EQ(play.opened, 2); /* a second later it is tried again */
    rig_settle();
    cv_assoc_end(&rig.a);
    T_INT_EQ(rig.s.err, -ECONNREFUSED);
    T_INT_EQ(rig.s.stage, CV_STAGE_DIAL);
    rig_close();
}

/* The upstream's relay goes away while it is in use. */
static void test_way_ends(void)
{
    rig_open(POLICY("1", ""));
    send_to("a.test:1", "x");
    rig_settle();
    struct flow_dgram *f = play.flows[0];
    struct cv_egress_stats *stats = f->via->stats;
    f->super.err = CV_E_UNAVAILABLE;
    f->incoming = "l"; /* its last datagram is not lost */
    cv_dgram_notify(&f->super, CV_DGRAM_READ | CV_DGRAM_HUP);
    T_INT_EQ(rig.n_got, 1);
    T_INT_EQ(play.closed, 1);
    T_INT_EQ(cv_gauge_get(&stats->row.active), 0);
    send_to("a.test:1", "x");
    T_INT_EQ(dropped(CV_UDP_DROP_EGRESS), 1);
    cv_assoc_end(&rig.a);
    T_INT_EQ(rig.s.err, 0);
    rig_close();
}

static void test_bounds(void)
{
    char key[32];
    rig_open(POLICY("1", ""));
    play.hang = true;
    for (int i = 0; i < CV_ASSOC_WAIT_N + 5; i++)
        send_to("a.test:1", "x");
    T_INT_EQ(dropped(CV_UDP_DROP_LIMIT), 5);
    /* Far more destinations than are remembered: all are served. */
    for (int i = 0; i < 10 * CV_ASSOC_DESTS; i++) {
        snprintf(key, sizeof(key), "n%d.test:1", i);
        send_to(key, "x");
    }
    T_INT_EQ(play.opened, 1);
    T_INT_EQ(dropped(CV_UDP_DROP_LIMIT), 5 + 10 * CV_ASSOC_DESTS);
    T_OK(rig.n.worker->dgram_budget.used > 0);
    rig_close(); /* what waits goes */
}

static void test_too_many_ways(void)
{
    char doc[8192];
    size_t n = (size_t)snprintf(doc, sizeof(doc),
                                "{\"schema_version\":1,\"version\":1,\"users\":{\"u\":{"
                                "\"password\":\"p\",\"policy\":\"d\"}}"
                                ",\"routing_policies\":{\"d\":{\"routes\":[");
    for (int i = 0; i < CV_ASSOC_WAYS + 2; i++)
        n += (size_t)snprintf(doc + n, sizeof(doc) - n,
                              "%s{\"selectors\":[\"n%d.test\"],\"action\":{\"type\":\"egress\","
                              "\"egress\":\"e%d\"}}",
                              i > 0 ? "," : "", i, i);
    n += (size_t)snprintf(doc + n, sizeof(doc) - n, "]}},\"egresses\":{");
    for (int i = 0; i < CV_ASSOC_WAYS + 2; i++)
        n += (size_t)snprintf(doc + n, sizeof(doc) - n,
                              "%s\"e%d\":{\"type\":\"upstream\",\"backend\":{\"kind\":\"socks5\","
                              "\"addr\":\"10.0.0.%d:1\"}}",
                              i > 0 ? "," : "", i, i + 1);
    snprintf(doc + n, sizeof(doc) - n, "}}");
    rig_open(doc);
    for (int i = 0; i < CV_ASSOC_WAYS + 2; i++) {
        char key[32];
        snprintf(key, sizeof(key), "n%d.test:1", i);
        send_to(key, "x");
    }
    rig_settle();
    T_INT_EQ(play.opened, CV_ASSOC_WAYS);
    T_INT_EQ(dropped(CV_UDP_DROP_LIMIT), 2);
    T_INT_EQ(cv_counter_get(&rig.a.counts.up), CV_ASSOC_WAYS);
    rig_close();
}

/* A flood is read in turns, and stops with the association. */
static void test_flood(void)
{
    static char many[2000];
    memset(many, 'f', sizeof(many) - 1);
    rig_open(POLICY("1", ""));
    send_to("a.test:1", "x");
    rig_settle();
    play.flows[0]->incoming = many;
    cv_dgram_notify(&play.flows[0]->super, CV_DGRAM_READ);
    T_INT_EQ(rig.n_got, 4 * CV_DGRAM_BATCH);
    cv_loop_turn(rig.n.worker->loop, 0);
    T_OK(rig.n_got > 4 * CV_DGRAM_BATCH);
    TURN_UNTIL(rig.n.worker->loop, rig.n_got == sizeof(many) - 1);
    play.flows[0]->incoming = many;
    cv_dgram_notify(&play.flows[0]->super, CV_DGRAM_READ);
    size_t before = rig.n_got;
    cv_assoc_end(&rig.a);
    rig_settle();
    T_INT_EQ(rig.n_got, before);
    rig_close();
}

static void test_timeouts(void)
{
    rig_open(POLICY("1", ""));
    rig.n.settings->udp_timeout_ms = 300;
    send_to("a.test:1", "x");
    /* The first sweep was set by the default; let the next start be by the new setting. */
    rig.n.settings->idle_timeout_ms = 0;
    cv_loop_timer(rig.n.worker->loop, &rig.a._timer, 1);
    TURN_UNTIL(rig.n.worker->loop, play.closed == 1);
    T_INT_EQ(cv_gauge_get(&rig.n.node.stats.udp_associations), 1);
    send_to("a.test:1", "x");
    rig_settle();
    T_INT_EQ(play.opened, 2);
    rig.n.settings->udp_timeout_ms = 60000;
    rig.n.settings->idle_timeout_ms = 200;
    TURN_UNTIL(rig.n.worker->loop, rig.idles == 1);
    T_INT_EQ(play.closed, 2);
    rig_close();
}

/* What is beyond the user's rate is dropped, in each direction by itself. */
static void test_rates(void)
{
    static char many[400];
    memset(many, 'r', sizeof(many) - 1);
    rig_open(POLICY("1", ""));
    send_to("a.test:1", "x");
    rig_settle();
    cv_rate_set(&rig.s.account->up, 3200);
    char data[101];
    memset(data, 'd', sizeof(data) - 1);
    data[100] = '\0';
    for (int i = 0; i < 50; i++)
        send_to("a.test:1", data);
    uint64_t up = dropped(CV_UDP_DROP_RATE);
    T_OK(up >= 40 && up < 50); /* something passes, and little more than the burst */
    play.flows[0]->incoming = many;
    cv_dgram_notify(&play.flows[0]->super, CV_DGRAM_READ);
    rig_settle();
    T_INT_EQ(rig.n_got, sizeof(many) - 1);
    T_INT_EQ(dropped(CV_UDP_DROP_RATE), up);
    cv_rate_set(&rig.s.account->down, 320);
    play.flows[0]->incoming = many;
    cv_dgram_notify(&play.flows[0]->super, CV_DGRAM_READ);
    rig_settle();
    T_OK(rig.n_got < 2 * (sizeof(many) - 1));
    T_OK(dropped(CV_UDP_DROP_RATE) > up + 300);
    rig_close();
}

static void test_admission(void)
{
    rig_open(POLICY("1", ""));
    /* The one permit is taken. */
    struct cv_session s;
    struct cv_assoc a = {0};
    struct cv_endpoint client = {.ip = {.family = CV_AF_IP4}};
    cv_session_begin(&s, rig.n.worker, &session_ops, "socks5-udp", rig.n.listener, &client);
    cv_session_set_user(&s, rig.s.username, rig.s.account);
    T_INT_EQ(cv_assoc_start(&a, &s, &assoc_ops), CV_E_LIMIT);
    T_INT_EQ(s.stage, CV_STAGE_LIMIT);
    cv_assoc_end(&a); /* not started: nothing */
    cv_session_end(&s);
    /* The user is gone. */
    test_policy(&rig.n,
                "{\"schema_version\":1,\"version\":2,\"users\":{},\"routing_policies\":{}}");
    cv_session_begin(&s, rig.n.worker, &session_ops, "socks5-udp", rig.n.listener, &client);
    cv_session_set_user(&s, rig.s.username, rig.s.account);
    T_INT_EQ(cv_assoc_start(&a, &s, &assoc_ops), CV_E_POLICY);
    T_INT_EQ(s.stage, CV_STAGE_POLICY);
    cv_session_end(&s);
    send_to("a.test:1", "x");
    T_INT_EQ(dropped(CV_UDP_DROP_POLICY), 1);
    rig_close();
}

static void test_names(void)
{
    for (int i = 0; i < CV_UDP_DROP_MAX; i++)
        T_OK(cv_udp_drop_name((enum cv_udp_drop)i)[0] != '\0');
    T_STR_EQ(cv_udp_drop_name(CV_UDP_DROP_MAX), "");
}

int main(void)
{
    T_RUN(test_one_way);
    T_RUN(test_several_ways);
    T_RUN(test_swap);
    T_RUN(test_no_udp);
    T_RUN(test_failed_way);
    T_RUN(test_way_ends);
    T_RUN(test_bounds);
    T_RUN(test_too_many_ways);
    T_RUN(test_flood);
    T_RUN(test_timeouts);
    T_RUN(test_rates);
    T_RUN(test_admission);
    T_RUN(test_names);
    return t_done();
}

/* The race is run twice: with fakes for the resolver, the connects and the clock, where each step
 * has an exact time, and over real sockets. */
#include "net/happy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

#include "common/err.h"
#include "common/torture.h"
#include "dns_server.h"
#include "net/dns_priv.h"
#include "tap.h"

/* ---- fakes ---- */

#define FAKES_MAX 64

struct fake {
    struct cv_timer timer;
    struct cv_tcp_connect *connect;
    struct cv_dns_query *query;
    char who[8];
    int err;
    struct cv_ip ips[CV_DNS_ADDRS_MAX];
    size_t n;
    bool used;
};

static struct cv_timers *wheel;
static int64_t now;
static struct fake fakes[FAKES_MAX];
static struct cv_task *next_task;
static char trace[2048];
static int streams_closed;

/* What happens to whom: "a1=10:ok b1=0:unreach", and what the resolver says: "5:a1,a2". */
static const char *script_hosts, *script_dns4, *script_dns6;

static void note_event(const char *fmt, ...)
{
    size_t len = strlen(trace);
    va_list ap;
    va_start(ap, fmt);
    len += (size_t)snprintf(trace + len, sizeof(trace) - len, "%s%d", len > 0 ? " " : "", (int)now);
    vsnprintf(trace + len, sizeof(trace) - len, fmt, ap);
    va_end(ap);
}

/* "a7" is 192.0.2.7, "b7" is 2001:db8::7, "m7" is ::ffff:192.0.2.7, "x7" is 127.0.0.7. */
static struct cv_ip ip_of(const char *who)
{
    static const char *const forms[][2] = {{"a", "192.0.2.%d"},
                                           {"b", "2001:db8::%d"},
                                           {"m", "::ffff:192.0.2.%d"},
                                           {"x", "127.0.0.%d"}};
    struct cv_ip ip = {0};
    for (size_t i = 0; i < CV_ARRAY_SIZE(forms); i++) {
        char text[64];
        if (forms[i][0][0] != who[0])
            continue;
        snprintf(text, sizeof(text), forms[i][1], (int)strtol(who + 1, NULL, 10));
        if (cv_ip_parse(text, strlen(text), &ip) != 0)
            abort();
    }
    return ip;
}

static void who_of(const struct sockaddr *sa, char out[8])
{
    struct cv_endpoint ep;
    cv_endpoint_from_sockaddr(&ep, sa);
    if (ep.ip.family == CV_AF_IP4)
        snprintf(out, 8, "%c%d", ep.ip.b[0] == 127 ? 'x' : 'a', ep.ip.b[3]);
    else
        snprintf(out, 8, "b%d", ep.ip.b[15]);
}

static int fake_err(const char *s)
{
    static const struct {
        const char *name;
        int err;
    } errs[] = {
        {"ok", 0},
        {"refused", -ECONNREFUSED},
        {"hostunreach", -EHOSTUNREACH},
        {"netunreach", -ENETUNREACH},
        {"timeout", -ETIMEDOUT},
        {"reset", -ECONNRESET},
        {"nx", CV_E_DNS_NXDOMAIN},
        {"dnsfail", CV_E_DNS_FAIL},
        {"dnstimeout", CV_E_DNS_TIMEOUT},
        {"guard", CV_E_GUARD},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(errs); i++)
        if (strncmp(s, errs[i].name, strlen(errs[i].name)) == 0)
            return errs[i].err;
    abort();
}

static const char *err_name(int err)
{
    static const char *const names[] = {"ok",    "refused", "hostunreach", "netunreach", "timeout",
                                        "reset", "nx",      "dnsfail",     "dnstimeout", "guard"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(names); i++)
        if (fake_err(names[i]) == err)
            return names[i];
    return "?";
}

static struct fake *fake_new(cv_timer_cb cb)
{
    for (int i = 0; i < FAKES_MAX; i++)
        if (!fakes[i].used) {
            fakes[i] = (struct fake){.used = true};
            cv_timer_init(&fakes[i].timer, cb);
            return &fakes[i];
        }
    abort();
}

static void stream_close(struct cv_stream *s, bool abort_it)
{
    (void)s;
    (void)abort_it;
    streams_closed++;
}

static const struct cv_stream_ops stream_ops = {.name = "fake", .close = stream_close};
static struct cv_stream the_stream = {.ops = &stream_ops};

static void on_fake_connect(struct cv_timer *t)
{
    struct fake *f = CV_CONTAINER_OF(t, struct fake, timer);
    f->used = false;
    f->connect->_running = false;
    f->connect->cb(f->connect, f->err, f->err == 0 ? &the_stream : NULL);
}

static void fake_connect_start(struct cv_tcp_connect *c, struct cv_loop *loop,
                               const struct cv_sockaddr *sa)
{
    (void)loop;
    struct fake *f = fake_new(on_fake_connect);
    f->connect = c;
    c->_running = true;
    who_of(&sa->sa, f->who);
    note_event(":%s", f->who);
    char key[16];
    snprintf(key, sizeof(key), "%s=", f->who);
    const char *p = strstr(script_hosts, key);
    if (p == NULL)
        return; /* never answers */
    char *end;
    long after = strtol(p + strlen(key), &end, 10);
    f->err = fake_err(end + 1);
    cv_timer_start(wheel, &f->timer, now + after);
}

static void fake_connect_cancel(struct cv_tcp_connect *c)
{
    for (int i = 0; i < FAKES_MAX; i++)
        if (fakes[i].used && fakes[i].connect == c) {
            note_event("-%s", fakes[i].who);
            cv_timer_stop(wheel, &fakes[i].timer);
            fakes[i].used = false;
        }
}

static void on_fake_dns(struct cv_timer *t)
{
    struct fake *f = CV_CONTAINER_OF(t, struct fake, timer);
    f->used = false;
    f->query->_flight = NULL;
    f->query->cb(f->query, f->err, f->ips, f->n);
}

static void fake_dns_start(struct cv_dns_query *q, struct cv_dns *dns, const char *name,
                           enum cv_family family)
{
    (void)dns;
    T_STR_EQ(name, "name.test");
    struct fake *f = fake_new(on_fake_dns);
    f->query = q;
    q->_flight = f;
    const char *p = family == CV_AF_IP4 ? script_dns4 : script_dns6;
    if (p == NULL)
        return;
    char *end;
    long after = strtol(p, &end, 10);
    if (*end == '!') {
        f->err = fake_err(end + 1);
    } else {
        do {
            f->ips[f->n++] = ip_of(end + 1);
            end = strchr(end + 1, ',');
        } while (end != NULL);
    }
    cv_timer_start(wheel, &f->timer, now + after);
}

static void fake_dns_cancel(struct cv_dns_query *q)
{
    struct fake *f = q->_flight;
    if (f == NULL)
        return;
    cv_timer_stop(wheel, &f->timer);
    f->used = false;
    q->_flight = NULL;
}

static void fake_timer(struct cv_loop *loop, struct cv_timer *t, int64_t after_ms)
{
    (void)loop;
    cv_timer_start(wheel, t, now + after_ms);
}

static void fake_timer_stop(struct cv_loop *loop, struct cv_timer *t)
{
    (void)loop;
    cv_timer_stop(wheel, t);
}

static void fake_next(struct cv_loop *loop, struct cv_task *task)
{
    (void)loop;
    next_task = task;
}

static bool fake_next_cancel(struct cv_loop *loop, struct cv_task *task)
{
    (void)loop;
    bool was = next_task == task;
    if (was)
        next_task = NULL;
    return was;
}

/* The same code twice: against the fakes under other names, and as it is in the library. */
#define cv_happy_start        raced_start
#define cv_happy_arg          raced_arg
#define cv_happy_cancel       raced_cancel
#define cv_tcp_connect_start  fake_connect_start
#define cv_tcp_connect_cancel fake_connect_cancel
#define cv_dns_query_start    fake_dns_start
#define cv_dns_query_cancel   fake_dns_cancel
#define cv_loop_timer         fake_timer
#define cv_loop_timer_stop    fake_timer_stop
#define cv_loop_next          fake_next
#define cv_loop_next_cancel   fake_next_cancel
int raced_start(struct cv_loop *loop, const struct cv_happy_conf *conf,
                const struct cv_target *target, cv_happy_filter_cb filter, cv_happy_cb cb,
                void *arg, struct cv_happy **ret_happy);
void *raced_arg(const struct cv_happy *h);
void raced_cancel(struct cv_happy *h);
#include "net/happy.c" /* NOLINT */
#undef cv_happy_start
#undef cv_happy_arg
#undef cv_happy_cancel
#undef cv_tcp_connect_start
#undef cv_tcp_connect_cancel
#undef cv_dns_query_start
#undef cv_dns_query_cancel
#undef cv_loop_timer
#undef cv_loop_timer_stop
#undef cv_loop_next
#undef cv_loop_next_cancel

/* ---- with fakes ---- */

static bool over;

static void on_raced(struct cv_happy *h, int err, enum cv_happy_stage stage,
                     struct cv_stream *stream, const struct cv_endpoint *peer)
{
    over = true;
    T_STR_EQ(raced_arg(h), "arg");
    if (err == 0) {
        char who[8];
        struct cv_sockaddr sa;
        cv_sockaddr_from_ip(&sa, &peer->ip, peer->port);
        who_of(&sa.sa, who);
        T_OK(stream == &the_stream);
        T_INT_EQ(peer->port, 443);
        note_event("=%s", who);
    } else {
        T_OK(stream == NULL);
        note_event("!%s/%s", err_name(err), stage == CV_HAPPY_DNS ? "dns" : "dial");
    }
    raced_cancel(h); /* from the callback: nothing */
}

/* Refuses loopback, also when it comes in disguise: what is checked is what is dialled. */
static int refuse_x(struct cv_happy *h, const struct cv_ip *ip)
{
    T_STR_EQ(raced_arg(h), "arg");
    T_OK(!(ip->family == CV_AF_IP6 && ip->b[0] == 0 && ip->b[10] == 0xff)); /* folded */
    return cv_ip_class(ip) == CV_IP_LOOPBACK ? CV_E_GUARD : 0;
}

struct race {
    const char *what;
    const char *dns4, *dns6; /* NULL: never answers */
    const char *hosts;
    const char *want; /* TIME:WHO dialled, TIME-WHO given up, TIME=WHO won, TIME!ERROR/STAGE */
    enum cv_family prefer;
    const char *ip; /* the target is this address */
};

static void world_begin(void)
{
    memset(fakes, 0, sizeof(fakes));
    now = 0;
    trace[0] = '\0';
    over = false;
    next_task = NULL;
    streams_closed = 0;
    if (cv_timers_new(0, &wheel) != 0)
        abort();
}

static void world_end(void)
{
    T_INT_EQ(cv_timers_count(wheel), 0);
    for (int i = 0; i < FAKES_MAX; i++)
        T_OK(!fakes[i].used);
    cv_timers_free(wheel);
}

static struct cv_happy *race_begin(const struct race *r)
{
    script_hosts = r->hosts;
    script_dns4 = r->dns4;
    script_dns6 = r->dns6;
    struct cv_target target = {.port = 443};
    if (r->ip != NULL) {
        struct cv_ip ip = ip_of(r->ip);
        target.host.ip = ip;
    } else {
        snprintf(target.host.name, sizeof(target.host.name), "name.test");
    }
    struct cv_happy_conf conf = {.prefer = r->prefer, .timeout_ms = 10000};
    struct cv_happy *h = NULL;
    if (raced_start(NULL, &conf, &target, refuse_x, on_raced, (void *)(uintptr_t)"arg", &h) != 0)
        abort();
    T_OK(!over); /* never from inside */
    return h;
}

static void run_until(int64_t end)
{
    while (!over && now <= end) {
        if (next_task != NULL) {
            struct cv_task *task = next_task;
            next_task = NULL;
            task->fn(task);
        }
        cv_timers_advance(wheel, now);
        now++;
    }
}

static const struct race races[] = {
    {.what = "one address",
     .dns4 = "5:a1",
     .dns6 = "5!nx",
     .hosts = "a1=20:ok",
     .want = "5:a1 25=a1"},
    {.what = "the preferred family starts without waiting for the other",
     .dns4 = "5:a1",
     .dns6 = NULL,
     .hosts = "a1=20:ok",
     .want = "5:a1 25=a1"},
    {.what = "the other family waits 50 ms for the preferred one, which comes in time",
     .dns4 = "40:a1",
     .dns6 = "5:b1",
     .hosts = "a1=20:ok b1=20:ok",
     .want = "40:a1 60=a1"},
    {.what = "... and which does not",
     .dns4 = "400:a1",
     .dns6 = "5:b1",
     .hosts = "a1=20:ok b1=20:ok",
     .want = "55:b1 75=b1"},
    {.what = "... and which does not exist",
     .dns4 = "20!nx",
     .dns6 = "5:b1",
     .hosts = "b1=20:ok",
     .want = "20:b1 40=b1"},
    {.what = "preferred address in a black hole: the next one starts after 250 ms",
     .dns4 = "0:a1",
     .dns6 = "0:b1",
     .hosts = "a1=10:ok",
     .want = "0:b1 250:a1 260-b1 260=a1",
     .prefer = CV_AF_IP6},
    {.what = "a refusal starts the next one at once",
     .dns4 = "0:a1",
     .dns6 = "0:b1",
     .hosts = "a1=10:ok b1=7:refused",
     .want = "0:b1 7:a1 17=a1",
     .prefer = CV_AF_IP6},
    {.what = "families alternate, and the rest of the longer one follows",
     .dns4 = "0:a1,a2,a3,a4",
     .dns6 = "0:b1,b2",
     .hosts = "a1=1:refused a2=1:refused a3=1:refused a4=1:ok b1=1:refused b2=1:refused",
     .want = "0:a1 1:b1 2:a2 3:b2 4:a3 5:a4 6=a4"},
    {.what = "at most four at once; then only when one fails",
     .dns4 = "0:a1,a2,a3,a4,a5,a6",
     .dns6 = "0!nx",
     .hosts = "a2=3000:hostunreach a5=100:ok",
     .want = "0:a1 250:a2 500:a3 750:a4 3250:a5 3350-a1 3350-a3 3350-a4 3350=a5"},
    {.what = "a late answer joins the race",
     .dns4 = "0:a1",
     .dns6 = "600:b1",
     .hosts = "b1=10:ok",
     .want = "0:a1 600:b1 610-a1 610=b1"},
    {.what = "a late answer within the delay of the last attempt waits for it",
     .dns4 = "0:a1",
     .dns6 = "100:b1",
     .hosts = "b1=10:ok",
     .want = "0:a1 250:b1 260-a1 260=b1"},
    {.what = "a late answer after all attempts have failed starts at once",
     .dns4 = "0:a1",
     .dns6 = "900:b1",
     .hosts = "a1=5:refused b1=10:ok",
     .want = "0:a1 900:b1 910=b1"},
    {.what = "an address that both answers hold is tried once",
     .dns4 = "0:a1",
     .dns6 = "0:m1,m2",
     .hosts = "a1=5:refused a2=5:ok",
     .want = "0:a1 5:a2 10=a2"},
    {.what = "mixed answers: only the allowed ones are tried",
     .dns4 = "0:x1,a1,x2",
     .dns6 = "0!nx",
     .hosts = "a1=5:refused x1=1:ok x2=1:ok",
     .want = "0:a1 5!refused/dial"},
    {.what = "all refused by the filter",
     .dns4 = "3:x1,x2",
     .dns6 = "9!nx",
     .hosts = "x1=1:ok x2=1:ok",
     .want = "9!guard/dial"},
    {.what = "no such name", .dns4 = "3!nx", .dns6 = "9!nx", .hosts = "", .want = "9!nx/dns"},
    {.what = "one family does not exist, the other one is not known",
     .dns4 = "3!nx",
     .dns6 = "9!dnstimeout",
     .hosts = "",
     .want = "9!dnstimeout/dns"},
    {.what = "... or failed",
     .dns4 = "3!dnsfail",
     .dns6 = "9!nx",
     .hosts = "",
     .want = "9!dnsfail/dns"},
    {.what = "a resolver that is silent", .hosts = "", .want = "10000!dnstimeout/dns"},
    {.what = "all in a black hole",
     .dns4 = "0:a1",
     .dns6 = "0:b1",
     .hosts = "",
     .want = "0:a1 250:b1 10000-a1 10000-b1 10000!timeout/dial"},
    {.what = "a refusal tells more than the silence of others",
     .dns4 = "0:a1",
     .dns6 = "0:b1",
     .hosts = "b1=5:refused",
     .want = "0:a1 250:b1 10000-a1 10000!refused/dial"},
    {.what = "refused before unreachable, in whatever order",
     .dns4 = "0:a1,a2",
     .dns6 = "0:b1",
     .hosts = "a1=5:hostunreach b1=5:refused a2=5:hostunreach",
     .want = "0:a1 5:b1 10:a2 15!refused/dial"},
    /* (The clock of the fakes fires what is due at once in its next millisecond.) */
    {.what = "unreachable before timeout",
     .dns4 = "0:a1",
     .dns6 = "0:b1",
     .hosts = "a1=5:timeout b1=5:hostunreach",
     .want = "0:a1 5:b1 10!hostunreach/dial"},
    {.what = "a family that this host lacks tells least",
     .dns4 = "0:a1",
     .dns6 = "0:b1",
     .hosts = "a1=5:timeout b1=0:netunreach",
     .want = "0:a1 5:b1 6!timeout/dial"},
    {.what = "... but it is better than nothing",
     .dns4 = "0!nx",
     .dns6 = "0:b1",
     .hosts = "b1=0:netunreach",
     .want = "0:b1 1!netunreach/dial"},
    {.what = "a dial error tells more than the filter",
     .dns4 = "0:x1",
     .dns6 = "0:b1",
     .hosts = "b1=5:refused",
     .want = "0:b1 5!refused/dial"},
    {.what = "an address needs no resolver", .ip = "b3", .hosts = "b3=5:ok", .want = "0:b3 5=b3"},
    {.what = "an address that is refused", .ip = "x3", .hosts = "x3=5:ok", .want = "0!guard/dial"},
    {.what = "a mapped address is dialled as what it is",
     .ip = "m3",
     .hosts = "a3=5:ok",
     .want = "0:a3 5=a3"},
    {.what = "an address that does not answer",
     .ip = "a3",
     .hosts = "",
     .want = "0:a3 10000-a3 10000!timeout/dial"},
};

static void step_by_step(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(races); i++) {
        world_begin();
        race_begin(&races[i]);
        run_until(20000);
        T_OK(over);
        if (strcmp(trace, races[i].want) != 0)
            T_FAIL("%s:\n#     got    %s\n#     wanted %s", races[i].what, trace, races[i].want);
        world_end();
    }
}

static void cancelled_at_any_time(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(races); i++)
        for (int64_t at = -1; at < 3400; at += at < 20 ? 1 : 119) {
            world_begin();
            struct cv_happy *h = race_begin(&races[i]);
            if (at >= 0)
                run_until(at);
            if (!over)
                raced_cancel(h);
            over = true;
            T_OK(next_task == NULL);
            world_end();
        }
    raced_cancel(NULL);
}

/* Random answers and fates; whoever can be reached is found, and nothing is left behind. */
static void random_races(void)
{
    static const char *const fates[] = {"ok", "refused", "hostunreach", "timeout", "netunreach"};
    for (int round = 0; round < 2000; round++) {
        char hosts[1024] = "", dns[2][256] = {"", ""};
        bool reachable = false;
        for (int f = 0; f < 2; f++) {
            unsigned n = cv_rand_below(6);
            size_t len = (size_t)snprintf(dns[f], sizeof(dns[f]), "%u", cv_rand_below(400));
            if (n == 0)
                snprintf(dns[f] + len, sizeof(dns[f]) - len, "!nx");
            for (unsigned k = 1; k <= n; k++) {
                unsigned fate = cv_rand_below(9);
                len += (size_t)snprintf(dns[f] + len, sizeof(dns[f]) - len, "%c%c%u",
                                        k == 1 ? ':' : ',', "ab"[f], k);
                size_t hlen = strlen(hosts);
                if (fate < 5)
                    snprintf(hosts + hlen, sizeof(hosts) - hlen, "%c%u=%u:%s ", "ab"[f], k,
                             cv_rand_below(300), fates[fate]);
                else if (fate < 8) /* takes longer, but does come */
                    snprintf(hosts + hlen, sizeof(hosts) - hlen, "%c%u=%u:ok ", "ab"[f], k,
                             cv_rand_below(2000));
                reachable |= fate == 0 || (fate >= 5 && fate < 8);
            }
        }
        struct race r = {.dns4 = dns[0],
                         .dns6 = dns[1],
                         .hosts = hosts,
                         .prefer = round & 1 ? CV_AF_IP4 : CV_AF_IP6};
        world_begin();
        race_begin(&r);
        run_until(20000);
        /* Four that never answer can hold the race up to its end. */
        bool won = strchr(trace, '=') != NULL, held_up = strstr(trace, "10000!") != NULL;
        if (!T_OK(over) || (won != reachable && !held_up)) {
            T_FAIL("dns4 %s dns6 %s hosts %s: %s", dns[0], dns[1], hosts, trace);
            world_end();
            return;
        }
        world_end();
    }
}

/* ---- over sockets ---- */

struct real {
    struct cv_loop *loop;
    int done;
    int err;
    enum cv_happy_stage stage;
    struct cv_endpoint peer;
    struct cv_stream *stream;
};

static void on_real(struct cv_happy *h, int err, enum cv_happy_stage stage,
                    struct cv_stream *stream, const struct cv_endpoint *peer)
{
    struct real *r = cv_happy_arg(h);
    r->done++;
    r->err = err;
    r->stage = stage;
    r->stream = stream;
    if (peer != NULL)
        r->peer = *peer;
}

static int allow_all(struct cv_happy *h, const struct cv_ip *ip)
{
    (void)h;
    (void)ip;
    return 0;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_in sa;
    socklen_t len = sizeof(sa);
    getsockname(fd, (struct sockaddr *)&sa, &len);
    return ntohs(sa.sin_port);
}

/* A name with one address that takes no connections any more and one that is alive. */
static void over_sockets(void)
{
    struct real r = {.loop = test_loop()};
    struct dns_server *server = dns_server_new(r.loop);
    const char *servers[] = {server->text};
    struct cv_dns_conf conf = {.servers = servers, .n_servers = 1, .cache_size = 16};
    struct cv_dns_stats stats = {0};
    struct cv_dns *dns;
    T_REQUIRE(cv_dns_new(r.loop, &conf, &stats, &dns) == 0);
    int listener = test_listener();
    int before = test_fd_count();
    struct cv_happy_conf hc = {.dns = dns, .timeout_ms = 5000};
    struct cv_target target = {.port = port_of(listener)};
    static const struct {
        const char *name;
        int err;
        enum cv_happy_stage stage;
    } cases[] = {
        {"x.127-0-0-1.a.test", 0, CV_HAPPY_DIAL},
        {"x.127-0-0-1.a.test", 0, CV_HAPPY_DIAL}, /* from the cache */
        {"localhost", 0, CV_HAPPY_DIAL},          /* nobody listens on ::1 */
        {"mapped.test", 0, CV_HAPPY_DIAL},
        {"nx.test", CV_E_DNS_NXDOMAIN, CV_HAPPY_DNS},
        {"servfail.test", CV_E_DNS_FAIL, CV_HAPPY_DNS},
        {"x.127-0-0-2.a.test", -ECONNREFUSED, CV_HAPPY_DIAL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_happy *h;
        r.done = 0;
        snprintf(target.host.name, sizeof(target.host.name), "%s", cases[i].name);
        T_REQUIRE(cv_happy_start(r.loop, &hc, &target, allow_all, on_real, &r, &h) == 0);
        T_INT_EQ(r.done, 0);
        while (r.done == 0)
            cv_loop_turn(r.loop, 5);
        if (r.err != cases[i].err || r.stage != cases[i].stage)
            T_FAIL("%s: %d", cases[i].name, r.err);
        if (r.err == 0) {
            char text[CV_IP_STRLEN];
            T_STR_EQ(cv_ip_format(&r.peer.ip, text), "127.0.0.1");
            T_INT_EQ(r.peer.port, target.port);
            close(accept(listener, NULL, NULL));
            cv_stream_close(r.stream, false);
        }
        cv_loop_turn(r.loop, 0);
        T_INT_EQ(r.done, 1);
        T_INT_EQ(test_fd_count(), before);
    }
    close(listener);
    cv_dns_free(dns);
    dns_server_free(server);
    test_loop_end(r.loop);
}

/* A listener whose backlog is full drops the SYN: a black hole without a network. */
static int black_hole(int clients[4])
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&sa, len) != 0 || listen(fd, 0) != 0)
        abort();
    getsockname(fd, (struct sockaddr *)&sa, &len);
    for (int i = 0; i < 4; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(clients[i], (struct sockaddr *)&sa, sizeof(sa));
    }
    return fd;
}

static void a_real_black_hole_times_out(void)
{
    int clients[4];
    int fd = black_hole(clients);
    struct real r = {.loop = test_loop()};
    struct cv_happy_conf hc = {.timeout_ms = 50};
    struct cv_target target = {.port = port_of(fd)};
    struct cv_ip ip = {.family = CV_AF_IP4, .b = {127, 0, 0, 1}};
    cv_host_from_ip(&target.host, &ip);
    struct cv_happy *h;
    int before = test_fd_count();
    T_REQUIRE(cv_happy_start(r.loop, &hc, &target, NULL, on_real, &r, &h) == 0);
    TURN_UNTIL(r.loop, r.done == 1);
    T_INT_EQ(r.err, -ETIMEDOUT);
    T_INT_EQ(r.stage, CV_HAPPY_DIAL);
    T_REQUIRE(cv_happy_start(r.loop, &hc, &target, NULL, on_real, &r, &h) == 0);
    cv_happy_cancel(h);
    cv_loop_turn(r.loop, 0);
    T_INT_EQ(r.done, 1);
    T_INT_EQ(test_fd_count(), before);
    for (int i = 0; i < 4; i++)
        close(clients[i]);
    close(fd);
    test_loop_end(r.loop);
}

#ifdef CV_TORTURE
static void torture(void)
{
    int listener = test_listener();
    int before = -1;
    uint64_t count = UINT64_MAX; /* calls in the last run; fewer than its number: none failed */
    uint64_t n = 1;
    for (; count >= n - 1; n++) {
        struct real r = {.loop = test_loop()};
        struct cv_happy_conf hc = {.timeout_ms = 5000};
        struct cv_target target = {.port = port_of(listener)};
        struct cv_ip ip = {.family = CV_AF_IP4, .b = {127, 0, 0, 1}};
        cv_host_from_ip(&target.host, &ip);
        if (before < 0)
            before = test_fd_count();
        struct cv_happy *h;
        cv_torture_arm(n);
        int ret = cv_happy_start(r.loop, &hc, &target, allow_all, on_real, &r, &h);
        if (ret == 0)
            TURN_UNTIL(r.loop, r.done == 1);
        count = cv_torture_count();
        cv_torture_arm(0);
        T_OK(ret == 0 ? (r.err == 0) == (r.stream != NULL) : ret == -ENOMEM);
        cv_stream_close(r.stream, false);
        cv_loop_turn(r.loop, 0);
        T_INT_EQ(test_fd_count(), before);
        test_loop_end(r.loop);
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0)
            close(fd);
    }
    T_OK(n > 3);
    close(listener);
}
#endif

int main(void)
{
    T_RUN(step_by_step);
    T_RUN(cancelled_at_any_time);
    T_RUN(random_races);
    T_RUN(over_sockets);
    T_RUN(a_real_black_hole_times_out);
#ifdef CV_TORTURE
    T_RUN(torture);
#endif
    return t_done();
}

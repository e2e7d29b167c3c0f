#include "net/happy.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

#define ATTEMPT_DELAY_MS    250 /* RFC 8305 section 5: "recommended value" */
#define RESOLUTION_DELAY_MS 50  /* section 3 */

enum state {
    RESOLVING = 0, /* we are here while there is no answer that we may start with */
    DIALING,       /* attempts run, or will as soon as there are addresses */
    REFUSED,       /* nothing to dial; the result is posted */
    DONE,          /* the callback runs, then the object goes */
};

struct attempt {
    struct cv_tcp_connect connect;
    struct cv_happy *happy; /* borrowed */
    struct cv_endpoint peer;
    bool busy;
};

/* What one of the two queries brought. The first of the two is the preferred family. */
struct side {
    struct cv_dns_query query;
    struct cv_happy *happy; /* borrowed */
    struct cv_ip ips[CV_DNS_ADDRS_MAX];
    uint8_t n;    /* addresses that passed the filter */
    uint8_t next; /* first that was not tried yet */
    bool answered;
    int err;
};

struct cv_happy {
    struct cv_loop *loop; /* borrowed */
    struct cv_happy_conf conf;
    cv_happy_filter_cb filter;
    cv_happy_cb cb;
    void *arg;
    struct side side[2];
    struct attempt attempts[CV_HAPPY_PARALLEL];
    struct cv_timer total;      /* the time limit of it all */
    struct cv_timer pace;       /* not armed: another attempt may start now */
    struct cv_timer resolution; /* waits for the preferred family's answer */
    struct cv_task refused;
    enum state state;
    unsigned busy;  /* attempts running */
    uint8_t turn;   /* side that gives the next address */
    int dial_err;   /* most telling one so far */
    int filter_err; /* first one */
    uint16_t port;
};

static void start_next(struct cv_happy *h);

/* ---- the end ---- */

static void stop(struct cv_happy *h)
{
    cv_loop_timer_stop(h->loop, &h->total);
    cv_loop_timer_stop(h->loop, &h->pace);
    cv_loop_timer_stop(h->loop, &h->resolution);
    for (size_t i = 0; i < CV_ARRAY_SIZE(h->side); i++)
        cv_dns_query_cancel(&h->side[i].query);
    for (size_t i = 0; i < CV_ARRAY_SIZE(h->attempts); i++)
        if (h->attempts[i].busy)
            cv_tcp_connect_cancel(&h->attempts[i].connect);
    if (h->state == REFUSED)
        (void)cv_loop_next_cancel(h->loop, &h->refused);
    h->state = DONE;
}

static int dns_err(const struct cv_happy *h)
{
    int a = h->side[0].err, b = h->side[1].err;
    /* One family may simply not exist; why the other is not known says more. */
    if (a == CV_E_DNS_TIMEOUT || b == CV_E_DNS_TIMEOUT)
        return CV_E_DNS_TIMEOUT;
    if (a == CV_E_DNS_NXDOMAIN && b == CV_E_DNS_NXDOMAIN)
        return CV_E_DNS_NXDOMAIN;
    return CV_E_DNS_FAIL;
}

static void fail(struct cv_happy *h)
{
    enum cv_happy_stage stage = CV_HAPPY_DIAL;
    int err = h->dial_err != 0 ? h->dial_err : h->filter_err;
    if (err == 0) {
        err = dns_err(h);
        stage = CV_HAPPY_DNS;
    }
    stop(h);
    h->cb(h, err, stage, NULL, NULL);
    cv_free(h);
}

static void win(struct cv_happy *h, const struct attempt *a, struct cv_stream *stream)
{
    struct cv_endpoint peer = a->peer;
    stop(h);
    h->cb(h, 0, CV_HAPPY_DIAL, stream, &peer);
    cv_free(h);
}

static int rank(int err)
{
    switch (err) {
    case 0:
        return 0;
    case -ENETUNREACH:
    case -EAFNOSUPPORT:
    case -EADDRNOTAVAIL:
        return 1;
    case -ETIMEDOUT:
        return 2;
    case -ECONNREFUSED:
        return 5;
    case -EHOSTUNREACH:
    case -EHOSTDOWN:
        return 4;
    default:
        return 3;
    }
}

static void note(struct cv_happy *h, int err)
{
    if (rank(err) > rank(h->dial_err))
        h->dial_err = err;
}

static void on_total(struct cv_timer *t)
{
    struct cv_happy *h = CV_CONTAINER_OF(t, struct cv_happy, total);
    bool have_address = false;
    for (size_t i = 0; i < CV_ARRAY_SIZE(h->side); i++) {
        have_address |= h->side[i].n > 0;
        if (!h->side[i].answered)
            h->side[i].err = CV_E_DNS_TIMEOUT;
    }
    if (have_address)
        note(h, -ETIMEDOUT);
    fail(h);
}

/* ---- attempts ---- */

static void on_connect(struct cv_tcp_connect *c, int err, struct cv_stream *stream)
{
    struct attempt *a = CV_CONTAINER_OF(c, struct attempt, connect);
    struct cv_happy *h = a->happy;
    a->busy = false;
    h->busy--;
    if (err == 0) {
        win(h, a, stream);
        return;
    }
    note(h, err);
    start_next(h);
}

static void on_pace(struct cv_timer *t)
{
    start_next(CV_CONTAINER_OF(t, struct cv_happy, pace));
}

/* Families alternate (RFC 8305 section 4, First Address Family Count 1) as long as both have
 * addresses left. */
static const struct cv_ip *take(struct cv_happy *h)
{
    struct side *s = &h->side[h->turn];
    if (s->next == s->n)
        s = &h->side[!h->turn];
    if (s->next == s->n)
        return NULL;
    h->turn = s == &h->side[0];
    return &s->ips[s->next++];
}

static void dial(struct cv_happy *h, const struct cv_ip *ip)
{
    struct attempt *a = h->attempts;
    while (a->busy)
        a++;
    a->busy = true;
    a->happy = h;
    a->peer = (struct cv_endpoint){.ip = *ip, .port = h->port};
    a->connect.cb = on_connect;
    h->busy++;
    struct cv_sockaddr sa;
    cv_sockaddr_from_ip(&sa, ip, h->port);
    cv_tcp_connect_start(&a->connect, h->loop, &sa);
    cv_loop_timer(h->loop, &h->pace, h->conf.attempt_delay_ms);
}

static void start_next(struct cv_happy *h)
{
    if (h->busy == CV_HAPPY_PARALLEL)
        return; /* the next one starts when one of them fails */
    const struct cv_ip *ip = take(h);
    if (ip != NULL)
        dial(h, ip);
    else if (h->busy == 0 && h->side[0].answered && h->side[1].answered)
        fail(h);
}

/* ---- addresses ---- */

static bool is_known(const struct cv_happy *h, const struct cv_ip *ip)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(h->side); i++)
        for (size_t k = 0; k < h->side[i].n; k++)
            if (cv_ip_equal(&h->side[i].ips[k], ip))
                return true;
    return false;
}

static void add(struct cv_happy *h, struct side *s, const struct cv_ip *ip)
{
    struct cv_ip folded = *ip;
    cv_ip_fold_mapped(&folded);
    if (s->n == CV_DNS_ADDRS_MAX || is_known(h, &folded))
        return;
    int err = h->filter != NULL ? h->filter(h, &folded) : 0;
    if (err == 0)
        s->ips[s->n++] = folded;
    else if (h->filter_err == 0)
        h->filter_err = err;
}

static void begin(struct cv_happy *h)
{
    h->state = DIALING;
    cv_loop_timer_stop(h->loop, &h->resolution);
    start_next(h);
}

static void on_resolution(struct cv_timer *t)
{
    begin(CV_CONTAINER_OF(t, struct cv_happy, resolution));
}

static void on_dns(struct cv_dns_query *q, int err, const struct cv_ip *ips, size_t n)
{
    struct side *s = CV_CONTAINER_OF(q, struct side, query);
    struct cv_happy *h = s->happy;
    s->answered = true;
    s->err = err;
    for (size_t i = 0; i < n; i++)
        add(h, s, &ips[i]);
    if (h->state == DIALING) {
        if (h->busy == 0 || !cv_timer_is_armed(&h->pace))
            start_next(h);
    } else if (h->side[0].answered) {
        begin(h);
    } else if (s->n > 0) {
        cv_loop_timer(h->loop, &h->resolution, h->conf.resolution_delay_ms);
    }
}

/* ---- life ---- */

static void on_refused(struct cv_task *task)
{
    fail(CV_CONTAINER_OF(task, struct cv_happy, refused));
}

static void start_ip(struct cv_happy *h, const struct cv_ip *ip)
{
    h->side[0].answered = h->side[1].answered = true;
    add(h, &h->side[0], ip);
    if (h->side[0].n > 0) {
        begin(h);
        return;
    }
    h->state = REFUSED;
    h->refused.fn = on_refused;
    cv_loop_next(h->loop, &h->refused);
}

static void start_name(struct cv_happy *h, const char *name)
{
    enum cv_family other = h->conf.prefer == CV_AF_IP6 ? CV_AF_IP4 : CV_AF_IP6;
    for (size_t i = 0; i < CV_ARRAY_SIZE(h->side); i++) {
        h->side[i].happy = h;
        h->side[i].query.cb = on_dns;
    }
    cv_dns_query_start(&h->side[0].query, h->conf.dns, name, h->conf.prefer);
    cv_dns_query_start(&h->side[1].query, h->conf.dns, name, other);
}

int cv_happy_start(struct cv_loop *loop, const struct cv_happy_conf *conf,
                   const struct cv_target *target, cv_happy_filter_cb filter, cv_happy_cb cb,
                   void *arg, struct cv_happy **ret_happy)
{
    struct cv_happy *h = cv_try_zalloc(sizeof(*h));
    if (h == NULL)
        return -ENOMEM;
    h->loop = loop;
    h->conf = *conf;
    if (h->conf.prefer != CV_AF_IP6)
        h->conf.prefer = CV_AF_IP4;
    if (h->conf.attempt_delay_ms <= 0)
        h->conf.attempt_delay_ms = ATTEMPT_DELAY_MS;
    if (h->conf.resolution_delay_ms <= 0)
        h->conf.resolution_delay_ms = RESOLUTION_DELAY_MS;
    h->filter = filter;
    h->cb = cb;
    h->arg = arg;
    h->port = target->port;
    cv_timer_init(&h->total, on_total);
    cv_timer_init(&h->pace, on_pace);
    cv_timer_init(&h->resolution, on_resolution);
    cv_loop_timer(loop, &h->total, conf->timeout_ms);
    *ret_happy = h;
    if (cv_host_is_ip(&target->host))
        start_ip(h, &target->host.ip);
    else
        start_name(h, target->host.name);
    return 0;
}

void *cv_happy_arg(const struct cv_happy *h)
{
    return h->arg;
}

void cv_happy_cancel(struct cv_happy *h)
{
    if (h == NULL || h->state == DONE)
        return;
    stop(h);
    cv_free(h);
}

#include "net/dns.h"

#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/file.h"
#include "common/list.h"
#include "common/name.h"
#include "net/dns_priv.h"
#include "net/dnscache.h"
#include "net/hosts.h"

#include "common/poison.h"

#define FLIGHTS_MAX      4096
#define TTL_MIN_S        1
#define TTL_MAX_S        3600
#define TTL_NEGATIVE_MS  30000
#define TTL_FAILURE_MS   1000
#define FILES_CHECK_MS   5000 /* also how long an answer from the hosts file is kept */
#define EDNS_SIZE        1232
#define UDP_MAX_QUERIES  64
#define PUMP_ROUNDS      32
#define SOCKET_BUFFER    (1 << 20)
#define SERVERS_MAX      16
#define TIMEOUT_MS       2000
#define TIMEOUT_MAX_MS   60000
#define ATTEMPTS         2
#define ATTEMPTS_MAX     10
#define CACHE_SIZE_MAX   (1U << 20)
#define SERVER_TEXT_MAX  128
#define PATH_HOSTS_FILE  "/etc/hosts"
#define PATH_RESOLV_FILE "/etc/resolv.conf"
/* From here on ares_timeout() does not walk all queries. */
#define VERSION_TIMEOUT_SORTED 0x011600

/* A socket of c-ares in our loop. */
struct sock {
    struct cv_io io;
    struct cv_list node;
    struct cv_task gone;
    struct cv_dns *dns; /* borrowed */
    bool rd, wr;        /* what c-ares waits for */
};

struct cv_dns {
    struct cv_loop *loop;         /* borrowed */
    struct cv_dns_stats *stats;   /* borrowed */
    ares_channel channel;         /* owned; NULL once freed */
    struct cv_dnscache cache;     /* owned entries: all that are in it */
    struct cv_list due;           /* entries with an answer to deliver */
    struct cv_list serving;       /* queries of 'current' that still get their callback */
    struct cv_dnsentry *current;  /* its answer is in use by a callback */
    struct cv_dnsentry *fixed[3]; /* owned: the two of localhost, and "failed" */
    struct cv_list socks;         /* owned */
    struct sock *pumping;         /* NULLed when it is closed under us */
    struct cv_list restart;       /* entries to be asked again on a new channel */
    struct cv_hosts *hosts;       /* owned */
    struct cv_timer timer;        /* for ares_timeout() */
    int64_t timer_due_ms;         /* on the loop's clock, while it is armed */
    struct cv_task work;          /* posted when 'posted' */
    int64_t shift_ms;             /* of the clock, by tests */
    int64_t files_checked_ms;     /* on our clock */
    struct cv_file_stamp resolv;  /* of what the channel was made from */
    char *resolv_path;            /* owned */
    char *servers;                /* owned; list for c-ares, NULL = those of the system */
    int timeout_ms;
    int attempts;
    uint16_t port; /* of servers that name none; 0 = the usual one */
    bool posted;
    bool kicked;    /* a socket may be ready without an edge */
    bool reopening; /* flights of the old channel come back to be asked again */
    bool dead;
};

enum {
    FIXED_LOCAL4,
    FIXED_LOCAL6,
    FIXED_FAILED,
};

static void on_sock_state(void *arg, ares_socket_t fd, int readable, int writable);
static void on_work(struct cv_task *task);
static void on_timer(struct cv_timer *t);

static int64_t now_of(const struct cv_dns *dns)
{
    return cv_loop_now(dns->loop) + dns->shift_ms;
}

/* All that follows from calls into c-ares or from a query that starts is done from a task of the
 * next turn, so that no callback ever comes from inside of one of our functions or of c-ares. */
static void post_work(struct cv_dns *dns)
{
    if (dns->posted)
        return;
    dns->posted = true;
    cv_loop_next(dns->loop, &dns->work);
}

/* ---- the channel ---- */

static void init_library(void)
{
    (void)ares_library_init(ARES_LIB_INIT_ALL);
}

/* c-ares says "search nothing" in different ways over its versions: no domains, no dots needed for
 * a name to be taken as it is, and the flag. */
static int channel_open(struct cv_dns *dns, ares_channel *ret_channel)
{
    char lookups[] = "b";
    struct ares_options o = {
        .flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES | ARES_FLAG_EDNS,
        .timeout = dns->timeout_ms,
        .tries = dns->attempts,
        .ndots = 0,
        .ndomains = 0,
        .lookups = lookups,
        .ednspsz = EDNS_SIZE,
        /* A thousand answers may arrive while the loop is busy elsewhere. */
        .socket_send_buffer_size = SOCKET_BUFFER,
        .socket_receive_buffer_size = SOCKET_BUFFER,
        .sock_state_cb = on_sock_state,
        .sock_state_cb_data = dns,
        .resolvconf_path = dns->resolv_path,
    };
    int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_NDOTS |
               ARES_OPT_DOMAINS | ARES_OPT_LOOKUPS | ARES_OPT_EDNSPSZ | ARES_OPT_SOCK_SNDBUF |
               ARES_OPT_SOCK_RCVBUF | ARES_OPT_SOCK_STATE_CB | ARES_OPT_RESOLVCONF;
    if (dns->port != 0) {
        o.udp_port = o.tcp_port = dns->port;
        mask |= ARES_OPT_UDP_PORT | ARES_OPT_TCP_PORT;
    }
#ifdef ARES_OPT_UDP_MAX_QUERIES
    /* A fresh source port now and then, against forged answers. */
    o.udp_max_queries = UDP_MAX_QUERIES;
    mask |= ARES_OPT_UDP_MAX_QUERIES;
#endif
#if ARES_VERSION >= 0x011f00
    /* The cache is ours: with its own limits, and for failures too. */
    o.qcache_max_ttl = 0;
    mask |= ARES_OPT_QUERY_CACHE;
#endif
    ares_channel channel = NULL;
    int status = ares_init_options(&channel, &o, mask);
    if (status == ARES_SUCCESS && dns->servers != NULL) {
        status = ares_set_servers_ports_csv(channel, dns->servers);
        if (status != ARES_SUCCESS)
            ares_destroy(channel);
    }
    if (status == ARES_ENOMEM)
        return -ENOMEM;
    if (status != ARES_SUCCESS)
        return CV_E_INVALID;
    *ret_channel = channel;
    return 0;
}

/* "1.1.1.1", "1.1.1.1:53", "::1", "[::1]", "[::1]:53" */
static int server_parse(const char *s, struct cv_ip *ret_ip, unsigned *ret_port)
{
    size_t len = strnlen(s, SERVER_TEXT_MAX);
    if (len == 0 || len == SERVER_TEXT_MAX)
        return CV_E_INVALID;
    *ret_port = 53;
    if (cv_ip_parse(s, len, ret_ip) == 0)
        return 0;
    const char *end = s + len, *colon = memrchr(s, ':', len);
    if (colon != NULL && (s[0] != '[' || colon[-1] == ']')) {
        unsigned port = 0;
        const char *p = colon + 1;
        if (p == end || end - p > 5)
            return CV_E_INVALID;
        for (; p < end; p++) {
            if (*p < '0' || *p > '9')
                return CV_E_INVALID;
            port = port * 10 + (unsigned)(*p - '0');
        }
        if (port == 0 || port > 65535)
            return CV_E_INVALID;
        *ret_port = port;
        end = colon;
    }
    enum cv_family want = CV_AF_IP4;
    if (s[0] == '[') {
        if (end - s < 3 || end[-1] != ']')
            return CV_E_INVALID;
        s++;
        end--;
        want = CV_AF_IP6;
    }
    if (cv_ip_parse(s, (size_t)(end - s), ret_ip) != 0 || ret_ip->family != want)
        return CV_E_INVALID;
    return 0;
}

static int servers_join(const struct cv_dns_conf *conf, char **ret_servers)
{
    if (conf->n_servers > SERVERS_MAX)
        return CV_E_INVALID;
    struct cv_buf b;
    cv_buf_init(&b, SERVERS_MAX * (CV_ENDPOINT_STRLEN + 1));
    int ret = 0;
    for (size_t i = 0; i < conf->n_servers && ret == 0; i++) {
        struct cv_ip ip;
        unsigned port;
        ret = server_parse(conf->servers[i], &ip, &port);
        if (ret != 0)
            break;
        char text[CV_IP_STRLEN];
        ret = cv_buf_printf(&b, ip.family == CV_AF_IP6 ? "%s[%s]:%u" : "%s%s:%u", i > 0 ? "," : "",
                            cv_ip_format(&ip, text), port);
    }
    if (ret == 0)
        *ret_servers = cv_strndup((const char *)cv_buf_data(&b), cv_buf_len(&b));
    cv_buf_done(&b);
    return ret;
}

/* ---- sockets of c-ares ---- */

static void on_sock_gone(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct sock, gone));
}

static void sock_close(struct sock *s)
{
    if (s->dns->pumping == s)
        s->dns->pumping = NULL;
    cv_io_del(&s->io);
    cv_list_del(&s->node);
    s->gone.fn = on_sock_gone;
    cv_loop_defer(s->dns->loop, &s->gone);
}

/* The loop is edge-triggered, c-ares is not: of a TCP connection it reads one piece per call, and
 * it asks to write to a socket that has been writable for long. So readiness is looked up again
 * until c-ares has taken all there is. */
static short sock_poll(const struct sock *s)
{
    struct pollfd p = {.fd = s->io.fd,
                       .events = (short)((s->rd ? POLLIN : 0) | (s->wr ? POLLOUT : 0))};
    if (p.events == 0 || poll(&p, 1, 0) <= 0)
        return 0;
    /* An error is found by whatever c-ares was about to do. */
    return p.revents & (POLLERR | POLLHUP) ? p.events : p.revents;
}

static void sock_pump(struct sock *s, short ready)
{
    struct cv_dns *dns = s->dns;
    dns->pumping = s;
    for (int i = 0; i < PUMP_ROUNDS && ready != 0; i++) {
        ares_process_fd(dns->channel, ready & POLLIN ? s->io.fd : ARES_SOCKET_BAD,
                        ready & POLLOUT ? s->io.fd : ARES_SOCKET_BAD);
        if (dns->pumping != s)
            return;
        ready = sock_poll(s);
    }
    dns->pumping = NULL;
    if (ready != 0)
        dns->kicked = true; /* the others of this loop come first */
}

static void on_sock(struct cv_io *io, unsigned events)
{
    struct sock *s = CV_CONTAINER_OF(io, struct sock, io);
    struct cv_dns *dns = s->dns;
    short ready = 0;
    if (s->rd && (events & (CV_IO_IN | CV_IO_HUP)) != 0)
        ready |= POLLIN;
    if (s->wr && (events & (CV_IO_OUT | CV_IO_HUP)) != 0)
        ready |= POLLOUT;
    sock_pump(s, ready);
    post_work(dns);
}

static struct sock *sock_find(struct cv_dns *dns, int fd)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &dns->socks) {
        struct sock *s = CV_CONTAINER_OF(it, struct sock, node);
        if (s->io.fd == fd)
            return s;
    }
    return NULL;
}

static void on_sock_state(void *arg, ares_socket_t fd, int readable, int writable)
{
    struct cv_dns *dns = arg;
    struct sock *s = sock_find(dns, fd);
    if (!readable && !writable) { /* it is about to be closed */
        if (s != NULL)
            sock_close(s);
        return;
    }
    if (s == NULL) {
        s = cv_zalloc(sizeof(*s));
        s->dns = dns;
        if (cv_io_add(dns->loop, &s->io, fd, on_sock) != 0) {
            cv_free(s); /* nothing will be heard of it: what is asked there times out */
            return;
        }
        cv_list_add_tail(&dns->socks, &s->node);
    }
    if (writable && !s->wr) {
        dns->kicked = true;
        post_work(dns);
    }
    s->rd = readable != 0;
    s->wr = writable != 0;
}

static void kick(struct cv_dns *dns)
{
    dns->kicked = false;
    /* A pumped socket may close any other one, so the list is walked by descriptor number. */
    int fd = -1;
    for (;;) {
        struct sock *next = NULL;
        struct cv_list *it;
        CV_LIST_FOREACH (it, &dns->socks) {
            struct sock *s = CV_CONTAINER_OF(it, struct sock, node);
            if (s->io.fd > fd && (next == NULL || s->io.fd < next->io.fd))
                next = s;
        }
        if (next == NULL)
            break;
        fd = next->io.fd;
        sock_pump(next, sock_poll(next));
    }
    if (dns->kicked)
        post_work(dns);
}

/* ---- time ---- */

static void on_timer(struct cv_timer *t)
{
    struct cv_dns *dns = CV_CONTAINER_OF(t, struct cv_dns, timer);
    ares_process_fd(dns->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    post_work(dns);
}

static void rearm(struct cv_dns *dns)
{
    if (dns->cache.n_flying == 0) {
        cv_loop_timer_stop(dns->loop, &dns->timer);
        return;
    }
    int64_t ms = dns->timeout_ms;
    if (ARES_VERSION < VERSION_TIMEOUT_SORTED && cv_timer_is_armed(&dns->timer)) {
        /* The look-up below walks all queries there, so it is made only once the timer has fired.
         * Until then it suffices to wake no later than a query that was asked just now needs. */
        if (dns->timer_due_ms <= cv_loop_now(dns->loop) + ms)
            return;
    } else {
        struct timeval tv, *left = ares_timeout(dns->channel, NULL, &tv);
        if (left != NULL)
            ms = (int64_t)left->tv_sec * 1000 + (left->tv_usec + 999) / 1000;
    }
    dns->timer_due_ms = cv_loop_now(dns->loop) + CV_MAX(ms, 1);
    cv_loop_timer(dns->loop, &dns->timer, CV_MAX(ms, 1));
}

/* ---- answers ---- */

static void entry_release(struct cv_dns *dns, struct cv_dnsentry *e)
{
    if (e->state == CV_DNSENTRY_LOOSE && cv_list_is_empty(&e->waiters) &&
        cv_list_is_empty(&e->due) && e != dns->current && e->owner != NULL)
        cv_dnsentry_free(e);
}

static void entry_due(struct cv_dns *dns, struct cv_dnsentry *e)
{
    if (cv_list_is_empty(&e->due))
        cv_list_add_tail(&dns->due, &e->due);
    post_work(dns);
}

/* The answer of a flying entry is known. */
static void entry_settle(struct cv_dns *dns, struct cv_dnsentry *e, int64_t ttl_ms)
{
    struct cv_dnsentry *gone = cv_dnscache_hold(&dns->cache, e, now_of(dns) + ttl_ms);
    if (gone != NULL)
        entry_release(dns, gone);
    if (!cv_list_is_empty(&e->waiters))
        entry_due(dns, e);
    else
        entry_release(dns, e);
}

static void entry_fail(struct cv_dns *dns, struct cv_dnsentry *e, int err)
{
    e->err = err;
    if (err == CV_E_DNS_TIMEOUT)
        cv_counter_add(&dns->stats->timeouts, 1);
    else if (err != CV_E_DNS_NXDOMAIN)
        cv_counter_add(&dns->stats->failures, 1);
    entry_settle(dns, e, err == CV_E_DNS_NXDOMAIN ? TTL_NEGATIVE_MS : TTL_FAILURE_MS);
}

static void entry_answer(struct cv_dns *dns, struct cv_dnsentry *e, const struct cv_ip *ips,
                         size_t n, int64_t ttl_ms)
{
    e->ips = cv_try_alloc(n * sizeof(e->ips[0]));
    if (e->ips == NULL) {
        entry_fail(dns, e, CV_E_DNS_FAIL);
        return;
    }
    memcpy(e->ips, ips, n * sizeof(e->ips[0]));
    e->n = n;
    e->err = 0;
    entry_settle(dns, e, ttl_ms);
}

static bool ip_from_node(const struct ares_addrinfo_node *node, struct cv_ip *ret_ip)
{
    *ret_ip = (struct cv_ip){0};
    if (node->ai_family == AF_INET && node->ai_addrlen >= sizeof(struct sockaddr_in)) {
        const struct sockaddr_in *in4 = (const void *)node->ai_addr;
        ret_ip->family = CV_AF_IP4;
        memcpy(ret_ip->b, &in4->sin_addr, 4);
        return true;
    }
    if (node->ai_family == AF_INET6 && node->ai_addrlen >= sizeof(struct sockaddr_in6)) {
        const struct sockaddr_in6 *in6 = (const void *)node->ai_addr;
        ret_ip->family = CV_AF_IP6;
        memcpy(ret_ip->b, &in6->sin6_addr, 16);
        return true;
    }
    return false;
}

static bool ip_is_among(const struct cv_ip *ips, size_t n, const struct cv_ip *ip)
{
    for (size_t i = 0; i < n; i++)
        if (cv_ip_equal(&ips[i], ip))
            return true;
    return false;
}

static void entry_addrinfo(struct cv_dns *dns, struct cv_dnsentry *e,
                           const struct ares_addrinfo *ai)
{
    struct cv_ip ips[CV_DNS_ADDRS_MAX], ip;
    size_t n = 0;
    int64_t ttl_s = TTL_MAX_S;
    for (const struct ares_addrinfo_node *i = ai->nodes; i != NULL; i = i->ai_next) {
        if (n == CV_DNS_ADDRS_MAX)
            break;
        if (!ip_from_node(i, &ip) || ip.family != e->family || ip_is_among(ips, n, &ip))
            continue;
        ips[n++] = ip;
        ttl_s = CV_MIN(ttl_s, i->ai_ttl);
    }
    /* The way to the addresses is as short-lived as its shortest part. */
    for (const struct ares_addrinfo_cname *i = ai->cnames; i != NULL; i = i->next)
        ttl_s = CV_MIN(ttl_s, i->ttl);
    if (n == 0)
        entry_fail(dns, e, CV_E_DNS_NXDOMAIN);
    else
        entry_answer(dns, e, ips, n, CV_MAX(ttl_s, TTL_MIN_S) * 1000);
}

static void on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *ai)
{
    struct cv_dnsentry *e = arg;
    struct cv_dns *dns = e->owner;
    (void)timeouts;
    if (dns->dead) {
        /* cv_dns_free() releases all entries itself. */
    } else if (dns->reopening) {
        cv_list_add_tail(&dns->restart, &e->due);
    } else if (status == ARES_SUCCESS && ai != NULL) {
        entry_addrinfo(dns, e, ai);
    } else {
        entry_fail(dns, e,
                   status == ARES_ENOTFOUND || status == ARES_ENODATA ? CV_E_DNS_NXDOMAIN
                   : status == ARES_ETIMEOUT                          ? CV_E_DNS_TIMEOUT
                                                                      : CV_E_DNS_FAIL);
    }
    if (ai != NULL)
        ares_freeaddrinfo(ai);
}

static void entry_ask(struct cv_dns *dns, struct cv_dnsentry *e)
{
    struct ares_addrinfo_hints hints = {
        .ai_flags = ARES_AI_NOSORT,
        .ai_family = e->family == CV_AF_IP6 ? AF_INET6 : AF_INET,
        .ai_socktype = SOCK_STREAM,
    };
    ares_getaddrinfo(dns->channel, e->name, NULL, &hints, on_answer, e);
    post_work(dns);
}

static void deliver_one(struct cv_dns *dns, struct cv_dnsentry *e)
{
    cv_list_del(&e->due);
    dns->current = e;
    cv_list_splice(&dns->serving, &e->waiters);
    while (!cv_list_is_empty(&dns->serving)) {
        struct cv_dns_query *q = CV_CONTAINER_OF(dns->serving.next, struct cv_dns_query, _node);
        cv_list_del(&q->_node);
        q->_flight = NULL;
        q->cb(q, e->err, e->ips, e->n);
    }
    dns->current = NULL;
    entry_release(dns, e);
}

static void deliver(struct cv_dns *dns)
{
    /* What callbacks ask for anew is served in the next turn. */
    size_t budget = 0;
    struct cv_list *it;
    CV_LIST_FOREACH (it, &dns->due)
        budget++;
    while (budget-- > 0 && !cv_list_is_empty(&dns->due))
        deliver_one(dns, CV_CONTAINER_OF(dns->due.next, struct cv_dnsentry, due));
}

static void on_work(struct cv_task *task)
{
    struct cv_dns *dns = CV_CONTAINER_OF(task, struct cv_dns, work);
    dns->posted = false;
    if (dns->kicked)
        kick(dns);
    deliver(dns);
    if (dns->dead)
        cv_free(dns);
    else
        rearm(dns);
}

/* ---- files that may change ---- */

static void flush(struct cv_dns *dns)
{
    struct cv_dnsentry *e;
    while ((e = cv_dnscache_first(&dns->cache)) != NULL) {
        cv_dnscache_drop(&dns->cache, e);
        entry_release(dns, e);
    }
}

static void reopen(struct cv_dns *dns)
{
    ares_channel fresh, old = dns->channel;
    if (channel_open(dns, &fresh) != 0)
        return;
    dns->channel = fresh;
    dns->reopening = true;
    ares_destroy(old);
    dns->reopening = false;
    while (!cv_list_is_empty(&dns->restart)) {
        struct cv_dnsentry *e = CV_CONTAINER_OF(dns->restart.next, struct cv_dnsentry, due);
        cv_list_del(&e->due);
        entry_ask(dns, e);
    }
    flush(dns);
}

static void check_files(struct cv_dns *dns)
{
    int64_t now = now_of(dns);
    if (now - dns->files_checked_ms < FILES_CHECK_MS)
        return;
    dns->files_checked_ms = now;
    if (cv_hosts_refresh(dns->hosts))
        flush(dns);
    struct cv_file_stamp stamp;
    if (dns->servers == NULL && cv_file_stamp(dns->resolv_path, &stamp) == 0 &&
        !cv_file_stamp_equal(&stamp, &dns->resolv)) {
        dns->resolv = stamp;
        reopen(dns);
    }
}

/* ---- queries ---- */

static bool is_localhost(const char *name)
{
    static const char suffix[] = ".localhost";
    size_t len = strlen(name), n = sizeof(suffix) - 1;
    return strcmp(name, suffix + 1) == 0 || (len > n && strcmp(name + len - n, suffix) == 0);
}

static void query_join(struct cv_dns_query *q, struct cv_dns *dns, struct cv_dnsentry *e)
{
    cv_list_add_tail(&e->waiters, &q->_node);
    q->_flight = e;
    if (e->state != CV_DNSENTRY_FLYING)
        entry_due(dns, e);
}

static void query_refuse(struct cv_dns_query *q, struct cv_dns *dns)
{
    cv_counter_add(&dns->stats->failures, 1);
    query_join(q, dns, dns->fixed[FIXED_FAILED]);
}

static void query_new(struct cv_dns_query *q, struct cv_dns *dns, const char *name,
                      enum cv_family family)
{
    struct cv_dnsentry *e = NULL;
    if (dns->cache.n_flying < FLIGHTS_MAX)
        e = cv_dnsentry_new(name, family);
    if (e == NULL) {
        query_refuse(q, dns);
        return;
    }
    e->owner = dns;
    cv_dnscache_add(&dns->cache, e);
    query_join(q, dns, e);
    struct cv_ip ips[CV_DNS_ADDRS_MAX];
    size_t n;
    if (!cv_hosts_find(dns->hosts, name, family, ips, CV_DNS_ADDRS_MAX, &n)) {
        entry_ask(dns, e);
    } else if (n > 0) {
        entry_answer(dns, e, ips, n, FILES_CHECK_MS);
    } else {
        e->err = CV_E_DNS_NXDOMAIN;
        entry_settle(dns, e, FILES_CHECK_MS);
    }
}

void cv_dns_query_start(struct cv_dns_query *q, struct cv_dns *dns, const char *name,
                        enum cv_family family)
{
    CV_ASSERT(q->_flight == NULL && (family == CV_AF_IP4 || family == CV_AF_IP6));
    cv_counter_add(&dns->stats->queries, 1);
    size_t len = strnlen(name, CV_NAME_MAX + 1);
    if (len == 0 || len > CV_NAME_MAX) {
        query_refuse(q, dns);
        return;
    }
    if (is_localhost(name)) {
        query_join(q, dns, dns->fixed[family == CV_AF_IP4 ? FIXED_LOCAL4 : FIXED_LOCAL6]);
        return;
    }
    check_files(dns);
    struct cv_dnsentry *e = cv_dnscache_find(&dns->cache, name, family);
    if (e != NULL && e->state == CV_DNSENTRY_HELD && e->end_ms <= now_of(dns)) {
        cv_dnscache_drop(&dns->cache, e);
        entry_release(dns, e);
        e = NULL;
    }
    if (e == NULL) {
        query_new(q, dns, name, family);
        return;
    }
    if (e->state == CV_DNSENTRY_HELD)
        cv_counter_add(&dns->stats->cache_hits, 1);
    query_join(q, dns, e);
}

void cv_dns_query_cancel(struct cv_dns_query *q)
{
    if (q->_flight == NULL)
        return;
    /* The question stays on its way: its answer is worth keeping. An entry that is due goes when
     * its turn to be delivered comes. */
    cv_list_del(&q->_node);
    q->_flight = NULL;
}

/* ---- life ---- */

static struct cv_dnsentry *fixed_new(const char *name, enum cv_family family, const char *ip)
{
    /* 'owner' stays NULL: entry_release() lets it be. */
    struct cv_dnsentry *e = cv_dnsentry_new(name, family);
    if (e == NULL)
        return NULL;
    e->err = CV_E_DNS_FAIL;
    if (ip == NULL)
        return e;
    e->err = 0;
    e->n = 1;
    e->ips = cv_alloc(sizeof(e->ips[0]));
    int ret = cv_ip_parse(ip, strlen(ip), e->ips);
    CV_ASSERT(ret == 0);
    return e;
}

static int init_parts(struct cv_dns *dns, const struct cv_dns_conf *conf,
                      const struct cv_dns_files *files)
{
    int ret = 0;
    if (conf->n_servers > 0)
        ret = servers_join(conf, &dns->servers);
    if (ret == 0)
        ret = cv_dnscache_init(&dns->cache, CV_MIN(conf->cache_size, CACHE_SIZE_MAX));
    if (ret == 0)
        ret = cv_hosts_new(files->hosts != NULL ? files->hosts : PATH_HOSTS_FILE, &dns->hosts);
    if (ret != 0)
        return ret;
    dns->port = files->port;
    dns->resolv_path = cv_strdup(files->resolv != NULL ? files->resolv : PATH_RESOLV_FILE);
    dns->fixed[FIXED_LOCAL4] = fixed_new("localhost", CV_AF_IP4, "127.0.0.1");
    dns->fixed[FIXED_LOCAL6] = fixed_new("localhost", CV_AF_IP6, "::1");
    dns->fixed[FIXED_FAILED] = fixed_new("", CV_AF_NONE, NULL);
    for (size_t i = 0; i < CV_ARRAY_SIZE(dns->fixed); i++)
        if (dns->fixed[i] == NULL)
            return -ENOMEM;
    (void)cv_hosts_refresh(dns->hosts);
    (void)cv_file_stamp(dns->resolv_path, &dns->resolv);
    return channel_open(dns, &dns->channel);
}

int cv_dns_new_with(struct cv_loop *loop, const struct cv_dns_conf *conf,
                    const struct cv_dns_files *files, struct cv_dns_stats *stats,
                    struct cv_dns **ret_dns)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, init_library);
    struct cv_dns *dns = cv_zalloc(sizeof(*dns));
    dns->loop = loop;
    dns->stats = stats;
    dns->work.fn = on_work;
    cv_timer_init(&dns->timer, on_timer);
    cv_list_init(&dns->due);
    cv_list_init(&dns->serving);
    cv_list_init(&dns->socks);
    cv_list_init(&dns->restart);
    dns->timeout_ms = TIMEOUT_MS;
    if (conf->timeout_ms > 0)
        dns->timeout_ms = (int)CV_MIN(conf->timeout_ms, TIMEOUT_MAX_MS);
    dns->attempts = conf->attempts > 0 ? CV_MIN(conf->attempts, ATTEMPTS_MAX) : ATTEMPTS;
    dns->files_checked_ms = now_of(dns);
    int ret = init_parts(dns, conf, files);
    if (ret != 0) {
        cv_dns_free(dns);
        return ret;
    }
    *ret_dns = dns;
    return 0;
}

int cv_dns_new(struct cv_loop *loop, const struct cv_dns_conf *conf, struct cv_dns_stats *stats,
               struct cv_dns **ret_dns)
{
    struct cv_dns_files files = {0};
    return cv_dns_new_with(loop, conf, &files, stats, ret_dns);
}

/* Queries are unlinked, so that cancelling one later touches nothing that is gone. */
static void forget_queries(struct cv_list *queries)
{
    while (!cv_list_is_empty(queries))
        cv_dns_query_cancel(CV_CONTAINER_OF(queries->next, struct cv_dns_query, _node));
}

static void drop_entries(struct cv_dns *dns)
{
    struct cv_dnsentry *e;
    for (size_t i = 0; i < CV_ARRAY_SIZE(dns->fixed); i++) {
        if ((e = dns->fixed[i]) == NULL)
            continue;
        e->owner = dns; /* an ordinary one from now on */
        cv_list_del(&e->due);
        cv_list_add_tail(&dns->due, &e->due);
    }
    for (size_t from = 0; (e = cv_dnscache_any(&dns->cache, &from)) != NULL;) {
        cv_dnscache_drop(&dns->cache, e);
        cv_list_del(&e->due);
        cv_list_add_tail(&dns->due, &e->due);
    }
    while (!cv_list_is_empty(&dns->due)) {
        e = CV_CONTAINER_OF(dns->due.next, struct cv_dnsentry, due);
        cv_list_del(&e->due);
        forget_queries(&e->waiters);
        entry_release(dns, e);
    }
}

void cv_dns_free(struct cv_dns *dns)
{
    if (dns == NULL)
        return;
    dns->dead = true;
    if (dns->channel != NULL)
        ares_destroy(dns->channel); /* closes the sockets and ends the flights */
    dns->channel = NULL;
    cv_loop_timer_stop(dns->loop, &dns->timer);
    forget_queries(&dns->serving);
    drop_entries(dns);
    cv_dnscache_done(&dns->cache);
    cv_hosts_free(dns->hosts);
    cv_free(dns->resolv_path);
    cv_free(dns->servers);
    if (dns->posted)
        (void)cv_loop_next_cancel(dns->loop, &dns->work);
    dns->posted = false;
    /* Inside of a callback on_work() is still at it, and releases the rest. */
    if (dns->current == NULL)
        cv_free(dns);
}

void cv_dns_shift_clock(struct cv_dns *dns, int64_t ms)
{
    dns->shift_ms += ms;
}

size_t cv_dns_held(const struct cv_dns *dns)
{
    return dns->cache.n_held;
}

size_t cv_dns_flying(const struct cv_dns *dns)
{
    return dns->cache.n_flying;
}

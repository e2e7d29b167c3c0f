/* Load for a TCP proxy, and the server behind it. Needs nothing but libc:
 *
 *     cc -O2 -o load bench/load.c
 *     load origin [-a ADDRESSES]                  prints "port=N", serves until standard input ends
 *     load conn  -x HOST:PORT -t HOST:PORT ...    open, log in, 100 bytes there and back, close
 *     load bulk  -x HOST:PORT -t HOST:PORT ...    streams that never end, one direction
 *     load rr    -x HOST:PORT -t HOST:PORT ...    small requests on connections that stay
 *     load idle  -x HOST:PORT -t HOST:PORT ...    sessions that are open and silent
 *
 *     -x HOST:PORT   the proxy (addresses, no names)
 *     -t HOST:PORT   the origin, as the proxy is asked for it; HOST is an IPv4 address
 *     -N NAME        SOCKS5: ask for this name in place of the address
 *     -a N           the origin is reachable at 127.0.0.1 to 127.0.0.N; connections take turns
 *     -s SCHEME      socks5 (default), http (CONNECT), or none: the proxy is a plain relay
 *     -u USER:PASS   log in
 *     -p PID         the proxy: report its CPU time and memory, children included
 *     -o PID         the origin: report its CPU time
 *     -c N           connections at a time (conn, bulk, rr)
 *     -n N           idle: sessions to open
 *     -w SEC -T SEC  warm up for so long, then measure for so long (not idle)
 *     -d down|up     bulk: who sends
 *     -r RATE        rr: requests per second in all, at fixed times; latency counts from the time
 * at which a request was due. Without it each connection asks as fast as it can
 *
 * One JSON object on standard output. CPU is in seconds, of the proxy, the origin and this client
 * apart: on one machine only the proxy's own share says something about the proxy. It is read from
 * the process's CPU clock, which counts nanoseconds and all threads, those that ended, too.
 *
 * What the client asks of the origin is the first message on a connection, struct order. It is part
 * of the first request. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BLOCK        (128u << 10) /* of one read or write in bulk */
#define MESSAGE      100u         /* request and answer of conn, rr and idle */
#define STALL_NS     (8 * 1000000000LL)
#define SAMPLES_MAX  (4u << 20)
#define TREE_MAX     4096
#define IDLE_AT_ONCE 64
#define SETTLE_NS    (400 * 1000000LL)

enum task { TASK_ANSWER = 1, TASK_SOURCE, TASK_SINK };

struct order {
    uint32_t magic;
    uint32_t task;
};
#define ORDER_MAGIC 0x4c56u

static uint8_t block[BLOCK];

static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "load: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void set_nodelay(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* ---- CPU time and memory of other processes ---- */

struct usage {
    double cpu;     /* seconds */
    double user;    /* seconds; from ticks, so only the proportion is good */
    int64_t memory; /* bytes that belong to the processes alone */
};

/* Fields of /proc/PID/stat behind the name; false when the process is gone. */
static bool read_stat(int pid, int *ret_parent, uint64_t ticks[4])
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return false;
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *p = strrchr(text, ')');
    return p != NULL && sscanf(p + 2,
                               "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64
                               " %" SCNu64 " %" SCNu64,
                               ret_parent, &ticks[0], &ticks[1], &ticks[2], &ticks[3]) == 5;
}

/* 'root' and everything below it. Children have larger numbers here: /proc is in order, and numbers
 * do not wrap around in a run. */
static size_t find_tree(int root, int pids[TREE_MAX])
{
    size_t n = 0;
    pids[n++] = root;
    DIR *dir = opendir("/proc");
    struct dirent *e;
    while (dir != NULL && (e = readdir(dir)) != NULL && n < TREE_MAX) {
        int pid = (int)strtol(e->d_name, NULL, 10), parent;
        uint64_t ticks[4];
        if (pid <= 0 || pid == root || !read_stat(pid, &parent, ticks))
            continue;
        for (size_t i = 0; i < n; i++) {
            if (pids[i] == parent) {
                pids[n++] = pid;
                break;
            }
        }
    }
    if (dir != NULL)
        closedir(dir);
    return n;
}

/* Anonymous and shared memory, pages that several processes share divided among them. */
static int64_t read_memory(int pid)
{
    char path[64], line[256];
    int64_t kib, sum = 0;
    snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "Pss_Anon: %" SCNd64, &kib) == 1 ||
            sscanf(line, "Pss_Shmem: %" SCNd64, &kib) == 1)
            sum += kib * 1024;
    if (f != NULL)
        fclose(f);
    return sum;
}

static void measure(int root, bool memory, struct usage *ret_usage)
{
    static int pids[TREE_MAX];
    double tick = (double)sysconf(_SC_CLK_TCK);
    struct usage u = {0};
    size_t n = root > 0 ? find_tree(root, pids) : 0;
    for (size_t i = 0; i < n; i++) {
        clockid_t clock;
        struct timespec t;
        int parent;
        uint64_t ticks[4];
        if (clock_getcpuclockid(pids[i], &clock) == 0 && clock_gettime(clock, &t) == 0)
            u.cpu += (double)t.tv_sec + (double)t.tv_nsec / 1e9;
        if (read_stat(pids[i], &parent, ticks)) {
            u.cpu += (double)(ticks[2] + ticks[3]) / tick; /* children that were waited for */
            u.user += (double)(ticks[0] + ticks[2]) / tick;
        }
        if (memory)
            u.memory += read_memory(pids[i]);
    }
    *ret_usage = u;
}

static double own_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the origin ---- */

struct guest {
    int fd;
    bool is_listener;
    uint32_t task; /* 0: the order has not come whole */
    uint32_t have; /* bytes of the current request */
    struct order order;
};

static void guest_close(struct guest *g)
{
    close(g->fd);
    free(g);
}

static void guest_accept(int ep, struct guest *listener)
{
    for (int i = 0; i < 64; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        struct guest *g = calloc(1, sizeof(*g));
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = g};
        if (g == NULL || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) != 0)
            die("origin: %s", strerror(errno));
        g->fd = fd;
    }
}

/* Answers fit into the send buffer: the client asks again only when it has one. */
static bool guest_answer(struct guest *g, size_t n)
{
    g->have += (uint32_t)n;
    while (g->have >= MESSAGE) {
        g->have -= MESSAGE;
        if (send(g->fd, block, MESSAGE, MSG_NOSIGNAL) != (ssize_t)MESSAGE)
            return false;
    }
    return true;
}

static bool guest_take_order(int ep, struct guest *g, const uint8_t *data, size_t n)
{
    size_t part = sizeof(g->order) - g->have;
    if (part > n)
        part = n;
    memcpy((uint8_t *)&g->order + g->have, data, part);
    g->have += (uint32_t)part;
    if (g->have < sizeof(g->order))
        return true;
    if (g->order.magic != ORDER_MAGIC)
        return false;
    g->task = g->order.task;
    struct epoll_event ev = {.events = EPOLLOUT, .data.ptr = g};
    if (g->task == TASK_SOURCE)
        return epoll_ctl(ep, EPOLL_CTL_MOD, g->fd, &ev) == 0;
    return g->task != TASK_ANSWER || guest_answer(g, n - part);
}

static bool guest_serve(int ep, struct guest *g)
{
    static uint8_t in[BLOCK];
    if (g->task == TASK_SOURCE) {
        ssize_t n = send(g->fd, block, sizeof(block), MSG_NOSIGNAL);
        return n >= 0 || errno == EAGAIN;
    }
    ssize_t n = recv(g->fd, in, sizeof(in), 0);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    if (g->task == 0)
        return guest_take_order(ep, g, in, (size_t)n);
    return g->task == TASK_SINK || guest_answer(g, (size_t)n);
}

/* One port on all addresses: the first one is the kernel's choice, the others follow. */
static int origin_listen(int index, uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(*port)};
    socklen_t len = sizeof(a);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)index);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    set_nodelay(fd);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(fd, 4096) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        die("origin: %s", strerror(errno));
    *port = ntohs(a.sin_port);
    return fd;
}

static int run_origin(int addresses)
{
    static struct guest stdin_mark;
    int ep = epoll_create1(EPOLL_CLOEXEC);
    uint16_t port = 0;
    for (int i = 0; i < addresses; i++) {
        struct guest *g = calloc(1, sizeof(*g));
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = g};
        if (g == NULL)
            die("origin: out of memory");
        g->fd = origin_listen(i, &port);
        g->is_listener = true;
        if (epoll_ctl(ep, EPOLL_CTL_ADD, g->fd, &ev) != 0)
            die("origin: %s", strerror(errno));
    }
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &stdin_mark};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, STDIN_FILENO, &ev) != 0)
        die("origin: standard input must be a pipe");
    printf("port=%u\n", (unsigned)port);
    fflush(stdout);
    for (;;) {
        struct epoll_event evs[256];
        int n = epoll_wait(ep, evs, 256, -1);
        for (int i = 0; i < n; i++) {
            struct guest *g = evs[i].data.ptr;
            if (g == &stdin_mark)
                return 0;
            if (g->is_listener)
                guest_accept(ep, g);
            else if (!guest_serve(ep, g))
                guest_close(g);
        }
    }
}

/* ---- the client ---- */

enum mode { MODE_CONN = 1, MODE_BULK, MODE_RR, MODE_IDLE };
enum scheme { SCHEME_SOCKS5 = 1, SCHEME_HTTP, SCHEME_NONE };

enum step {
    STEP_FREE = 0,   /* no socket */
    STEP_CONNECTING, /* we are here while the proxy has not accepted */
    STEP_METHOD,     /* ... SOCKS5: the method has not been chosen */
    STEP_LOGIN,      /* ... the login has not been answered */
    STEP_OPENING,    /* ... the way is not open */
    STEP_MESSAGE,    /* ... an answer of the origin is awaited */
    STEP_WAITING,    /* ... open, nothing to do (rr at a rate, idle) */
    STEP_STREAM,     /* ... bulk */
};

struct conn {
    int fd;
    enum step step;
    uint32_t have;   /* bytes of the awaited answer */
    bool asked;      /* the order was sent */
    int64_t due_ns;  /* rr at a rate: when the next request is due */
    int64_t sent_ns; /* what its latency counts from */
    uint8_t in[512];
};

struct load {
    enum mode mode;
    enum scheme scheme;
    struct sockaddr_in proxy, target;
    int addresses;
    char user[128], pass[128], name[128];
    int proxy_pid, origin_pid;
    int n_conns, n_idle;
    double warm_s, measure_s, rate;
    bool up;

    int ep;
    struct conn *conns;
    uint64_t serial; /* connections opened */
    int open;        /* idle: sessions that stand */
    uint64_t done, bytes, errors;
    bool counting;
    char first_error[128];
    uint32_t *samples; /* ns, at most 4 s */
    size_t n_samples;
    int64_t progress_ns;
};

static struct load L;

static void conn_start(struct conn *c);

static void count_error(const struct conn *c, const char *what)
{
    static const char *const names[] = {"free",    "connect", "method",  "login",
                                        "opening", "message", "waiting", "stream"};
    if (L.errors++ == 0)
        snprintf(L.first_error, sizeof(L.first_error), "%s: %s", names[c->step], what);
}

static void conn_close(struct conn *c)
{
    close(c->fd);
    c->fd = -1;
    c->step = STEP_FREE;
}

/* Also the answer to an error: try again, in all modes but idle, where the number tells. */
static void conn_fail(struct conn *c, const char *what)
{
    count_error(c, what);
    conn_close(c);
    if (L.errors > 1000)
        die("too many errors, the first one was: %s", L.first_error);
    if (L.mode != MODE_IDLE)
        conn_start(c);
}

static void await(struct conn *c, enum step step)
{
    c->step = step;
    c->have = 0;
}

static bool say(struct conn *c, const void *data, size_t n)
{
    if (send(c->fd, data, n, MSG_NOSIGNAL) == (ssize_t)n)
        return true;
    conn_fail(c, strerror(errno));
    return false;
}

static struct sockaddr_in next_target(void)
{
    struct sockaddr_in a = L.target;
    uint32_t turn = (uint32_t)(L.serial % (uint64_t)L.addresses);
    a.sin_addr.s_addr = htonl(ntohl(a.sin_addr.s_addr) + turn);
    return a;
}

static void conn_start(struct conn *c)
{
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        die("socket: %s", strerror(errno));
    set_nodelay(c->fd);
    L.serial++;
    c->step = STEP_CONNECTING;
    c->asked = false;
    c->have = 0;
    if (connect(c->fd, (struct sockaddr *)&L.proxy, sizeof(L.proxy)) != 0 && errno != EINPROGRESS)
        die("connect: %s", strerror(errno));
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    if (epoll_ctl(L.ep, EPOLL_CTL_ADD, c->fd, &ev) != 0)
        die("epoll_ctl: %s", strerror(errno));
}

/* -- opening -- */

static void send_request(struct conn *c)
{
    struct sockaddr_in to = next_target();
    if (L.scheme == SCHEME_SOCKS5) {
        uint8_t m[7 + sizeof(L.name)] = {5, 1, 0, 1};
        size_t len = strlen(L.name), at = 8;
        memcpy(m + 4, &to.sin_addr, 4);
        if (len > 0) {
            m[3] = 3;
            m[4] = (uint8_t)len;
            memcpy(m + 5, L.name, len);
            at = 5 + len;
        }
        memcpy(m + at, &to.sin_port, 2);
        await(c, STEP_OPENING);
        (void)say(c, m, at + 2);
        return;
    }
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char login[260], coded[360] = "", host[INET_ADDRSTRLEN], text[900];
    size_t n = (size_t)snprintf(login, sizeof(login), "%s:%s", L.user, L.pass), o = 0;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)(uint8_t)login[i] << 16;
        v |= i + 1 < n ? (uint32_t)(uint8_t)login[i + 1] << 8 : 0;
        v |= i + 2 < n ? (uint8_t)login[i + 2] : 0;
        coded[o++] = digits[v >> 18];
        coded[o++] = digits[v >> 12 & 63];
        coded[o++] = i + 1 < n ? digits[v >> 6 & 63] : '=';
        coded[o++] = i + 2 < n ? digits[v & 63] : '=';
    }
    coded[o] = '\0';
    inet_ntop(AF_INET, &to.sin_addr, host, sizeof(host));
    int len = snprintf(text, sizeof(text), "CONNECT %s:%u HTTP/1.1\r\nHost: %s:%u\r\n%s%s%s\r\n",
                       host, ntohs(to.sin_port), host, ntohs(to.sin_port),
                       L.user[0] != '\0' ? "Proxy-Authorization: Basic " : "",
                       L.user[0] != '\0' ? coded : "", L.user[0] != '\0' ? "\r\n" : "");
    await(c, STEP_OPENING);
    (void)say(c, text, (size_t)len);
}

static void send_login(struct conn *c)
{
    uint8_t m[3 + sizeof(L.user) + sizeof(L.pass)];
    size_t u = strlen(L.user), p = strlen(L.pass);
    m[0] = 1;
    m[1] = (uint8_t)u;
    memcpy(m + 2, L.user, u);
    m[2 + u] = (uint8_t)p;
    memcpy(m + 3 + u, L.pass, p);
    await(c, STEP_LOGIN);
    (void)say(c, m, 3 + u + p);
}

static void send_message(struct conn *c, int64_t from_ns)
{
    uint8_t m[MESSAGE] = {0};
    if (!c->asked)
        memcpy(m, &(struct order){ORDER_MAGIC, TASK_ANSWER}, sizeof(struct order));
    c->asked = true;
    c->sent_ns = from_ns;
    await(c, STEP_MESSAGE);
    (void)say(c, m, sizeof(m));
}

static void start_stream(struct conn *c)
{
    struct order o = {ORDER_MAGIC, L.up ? TASK_SINK : TASK_SOURCE};
    c->step = STEP_STREAM;
    if (!say(c, &o, sizeof(o)))
        return;
    /* Level-triggered from here on, one call per event, so that streams get equal shares. */
    struct epoll_event ev = {.events = L.up ? EPOLLOUT : EPOLLIN, .data.ptr = c};
    (void)epoll_ctl(L.ep, EPOLL_CTL_MOD, c->fd, &ev);
}

static void on_open(struct conn *c)
{
    L.progress_ns = now_ns();
    if (L.mode == MODE_BULK)
        start_stream(c);
    else if (L.mode == MODE_RR && L.rate > 0)
        c->step = STEP_WAITING;
    else
        send_message(c, L.progress_ns);
}

static void on_connected(struct conn *c)
{
    if (L.scheme == SCHEME_NONE) {
        on_open(c);
    } else if (L.scheme == SCHEME_HTTP) {
        send_request(c);
    } else {
        uint8_t m[3] = {5, 1, L.user[0] != '\0' ? 2 : 0};
        await(c, STEP_METHOD);
        (void)say(c, m, sizeof(m));
    }
}

/* -- answers -- */

static void on_message(struct conn *c)
{
    int64_t now = now_ns();
    L.progress_ns = now;
    L.done++;
    if (L.counting && L.n_samples < SAMPLES_MAX && L.samples != NULL) {
        int64_t took = now - c->sent_ns;
        L.samples[L.n_samples++] = took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
    }
    if (L.mode == MODE_CONN) {
        conn_close(c);
        conn_start(c);
    } else if (L.mode == MODE_IDLE) {
        L.open++;
        c->step = STEP_WAITING;
    } else if (L.rate <= 0) {
        send_message(c, now);
    } else if (c->due_ns <= now) { /* the answer came late: the next one is due already */
        int64_t due = c->due_ns;
        c->due_ns += (int64_t)(1e9 * L.n_conns / L.rate);
        send_message(c, due);
    } else {
        c->step = STEP_WAITING;
    }
}

/* The awaited answer is whole when it has so many bytes; 0: not known yet. */
static size_t answer_len(const struct conn *c)
{
    if (c->step == STEP_METHOD || c->step == STEP_LOGIN)
        return 2;
    if (c->step == STEP_MESSAGE)
        return MESSAGE;
    if (L.scheme == SCHEME_HTTP) {
        const uint8_t *end = memmem(c->in, c->have, "\r\n\r\n", 4);
        return end != NULL ? (size_t)(end - c->in) + 4 : 0;
    }
    if (c->have < 5)
        return 0;
    return c->in[3] == 1 ? 10 : c->in[3] == 4 ? 22 : 7u + c->in[4];
}

static void on_answer(struct conn *c)
{
    switch (c->step) {
    case STEP_METHOD:
        if (c->in[1] == 2)
            send_login(c);
        else if (c->in[1] == 0)
            send_request(c);
        else
            conn_fail(c, "no method is accepted");
        break;
    case STEP_LOGIN:
        if (c->in[1] == 0)
            send_request(c);
        else
            conn_fail(c, "the login is refused");
        break;
    case STEP_OPENING:
        if (L.scheme == SCHEME_HTTP ? memcmp(c->in + 8, " 200", 4) == 0 : c->in[1] == 0)
            on_open(c);
        else
            conn_fail(c, "the request is refused");
        break;
    default:
        on_message(c);
    }
}

static void on_readable(struct conn *c)
{
    /* Nothing is sent before it was asked for, so an answer ends where the bytes end. */
    ssize_t n = recv(c->fd, c->in + c->have, sizeof(c->in) - c->have, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        conn_fail(c, n == 0 ? "closed" : strerror(errno));
        return;
    }
    c->have += (uint32_t)n;
    size_t need = answer_len(c);
    if (need != 0 && c->have >= need)
        on_answer(c);
    else if (c->have == sizeof(c->in))
        conn_fail(c, "the answer is too long");
}

static void on_stream(struct conn *c)
{
    static uint8_t in[BLOCK];
    ssize_t n =
        L.up ? send(c->fd, block, sizeof(block), MSG_NOSIGNAL) : recv(c->fd, in, sizeof(in), 0);
    if (n > 0) {
        L.bytes += (uint64_t)n;
        L.progress_ns = now_ns();
    } else if (n == 0 || errno != EAGAIN) {
        conn_fail(c, n == 0 ? "closed" : strerror(errno));
    }
}

static void on_event(struct conn *c, uint32_t events)
{
    if (c->step == STEP_STREAM) {
        on_stream(c);
    } else if (c->step == STEP_CONNECTING) {
        if (events & (EPOLLERR | EPOLLHUP))
            conn_fail(c, "cannot connect");
        else if (events & EPOLLOUT)
            on_connected(c);
    } else if (c->step != STEP_FREE && events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
        on_readable(c);
    }
}

/* -- time -- */

/* Ask where a request is due; the time of the next one. Connections are due in turn. */
static int64_t ask_due(void)
{
    static int turn;
    int64_t now = now_ns(), period = (int64_t)(1e9 * L.n_conns / L.rate);
    for (int i = 0; i < L.n_conns; i++, turn = (turn + 1) % L.n_conns) {
        struct conn *c = &L.conns[turn];
        if (c->step == STEP_WAITING && c->due_ns <= now) {
            int64_t due = c->due_ns;
            c->due_ns += period;
            send_message(c, due);
        } else if (c->step == STEP_WAITING) {
            return c->due_ns;
        } /* else: its answer is late, and on_message() asks again */
    }
    return now + period / L.n_conns;
}

/* Handle events until 'until_ns', or until the idle sessions stand. */
static void run_until(int64_t until_ns, int want_open)
{
    for (;;) {
        int64_t now = now_ns(), next = until_ns;
        if (now >= until_ns || (want_open > 0 && L.open + (int)L.errors >= want_open))
            return;
        if (want_open == 0 && L.mode != MODE_IDLE && now - L.progress_ns > STALL_NS)
            die("no progress for 8 seconds; first error: %s", L.first_error);
        if (L.mode == MODE_RR && L.rate > 0) {
            int64_t due = ask_due();
            next = due < next ? due : next;
            now = now_ns();
        }
        struct timespec wait = {0};
        if (next > now)
            wait = (struct timespec){(next - now) / 1000000000, (next - now) % 1000000000};
        struct epoll_event evs[256];
        int n = epoll_pwait2(L.ep, evs, 256, &wait, NULL);
        for (int i = 0; i < n; i++)
            on_event(evs[i].data.ptr, evs[i].events);
    }
}

/* ---- runs and results ---- */

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void print_latency(void)
{
    static const struct {
        const char *name;
        double part;
    } marks[] = {{"p50", .5}, {"p90", .9}, {"p99", .99}, {"p999", .999}, {"max", 1}};
    qsort(L.samples, L.n_samples, sizeof(*L.samples), by_value);
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]) && L.n_samples > 0; i++) {
        size_t at = (size_t)(marks[i].part * (double)(L.n_samples - 1));
        printf(", \"%s_us\": %.1f", marks[i].name, L.samples[at] / 1e3);
    }
}

static void print_errors(void)
{
    printf("\"errors\": %" PRIu64 ", \"first_error\": \"%s\"", L.errors, L.first_error);
}

static int run_timed(void)
{
    struct usage p0, p1, o0, o1;
    for (int i = 0; i < L.n_conns; i++) {
        L.conns[i].due_ns = L.rate > 0 ? now_ns() + (int64_t)(1e9 * i / L.rate) : 0;
        conn_start(&L.conns[i]);
    }
    run_until(now_ns() + (int64_t)(L.warm_s * 1e9), 0);
    uint64_t done = L.done, bytes = L.bytes;
    measure(L.proxy_pid, false, &p0);
    measure(L.origin_pid, false, &o0);
    double cpu = own_cpu();
    int64_t start = now_ns();
    L.counting = true;
    run_until(start + (int64_t)(L.measure_s * 1e9), 0);
    L.counting = false;
    double took = (double)(now_ns() - start) / 1e9;
    measure(L.proxy_pid, false, &p1);
    measure(L.origin_pid, false, &o1);
    done = L.done - done;
    bytes = L.bytes - bytes;
    if (done + bytes == 0)
        die("nothing was done; first error: %s", L.first_error);

    double proxy = p1.cpu - p0.cpu;
    printf("{\"seconds\": %.3f, \"proxy_cpu\": %.6f, \"proxy_user\": %.2f, \"origin_cpu\": %.6f, "
           "\"client_cpu\": %.6f, ",
           took, proxy, p1.user - p0.user, o1.cpu - o0.cpu, own_cpu() - cpu);
    if (L.mode == MODE_BULK)
        printf("\"gb\": %.6f, \"cpu_s_per_gb\": %.5f, \"gb_per_s\": %.3f, ", (double)bytes / 1e9,
               proxy / ((double)bytes / 1e9), (double)bytes / 1e9 / took);
    else
        printf("\"done\": %" PRIu64 ", \"cpu_us_each\": %.3f, \"per_s\": %.0f, ", done,
               proxy * 1e6 / (double)done, (double)done / took);
    print_errors();
    print_latency();
    printf("}\n");
    return L.errors == 0 ? 0 : 1;
}

static void open_idle(int upto)
{
    int64_t limit = now_ns() + 4 * STALL_NS;
    while (L.open + (int)L.errors < upto) {
        int stood = L.open + (int)L.errors, batch = upto - stood;
        batch = batch > IDLE_AT_ONCE ? IDLE_AT_ONCE : batch;
        for (int i = 0; i < batch; i++)
            conn_start(&L.conns[stood + i]);
        run_until(limit, stood + batch);
        if (now_ns() >= limit)
            die("%d of %d sessions stand; first error: %s", L.open, upto, L.first_error);
    }
    /* Until buffers that were needed for opening are back. */
    run_until(now_ns() + SETTLE_NS, 0);
}

/* The slope between a tenth of the sessions and all of them: what a process needs to run at all,
 * and its first buffers, are in neither. */
static int run_idle(void)
{
    struct usage before, after, quiet;
    int first = L.n_idle / 10;
    open_idle(first);
    measure(L.proxy_pid, true, &before);
    open_idle(L.n_idle);
    measure(L.proxy_pid, true, &after);
    int64_t start = now_ns();
    run_until(start + (int64_t)1e9, 0);
    measure(L.proxy_pid, false, &quiet);
    printf("{\"sessions\": %d, \"bytes_each\": %.0f, \"memory\": %" PRId64
           ", \"cpu_s_per_s\": %.5f, ",
           L.open, (double)(after.memory - before.memory) / (L.n_idle - first), after.memory,
           (quiet.cpu - after.cpu) / ((double)(now_ns() - start) / 1e9));
    print_errors();
    printf("}\n");
    return L.errors == 0 ? 0 : 1;
}

/* ---- command line ---- */

static struct sockaddr_in parse_addr(const char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    char host[64];
    const char *colon = strrchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof(host))
        die("'%s' is not HOST:PORT", text);
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    long port = strtol(colon + 1, NULL, 10);
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1 || port < 1 || port > 65535)
        die("'%s' is not an IPv4 address and a port", text);
    a.sin_port = htons((uint16_t)port);
    return a;
}

static void parse_login(const char *text)
{
    const char *colon = strchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof(L.user) ||
        strlen(colon + 1) >= sizeof(L.pass))
        die("the login is not USER:PASS");
    snprintf(L.user, sizeof(L.user), "%.*s", (int)(colon - text), text);
    snprintf(L.pass, sizeof(L.pass), "%s", colon + 1);
}

static int parse_count(const char *text)
{
    long n = strtol(text, NULL, 10);
    if (n < 1 || n > 1000000)
        die("'%s' is not a number from 1 to 1000000", text);
    return (int)n;
}

static enum scheme parse_scheme(const char *text)
{
    static const char *const names[] = {"socks5", "http", "none"};
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0)
            return (enum scheme)(i + 1);
    die("'%s' is not socks5, http or none", text);
    return SCHEME_NONE;
}

static void parse_option(int opt, const char *value)
{
    switch (opt) {
    case 'x':
        L.proxy = parse_addr(value);
        break;
    case 't':
        L.target = parse_addr(value);
        break;
    case 'N':
        snprintf(L.name, sizeof(L.name), "%s", value);
        break;
    case 'a':
        L.addresses = parse_count(value);
        break;
    case 's':
        L.scheme = parse_scheme(value);
        break;
    case 'u':
        parse_login(value);
        break;
    case 'p':
        L.proxy_pid = parse_count(value);
        break;
    case 'o':
        L.origin_pid = parse_count(value);
        break;
    case 'c':
        L.n_conns = parse_count(value);
        break;
    case 'n':
        L.n_idle = parse_count(value);
        break;
    case 'w':
        L.warm_s = strtod(value, NULL);
        break;
    case 'T':
        L.measure_s = strtod(value, NULL);
        break;
    case 'd':
        L.up = strcmp(value, "up") == 0;
        break;
    case 'r':
        L.rate = strtod(value, NULL);
        break;
    default:
        die("see the head of load.c");
    }
}

static enum mode parse_mode(const char *text)
{
    static const char *const names[] = {"conn", "bulk", "rr", "idle"};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0)
            return (enum mode)(i + 1);
    die("'%s' is not origin, conn, bulk, rr or idle", text);
    return MODE_CONN;
}

/* As many descriptors as we may have, or may allow ourselves. */
static void raise_limit(void)
{
    struct rlimit most = {200000, 200000}, now;
    if (setrlimit(RLIMIT_NOFILE, &most) == 0 || getrlimit(RLIMIT_NOFILE, &now) != 0)
        return;
    now.rlim_cur = now.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &now);
}

int main(int argc, char **argv)
{
    int opt;
    if (argc < 2)
        die("see the head of load.c");
    signal(SIGPIPE, SIG_IGN);
    raise_limit();
    L = (struct load){.scheme = SCHEME_SOCKS5,
                      .addresses = 1,
                      .n_conns = 32,
                      .n_idle = 1000,
                      .warm_s = .3,
                      .measure_s = 1};
    while ((opt = getopt(argc - 1, argv + 1, "x:t:N:a:s:u:p:o:c:n:w:T:d:r:")) != -1)
        parse_option(opt, optarg);
    if (strcmp(argv[1], "origin") == 0)
        return run_origin(L.addresses);
    L.mode = parse_mode(argv[1]);
    if (L.proxy.sin_port == 0 || L.target.sin_port == 0)
        die("-x and -t are required");
    int slots = L.mode == MODE_IDLE ? L.n_idle : L.n_conns;
    L.conns = calloc((size_t)slots, sizeof(*L.conns));
    L.samples =
        L.mode == MODE_RR || L.mode == MODE_CONN ? malloc(SAMPLES_MAX * sizeof(uint32_t)) : NULL;
    L.ep = epoll_create1(EPOLL_CLOEXEC);
    if (L.conns == NULL || L.ep < 0)
        die("out of memory or descriptors");
    L.progress_ns = now_ns();
    return L.mode == MODE_IDLE ? run_idle() : run_timed();
}

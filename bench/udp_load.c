/* Datagrams through a SOCKS5 proxy and back, as many as it carries. Needs nothing but libc:
 *
 *     cc -O2 -o udp_load bench/udp_load.c
 *     udp_load -x HOST:PORT [-u USER:PASS] [-c ASSOCIATIONS] [-w WINDOW] [-l BYTES] [-T SEC]
 *
 * Each association keeps WINDOW datagrams on their way to an echo within this process; what comes
 * back is sent again. An association that hears nothing for 100 ms counts its window as lost and
 * starts anew. One JSON object on standard output; "datagrams" are those that the proxy has
 * carried, each way counted, and that are known to have arrived. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEADER    10 /* of a SOCKS5 datagram to an IPv4 address */
#define BYTES_MAX 1400
#define BATCH     32
#define QUIET_NS  (100 * 1000000LL)

struct association {
    int tcp, udp;
    int64_t heard_ns;
};

static struct sockaddr_in proxy, origin;
static char user[128], pass[128];
static int n_associations = 8, window = 16, n_bytes = 100, echo_fd;
static double seconds = 1;
static uint64_t back, lost;

static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "udp_load: ");
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

static void get(int fd, uint8_t *data, size_t len)
{
    if (recv(fd, data, len, MSG_WAITALL) != (ssize_t)len)
        die("the proxy closes in the handshake");
}

static void put(int fd, const void *data, size_t len)
{
    if (send(fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
        die("the proxy closes in the handshake");
}

static void handshake(int fd, struct sockaddr_in *ret_relay)
{
    uint8_t b[300] = {5, 1, user[0] != '\0' ? 2 : 0};
    put(fd, b, 3);
    get(fd, b, 2);
    if (b[0] != 5 || b[1] == 0xff)
        die("no method is accepted");
    if (b[1] == 2) {
        size_t n = (size_t)snprintf((char *)b, sizeof(b), "\1%c%s%c%s", (char)strlen(user), user,
                                    (char)strlen(pass), pass);
        put(fd, b, n);
        get(fd, b, 2);
        if (b[1] != 0)
            die("the login is refused");
    }
    put(fd, (const uint8_t[]){5, 3, 0, 1, 0, 0, 0, 0, 0, 0}, 10);
    get(fd, b, 10);
    if (b[1] != 0 || b[3] != 1)
        die("UDP ASSOCIATE is refused: %u", b[1]);
    *ret_relay = (struct sockaddr_in){.sin_family = AF_INET};
    memcpy(&ret_relay->sin_addr, b + 4, 4);
    memcpy(&ret_relay->sin_port, b + 8, 2);
    if (ret_relay->sin_addr.s_addr == 0)
        ret_relay->sin_addr = proxy.sin_addr;
}

static void buffers(int fd)
{
    int size = 4 << 20;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

static void send_one(struct association *a)
{
    static uint8_t data[HEADER + BYTES_MAX] = {0, 0, 0, 1};
    memcpy(data + 4, &origin.sin_addr, 4);
    memcpy(data + 8, &origin.sin_port, 2);
    (void)send(a->udp, data, HEADER + (size_t)n_bytes, MSG_DONTWAIT);
}

static void fill_window(struct association *a, int64_t now)
{
    a->heard_ns = now;
    for (int i = 0; i < window; i++)
        send_one(a);
}

static void open_association(struct association *a, int ep)
{
    struct sockaddr_in relay;
    a->tcp = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(a->tcp, (struct sockaddr *)&proxy, sizeof(proxy)) != 0)
        die("cannot connect: %s", strerror(errno));
    handshake(a->tcp, &relay);
    a->udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    buffers(a->udp);
    if (connect(a->udp, (struct sockaddr *)&relay, sizeof(relay)) != 0)
        die("cannot connect the datagram socket: %s", strerror(errno));
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = a};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, a->udp, &ev) != 0)
        die("epoll: %s", strerror(errno));
}

static void echo(void)
{
    static uint8_t data[BATCH][2048];
    static struct sockaddr_in from[BATCH];
    struct mmsghdr msgs[BATCH];
    struct iovec iov[BATCH];
    memset(msgs, 0, sizeof(msgs));
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){data[i], sizeof(data[i])};
        msgs[i].msg_hdr = (struct msghdr){.msg_name = &from[i],
                                          .msg_namelen = sizeof(from[i]),
                                          .msg_iov = &iov[i],
                                          .msg_iovlen = 1};
    }
    int n = recvmmsg(echo_fd, msgs, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++)
        iov[i].iov_len = msgs[i].msg_len;
    if (n > 0)
        (void)sendmmsg(echo_fd, msgs, (unsigned)n, MSG_DONTWAIT);
}

static void hear(struct association *a, int64_t now)
{
    uint8_t data[2048];
    for (int i = 0; i < window; i++) {
        ssize_t n = recv(a->udp, data, sizeof(data), MSG_DONTWAIT);
        if (n < 0)
            return;
        if (n != HEADER + n_bytes)
            die("a datagram of %zd bytes came back", n);
        a->heard_ns = now;
        back++;
        send_one(a);
    }
}

static struct sockaddr_in parse_addr(char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    char *colon = strrchr(text, ':');
    if (colon == NULL)
        die("'%s' is not HOST:PORT", text);
    *colon = '\0';
    a.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (inet_pton(AF_INET, text, &a.sin_addr) != 1)
        die("'%s' is not an address", text);
    return a;
}

static void parse(int argc, char **argv)
{
    int opt;
    while ((opt = getopt(argc, argv, "x:u:c:w:l:T:")) != -1) {
        char *colon = opt == 'u' ? strchr(optarg, ':') : NULL;
        if (opt == 'x')
            proxy = parse_addr(optarg);
        else if (opt == 'u' && colon != NULL) {
            snprintf(user, sizeof(user), "%.*s", (int)(colon - optarg), optarg);
            snprintf(pass, sizeof(pass), "%s", colon + 1);
        } else if (opt == 'c')
            n_associations = (int)strtol(optarg, NULL, 10);
        else if (opt == 'w')
            window = (int)strtol(optarg, NULL, 10);
        else if (opt == 'l')
            n_bytes = (int)strtol(optarg, NULL, 10);
        else if (opt == 'T')
            seconds = strtod(optarg, NULL);
        else
            die("see the head of udp_load.c");
    }
    if (proxy.sin_port == 0 || n_associations < 1 || window < 1 || n_bytes < 1 ||
        n_bytes > BYTES_MAX)
        die("see the head of udp_load.c");
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    int ep = epoll_create1(0);
    socklen_t len = sizeof(origin);
    echo_fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    origin = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    buffers(echo_fd);
    if (bind(echo_fd, (struct sockaddr *)&origin, sizeof(origin)) != 0 ||
        getsockname(echo_fd, (struct sockaddr *)&origin, &len) != 0)
        die("no socket for the echo");
    struct epoll_event ev = {.events = EPOLLIN};
    epoll_ctl(ep, EPOLL_CTL_ADD, echo_fd, &ev);
    struct association *all = calloc((size_t)n_associations, sizeof(*all));
    for (int i = 0; i < n_associations; i++)
        open_association(&all[i], ep);
    int64_t start = now_ns(), end = start + (int64_t)(seconds * 1e9), look = start + QUIET_NS;
    for (int i = 0; i < n_associations; i++)
        fill_window(&all[i], start);
    for (int64_t now = start; now < end; now = now_ns()) {
        struct epoll_event evs[64];
        int n = epoll_wait(ep, evs, 64, 20);
        for (int i = 0; i < n; i++) {
            if (evs[i].data.ptr == NULL)
                echo();
            else
                hear(evs[i].data.ptr, now);
        }
        for (int i = 0; i < n_associations && now >= look; i++) {
            if (now - all[i].heard_ns < QUIET_NS)
                continue;
            lost += (uint64_t)window;
            fill_window(&all[i], now);
        }
        look = now >= look ? now + QUIET_NS : look;
    }
    double took = (double)(now_ns() - start) / 1e9;
    if (back == 0)
        die("nothing came back");
    printf("{\"seconds\": %.3f, \"datagrams\": %" PRIu64 ", \"lost\": %" PRIu64
           ", \"per_s\": %.0f}\n",
           took, 2 * back, lost, (double)(2 * back) / took);
    return 0;
}

/* The least that a SOCKS5 relay can cost: the system calls that a connection needs and next to
 * nothing between them. It is a yardstick for the machine at this hour and no proxy: it believes
 * every login, knows IPv4 only, expects each message of the handshake in one piece, copies with one
 * buffer, drops what does not fit into a socket, and logs nothing.
 *
 *     cc -O2 -o floor bench/floor.c && ./floor PORT */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)

enum step { STEP_METHOD = 1, STEP_LOGIN, STEP_REQUEST, STEP_DIAL, STEP_RELAY };

struct pair;

struct side {
    struct pair *pair;
    int fd;
    bool ended;
};

struct pair {
    struct side client, origin;
    enum step step;
    struct pair *next_dead;
};

static int ep, listener;
static struct pair *dead; /* freed when no event of this turn can name them */

static void watch(int fd, void *data, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = data};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) != 0)
        abort();
}

static void end(struct pair *p)
{
    if (p->client.fd < 0)
        return;
    close(p->client.fd);
    if (p->origin.fd >= 0)
        close(p->origin.fd);
    p->client.fd = p->origin.fd = -1;
    p->next_dead = dead;
    dead = p;
}

static void copy(struct side *from, struct side *to)
{
    static uint8_t buf[65536];
    for (;;) {
        ssize_t n = recv(from->fd, buf, sizeof(buf), 0);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0) {
            end(from->pair);
            return;
        }
        if (n == 0) {
            from->ended = true;
            if (to->ended)
                end(from->pair);
            else
                shutdown(to->fd, SHUT_WR);
            return;
        }
        (void)!send(to->fd, buf, (size_t)n, MSG_NOSIGNAL);
        if (n < (ssize_t)sizeof(buf))
            return; /* a short read: the queue is empty, the next byte is a new edge */
    }
}

static void dial(struct pair *p, const uint8_t *request)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    int one = 1;
    memcpy(&to.sin_addr, request + 4, 4);
    memcpy(&to.sin_port, request + 8, 2);
    p->origin.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(p->origin.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(p->origin.fd, (struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS) {
        end(p);
        return;
    }
    p->step = STEP_DIAL;
    watch(p->origin.fd, &p->origin, EVENTS);
}

static void handshake(struct pair *p)
{
    uint8_t in[600];
    ssize_t n = recv(p->client.fd, in, sizeof(in), 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n < 3) {
        end(p);
    } else if (p->step == STEP_METHOD) {
        uint8_t method = in[2];
        p->step = method == 2 ? STEP_LOGIN : STEP_REQUEST;
        (void)!send(p->client.fd, (uint8_t[]){5, method}, 2, MSG_NOSIGNAL);
    } else if (p->step == STEP_LOGIN) {
        p->step = STEP_REQUEST;
        (void)!send(p->client.fd, (uint8_t[]){1, 0}, 2, MSG_NOSIGNAL);
    } else {
        dial(p, in);
    }
}

static void on_connected(struct pair *p)
{
    uint8_t answer[10] = {5, 0, 0, 1};
    struct sockaddr_in local;
    socklen_t len = sizeof(local);
    getsockname(p->origin.fd, (struct sockaddr *)&local, &len);
    memcpy(answer + 4, &local.sin_addr, 4);
    memcpy(answer + 8, &local.sin_port, 2);
    p->step = STEP_RELAY;
    (void)!send(p->client.fd, answer, sizeof(answer), MSG_NOSIGNAL);
}

static void on_event(struct side *s, uint32_t events)
{
    struct pair *p = s->pair;
    if (p->client.fd < 0)
        return;
    if (p->step == STEP_DIAL && s == &p->origin) {
        if (events & (EPOLLERR | EPOLLHUP))
            end(p);
        else
            on_connected(p);
        return;
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    if (p->step == STEP_RELAY)
        copy(s, s == &p->client ? &p->origin : &p->client);
    else if (p->step != STEP_DIAL)
        handshake(p);
}

static void on_accept(void)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct pair *p = calloc(1, sizeof(*p));
        if (p == NULL)
            abort();
        p->client = (struct side){.pair = p, .fd = fd};
        p->origin = (struct side){.pair = p, .fd = -1};
        p->step = STEP_METHOD;
        watch(fd, &p->client, EVENTS);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    int one = 1;
    a.sin_port = htons((uint16_t)(argc == 2 ? strtol(argv[1], NULL, 10) : 0));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    signal(SIGPIPE, SIG_IGN);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (bind(listener, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(listener, 4096) != 0) {
        perror("floor");
        return 1;
    }
    ep = epoll_create1(EPOLL_CLOEXEC);
    watch(listener, NULL, EPOLLIN);
    for (;;) {
        struct epoll_event evs[256];
        int n = epoll_wait(ep, evs, 256, -1);
        for (int i = 0; i < n; i++) {
            if (evs[i].data.ptr == NULL)
                on_accept();
            else
                on_event(evs[i].data.ptr, evs[i].events);
        }
        while (dead != NULL) {
            struct pair *p = dead;
            dead = p->next_dead;
            free(p);
        }
    }
}

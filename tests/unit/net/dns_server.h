/* A name server inside the test, on one loopback port for UDP and TCP, in the test's own loop.
 * What it answers depends on the name that is asked for; see the rules in dns_answer(). */
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/rand.h"
#include "loop_util.h"
#include "net/loop.h"

#define DNS_MSG_MAX 8192
#define DNS_CONNS   8

enum {
    DNS_A = 1,
    DNS_CNAME = 5,
    DNS_AAAA = 28,
};

struct dns_msg {
    uint8_t b[DNS_MSG_MAX];
    size_t len;
};

struct dns_conn {
    struct cv_io io;
    struct dns_server *server;
    bool used;
    uint8_t in[4096];
    size_t in_len;
    uint8_t out[1 << 16];
    size_t out_len, out_off;
    struct cv_timer drip; /* writes one byte per tick when the server drips */
};

struct dns_server {
    struct cv_loop *loop;
    struct cv_io udp, tcp;
    struct dns_conn conns[DNS_CONNS];
    uint16_t port;
    char text[32]; /* "127.0.0.1:PORT" */
    int n_udp;     /* queries received */
    int n_tcp;
    int n_accepted;
    int hold; /* answer TCP queries only when so many have come, all in one write */
    int held;
    bool drip;          /* over TCP one byte at a time */
    bool hang_up;       /* close TCP connections instead of answering */
    bool silent;        /* never answer */
    uint8_t last_octet; /* of the A record of "changing.test" */
    char last_name[256];
};

static inline void dns_put(struct dns_msg *m, const void *p, size_t n)
{
    if (m->len + n > DNS_MSG_MAX)
        abort();
    memcpy(m->b + m->len, p, n);
    m->len += n;
}

static inline void dns_put16(struct dns_msg *m, unsigned v)
{
    uint8_t b[2] = {(uint8_t)(v >> 8), (uint8_t)v};
    dns_put(m, b, 2);
}

static inline void dns_put_name(struct dns_msg *m, const char *name)
{
    while (*name != '\0') {
        size_t n = strcspn(name, ".");
        uint8_t len = (uint8_t)n;
        dns_put(m, &len, 1);
        dns_put(m, name, n);
        name += n + (name[n] == '.');
    }
    dns_put(m, "", 1);
}

/* 'data' is an address of 'len' bytes, or for a CNAME the target as text. */
static inline void dns_record(struct dns_msg *m, const char *owner, unsigned type, uint32_t ttl,
                              const void *data, size_t len)
{
    dns_put_name(m, owner);
    dns_put16(m, type);
    dns_put16(m, 1);
    dns_put16(m, ttl >> 16);
    dns_put16(m, ttl & 0xffff);
    if (type == DNS_CNAME) {
        struct dns_msg tmp = {.len = 0};
        dns_put_name(&tmp, data);
        dns_put16(m, (unsigned)tmp.len);
        dns_put(m, tmp.b, tmp.len);
    } else {
        dns_put16(m, (unsigned)len);
        dns_put(m, data, len);
    }
    m->b[7]++; /* ANCOUNT */
}

static inline void dns_a(struct dns_msg *m, const char *owner, uint32_t ttl, const char *ip)
{
    uint8_t b[16];
    bool v6 = strchr(ip, ':') != NULL;
    if (inet_pton(v6 ? AF_INET6 : AF_INET, ip, b) != 1)
        abort();
    dns_record(m, owner, v6 ? DNS_AAAA : DNS_A, ttl, b, v6 ? 16 : 4);
}

/* A name such as "x.192-0-2-7.a.test" or "9.192-0-2-7.ttl.test" says itself what it resolves to. */
static inline bool dns_self_described(struct dns_msg *m, const char *name, unsigned type)
{
    unsigned a, b, c, d, ttl;
    char ip[32];
    if (type != DNS_A)
        return false;
    const char *dot = strchr(name, '.');
    if (dot == NULL)
        return false;
    char tail[8] = {0};
    /* NOLINTNEXTLINE: our own names */
    char *end;
    a = (unsigned)strtoul(dot + 1, &end, 10);
    b = *end == '-' ? (unsigned)strtoul(end + 1, &end, 10) : 999;
    c = *end == '-' ? (unsigned)strtoul(end + 1, &end, 10) : 999;
    d = *end == '-' ? (unsigned)strtoul(end + 1, &end, 10) : 999;
    snprintf(tail, sizeof(tail), "%s", end);
    if (d > 255 || (strcmp(end, ".a.test") != 0 && strcmp(end, ".ttl.test") != 0))
        return false;
    ttl = strcmp(end, ".ttl.test") == 0 ? (unsigned)strtoul(name, NULL, 10) : 60;
    snprintf(ip, sizeof(ip), "%u.%u.%u.%u", a, b, c, d);
    dns_a(m, name, ttl, ip);
    return true;
}

/* Fill in answers; the return is the rcode, or -1 for no answer at all. */
static inline int dns_answer(struct dns_server *s, struct dns_msg *m, const char *name,
                             unsigned type, bool tcp)
{
    char ip[64];
    bool is_a = type == DNS_A;
    if (s->silent || strstr(name, "silent") != NULL)
        return -1;
    if (dns_self_described(m, name, type))
        return 0;
    if (strcmp(name, "ok.test") == 0 || strcmp(name, "single") == 0) {
        dns_a(m, name, 60, is_a ? "192.0.2.1" : "2001:db8::1");
    } else if (strcmp(name, "changing.test") == 0 && is_a) {
        snprintf(ip, sizeof(ip), "192.0.2.%u", s->last_octet);
        dns_a(m, name, 60, ip);
    } else if (strcmp(name, "v4only.test") == 0) {
        if (is_a)
            dns_a(m, name, 60, "192.0.2.4");
    } else if (strcmp(name, "many.test") == 0 || strncmp(name, "tc", 2) == 0) {
        if (strncmp(name, "tc", 2) == 0 && !tcp) {
            m->b[2] |= 2; /* TC: all of it is to be had over TCP */
            return 0;
        }
        for (unsigned i = 1; i <= 20; i++) {
            snprintf(ip, sizeof(ip), is_a ? "192.0.2.%u" : "2001:db8::%u", i);
            dns_a(m, name, 60, ip);
        }
    } else if (strcmp(name, "dup.test") == 0) {
        for (int i = 0; i < 3; i++)
            dns_a(m, name, 60, is_a ? "192.0.2.1" : "2001:db8::1");
    } else if (strcmp(name, "cname.test") == 0) {
        dns_record(m, name, DNS_CNAME, 300, "one.test", 0);
        dns_record(m, "one.test", DNS_CNAME, 5, "two.test", 0);
        dns_a(m, "two.test", 100, is_a ? "192.0.2.9" : "2001:db8::9");
    } else if (strcmp(name, "dangling.test") == 0) {
        dns_record(m, name, DNS_CNAME, 300, "nowhere.test", 0);
    } else if (strcmp(name, "nodata.test") == 0) {
        return 0;
    } else if (strcmp(name, "servfail.test") == 0) {
        return 2;
    } else if (strcmp(name, "refused.test") == 0) {
        return 5;
    } else if (strcmp(name, "mapped.test") == 0 && !is_a) {
        dns_a(m, name, 60, "::ffff:127.0.0.1");
    } else if (strcmp(name, "short.test") == 0) {
        dns_put16(m, 0xc00c); /* a record that ends in the middle */
        dns_put16(m, type);
        m->b[7]++;
    } else if (strcmp(name, "loop.test") == 0) {
        /* A compression pointer to itself. */
        dns_put16(m, 0xc000 | (unsigned)m->len);
        dns_put16(m, type);
        dns_put(m, "\0\1\0\0\0\1\0\4\1\2\3\4", 12);
        m->b[7]++;
    } else if (strcmp(name, "junk.test") == 0) {
        uint8_t junk[100];
        cv_rand_bytes(junk, sizeof(junk));
        dns_put(m, junk, sizeof(junk));
        m->b[7] = 7;
    } else if (strcmp(name, "badsize.test") == 0) {
        dns_record(m, name, type, 60, "abc", 3);
    } else {
        return 3;
    }
    return 0;
}

/* False: no answer. */
static inline bool dns_reply(struct dns_server *s, const uint8_t *q, size_t len, bool tcp,
                             struct dns_msg *m)
{
    char name[256];
    size_t at = 12, n = 0;
    if (len < 17)
        return false;
    while (at < len && q[at] != 0) {
        size_t label = q[at++];
        if (at + label >= len || n + label + 2 > sizeof(name))
            return false;
        memcpy(name + n, q + at, label);
        n += label;
        name[n++] = '.';
        at += label;
    }
    name[n > 0 ? n - 1 : 0] = '\0';
    memcpy(s->last_name, name, sizeof(s->last_name));
    if (at + 5 > len)
        return false;
    unsigned type = (unsigned)q[at + 1] << 8 | q[at + 2];
    m->len = 0;
    dns_put(m, q, at + 5);
    memset(m->b + 6, 0, 6);
    m->b[2] = 0x81;
    m->b[3] = 0x80;
    int rcode = dns_answer(s, m, name, type, tcp);
    if (rcode < 0)
        return false;
    m->b[3] |= (uint8_t)rcode;
    if (strcmp(name, "wrongid.test") == 0)
        m->b[0] ^= 0x55;
    return true;
}

static inline void dns_on_udp(struct cv_io *io, unsigned events)
{
    struct dns_server *s = CV_CONTAINER_OF(io, struct dns_server, udp);
    (void)events;
    for (;;) {
        uint8_t q[2048];
        struct sockaddr_storage from;
        socklen_t from_len = sizeof(from);
        ssize_t n = recvfrom(io->fd, q, sizeof(q), 0, (struct sockaddr *)&from, &from_len);
        if (n < 0)
            return;
        s->n_udp++;
        struct dns_msg m;
        if (dns_reply(s, q, (size_t)n, false, &m))
            (void)sendto(io->fd, m.b, m.len, 0, (struct sockaddr *)&from, from_len);
    }
}

static inline void dns_conn_close(struct dns_conn *c)
{
    if (!c->used)
        return;
    cv_io_del(&c->io);
    close(c->io.fd);
    cv_loop_timer_stop(c->server->loop, &c->drip);
    c->used = false;
}

static inline void dns_conn_write(struct dns_conn *c, size_t most)
{
    size_t left = c->out_len - c->out_off;
    ssize_t n = send(c->io.fd, c->out + c->out_off, left < most ? left : most, MSG_NOSIGNAL);
    if (n > 0)
        c->out_off += (size_t)n;
    if (c->out_off == c->out_len)
        c->out_off = c->out_len = 0;
}

static inline void dns_on_drip(struct cv_timer *t)
{
    struct dns_conn *c = CV_CONTAINER_OF(t, struct dns_conn, drip);
    dns_conn_write(c, 1);
    if (c->out_len > 0)
        cv_loop_timer(c->server->loop, &c->drip, 0);
}

/* Answers all whole queries that are in the buffer. */
static inline void dns_conn_serve(struct dns_conn *c)
{
    struct dns_server *s = c->server;
    while (c->in_len >= 2 && c->in_len >= 2U + (c->in[0] << 8 | c->in[1])) {
        size_t len = (size_t)c->in[0] << 8 | c->in[1];
        struct dns_msg m;
        s->n_tcp++;
        s->held++;
        if (dns_reply(s, c->in + 2, len, true, &m)) {
            uint8_t head[2] = {(uint8_t)(m.len >> 8), (uint8_t)m.len};
            if (c->out_len + m.len + 2 > sizeof(c->out))
                abort();
            memcpy(c->out + c->out_len, head, 2);
            memcpy(c->out + c->out_len + 2, m.b, m.len);
            c->out_len += m.len + 2;
        }
        c->in_len -= len + 2;
        memmove(c->in, c->in + len + 2, c->in_len);
    }
    if (c->out_len == 0 || s->held < s->hold)
        return;
    if (s->drip)
        cv_loop_timer(s->loop, &c->drip, 0);
    else
        dns_conn_write(c, SIZE_MAX);
}

static inline void dns_on_conn(struct cv_io *io, unsigned events)
{
    struct dns_conn *c = CV_CONTAINER_OF(io, struct dns_conn, io);
    (void)events;
    for (;;) {
        ssize_t n = recv(io->fd, c->in + c->in_len, sizeof(c->in) - c->in_len, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN) || (n > 0 && c->server->hang_up)) {
            dns_conn_close(c);
            return;
        }
        if (n < 0)
            return;
        c->in_len += (size_t)n;
        dns_conn_serve(c);
    }
}

static inline void dns_on_tcp(struct cv_io *io, unsigned events)
{
    struct dns_server *s = CV_CONTAINER_OF(io, struct dns_server, tcp);
    (void)events;
    for (;;) {
        int fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        struct dns_conn *c = s->conns;
        while (c < s->conns + DNS_CONNS && c->used)
            c++;
        if (c == s->conns + DNS_CONNS)
            abort();
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        *c = (struct dns_conn){.server = s, .used = true};
        cv_timer_init(&c->drip, dns_on_drip);
        s->n_accepted++;
        if (cv_io_add(s->loop, &c->io, fd, dns_on_conn) != 0) { /* the torture build */
            c->used = false;
            close(fd);
        }
    }
}

static inline struct dns_server *dns_server_new(struct cv_loop *loop)
{
    struct dns_server *s = cv_zalloc(sizeof(*s));
    s->loop = loop;
    s->last_octet = 1;
    /* A port that is free for both: TCP is asked first, UDP may be taken by someone else. */
    for (int i = 0; i < 100; i++) {
        int tcp = test_listener();
        struct sockaddr_in sa;
        socklen_t len = sizeof(sa);
        getsockname(tcp, (struct sockaddr *)&sa, &len);
        int udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (bind(udp, (struct sockaddr *)&sa, len) == 0) {
            int size = 1 << 20;
            setsockopt(udp, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
            if (cv_io_add(loop, &s->udp, udp, dns_on_udp) != 0 ||
                cv_io_add(loop, &s->tcp, tcp, dns_on_tcp) != 0)
                abort();
            s->port = ntohs(sa.sin_port);
            snprintf(s->text, sizeof(s->text), "127.0.0.1:%u", s->port);
            return s;
        }
        close(tcp);
        close(udp);
    }
    abort();
}

static inline void dns_server_free(struct dns_server *s)
{
    for (int i = 0; i < DNS_CONNS; i++)
        dns_conn_close(&s->conns[i]);
    cv_io_del(&s->udp);
    cv_io_del(&s->tcp);
    close(s->udp.fd);
    close(s->tcp.fd);
    /* Events of this turn may still point into it. */
    cv_loop_turn(s->loop, 0);
    cv_free(s);
}

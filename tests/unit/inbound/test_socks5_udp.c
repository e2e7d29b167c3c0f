/* The relay of UDP ASSOCIATE towards the client; the rig's way out cannot carry UDP, so what passes
 * the relay shows as a drop for want of an egress. */
#include "inbound/socks5_udp.h"

#include "inbound_util.h"
#include "net/udp.h"

#define HELLO   "\x05\x01\x02\x01\x01u\x01p"
#define WELCOME "\x05\x02\x01\x00"
#define ANY4    "\x01\0\0\0\0\0\0"
#define TO_1234 "\0\0\0\x01\x01\x02\x03\x04\x00\x35"

void cv_http_serve(const struct cv_inbound *in)
{
    cv_stream_close(in->stream, false);
}

static struct rig *g;
static int control = -1;      /* the client's side */
static struct cv_sockaddr at; /* what it is told to send to */

static uint64_t dropped(enum cv_udp_drop why)
{
    return cv_counter_get(&g->node.stats.udp_dropped[why]);
}

/* A client on real TCP that makes the request; the reply code. */
static int associate(const char *address, size_t len)
{
    int fds[2];
    uint8_t request[64] = HELLO "\x05\x03\x00", reply[14];
    size_t n = sizeof(HELLO "\x05\x03\x00") - 1, got = 0;
    rig_tcp_pair(fds);
    struct cv_inbound in = rig_inbound(g, rig_adopt(g, fds[0]));
    struct cv_sockaddr sa = {.len = sizeof(sa.in4)};
    T_INT_EQ(getsockname(fds[1], &sa.sa, &sa.len), 0);
    cv_endpoint_from_sockaddr(&in.client, &sa.sa);
    cv_socks5_serve(&in);
    memcpy(request + n, address, len);
    control = fds[1];
    say(control, request, n + len);
    int64_t end = cv_clock_mono_ms() + 10000;
    while (got < sizeof(reply) && cv_clock_mono_ms() < end) {
        ssize_t rc = recv(control, reply + got, sizeof(reply) - got, 0);
        if (rc > 0)
            got += (size_t)rc;
        else if (rc == 0)
            break;
        else
            cv_loop_turn(g->w->loop, 5);
    }
    if (!T_INT_EQ(got, sizeof(reply)) || !T_OK(memcmp(reply, WELCOME, 4) == 0))
        return -1;
    at = (struct cv_sockaddr){.len = sizeof(at.in4), .in4.sin_family = AF_INET};
    memcpy(&at.in4.sin_addr, reply + 8, 4);
    memcpy(&at.in4.sin_port, reply + 12, 2);
    return reply[5];
}
#define ASSOCIATE(address) associate(address, sizeof(address) - 1)

static int udp_client(const char *text, uint16_t *ret_port)
{
    struct cv_sockaddr sa;
    int fd = -1;
    T_INT_EQ(cv_sockaddr_parse(text, &sa), 0);
    T_INT_EQ(cv_udp_open(&sa, &fd), 0);
    T_INT_EQ(getsockname(fd, &sa.sa, &sa.len), 0);
    *ret_port = ntohs(sa.in4.sin_port);
    return fd;
}

static void send_dgram(int fd, const char *data, size_t len)
{
    T_INT_EQ(sendto(fd, data, len, 0, &at.sa, at.len), len);
}
#define SEND(fd, data) send_dgram(fd, data, sizeof(data) - 1)

static void end_control(void)
{
    close(control);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(cv_gauge_get(&g->node.stats.udp_associations), 0);
}

static void test_life(void)
{
    uint16_t port;
    g = rig_new();
    T_INT_EQ(ASSOCIATE(ANY4), 0);
    T_INT_EQ(at.in4.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    T_OK(at.in4.sin_port != 0);
    T_INT_EQ(cv_gauge_get(&g->node.stats.udp_associations), 1);
    struct cv_session *s = CV_CONTAINER_OF(g->w->sessions.next, struct cv_session, _node);
    T_INT_EQ(s->state, CV_SESSION_RELAY);
    T_STR_EQ(s->protocol, "socks5-udp");
    T_OK(s->permit);
    int fd = udp_client("127.0.0.1:0", &port);
    SEND(fd, TO_1234 "x");
    TURN_UNTIL(g, dropped(CV_UDP_DROP_EGRESS) == 1);
    SEND(fd, "");
    SEND(fd, "\0\0\0");
    SEND(fd, "\0\0\x01\x01\x01\x02\x03\x04\x00\x35x");
    SEND(fd, "\0\0\0\x01\x0a\x02\x03\x04\x00\x35x"); /* 10.2.3.4 is blocked */
    TURN_UNTIL(g, dropped(CV_UDP_DROP_POLICY) == 1);
    T_INT_EQ(dropped(CV_UDP_DROP_MALFORMED), 2);
    T_INT_EQ(dropped(CV_UDP_DROP_FRAGMENT), 1);
    T_INT_EQ(alog_lines, 0);
    end_control();
    T_INT_EQ(alog_lines, 1);
    T_OK(log_has("\"protocol\":\"socks5-udp\""));
    T_OK(log_has("\"failure_stage\":\"egress\""));
    T_OK(log_has("\"datagrams_dropped\":5"));
    close(fd);
    rig_free(g);
}

static void test_source(void)
{
    uint16_t port, other_port;
    char stated[8] = "\x01\x7f\0\0\x01";
    g = rig_new();
    int other = udp_client("127.0.0.1:0", &other_port), fd = udp_client("127.0.0.1:0", &port);
    int foreign = udp_client("127.0.0.2:0", &other_port);
    /* Not fixed: another host's is dropped, its own first one fixes the port. */
    T_INT_EQ(ASSOCIATE(ANY4), 0);
    SEND(foreign, TO_1234 "x");
    SEND(fd, TO_1234 "x");
    SEND(other, TO_1234 "x"); /* came before the kernel knew, and is dropped all the same */
    TURN_UNTIL(g, dropped(CV_UDP_DROP_SOURCE) == 2);
    TURN_UNTIL(g, dropped(CV_UDP_DROP_EGRESS) == 1);
    end_control();
    /* Stated: enforced from the start. */
    stated[5] = (char)(port >> 8);
    stated[6] = (char)port;
    T_INT_EQ(associate(stated, 7), 0);
    SEND(other, TO_1234 "x");
    SEND(foreign, TO_1234 "x");
    SEND(fd, TO_1234 "x");
    TURN_UNTIL(g, dropped(CV_UDP_DROP_EGRESS) == 2);
    T_INT_EQ(dropped(CV_UDP_DROP_SOURCE), 2); /* the kernel turned them away */
    end_control();
    close(fd);
    close(other);
    close(foreign);
    rig_free(g);
}

static void test_requests(void)
{
    g = rig_new();
    T_INT_EQ(ASSOCIATE("\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), 0);
    end_control();
    T_INT_EQ(ASSOCIATE("\x03\x01x\xff\xff"), 0);
    end_control();
    T_INT_EQ(ASSOCIATE("\x03\x00\0\0"), 0);
    end_control();
    T_INT_EQ(ASSOCIATE("\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x01\0\0"), 0); /* mapped */
    end_control();
    T_INT_EQ(alog_lines, 4);
    /* Another host's: says nothing about the client's port. */
    uint16_t port;
    int fd = udp_client("127.0.0.1:0", &port);
    T_INT_EQ(ASSOCIATE("\x01\xc6\x33\x64\x07\x01\x00"), 0);
    SEND(fd, TO_1234 "x");
    TURN_UNTIL(g, dropped(CV_UDP_DROP_EGRESS) == 1);
    end_control();
    close(fd);
    g->conf->udp = false;
    T_INT_EQ(ASSOCIATE(ANY4), 7);
    end_control();
    T_OK(log_has("listener does not carry udp"));
    g->conf->udp = true;
    T_INT_EQ(cv_ip_parse("203.0.113.9", 11, &g->conf->udp_advertise), 0);
    T_INT_EQ(ASSOCIATE(ANY4), 0);
    T_INT_EQ(at.in4.sin_addr.s_addr, htonl(0xcb007109));
    end_control();
    T_INT_EQ(cv_ip_parse("2001:db8::1", 11, &g->conf->udp_advertise), 0);
    T_INT_EQ(ASSOCIATE(ANY4), 0);
    T_INT_EQ(at.in4.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    end_control();
    rig_free(g);
}

static void test_ends(void)
{
    static char words[80000];
    struct linger reset = {.l_onoff = 1};
    g = rig_new();
    T_INT_EQ(ASSOCIATE(ANY4), 0);
    shutdown(control, SHUT_WR);
    end_control();
    T_OK(log_has("\"result\":\"ok\""));
    T_OK(log_has("\"message\":\"udp association\""));

    T_INT_EQ(ASSOCIATE(ANY4), 0);
    T_INT_EQ(setsockopt(control, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    end_control();
    T_OK(log_has("connection reset by one side"));

    /* A few words are ignored, many are not. */
    T_INT_EQ(ASSOCIATE(ANY4), 0);
    SAY(control, "hello?");
    rig_settle(g);
    T_INT_EQ(g->w->n_sessions, 1);
    for (int64_t end = cv_clock_mono_ms() + 10000;
         g->w->n_sessions == 1 && cv_clock_mono_ms() < end;) {
        (void)send(control, words, sizeof(words), MSG_NOSIGNAL);
        cv_loop_turn(g->w->loop, 5);
    }
    end_control();
    T_OK(log_has("\"failure_stage\":\"splice\""));

    T_INT_EQ(ASSOCIATE(ANY4), 0);
    cv_session_kill_all(g->w, CV_E_KILLED);
    end_control();
    T_OK(log_has("ended by an operator"));
    rig_free(g);
}

static void test_permits(void)
{
    g = rig_new();
    rig_policy(g, "{\"schema_version\":1,\"version\":8,\"users\":{\"u\":{\"password\":\"p\","
                  "\"policy\":\"p\",\"max_connections\":1}},\"routing_policies\":{\"p\":{}}}");
    T_INT_EQ(ASSOCIATE(ANY4), 0);
    int first = control;
    T_INT_EQ(ASSOCIATE(ANY4), 2);
    close(control);
    TURN_UNTIL(g, rig_refused(g, CV_STAGE_LIMIT) == 1);
    control = first;
    end_control();
    T_INT_EQ(ASSOCIATE(ANY4), 0);
    end_control();
    rig_free(g);
}

int main(void)
{
    T_RUN(test_life);
    T_RUN(test_source);
    T_RUN(test_requests);
    T_RUN(test_ends);
    T_RUN(test_permits);
    return t_done();
}

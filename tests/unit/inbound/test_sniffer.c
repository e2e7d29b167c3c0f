/* A sniffer beside a session that goes nowhere; time is moved by the test. */
#include "inbound/sniffer.h"

#include "../proto/hello_samples.h"
#include "inbound_util.h"

void cv_http_serve(const struct cv_inbound *in)
{
    cv_stream_close(in->stream, false);
}

struct bench {
    struct rig *g;
    struct cv_session s;
    struct cv_sniffer *sn;
    struct cv_stream *stream;
    int fd;
    int timeouts;
};

static void on_kill(struct cv_session *s, int err)
{
}

static const struct cv_session_ops ops = {.kill = on_kill};

static void on_timeout(void *arg)
{
    struct bench *b = arg;
    b->timeouts++;
}

static void begin(struct bench *b, bool keep, uint32_t timeout_ms, uint32_t max)
{
    static const struct cv_endpoint client = {.port = 1};
    int fds[2];
    struct cv_sniff_conf conf = {CV_SNIFF_ROUTE, timeout_ms, max};
    *b = (struct bench){.g = rig_new()};
    rig_pair(fds);
    b->stream = rig_adopt(b->g, fds[0]);
    b->fd = fds[1];
    cv_session_begin(&b->s, b->g->w, &ops, "test", b->g->conf->stats, &client);
    T_INT_EQ(cv_sniffer_new(&b->s, &conf, keep, on_timeout, b, &b->sn), 0);
}

static uint64_t counted(struct bench *b, enum cv_sniff_outcome o)
{
    return cv_counter_get(&b->g->conf->stats->sniff[o]);
}

static void end(struct bench *b)
{
    cv_sniffer_free(b->sn);
    cv_session_end(&b->s);
    cv_stream_close(b->stream, false);
    close(b->fd);
    rig_free(b->g);
}

/* Read from a stream, piece by piece; all bytes come back. */
static void test_read(void)
{
    struct bench b;
    begin(&b, true, 5000, 16384);
    T_INT_EQ(cv_sniffer_first_byte(b.sn), -1);
    for (size_t at = 0; at < sizeof(hello_curl); at += 100) {
        T_INT_EQ(cv_sniffer_read(b.sn, b.stream), CV_E_MORE);
        T_INT_EQ(b.s.sniff, CV_SNIFF_NONE);
        say(b.fd, hello_curl + at, CV_MIN(sizeof(hello_curl) - at, (size_t)100));
        rig_settle(b.g);
    }
    SAY(b.fd, "tail"); /* is read along */
    T_INT_EQ(cv_sniffer_read(b.sn, b.stream), 0);
    T_INT_EQ(cv_sniffer_read(b.sn, b.stream), 0);
    T_INT_EQ(cv_sniffer_first_byte(b.sn), 0x16);
    T_INT_EQ(b.s.sniff, CV_SNIFF_TLS);
    T_STR_EQ(b.s.sniffed_host->s, "curl.example");
    T_INT_EQ(cv_timers_count(cv_loop_timers(b.g->w->loop)), 0);
    size_t len;
    uint8_t *p = cv_sniffer_take(b.sn, &len);
    T_REQUIRE(len == sizeof(hello_curl) + 4);
    T_MEM_EQ(p, hello_curl, sizeof(hello_curl));
    T_MEM_EQ(p + sizeof(hello_curl), "tail", 4);
    cv_free(p);
    p = cv_sniffer_take(b.sn, &len);
    T_OK(p == NULL && len == 0);
    T_INT_EQ(counted(&b, CV_SNIFF_TLS), 1);
    end(&b);
    T_OK(log_has("\"sniffed_host\":\"curl.example\",\"sniff_protocol\":\"tls\","
                 "\"sniff_outcome\":\"matched\""));
}

/* The time limit settles it once; bytes that come later are kept and change nothing. */
static void test_timeout(void)
{
    struct bench b;
    begin(&b, true, 1000, 16384);
    T_INT_EQ(cv_sniffer_add(b.sn, "GET / HT", 8), CV_E_MORE);
    cv_timers_advance(cv_loop_timers(b.g->w->loop), cv_loop_now(b.g->w->loop) + 999);
    T_INT_EQ(b.timeouts, 0);
    cv_timers_advance(cv_loop_timers(b.g->w->loop), cv_loop_now(b.g->w->loop) + 1001);
    T_INT_EQ(b.timeouts, 1);
    T_INT_EQ(b.s.sniff, CV_SNIFF_TIMEOUT);
    T_OK(b.s.sniffed_host == NULL);
    T_INT_EQ(cv_sniffer_add(b.sn, "TP/1.1\r\nHost: a\r\n\r\n", 19), 0);
    T_INT_EQ(b.s.sniff, CV_SNIFF_TIMEOUT);
    size_t len;
    uint8_t *p = cv_sniffer_take(b.sn, &len);
    T_INT_EQ(len, 27);
    cv_free(p);
    T_INT_EQ(counted(&b, CV_SNIFF_TIMEOUT), 1);
    T_INT_EQ(counted(&b, CV_SNIFF_HTTP), 0);
    end(&b);
}

/* What was read before is kept however long it is; what is read here is bounded. */
static void test_limit(void)
{
    static uint8_t many[100000] = "GET /";
    struct bench b;
    size_t len;
    memset(many + 5, 'a', sizeof(many) - 5);
    begin(&b, true, 0, 1000);
    T_INT_EQ(cv_sniffer_add(b.sn, many, sizeof(many)), 0);
    T_INT_EQ(b.s.sniff, CV_SNIFF_LIMIT);
    uint8_t *p = cv_sniffer_take(b.sn, &len);
    T_INT_EQ(len, sizeof(many));
    T_MEM_EQ(p, many, sizeof(many));
    cv_free(p);
    end(&b);

    begin(&b, true, 0, 1000);
    say(b.fd, many, 5000);
    T_INT_EQ(cv_sniffer_read(b.sn, b.stream), 0);
    T_INT_EQ(b.s.sniff, CV_SNIFF_LIMIT);
    p = cv_sniffer_take(b.sn, &len);
    T_INT_EQ(len, 1000);
    cv_free(p);
    end(&b);

    /* A hello that ends just there is whole. */
    begin(&b, true, 0, sizeof(hello_curl));
    T_INT_EQ(cv_sniffer_add(b.sn, hello_curl, sizeof(hello_curl)), 0);
    T_INT_EQ(b.s.sniff, CV_SNIFF_TLS);
    end(&b);
    begin(&b, true, 0, sizeof(hello_curl) - 1);
    T_INT_EQ(cv_sniffer_add(b.sn, hello_curl, sizeof(hello_curl)), 0);
    T_INT_EQ(b.s.sniff, CV_SNIFF_LIMIT);
    end(&b);
}

static void test_ends(void)
{
    struct bench b;
    begin(&b, true, 5000, 1000); /* it says nothing and ends */
    shutdown(b.fd, SHUT_WR);
    T_INT_EQ(cv_sniffer_read(b.sn, b.stream), CV_E_CANCELED);
    T_INT_EQ(b.s.sniff, CV_SNIFF_NONE);
    end(&b);
    T_OK(log_has("\"sniff_outcome\":\"incomplete\""));

    begin(&b, true, 5000, 1000); /* it says something and ends */
    SAY(b.fd, "GET");
    rig_settle(b.g);
    T_INT_EQ(cv_sniffer_read(b.sn, b.stream), CV_E_MORE);
    shutdown(b.fd, SHUT_WR);
    rig_settle(b.g);
    T_INT_EQ(cv_sniffer_read(b.sn, b.stream), 0);
    T_INT_EQ(b.s.sniff, CV_SNIFF_INCOMPLETE);
    end(&b);
}

/* Nothing is kept: a hello in one piece is never copied, one in pieces only until it is known. */
static void test_observe(void)
{
    struct bench b;
    size_t len;
    begin(&b, false, 5000, 16384);
    T_INT_EQ(cv_sniffer_add(b.sn, hello_python, sizeof(hello_python)), 0);
    T_INT_EQ(b.s.sniff, CV_SNIFF_TLS);
    T_INT_EQ(cv_sniffer_add(b.sn, "more", 4), 0);
    T_OK(cv_sniffer_take(b.sn, &len) == NULL);
    end(&b);

    begin(&b, false, 5000, 16384);
    for (size_t i = 0; i < sizeof(hello_python); i++)
        T_REQUIRE(cv_sniffer_add(b.sn, hello_python + i, 1) ==
                  (i + 1 < sizeof(hello_python) ? CV_E_MORE : 0));
    T_STR_EQ(b.s.sniffed_host->s, "python.example");
    T_OK(cv_sniffer_take(b.sn, &len) == NULL);
    end(&b);

    static uint8_t many[3000] = "GET /"; /* more than is looked at, in two pieces */
    memset(many + 5, 'a', sizeof(many) - 5);
    begin(&b, false, 5000, 2000);
    T_INT_EQ(cv_sniffer_add(b.sn, many, 1000), CV_E_MORE);
    T_INT_EQ(cv_sniffer_add(b.sn, many + 1000, 2000), 0);
    T_INT_EQ(b.s.sniff, CV_SNIFF_LIMIT);
    end(&b);
}

int main(void)
{
    T_RUN(test_read);
    T_RUN(test_timeout);
    T_RUN(test_limit);
    T_RUN(test_ends);
    T_RUN(test_observe);
    return t_done();
}

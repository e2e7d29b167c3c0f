#include "tunnel/tunnel.h"

#include "fakeserver.h"

#include "tap.h"

static struct cv_loop *loop;
static struct fake_server server;
static struct cv_tunnel *tunnel;
static struct cv_profile *profile;
static struct cv_tunnel_watch watch;
static unsigned states[CV_TUNNEL_FAILED + 1]; /* how often each was told */
static unsigned got_packets;
static uint8_t last_packet[2048];
static size_t last_len;

static void on_state(struct cv_tunnel_watch *w, enum cv_tunnel_state s)
{
    states[s]++;
}

static void on_input(void *arg, struct cv_pkt_in *pkts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        got_packets++;
        last_len = pkts[i].len;
        memcpy(last_packet, pkts[i].data, CV_MIN(pkts[i].len, sizeof(last_packet)));
    }
}
static void on_nothing(void *arg)
{
}
static const struct cv_pktif_user user = {
    .on_input = on_input, .on_writable = on_nothing, .on_changed = on_nothing};

static void open_tunnel(const char *more, int64_t timeout_ms)
{
    char text[8192], *why = NULL;
    struct cv_profile_error e;
    snprintf(text, sizeof(text), "client\nremote 127.0.0.1 %u udp\n<ca>\n%s</ca>\n%s", server.port,
             fake_ca, more);
    memset(states, 0, sizeof(states));
    got_packets = 0;
    if (cv_profile_parse(text, strlen(text), NULL, false, &e, &profile) != 0) {
        printf("# %s\n", e.text);
        abort();
    }
    struct cv_tunnel_conf conf = {.name = "t",
                                  .profile = profile,
                                  .username = "me",
                                  .password = "secret",
                                  .connect_timeout_ms = timeout_ms};
    if (cv_tunnel_new(loop, &conf, &why, &tunnel) != 0) {
        printf("# %s\n", why);
        abort();
    }
    watch.cb = on_state;
    cv_tunnel_watch(tunnel, &watch);
    cv_pktif_attach(cv_tunnel_pktif(tunnel), &user, NULL);
}

static void begin(const char *more)
{
    loop = test_loop();
    fake_begin(&server, loop);
    open_tunnel(more, 20000);
}

static void finish(void)
{
    cv_pktif_detach(cv_tunnel_pktif(tunnel));
    cv_tunnel_unwatch(&watch);
    cv_tunnel_free(tunnel);
    cv_loop_turn(loop, 0);
    fake_end(&server);
    cv_loop_turn(loop, 0);
    cv_profile_free(profile);
    test_loop_end(loop);
}

#define UP() (cv_tunnel_state(tunnel) == CV_TUNNEL_UP)

static size_t send_packet(size_t len)
{
    static uint8_t data[2000];
    memset(data, 0x5a, sizeof(data));
    data[0] = 0x45;
    struct cv_pkt_out pkt = {.iov = {{data, 20}, {data + 20, len - 20}}, .iovcnt = 2, .len = len};
    return cv_pktif_send(cv_tunnel_pktif(tunnel), &pkt, 1);
}

/* Send until one comes back: datagrams may be lost. */
static void echo(size_t len)
{
    unsigned before = got_packets;
    int64_t end = cv_clock_mono_ms() + 60000;
    while (got_packets == before && cv_clock_mono_ms() < end) {
        T_OK(send_packet(len) != 0);
        cv_loop_turn(loop, 50);
    }
    T_OK(got_packets > before && last_len == len && last_packet[0] == 0x45 &&
         last_packet[len - 1] == 0x5a);
}

static void test_up_and_echo(void)
{
    begin("");
    T_INT_EQ(send_packet(100), CV_PKTIF_DOWN);
    cv_tunnel_start(tunnel);
    T_INT_EQ(cv_tunnel_state(tunnel), CV_TUNNEL_CONNECTING);
    TURN_UNTIL(loop, UP());
    const struct cv_tunnel_net *net = cv_tunnel_net(tunnel);
    char text[CV_IP_STRLEN];
    T_STR_EQ(cv_ip_format(&net->ip4, text), "10.1.0.2");
    T_OK(net->n_dns == 1 && net->generation == 1 && net->ip6.family == CV_AF_NONE);
    T_INT_EQ(cv_tunnel_pktif(tunnel)->mss_max, 1400);
    T_STR_EQ(server.user, "me");
    T_STR_EQ(server.password, "secret");
    T_OK(strstr(server.info, "IV_PROTO=414\n") != NULL);
    echo(100);
    echo(1440);
    struct cv_tunnel_stats *s = cv_tunnel_stats(tunnel);
    T_OK(cv_counter_get(&s->in_packets) >= 2 && cv_counter_get(&s->out_bytes) >= 1540);
    T_OK(cv_gauge_get(&s->key_since_ms) > 0 && cv_counter_get(&s->ups) == 1);
    cv_tunnel_stop(tunnel);
    T_INT_EQ(cv_tunnel_state(tunnel), CV_TUNNEL_DOWN);
    T_INT_EQ(send_packet(100), CV_PKTIF_DOWN);
    TURN_UNTIL(loop, server.exits > 0);
    T_OK(states[CV_TUNNEL_DOWN] == 1 && states[CV_TUNNEL_UP] == 1);
    finish();
}

/* A server without negotiation, by the PRF, CBC and DATA_V1. */
static void test_old_server(void)
{
    begin("cipher AES-128-CBC\nauth SHA256\n");
    server.cipher = "AES-128-CBC";
    server.auth = "SHA256";
    server.peer_id = -1;
    server.their_options = "V4,dev-type tun,cipher AES-128-CBC,auth SHA256,keysize 128,tls-server";
    server.push = "PUSH_REPLY,ping 3,ifconfig 10.1.0.5 10.1.0.6,push-continuation 2";
    server.push2 = "PUSH_REPLY,dhcp-option DNS 8.8.8.8,push-continuation 1";
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, UP());
    echo(1000);
    T_INT_EQ(cv_tunnel_net(tunnel)->n_dns, 1);
    finish();
}

static void test_exporter_and_loss(void)
{
    begin("");
    server.ekm = true;
    server.lose = 15;
    server.push = "PUSH_REPLY,ifconfig 10.1.0.2 255.255.255.0,topology subnet,peer-id 3,cipher "
                  "AES-256-GCM,key-derivation tls-ekm,protocol-flags cc-exit tls-ekm";
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, UP());
    echo(500);
    server.lose = 0;
    cv_tunnel_stop(tunnel);
    TURN_UNTIL(loop, server.exits > 0);
    T_STR_EQ(server.last_text, "EXIT");
    finish();
}

static void test_wrong_password(void)
{
    begin("");
    server.answer = "AUTH_FAILED,no such user";
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, cv_tunnel_state(tunnel) == CV_TUNNEL_FAILED);
    const struct cv_tunnel_error *e = cv_tunnel_last_error(tunnel);
    T_INT_EQ(e->err, CV_E_AUTH);
    T_OK(strstr(e->text, "no such user") != NULL);
    /* It may be tried again by hand. */
    server.answer = NULL;
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, UP());
    finish();
}

static void test_untrusted(void)
{
    static const struct {
        const char *more;
        bool good;
    } cases[] = {
        {"verify-x509-name fake.example name\n", true},
        {"verify-x509-name fake. name-prefix\n", true},
        {"verify-x509-name 'C=JP, CN=fake.example'\n", true},
        {"remote-cert-tls server\n", true},
        {"remote-cert-eku serverAuth\n", true},
        {"verify-x509-name other.example name\n", false},
        {"verify-x509-name 'C=JP, CN=fake'\n", false},
        {"remote-cert-eku clientAuth\n", false},
        {"peer-fingerprint "
         "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n",
         false},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        begin(cases[i].more);
        cv_tunnel_start(tunnel);
        TURN_UNTIL(loop,
                   cv_tunnel_state(tunnel) == (cases[i].good ? CV_TUNNEL_UP : CV_TUNNEL_FAILED));
        if (!cases[i].good) {
            T_INT_EQ(cv_tunnel_last_error(tunnel)->err, CV_E_TLS);
            T_INT_EQ(server.user[0], '\0'); /* no password was told */
        }
        finish();
    }
}

/* Both sides renegotiate, again and again; packets go on. */
static void test_renegotiation(void)
{
    begin("reneg-pkts 6\n");
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, UP());
    struct cv_tunnel_stats *s = cv_tunnel_stats(tunnel);
    for (int i = 0; i < 8; i++)
        echo(200);
    TURN_UNTIL(loop, cv_counter_get(&s->renegotiations) == 1);
    echo(200);
    /* The server begins. */
    struct fake_slot *slot = fake_slot_open(&server, 2, CV_WIRE_SOFT_RESET);
    fake_pump(&server, slot);
    TURN_UNTIL(loop, cv_counter_get(&s->renegotiations) == 2);
    T_INT_EQ(server.newest, 2);
    echo(300);
    /* The server speaks on the new key at once, and old ones are still good. */
    server.newest = 1;
    echo(300);
    T_INT_EQ(states[CV_TUNNEL_UP], 1);
    finish();
}

static void test_restart(void)
{
    begin("connect-retry 1\n");
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, UP());
    fake_say(&server, "RESTART,shutting down");
    TURN_UNTIL(loop, states[CV_TUNNEL_RECONNECTING] == 1);
    T_INT_EQ(send_packet(100), CV_PKTIF_DOWN);
    TURN_UNTIL(loop, UP());
    T_INT_EQ(cv_tunnel_net(tunnel)->generation, 1); /* the same address: what was open goes on */
    server.push =
        "PUSH_REPLY,ifconfig 10.1.0.9 255.255.255.0,topology subnet,peer-id 3,cipher AES-256-GCM";
    cv_tunnel_restart(tunnel);
    TURN_UNTIL(loop, UP());
    T_INT_EQ(cv_tunnel_net(tunnel)->generation, 2);
    T_INT_EQ(server.resets, 3);
    fake_say(&server, "HALT,go away");
    TURN_UNTIL(loop, cv_tunnel_state(tunnel) == CV_TUNNEL_FAILED);
    finish();
}

static void test_ping_restart(void)
{
    begin("connect-retry 1\n");
    server.push = "PUSH_REPLY,ifconfig 10.1.0.2 255.255.255.0,topology subnet,peer-id 3,cipher "
                  "AES-256-GCM,ping 1,ping-restart 3";
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, UP());
    TURN_UNTIL(loop, server.pings >= 1);
    server.silent = true;
    TURN_UNTIL(loop, states[CV_TUNNEL_RECONNECTING] == 1);
    server.silent = false;
    TURN_UNTIL(loop, UP());
    echo(100);
    finish();
}

static void test_silence(void)
{
    loop = test_loop();
    fake_begin(&server, loop);
    server.silent = true;
    open_tunnel("", 300);
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, cv_tunnel_last_error(tunnel)->err != 0);
    T_INT_EQ(cv_tunnel_last_error(tunnel)->err, -ETIMEDOUT);
    T_INT_EQ(cv_tunnel_last_error(tunnel)->step, CV_TUNNEL_STEP_SOCKET);
    T_INT_EQ(cv_tunnel_state(tunnel), CV_TUNNEL_CONNECTING);
    finish();
}

/* A name is asked for in both families; one that is only in the second is dialled there. */
static void test_names(void)
{
    static struct cv_dns_stats stats;
    static const struct {
        const char *remote;
        bool resolves;
    } cases[] = {{"localhost", true}, {"no-such-name.invalid", false}};
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_dns *dns = NULL;
        struct cv_profile_error e;
        char text[4600], *why = NULL;
        static const char *const nobody[] = {"127.0.0.1:1"};
        struct cv_dns_conf dc = {
            .servers = nobody, .n_servers = 1, .timeout_ms = 100, .attempts = 1};
        loop = test_loop();
        fake_begin(&server, loop);
        snprintf(text, sizeof(text), "client\nremote %s %u udp\n<ca>\n%s</ca>\n", cases[i].remote,
                 server.port, fake_ca);
        T_REQUIRE(cv_dns_new(loop, &dc, &stats, &dns) == 0);
        T_REQUIRE(cv_profile_parse(text, strlen(text), NULL, false, &e, &profile) == 0);
        struct cv_tunnel_conf conf = {.name = "t", .profile = profile, .dns = dns};
        T_REQUIRE(cv_tunnel_new(loop, &conf, &why, &tunnel) == 0);
        cv_tunnel_start(tunnel);
        if (cases[i].resolves)
            TURN_UNTIL(loop, UP());
        else
            TURN_UNTIL(loop, cv_tunnel_last_error(tunnel)->err != 0);
        T_INT_EQ(cv_tunnel_last_error(tunnel)->step,
                 cases[i].resolves ? CV_TUNNEL_STEP_NONE : CV_TUNNEL_STEP_RESOLVE);
        cv_tunnel_free(tunnel);
        cv_loop_turn(loop, 0);
        cv_dns_free(dns);
        fake_end(&server);
        cv_loop_turn(loop, 0);
        cv_profile_free(profile);
        test_loop_end(loop);
    }
}

static void test_forbidden_cipher(void)
{
    begin("data-ciphers AES-128-GCM\n");
    server.push = "PUSH_REPLY,ifconfig 10.1.0.2 255.255.255.0,peer-id 3,cipher AES-128-CBC";
    cv_tunnel_start(tunnel);
    TURN_UNTIL(loop, cv_tunnel_last_error(tunnel)->err != 0);
    T_INT_EQ(cv_tunnel_last_error(tunnel)->err, CV_E_UNSUPPORTED);
    finish();
}

static void test_bad_profile(void)
{
    static const struct {
        const char *text;
        int err;
    } cases[] = {
        {"remote a\n<ca>\nno certificate\n</ca>\n", CV_E_TLS},
        {"remote a\n<ca>\nx\n</ca>\n<tls-crypt>\nno key\n</tls-crypt>\n", CV_E_INVALID},
    };
    loop = test_loop();
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_profile_error e;
        struct cv_tunnel *t = NULL;
        char *why = NULL;
        T_REQUIRE(
            cv_profile_parse(cases[i].text, strlen(cases[i].text), NULL, false, &e, &profile) == 0);
        struct cv_tunnel_conf conf = {.name = "t", .profile = profile};
        T_INT_EQ(cv_tunnel_new(loop, &conf, &why, &t), cases[i].err);
        T_OK(why != NULL && t == NULL);
        cv_free(why);
        cv_profile_free(profile);
    }
    test_loop_end(loop);
}

int main(void)
{
    fake_cert_begin();
    srand(1);
    T_RUN(test_up_and_echo);
    T_RUN(test_old_server);
    T_RUN(test_exporter_and_loss);
    T_RUN(test_wrong_password);
    T_RUN(test_untrusted);
    T_RUN(test_renegotiation);
    T_RUN(test_restart);
    T_RUN(test_ping_restart);
    T_RUN(test_silence);
    T_RUN(test_names);
    T_RUN(test_forbidden_cipher);
    T_RUN(test_bad_profile);
    fake_cert_end();
    return t_done();
}

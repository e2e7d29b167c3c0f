#include <errno.h>
#include <string.h>

#include "app/command.h"
#include "app/tunnelfetch.h"
#include "app/tunnelprobe.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/secret.h"
#include "net/dns.h"
#include "tunnel/tunnel.h"

#include "common/poison.h"

#define TIMEOUT_MS   30000
#define PASSWORD_MAX 4096

/* One run of 'culvert tunnel test'. */
struct test {
    const struct cv_cli_call *call;
    struct cv_loop *loop;
    struct cv_tunnel *tunnel;
    struct cv_tunnel_watch watch;
    struct cv_timer limit;
    struct cv_tunnelprobe *probe; /* owned; NULL */
    struct cv_tunnelfetch *fetch; /* owned; NULL */
    struct cv_tunnelfetch_url url;
    struct cv_ip ping;
    int64_t start_us, last_us;
    int64_t watch_ms; /* how long to go on; 0 = not */
    unsigned replies;
    bool wants_ping, wants_url, resolved, was_up;
    struct cv_timer watch_end;
    struct cv_task fetch_task;
    int code;
};

/* ---- lines ---- */

static void line(struct test *t, const char *what, const char *detail)
{
    int64_t now = cv_clock_mono_us();
    fprintf(t->call->out, "%-8s ok %8.1f ms  %s\n", what, (double)(now - t->last_us) / 1000,
            detail);
    fflush(t->call->out);
    t->last_us = now;
}

static void finish(struct test *t, int code)
{
    t->code = code;
    cv_loop_stop(t->loop);
}

/* What to look at first when a step fails. */
static const char *advice(const struct cv_tunnel_error *e)
{
    switch (e->step) {
    case CV_TUNNEL_STEP_NONE:
    case CV_TUNNEL_STEP_RESOLVE:
        return e->err == -ECONNREFUSED
                   ? "no server listens there: is the port or protocol another one?"
               : e->err == -ETIMEDOUT
                   ? "the address does not answer: a wrong address, or a firewall"
                   : "check the remote's name and this machine's network";
    case CV_TUNNEL_STEP_SOCKET:
        return e->err == -ETIMEDOUT || e->err == -EPIPE
                   ? "the server does not answer OpenVPN: a wrong port or protocol, a wrong or "
                     "missing "
                     "tls-auth/tls-crypt key or key-direction, or something on the way that drops "
                     "it"
                   : "no server listens there: is the port or protocol another one?";
    case CV_TUNNEL_STEP_RESET:
        return e->err == CV_E_TLS
                   ? "compare 'ca', 'verify-x509-name', 'tls-version-min' and the clock "
                     "of this machine with the server"
                   : "large packets may be lost on the way, or the server refuses the "
                     "client certificate";
    case CV_TUNNEL_STEP_TLS:
    case CV_TUNNEL_STEP_KEYS:
        return e->err == CV_E_AUTH ? "check user and password" : "the server's log tells more";
    default:
        return "the server's log tells more";
    }
}

static void tell_failure(struct test *t)
{
    struct cv_tunnel_error e = *cv_tunnel_last_error(t->tunnel);
    if (e.err == 0) { /* the time is over in the middle of a step */
        e.err = -ETIMEDOUT;
        e.step = (enum cv_tunnel_step)cv_gauge_get(&cv_tunnel_stats(t->tunnel)->step);
        snprintf(e.text, sizeof(e.text), "no answer in time");
    }
    /* The step that was reached last is good; the next one failed. */
    enum cv_tunnel_step failed = e.step < CV_TUNNEL_STEP_UP ? e.step + 1 : e.step;
    const char *name = cv_tunnel_step_name(failed);
    fprintf(t->call->out, "%-8s FAILED  %s\n", name, e.text);
    fprintf(t->call->err, "culvert: tunnel failed at '%s': %s\nhint: %s\n", name, e.text,
            advice(&e));
}

/* ---- events ---- */

static void on_step(void *arg, enum cv_tunnel_step step, const char *detail)
{
    struct test *t = arg;
    line(t, cv_tunnel_step_name(step), detail);
}

static void on_fetch(void *arg, int err, int status, uint64_t bytes)
{
    struct test *t = arg;
    char text[96];
    if (err != 0) {
        bool dns = !t->resolved && !cv_host_is_ip(&t->url.target.host);
        const char *step = dns ? "dns" : "fetch";
        fprintf(t->call->out, "%-8s FAILED  %s\n", step, cv_err_text(err));
        fprintf(t->call->err, "culvert: tunnel failed at '%s': %s\nhint: the tunnel is up; %s\n",
                step, cv_err_text(err),
                dns ? "do the DNS servers that were pushed answer, or were none pushed?"
                    : "does the URL answer, and may this user reach it through the server?");
        finish(t, CV_CLI_EXIT_FAILED);
        return;
    }
    snprintf(text, sizeof(text), "HTTP status %d, %llu bytes", status, (unsigned long long)bytes);
    line(t, "fetch", text);
    finish(t, 0);
}

static void on_dns(void *arg, const struct cv_ip *ip)
{
    struct test *t = arg;
    char text[CV_IP_STRLEN], detail[CV_IP_STRLEN + 300];
    snprintf(detail, sizeof(detail), "%s is %s", t->url.target.host.name, cv_ip_format(ip, text));
    line(t, "dns", detail);
    t->resolved = true;
}

/* What there is to do through the tunnel is done, but for the URL. */
static void fetch_or_finish(struct test *t)
{
    const struct cv_tunnel_net *net = cv_tunnel_net(t->tunnel);
    struct cv_net_addresses own = {.ip4 = net->ip4, .ip6 = net->ip6};
    if (!t->wants_url) {
        finish(t, 0);
        return;
    }
    cv_tunnelprobe_free(t->probe);
    t->probe = NULL;
    t->wants_ping = false;
    int ret = cv_tunnelfetch_start(t->loop, cv_tunnel_pktif(t->tunnel), &own, &t->url, net->dns,
                                   net->n_dns, on_dns, on_fetch, t, &t->fetch);
    if (ret != 0)
        on_fetch(t, ret, 0, 0);
}

static void on_fetch_task(struct cv_task *task)
{
    fetch_or_finish(CV_CONTAINER_OF(task, struct test, fetch_task));
}

static void on_probe(void *arg, int err, int64_t rtt_us)
{
    struct test *t = arg;
    char text[64];
    if (err != 0) {
        fprintf(t->call->out, "%-8s FAILED  no echo reply\n", "ping");
        fprintf(t->call->err,
                "culvert: tunnel failed at 'ping': no echo reply\nhint: the tunnel is up, "
                "but packets do not come back: does the target answer pings?\n");
        finish(t, CV_CLI_EXIT_FAILED);
        return;
    }
    if (t->replies++ == 0) {
        snprintf(text, sizeof(text), "round trip %.1f ms", (double)rtt_us / 1000);
        line(t, "ping", text);
        if (!t->wants_url)
            cv_loop_timer_stop(t->loop, &t->limit);
    }
    /* Not from within the probe's own call. */
    if (t->watch_ms == 0)
        cv_loop_next(t->loop, &t->fetch_task);
}

/* The time of watching is over: good if the tunnel is up and answers came. */
static void on_watch_end(struct cv_timer *timer)
{
    struct test *t = CV_CONTAINER_OF(timer, struct test, watch_end);
    const struct cv_tunnel_stats *s = cv_tunnel_stats(t->tunnel);
    char text[160];
    bool good = cv_tunnel_state(t->tunnel) == CV_TUNNEL_UP && (!t->wants_ping || t->replies > 0);
    snprintf(text, sizeof(text),
             "replies %u of %u, connections %llu, renegotiations %llu, state %s", t->replies,
             t->probe != NULL ? cv_tunnelprobe_sent(t->probe) : 0,
             (unsigned long long)cv_counter_get(&s->ups),
             (unsigned long long)cv_counter_get(&s->renegotiations),
             cv_tunnel_state_name(cv_tunnel_state(t->tunnel)));
    if (good)
        line(t, "watch", text);
    else
        fprintf(t->call->out, "%-8s FAILED  %s\n", "watch", text);
    finish(t, good ? 0 : CV_CLI_EXIT_FAILED);
}

static int start_probe(struct test *t)
{
    const struct cv_ip *own = &cv_tunnel_net(t->tunnel)->ip4;
    if (t->probe != NULL) {
        cv_tunnelprobe_set_from(t->probe, own);
        return 0;
    }
    if (!t->wants_ping)
        return 0;
    return cv_tunnelprobe_start(t->loop, cv_tunnel_pktif(t->tunnel), own, &t->ping, t->watch_ms > 0,
                                on_probe, t, &t->probe);
}

static void on_up(struct test *t)
{
    int ret = start_probe(t);
    if (ret != 0)
        fprintf(t->call->err, "culvert: %s\n", cv_err_text(ret));
    if (ret != 0)
        finish(t, CV_CLI_EXIT_FAILED);
    else if (!t->wants_ping && t->watch_ms == 0 && t->fetch == NULL)
        fetch_or_finish(t);
    if (ret != 0 || t->wants_url)
        return;
    if (!t->was_up && t->watch_ms > 0)
        cv_loop_timer(t->loop, &t->watch_end, t->watch_ms);
    if (!t->wants_ping && t->watch_ms > 0)
        cv_loop_timer_stop(t->loop, &t->limit);
    t->was_up = true;
}

static void on_state(struct cv_tunnel_watch *w, enum cv_tunnel_state state)
{
    struct test *t = CV_CONTAINER_OF(w, struct test, watch);
    if (t->was_up) {
        fprintf(t->call->out, "%-8s %s: %s\n", "state", cv_tunnel_state_name(state),
                state == CV_TUNNEL_UP ? "packets travel again"
                                      : cv_tunnel_last_error(t->tunnel)->text);
        fflush(t->call->out);
    }
    if (state == CV_TUNNEL_FAILED) {
        tell_failure(t);
        finish(t, CV_CLI_EXIT_FAILED);
    } else if (state == CV_TUNNEL_UP) {
        on_up(t);
    }
}

static void on_limit(struct cv_timer *timer)
{
    struct test *t = CV_CONTAINER_OF(timer, struct test, limit);
    if (t->fetch != NULL)
        on_fetch(t, -ETIMEDOUT, 0, 0);
    else if (cv_tunnel_state(t->tunnel) == CV_TUNNEL_UP)
        on_probe(t, -ETIMEDOUT, 0);
    else
        tell_failure(t);
    finish(t, CV_CLI_EXIT_FAILED);
}

/* ---- the whole ---- */

static int load_password(const struct cv_cli_call *call, char **ret)
{
    const char *path = cv_cli_value(call, "password-file");
    size_t len = 0;
    *ret = NULL;
    if (path == NULL)
        return 0;
    int err = cv_file_read(path, PASSWORD_MAX, ret, &len);
    if (err != 0)
        fprintf(call->err, "culvert: %s cannot be read: %s\n", path, cv_err_text(err));
    else
        (*ret)[strcspn(*ret, "\r\n")] = '\0';
    return err;
}

static int load_profile(const struct cv_cli_call *call, struct cv_profile **ret)
{
    struct cv_profile_error e;
    char text[600];
    int err = cv_profile_load(call->args[1], cv_cli_is_set(call, "strict"), &e, ret);
    if (err != 0) {
        fprintf(call->err, "culvert: %s\n",
                cv_profile_error_format(&e, call->args[1], text, sizeof(text)));
        return err;
    }
    for (size_t i = 0; i < (*ret)->n_notes; i++)
        fprintf(call->out, "%-8s line %u: %s\n", "note", (*ret)->notes[i].line,
                (*ret)->notes[i].text);
    return 0;
}

static int run(struct test *t, const struct cv_tunnel_conf *conf, int64_t timeout_ms)
{
    char *why = NULL;
    int ret = cv_tunnel_new(t->loop, conf, &why, &t->tunnel);
    if (ret != 0) {
        fprintf(t->call->err, "culvert: %s\n", why != NULL ? why : cv_err_text(ret));
        cv_free(why);
        return CV_CLI_EXIT_FAILED;
    }
    t->code = CV_CLI_EXIT_FAILED;
    t->watch.cb = on_state;
    t->fetch_task.fn = on_fetch_task;
    cv_timer_init(&t->limit, on_limit);
    cv_timer_init(&t->watch_end, on_watch_end);
    cv_loop_timer(t->loop, &t->limit, timeout_ms);
    cv_tunnel_set_step_cb(t->tunnel, on_step, t);
    cv_tunnel_watch(t->tunnel, &t->watch);
    t->last_us = t->start_us = cv_clock_mono_us();
    cv_tunnel_start(t->tunnel);
    cv_loop_run(t->loop);
    cv_loop_timer_stop(t->loop, &t->limit);
    cv_loop_timer_stop(t->loop, &t->watch_end);
    cv_tunnelprobe_free(t->probe);
    cv_tunnelfetch_free(t->fetch);
    cv_tunnel_unwatch(&t->watch);
    cv_tunnel_free(t->tunnel);
    cv_loop_turn(t->loop, 0);
    if (t->code == 0)
        fprintf(t->call->out, "%-8s ok %8.1f ms  in all\n", "tunnel",
                (double)(cv_clock_mono_us() - t->start_us) / 1000);
    return t->code;
}

/* False: it is none, and that was said. Not given: as it was. */
static bool duration(const struct cv_cli_call *call, const char *option, int64_t *ms)
{
    const char *text = cv_cli_value(call, option);
    if (text == NULL || (cv_duration_parse(text, ms) == 0 && *ms > 0))
        return true;
    fprintf(call->err, "culvert: '%s' is no duration for --%s, wanted for example 20s\n", text,
            option);
    return false;
}

int cv_command_tunnel(const struct cv_cli_call *call)
{
    struct test t = {.call = call};
    struct cv_profile *profile = NULL;
    struct cv_dns *dns = NULL;
    static struct cv_dns_stats dns_stats;
    char *password = NULL;
    const char *ping = cv_cli_value(call, "ping");
    int64_t timeout_ms = TIMEOUT_MS;
    int code = CV_CLI_EXIT_FAILED;
    if (strcmp(call->args[0], "test") != 0) {
        fprintf(call->err, "culvert: unknown word '%s', wanted 'tunnel test PROFILE'\n",
                call->args[0]);
        return CV_CLI_EXIT_USAGE;
    }
    if (!duration(call, "timeout", &timeout_ms) || !duration(call, "watch", &t.watch_ms))
        return CV_CLI_EXIT_USAGE;
    t.wants_ping = ping != NULL;
    if (ping != NULL &&
        (cv_ip_parse(ping, strlen(ping), &t.ping) != 0 || t.ping.family != CV_AF_IP4)) {
        fprintf(call->err, "culvert: '%s' is no IPv4 address\n", ping);
        return CV_CLI_EXIT_USAGE;
    }
    const char *url = cv_cli_value(call, "url");
    t.wants_url = url != NULL;
    if (url != NULL && (t.watch_ms > 0 || cv_tunnelfetch_parse(url, &t.url) != 0)) {
        fprintf(call->err,
                "culvert: --url wants http://HOST[:PORT]/PATH, and no --watch beside it\n");
        return CV_CLI_EXIT_USAGE;
    }
    struct cv_dns_conf dns_conf = {.cache_size = 16};
    if (load_password(call, &password) != 0 || load_profile(call, &profile) != 0)
        goto Exit;
    int ret = cv_loop_new(&t.loop);
    if (ret == 0)
        ret = cv_dns_new(t.loop, &dns_conf, &dns_stats, &dns);
    if (ret != 0) {
        fprintf(call->err, "culvert: %s\n", cv_err_text(ret));
        goto Exit;
    }
    struct cv_tunnel_conf conf = {.name = call->args[1],
                                  .profile = profile,
                                  .username = cv_cli_value(call, "username"),
                                  .password = password,
                                  .connect_timeout_ms = timeout_ms,
                                  .dns = dns};
    code = run(&t, &conf, timeout_ms);
Exit:
    cv_dns_free(dns);
    if (t.loop != NULL)
        cv_loop_free(t.loop);
    cv_profile_free(profile);
    cv_secret_free(password);
    return code;
}

#include "flow/session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/hash.h"
#include "common/log.h"
#include "flow/record.h"
#include "flow/throttle.h"

#include "common/poison.h"

#define DOMAIN          "flow"
#define ID_WORKER_SHIFT 56
/* Of one turn of the loop: looking costs a microsecond, ending some ten. */
#define RECHECK_LOOKS 512
#define RECHECK_ENDS  64

static const char *const state_names[] = {
    [CV_SESSION_HANDSHAKE] = "handshake",
    [CV_SESSION_DIAL] = "dial",
    [CV_SESSION_RELAY] = "relay",
    [CV_SESSION_ENDED] = "ended",
};

void cv_session_begin(struct cv_session *s, struct cv_worker *w, const struct cv_session_ops *ops,
                      const char *protocol, struct cv_listener_stats *listener,
                      const struct cv_endpoint *client)
{
    *s = (struct cv_session){
        .ops = ops,
        .worker = w,
        .id = (uint64_t)w->index << ID_WORKER_SHIFT | w->_next_seq++,
        .state = CV_SESSION_HANDSHAKE,
        .protocol = protocol,
        .listener = listener,
        .client = *client,
        .route = -1,
        ._round = w->_recheck_round,
        .start_ms = cv_loop_now(w->loop),
    };
    cv_list_add_tail(&w->sessions, &s->_node);
    w->n_sessions++;
    cv_gauge_add(&listener->row.active, 1);
    cv_gauge_add(&w->node->stats.sessions, 1);
}

void cv_session_set_user(struct cv_session *s, struct cv_rcstr *username,
                         struct cv_account *account)
{
    struct cv_rcstr *old_name = s->username;
    struct cv_account *old_account = s->account;
    CV_ASSERT(!s->permit || account == old_account);
    s->username = cv_rcstr_ref(username);
    s->account = account != NULL ? cv_account_ref(account) : NULL;
    cv_rcstr_unref(old_name);
    cv_account_unref(old_account);
}

int cv_session_set_target(struct cv_session *s, const struct cv_target *t)
{
    struct cv_rcstr *host = cv_rcstr_new(t->host.name, t->host.name_len);
    if (host == NULL)
        return -ENOMEM;
    cv_rcstr_unref(s->target_host);
    s->target_host = host;
    s->target_port = t->port;
    return 0;
}

int cv_session_set_sniffed(struct cv_session *s, enum cv_sniff_outcome outcome,
                           const struct cv_host *host)
{
    CV_ASSERT(s->sniff == CV_SNIFF_NONE && outcome != CV_SNIFF_NONE);
    if (cv_sniff_is_match(outcome)) {
        s->sniffed_host = cv_rcstr_new(host->name, host->name_len);
        if (s->sniffed_host == NULL)
            return -ENOMEM;
    }
    s->sniff = outcome;
    cv_counter_add(&s->listener->sniff[outcome], 1);
    cv_debug("flow", "sniffed session=%016llx outcome='%s' host='%s' target='%s'",
             (unsigned long long)s->id, cv_sniff_outcome_label(outcome),
             cv_rcstr_text(s->sniffed_host), cv_rcstr_text(s->target_host));
    return 0;
}

const struct cv_host *cv_session_sniffed(const struct cv_session *s, struct cv_host *buf)
{
    const struct cv_rcstr *host = s->sniffed_host;
    if (!s->sniff_routes || host == NULL)
        return NULL;
    CV_ASSERT(host->len < sizeof(buf->name));
    *buf = (struct cv_host){.name_len = (uint8_t)host->len};
    memcpy(buf->name, host->s, host->len + 1);
    return buf;
}

void cv_session_count_up(struct cv_session *s, size_t n)
{
    cv_counter_add_owned(&s->bytes_up, n);
    cv_counter_add(&s->listener->row.bytes_up, n);
    if (s->account != NULL)
        cv_counter_add(&s->account->bytes_up, n);
    if (s->egress_stats != NULL)
        cv_counter_add(&s->egress_stats->row.bytes_up, n);
}

void cv_session_count_down(struct cv_session *s, size_t n)
{
    cv_counter_add_owned(&s->bytes_down, n);
    cv_counter_add(&s->listener->row.bytes_down, n);
    if (s->account != NULL)
        cv_counter_add(&s->account->bytes_down, n);
    if (s->egress_stats != NULL)
        cv_counter_add(&s->egress_stats->row.bytes_down, n);
}

void cv_session_count_row(struct cv_session *s, struct cv_row_stats *row, size_t up, size_t down)
{
    /* Without a row of its own the session counts into its listener and account only. */
    CV_ASSERT(s->egress_stats == NULL);
    if (up > 0) {
        cv_session_count_up(s, up);
        cv_counter_add(&row->bytes_up, up);
    }
    if (down > 0) {
        cv_session_count_down(s, down);
        cv_counter_add(&row->bytes_down, down);
    }
}

void cv_session_fail(struct cv_session *s, enum cv_stage stage, int err)
{
    if (s->err != 0 || err == 0)
        return;
    s->stage = stage;
    s->err = err;
}

static void write_line(struct cv_session *s)
{
    struct cv_worker *w = s->worker;
    if (w->alog == NULL || !cv_alog_is_on(w->node->alog))
        return;
    int64_t took_ms = cv_loop_now(w->loop) - s->start_ms;
    if (cv_record_session(&w->line, s, w->settings->node_id, cv_clock_unix_ms() / 1000, took_ms) !=
        0) {
        cv_counter_add(&w->node->stats.log_dropped, 1);
        return;
    }
    cv_alog_line(w->alog, (const char *)cv_buf_data(&w->line), cv_buf_len(&w->line));
}

static void log_end(const struct cv_session *s)
{
    cv_debug(
        "flow",
        "session ended session=%016llx user='%s' target='%s' egress='%s' stage='%s' error='%s' "
        "up=%llu down=%llu",
        (unsigned long long)s->id, cv_rcstr_text(s->username), cv_rcstr_text(s->target_host),
        cv_rcstr_text(s->outlet), cv_stage_name(s->stage),
        s->err != 0 ? cv_stage_message(s->stage, s->err) : "",
        (unsigned long long)cv_counter_get(&s->bytes_up),
        (unsigned long long)cv_counter_get(&s->bytes_down));
}

static void count_end(struct cv_session *s)
{
    cv_counter_add(&s->listener->row.sessions, 1);
    if (s->account != NULL)
        cv_counter_add(&s->account->sessions, 1);
    if (s->err == 0)
        return;
    cv_counter_add(&s->listener->row.refused[s->stage], 1);
    if (s->egress_stats != NULL)
        cv_counter_add(&s->egress_stats->row.refused[s->stage], 1);
    /* What fails after it was established was not refused. */
    if (s->account != NULL && s->outlet == NULL)
        cv_counter_add(&s->account->refused, 1);
}

static void release(struct cv_session *s)
{
    struct cv_worker *w = s->worker;
    cv_gauge_add(&s->listener->row.active, -1);
    cv_gauge_add(&w->node->stats.sessions, -1);
    if (s->outlet != NULL && s->egress_stats != NULL)
        cv_gauge_add(&s->egress_stats->row.active, -1);
    if (s->permit)
        cv_account_release(s->account);
    cv_rcstr_unref(s->username);
    cv_account_unref(s->account);
    cv_rcstr_unref(s->target_host);
    cv_rcstr_unref(s->sniffed_host);
    cv_rcstr_unref(s->policy_id);
    cv_rcstr_unref(s->decision);
    cv_egress_unref(s->egress);
    cv_rcstr_unref(s->outlet);
    cv_rcstr_unref(s->member);
    s->username = s->target_host = s->policy_id = s->decision = s->outlet = s->member = NULL;
    s->sniffed_host = NULL;
    s->account = NULL;
    s->egress = NULL;
    s->permit = false;
    s->state = CV_SESSION_ENDED;
    cv_list_del(&s->_node);
    w->n_sessions--;
    if (w->n_sessions == 0 && w->on_empty != NULL)
        w->on_empty(w);
}

void cv_session_end(struct cv_session *s)
{
    if (CV_BUG_ON_ONCE(s->state == CV_SESSION_ENDED))
        return;
    count_end(s);
    write_line(s);
    if (CV_LOG_DEBUG <= cv_log_level())
        log_end(s);
    release(s);
}

void cv_session_drop(struct cv_session *s)
{
    if (CV_BUG_ON_ONCE(s->state == CV_SESSION_ENDED))
        return;
    release(s);
}

struct cv_session *cv_session_find(struct cv_worker *w, uint64_t id)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &w->sessions) {
        struct cv_session *s = CV_CONTAINER_OF(it, struct cv_session, _node);
        if (s->id == id)
            return s;
    }
    return NULL;
}

/* A kill may end other sessions as well, and those it ends later stay linked: so the list is taken
 * off and each session put back before it is touched. */
void cv_session_kill_all(struct cv_worker *w, int err)
{
    struct cv_list todo;
    cv_list_init(&todo);
    cv_list_splice(&todo, &w->sessions);
    while (!cv_list_is_empty(&todo)) {
        struct cv_session *s = CV_CONTAINER_OF(todo.next, struct cv_session, _node);
        cv_list_del(&s->_node);
        cv_list_add_tail(&w->sessions, &s->_node);
        s->ops->kill(s, err);
    }
}

/* ---- after a change of policy or day ---- */

uint64_t cv_session_credential(const struct cv_user_def *user)
{
    struct cv_hash_key key = *cv_hash_process_key();
    key.k[0] ^= UINT64_C(0x63726564656e7469);
    uint64_t tag = cv_hash_bytes(&key, user->password->s, user->password->len);
    return tag != 0 ? tag : 1;
}

static bool is_blocked(const struct cv_session *s, const struct cv_snapshot *snapshot,
                       uint32_t user)
{
    struct cv_host host, sniffed;
    struct cv_verdict v;
    if (s->target_host == NULL || s->decision == NULL || s->state == CV_SESSION_HANDSHAKE)
        return false; /* it will be decided */
    if (cv_host_parse(s->target_host->s, s->target_host->len, &host) != 0)
        return true; /* cannot be: it is in canonical form */
    cv_decide(snapshot, user, &host, cv_session_sniffed(s, &sniffed), &v);
    return v.action == CV_ACTION_BLOCK;
}

/* 0, or why the session may not go on. */
static int recheck(const struct cv_session *s, const struct cv_snapshot *snapshot, int32_t today)
{
    if (s->account == NULL)
        return 0;
    uint32_t index = cv_snapshot_user_find(snapshot, s->account->name->s, s->account->name->len);
    if (index == CV_USER_NONE)
        return CV_E_NOTFOUND;
    const struct cv_user_def *user = cv_snapshot_user(snapshot, index);
    if (user->expire_day < today)
        return CV_E_EXPIRED;
    if (s->credential != 0 && s->credential != cv_session_credential(user))
        return CV_E_REVOKED;
    return s->worker->settings->recheck_targets && is_blocked(s, snapshot, index) ? CV_E_POLICY : 0;
}

/* Sessions that were looked at go to the end of the list, where new ones begin with the number of
 * this round: the others are at its head, whatever comes and goes in between. */
static void recheck_some(struct cv_worker *w)
{
    const struct cv_snapshot *snapshot = cv_active_get(w->node->active)->snapshot;
    int32_t today = cv_worker_today(w);
    int looks = 0, ends = 0;
    while (!cv_list_is_empty(&w->sessions)) {
        struct cv_session *s = CV_CONTAINER_OF(w->sessions.next, struct cv_session, _node);
        if (s->_round == w->_recheck_round)
            break;
        if (looks++ == RECHECK_LOOKS || ends == RECHECK_ENDS) {
            w->_rechecking = true;
            cv_loop_next(w->loop, &w->_recheck_task);
            return;
        }
        s->_round = w->_recheck_round;
        cv_list_del(&s->_node);
        cv_list_add_tail(&w->sessions, &s->_node);
        int why = recheck(s, snapshot, today);
        if (why != 0) {
            ends++;
            w->_revoked++;
            cv_counter_add(&w->node->stats.revoked, 1);
            s->ops->kill(s, why);
        }
    }
    if (w->_revoked > 0)
        cv_info(DOMAIN,
                "ended sessions that the policy does not allow any more count=%zu worker=%u",
                w->_revoked, w->index);
    w->_revoked = 0;
}

static void on_recheck(struct cv_task *task)
{
    struct cv_worker *w = CV_CONTAINER_OF(task, struct cv_worker, _recheck_task);
    w->_rechecking = false;
    recheck_some(w);
}

void cv_session_recheck(struct cv_worker *w)
{
    w->_recheck_round++;
    cv_worker_forget_today(w);
    cv_throttle_recheck(w);
    if (w->_rechecking)
        return; /* goes on with all of them */
    w->_recheck_task = (struct cv_task){.fn = on_recheck};
    recheck_some(w);
}

const char *cv_session_state_name(enum cv_session_state state)
{
    return (size_t)state < CV_ARRAY_SIZE(state_names) && state_names[state] != NULL
               ? state_names[state]
               : "";
}

static void describe_rcstr(struct cv_jsonw *w, const char *key, const struct cv_rcstr *val)
{
    if (val != NULL)
        cv_jsonw_strn(w, key, val->s, val->len);
}

/* "name:443", "[v6]:443", as people write it. */
static void describe_target(struct cv_jsonw *w, const struct cv_session *s)
{
    char text[CV_TARGET_STRLEN];
    if (s->target_host == NULL)
        return;
    bool v6 = memchr(s->target_host->s, ':', s->target_host->len) != NULL;
    snprintf(text, sizeof(text), v6 ? "[%s]:%u" : "%s:%u", s->target_host->s, s->target_port);
    cv_jsonw_str(w, "target", text);
}

void cv_session_describe(struct cv_jsonw *w, const char *key, const struct cv_session *s)
{
    char text[CV_ENDPOINT_STRLEN];
    char id[17];
    for (int i = 0; i < 16; i++)
        id[i] = "0123456789abcdef"[s->id >> (60 - 4 * i) & 15];
    id[16] = '\0';
    cv_jsonw_object(w, key);
    cv_jsonw_str(w, "id", id);
    cv_jsonw_str(w, "state", cv_session_state_name(s->state));
    cv_jsonw_str(w, "listener", s->listener->name);
    cv_jsonw_str(w, "protocol", s->protocol);
    cv_jsonw_str(w, "client", cv_endpoint_format(&s->client, text));
    describe_rcstr(w, "user", s->username);
    describe_target(w, s);
    describe_rcstr(w, "sniffed_host", s->sniffed_host);
    describe_rcstr(w, "policy_id", s->policy_id);
    if (s->route >= 0)
        cv_jsonw_int(w, "matched_route", s->route);
    describe_rcstr(w, "decision", s->decision);
    describe_rcstr(w, "egress", s->outlet);
    describe_rcstr(w, "chain_member", s->member);
    if (s->peer.ip.family != CV_AF_NONE)
        cv_jsonw_str(w, "peer", cv_endpoint_format(&s->peer, text));
    if (s->decision != NULL)
        cv_jsonw_uint(w, "snapshot_version", s->snapshot_version);
    if (s->dial_us != 0)
        cv_jsonw_int(w, "dial_us", s->dial_us);
    cv_jsonw_int(w, "age_ms", cv_loop_now(s->worker->loop) - s->start_ms);
    cv_jsonw_uint(w, "bytes_up", cv_counter_get(&s->bytes_up));
    cv_jsonw_uint(w, "bytes_down", cv_counter_get(&s->bytes_down));
    if (s->udp != NULL) {
        cv_jsonw_uint(w, "datagrams_up", cv_counter_get(&s->udp->up));
        cv_jsonw_uint(w, "datagrams_down", cv_counter_get(&s->udp->down));
        cv_jsonw_uint(w, "datagrams_dropped", cv_counter_get(&s->udp->dropped));
    }
    cv_jsonw_object_end(w);
}

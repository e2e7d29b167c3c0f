#include "flow/auth.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/secret.h"
#include "flow/backoff.h"
#include "policy/passwd.h"

#include "common/poison.h"

#define DOMAIN "auth"
/* Longer names and passwords than the protocols can carry are nobody's. */
#define NAME_MAX_LEN 1024
#define PASS_MAX_LEN 1024

/* A password being checked against one stored form on the offload threads. Logins of this worker
 * that ask the same question wait for the one answer: a browser opens dozens of connections at
 * once, and each check takes as long as a hundred connections do. */
struct check {
    struct cv_job job;
    struct cv_list node; /* in worker._checks */
    struct cv_list waiters;
    struct cv_worker *worker;   /* outlives the job */
    struct cv_account *account; /* a reference; NULL when the stored form is a decoy */
    struct cv_rcstr *stored;    /* a reference */
    int verdict;                /* of cv_passwd_verify(), written by the job */
    size_t pass_len;
    char pass[]; /* cleared before release */
};

struct cv_auth {
    struct cv_list node;        /* in check.waiters */
    struct cv_session *session; /* borrowed (outlives) */
    struct cv_backoff_key who;
    cv_auth_cb cb;
    void *arg;
    bool known; /* the user existed when the login came */
    size_t user_len;
    char user[];
};

/* Stands in for the account of an unknown user, so that it costs the same to look at. */
static const struct cv_account nobody;

/* Everything that the answer to a login depends on, as one number. 'known': the user exists, and
 * 'stored' is no decoy, which may well be the password that it is given later. */
static uint64_t login_hash(const char *user, size_t user_len, const struct cv_rcstr *stored,
                           bool known, const char *pass, size_t pass_len)
{
    struct cv_hash_key key = *cv_hash_process_key();
    key.k[0] ^= UINT64_C(0x77726f6e67706173);
    uint64_t all[5] = {
        cv_hash_bytes(&key, user, user_len),
        cv_hash_bytes(&key, stored->s, stored->len),
        cv_hash_bytes(&key, pass, pass_len),
        pass_len,
        known,
    };
    return cv_hash_bytes(&key, all, sizeof(all));
}

static bool counts_failures(const struct cv_worker *w)
{
    const struct cv_login_settings *conf = &w->settings->login;
    return w->node->backoff != NULL && (conf->failures > 0 || conf->source_failures > 0);
}

static void note_wrong(struct cv_session *s, const struct cv_backoff_key *who, uint64_t wrong)
{
    struct cv_worker *w = s->worker;
    char client[CV_ENDPOINT_STRLEN];
    if (!counts_failures(w))
        return;
    int64_t ms =
        cv_backoff_failed(w->node->backoff, &w->settings->login, who, wrong, cv_loop_now(w->loop));
    if (ms > 0)
        cv_log_limited(
            CV_LOG_WARN, DOMAIN,
            "too many wrong logins, refusing more client='%s' listener='%s' pause_ms=%lld",
            cv_endpoint_format(&s->client, client), s->listener->name, (long long)ms);
}

static int finish(struct cv_session *s, const struct cv_backoff_key *who, const struct cv_active *a,
                  uint32_t user, struct cv_account **ret_account)
{
    struct cv_worker *w = s->worker;
    if (who != NULL && counts_failures(w))
        cv_backoff_succeeded(w->node->backoff, who, cv_loop_now(w->loop));
    if (cv_snapshot_user(a->snapshot, user)->expire_day < cv_worker_today(w)) {
        cv_counter_add(&w->node->stats.auth_failed, 1);
        return CV_E_EXPIRED;
    }
    s->credential = who != NULL ? cv_session_credential(cv_snapshot_user(a->snapshot, user)) : 0;
    *ret_account = a->accounts[user];
    return 0;
}

static int refuse(struct cv_worker *w, int err)
{
    if (err == CV_E_AUTH)
        cv_counter_add(&w->node->stats.auth_failed, 1);
    return err;
}

static void check_free(struct check *c)
{
    cv_account_unref(c->account);
    cv_rcstr_unref(c->stored);
    cv_secret_clear(c->pass, c->pass_len);
    cv_free(c);
}

/* On a pool thread. */
static void on_work(struct cv_job *job)
{
    struct check *c = CV_CONTAINER_OF(job, struct check, job);
    /* Another worker may have come to the answer while this waited in the queue. */
    if (c->account != NULL && cv_account_login_known(c->account, c->stored, c->pass, c->pass_len))
        c->verdict = 0;
    else
        c->verdict = cv_passwd_verify(c->stored->s, c->stored->len, c->pass, c->pass_len);
}

/* The policy may have changed while the job ran: the password was right for this user only if the
 * form that was checked is still the stored one. */
static int conclude(struct cv_auth *a, const struct check *c, struct cv_account **ret_account)
{
    struct cv_worker *w = a->session->worker;
    if (c->verdict != 0 && c->verdict != CV_E_AUTH)
        return c->verdict;
    struct cv_active *active = cv_active_get(w->node->active);
    uint32_t user = cv_snapshot_user_find(active->snapshot, a->user, a->user_len);
    if (!a->known || c->verdict != 0)
        note_wrong(a->session, &a->who,
                   login_hash(a->user, a->user_len, c->stored, a->known, c->pass, c->pass_len));
    if (!a->known || user == CV_USER_NONE || c->verdict != 0)
        return refuse(w, CV_E_AUTH);
    const struct cv_rcstr *stored = cv_snapshot_user(active->snapshot, user)->password;
    if (!cv_ct_equal(stored->s, stored->len, c->stored->s, c->stored->len))
        return refuse(w, CV_E_AUTH);
    cv_account_login_remember(active->accounts[user], stored, c->pass, c->pass_len);
    return finish(a->session, &a->who, active, user, ret_account);
}

static void on_done(struct cv_job *job)
{
    struct check *c = CV_CONTAINER_OF(job, struct check, job);
    cv_list_del(&c->node);
    while (!cv_list_is_empty(&c->waiters)) {
        struct cv_auth *a = CV_CONTAINER_OF(c->waiters.next, struct cv_auth, node);
        cv_list_del(&a->node);
        struct cv_account *account = NULL;
        int err = conclude(a, c, &account);
        cv_auth_cb cb = a->cb;
        void *arg = a->arg;
        cv_free(a);
        cb(arg, err, account);
    }
    check_free(c);
}

static struct check *check_find(struct cv_worker *w, const struct cv_rcstr *stored,
                                const char *pass, size_t pass_len)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &w->_checks) {
        struct check *c = CV_CONTAINER_OF(it, struct check, node);
        if (c->stored->len == stored->len && memcmp(c->stored->s, stored->s, stored->len) == 0 &&
            cv_ct_equal(c->pass, c->pass_len, pass, pass_len))
            return c;
    }
    return NULL;
}

/* The check of this question: one that runs already, or a new one. */
static int check_get(struct cv_worker *w, struct cv_rcstr *stored, struct cv_account *account,
                     const char *pass, size_t pass_len, struct check **ret_check)
{
    struct check *c = check_find(w, stored, pass, pass_len);
    if (c != NULL) {
        *ret_check = c;
        return 0;
    }
    c = cv_try_zalloc(sizeof(*c) + pass_len);
    if (c == NULL)
        return -ENOMEM;
    cv_list_init(&c->node);
    cv_list_init(&c->waiters);
    c->worker = w;
    c->account = account != NULL ? cv_account_ref(account) : NULL;
    c->stored = cv_rcstr_ref(stored);
    c->verdict = CV_E_LIMIT; /* stays when the job comes back without having run */
    c->pass_len = pass_len;
    memcpy(c->pass, pass, pass_len);
    c->job.work = on_work;
    c->job.done = on_done;
    int err = cv_offload_submit(w->node->offload, w->loop, &c->job);
    if (err != 0) {
        check_free(c);
        return err;
    }
    cv_list_add_tail(&w->_checks, &c->node);
    *ret_check = c;
    return 0;
}

static struct cv_auth *auth_new(struct cv_session *s, const struct cv_backoff_key *who,
                                const char *user, size_t user_len, bool known, cv_auth_cb cb,
                                void *arg)
{
    struct cv_auth *a = cv_try_alloc(sizeof(*a) + user_len);
    if (a == NULL)
        return NULL;
    a->session = s;
    a->who = *who;
    a->cb = cb;
    a->arg = arg;
    a->known = known;
    a->user_len = user_len;
    memcpy(a->user, user, user_len);
    cv_list_init(&a->node);
    return a;
}

/* argon2id that is not known again: off to the offload threads. */
static int check_slow(struct cv_worker *w, struct cv_account *account, struct cv_rcstr *stored,
                      struct cv_auth *a, const char *pass, size_t pass_len)
{
    struct check *c;
    int err = check_get(w, stored, account, pass, pass_len, &c);
    if (err != 0) {
        if (err == CV_E_LIMIT)
            cv_counter_add(&w->node->stats.auth_queue_full, 1);
        return err;
    }
    cv_list_add_tail(&c->waiters, &a->node);
    return -EINPROGRESS;
}

/* 0 when the login is to be checked, else how it is refused. */
static int before_check(struct cv_session *s, const struct cv_backoff_key *who, uint64_t hash)
{
    struct cv_worker *w = s->worker;
    if (!counts_failures(w))
        return 0;
    if (cv_backoff_wait(w->node->backoff, &w->settings->login, who, cv_loop_now(w->loop)) > 0) {
        cv_counter_add(&w->node->stats.auth_backoff, 1);
        return CV_E_BACKOFF;
    }
    return cv_backoff_is_repeated(w->node->backoff, who, hash) ? refuse(w, CV_E_AUTH) : 0;
}

int64_t cv_auth_wait_ms(struct cv_session *s, const char *user, size_t user_len)
{
    struct cv_worker *w = s->worker;
    struct cv_backoff_key who = cv_backoff_key(&s->client.ip, user, user_len);
    return counts_failures(w)
               ? cv_backoff_wait(w->node->backoff, &w->settings->login, &who, cv_loop_now(w->loop))
               : 0;
}

int cv_auth_check(struct cv_session *s, const char *user, size_t user_len, const char *pass,
                  size_t pass_len, cv_auth_cb cb, void *arg, struct cv_account **ret_account,
                  struct cv_auth **ret_auth)
{
    struct cv_worker *w = s->worker;
    if (user_len > NAME_MAX_LEN || pass_len > PASS_MAX_LEN)
        return refuse(w, CV_E_AUTH);
    struct cv_active *active = cv_active_get(w->node->active);
    uint32_t index = cv_snapshot_user_find(active->snapshot, user, user_len);
    /* The decoy is computed for everybody: it is not the way to tell who exists. */
    struct cv_rcstr *decoy = cv_passwd_decoy(active->snapshot, user, user_len);
    struct cv_rcstr *stored =
        index != CV_USER_NONE ? cv_snapshot_user(active->snapshot, index)->password : decoy;
    struct cv_backoff_key who = cv_backoff_key(&s->client.ip, user, user_len);
    uint64_t hash = login_hash(user, user_len, stored, index != CV_USER_NONE, pass, pass_len);

    int err = before_check(s, &who, hash);
    enum cv_passwd_kind kind;
    if (err != 0)
        return err;
    if (cv_passwd_kind(stored->s, stored->len, &kind) != 0)
        return refuse(w, CV_E_AUTH); /* the compiler lets no such password through */
    if (kind == CV_PASSWD_ARGON2ID) {
        struct cv_account *account = index != CV_USER_NONE ? active->accounts[index] : NULL;
        if (cv_account_login_known(account != NULL ? account : &nobody, stored, pass, pass_len) &&
            account != NULL) {
            cv_counter_add(&w->node->stats.auth_cached, 1);
            return finish(s, &who, active, index, ret_account);
        }
        struct cv_auth *a = auth_new(s, &who, user, user_len, account != NULL, cb, arg);
        if (a == NULL)
            return -ENOMEM;
        err = check_slow(w, account, stored, a, pass, pass_len);
        if (err != -EINPROGRESS)
            cv_free(a);
        else
            *ret_auth = a;
        return err;
    }
    err = cv_passwd_verify(stored->s, stored->len, pass, pass_len);
    if (index == CV_USER_NONE && err == 0)
        err = CV_E_AUTH;
    if (err == CV_E_AUTH)
        note_wrong(s, &who, hash);
    return err == 0 ? finish(s, &who, active, index, ret_account) : refuse(w, err);
}

int cv_auth_check_as(struct cv_session *s, const struct cv_rcstr *only, const char *user,
                     size_t user_len, const char *pass, size_t pass_len, cv_auth_cb cb, void *arg,
                     struct cv_account **ret_account, struct cv_auth **ret_auth)
{
    if (only != NULL && (only->len != user_len || memcmp(only->s, user, user_len) != 0))
        return refuse(s->worker, CV_E_AUTH);
    return cv_auth_check(s, user, user_len, pass, pass_len, cb, arg, ret_account, ret_auth);
}

void cv_auth_cancel(struct cv_auth *a)
{
    if (a == NULL)
        return;
    /* The job goes on: others may wait for it, and its answer may be remembered. */
    cv_list_del(&a->node);
    cv_free(a);
}

int cv_auth_trust(struct cv_session *s, const char *user, struct cv_account **ret_account)
{
    struct cv_worker *w = s->worker;
    struct cv_active *active = cv_active_get(w->node->active);
    uint32_t index = cv_snapshot_user_find(active->snapshot, user, strlen(user));
    if (index == CV_USER_NONE)
        return refuse(w, CV_E_AUTH);
    return finish(s, NULL, active, index, ret_account);
}

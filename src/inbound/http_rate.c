/* Keeping forwarded requests to their user's rate. What is counted is what is paid for, heads and
 * framing included: a read is allowed by it, and what was sent on is taken off. */
#include "inbound/http_priv.h"

#include "common/poison.h"

static void on_turn(void *arg)
{
    cv_http_run(arg);
}

int cv_http_rate_allow(struct http_conn *c, bool up, size_t *ret_n)
{
    struct cv_throttle **t = up ? &c->work->throttle_up : &c->work->throttle_down;
    struct cv_account *account = c->super.account;

    if (*t == NULL) {
        struct cv_rate *rate = up ? &account->up : &account->down;
        if (!cv_rate_is_on(rate)) {
            *ret_n = SIZE_MAX;
            return 0;
        }
        int ret = cv_throttle_new(c->super.worker, rate, on_turn, c, t);
        if (ret != 0)
            return ret;
    }
    *ret_n = cv_throttle_allow(*t);
    return 0;
}

void cv_http_rate_moved(struct http_conn *c, bool up, size_t n)
{
    struct cv_throttle *t = up ? c->work->throttle_up : c->work->throttle_down;

    if (up)
        cv_session_count_up(&c->super, n);
    else
        cv_session_count_down(&c->super, n);
    if (t != NULL)
        cv_throttle_used(t, n);
}

void cv_http_rate_rest(struct http_conn *c)
{
    struct http_work *w = c->work;

    if (w->throttle_up != NULL)
        cv_throttle_rest(w->throttle_up);
    if (w->throttle_down != NULL)
        cv_throttle_rest(w->throttle_down);
}

bool cv_http_rate_is_waiting(const struct http_conn *c)
{
    return cv_throttle_is_waiting(c->work->throttle_up) ||
           cv_throttle_is_waiting(c->work->throttle_down);
}

void cv_http_rate_done(struct http_conn *c)
{
    struct http_work *w = c->work;

    cv_throttle_free(w->throttle_up);
    cv_throttle_free(w->throttle_down);
    w->throttle_up = w->throttle_down = NULL;
}

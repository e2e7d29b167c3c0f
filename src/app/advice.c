#include "app/advice.h"

#include <stdarg.h>
#include <string.h>

#include "egress/egress.h"
#include "policy/decide.h"

#include "common/poison.h"

struct advice {
    FILE *out;
    const char *path;
    size_t n;
};

static CV_PRINTF(2, 3) void remark(struct advice *a, const char *format, ...)
{
    va_list args;
    if (a->n++ >= CV_ADVICE_MAX)
        return;
    fprintf(a->out, "%s: warning: ", a->path);
    va_start(args, format);
    vfprintf(a->out, format, args);
    va_end(args);
    fputc('\n', a->out);
}

static void on_dead(void *arg, const char *policy, uint32_t route,
                    const struct cv_selector_match *m)
{
    remark(
        arg,
        "routing_policies.%s.routes[%u].selectors[%u]: '%s' matches no host: it is no address, no "
        "network and no name",
        policy, route, m->index, m->text);
}

static void on_backend(struct advice *a, const struct cv_egress_def *e, const struct cv_backend *b)
{
    struct cv_target server;
    if ((b->kind == CV_BACKEND_HTTP || b->kind == CV_BACKEND_SOCKS5) &&
        cv_egress_upstream_addr(b->addr, &server) != 0)
        remark(a, "egresses.%s: the address '%s' is not host:port, every connection will fail",
               cv_rcstr_text(e->id), cv_rcstr_text(b->addr));
}

static void on_listener(struct advice *a, const struct cv_snapshot *s, size_t i, const char *option,
                        const char *user)
{
    if (user[0] != '\0' && cv_snapshot_user_find(s, user, strlen(user)) == CV_USER_NONE)
        remark(a, "listeners[%zu].%s: the snapshot has no user '%s', all its clients are refused",
               i, option, user);
}

size_t cv_advice_write(FILE *out, const char *path, const struct cv_snapshot *s,
                       const char *config_path, const struct cv_config *config)
{
    struct advice a = {.out = out, .path = path};
    cv_decide_each_dead(s, on_dead, &a);
    for (uint32_t i = 0; i < cv_snapshot_n_egresses(s); i++) {
        const struct cv_egress_def *e = cv_snapshot_egress(s, i);
        for (uint32_t k = 0; k < e->n_members; k++)
            on_backend(&a, e, &e->members[k].backend);
    }
    a.path = config_path;
    for (size_t i = 0; config != NULL && i < config->listeners.n; i++) {
        on_listener(&a, s, i, "no_auth_user", config->listeners.v[i].no_auth_user);
        on_listener(&a, s, i, "identity", config->listeners.v[i].identity);
    }
    if (a.n > CV_ADVICE_MAX)
        fprintf(out, "%s: %zu more warnings are left out\n", path, a.n - CV_ADVICE_MAX);
    return a.n;
}

/* The egress of kind tunnel: a name. What stands behind it is found on the stack thread when a dial
 * comes there, so a tunnel may come and go while policies that name it stay. */
#include <string.h>

#include "common/alloc.h"
#include "egress/exits_priv.h"

#include "common/poison.h"

struct tunnel {
    struct cv_egress super;
    struct cv_exits *exits; /* borrowed (lives as long as the node); NULL: no tunnels here */
    char name[];
};

static struct tunnel *tunnel_of(struct cv_egress *e)
{
    return CV_CONTAINER_OF(e, struct tunnel, super);
}

static void tunnel_connect(struct cv_egress *e, struct cv_dial *d)
{
    cv_exit_dial_connect(e, d, tunnel_of(e)->exits, tunnel_of(e)->name, false);
}

static void tunnel_open_udp(struct cv_egress *e, struct cv_dial *d)
{
    cv_exit_dial_connect(e, d, tunnel_of(e)->exits, tunnel_of(e)->name, true);
}

static void tunnel_cancel(struct cv_egress *e, struct cv_dial *d)
{
    (void)e;
    cv_exit_dial_cancel(d);
}

static bool tunnel_same(const struct cv_egress *a, const struct cv_egress *b)
{
    const struct tunnel *x =
        CV_CONTAINER_OF((struct cv_egress *)(uintptr_t)a, struct tunnel, super);
    const struct tunnel *y =
        CV_CONTAINER_OF((struct cv_egress *)(uintptr_t)b, struct tunnel, super);
    return x->exits == y->exits && strcmp(x->name, y->name) == 0;
}

static void tunnel_free(struct cv_egress *e)
{
    cv_free(tunnel_of(e));
}

static const struct cv_egress_ops tunnel_ops = {
    .kind = "tunnel",
    .connect = tunnel_connect,
    .open_udp = tunnel_open_udp,
    .same = tunnel_same,
    .cancel = tunnel_cancel,
    .free = tunnel_free,
};

struct cv_egress *cv_egress_tunnel_new(const struct cv_egress_def *def, struct cv_exits *exits,
                                       const char *name, struct cv_egress_stats *stats)
{
    size_t len = strlen(name);
    struct tunnel *t = cv_try_zalloc(sizeof(*t) + len + 1);
    if (t == NULL)
        return NULL;
    t->exits = exits;
    memcpy(t->name, name, len + 1);
    cv_egress_init(&t->super, &tunnel_ops, def->label, stats);
    return &t->super;
}

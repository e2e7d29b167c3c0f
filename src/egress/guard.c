#include "common/err.h"
#include "egress/egress.h"

#include "common/poison.h"

struct grants {
    const struct cv_prefix *allow;
    size_t n_allow;
    const struct cv_prefix *special; /* NULL: the selector names none */
};

static bool is_granted(const struct cv_ip *ip, const struct grants *g)
{
    if (g->special != NULL && cv_prefix_contains(g->special, ip))
        return true;
    for (size_t i = 0; i < g->n_allow; i++) {
        if (cv_prefix_contains(&g->allow[i], ip))
            return true;
    }
    return false;
}

int cv_egress_guard(const struct cv_ip *ip, const struct cv_prefix *allow, size_t n_allow,
                    bool names_special, const struct cv_prefix *special)
{
    struct grants g = {allow, n_allow, names_special ? special : NULL};
    struct cv_ip folded = *ip;
    cv_ip_fold_mapped(&folded);
    if (cv_ip_class(&folded) == CV_IP_GLOBAL)
        return 0;
    /* It is special, or embeds an address that is. A grant for 127.0.0.0/8 is not meant to open
     * 2002:7f00:1:: or 64:ff9b::127.0.0.1, where a translator on the way may turn it into something
     * else: the spelling has to be granted as well as the address in it. */
    if (!is_granted(&folded, &g))
        return CV_E_GUARD;
    struct cv_ip inner[CV_IP_EMBEDDED_MAX];
    size_t n = cv_ip_embedded4(&folded, inner);
    for (size_t i = 0; i < n; i++)
        if (cv_ip_class(&inner[i]) != CV_IP_GLOBAL && !is_granted(&inner[i], &g))
            return CV_E_GUARD;
    return 0;
}

#include "inbound/quicwatch.h"

#include "common/err.h"
#include "common/log.h"
#include "net/quicsniff.h"

#include "common/poison.h"

void cv_quicwatch_init(struct cv_quicwatch *w)
{
    w->_q = NULL;
}

static void drop(struct cv_quicwatch *w)
{
    cv_quicsniff_free(w->_q);
    w->_q = NULL;
}

void cv_quicwatch_look(struct cv_quicwatch *w, struct cv_session *s, const void *data, size_t len)
{
    enum cv_sniff_outcome outcome;
    struct cv_host host;

    if (s->sniff != CV_SNIFF_NONE)
        return;
    if (w->_q == NULL && cv_quicsniff_is_initial(data, len))
        w->_q = cv_quicsniff_new();
    if (w->_q == NULL)
        return;
    int ret = cv_quicsniff_look(w->_q, data, len, &outcome, &host);
    if (ret == CV_E_MORE)
        return;
    if (ret == 0 && cv_session_set_sniffed(s, outcome, &host) != 0)
        cv_debug("sniff", "no memory for the name in session=%016llx, ignoring",
                 (unsigned long long)s->id);
    drop(w);
}

void cv_quicwatch_done(struct cv_quicwatch *w, struct cv_session *s)
{
    int ret = 0;
    if (w->_q != NULL && s->sniff == CV_SNIFF_NONE)
        ret = cv_session_set_sniffed(s, CV_SNIFF_INCOMPLETE, NULL);
    CV_ASSERT(ret == 0); /* no name, no memory */
    drop(w);
}

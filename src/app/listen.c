#include "app/listen.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"

#include "common/poison.h"

static int parse_fd(const char *name, struct cv_listen *ret, char *why, size_t why_cap)
{
    size_t len = strlen(name);
    bool ok = len > 0 && len <= CV_LISTEN_FD_NAME_MAX;
    for (size_t i = 0; ok && i < len; i++)
        ok = name[i] > ' ' && name[i] < 0x7f && name[i] != ':';
    if (!ok) {
        snprintf(why, why_cap, "after 'fd:' comes the name of a socket of systemd, or its number");
        return CV_E_PARSE;
    }
    ret->kind = CV_LISTEN_FD;
    snprintf(ret->fd_name, sizeof(ret->fd_name), "%s", name);
    return 0;
}

/* Say what is wrong with 'text' in particular, for the mistakes that people make. */
static void explain(const char *text, char *why, size_t why_cap)
{
    const char *colon = strrchr(text, ':');
    bool digits = text[0] != '\0';
    for (const char *p = text; *p != '\0'; p++)
        digits = digits && isdigit((unsigned char)*p);
    if (digits)
        snprintf(why, why_cap, "an address is missing, write 127.0.0.1:%.5s or :%.5s", text, text);
    else if (colon == NULL)
        snprintf(why, why_cap, "a port is missing, write for example %.60s:1080", text);
    else if (text[0] != '[' && memchr(text, ':', (size_t)(colon - text)) != NULL)
        snprintf(why, why_cap, "an IPv6 address is written in brackets, for example [::1]:1080");
    else if (isalpha((unsigned char)text[0]))
        snprintf(why, why_cap, "a name is not accepted, write an address such as 127.0.0.1%.6s",
                 colon);
    else
        snprintf(why, why_cap, "wanted 127.0.0.1:1080, [::]:1080, :1080, unix:/path or fd:NAME");
}

int cv_listen_parse(const char *text, struct cv_listen *ret, char *why, size_t why_cap)
{
    *ret = (struct cv_listen){0};
    why[0] = '\0';
    if (strncmp(text, "fd:", 3) == 0)
        return parse_fd(text + 3, ret, why, why_cap);
    if (strncmp(text, "unix:", 5) == 0) {
        if (text[5] == '\0') {
            snprintf(why, why_cap, "after 'unix:' comes a path");
            return CV_E_PARSE;
        }
        if (strlen(text + 5) >= sizeof(ret->sa.un.sun_path)) {
            snprintf(why, why_cap, "the path of a Unix socket has at most %zu bytes",
                     sizeof(ret->sa.un.sun_path) - 1);
            return CV_E_PARSE;
        }
        ret->kind = CV_LISTEN_UNIX;
    } else {
        ret->kind = CV_LISTEN_ADDRESS;
    }
    if (cv_sockaddr_parse(text, &ret->sa) != 0) {
        explain(text, why, why_cap);
        return CV_E_PARSE;
    }
    return 0;
}

bool cv_listen_is_local(const struct cv_listen *l)
{
    struct cv_endpoint ep;
    if (l->kind != CV_LISTEN_ADDRESS)
        return l->kind == CV_LISTEN_UNIX;
    cv_endpoint_from_sockaddr(&ep, &l->sa.sa);
    return cv_ip_class(&ep.ip) == CV_IP_LOOPBACK;
}

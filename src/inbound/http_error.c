#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "inbound/http_priv.h"

#include "common/poison.h"

#define PAGE_MAX 8192

const char *cv_http_error_reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *reason;
    } known[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {403, "Forbidden"},
        {407, "Proxy Authentication Required"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(known); i++)
        if (known[i].status == status)
            return known[i].reason;
    return "Error";
}

/* Text that came from outside, such that a browser shows it and does nothing else with it. */
static int put_escaped(struct cv_buf *b, const char *s)
{
    int ret = 0;

    for (; *s != '\0' && ret == 0; s++) {
        switch (*s) {
        case '<':
            ret = cv_buf_append_str(b, "&lt;");
            break;
        case '>':
            ret = cv_buf_append_str(b, "&gt;");
            break;
        case '&':
            ret = cv_buf_append_str(b, "&amp;");
            break;
        case '"':
            ret = cv_buf_append_str(b, "&quot;");
            break;
        case '\'':
            ret = cv_buf_append_str(b, "&#39;");
            break;
        default:
            ret = cv_buf_append(b, s, 1);
        }
    }
    return ret;
}

static int put_row(struct cv_buf *b, const char *name, const char *value)
{
    if (value[0] == '\0')
        return 0;
    int ret = cv_buf_printf(b, "<dt>%s</dt><dd>", name);
    if (ret == 0)
        ret = put_escaped(b, value);
    return ret == 0 ? cv_buf_append_str(b, "</dd>") : ret;
}

static int put_html(struct cv_buf *b, const struct http_page *p, const char *title,
                    const char *session)
{
    int ret = cv_buf_printf(
        b,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width\"><title>%s</title><style>"
        ":root{color-scheme:light dark;--b:#fff;--f:#1b1f24;--m:#59636e;--l:#d1d9e0}"
        "@media(prefers-color-scheme:dark){:root{--b:#15191e;--f:#e6edf3;--m:#9198a1;--l:#3d444d}}"
        "body{background:var(--b);color:var(--f);font:16px/1.5 system-ui,sans-serif;"
        "max-width:36rem;margin:12vh auto;padding:0 1.5rem}h1{font-size:1.5rem;font-weight:600}"
        "dl{display:grid;grid-template-columns:auto 1fr;gap:.25rem 1rem;color:var(--m);"
        "border-top:1px solid var(--l);padding-top:1rem;font-size:.9rem}"
        "dd{margin:0;overflow-wrap:anywhere;font-family:ui-monospace,monospace}</style>"
        "<h1>%s</h1><p>",
        title, title);
    if (ret == 0)
        ret = put_escaped(b, p->message);
    if (ret == 0)
        ret = cv_buf_append_str(b, "</p><dl>");
    if (ret == 0)
        ret = put_row(b, "Target", p->target);
    if (ret == 0)
        ret = put_row(b, "Stage", p->stage);
    if (ret == 0)
        ret = put_row(b, "Session", session);
    return ret == 0 ? cv_buf_append_str(b, "</dl></html>\n") : ret;
}

static int put_plain(struct cv_buf *b, const struct http_page *p, const char *title,
                     const char *session)
{
    if (p->stage[0] == '\0')
        return cv_buf_printf(b, "%s: %s\n", title, p->message);
    return cv_buf_printf(b, "%s: %s (stage %s, session %s)\n", title, p->message, p->stage,
                         session);
}

static int put_head(struct cv_buf *out, const struct http_page *p, size_t body_len)
{
    int ret = cv_buf_printf(out, "HTTP/1.1 %u %s\r\n", p->status, cv_http_error_reason(p->status));

    if (ret == 0 && p->status == 407)
        ret = cv_buf_append_str(out, "Proxy-Authenticate: Basic realm=\"culvert\"\r\n");
    if (ret == 0 && p->retry_after_s > 0)
        ret = cv_buf_printf(out, "Retry-After: %llu\r\n", (unsigned long long)p->retry_after_s);
    if (ret == 0)
        ret = cv_buf_printf(out,
                            "Content-Type: text/%s; charset=utf-8\r\nCache-Control: no-store\r\n"
                            "Content-Length: %zu\r\n%s\r\n",
                            p->html ? "html" : "plain", body_len,
                            p->close ? "Connection: close\r\n" : "");
    return ret;
}

int cv_http_error_write(struct cv_buf *out, const struct http_page *p)
{
    char title[64], session[17];
    struct cv_buf body;

    snprintf(session, sizeof(session), "%016llx", (unsigned long long)p->session);
    if (p->title != NULL)
        snprintf(title, sizeof(title), "%s", p->title);
    else
        snprintf(title, sizeof(title), "%u %s", p->status, cv_http_error_reason(p->status));
    cv_buf_init(&body, PAGE_MAX);
    int ret = p->html ? put_html(&body, p, title, session) : put_plain(&body, p, title, session);
    if (ret == 0)
        ret = put_head(out, p, cv_buf_len(&body));
    if (ret == 0 && !p->head)
        ret = cv_buf_append(out, cv_buf_data(&body), cv_buf_len(&body));
    cv_buf_done(&body);
    return ret;
}

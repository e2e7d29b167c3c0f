#include "admin/prom.h"

#include <stdio.h>
#include <string.h>

#include "common/poison.h"

#define NUMBER_MAX 40

void cv_prom_init(struct cv_prom *p, struct cv_buf *buf)
{
    *p = (struct cv_prom){._buf = buf};
}

int cv_prom_end(struct cv_prom *p)
{
    return p->_err;
}

static void put(struct cv_prom *p, const char *s, size_t len)
{
    if (p->_err == 0 && len > 0)
        p->_err = cv_buf_append(p->_buf, s, len);
}

static void put_str(struct cv_prom *p, const char *s)
{
    put(p, s, strlen(s));
}

static void put_escaped(struct cv_prom *p, const char *s, size_t len)
{
    size_t from = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] != '\\' && s[i] != '"' && s[i] != '\n')
            continue;
        put(p, s + from, i - from);
        put_str(p, s[i] == '\n' ? "\\n" : s[i] == '"' ? "\\\"" : "\\\\");
        from = i + 1;
    }
    put(p, s + from, len - from);
}

void cv_prom_family(struct cv_prom *p, const char *name, const char *type, const char *help)
{
    p->_family = name;
    put_str(p, "# HELP ");
    put_str(p, name);
    put_str(p, " ");
    put_str(p, help);
    put_str(p, "\n# TYPE ");
    put_str(p, name);
    put_str(p, " ");
    put_str(p, type);
    put_str(p, "\n");
}

static void sample(struct cv_prom *p, const char *suffix, const struct cv_prom_label *labels,
                   size_t n, const char *number)
{
    CV_ASSERT(p->_family != NULL);
    put_str(p, p->_family);
    put_str(p, suffix);
    for (size_t i = 0; i < n; i++) {
        put_str(p, i == 0 ? "{" : ",");
        put_str(p, labels[i].name);
        put_str(p, "=\"");
        put_escaped(p, labels[i].val, labels[i].len);
        put_str(p, "\"");
    }
    put_str(p, n > 0 ? "} " : " ");
    put_str(p, number);
    put_str(p, "\n");
}

void cv_prom_uint(struct cv_prom *p, const char *suffix, const struct cv_prom_label *labels,
                  size_t n, uint64_t val)
{
    char text[NUMBER_MAX];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)val);
    sample(p, suffix, labels, n, text);
}

void cv_prom_int(struct cv_prom *p, const char *suffix, const struct cv_prom_label *labels,
                 size_t n, int64_t val)
{
    char text[NUMBER_MAX];
    snprintf(text, sizeof(text), "%lld", (long long)val);
    sample(p, suffix, labels, n, text);
}

void cv_prom_seconds(struct cv_prom *p, const char *suffix, const struct cv_prom_label *labels,
                     size_t n, uint64_t us)
{
    char text[NUMBER_MAX];
    snprintf(text, sizeof(text), "%llu.%06u", (unsigned long long)(us / 1000000),
             (unsigned)(us % 1000000));
    sample(p, suffix, labels, n, text);
}

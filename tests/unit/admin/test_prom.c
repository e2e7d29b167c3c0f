#include "admin/prom.h"

#include "common/err.h"
#include "tap.h"

static void check_text(struct cv_buf *b, const char *wanted)
{
    T_INT_EQ(cv_buf_append(b, "", 1), 0);
    T_STR_EQ((const char *)cv_buf_data(b), wanted);
    cv_buf_done(b);
}

static void test_samples(void)
{
    struct cv_buf b;
    struct cv_prom p;
    cv_buf_init(&b, 4096);
    cv_prom_init(&p, &b);
    cv_prom_family(&p, "a_total", "counter", "Things.");
    cv_prom_uint(&p, "", NULL, 0, UINT64_MAX);
    cv_prom_int(&p, "", (struct cv_prom_label[]){{"x", "1", 1}, {"y", "", 0}}, 2, -5);
    cv_prom_family(&p, "s", "histogram", "Time.");
    cv_prom_uint(&p, "_bucket", &(struct cv_prom_label){"le", "+Inf", 4}, 1, 3);
    cv_prom_seconds(&p, "_sum", NULL, 0, 1000001);
    T_INT_EQ(cv_prom_end(&p), 0);
    check_text(&b, "# HELP a_total Things.\n# TYPE a_total counter\na_total 18446744073709551615\n"
                   "a_total{x=\"1\",y=\"\"} -5\n# HELP s Time.\n# TYPE s histogram\n"
                   "s_bucket{le=\"+Inf\"} 3\ns_sum 1.000001\n");
}

static void test_escapes(void)
{
    static const struct {
        const char *val, *wanted;
        size_t len;
    } rows[] = {
        {"", "", 0},         {"plain", "plain", 5},  {"\\", "\\\\", 1},
        {"\"", "\\\"", 1},   {"\n", "\\n", 1},       {"a\"b\\c\nd", "a\\\"b\\\\c\\nd", 7},
        {"\\n", "\\\\n", 2}, {"cut here", "cut", 3}, {"\xc3\xa9", "\xc3\xa9", 2},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_buf b;
        struct cv_prom p;
        char wanted[128];
        cv_buf_init(&b, 4096);
        cv_prom_init(&p, &b);
        cv_prom_family(&p, "m", "gauge", "H.");
        cv_prom_uint(&p, "", &(struct cv_prom_label){"l", rows[i].val, rows[i].len}, 1, 1);
        T_INT_EQ(cv_prom_end(&p), 0);
        snprintf(wanted, sizeof(wanted), "# HELP m H.\n# TYPE m gauge\nm{l=\"%s\"} 1\n",
                 rows[i].wanted);
        check_text(&b, wanted);
    }
}

static void test_full_buffer_sticks(void)
{
    struct cv_buf b;
    struct cv_prom p;
    cv_buf_init(&b, 40);
    cv_prom_init(&p, &b);
    cv_prom_family(&p, "m", "gauge", "H.");
    cv_prom_uint(&p, "", NULL, 0, 1234567890123456789);
    cv_prom_uint(&p, "", NULL, 0, 1);
    T_INT_EQ(cv_prom_end(&p), CV_E_LIMIT);
    T_OK(cv_buf_len(&b) <= 40);
    cv_buf_done(&b);
}

int main(void)
{
    T_RUN(test_samples);
    T_RUN(test_escapes);
    T_RUN(test_full_buffer_sticks);
    return t_done();
}

#include "flow/statslog.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/file.h"
#include "tap.h"

#define SNIFF                                                                                      \
    ",\"sniff_matched_total\":3,\"sniff_unsupported_total\":0,\"sniff_timeout_total\":4,"          \
    "\"sniff_malformed_total\":0,\"sniff_limit_exceeded_total\":0,\"sniff_incomplete_total\":0"

static struct cv_node_stats stats;

static void test_lines_and_deltas(void)
{
    char path[64] = "/tmp/cv-statslog-XXXXXX";
    int fd = mkstemp(path);
    struct cv_alog_conf conf = {.file = path};
    struct cv_alog *alog;
    struct cv_alog_stream *s;
    struct cv_loop *loop;
    if (fd < 0 || cv_alog_new(&conf, &stats, &alog) != 0 || cv_loop_new(&loop) != 0 ||
        cv_alog_stream_open(alog, loop, &s) != 0)
        abort();
    close(fd);
    struct cv_registry *r = cv_registry_new();
    struct cv_listener_stats *l = cv_registry_listener(r, "main", "mixed");
    struct cv_statslog *sl = cv_statslog_new(r);
    struct cv_egress_stats *unused = cv_registry_egress(r, "upstream:unused");
    struct cv_egress_stats *e = cv_registry_egress(r, "direct");
    (void)unused;
    cv_gauge_add(&l->row.active, 3);
    cv_counter_add(&l->row.bytes_up, 100);
    cv_counter_add(&l->row.bytes_down, 5);
    cv_counter_add(&e->row.sessions, 1);
    cv_counter_add(&l->sniff[CV_SNIFF_TLS], 1);
    cv_counter_add(&l->sniff[CV_SNIFF_HTTP], 2);
    cv_counter_add(&l->sniff[CV_SNIFF_TIMEOUT], 4);
    cv_counter_add(&e->row.bytes_up, 7);
    cv_statslog_write(sl, s, "node-1", 1700000000);

    cv_counter_add(&l->row.bytes_up, 11);
    /* A row that appears later does not shift the others. */
    struct cv_egress_stats *later = cv_registry_egress(r, "upstream:later");
    cv_counter_add(&later->row.refused[CV_STAGE_DIAL], 1);
    cv_counter_add(&later->row.bytes_down, 9);
    cv_statslog_write(sl, s, "node-1", 1700000060);

    cv_alog_stream_close(s);
    cv_alog_free(alog);
    cv_loop_free(loop);
    char *text;
    size_t len;
    T_INT_EQ(cv_file_read(path, 1 << 20, &text, &len), 0);
    T_STR_EQ(text,
             "{\"timestamp\":1700000000,\"node_id\":\"node-1\",\"kind\":\"stats\","
             "\"listener\":\"main\",\"active_connections\":3,\"bytes_up_total\":100,"
             "\"bytes_down_total\":5,\"bytes_up_delta\":100,\"bytes_down_delta\":5" SNIFF "}\n"
             "{\"timestamp\":1700000000,\"node_id\":\"node-1\",\"kind\":\"egress_stats\","
             "\"egress\":\"direct\",\"active_connections\":0,\"bytes_up_total\":7,"
             "\"bytes_down_total\":0,\"bytes_up_delta\":7,\"bytes_down_delta\":0}\n"
             "{\"timestamp\":1700000060,\"node_id\":\"node-1\",\"kind\":\"stats\","
             "\"listener\":\"main\",\"active_connections\":3,\"bytes_up_total\":111,"
             "\"bytes_down_total\":5,\"bytes_up_delta\":11,\"bytes_down_delta\":0" SNIFF "}\n"
             "{\"timestamp\":1700000060,\"node_id\":\"node-1\",\"kind\":\"egress_stats\","
             "\"egress\":\"direct\",\"active_connections\":0,\"bytes_up_total\":7,"
             "\"bytes_down_total\":0,\"bytes_up_delta\":0,\"bytes_down_delta\":0}\n"
             "{\"timestamp\":1700000060,\"node_id\":\"node-1\",\"kind\":\"egress_stats\","
             "\"egress\":\"upstream:later\",\"active_connections\":0,\"bytes_up_total\":0,"
             "\"bytes_down_total\":9,\"bytes_up_delta\":0,\"bytes_down_delta\":9}\n");
    cv_free(text);
    cv_statslog_free(sl);
    cv_statslog_free(NULL);
    cv_registry_free(r);
    unlink(path);
}

int main(void)
{
    T_RUN(test_lines_and_deltas);
    return t_done();
}

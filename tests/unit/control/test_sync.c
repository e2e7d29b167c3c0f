#include "control/sync.h"

#include "common/alloc.h"
#include "tap.h"

static void test_pause(void)
{
    static const struct {
        int64_t poll_ms;
        uint32_t failures;
        int64_t least, most;
    } rows[] = {
        {30000, 0, 27000, 33000},    {30000, 1, 30000, 60000},
        {30000, 2, 60000, 120000},   {30000, 3, 120000, 240000},
        {30000, 4, 150000, 300000},  {30000, 100, 150000, 300000},
        {1000, 5, 16000, 32000},     {1000, 4000000000, 16000, 32000},
        {600000, 1, 300000, 600000}, /* a poll that is longer than the cap is never made shorter */
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        int64_t low = INT64_MAX, high = 0;
        for (uint32_t r = 0; r < 1024; r++) {
            int64_t ms = cv_sync_pause_ms(rows[i].poll_ms, rows[i].failures, r);
            low = CV_MIN(low, ms);
            high = CV_MAX(high, ms);
        }
        T_OK(low >= rows[i].least && high <= rows[i].most);
        T_OK(high - low >= rows[i].most / 10); /* it does vary */
    }
}

static void test_shown_url(void)
{
    static const char *const rows[][2] = {
        {"https://a.test/snapshot", "https://a.test/snapshot"},
        {"https://user:secret@a.test:8/x", "https://a.test:8/x"},
        {"https://a@b@c/x@y", "https://c/x@y"},
        {"https://a.test/x?token=secret", "https://a.test/x"},
        {"https://a.test#secret", "https://a.test"},
        {"https://u:p@a.test?x", "https://a.test"},
        {"", ""},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        char *shown = cv_sync_shown_url(rows[i][0]);
        T_STR_EQ(shown, rows[i][1]);
        cv_free(shown);
    }
}

int main(void)
{
    T_RUN(test_pause);
    T_RUN(test_shown_url);
    return t_done();
}

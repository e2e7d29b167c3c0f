#include "tunnel/mss.h"

#include "tap.h"

static void test_table(void)
{
    static const struct {
        const char *cipher, *auth;
        bool tcp;
        int32_t peer, mssfix;
        uint32_t path_mtu, fragment, mss;
    } cases[] = {
        /* As stock clients have it. */
        {"AES-256-GCM", "SHA1", false, 0, -1, 1500, 0, 1400},
        {"AES-128-GCM", "SHA1", true, 0, -1, 1500, 0, 1386},
        {"AES-128-CBC", "SHA1", true, -1, -1, 1500, 0, 1363},
        {"AES-128-CBC", "SHA1", false, -1, -1, 1500, 0, 1379},
        /* A narrow link, and words of the profile. */
        {"AES-256-GCM", "SHA1", false, 0, -1, 1280, 0, 1188},
        {"AES-256-GCM", "SHA1", false, 0, 1200, 1500, 0, 1136},
        {"AES-256-GCM", "SHA1", false, 0, 0, 1500, 0, 1460},
        {"AES-256-GCM", "SHA1", false, 0, -1, 100, 0, 536},
        {"AES-256-GCM", "SHA1", false, 0, -1, 1500, 1200, 1136},
    };
    static const uint8_t keys[256];
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_datakey k;
        struct cv_mss_input in = {.mssfix = cases[i].mssfix,
                                  .path_mtu = cases[i].path_mtu,
                                  .fragment = cases[i].fragment,
                                  .tcp = cases[i].tcp,
                                  .tun_mtu = 1500};
        uint32_t mtu = 0, mss = 0;
        T_REQUIRE(cv_datakey_init(&k, cases[i].cipher, cases[i].auth, keys, 0, cases[i].peer) == 0);
        cv_mss_compute(&in, &k, &mtu, &mss);
        if (!T_INT_EQ(mss, cases[i].mss) || !T_INT_EQ(mtu, mss + 40))
            printf("# case %zu\n", i);
        cv_datakey_done(&k);
    }
}

int main(void)
{
    T_RUN(test_table);
    return t_done();
}

#include "net/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/rand.h"
#include "tap.h"

#include "common/poison.h"

static char path[64];

static void put(const char *text)
{
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

static const char *find(const struct cv_hosts *h, const char *name, enum cv_family family)
{
    static char out[256];
    struct cv_ip ips[4];
    size_t n = 0;
    if (!cv_hosts_find(h, name, family, ips, 4, &n))
        return "unknown";
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        char text[CV_IP_STRLEN];
        size_t len = strlen(out);
        snprintf(out + len, sizeof(out) - len, "%s%s", i > 0 ? " " : "",
                 cv_ip_format(&ips[i], text));
    }
    return out;
}

static void lines(void)
{
    static const struct {
        const char *name;
        enum cv_family family;
        const char *want;
    } cases[] = {
        {"one.example", CV_AF_IP4, "192.0.2.1"},
        {"one", CV_AF_IP4, "192.0.2.1"},
        {"one.example", CV_AF_IP6, "2001:db8::1"},
        {"two.example", CV_AF_IP4, "192.0.2.2 192.0.2.3"},
        {"two.example", CV_AF_IP6, ""}, /* known, but not in this family */
        {"upper.example", CV_AF_IP4, "192.0.2.4"},
        {"commented.example", CV_AF_IP4, "unknown"},
        {"hash.example", CV_AF_IP4, "192.0.2.5"},
        {"scoped.example", CV_AF_IP6, "unknown"}, /* a zone is not an address we can dial */
        {"last.example", CV_AF_IP4, "192.0.2.6"},
        {"192.0.2.9", CV_AF_IP4, "unknown"},
        {"many.example", CV_AF_IP4, "192.0.2.11 192.0.2.12 192.0.2.13 192.0.2.14"},
        {"xn--bcher-kva.example", CV_AF_IP4, "192.0.2.7"},
    };
    put("# a comment\n"
        "192.0.2.1 one.example one\n"
        "2001:db8::1\tone.example\r\n"
        "   192.0.2.2   two.example\n192.0.2.3 two.example\n"
        "192.0.2.4 UPPER.Example.\n"
        "# 192.0.2.4 commented.example\n"
        "192.0.2.5 hash.example# commented.example\n"
        "fe80::1%eth0 scoped.example\n"
        "192.0.2.999 bad.example\n192.0.2.1\n\n \t\n"
        "192.0.2.8 not/a/name a..b\n"
        "192.0.2.7 b\xc3\xbc"
        "cher.example\n"
        "192.0.2.11 many.example\n192.0.2.12 many.example\n192.0.2.13 many.example\n"
        "192.0.2.14 many.example\n192.0.2.15 many.example\n"
        "192.0.2.6 last.example");
    struct cv_hosts *h;
    T_REQUIRE(cv_hosts_new(path, &h) == 0);
    T_STR_EQ(find(h, "one.example", CV_AF_IP4), "unknown"); /* not read yet */
    T_OK(cv_hosts_refresh(h));
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++)
        if (strcmp(find(h, cases[i].name, cases[i].family), cases[i].want) != 0)
            T_FAIL("%s: '%s', wanted '%s'", cases[i].name, find(h, cases[i].name, cases[i].family),
                   cases[i].want);
    T_OK(!cv_hosts_refresh(h)); /* the same file */
    cv_hosts_free(h);
}

static void changes(void)
{
    unlink(path);
    struct cv_hosts *h;
    T_REQUIRE(cv_hosts_new(path, &h) == 0);
    T_OK(!cv_hosts_refresh(h)); /* no file, and there was none */
    T_STR_EQ(find(h, "a.example", CV_AF_IP4), "unknown");
    put("192.0.2.1 a.example\n");
    T_OK(cv_hosts_refresh(h));
    T_STR_EQ(find(h, "a.example", CV_AF_IP4), "192.0.2.1");
    put("192.0.2.22 a.example\n");
    T_OK(cv_hosts_refresh(h));
    T_STR_EQ(find(h, "a.example", CV_AF_IP4), "192.0.2.22");
    put("");
    T_OK(cv_hosts_refresh(h));
    T_STR_EQ(find(h, "a.example", CV_AF_IP4), "unknown");
    put("192.0.2.1 a.example\n");
    T_OK(cv_hosts_refresh(h));
    unlink(path);
    T_OK(cv_hosts_refresh(h));
    T_STR_EQ(find(h, "a.example", CV_AF_IP4), "unknown");
    cv_hosts_free(h);
    cv_hosts_free(NULL);
}

static void too_big_keeps_the_old_one(void)
{
    put("192.0.2.1 a.example\n");
    struct cv_hosts *h;
    T_REQUIRE(cv_hosts_new(path, &h) == 0);
    T_OK(cv_hosts_refresh(h));
    T_INT_EQ(truncate(path, 9 << 20), 0);
    T_OK(!cv_hosts_refresh(h));
    T_STR_EQ(find(h, "a.example", CV_AF_IP4), "192.0.2.1");
    cv_hosts_free(h);
}

static void garbage(void)
{
    struct cv_hosts *h;
    T_REQUIRE(cv_hosts_new(path, &h) == 0);
    for (int i = 0; i < 50; i++) {
        uint8_t junk[2000];
        cv_rand_bytes(junk, sizeof(junk));
        FILE *f = fopen(path, "w");
        fwrite(junk, 1, (size_t)(i * 40), f);
        fputs("\n192.0.2.1 a.example\n", f);
        fclose(f);
        cv_hosts_refresh(h);
        if (!T_OK(strcmp(find(h, "a.example", CV_AF_IP4), "192.0.2.1") == 0))
            break;
    }
    cv_hosts_free(h);
}

static void a_thousand_names(void)
{
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 5000; i++)
        fprintf(f, "10.0.%d.%d host%d.example alias%d\n", i >> 8, i & 255, i, i);
    fclose(f);
    struct cv_hosts *h;
    T_REQUIRE(cv_hosts_new(path, &h) == 0);
    T_OK(cv_hosts_refresh(h));
    int bad = 0;
    for (int i = 0; i < 5000; i++) {
        char name[32], want[32];
        snprintf(name, sizeof(name), i & 1 ? "host%d.example" : "alias%d", i);
        snprintf(want, sizeof(want), "10.0.%d.%d", i >> 8, i & 255);
        bad += strcmp(find(h, name, CV_AF_IP4), want) != 0;
    }
    T_INT_EQ(bad, 0);
    cv_hosts_free(h);
}

int main(void)
{
    snprintf(path, sizeof(path), "/tmp/cv-hosts-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    T_RUN(lines);
    T_RUN(changes);
    T_RUN(too_big_keeps_the_old_one);
    T_RUN(garbage);
    T_RUN(a_thousand_names);
    unlink(path);
    return t_done();
}

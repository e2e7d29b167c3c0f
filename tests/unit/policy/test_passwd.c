/* Password forms: recognised, bounded, verified against published vectors. */
#include "policy/passwd.h"

#include "common/err.h"
#include "policy_util.h"

#define HEX32 "556f5449f2392c875523ce923002b90ab1fed9237a0e5441dd90f2694c985de5"
#define SALT  "c29tZXNhbHQ"
#define HASH  "nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"
#define ID    "$argon2id$v=19$"

static int kind_of(const char *s)
{
    enum cv_passwd_kind kind;
    int ret = cv_passwd_kind(s, strlen(s), &kind);

    return ret == 0 ? (int)kind : ret;
}

static int verify(const char *stored, const char *given)
{
    return cv_passwd_verify(stored, strlen(stored), given, strlen(given));
}

static void kinds(void)
{
    static const struct {
        const char *stored;
        int kind;
    } rows[] = {
        {"", CV_PASSWD_PLAIN},
        {"hunter2", CV_PASSWD_PLAIN},
        {"SHA256:00:" HEX32, CV_PASSWD_PLAIN},
        {"sha256", CV_PASSWD_PLAIN},
        {"$2b$10$abc", CV_PASSWD_PLAIN},
        {"sha256:00ff10:" HEX32, CV_PASSWD_SHA256},
        {"sha256:00FF10:" HEX32, CV_PASSWD_SHA256},
        {"sha256:", CV_E_PARSE},
        {"sha256::" HEX32, CV_E_PARSE},
        {"sha256:00", CV_E_PARSE},
        {"sha256:0:" HEX32, CV_E_PARSE},
        {"sha256:zz:" HEX32, CV_E_PARSE},
        {"sha256:00:" HEX32 "00", CV_E_PARSE},
        {"sha256:00:aabb", CV_E_PARSE},
        {"sha256:00:" HEX32 ":", CV_E_PARSE},
        {"sha256:" HEX32 HEX32 ":" HEX32, CV_PASSWD_SHA256}, /* a salt of 64 bytes */
        {"sha256:" HEX32 HEX32 "00:" HEX32, CV_E_PARSE},     /* of 65 */
        {ID "m=256,t=2,p=1$" SALT "$" HASH, CV_PASSWD_ARGON2ID},
        {ID "m=1048576,t=64,p=16$" SALT "$" HASH, CV_PASSWD_ARGON2ID},
        {ID "m=1048577,t=2,p=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=4294967297,t=2,p=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=99999999999,t=2,p=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=256,t=65,p=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=256,t=0,p=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=256,t=2,p=17$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=15,t=2,p=2$" SALT "$" HASH, CV_E_PARSE}, /* 8 KiB a lane at least */
        {ID "m=0256,t=2,p=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=-1,t=2,p=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "t=2,m=256,p=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=256,t=2$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=256,t=2,p=1,x=1$" SALT "$" HASH, CV_E_PARSE},
        {ID "m=256,t=2,p=1$" SALT, CV_E_PARSE},
        {ID "m=256,t=2,p=1$" SALT "$", CV_E_PARSE},
        {ID "m=256,t=2,p=1$abc$" HASH, CV_E_PARSE},
        {ID "m=256,t=2,p=1$" SALT "=$" HASH, CV_E_PARSE},
        {ID "m=256,t=2,p=1$" SALT "$" HASH "$", CV_E_PARSE},
        {ID "m=256", CV_E_PARSE},
        {"$argon2id$v=16$m=256,t=2,p=1$" SALT "$" HASH, CV_E_PARSE},
        {"$argon2id$m=256,t=2,p=1$" SALT "$" HASH, CV_E_PARSE},
        {"$argon2i$v=19$m=256,t=2,p=1$" SALT "$" HASH, CV_E_PARSE},
        {"$argon2", CV_E_PARSE},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        if (!T_INT_EQ(kind_of(rows[i].stored), rows[i].kind))
            printf("#   '%s'\n", rows[i].stored);
        /* What is no valid form is never right, whatever is given. */
        if (rows[i].kind < 0)
            T_INT_EQ(verify(rows[i].stored, rows[i].stored), CV_E_AUTH);
    }
}

static void plain(void)
{
    T_INT_EQ(verify("hunter2", "hunter2"), 0);
    T_INT_EQ(verify("hunter2", "hunter3"), CV_E_AUTH);
    T_INT_EQ(verify("hunter2", "Hunter2"), CV_E_AUTH);
    T_INT_EQ(verify("hunter2", "hunter"), CV_E_AUTH);
    T_INT_EQ(verify("hunter2", "hunter22"), CV_E_AUTH);
    T_INT_EQ(verify("hunter2", ""), CV_E_AUTH);
    T_INT_EQ(cv_passwd_verify("a\0b", 3, "a\0c", 3), CV_E_AUTH);
    /* Empty never matches empty. */
    T_INT_EQ(verify("", ""), CV_E_AUTH);
    T_INT_EQ(verify("", "x"), CV_E_AUTH);
}

static void sha256(void)
{
    T_INT_EQ(verify("sha256:00ff10:" HEX32, "hunter2"), 0);
    T_INT_EQ(verify("sha256:00ff10:" HEX32, "hunter3"), CV_E_AUTH);
    T_INT_EQ(verify("sha256:00ff11:" HEX32, "hunter2"), CV_E_AUTH);
    T_INT_EQ(verify("sha256:00ff10:" HEX32, ""), CV_E_AUTH);
    T_INT_EQ(verify("sha256:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
                    "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f:"
                    "cf7b35839b378584a74c1db0f21e0ac28319794b805efa155183035dd0451230",
                    "pass:word"),
             0);
    /* Who stole the hash cannot log in with it. */
    T_INT_EQ(verify("sha256:00ff10:" HEX32, "sha256:00ff10:" HEX32), CV_E_AUTH);
}

/* From the test program of the reference implementation. */
static void argon2id(void)
{
    static const char *const stored[] = {
        ID "m=256,t=2,p=1$" SALT "$" HASH,
        ID "m=256,t=2,p=2$" SALT "$bQk8UB/VmZZF4Oo79iDXuL5/0ttZwg2f/5U52iv1cDc",
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(stored); i++) {
        T_INT_EQ(verify(stored[i], "password"), 0);
        T_INT_EQ(verify(stored[i], "differentpassword"), CV_E_AUTH);
        T_INT_EQ(verify(stored[i], ""), CV_E_AUTH);
        T_INT_EQ(verify(stored[i], stored[i]), CV_E_AUTH);
    }
    /* Not NUL-terminated where it ends. */
    char text[256];
    snprintf(text, sizeof(text), "%sX", stored[0]);
    T_INT_EQ(cv_passwd_verify(text, strlen(stored[0]), "password", 8), 0);
    T_INT_EQ(cv_passwd_verify(text, strlen(text), "password", 8), CV_E_AUTH);
}

static void hashes(void)
{
    static const enum cv_passwd_kind made[] = {CV_PASSWD_SHA256, CV_PASSWD_ARGON2ID};

    for (size_t i = 0; i < CV_ARRAY_SIZE(made); i++) {
        char a[CV_PASSWD_STRLEN], b[CV_PASSWD_STRLEN], small[40];
        T_INT_EQ(cv_passwd_hash(made[i], "correct horse", 13, a, sizeof(a)), 0);
        T_INT_EQ(cv_passwd_hash(made[i], "correct horse", 13, b, sizeof(b)), 0);
        T_OK(strcmp(a, b) != 0); /* random salt */
        T_INT_EQ(kind_of(a), made[i]);
        T_INT_EQ(verify(a, "correct horse"), 0);
        T_INT_EQ(verify(b, "correct horse"), 0);
        T_INT_EQ(verify(a, "correct horsf"), CV_E_AUTH);
        T_OK(strstr(a, "horse") == NULL);
        T_INT_EQ(cv_passwd_hash(made[i], "x", 1, small, sizeof(small)), CV_E_LIMIT);
    }
    char out[CV_PASSWD_STRLEN];
    T_INT_EQ(cv_passwd_hash(CV_PASSWD_ARGON2ID, "x", 1, out, sizeof(out)), 0);
    T_OK(strncmp(out, ID "m=19456,t=2,p=1$", strlen(ID "m=19456,t=2,p=1$")) == 0);
    T_INT_EQ(cv_passwd_hash(CV_PASSWD_PLAIN, "x", 1, out, sizeof(out)), CV_E_INVALID);
}

/* Unknown names stand behind the passwords of known ones: always the same for a name, spread over
 * all users, so that the time it takes tells nothing. */
static void decoy(void)
{
    struct cv_snapshot *s =
        pu_compile("{'schema_version':1,'version':1,'routing_policies':{'p':{}},'users':{"
                   "'a':{'password':'one','policy':'p'},'b':{'password':'two','policy':'p'},"
                   "'c':{'password':'three','policy':'p'}}}",
                   "n");
    unsigned seen[3] = {0};

    for (unsigned i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof(name), "nobody%u", i);
        struct cv_rcstr *d = cv_passwd_decoy(s, name, strlen(name));
        T_OK(d == cv_passwd_decoy(s, name, strlen(name)));
        for (uint32_t u = 0; u < 3; u++)
            seen[u] += d == cv_snapshot_user(s, u)->password;
    }
    T_INT_EQ(seen[0] + seen[1] + seen[2], 300);
    T_OK(seen[0] > 40 && seen[1] > 40 && seen[2] > 40);
    cv_snapshot_unref(s);

    s = cv_snapshot_new_empty();
    struct cv_rcstr *d = cv_passwd_decoy(s, "x", 1);
    cv_snapshot_unref(s);
    T_REQUIRE(d != NULL);
    T_INT_EQ(kind_of(d->s), CV_PASSWD_PLAIN);
    T_INT_EQ(d->len, strlen(d->s));
}

int main(void)
{
    T_RUN(kinds);
    T_RUN(plain);
    T_RUN(sha256);
    T_RUN(argon2id);
    T_RUN(hashes);
    T_RUN(decoy);
    return t_done();
}

#include "tunnel/wrap.h"

#include <stdio.h>

#include "common/err.h"
#include "hex.h"
#include "tunnel/wire.h"

#include "tap.h"

/* The key file of bytes (5 i + 1) & 255. */
static char *key_file(void)
{
    static char text[1024];
    size_t at = (size_t)snprintf(text, sizeof(text), "#\n-----BEGIN OpenVPN Static key V1-----\n");
    for (int i = 0; i < 256; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%02x%s", (i * 5 + 1) & 255,
                               i % 16 == 15 ? "\r\n" : "");
    snprintf(text + at, sizeof(text) - at, "-----END OpenVPN Static key V1-----\n");
    return text;
}

static const uint8_t plain[14] = {7 << 3, 'S', 'E', 'S', 'S', 'I', 'O', 'N', 'I', 0, 0, 0, 0, 0};

static void test_vectors(void)
{
    static const struct {
        enum cv_wrap_kind kind;
        const char *digest, *hex;
    } cases[] = {
        {CV_WRAP_AUTH, "SHA1",
         "3853455353494f4e4945c82cc48f3d7536be37b18ad04d3c4eca2938ad000000015f0000000000000000"},
        {CV_WRAP_AUTH, "SHA512",
         "3853455353494f4e49259f71fe77e8927a4fb581e861c634ff11f8303ea87d7e96b0025884fec9ae2445a3ddd"
         "2"
         "78517e528e662e2d832c4248936f651b876e623b3ee089b5f63e78d5000000015f0000000000000000"},
        {CV_WRAP_CRYPT, "",
         "3853455353494f4e49000000015f000000da614ad521fd480a05d53a3a5bc860c69658990e73f3b10221436a5"
         "7"
         "52092af64a933fc86e"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_wrap w;
        uint8_t out[512], wanted[512];
        size_t n = 0, len = unhex(cases[i].hex, wanted, sizeof(wanted));
        T_INT_EQ(cv_wrap_init(&w, cases[i].kind, key_file(), 1, cases[i].digest, 0x5f000000), 0);
        T_INT_EQ(cv_wrap_seal(&w, plain, sizeof(plain), out, sizeof(out), &n), 0);
        T_INT_EQ(n, len);
        T_MEM_EQ(out, wanted, len);
        cv_wrap_done(&w);
    }
}

/* The other end of a wrap: the keys of both directions trade places. */
static struct cv_wrap other_end(const struct cv_wrap *w)
{
    struct cv_wrap o = *w;
    memcpy(o.in_cipher, w->out_cipher, 32);
    memcpy(o.out_cipher, w->in_cipher, 32);
    memcpy(o.in_hmac, w->out_hmac, 64);
    memcpy(o.out_hmac, w->in_hmac, 64);
    return o;
}

static void round_trip(enum cv_wrap_kind kind, int direction)
{
    struct cv_wrap a, b;
    uint8_t sealed[512], got[512];
    size_t n = 0, k = 0;
    T_INT_EQ(cv_wrap_init(&a, kind, key_file(), direction, "SHA256", 1000), 0);
    b = other_end(&a);
    for (int i = 0; i < 3; i++) {
        T_INT_EQ(cv_wrap_seal(&a, plain, sizeof(plain), sealed, sizeof(sealed), &n), 0);
        T_INT_EQ(cv_wrap_open(&b, sealed, n, got, sizeof(got), &k), 0);
        T_INT_EQ(k, sizeof(plain));
        T_MEM_EQ(got, plain, k);
        if (kind == CV_WRAP_NONE)
            return;
        /* A replay, and every bit turned. */
        T_INT_EQ(cv_wrap_open(&b, sealed, n, got, sizeof(got), &k), CV_E_PROTO);
    }
    T_INT_EQ(cv_wrap_seal(&a, plain, sizeof(plain), sealed, sizeof(sealed), &n), 0);
    for (size_t bit = 0; bit < n * 8; bit++) {
        sealed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        T_INT_EQ(cv_wrap_open(&b, sealed, n, got, sizeof(got), &k), CV_E_PROTO);
        sealed[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t i = 0; i < n; i++)
        T_INT_EQ(cv_wrap_open(&b, sealed, i, got, sizeof(got), &k), CV_E_PROTO);
    T_INT_EQ(cv_wrap_open(&b, sealed, n, got, sizeof(got), &k), 0);
    T_INT_EQ(cv_wrap_seal(&a, plain, sizeof(plain), sealed, sizeof(plain) + 3, &n), CV_E_LIMIT);
}

static void test_round_trips(void)
{
    round_trip(CV_WRAP_NONE, -1);
    round_trip(CV_WRAP_AUTH, -1);
    round_trip(CV_WRAP_AUTH, 0);
    round_trip(CV_WRAP_AUTH, 1);
    round_trip(CV_WRAP_CRYPT, -1);
}

static void test_v2(void)
{
    uint8_t raw[256 + 300] = {0}, out[1024];
    char b64[1024], text[1200];
    struct cv_wrap w;
    size_t n = 0;
    raw[sizeof(raw) - 2] = 300 >> 8;
    raw[sizeof(raw) - 1] = 300 & 255;
    T_INT_EQ(cv_base64_encode(raw, sizeof(raw), b64, sizeof(b64)), 0);
    snprintf(text, sizeof(text),
             "-----BEGIN OpenVPN tls-crypt-v2 client key-----\n%.500s\n%s\n"
             "-----END OpenVPN tls-crypt-v2 client key-----\n",
             b64, b64 + 500);
    T_INT_EQ(cv_wrap_init(&w, CV_WRAP_CRYPT_V2, text, -1, "", 7), 0);
    T_INT_EQ(w.wkc_len, 300);
    uint8_t first[14];
    memcpy(first, plain, sizeof(first));
    first[0] = CV_WIRE_RESET_CLIENT_V3 << 3;
    T_INT_EQ(cv_wrap_seal(&w, first, sizeof(first), out, sizeof(out), &n), 0);
    T_INT_EQ(n, 14 + 8 + 32 + 300);
    T_MEM_EQ(out + 9, "\x0f\x00\x00\x01", 4);
    T_MEM_EQ(out + n - 300, raw + 256, 300);
    first[0] = CV_WIRE_CONTROL << 3;
    T_INT_EQ(cv_wrap_seal(&w, first, sizeof(first), out, sizeof(out), &n), 0);
    T_INT_EQ(n, 14 + 8 + 32);
}

static void test_bad_keys(void)
{
    struct cv_wrap w;
    char *text = key_file();
    T_INT_EQ(cv_wrap_init(&w, CV_WRAP_CRYPT, "", -1, "", 0), CV_E_PARSE);
    T_INT_EQ(cv_wrap_init(&w, CV_WRAP_CRYPT_V2, text, -1, "", 0), CV_E_PARSE);
    T_INT_EQ(cv_wrap_init(&w, CV_WRAP_AUTH, text, 1, "NO-SUCH", 0), CV_E_UNSUPPORTED);
    text[60] = 'x';
    T_INT_EQ(cv_wrap_init(&w, CV_WRAP_CRYPT, text, -1, "", 0), CV_E_PARSE);
    text = key_file();
    memmove(text + 60, text + 62, strlen(text + 62) + 1);
    T_INT_EQ(cv_wrap_init(&w, CV_WRAP_CRYPT, text, -1, "", 0), CV_E_PARSE);
}

int main(void)
{
    T_RUN(test_vectors);
    T_RUN(test_round_trips);
    T_RUN(test_v2);
    T_RUN(test_bad_keys);
    return t_done();
}

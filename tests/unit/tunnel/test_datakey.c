#include "tunnel/datakey.h"

#include "common/err.h"
#include "hex.h"

#include "tap.h"

static uint8_t keys[256], packet[60];

static void setup(void)
{
    for (int i = 0; i < 256; i++)
        keys[i] = (uint8_t)(i * 7 + 3);
    for (int i = 0; i < 60; i++)
        packet[i] = (uint8_t)i;
    packet[0] = 0x45;
}

static void test_seal_vectors(void)
{
    static const struct {
        const char *cipher;
        int32_t peer;
        const char *hex;
    } cases[] = {
        {"AES-256-GCM", -1,
         "3200000001e04c2e2533f2698ab35521ffba4a02f8aa5b4f0192224c2f1e25a53e22c96f614d56df0dc9d657e"
         "f"
         "a7808448bb063d1e642ec643be525708bdebc3c81e8c62d022935c9b806b69caf4feff42"},
        {"AES-256-GCM", 0x010203,
         "4a01020300000001f09b363bac00ed3d6c435f5e8af1b470aa5b4f0192224c2f1e25a53e22c96f614d56df0dc"
         "9"
         "d657efa7808448bb063d1e642ec643be525708bdebc3c81e8c62d022935c9b806b69caf4feff42"},
        {"AES-128-GCM", 0x010203,
         "4a01020300000001caf75356f99c69c498dafe63191117163a47e83d7f08e9e088667cccd43be19b88f17f95c"
         "5"
         "17fafbfe01b8d63894b8da127770422d0a921814d18494c473d72549e32711b79bf1fee4c266cb"},
        {"CHACHA20-POLY1305", -1,
         "320000000145329fbcc4acc95771b465a4f4a08c425cde882d5b03098617b1629e42a53a7a40797808b004844"
         "4"
         "5d1cab51f53df20c4f3a9f10414bcce971949ec06d498f26a9018b2eb5fafed3cdc8c10f"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_datakey k;
        uint8_t out[256], wanted[256];
        size_t n = 0, len = unhex(cases[i].hex, wanted, sizeof(wanted));
        T_REQUIRE(cv_datakey_init(&k, cases[i].cipher, "SHA1", keys, 2, cases[i].peer) == 0);
        struct iovec iov[3] = {{packet, 20}, {packet + 20, 1}, {packet + 21, 39}};
        T_INT_EQ(cv_datakey_seal(&k, iov, 3, 60, out, sizeof(out), &n), 0);
        T_INT_EQ(n, len);
        T_INT_EQ(n, cv_datakey_sealed_len(&k, 60));
        T_MEM_EQ(out, wanted, len);
        cv_datakey_done(&k);
    }
}

static void test_open_vectors(void)
{
    static const struct {
        const char *cipher, *auth, *hex;
    } cases[] = {
        {"AES-128-CBC", "SHA1",
         "32a92db37ee4d248d0987b992d0e8ff99fde61fbf0000102030405060708090a0b0c0d0e0f880548fe5e9f1b6"
         "7"
         "fb08a4e63d8ec1b8a94144f5193fe7129962ad45d3346d1061f1d3439758adddd4107009b5a9dfb2771b5cb5a"
         "2"
         "aa06ba652276671b9bc0163f720d4118d446d8510a43a4e6c6049e"},
        {"AES-256-CBC", "SHA256",
         "4a000005ce6088bd0770618e033978b365e18df71ea437cda06e48bff6e18e594c647d8c00010203040506070"
         "8"
         "090a0b0c0d0e0fa60e3eeb4e47eef171e48ac230f54ad32d35d57cbfaac866b3ae5ea408af1a13f48f8fea675"
         "7"
         "3e12d554410b3b65140de219f8fc7a2a168666ddd64ac983d0d5c20c58e6003a833dd0f7fa61f3aed36b"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_datakey k;
        uint8_t data[256], *plain = NULL;
        size_t len = unhex(cases[i].hex, data, sizeof(data)), n = 0;
        T_REQUIRE(cv_datakey_init(&k, cases[i].cipher, cases[i].auth, keys, 2, -1) == 0);
        T_INT_EQ(cv_datakey_open(&k, data, len, &plain, &n), 0);
        T_INT_EQ(n, 60);
        T_MEM_EQ(plain, packet, 60);
        cv_datakey_done(&k);
    }
}

/* Keys with both directions exchanged. */
static void other(uint8_t out[256])
{
    memcpy(out, keys + 128, 128);
    memcpy(out + 128, keys, 128);
}

static void round_trip(const char *cipher, const char *auth, int32_t peer)
{
    struct cv_datakey a, b;
    uint8_t swapped[256], out[2048], copy[2048], *plain, big[1500];
    size_t n = 0, len = 0;
    other(swapped);
    T_REQUIRE(cv_datakey_init(&a, cipher, auth, keys, 3, peer) == 0);
    T_REQUIRE(cv_datakey_init(&b, cipher, auth, swapped, 3, peer) == 0);
    for (size_t i = 0; i < sizeof(big); i++)
        big[i] = (uint8_t)(i * 31);
    for (size_t size = 1; size <= sizeof(big); size += size < 70 ? 1 : 111) {
        struct iovec iov = {big, size};
        T_INT_EQ(cv_datakey_seal(&a, &iov, 1, size, out, sizeof(out), &n), 0);
        T_INT_EQ(n, cv_datakey_sealed_len(&a, size));
        memcpy(copy, out, n);
        T_INT_EQ(cv_datakey_open(&b, copy, n, &plain, &len), 0);
        T_INT_EQ(len, size);
        T_MEM_EQ(plain, big, size);
        memcpy(copy, out, n);
        T_INT_EQ(cv_datakey_open(&b, copy, n, &plain, &len), CV_E_PROTO); /* a replay */
    }
    struct iovec iov = {big, 40};
    T_INT_EQ(cv_datakey_seal(&a, &iov, 1, 40, out, sizeof(out), &n), 0);
    /* What is not covered by CBC's HMAC is the head. */
    for (size_t bit = a.cipher->aead ? 0 : a.head_len * 8; bit < n * 8; bit += 3) {
        memcpy(copy, out, n);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (bit < 8 * 1 && (copy[0] >> 3) != (out[0] >> 3))
            continue;
        if (peer < 0 && bit < 8)
            continue;
        T_INT_EQ(cv_datakey_open(&b, copy, n, &plain, &len), CV_E_PROTO);
    }
    for (size_t i = 1; i < n; i++) {
        uint8_t *exact = malloc(i);
        memcpy(exact, out, i);
        T_INT_EQ(cv_datakey_open(&b, exact, i, &plain, &len), CV_E_PROTO);
        free(exact);
    }
    T_INT_EQ(cv_datakey_open(&b, out, n, &plain, &len), 0);
    T_INT_EQ(cv_datakey_seal(&a, &iov, 1, 40, out, cv_datakey_sealed_len(&a, 40) - 1, &n),
             CV_E_LIMIT);
    a.next_id = CV_DATAKEY_ID_MAX + 1;
    T_INT_EQ(cv_datakey_seal(&a, &iov, 1, 40, out, sizeof(out), &n), CV_E_LIMIT);
    cv_datakey_done(&a);
    cv_datakey_done(&b);
}

static void test_round_trips(void)
{
    static const char *const ciphers[] = {"AES-256-GCM",       "AES-192-GCM", "AES-128-GCM",
                                          "CHACHA20-POLY1305", "AES-256-CBC", "AES-192-CBC",
                                          "AES-128-CBC"};
    static const char *const digests[] = {"SHA1", "SHA256", "SHA512"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(ciphers); i++)
        for (size_t j = 0; j < CV_ARRAY_SIZE(digests); j++)
            for (int32_t peer = -1; peer < 1; peer++)
                round_trip(ciphers[i], digests[j], peer);
}

static void test_unknown(void)
{
    struct cv_datakey k;
    T_INT_EQ(cv_datakey_init(&k, "BF-CBC", "SHA1", keys, 0, -1), CV_E_UNSUPPORTED);
    T_INT_EQ(cv_datakey_init(&k, "AES-128-CBC", "NO-SUCH", keys, 0, -1), CV_E_TLS);
    T_OK(cv_datakey_cipher("AES-128-CBC") != NULL && cv_datakey_cipher("none") == NULL);
}

int main(void)
{
    setup();
    T_RUN(test_seal_vectors);
    T_RUN(test_open_vectors);
    T_RUN(test_round_trips);
    T_RUN(test_unknown);
    return t_done();
}

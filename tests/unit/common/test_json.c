/* The strict reader: places, types, unknown and missing members, syntax errors. */
#include "common/json.h"

#include <stdlib.h>

#include "common/err.h"
#include "tap.h"

struct thing {
    struct cv_json_str name, note;
    uint64_t count;
    bool on;
    struct cv_json list, map;
};

static const struct cv_json_field thing_fields[] = {
    {"name", CV_JSON_STR, offsetof(struct thing, name), .required = true},
    {"note", CV_JSON_STR, offsetof(struct thing, note), .nullable = true},
    {"count", CV_JSON_UINT, offsetof(struct thing, count), .max = 100},
    {"on", CV_JSON_BOOL, offsetof(struct thing, on)},
    {"list", CV_JSON_ARRAY, offsetof(struct thing, list)},
    {"map", CV_JSON_OBJECT, offsetof(struct thing, map), .nullable = true},
};

static struct cv_json_doc *parse(const char *text)
{
    struct cv_json_error err;
    struct cv_json_doc *doc = NULL;

    if (cv_json_parse(text, strlen(text), &err, &doc) != 0)
        T_FAIL("%u:%u: %s", err.line, err.column, err.text);
    return doc;
}

static void reads_fields(void)
{
    struct cv_json_doc *doc =
        parse("{\"name\":\"n\\u00e9\",\"count\":100,\"on\":true,\"list\":[1,2],\"map\":null,"
              "\"note\":null}");
    struct thing t = {.count = 7, .note = {"kept", 4}};
    struct cv_json_error err;
    struct cv_json root;

    cv_json_root(doc, &root);
    T_INT_EQ(cv_json_read(&root, thing_fields, CV_ARRAY_SIZE(thing_fields), true, &t, &err), 0);
    T_STR_EQ(t.name.s, "n\xc3\xa9");
    T_INT_EQ(t.name.len, 3);
    T_STR_EQ(t.note.s, "kept"); /* null counts as absent, absent leaves alone */
    T_INT_EQ(t.count, 100);
    T_OK(t.on);
    T_OK(cv_json_is_present(&t.list));
    T_INT_EQ(cv_json_size(&t.list), 2);
    T_OK(!cv_json_is_present(&t.map));
    T_INT_EQ(cv_json_size(&t.map), 0);
    T_INT_EQ(cv_json_size(&root), 6);
    cv_json_free(doc);
    cv_json_free(NULL);
}

static void refuses_fields(void)
{
    static const struct {
        const char *json, *path, *text;
    } rows[] = {
        {"{}", "name", "this member is required"},
        {"{\"name\":1}", "name", "must be a string, not a number"},
        {"{\"name\":null}", "name", "must be a string, not null"},
        {"{\"name\":\"\",\"note\":false}", "note", "must be a string, not a boolean"},
        {"{\"name\":\"\",\"count\":101}", "count", "must be a whole number of 0 to 100"},
        {"{\"name\":\"\",\"count\":-1}", "count", "must be a whole number of 0 to 100"},
        {"{\"name\":\"\",\"count\":1e2}", "count",
         "must be a whole number, not a number with a fraction or exponent"},
        {"{\"name\":\"\",\"on\":0}", "on", "must be true or false, not a number"},
        {"{\"name\":\"\",\"list\":{}}", "list", "must be an array, not an object"},
        {"{\"name\":\"\",\"list\":null}", "list", "must be an array, not null"},
        {"{\"name\":\"\",\"map\":\"\"}", "map", "must be an object, not a string"},
        {"{\"name\":\"\",\"nam\":1}", "nam",
         "unknown member, known here are: name, note, count, on, list, map"},
        {"{\"name\":\"\",\"name2\":1}", "name2",
         "unknown member, known here are: name, note, count, on, list, map"},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_json_doc *doc = parse(rows[i].json);
        struct thing t = {0};
        struct cv_json_error err = {.line = 9};
        struct cv_json root;
        cv_json_root(doc, &root);
        T_INT_EQ(cv_json_read(&root, thing_fields, CV_ARRAY_SIZE(thing_fields), true, &t, &err),
                 CV_E_INVALID);
        T_STR_EQ(err.path, rows[i].path);
        T_STR_EQ(err.text, rows[i].text);
        T_INT_EQ(err.line, 0);
        cv_json_free(doc);
    }
}

static void lenient(void)
{
    struct cv_json_doc *doc = parse("{\"more\":{\"x\":[null]},\"name\":\"n\"}");
    struct thing t = {0};
    struct cv_json_error err;
    struct cv_json root;

    cv_json_root(doc, &root);
    T_INT_EQ(cv_json_read(&root, thing_fields, CV_ARRAY_SIZE(thing_fields), false, &t, &err), 0);
    T_STR_EQ(t.name.s, "n");
    cv_json_free(doc);
}

static void walks_in_order(void)
{
    struct cv_json_doc *doc = parse("{\"z\":1,\"a\":[\"x\",\"y\",3],\"m\":{}}");
    struct cv_json_error err;
    struct cv_json root, v, e;
    struct cv_json_iter it, inner;
    char keys[8] = "";

    cv_json_root(doc, &root);
    for (cv_json_iter_init(&it, &root); cv_json_next(&it, &v);) {
        snprintf(keys + strlen(keys), sizeof(keys) - strlen(keys), "%s", v.at.key);
        if (v.at.key[0] != 'a')
            continue;
        struct cv_json_str s;
        cv_json_iter_init(&inner, &v);
        T_OK(cv_json_next(&inner, &e));
        T_INT_EQ(cv_json_as_str(&e, &s, &err), 0);
        T_STR_EQ(s.s, "x");
        T_OK(cv_json_next(&inner, &e));
        T_OK(cv_json_next(&inner, &e));
        T_INT_EQ(cv_json_as_str(&e, &s, &err), CV_E_INVALID);
        T_STR_EQ(err.path, "a[2]");
        T_STR_EQ(err.text, "must be a string, not a number");
        T_OK(!cv_json_next(&inner, &e));
    }
    T_STR_EQ(keys, "zam");

    struct cv_json absent = {0};
    cv_json_iter_init(&it, &absent);
    T_OK(!cv_json_next(&it, &v));
    T_INT_EQ(cv_json_want(&absent, CV_JSON_OBJECT, &err), CV_E_INVALID);
    T_STR_EQ(err.text, "must be an object, not absent");
    cv_json_free(doc);
}

static void peeks(void)
{
    struct cv_json_doc *doc = parse("{\"a\":5,\"b\":-5,\"c\":\"5\",\"d\":5.0}");
    struct cv_json root;
    uint64_t n = 0;

    cv_json_root(doc, &root);
    T_OK(cv_json_peek_uint(&root, "a", &n));
    T_INT_EQ(n, 5);
    T_OK(!cv_json_peek_uint(&root, "b", &n));
    T_OK(!cv_json_peek_uint(&root, "c", &n));
    T_OK(!cv_json_peek_uint(&root, "d", &n));
    T_OK(!cv_json_peek_uint(&root, "e", &n));
    cv_json_free(doc);
}

static void writes_paths(void)
{
    static const struct {
        const char *key, *path;
    } rows[] = {
        {"alice", "users.alice"},
        {"a-b_c@D9", "users.a-b_c@D9"},
        {"", "users[\"\"]"},
        {"a.b", "users[\"a.b\"]"},
        {"a\"]\\", "users[\"a\\\"]\\\\\"]"},
        {"\x1b[31m\n\x7f", "users[\"?[31m??\"]"},
        {"\xc2\x9b", "users[\"?\"]"}, /* a control character of its own, U+009B */
        {"j\xc3\xb6rg", "users[\"j\xc3\xb6rg\"]"},
        {"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff1234", /* 64 */
         "users.aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff1234"},
        {"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff12345",
         "users.aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff1234..."},
        {"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff123\xc3\xb6",
         "users[\"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff123...\"]"},
    };
    struct cv_json_at root = {0}, users = {&root, "users", 5, 0};
    char out[CV_JSON_PATH_MAX];

    T_STR_EQ(cv_json_path_format(&root, out), "");
    T_STR_EQ(cv_json_path_format(NULL, out), "");
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_json_at at = {&users, rows[i].key, strlen(rows[i].key), 0};
        T_STR_EQ(cv_json_path_format(&at, out), rows[i].path);
    }
    struct cv_json_at el = {&users, NULL, 0, 12}, in = {&el, NULL, 0, 0}, k = {&in, "k", 1, 0};
    T_STR_EQ(cv_json_path_format(&k, out), "users[12][0].k");
}

/* Deeper than a path shows, and longer than it has room for. */
static void long_paths_are_cut(void)
{
    struct cv_json_at at[40] = {{0}};
    char key[100], out[CV_JSON_PATH_MAX];

    memset(key, 'k', sizeof(key));
    for (size_t i = 1; i < CV_ARRAY_SIZE(at); i++)
        at[i] = (struct cv_json_at){&at[i - 1], key, sizeof(key), 0};
    cv_json_path_format(&at[39], out);
    T_OK(strlen(out) < CV_JSON_PATH_MAX);
    T_OK(strlen(out) > 200);
}

static void shows_texts(void)
{
    char out[CV_JSON_SHOWN];

    T_STR_EQ(cv_json_show((struct cv_json_str){"a\"b\n", 4}, out), "a\"b?");
    T_STR_EQ(cv_json_show((struct cv_json_str){NULL, 0}, out), "");
    char text[200];
    memset(text, 'x', sizeof(text));
    cv_json_show((struct cv_json_str){text, sizeof(text)}, out);
    T_INT_EQ(strlen(out), 67);
    T_STR_EQ(out + 64, "...");
}

static void syntax_errors(void)
{
    static const struct {
        const char *json;
        unsigned line;
        const char *text;
    } rows[] = {
        {"", 1, "the document ends too early"},
        {"{", 1, "the document ends too early"},
        {"\"x\"", 1, "not a JSON object"},
        {"[1]", 1, "not a JSON object"},
        {"{1}", 1, "a member name in double quotes or '}' is expected"},
        {"{\"a\" 1}", 1, "':' is expected after a member name"},
        {"{\"a\":1 \"b\":2}", 1, "',' or '}' is expected"},
        {"{\"a\":[1 2]}", 1, "',' or ']' is expected"},
        {"{\"a\":}", 1, "a value is expected"},
        {"{\n\n\"a\":secret}", 3, "not a JSON value; texts need double quotes"},
        {"{\"a\":'secret'}", 1, "not a JSON value; texts need double quotes"},
        {"{\"a\":\"\\x41\"}", 1, "not a JSON escape"},
        {"{\"a\":\"\\ud800\"}", 1, "not a Unicode character"},
        {"{\"a\":\"secret\n\"}", 1, "a string must end on the line where it begins"},
        {"{\"a\":\"\x01secret\"}", 1, "a control character within a string must be escaped"},
        {"{\"a\":\"\\u0000\"}", 1, "\\u0000 is not allowed"},
        {"{\"a\\u0000\":1}", 1, "\\u0000 is not allowed"},
        {"{\"a\":{\"b\":1,\"b\":1}}", 1, "the object has this member twice"},
        {"{\"a\":9223372036854775808}", 1, "the number is too large (at most 9223372036854775807)"},
        {"{} {}", 1, "something follows the end of the document"},
        {"{\"a\":\"\xff\"}", 1, "not valid UTF-8"},
        {"\xef\xbb\xbf{}", 1, "not a JSON object"},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_json_error err;
        struct cv_json_doc *doc = NULL;
        T_INT_EQ(cv_json_parse(rows[i].json, strlen(rows[i].json), &err, &doc), CV_E_PARSE);
        bool ok = T_STR_EQ(err.text, rows[i].text);
        ok &= T_INT_EQ(err.line, rows[i].line);
        ok &= T_OK(err.column > 0);
        ok &= T_STR_EQ(err.path, "");
        ok &= T_OK(doc == NULL && strstr(err.text, "secret") == NULL);
        if (!ok)
            printf("#   %s\n", rows[i].json);
    }
}

static void deep_nesting_is_bounded(void)
{
    enum { DEPTH = 1000000 };
    struct cv_json_error err;
    struct cv_json_doc *doc = NULL;
    char *text = malloc(DEPTH + 8);

    T_REQUIRE(text != NULL);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', DEPTH);
    T_INT_EQ(cv_json_parse(text, DEPTH + 5, &err, &doc), CV_E_PARSE);
    T_STR_EQ(err.text, "nested too deeply");
    free(text);
}

/* Chunks grow, and one value may be larger than any chunk. */
static void large_values(void)
{
    enum { N = 3000000 };
    struct cv_json_error err;
    struct cv_json_doc *doc = NULL;
    char *text = malloc(N + 16);
    struct cv_json root, v;
    struct cv_json_iter it;
    struct cv_json_str s;

    T_REQUIRE(text != NULL);
    memcpy(text, "{\"a\":\"", 6);
    memset(text + 6, 'x', N);
    memcpy(text + 6 + N, "\"}", 2);
    T_REQUIRE(cv_json_parse(text, N + 8, &err, &doc) == 0);
    free(text);
    cv_json_root(doc, &root);
    cv_json_iter_init(&it, &root);
    T_REQUIRE(cv_json_next(&it, &v));
    T_INT_EQ(cv_json_as_str(&v, &s, &err), 0);
    T_INT_EQ(s.len, N);
    T_INT_EQ(strlen(s.s), N);
    cv_json_free(doc);
}

/* A text of empty objects would take 70 times its size. */
static void memory_is_bounded(void)
{
    enum { N = 200000 };
    struct cv_json_error err;
    struct cv_json_doc *doc = NULL;
    char *text = malloc(3 * N + 16);

    T_REQUIRE(text != NULL);
    memcpy(text, "{\"a\":[", 6);
    for (size_t i = 0; i < N; i++)
        memcpy(text + 6 + 3 * i, "{},", 3);
    memcpy(text + 6 + 3 * N, "1]}", 3);
    T_INT_EQ(cv_json_parse(text, 9 + 3 * N, &err, &doc), CV_E_LIMIT);
    T_INT_EQ(err.line, 0);
    T_STR_EQ(err.text,
             "the document is too large for memory: more than 32 bytes for each of its own");
    T_OK(doc == NULL);
    for (size_t i = 0; i < N; i++)
        memcpy(text + 6 + 3 * i, "11,", 3);
    T_INT_EQ(cv_json_parse(text, 9 + 3 * N, &err, &doc), 0);
    cv_json_free(doc);
    free(text);
}

int main(void)
{
    T_RUN(reads_fields);
    T_RUN(refuses_fields);
    T_RUN(lenient);
    T_RUN(walks_in_order);
    T_RUN(peeks);
    T_RUN(writes_paths);
    T_RUN(long_paths_are_cut);
    T_RUN(shows_texts);
    T_RUN(syntax_errors);
    T_RUN(deep_nesting_is_bounded);
    T_RUN(large_values);
    T_RUN(memory_is_bounded);
    return t_done();
}

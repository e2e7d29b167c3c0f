#include "common/json.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/secret.h"

#include "common/poison.h"

#define NAME_SHOWN  64 /* bytes of a member name within a path */
#define DEPTH_SHOWN 16 /* innermost places of a path */

/* Memory of one document: a list of chunks, filled from the front and released as a whole. A tree
 * of a million small objects is built and dropped in half of the time that way, and leaves no holes
 * in the heap of a process that runs for months. */
struct chunk {
    struct chunk *next; /* owned */
    size_t used, cap;
    char data[];
};

struct cv_json_doc {
    json_t *root;         /* within the chunks */
    struct chunk *chunks; /* owned; the newest first */
    size_t left;          /* bytes that may still be taken */
    bool starved;         /* memory ran out, which the library may take for a fault of syntax */
    bool exceeded;        /* 'left' did */
};

#define CHUNK_MIN ((size_t)16 << 10)
#define CHUNK_MAX ((size_t)1 << 20)

/* What a document of 'len' bytes may take. Documents that mean something take 10 to 20 times their
 * size; a list of empty objects would take 70 times. */
#define BUDGET_FACTOR 32
#define BUDGET_BASE   ((size_t)1 << 20)

static pthread_once_t library_once = PTHREAD_ONCE_INIT;
/* The document that this thread is parsing; only then does the library allocate. */
static _Thread_local struct cv_json_doc *parsing;

static struct chunk *add_chunk(struct cv_json_doc *doc, size_t size)
{
    size_t cap = doc->chunks != NULL ? CV_MIN(2 * doc->chunks->cap, CHUNK_MAX) : CHUNK_MIN, total;

    cap = CV_MAX(cap, size);
    if (CV_ADD_OVERFLOW(cap, sizeof(struct chunk), &total))
        return NULL;
    struct chunk *c = cv_try_alloc(total);
    if (c == NULL)
        return NULL;
    *c = (struct chunk){.next = doc->chunks, .cap = cap};
    doc->chunks = c;
    return c;
}

static void *library_alloc(size_t size)
{
    if (parsing == NULL)
        return cv_try_alloc(size);
    size_t aligned = (size + 7) & ~(size_t)7;
    struct chunk *c = parsing->chunks;
    if (aligned < size || aligned > parsing->left) {
        parsing->exceeded = true;
        return NULL;
    }
    parsing->left -= aligned;
    if (c == NULL || c->cap - c->used < aligned) {
        c = add_chunk(parsing, aligned);
        parsing->starved |= c == NULL;
        if (c == NULL)
            return NULL;
    }
    void *p = c->data + c->used;
    c->used += aligned;
    return p;
}

static void library_free(void *p)
{
    if (parsing == NULL)
        cv_free(p);
}

static void library_start(void)
{
    json_set_alloc_funcs(library_alloc, library_free);
}

/* The library's own messages quote the text near the fault; ours are constants. */
static const char *syntax_text(const json_error_t *e)
{
    static const struct {
        const char *theirs, *ours;
    } known[] = {
        {"'[' or '{' expected", "not a JSON object"},
        {"string or '}' expected", "a member name in double quotes or '}' is expected"},
        {"':' expected", "':' is expected after a member name"},
        {"'}' expected", "',' or '}' is expected"},
        {"']' expected", "',' or ']' is expected"},
        {"unexpected token", "a value is expected"},
        {"invalid token", "not a JSON value; texts need double quotes"},
        {"invalid escape", "not a JSON escape"},
        {"invalid Unicode", "not a Unicode character"},
        {"control character", "a control character within a string must be escaped"},
        {"unexpected newline", "a string must end on the line where it begins"},
    };

    switch (json_error_code(e)) {
    case json_error_premature_end_of_input:
        return "the document ends too early";
    case json_error_end_of_input_expected:
        return "something follows the end of the document";
    case json_error_duplicate_key:
        return "the object has this member twice";
    case json_error_numeric_overflow:
        return "the number is too large (at most 9223372036854775807)";
    case json_error_invalid_utf8:
        return "not valid UTF-8";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "\\u0000 is not allowed";
    case json_error_stack_overflow:
        return "nested too deeply";
    default:
        break;
    }
    for (size_t i = 0; i < CV_ARRAY_SIZE(known); i++) {
        if (strncmp(e->text, known[i].theirs, strlen(known[i].theirs)) == 0)
            return known[i].ours;
    }
    return "not valid JSON";
}

static int parse_failed(const struct cv_json_doc *doc, const json_error_t *e,
                        struct cv_json_error *reterr)
{
    *reterr = (struct cv_json_error){0};
    if (doc != NULL && doc->exceeded) {
        snprintf(reterr->text, sizeof(reterr->text),
                 "the document is too large for memory: more than %d bytes for each of its own",
                 BUDGET_FACTOR);
        return CV_E_LIMIT;
    }
    if (doc == NULL || doc->starved || e->text[0] == '\0') {
        snprintf(reterr->text, sizeof(reterr->text), "no memory");
        return -ENOMEM;
    }
    reterr->line = e->line > 0 ? (uint32_t)e->line : 1;
    reterr->column = e->column > 0 ? (uint32_t)e->column : 1;
    snprintf(reterr->text, sizeof(reterr->text), "%s", syntax_text(e));
    return CV_E_PARSE;
}

int cv_json_parse(const char *text, size_t len, struct cv_json_error *reterr,
                  struct cv_json_doc **ret_doc)
{
    json_error_t e = {.line = -1};
    int ret = 0;

    pthread_once(&library_once, library_start);
    struct cv_json_doc *doc = cv_try_zalloc(sizeof(*doc));
    if (doc == NULL)
        return parse_failed(NULL, &e, reterr);
    if (CV_MUL_OVERFLOW(len, (size_t)BUDGET_FACTOR, &doc->left) ||
        CV_ADD_OVERFLOW(doc->left, BUDGET_BASE, &doc->left))
        doc->left = SIZE_MAX;
    parsing = doc;
    doc->root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    parsing = NULL;
    if (doc->root == NULL) {
        ret = parse_failed(doc, &e, reterr);
    } else if (!json_is_object(doc->root)) {
        *reterr = (struct cv_json_error){.line = 1, .column = 1, .text = "not a JSON object"};
        ret = CV_E_PARSE;
    }
    if (ret != 0)
        cv_json_free(doc);
    else
        *ret_doc = doc;
    return ret;
}

void cv_json_free(struct cv_json_doc *doc)
{
    if (doc == NULL)
        return;
    for (struct chunk *c = doc->chunks, *next; c != NULL; c = next) {
        next = c->next;
        cv_secret_clear(c->data, c->used); /* a document may hold passwords */
        cv_free(c);
    }
    cv_free(doc);
}

void cv_json_root(const struct cv_json_doc *doc, struct cv_json *ret_value)
{
    *ret_value = (struct cv_json){._v = doc->root};
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a number";
    case JSON_REAL:
        return "a number with a fraction or exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

static bool kind_fits(const json_t *v, enum cv_json_kind kind)
{
    switch (kind) {
    case CV_JSON_STR:
        return json_is_string(v);
    case CV_JSON_UINT:
        return json_is_integer(v);
    case CV_JSON_BOOL:
        return json_is_boolean(v);
    case CV_JSON_OBJECT:
        return json_is_object(v);
    case CV_JSON_ARRAY:
        return json_is_array(v);
    }
    return false;
}

int cv_json_want(const struct cv_json *v, enum cv_json_kind kind, struct cv_json_error *reterr)
{
    static const char *const wanted[] = {
        [CV_JSON_STR] = "a string",       [CV_JSON_UINT] = "a whole number",
        [CV_JSON_BOOL] = "true or false", [CV_JSON_OBJECT] = "an object",
        [CV_JSON_ARRAY] = "an array",
    };

    if (v->_v != NULL && kind_fits(v->_v, kind))
        return 0;
    return cv_json_fail(reterr, CV_E_INVALID, &v->at, "must be %s, not %s", wanted[kind],
                        v->_v != NULL ? type_name(v->_v) : "absent");
}

/* Store the value of one member. */
static int read_field(const struct cv_json *v, const struct cv_json_field *f, void *out,
                      struct cv_json_error *reterr)
{
    json_t *j = v->_v;
    void *to = (char *)out + f->offset;

    if (f->nullable && json_is_null(j))
        return 0;
    int ret = cv_json_want(v, f->kind, reterr);
    if (ret != 0)
        return ret;
    switch (f->kind) {
    case CV_JSON_STR:
        *(struct cv_json_str *)to =
            (struct cv_json_str){json_string_value(j), json_string_length(j)};
        break;
    case CV_JSON_UINT: {
        json_int_t n = json_integer_value(j);
        if (n < 0 || (uint64_t)n > f->max)
            return cv_json_fail(reterr, CV_E_INVALID, &v->at,
                                "must be a whole number of 0 to %" PRIu64, f->max);
        *(uint64_t *)to = (uint64_t)n;
        break;
    }
    case CV_JSON_BOOL:
        *(bool *)to = json_is_true(j);
        break;
    case CV_JSON_OBJECT:
    case CV_JSON_ARRAY:
        *(struct cv_json *)to = *v;
        break;
    }
    return 0;
}

/* "a, b, c": the names that would have been right. */
static const char *field_names(const struct cv_json_field *fields, size_t n, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < n && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%s", i > 0 ? ", " : "", fields[i].name);
    return out;
}

static int find_field(const struct cv_json_field *fields, size_t n, const char *key, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strncmp(fields[i].name, key, len) == 0 && fields[i].name[len] == '\0')
            return (int)i;
    }
    return -1;
}

int cv_json_read(const struct cv_json *obj, const struct cv_json_field *fields, size_t n_fields,
                 bool strict, void *out, struct cv_json_error *reterr)
{
    CV_ASSERT(n_fields <= 32);
    int ret = cv_json_want(obj, CV_JSON_OBJECT, reterr);
    if (ret != 0)
        return ret;

    uint32_t seen = 0;
    struct cv_json_iter it;
    struct cv_json v;
    for (cv_json_iter_init(&it, obj); cv_json_next(&it, &v);) {
        int f = find_field(fields, n_fields, v.at.key, v.at.key_len);
        if (f < 0) {
            char names[160];
            if (!strict)
                continue;
            return cv_json_fail(reterr, CV_E_INVALID, &v.at, "unknown member, known here are: %s",
                                field_names(fields, n_fields, names, sizeof(names)));
        }
        seen |= UINT32_C(1) << f;
        ret = read_field(&v, &fields[f], out, reterr);
        if (ret != 0)
            return ret;
    }
    for (size_t i = 0; i < n_fields; i++) {
        if (!fields[i].required || (seen & UINT32_C(1) << i) != 0)
            continue;
        struct cv_json_at at = {&obj->at, fields[i].name, strlen(fields[i].name), 0};
        return cv_json_fail(reterr, CV_E_INVALID, &at, "this member is required");
    }
    return 0;
}

bool cv_json_peek_uint(const struct cv_json *obj, const char *name, uint64_t *ret_n)
{
    json_t *v = json_object_get(obj->_v, name); /* NULL also when it is no object */

    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *ret_n = (uint64_t)json_integer_value(v);
    return true;
}

int cv_json_as_str(const struct cv_json *v, struct cv_json_str *ret_str,
                   struct cv_json_error *reterr)
{
    int ret = cv_json_want(v, CV_JSON_STR, reterr);

    if (ret == 0)
        *ret_str = (struct cv_json_str){json_string_value(v->_v), json_string_length(v->_v)};
    return ret;
}

size_t cv_json_size(const struct cv_json *v)
{
    if (json_is_array((json_t *)v->_v))
        return json_array_size(v->_v);
    return json_object_size(v->_v); /* 0 for NULL and for what is no object */
}

void cv_json_iter_init(struct cv_json_iter *it, const struct cv_json *of)
{
    *it = (struct cv_json_iter){._of = of, ._it = json_object_iter(of->_v)};
}

bool cv_json_next(struct cv_json_iter *it, struct cv_json *ret_value)
{
    if (it->_it != NULL) {
        const char *key = json_object_iter_key(it->_it);
        *ret_value =
            (struct cv_json){{&it->_of->at, key, strlen(key), 0}, json_object_iter_value(it->_it)};
        it->_it = json_object_iter_next(it->_of->_v, it->_it);
        return true;
    }
    if (!json_is_array((json_t *)it->_of->_v) || it->_i >= json_array_size(it->_of->_v))
        return false;
    *ret_value =
        (struct cv_json){{&it->_of->at, NULL, 0, it->_i}, json_array_get(it->_of->_v, it->_i)};
    it->_i++;
    return true;
}

int cv_json_fail(struct cv_json_error *reterr, int err, const struct cv_json_at *at,
                 const char *fmt, ...)
{
    va_list ap;

    reterr->line = reterr->column = 0;
    cv_json_path_format(at, reterr->path);
    va_start(ap, fmt);
    vsnprintf(reterr->text, sizeof(reterr->text), fmt, ap);
    va_end(ap);
    return err;
}

static bool name_is_plain(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-' || c == '@'))
            return false;
    }
    return len > 0;
}

/* Copy 's' as far as it fits in NAME_SHOWN bytes, whole UTF-8 sequences only (the library made sure
 * that it is valid), control characters as '?', with 'quoted' escaped as in JSON. */
static size_t show(const char *s, size_t len, bool quoted, char *out)
{
    size_t n = 0, i = 0;

    while (i < len) {
        const unsigned char *c = (const unsigned char *)s + i;
        size_t seq = *c < 0x80 ? 1 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : 4;
        bool control = *c < 0x20 || *c == 0x7f || (*c == 0xc2 && i + 1 < len && c[1] < 0xa0);
        bool escape = quoted && (*c == '"' || *c == '\\');
        size_t want = control ? 1 : escape ? 2 : seq;
        if (i + seq > len || n + want > NAME_SHOWN)
            break;
        if (control) {
            out[n] = '?';
        } else if (escape) {
            out[n] = '\\';
            out[n + 1] = (char)*c;
        } else {
            memcpy(out + n, c, seq);
        }
        n += want;
        i += seq;
    }
    if (i < len) {
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n] = '\0';
    return n;
}

char *cv_json_show(struct cv_json_str s, char out[CV_JSON_SHOWN])
{
    show(s.s != NULL ? s.s : "", s.len, false, out);
    return out;
}

/* Append one member name; quoted as in JSON unless it is plain, so that a dot or a bracket within
 * it cannot be taken for structure. */
static size_t add_name(char *out, size_t cap, const char *s, size_t len, bool first)
{
    char text[CV_JSON_SHOWN];
    bool plain = name_is_plain(s, len);

    show(s, len, !plain, text);
    if (plain)
        return (size_t)snprintf(out, cap, "%s%s", first ? "" : ".", text);
    return (size_t)snprintf(out, cap, "[\"%s\"]", text);
}

char *cv_json_path_format(const struct cv_json_at *at, char out[CV_JSON_PATH_MAX])
{
    const struct cv_json_at *chain[DEPTH_SHOWN];
    size_t n = 0, len = 0;

    /* The root is the frame without a parent. */
    for (; at != NULL && at->up != NULL && n < DEPTH_SHOWN; at = at->up)
        chain[n++] = at;
    out[0] = '\0';
    while (n > 0 && len < CV_JSON_PATH_MAX) {
        const struct cv_json_at *p = chain[--n];
        size_t room = CV_JSON_PATH_MAX - len;
        if (p->key != NULL)
            len += add_name(out + len, room, p->key, p->key_len, len == 0);
        else
            len += (size_t)snprintf(out + len, room, "[%zu]", p->index);
    }
    return out;
}

/* JSON documents, read strictly: the only place that knows the JSON library.
 *
 * cv_json_parse() turns a whole text into a tree. Duplicate member names are refused everywhere,
 * also where a lenient reader would let the last one win, because two readers that disagree about
 * which one counts is how a rule gets lost; nesting is limited by the library (2048 levels). A
 * fault of syntax is reported by line and column, and never quotes the text around it, which may
 * be a password.
 *
 * A struct cv_json is a value together with the place where it stands, which is a chain of frames
 * on the caller's stack: no path is written until there is something to report.
 *
 * The members of an object are read through a table:
 *
 *     struct user { struct cv_json_str password; uint64_t rate; } u = {.rate = 0};
 *     static const struct cv_json_field fields[] = {
 *         {"password", CV_JSON_STR, offsetof(struct user, password), .required = true},
 *         {"rate", CV_JSON_UINT, offsetof(struct user, rate), .max = UINT64_MAX},
 *     };
 *     ret = cv_json_read(&value, fields, CV_ARRAY_SIZE(fields), true, &u, &err);
 *
 * which refuses unknown members, wrong types and missing members, each with its path
 * ("users.alice.rate") and with what would be right. Strings are borrowed from the document.
 *
 * A document takes about twelve times the size of its text, in few large pieces that are cleared
 * when it is released. Numbers are whole numbers up to 2^63 - 1: the library has no wider integers.
 * Not thread safe on one document; any number of documents may be read at once. */
#pragma once

#include "common/defs.h"

#define CV_JSON_PATH_MAX 256 /* of a formatted path, with the NUL */

struct cv_json_doc; /* opaque */

struct cv_json_error {
    uint32_t line, column; /* 1-based; 0 unless the text is no JSON */
    char path[CV_JSON_PATH_MAX];
    char text[256];
};

/* A place in a document: a member of, or an element in, the place 'up'. */
struct cv_json_at {
    const struct cv_json_at *up; /* borrowed (a frame that outlives this one); NULL: the root */
    const char *key;             /* borrowed from the document; NULL: an element */
    size_t key_len;
    size_t index; /* for an element */
};

struct cv_json {
    struct cv_json_at at;
    void *_v; /* borrowed from the document; NULL: absent, or null where that is allowed */
};

struct cv_json_str {
    const char *s; /* borrowed from the document, NUL-terminated, valid UTF-8; NULL: absent */
    size_t len;
};

enum cv_json_kind {
    CV_JSON_STR = 1, /* struct cv_json_str */
    CV_JSON_UINT,    /* uint64_t */
    CV_JSON_BOOL,    /* bool */
    CV_JSON_OBJECT,  /* struct cv_json */
    CV_JSON_ARRAY,   /* struct cv_json */
};

/* One member that an object may have. What is absent leaves the field of the struct alone. */
struct cv_json_field {
    const char *name;
    enum cv_json_kind kind;
    size_t offset; /* of the value in the struct that is filled */
    bool required;
    bool nullable; /* null counts as absent */
    uint64_t max;  /* for CV_JSON_UINT */
};

/* Parse a whole text whose root is an object. 0; CV_E_PARSE; CV_E_LIMIT when it consists of so many
 * tiny values that it would take more than 32 times its size; -ENOMEM. The caller owns the
 * document: cv_json_free(). */
int cv_json_parse(const char *text, size_t len, struct cv_json_error *reterr,
                  struct cv_json_doc **ret_doc) CV_MUST_CHECK;
void cv_json_free(struct cv_json_doc *doc); /* NULL is accepted */
void cv_json_root(const struct cv_json_doc *doc, struct cv_json *ret_value);

static inline bool cv_json_is_present(const struct cv_json *v)
{
    return v->_v != NULL;
}

/* Read the members of 'obj' into 'out' as 'fields' (at most 32) say; with 'strict' any other
 * member is an error, else it is ignored. 0 or CV_E_INVALID. Values that are objects and arrays
 * keep a pointer to 'obj' and must not outlive it. */
int cv_json_read(const struct cv_json *obj, const struct cv_json_field *fields, size_t n_fields,
                 bool strict, void *out, struct cv_json_error *reterr) CV_MUST_CHECK;

/* The member of that name if it is a whole number; for looking ahead at a version. */
bool cv_json_peek_uint(const struct cv_json *obj, const char *name, uint64_t *ret_n);

/* 0, or CV_E_INVALID when it is something else. */
int cv_json_want(const struct cv_json *v, enum cv_json_kind kind,
                 struct cv_json_error *reterr) CV_MUST_CHECK;
int cv_json_as_str(const struct cv_json *v, struct cv_json_str *ret_str,
                   struct cv_json_error *reterr) CV_MUST_CHECK;

/* Members or elements of an object or array, 0 for an absent value. */
size_t cv_json_size(const struct cv_json *v);

/* Walk the members of an object or the elements of an array, in the order of the document. An
 * absent value has none. */
struct cv_json_iter {
    const struct cv_json *_of; /* borrowed */
    void *_it;
    size_t _i;
};
void cv_json_iter_init(struct cv_json_iter *it, const struct cv_json *of);
bool cv_json_next(struct cv_json_iter *it, struct cv_json *ret_value);

/* Record 'fmt' as what is wrong at 'at'. Returns 'err'. */
int cv_json_fail(struct cv_json_error *reterr, int err, const struct cv_json_at *at,
                 const char *fmt, ...) CV_PRINTF(4, 5);
/* A text of the document as it may appear in a message: cut to 64 bytes (then with "..."), control
 * bytes as '?'. Returns 'out'. */
#define CV_JSON_SHOWN 68
char *cv_json_show(struct cv_json_str s, char out[CV_JSON_SHOWN]);
/* "users.alice.expire", "routes[3].selectors[0]", "users[\"a.b\"]". Long names are cut to 64 bytes.
 * Returns 'out'; an empty text for the root. */
char *cv_json_path_format(const struct cv_json_at *at, char out[CV_JSON_PATH_MAX]);

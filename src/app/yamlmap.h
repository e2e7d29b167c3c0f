/* Where everything in a YAML document stands: a tree of its nodes with lines and columns, made from
 * libyaml's events. libcyaml loads the values; this tells people where they are.
 *
 * Only what a config needs is accepted: one document, no anchors, aliases or tags, scalar keys, no
 * NUL bytes, at most CV_YAMLMAP_NODES nodes and CV_YAMLMAP_DEPTH levels. */
#pragma once

#include "common/defs.h"

#define CV_YAMLMAP_NODES 20000
#define CV_YAMLMAP_DEPTH 16
#define CV_YAMLMAP_NONE  UINT32_MAX

enum cv_yaml_kind {
    CV_YAML_SCALAR = 1,
    CV_YAML_MAP,
    CV_YAML_SEQ,
};

struct cv_yaml_node {
    enum cv_yaml_kind kind;
    uint32_t parent;       /* CV_YAMLMAP_NONE for the top */
    uint32_t index;        /* place among the parent's children */
    uint32_t children;     /* of a map or sequence */
    uint32_t line, column; /* of the value, from 1 */
    uint32_t key_line, key_column;
    char *key;  /* owned; NULL within a sequence and at the top */
    char *text; /* owned; of a scalar */
    bool null;  /* an empty plain scalar, "~" or "null" */
};

struct cv_yamlmap {
    struct cv_yaml_node *nodes; /* owned; in the order of the document, the top first */
    uint32_t n;
    uint32_t cap;
};

struct cv_yamlmap_error {
    uint32_t line, column;
    char text[200];
};

/* 0; CV_E_PARSE with *reterr; -ENOMEM. An empty document has no nodes. */
int cv_yamlmap_parse(const char *data, size_t len, struct cv_yamlmap_error *reterr,
                     struct cv_yamlmap *ret_map) CV_MUST_CHECK;
void cv_yamlmap_done(struct cv_yamlmap *m);

/* The child of 'parent' with this key, or CV_YAMLMAP_NONE. */
uint32_t cv_yamlmap_child(const struct cv_yamlmap *m, uint32_t parent, const char *key);
/* The child of 'parent' at this index. */
uint32_t cv_yamlmap_item(const struct cv_yamlmap *m, uint32_t parent, uint32_t index);
/* "listeners[0].tls.cert"; cut to 'cap'. Returns 'out'. */
char *cv_yamlmap_path(const struct cv_yamlmap *m, uint32_t node, char *out, size_t cap);

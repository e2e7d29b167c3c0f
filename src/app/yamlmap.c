#include "app/yamlmap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <yaml.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

/* An open map or sequence. */
struct level {
    uint32_t node;
    bool map;
    char *key; /* owned; the key whose value comes next */
    uint32_t key_line, key_column;
};

struct builder {
    struct cv_yamlmap map;
    struct cv_yamlmap_error *err;
    struct level level[CV_YAMLMAP_DEPTH];
    unsigned depth;
    unsigned documents;
};

static int on_event(struct builder *b, const yaml_event_t *ev);
static int on_scalar(struct builder *b, const yaml_event_t *ev);
static int on_open(struct builder *b, const yaml_event_t *ev, bool map);
static int node_add(struct builder *b, const yaml_event_t *ev, enum cv_yaml_kind kind,
                    struct cv_yaml_node **ret_node);

static int fail(struct builder *b, const yaml_mark_t *mark, const char *text)
{
    b->err->line = (uint32_t)mark->line + 1;
    b->err->column = (uint32_t)mark->column + 1;
    snprintf(b->err->text, sizeof(b->err->text), "%s", text);
    return CV_E_PARSE;
}

int cv_yamlmap_parse(const char *data, size_t len, struct cv_yamlmap_error *reterr,
                     struct cv_yamlmap *ret_map)
{
    yaml_parser_t parser;
    struct builder b = {.err = reterr};
    int ret = 0;
    bool end = false;

    *reterr = (struct cv_yamlmap_error){0};
    if (yaml_parser_initialize(&parser) == 0)
        return -ENOMEM;
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, len);
    while (ret == 0 && !end) {
        yaml_event_t ev;
        if (yaml_parser_parse(&parser, &ev) == 0) {
            if (parser.error == YAML_MEMORY_ERROR) {
                ret = -ENOMEM;
                break;
            }
            /* Reader errors (bad UTF-8) have an offset only. */
            yaml_mark_t mark =
                parser.error == YAML_READER_ERROR ? parser.mark : parser.problem_mark;
            ret = fail(&b, &mark, parser.problem != NULL ? parser.problem : "this is no YAML");
            break;
        }
        end = ev.type == YAML_STREAM_END_EVENT;
        ret = on_event(&b, &ev);
        yaml_event_delete(&ev);
    }
    yaml_parser_delete(&parser);
    for (unsigned i = 0; i < b.depth; i++)
        cv_free(b.level[i].key);
    if (ret != 0)
        cv_yamlmap_done(&b.map);
    else
        *ret_map = b.map;
    return ret;
}

static int on_event(struct builder *b, const yaml_event_t *ev)
{
    switch (ev->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (b->documents++ > 0)
            return fail(b, &ev->start_mark, "a second document begins here, only one is allowed");
        return 0;
    case YAML_ALIAS_EVENT:
        return fail(b, &ev->start_mark, "anchors and aliases are not supported");
    case YAML_SCALAR_EVENT:
        if (ev->data.scalar.anchor != NULL)
            return fail(b, &ev->start_mark, "anchors and aliases are not supported");
        if (ev->data.scalar.tag != NULL)
            return fail(b, &ev->start_mark, "tags are not supported");
        return on_scalar(b, ev);
    case YAML_MAPPING_START_EVENT:
        if (ev->data.mapping_start.anchor != NULL || ev->data.mapping_start.tag != NULL)
            return fail(b, &ev->start_mark, "anchors and tags are not supported");
        return on_open(b, ev, true);
    case YAML_SEQUENCE_START_EVENT:
        if (ev->data.sequence_start.anchor != NULL || ev->data.sequence_start.tag != NULL)
            return fail(b, &ev->start_mark, "anchors and tags are not supported");
        return on_open(b, ev, false);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        CV_ASSERT(b->depth > 0);
        cv_free(b->level[--b->depth].key);
        return 0;
    default:
        return 0;
    }
}

static int on_scalar(struct builder *b, const yaml_event_t *ev)
{
    const char *text = (const char *)ev->data.scalar.value;
    size_t len = ev->data.scalar.length;
    struct level *l = b->depth > 0 ? &b->level[b->depth - 1] : NULL;

    if (memchr(text, '\0', len) != NULL)
        return fail(b, &ev->start_mark, "a NUL byte is not allowed");
    char *copy = cv_try_strndup(text, len);
    if (copy == NULL)
        return -ENOMEM;
    if (l != NULL && l->map && l->key == NULL) {
        l->key = copy;
        l->key_line = (uint32_t)ev->start_mark.line + 1;
        l->key_column = (uint32_t)ev->start_mark.column + 1;
        return 0;
    }
    struct cv_yaml_node *node;
    int ret = node_add(b, ev, CV_YAML_SCALAR, &node);
    if (ret != 0) {
        cv_free(copy);
        return ret;
    }
    node->text = copy;
    node->null = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
                 (len == 0 || strcmp(copy, "~") == 0 || strcmp(copy, "null") == 0);
    return 0;
}

static int on_open(struct builder *b, const yaml_event_t *ev, bool map)
{
    struct cv_yaml_node *node;
    if (b->depth > 0 && b->level[b->depth - 1].map && b->level[b->depth - 1].key == NULL)
        return fail(b, &ev->start_mark, "a key must be a plain word");
    if (b->depth == CV_YAMLMAP_DEPTH)
        return fail(b, &ev->start_mark, "this is nested too deeply");
    int ret = node_add(b, ev, map ? CV_YAML_MAP : CV_YAML_SEQ, &node);
    if (ret != 0)
        return ret;
    b->level[b->depth++] = (struct level){.node = (uint32_t)(node - b->map.nodes), .map = map};
    return 0;
}

static int node_add(struct builder *b, const yaml_event_t *ev, enum cv_yaml_kind kind,
                    struct cv_yaml_node **ret_node)
{
    struct cv_yamlmap *m = &b->map;
    struct level *l = b->depth > 0 ? &b->level[b->depth - 1] : NULL;

    if (m->n == CV_YAMLMAP_NODES)
        return fail(b, &ev->start_mark, "the document has too many entries");
    if (m->n == m->cap) {
        uint32_t cap = m->cap > 0 ? m->cap * 2 : 64;
        void *nodes = cv_try_realloc_array(m->nodes, cap, sizeof(*m->nodes));
        if (nodes == NULL)
            return -ENOMEM;
        m->nodes = nodes;
        m->cap = cap;
    }
    struct cv_yaml_node *node = &m->nodes[m->n++];
    *node = (struct cv_yaml_node){.kind = kind,
                                  .parent = CV_YAMLMAP_NONE,
                                  .line = (uint32_t)ev->start_mark.line + 1,
                                  .column = (uint32_t)ev->start_mark.column + 1};
    node->key_line = node->line;
    node->key_column = node->column;
    if (l != NULL) {
        node->parent = l->node;
        node->index = m->nodes[l->node].children++;
        if (l->map) {
            node->key = l->key; /* ownership moves */
            node->key_line = l->key_line;
            node->key_column = l->key_column;
            l->key = NULL;
        }
    }
    *ret_node = node;
    return 0;
}

uint32_t cv_yamlmap_child(const struct cv_yamlmap *m, uint32_t parent, const char *key)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->nodes[i].parent == parent && m->nodes[i].key != NULL &&
            strcmp(m->nodes[i].key, key) == 0)
            return i;
    return CV_YAMLMAP_NONE;
}

uint32_t cv_yamlmap_item(const struct cv_yamlmap *m, uint32_t parent, uint32_t index)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->nodes[i].parent == parent && m->nodes[i].index == index)
            return i;
    return CV_YAMLMAP_NONE;
}

char *cv_yamlmap_path(const struct cv_yamlmap *m, uint32_t node, char *out, size_t cap)
{
    uint32_t chain[CV_YAMLMAP_DEPTH + 1];
    unsigned n = 0;
    size_t len = 0;

    for (; node != CV_YAMLMAP_NONE && n < CV_ARRAY_SIZE(chain); node = m->nodes[node].parent)
        chain[n++] = node;
    out[0] = '\0';
    while (n-- > 0 && len < cap) {
        const struct cv_yaml_node *x = &m->nodes[chain[n]];
        int did = 0;
        if (x->key != NULL)
            did = snprintf(out + len, cap - len, "%s%s", len > 0 ? "." : "", x->key);
        else if (x->parent != CV_YAMLMAP_NONE)
            did = snprintf(out + len, cap - len, "[%u]", x->index);
        len += did > 0 ? (size_t)did : 0;
    }
    return out;
}

void cv_yamlmap_done(struct cv_yamlmap *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        cv_free(m->nodes[i].key);
        cv_free(m->nodes[i].text);
    }
    CV_FREE(m->nodes);
    m->n = m->cap = 0;
}

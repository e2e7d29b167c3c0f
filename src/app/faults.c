#include "app/faults.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "app/suggest.h"

#include "common/poison.h"

struct finder {
    const struct cv_yamlmap *map;
    struct cv_config_error *err;
};

static bool find_in_section(struct finder *f, uint32_t node, const struct cv_section *s);

void cv_faults_set(struct cv_config_error *reterr, const struct cv_yamlmap *map, uint32_t node,
                   const char *text)
{
    *reterr = (struct cv_config_error){0};
    if (node != CV_YAMLMAP_NONE && node < map->n) {
        reterr->line = map->nodes[node].line;
        reterr->column = map->nodes[node].column;
        cv_yamlmap_path(map, node, reterr->path, sizeof(reterr->path));
    }
    snprintf(reterr->text, sizeof(reterr->text), "%s", text);
}

static bool found(struct finder *f, uint32_t node, const char *text)
{
    cv_faults_set(f->err, f->map, node, text);
    return true;
}

static bool found_key(struct finder *f, uint32_t node, const char *text)
{
    cv_faults_set(f->err, f->map, node, text);
    f->err->line = f->map->nodes[node].key_line;
    f->err->column = f->map->nodes[node].key_column;
    return true;
}

static bool unknown_key(struct finder *f, uint32_t node, const struct cv_section *s)
{
    struct cv_suggest suggest;
    char text[sizeof(f->err->text)];
    cv_suggest_init(&suggest, f->map->nodes[node].key);
    for (size_t i = 0; i < s->n; i++)
        cv_suggest_add(&suggest, s->options[i].key);
    const char *best = cv_suggest_best(&suggest);
    if (best != NULL) {
        snprintf(text, sizeof(text), "unknown key, did you mean '%s'?", best);
    } else {
        size_t len = (size_t)snprintf(text, sizeof(text), "unknown key, known here are");
        for (size_t i = 0; i < s->n && len < sizeof(text); i++)
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s %s", i > 0 ? "," : "",
                                    s->options[i].key);
    }
    return found_key(f, node, text);
}

static bool twice(struct finder *f, uint32_t node)
{
    const struct cv_yaml_node *n = &f->map->nodes[node];
    char text[80];
    uint32_t first = cv_yamlmap_child(f->map, n->parent, n->key);
    if (first == node)
        return false;
    snprintf(text, sizeof(text), "appears twice, first in line %u", f->map->nodes[first].key_line);
    return found_key(f, node, text);
}

static bool wrong_kind(struct finder *f, uint32_t node, const struct cv_option *o)
{
    static const char *const kinds[] = {
        [CV_YAML_SCALAR] = "a single value", [CV_YAML_MAP] = "a section", [CV_YAML_SEQ] = "a list"};
    char text[300], wanted[200];
    snprintf(text, sizeof(text), "is %s, wanted %s", kinds[f->map->nodes[node].kind],
             cv_option_wanted(o, wanted, sizeof(wanted)));
    return found(f, node, text);
}

/* The items of a list: scalars, or sections when 'o' has them. */
static bool find_in_list(struct finder *f, uint32_t node, const struct cv_option *o)
{
    char text[100];
    if (f->map->nodes[node].children > o->max) {
        snprintf(text, sizeof(text), "has %u entries, at most %" PRId64 " are allowed",
                 f->map->nodes[node].children, o->max);
        return found(f, node, text);
    }
    for (uint32_t i = node + 1; i < f->map->n; i++) {
        const struct cv_yaml_node *item = &f->map->nodes[i];
        if (item->parent != node)
            continue;
        if (o->section != NULL) {
            if (item->kind != CV_YAML_MAP)
                return found(f, i, "must be a section (key: value)");
            if (find_in_section(f, i, o->section))
                return true;
        } else if (item->kind != CV_YAML_SCALAR) {
            return found(f, i, "must be a single value");
        }
    }
    return false;
}

static bool find_in_option(struct finder *f, uint32_t node, const struct cv_option *o)
{
    const struct cv_yaml_node *n = &f->map->nodes[node];
    switch (o->type) {
    case CV_OPTION_SECTION:
    case CV_OPTION_SECTION_PTR:
        if (n->null)
            return false;
        if (n->kind != CV_YAML_MAP)
            return wrong_kind(f, node, o);
        return find_in_section(f, node, o->section);
    case CV_OPTION_SECTIONS:
    case CV_OPTION_TEXTS:
    case CV_OPTION_SERVERS:
    case CV_OPTION_PREFIXES:
        if (n->null)
            return false;
        if (n->kind != CV_YAML_SEQ)
            return wrong_kind(f, node, o);
        return find_in_list(f, node, o);
    default:
        return n->kind != CV_YAML_SCALAR && wrong_kind(f, node, o);
    }
}

static bool find_in_section(struct finder *f, uint32_t node, const struct cv_section *s)
{
    for (uint32_t i = node + 1; i < f->map->n; i++) {
        const struct cv_yaml_node *n = &f->map->nodes[i];
        if (n->parent != node)
            continue;
        const struct cv_option *o = cv_option_find(s, n->key);
        if (o == NULL)
            return unknown_key(f, i, s);
        if (twice(f, i) || find_in_option(f, i, o))
            return true;
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct cv_option *o = &s->options[i];
        char text[80];
        if ((o->flags & CV_OPTION_REQUIRED) == 0 ||
            cv_yamlmap_child(f->map, node, o->key) != CV_YAMLMAP_NONE)
            continue;
        snprintf(text, sizeof(text), "'%s' is missing", o->key);
        return found(f, node, text);
    }
    return false;
}

bool cv_faults_find(const struct cv_yamlmap *map, const struct cv_section *root,
                    struct cv_config_error *reterr)
{
    struct finder f = {.map = map, .err = reterr};
    if (map->n == 0)
        return false;
    if (map->nodes[0].kind != CV_YAML_MAP) {
        cv_faults_set(reterr, map, 0, "the file must be a list of 'key: value' lines");
        return true;
    }
    return find_in_section(&f, 0, root);
}

#include "app/rawconf.h"

#include <errno.h>
#include <string.h>

#include <cyaml/cyaml.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/secret.h"

#include "common/poison.h"

struct cv_rawconf {
    const struct cv_section *root;
    cyaml_config_t conf;
    cyaml_schema_field_t *fields; /* owned, with what is below */
    cyaml_schema_value_t top;
    cyaml_data_t *data; /* owned by libcyaml */
    char *why;          /* borrowed while loading */
    size_t why_cap;
    bool failed_alloc;
};

static cyaml_schema_field_t *schema_new(const struct cv_section *s);
static void schema_free(const struct cv_section *s, cyaml_schema_field_t *fields);

/* Lengths are checked later, by option, with a sentence of our own. */
static const cyaml_schema_value_t text_entry = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char *, 0, CYAML_UNLIMITED)};

/* libcyaml's allocator: size 0 frees. What it releases may hold the admin token, but its size is
 * not known here; cv_rawconf_free() clears the texts before. */
static void *on_mem(void *ctx, void *ptr, size_t size)
{
    struct cv_rawconf *raw = ctx;
    if (size == 0) {
        cv_free(ptr);
        return NULL;
    }
    void *p = cv_try_realloc_array(ptr, 1, size);
    if (p == NULL)
        raw->failed_alloc = true;
    return p;
}

/* Keep the first error line; the backtrace that follows is made better from the document. */
CV_PRINTF(3, 0)
static void on_log(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
    struct cv_rawconf *raw = ctx;
    if (level != CYAML_LOG_ERROR || raw->why == NULL || raw->why[0] != '\0')
        return;
    char line[256];
    vsnprintf(line, sizeof(line), fmt, args);
    line[strcspn(line, "\n")] = '\0';
    const char *text = strncmp(line, "Load: ", 6) == 0 ? line + 6 : line;
    if (strncmp(text, "Backtrace", 9) != 0)
        snprintf(raw->why, raw->why_cap, "%s", text);
}

int cv_rawconf_load(const struct cv_section *root, const char *data, size_t len, char *why,
                    size_t why_cap, struct cv_rawconf **ret_raw,
                    const struct cv_raw_slot **ret_slots)
{
    struct cv_rawconf *raw = cv_zalloc(sizeof(*raw));
    int ret = 0;

    why[0] = '\0';
    raw->root = root;
    raw->why = why;
    raw->why_cap = why_cap;
    raw->conf = (cyaml_config_t){.log_fn = on_log,
                                 .log_ctx = raw,
                                 .mem_fn = on_mem,
                                 .mem_ctx = raw,
                                 .log_level = CYAML_LOG_ERROR,
                                 .flags = CYAML_CFG_NO_ALIAS};
    raw->fields = schema_new(root);
    raw->top = (cyaml_schema_value_t){
        .type = CYAML_MAPPING,
        .flags = CYAML_FLAG_POINTER,
        .data_size = (uint32_t)(root->n * sizeof(struct cv_raw_slot)),
        .mapping = {.fields = raw->fields},
    };
    cyaml_err_t err =
        cyaml_load_data((const uint8_t *)data, len, &raw->conf, &raw->top, &raw->data, NULL);
    raw->why = NULL;
    if (err != CYAML_OK) {
        ret = err == CYAML_ERR_OOM || raw->failed_alloc ? -ENOMEM : CV_E_PARSE;
        if (why[0] == '\0')
            snprintf(why, why_cap, "%s", cyaml_strerror(err));
        cv_rawconf_free(raw);
        return ret;
    }
    *ret_raw = raw;
    *ret_slots = raw->data;
    return 0;
}

static void schema_field(const struct cv_option *o, size_t row, cyaml_schema_field_t *f)
{
    /* An option that must be there may still be written as null: that is found later. */
    unsigned flags = CYAML_FLAG_POINTER_NULL_STR;
    if ((o->flags & CV_OPTION_REQUIRED) == 0)
        flags |= CYAML_FLAG_OPTIONAL;
    *f = (cyaml_schema_field_t){
        .key = o->key,
        .data_offset =
            (uint32_t)(row * sizeof(struct cv_raw_slot) + offsetof(struct cv_raw_slot, p)),
        .count_offset =
            (uint32_t)(row * sizeof(struct cv_raw_slot) + offsetof(struct cv_raw_slot, n)),
        .count_size = sizeof(((struct cv_raw_slot *)0)->n),
        .value = {.flags = (enum cyaml_flag)flags},
    };
    cyaml_schema_value_t *v = &f->value;
    switch (o->type) {
    case CV_OPTION_SECTION:
    case CV_OPTION_SECTION_PTR:
        v->type = CYAML_MAPPING;
        v->data_size = (uint32_t)(o->section->n * sizeof(struct cv_raw_slot));
        v->mapping.fields = schema_new(o->section);
        break;
    case CV_OPTION_SECTIONS: {
        cyaml_schema_value_t *entry = cv_zalloc(sizeof(*entry));
        *entry = (cyaml_schema_value_t){
            .type = CYAML_MAPPING,
            .data_size = (uint32_t)(o->section->n * sizeof(struct cv_raw_slot)),
            .mapping = {.fields = schema_new(o->section)},
        };
        v->type = CYAML_SEQUENCE;
        v->data_size = entry->data_size;
        v->sequence.entry = entry;
        v->sequence.max = (uint32_t)o->max;
        break;
    }
    case CV_OPTION_TEXTS:
    case CV_OPTION_SERVERS:
    case CV_OPTION_PREFIXES:
        v->type = CYAML_SEQUENCE;
        v->data_size = sizeof(char *);
        v->sequence.entry = &text_entry;
        v->sequence.max = (uint32_t)o->max;
        break;
    default:
        v->type = CYAML_STRING;
        v->data_size = sizeof(char *);
        v->string.max = CYAML_UNLIMITED;
        break;
    }
}

static cyaml_schema_field_t *schema_new(const struct cv_section *s)
{
    cyaml_schema_field_t *fields = cv_zalloc((s->n + 1) * sizeof(*fields));
    for (size_t i = 0; i < s->n; i++)
        schema_field(&s->options[i], i, &fields[i]);
    return fields;
}

static void schema_free(const struct cv_section *s, cyaml_schema_field_t *fields)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct cv_option *o = &s->options[i];
        if (o->section == NULL)
            continue;
        const cyaml_schema_value_t *v = &fields[i].value;
        if (o->type == CV_OPTION_SECTIONS) {
            schema_free(o->section, (void *)(uintptr_t)v->sequence.entry->mapping.fields);
            cv_free((void *)(uintptr_t)v->sequence.entry);
        } else {
            schema_free(o->section, (void *)(uintptr_t)v->mapping.fields);
        }
    }
    cv_free(fields);
}

/* Overwrite secret texts of the root's sections before libcyaml frees them. */
static void clear_secrets(const struct cv_section *s, const struct cv_raw_slot *slots)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct cv_option *o = &s->options[i];
        if (slots[i].p == NULL)
            continue;
        if (o->type == CV_OPTION_SECTION)
            clear_secrets(o->section, slots[i].p);
        else if (o->flags & CV_OPTION_SECRET)
            cv_secret_clear(slots[i].p, strlen(slots[i].p));
    }
}

void cv_rawconf_free(struct cv_rawconf *raw)
{
    if (raw == NULL)
        return;
    if (raw->data != NULL) {
        clear_secrets(raw->root, raw->data);
        (void)cyaml_free(&raw->conf, &raw->top, raw->data, 0);
    }
    schema_free(raw->root, raw->fields);
    cv_free(raw);
}

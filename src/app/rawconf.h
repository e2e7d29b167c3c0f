/* The config as libcyaml loads it: every value still a text, in slots that follow the option table.
 * The only file that uses libcyaml is rawconf.c. */
#pragma once

#include "app/option.h"

/* One option of a section, by its row number. */
struct cv_raw_slot {
    /* A text (char *), a list of texts (char **), a section or a list of sections (struct
     * cv_raw_slot *, each section as many slots as it has options); NULL: not given, or null. */
    void *p;
    uint32_t n; /* items of a list */
};

struct cv_rawconf;
/* Load the text by the schema that the table gives. 0 with the slots of the root in *ret_slots
 * (owned by *ret_raw; NULL when the document is empty); CV_E_PARSE with libcyaml's own words in
 * 'why'; -ENOMEM. */
int cv_rawconf_load(const struct cv_section *root, const char *data, size_t len, char *why,
                    size_t why_cap, struct cv_rawconf **ret_raw,
                    const struct cv_raw_slot **ret_slots) CV_MUST_CHECK;
void cv_rawconf_free(struct cv_rawconf *raw); /* NULL is accepted */

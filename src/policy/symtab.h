/* Hash table from a name to its index in a list of names: users, policies, egresses. */
#pragma once

#include "common/json.h"

struct cv_symtab_slot {
    uint32_t tag;
    uint32_t index; /* 1-based; 0: empty */
};

struct cv_symtab {
    struct cv_symtab_slot *_slots; /* owned; NULL: nothing was ever added */
    uint64_t _mask;
    uint32_t _n, _max;
    struct cv_json_str *_names; /* owned list; the texts are borrowed and outlive the table */
};

#define CV_SYMTAB_NONE UINT32_MAX

/* Room for 'max' names. 0 or -ENOMEM. */
int cv_symtab_init(struct cv_symtab *t, uint32_t max) CV_MUST_CHECK;
void cv_symtab_done(struct cv_symtab *t);
/* Add the next name: it gets the index n, the number of names before it. Names are distinct;
 * for one that is there already the table stays as it is, and its index is returned. */
uint32_t cv_symtab_add(struct cv_symtab *t, const char *s, size_t len);
uint32_t cv_symtab_find(const struct cv_symtab *t, const char *s, size_t len);
size_t cv_symtab_bytes(const struct cv_symtab *t);

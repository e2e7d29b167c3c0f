#include "policy/symtab.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hash.h"

#include "common/poison.h"

int cv_symtab_init(struct cv_symtab *t, uint32_t max)
{
    uint64_t slots = 16;

    *t = (struct cv_symtab){0};
    while (slots < 2 * (uint64_t)max)
        slots *= 2;
    t->_slots = cv_try_zalloc(slots * sizeof(*t->_slots));
    t->_names = cv_try_alloc(CV_MAX(max, 1u) * sizeof(*t->_names));
    if (t->_slots == NULL || t->_names == NULL) {
        cv_symtab_done(t);
        return -ENOMEM;
    }
    t->_mask = slots - 1;
    t->_max = max;
    return 0;
}

void cv_symtab_done(struct cv_symtab *t)
{
    cv_free(t->_slots);
    cv_free(t->_names);
    *t = (struct cv_symtab){0};
}

static uint32_t lookup(const struct cv_symtab *t, const char *s, size_t len, uint64_t *ret_slot,
                       uint32_t *ret_tag)
{
    uint64_t h = cv_hash_bytes(cv_hash_process_key(), s, len);
    uint32_t tag = (uint32_t)(h >> 32);
    uint64_t i = h & t->_mask;

    for (; t->_slots[i].index != 0; i = (i + 1) & t->_mask) {
        if (t->_slots[i].tag != tag)
            continue;
        uint32_t index = t->_slots[i].index - 1;
        if (t->_names[index].len == len && memcmp(t->_names[index].s, s, len) == 0)
            return index;
    }
    *ret_slot = i;
    *ret_tag = tag;
    return CV_SYMTAB_NONE;
}

uint32_t cv_symtab_add(struct cv_symtab *t, const char *s, size_t len)
{
    uint64_t slot;
    uint32_t tag;
    uint32_t index = lookup(t, s, len, &slot, &tag);

    if (index != CV_SYMTAB_NONE)
        return index;
    CV_ASSERT(t->_n < t->_max);
    t->_names[t->_n] = (struct cv_json_str){s, len};
    t->_slots[slot] = (struct cv_symtab_slot){tag, ++t->_n};
    return t->_n - 1;
}

uint32_t cv_symtab_find(const struct cv_symtab *t, const char *s, size_t len)
{
    uint64_t slot;
    uint32_t tag;

    return t->_slots != NULL ? lookup(t, s, len, &slot, &tag) : CV_SYMTAB_NONE;
}

size_t cv_symtab_bytes(const struct cv_symtab *t)
{
    return t->_slots == NULL ? 0
                             : (t->_mask + 1) * sizeof(*t->_slots) + t->_max * sizeof(*t->_names);
}

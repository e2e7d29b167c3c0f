#include "policy/symtab.h"

#include "policy_util.h"

static void adds_and_finds(void)
{
    enum { N = 5000 };
    static char names[N][12];
    struct cv_symtab t;

    T_INT_EQ(cv_symtab_init(&t, N), 0);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "n%" PRIu32, i);
        T_INT_EQ(cv_symtab_find(&t, names[i], strlen(names[i])), CV_SYMTAB_NONE);
        T_INT_EQ(cv_symtab_add(&t, names[i], strlen(names[i])), i);
    }
    for (uint32_t i = 0; i < N; i++) {
        T_INT_EQ(cv_symtab_find(&t, names[i], strlen(names[i])), i);
        T_INT_EQ(cv_symtab_add(&t, names[i], strlen(names[i])), i);
    }
    T_INT_EQ(cv_symtab_find(&t, "N1", 2), CV_SYMTAB_NONE);
    T_INT_EQ(cv_symtab_find(&t, "n1", 1), CV_SYMTAB_NONE);
    T_INT_EQ(cv_symtab_find(&t, "", 0), CV_SYMTAB_NONE);
    T_OK(cv_symtab_bytes(&t) >= N * sizeof(struct cv_symtab_slot));
    cv_symtab_done(&t);
    T_INT_EQ(cv_symtab_find(&t, "n1", 2), CV_SYMTAB_NONE);
}

static void holds_none(void)
{
    struct cv_symtab t;

    T_INT_EQ(cv_symtab_init(&t, 0), 0);
    T_INT_EQ(cv_symtab_find(&t, "", 0), CV_SYMTAB_NONE);
    cv_symtab_done(&t);
}

int main(void)
{
    T_RUN(adds_and_finds);
    T_RUN(holds_none);
    return t_done();
}

#include "app/rawconf.h"

#include "app/config.h"
#include "tap.h"

/* The row of an option in the root section. */
static size_t row(const char *key)
{
    for (size_t i = 0; i < cv_option_root.n; i++)
        if (strcmp(cv_option_root.options[i].key, key) == 0)
            return i;
    T_FAIL("no option %s", key);
    return 0;
}

static void test_slots(void)
{
    static const char text[] = "node_id: n\nlisteners: [{ name: a, listen: x }, { name: b, listen: "
                               "y }]\ndirect: { allow: [q, r] }\nlog: ~\n";
    struct cv_rawconf *raw = NULL;
    const struct cv_raw_slot *slots = NULL;
    char why[200];
    T_INT_EQ(cv_rawconf_load(&cv_option_root, text, strlen(text), why, sizeof(why), &raw, &slots),
             0);
    T_REQUIRE(slots != NULL);
    T_STR_EQ(slots[row("node_id")].p, "n");
    T_OK(slots[row("workers")].p == NULL);
    T_OK(slots[row("log")].p == NULL);
    const struct cv_raw_slot *list = &slots[row("listeners")];
    const struct cv_section *s = cv_option_root.options[row("listeners")].section;
    T_INT_EQ(list->n, 2);
    T_STR_EQ(((const struct cv_raw_slot *)list->p)[s->n].p, "b"); /* the name is the first row */
    const struct cv_raw_slot *direct = slots[row("direct")].p;
    T_INT_EQ(direct[0].n, 2);
    T_STR_EQ(((char **)direct[0].p)[1], "r");
    cv_rawconf_free(raw);
    cv_rawconf_free(NULL);
}

static void test_refused(void)
{
    static const char *const rows[] = {
        "node_id: n\n",
        "node_id: n\nlisteners: []\nother: 1\n",
        "node_id: [a]\nlisteners: []\n",
        "node_id: n\nnode_id: m\nlisteners: []\n",
        "[",
        "node_id: &a n\nlisteners: [*a]\n",
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_rawconf *raw = NULL;
        const struct cv_raw_slot *slots = NULL;
        char why[200];
        T_OK(cv_rawconf_load(&cv_option_root, rows[i], strlen(rows[i]), why, sizeof(why), &raw,
                             &slots) < 0);
        T_OK(why[0] != '\0' && strchr(why, '\n') == NULL);
        T_OK(raw == NULL);
    }
}

int main(void)
{
    T_RUN(test_slots);
    T_RUN(test_refused);
    return t_done();
}

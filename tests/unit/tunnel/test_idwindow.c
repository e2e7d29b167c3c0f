#include "tunnel/idwindow.h"

#include <stdlib.h>

#include "tap.h"

static void test_edges(void)
{
    struct cv_idwindow w;
    cv_idwindow_init(&w);
    T_OK(!cv_idwindow_is_new(&w, 0));
    T_OK(cv_idwindow_is_new(&w, 1));
    cv_idwindow_note(&w, 1);
    T_OK(!cv_idwindow_is_new(&w, 1));
    cv_idwindow_note(&w, 5000);
    T_OK(!cv_idwindow_is_new(&w, 1));
    T_OK(!cv_idwindow_is_new(&w, 5000 - CV_IDWINDOW_BITS));
    T_OK(cv_idwindow_is_new(&w, 5001 - CV_IDWINDOW_BITS));
    cv_idwindow_note(&w, UINT64_MAX);
    T_OK(!cv_idwindow_is_new(&w, 5000) && !cv_idwindow_is_new(&w, UINT64_MAX));
    T_OK(cv_idwindow_is_new(&w, UINT64_MAX - 1));
}

/* Against the plain truth: a table of all ids seen. */
static void test_random(void)
{
    enum { N = 20000 };
    static bool seen[N];
    struct cv_idwindow w;
    uint64_t top = 0;
    cv_idwindow_init(&w);
    srand(1);
    for (int i = 0; i < 100000; i++) {
        int64_t id = (int64_t)top + rand() % 40 - (rand() % 8 == 0 ? 2100 : 20);
        if (id < 1 || id >= N)
            continue;
        bool fresh = !seen[id] && ((uint64_t)id > top || top - (uint64_t)id < CV_IDWINDOW_BITS);
        if (!T_INT_EQ(cv_idwindow_is_new(&w, (uint64_t)id), fresh))
            return;
        if (fresh) {
            seen[id] = true;
            cv_idwindow_note(&w, (uint64_t)id);
            top = (uint64_t)id > top ? (uint64_t)id : top;
        }
    }
}

int main(void)
{
    T_RUN(test_edges);
    T_RUN(test_random);
    return t_done();
}

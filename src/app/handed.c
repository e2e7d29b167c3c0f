#include "app/handed.h"

#include <string.h>
#include <sys/stat.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/sys.h"

#include "common/poison.h"

int cv_handed_add(struct cv_handed *h, const struct cv_takeover_item *about, const int *fds)
{
    CV_ASSERT(about->n_fds >= 1 && about->n_fds <= CV_TAKEOVER_FDS_MAX);
    if (h->n >= CV_TAKEOVER_ITEMS_MAX)
        return CV_E_LIMIT;
    if (h->v == NULL)
        h->v = cv_zalloc(CV_TAKEOVER_ITEMS_MAX * sizeof(struct cv_handed_item *));
    struct cv_handed_item *item = cv_zalloc(sizeof(*item));
    item->about = *about;
    item->about.index = (uint16_t)h->n;
    memcpy(item->fd, fds, about->n_fds * sizeof(*fds));
    h->v[h->n++] = item;
    return 0;
}

struct cv_handed_item *cv_handed_find(const struct cv_handed *h, enum cv_takeover_kind kind,
                                      const char *listen, const char *name)
{
    for (size_t i = 0; i < h->n; i++) {
        struct cv_handed_item *item = h->v[i];
        if (!item->taken && item->about.kind == kind && strcmp(item->about.listen, listen) == 0 &&
            (name == NULL || strcmp(item->about.name, name) == 0))
            return item;
    }
    return NULL;
}

struct cv_handed_item *cv_handed_find_file(const struct cv_handed *h, enum cv_takeover_kind kind,
                                           const char *path)
{
    struct stat sb;
    if (h->n == 0 || stat(path, &sb) != 0)
        return NULL;
    for (size_t i = 0; i < h->n; i++) {
        struct cv_handed_item *item = h->v[i];
        if (!item->taken && item->about.kind == kind && item->about.ino == sb.st_ino &&
            item->about.dev == sb.st_dev)
            return item;
    }
    return NULL;
}

size_t cv_handed_take(struct cv_handed_item *item, int *fds)
{
    size_t n = item->about.n_fds;
    CV_ASSERT(!item->taken);
    item->taken = true;
    for (size_t i = 0; i < n; i++) {
        fds[i] = item->fd[i];
        item->fd[i] = -1;
    }
    return n;
}

void cv_handed_done(struct cv_handed *h)
{
    for (size_t i = 0; i < h->n; i++) {
        for (size_t k = 0; k < h->v[i]->about.n_fds && h->owned; k++)
            cv_sys_close(h->v[i]->fd[k]);
        cv_free(h->v[i]);
    }
    cv_free(h->v);
    *h = (struct cv_handed){0};
}

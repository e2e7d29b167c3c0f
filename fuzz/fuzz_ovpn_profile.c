/* The profile parser on arbitrary text: what it accepts has a server and a way to know it. */
#include "common/err.h"
#include "tunnel/profile.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cv_profile_error e;
    struct cv_profile *p = NULL;
    bool strict = size > 0 && data[0] == '#';
    int ret = cv_profile_parse((const char *)data, size, NULL, strict, &e, &p);
    if (ret != 0) {
        CV_ASSERT(p == NULL && e.text[0] != '\0');
        return 0;
    }
    CV_ASSERT(p->n_remotes >= 1 && p->n_remotes <= CV_PROFILE_REMOTES_MAX);
    for (size_t i = 0; i < p->n_remotes; i++)
        CV_ASSERT(p->remotes[i].host[0] != '\0' && p->remotes[i].port != 0);
    CV_ASSERT(p->ca != NULL || p->n_prints > 0);
    CV_ASSERT((p->cert != NULL) == (p->key != NULL));
    cv_profile_free(p);
    return 0;
}

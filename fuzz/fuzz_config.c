/* The node's config: any bytes are either loaded or refused with a sentence; never both, never a
 * crash, never an endless wait. */
#include "app/config.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cv_config_error e;
    struct cv_config *c = NULL;
    char text[1024];
    if (size > 1 << 16)
        return 0;
    int ret = cv_config_parse("fuzz/culvert.yaml", (const char *)data, size, &e, &c);
    CV_ASSERT((ret == 0) == (c != NULL));
    if (ret != 0) {
        CV_ASSERT(e.text[0] != '\0');
        cv_config_error_format(&e, "culvert.yaml", text, sizeof(text));
        return 0;
    }
    CV_ASSERT(c->listeners.n > 0 && c->node_id[0] != '\0');
    struct cv_settings *s = cv_config_settings(c);
    CV_ASSERT(s->max_sessions > 0 && s->connect_timeout_ms > 0);
    cv_settings_unref(s);
    cv_config_free(c);
    return 0;
}

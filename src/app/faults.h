/* Why libcyaml refused a document, as a person would say it: the first node, in the order of the
 * file, that does not fit the option table. */
#pragma once

#include "app/config.h"
#include "app/option.h"
#include "app/yamlmap.h"

/* True and *reterr when something was found. */
bool cv_faults_find(const struct cv_yamlmap *map, const struct cv_section *root,
                    struct cv_config_error *reterr);

/* Fill in the place and the text of an error. 'node' may be CV_YAMLMAP_NONE. */
void cv_faults_set(struct cv_config_error *reterr, const struct cv_yamlmap *map, uint32_t node,
                   const char *text);

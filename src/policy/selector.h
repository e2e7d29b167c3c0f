/* One selector of a route, as people write it.
 *
 *   example.com  *.example.com  domain:example.com   the name and every name below it
 *   full:www.example.com                             that name only
 *   keyword:track                                    names that contain the text
 *   192.0.2.7  198.51.100.0/24  2001:db8::/32        addresses
 *   book:category                                    refused: this node has no address book
 *
 * Blanks around it, dots at its ends and case do not matter; a name or keyword in Unicode is
 * converted by IDNA as hosts are. An unknown prefix counts as "domain:", so that a slip of the pen
 * does not switch a rule off. */
#pragma once

#include "common/target.h"
#include "policy/decide.h"

struct cv_selector {
    /* CV_SEL_NONE: it can match no host: blank, nothing left of the pattern, longer than any name,
     * or not convertible. */
    enum cv_selector_kind kind;
    bool is_blank; /* not even counted as a selector */
    struct cv_prefix prefix;
    uint8_t len;
    char text[CV_NAME_MAX + 1]; /* normalised; for all kinds but CV_SEL_PREFIX */
};

/* 0; CV_E_UNSUPPORTED for "book:CATEGORY"; CV_E_INVALID for "book:" without a category. */
int cv_selector_parse(const char *s, size_t len, struct cv_selector *ret_selector) CV_MUST_CHECK;

/* True if 's' matches 'host' by itself: a name is matched by names, an address by addresses, and
 * an IPv6 address also as the IPv4 address that it embeds. The plain definition, which the index
 * must agree with. */
bool cv_selector_matches(const struct cv_selector *s, const struct cv_host *host);

/* Drop Unicode white space at both ends. */
void cv_selector_trim(const char **s, size_t *len);

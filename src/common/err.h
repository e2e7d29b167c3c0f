/* Error codes. Functions that can fail return int: 0, or a negative code. Codes of libc travel as
 * -errno; ours start at -1000 so that both share one space. cv_err_text() names either kind. */
#pragma once

enum cv_err {
    CV_E_MORE = -1000,         /* the input is a valid beginning, more bytes are needed */
    CV_E_PROTO = -1001,        /* the peer broke its protocol */
    CV_E_LIMIT = -1002,        /* a stated maximum was reached */
    CV_E_AUTH = -1003,         /* no such user, or the password is wrong */
    CV_E_EXPIRED = -1004,      /* the user exists but has expired */
    CV_E_POLICY = -1005,       /* the policy blocks this target */
    CV_E_DNS_NXDOMAIN = -1006, /* the name does not exist, or has no address */
    CV_E_DNS_FAIL = -1007,     /* the resolver failed or answered nothing usable */
    CV_E_DNS_TIMEOUT = -1008,  /* the resolver did not answer in time */
    CV_E_GUARD = -1009,        /* the address is private or special and was not allowed by name */
    CV_E_UNSUPPORTED = -1010,  /* understood, but not supported here */
    CV_E_TLS = -1011,          /* a TLS handshake or record failed */
    CV_E_CANCELED = -1012,     /* the caller gave up */
    CV_E_INVALID = -1013,      /* a value is outside of what its field allows */
    CV_E_PARSE = -1014,        /* text that does not follow its grammar */
    CV_E_NOTFOUND = -1015,
    CV_E_EXISTS = -1016,
    CV_E_DRAINING = -1017,    /* the node is shutting down */
    CV_E_KILLED = -1018,      /* ended on request of an operator */
    CV_E_UNAVAILABLE = -1019, /* a part that is needed is not up */
    CV_E_BACKOFF = -1020,     /* too many logins were wrong; refused for a while */
    CV_E_REVOKED = -1021,     /* the password that was logged in with is not valid any more */
};

/* The text for a code of either kind; a constant string, never NULL. */
const char *cv_err_text(int err);

/* The places where a listener can listen, as the config writes them:
 *
 *   127.0.0.1:1080   [::1]:1080   [::]:1080 (dual stack)   :1080 (the same)
 *   unix:/run/culvert.sock        a Unix socket that is created
 *   fd:NAME                       a socket that systemd passes, by LISTEN_FDNAMES or by number */
#pragma once

#include "common/addr.h"

enum cv_listen_kind {
    CV_LISTEN_ADDRESS = 1,
    CV_LISTEN_UNIX,
    CV_LISTEN_FD,
};

#define CV_LISTEN_FD_NAME_MAX 64

struct cv_listen {
    enum cv_listen_kind kind;
    struct cv_sockaddr sa;                   /* CV_LISTEN_ADDRESS, CV_LISTEN_UNIX */
    char fd_name[CV_LISTEN_FD_NAME_MAX + 1]; /* CV_LISTEN_FD */
};

/* 0; CV_E_PARSE with a sentence in 'why' that says what would be right. A relative Unix path is
 * taken as it stands. */
int cv_listen_parse(const char *text, struct cv_listen *ret, char *why, size_t why_cap);
/* True if only this machine can reach it. */
bool cv_listen_is_local(const struct cv_listen *l);

/* What systemd gives a service by environment variables: listening sockets (sd_listen_fds(3)), a
 * socket for its state (sd_notify(3)) and a watchdog. Without systemd all of it is empty. No
 * library is needed for these few lines. */
#pragma once

#include "app/listen.h"

#define CV_SYSTEMD_FDS_MAX 64

struct cv_systemd {
    int n_fds;
    int fds[CV_SYSTEMD_FDS_MAX];
    /* As systemd numbered them, 3 and up; of a node that took over, not what 'fds' has. */
    uint32_t numbers[CV_SYSTEMD_FDS_MAX];
    char names[CV_SYSTEMD_FDS_MAX][CV_LISTEN_FD_NAME_MAX + 1];
    struct cv_sockaddr notify; /* len 0: nobody listens */
    int64_t watchdog_ms;       /* how often to say that we live; 0 = never */
};

/* Read the environment, and clear it for children. */
void cv_systemd_init(struct cv_systemd *s);
/* The descriptor with this name, or with this number ("3"); -1: none was passed. */
int cv_systemd_fd(const struct cv_systemd *s, const char *name);
/* One more descriptor (ownership moves on success), as the predecessor of this process had it.
 * CV_E_LIMIT when there is no room. */
int cv_systemd_add(struct cv_systemd *s, const char *name, uint32_t number, int fd) CV_MUST_CHECK;
/* Notify at this address, written as in NOTIFY_SOCKET; what is not one is nobody. */
void cv_systemd_set_notify(struct cv_systemd *s, const char *path);
/* The address in that form. Returns 'out'. */
char *cv_systemd_notify_text(const struct cv_systemd *s, char *out, size_t cap);
/* Send the state, such as "READY=1". Failures are ignored: there is nobody to tell. */
void cv_systemd_notify(const struct cv_systemd *s, const char *state);

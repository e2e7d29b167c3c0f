#include "app/systemd.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "common/sys.h"

#include "common/poison.h"

#define FIRST_FD 3

static bool number(const char *s, uint64_t *ret)
{
    uint64_t v = 0;
    if (s == NULL || *s == '\0')
        return false;
    for (; *s != '\0'; s++) {
        if (*s < '0' || *s > '9' || v > UINT64_MAX / 100)
            return false;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *ret = v;
    return true;
}

static void init_fds(struct cv_systemd *s)
{
    uint64_t pid = 0, n = 0;
    if (!number(getenv("LISTEN_PID"), &pid) || pid != (uint64_t)getpid() ||
        !number(getenv("LISTEN_FDS"), &n))
        return;
    s->n_fds = (int)CV_MIN(n, (uint64_t)CV_SYSTEMD_FDS_MAX);
    for (int i = 0; i < s->n_fds; i++) {
        s->fds[i] = FIRST_FD + i;
        s->numbers[i] = (uint32_t)(FIRST_FD + i);
        (void)fcntl(FIRST_FD + i, F_SETFD, FD_CLOEXEC);
    }
    const char *names = getenv("LISTEN_FDNAMES");
    for (int i = 0; names != NULL && i < s->n_fds; i++) {
        size_t len = strcspn(names, ":");
        snprintf(s->names[i], sizeof(s->names[i]), "%.*s", (int)CV_MIN(len, (size_t)255), names);
        names = names[len] == ':' ? names + len + 1 : NULL;
    }
}

void cv_systemd_set_notify(struct cv_systemd *s, const char *path)
{
    s->notify.len = 0;
    size_t len = path != NULL ? strlen(path) : 0;
    if ((len > 0 && path[0] != '/' && path[0] != '@') || len >= sizeof(s->notify.un.sun_path))
        len = 0;
    if (len == 0)
        return;
    s->notify.un.sun_family = AF_UNIX;
    memcpy(s->notify.un.sun_path, path, len);
    if (path[0] == '@')
        s->notify.un.sun_path[0] = '\0'; /* an abstract address */
    s->notify.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

char *cv_systemd_notify_text(const struct cv_systemd *s, char *out, size_t cap)
{
    const char *path = s->notify.un.sun_path;
    size_t len = s->notify.len > 0 ? s->notify.len - offsetof(struct sockaddr_un, sun_path) : 0;
    if (len > 0 && path[0] == '\0')
        snprintf(out, cap, "@%.*s", (int)(len - 1), path + 1);
    else
        snprintf(out, cap, "%.*s", (int)len, path);
    return out;
}

void cv_systemd_init(struct cv_systemd *s)
{
    uint64_t us = 0, pid = 0;
    *s = (struct cv_systemd){0};
    init_fds(s);
    cv_systemd_set_notify(s, getenv("NOTIFY_SOCKET"));
    /* Half of what is asked for, as sd_watchdog_enabled(3) advises. */
    if (number(getenv("WATCHDOG_USEC"), &us) && us > 0 &&
        (!number(getenv("WATCHDOG_PID"), &pid) || pid == (uint64_t)getpid()))
        s->watchdog_ms = (int64_t)CV_MAX(us / 2000, (uint64_t)1);
    static const char *const vars[] = {"LISTEN_PID",    "LISTEN_FDS",    "LISTEN_FDNAMES",
                                       "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(vars); i++)
        (void)unsetenv(vars[i]);
}

int cv_systemd_fd(const struct cv_systemd *s, const char *name)
{
    uint64_t fd = 0;
    for (int i = 0; i < s->n_fds; i++)
        if (strcmp(s->names[i], name) == 0)
            return s->fds[i];
    for (int i = 0; number(name, &fd) && i < s->n_fds; i++)
        if (s->numbers[i] == fd)
            return s->fds[i];
    return -1;
}

int cv_systemd_add(struct cv_systemd *s, const char *name, uint32_t number, int fd)
{
    if (s->n_fds >= CV_SYSTEMD_FDS_MAX)
        return CV_E_LIMIT;
    s->fds[s->n_fds] = fd;
    s->numbers[s->n_fds] = number;
    snprintf(s->names[s->n_fds], sizeof(s->names[0]), "%s", name);
    s->n_fds++;
    return 0;
}

void cv_systemd_notify(const struct cv_systemd *s, const char *state)
{
    if (s->notify.len == 0)
        return;
    int fd = cv_sys_socket(AF_UNIX, SOCK_DGRAM, 0);
    if (fd < 0)
        return;
    (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, &s->notify.sa, s->notify.len);
    cv_sys_close(fd);
}

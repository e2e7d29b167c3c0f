#include "app/respawn.h"

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include "common/poison.h"

char *cv_respawn_path(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    out[n > 0 && (size_t)n < cap - 1 ? n : 0] = '\0';
    return out;
}

int cv_respawn(const char *path, char *const argv[], pid_t *ret_pid)
{
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int ret = posix_spawnattr_init(&attr);
    if (ret != 0)
        return -ret;
    /* The mask is that of the control thread, which takes signals from a descriptor. */
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setsigdefault(&attr, &all);
    ret = posix_spawn(ret_pid, path, NULL, &attr, argv, environ);
    (void)posix_spawnattr_destroy(&attr);
    return -ret;
}

#include "app/respawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

/* The child is this program: it tells what it was given by its exit code. */
static int child(void)
{
    sigset_t mask;
    struct sigaction pipe;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    sigaction(SIGPIPE, NULL, &pipe);
    bool blocked = sigismember(&mask, SIGTERM) == 1;
    bool fd = fcntl(atoi(getenv("T_FD")), F_GETFD) >= 0;
    return 40 + (blocked ? 1 : 0) + (pipe.sa_handler == SIG_IGN ? 2 : 0) + (fd ? 4 : 0);
}

static void test_child(void)
{
    char path[PATH_MAX], arg[] = "child", number[16];
    pid_t pid;
    int status = 0;
    sigset_t all, old;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    snprintf(number, sizeof(number), "%d", fd);
    setenv("T_FD", number, 1);
    T_OK(cv_respawn_path(path, sizeof(path))[0] == '/');
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &old);
    signal(SIGPIPE, SIG_IGN);
    T_INT_EQ(cv_respawn(path, (char *[]){path, arg, NULL}, &pid), 0);
    sigprocmask(SIG_SETMASK, &old, NULL);
    T_INT_EQ(waitpid(pid, &status, 0), pid);
    T_OK(WIFEXITED(status));
    T_INT_EQ(WEXITSTATUS(status), 40);
    close(fd);
}

static void test_no_file(void)
{
    char arg[] = "x", tiny[4];
    pid_t pid;
    T_INT_EQ(cv_respawn("/nowhere/at/all", (char *[]){arg, NULL}, &pid), -ENOENT);
    T_STR_EQ(cv_respawn_path(tiny, sizeof(tiny)), "");
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return child();
    T_RUN(test_child);
    T_RUN(test_no_file);
    return t_done();
}

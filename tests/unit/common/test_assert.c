#include "tap.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/defs.h"
#include "common/log.h"

static unsigned reports;

static void count_reports(void *arg, const char *line, size_t len)
{
    (void)arg;
    reports += memmem(line, len, "impossible state", 16) != NULL;
}

static void bugs_are_counted_and_reported_once(void)
{
    cv_log_set_sink(count_reports, NULL);
    uint64_t before = cv_bug_count();
    for (int i = 0; i < 3; i++)
        T_OK(CV_BUG_ON_ONCE(i >= 1) == (i >= 1));
    T_INT_EQ(cv_bug_count() - before, 2);
    T_INT_EQ(reports, 1);
    T_OK(CV_BUG_ON_ONCE(true)); /* another place reports again */
    T_INT_EQ(reports, 2);
    cv_log_set_sink(NULL, NULL);
}

static void a_broken_contract_aborts(void)
{
    int fds[2];
    T_REQUIRE(pipe(fds) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGABRT, SIG_DFL);
        dup2(fds[1], STDERR_FILENO);
        CV_ASSERT(1 + 1 == 2);
        CV_ASSERT(1 + 1 == 3);
        _exit(0);
    }
    T_REQUIRE(pid > 0);
    close(fds[1]);
    int status = 0;
    T_INT_EQ(waitpid(pid, &status, 0), pid);
    T_OK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    char text[512] = "";
    ssize_t n = read(fds[0], text, sizeof(text) - 1);
    T_OK(n > 0);
    T_OK(strstr(text, "assertion failed: 1 + 1 == 3") != NULL);
    close(fds[0]);
}

static void checked_arithmetic(void)
{
    size_t r;
    T_OK(!CV_ADD_OVERFLOW((size_t)1, (size_t)2, &r) && r == 3);
    T_OK(CV_ADD_OVERFLOW(SIZE_MAX, (size_t)1, &r));
    T_OK(CV_MUL_OVERFLOW(SIZE_MAX / 2 + 1, (size_t)2, &r));
    struct outer {
        int before;
        int member;
    } o;
    T_OK(CV_CONTAINER_OF(&o.member, struct outer, member) == &o);
}

int main(void)
{
    T_RUN(bugs_are_counted_and_reported_once);
    T_RUN(a_broken_contract_aborts);
    T_RUN(checked_arithmetic);
    return t_done();
}

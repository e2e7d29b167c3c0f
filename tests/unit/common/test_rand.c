#include "tap.h"

#include <sys/wait.h>
#include <unistd.h>

#include "common/defs.h"
#include "common/rand.h"

static void numbers_differ(void)
{
    uint64_t seen[200];
    bool distinct = true;
    for (size_t i = 0; i < CV_ARRAY_SIZE(seen); i++) {
        seen[i] = cv_rand_u64();
        for (size_t j = 0; j < i; j++)
            distinct = distinct && seen[i] != seen[j];
    }
    T_OK(distinct);
    uint8_t a[64] = {0}, b[64] = {0};
    cv_rand_bytes(a, sizeof(a));
    cv_rand_bytes(b, sizeof(b));
    T_OK(memcmp(a, b, sizeof(a)) != 0);
    cv_rand_bytes(NULL, 0);
}

static void below_bound_and_even(void)
{
    static const uint32_t bounds[] = {1, 2, 3, 7, 1000, 0x80000001, UINT32_MAX};
    for (size_t i = 0; i < CV_ARRAY_SIZE(bounds); i++) {
        bool inside = true;
        for (int j = 0; j < 1000; j++)
            inside = inside && cv_rand_below(bounds[i]) < bounds[i];
        T_OK(inside);
    }
    int counts[6] = {0};
    for (int i = 0; i < 60000; i++)
        counts[cv_rand_below(6)]++;
    for (int i = 0; i < 6; i++) /* 10 standard deviations */
        T_OK(counts[i] > 9000 && counts[i] < 11000);
}

static void child_of_fork_goes_its_own_way(void)
{
    cv_rand_u64(); /* fills the stock */
    int fds[2];
    T_REQUIRE(pipe(fds) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        uint64_t v = cv_rand_u64();
        _exit(write(fds[1], &v, sizeof(v)) == sizeof(v) ? 0 : 1);
    }
    T_REQUIRE(pid > 0);
    uint64_t child = 0, mine = cv_rand_u64();
    T_INT_EQ(read(fds[0], &child, sizeof(child)), sizeof(child));
    T_OK(child != mine);
    int status;
    T_INT_EQ(waitpid(pid, &status, 0), pid);
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    T_RUN(numbers_differ);
    T_RUN(below_bound_and_even);
    T_RUN(child_of_fork_goes_its_own_way);
    return t_done();
}

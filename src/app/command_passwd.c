#include <errno.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "app/command.h"
#include "common/err.h"
#include "common/secret.h"
#include "policy/passwd.h"

#include "common/poison.h"

#define PASSWORD_MAX 255 /* what SOCKS5 can carry (RFC 1929) */

/* Read one line of standard input into 'out' without its newline. 0; CV_E_LIMIT when it is longer;
 * -errno. */
static int read_line(char *out, size_t cap, size_t *ret_len)
{
    size_t len = 0;
    for (;;) {
        char c;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0 || c == '\n')
            break;
        if (len == cap)
            return CV_E_LIMIT;
        out[len++] = c;
    }
    if (len > 0 && out[len - 1] == '\r')
        len--;
    *ret_len = len;
    return 0;
}

/* Ask on the terminal, without showing what is typed. */
static int prompt(const char *text, char *out, size_t cap, size_t *ret_len)
{
    struct termios old, quiet;
    if (tcgetattr(STDIN_FILENO, &old) != 0)
        return -errno;
    quiet = old;
    quiet.c_lflag &= ~(tcflag_t)ECHO;
    fprintf(stderr, "%s", text);
    if (tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet) != 0)
        return -errno;
    int ret = read_line(out, cap, ret_len);
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &old);
    fprintf(stderr, "\n");
    return ret;
}

/* The password of the call in 'out'. 0 or the exit code, with a message. */
static int obtain(const struct cv_cli_call *call, char out[PASSWORD_MAX + 1], size_t *ret_len)
{
    char again[PASSWORD_MAX + 1];
    size_t again_len = 0;
    bool tty = isatty(STDIN_FILENO) == 1;
    int ret = tty ? prompt("password: ", out, PASSWORD_MAX, ret_len)
                  : read_line(out, PASSWORD_MAX, ret_len);
    if (ret == CV_E_LIMIT) {
        fprintf(call->err, "culvert: a password has at most %d bytes\n", PASSWORD_MAX);
        return CV_CLI_EXIT_FAILED;
    }
    if (ret != 0) {
        fprintf(call->err, "culvert: the password cannot be read: %s\n", cv_err_text(ret));
        return CV_CLI_EXIT_FAILED;
    }
    if (*ret_len == 0) {
        fprintf(call->err, "culvert: the password is empty\n");
        return CV_CLI_EXIT_FAILED;
    }
    if (!tty)
        return 0;
    ret = prompt("again: ", again, PASSWORD_MAX, &again_len);
    bool same = ret == 0 && cv_ct_equal(out, *ret_len, again, again_len);
    cv_secret_clear(again, sizeof(again));
    if (!same) {
        fprintf(call->err, "culvert: the two passwords differ\n");
        return CV_CLI_EXIT_FAILED;
    }
    return 0;
}

int cv_command_passwd(const struct cv_cli_call *call)
{
    char password[PASSWORD_MAX + 1], hash[512];
    size_t len = 0;
    int code = obtain(call, password, &len);
    if (code == 0) {
        int ret =
            cv_passwd_hash(cv_cli_is_set(call, "sha256") ? CV_PASSWD_SHA256 : CV_PASSWD_ARGON2ID,
                           password, len, hash, sizeof(hash));
        if (ret == 0) {
            fprintf(call->out, "%s\n", hash);
        } else {
            fprintf(call->err, "culvert: hashing failed: %s\n", cv_err_text(ret));
            code = CV_CLI_EXIT_FAILED;
        }
    }
    cv_secret_clear(password, sizeof(password));
    return code;
}

#include "app/command.h"

#include "common/poison.h"

int main(int argc, char *argv[])
{
    int code = cv_cli_main(&cv_command_program, argc, argv, stdout, stderr);
    /* A full disk must not look like success. */
    if (fflush(stdout) != 0 && code == 0)
        code = CV_CLI_EXIT_FAILED;
    return code;
}

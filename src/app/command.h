/* The commands of culvert. */
#pragma once

#include "app/cli.h"

extern const struct cv_cli_program cv_command_program;

int cv_command_run(const struct cv_cli_call *call);     /* command_run.c */
int cv_command_check(const struct cv_cli_call *call);   /* command_check.c */
int cv_command_explain(const struct cv_cli_call *call); /* command_explain.c */
int cv_command_passwd(const struct cv_cli_call *call);  /* command_passwd.c */
int cv_command_init(const struct cv_cli_call *call);    /* command_init.c */
int cv_command_tunnel(const struct cv_cli_call *call);  /* command_tunnel.c */

#include "app/command.h"
#include "app/runtime.h"

#include "common/poison.h"

int cv_command_run(const struct cv_cli_call *call)
{
    const char *path = cv_cli_value(call, "config");
    return cv_runtime_main(path != NULL ? path : "culvert.yaml", cv_cli_is_set(call, "takeover"));
}

#include "app/command.h"

#include "app/option.h"

#include "common/poison.h"

static int command_version(const struct cv_cli_call *call);
static int command_config_reference(const struct cv_cli_call *call);
static int command_cli_reference(const struct cv_cli_call *call);

static const struct cv_cli_option run_options[] = {
    {.name = "config", .letter = 'c', .arg = "FILE", .help = "node config (default culvert.yaml)"},
    {.name = "takeover", .help = "go on in place of the running node, which then drains and ends"},
};
static const struct cv_cli_option check_options[] = {
    {.name = "config", .letter = 'c', .arg = "FILE", .help = "node config to check"},
    {.name = "snapshot",
     .letter = 's',
     .arg = "FILE",
     .help = "snapshot to check, - for standard input"},
    {.name = "node-id",
     .letter = 'n',
     .arg = "ID",
     .help = "apply the override of this node (default: of the config)"},
    {.name = "json", .letter = 'j', .help = "answer with one line of JSON"},
};
static const struct cv_cli_option explain_options[] = {
    {.name = "snapshot",
     .letter = 's',
     .arg = "FILE",
     .required = true,
     .help = "snapshot, - for standard input"},
    {.name = "user", .letter = 'u', .arg = "NAME", .required = true, .help = "user who asks"},
    {.name = "target",
     .letter = 't',
     .arg = "HOST:PORT",
     .required = true,
     .help = "where to, as a client would write it"},
    {.name = "sniffed",
     .arg = "NAME",
     .help = "the name in the client's first bytes, on a listener that sniffs to route"},
    {.name = "node-id", .letter = 'n', .arg = "ID", .help = "apply the override of this node"},
    {.name = "config",
     .letter = 'c',
     .arg = "FILE",
     .help = "node config, for direct.allow, node_id and what it adds to egresses"},
};
static const struct cv_cli_option passwd_options[] = {
    {.name = "sha256", .help = "salted SHA-256 in place of argon2id: cheap to check, weak"},
};
static const struct cv_cli_option init_options[] = {
    {.name = "config",
     .letter = 'c',
     .arg = "FILE",
     .help = "where the config goes (default culvert.yaml); the snapshot goes beside it"},
};

static const struct cv_cli_option tunnel_options[] = {
    {.name = "username", .letter = 'u', .arg = "NAME", .help = "in place of the profile's"},
    {.name = "password-file",
     .letter = 'p',
     .arg = "FILE",
     .help = "whose first line is the password; in place of the profile's"},
    {.name = "timeout", .letter = 't', .arg = "TIME", .help = "of the whole test (default 30s)"},
    {.name = "ping", .arg = "ADDR", .help = "an IPv4 address to ping through the tunnel"},
    {.name = "url",
     .arg = "URL",
     .help = "an http:// URL to fetch, its name resolved through the tunnel too"},
    {.name = "watch",
     .arg = "TIME",
     .help = "go on for so long, with a ping each second, and tell what happened"},
    {.name = "strict", .help = "refuse a profile that would run programs or touch files"},
};

static const struct cv_cli_command commands[] = {
    {.name = "run",
     .summary = "run the node",
     .help =
         "Run the node in the foreground until SIGTERM or SIGINT, which stop accepting, wait\n"
         "limits.drain_grace for running sessions and end the rest; a second one ends at once.\n"
         "SIGHUP loads the config, the certificates and the snapshot again and reopens the\n"
         "access log; a changed config or snapshot file is noticed without a signal.\n"
         "--takeover asks the running node (takeover.socket of the config) for its listening\n"
         "sockets, so that no connection is refused or reset; if anything fails, the running\n"
         "node goes on and the exit code is 1. SIGUSR2 makes the running node start that itself.",
     .options = run_options,
     .n_options = CV_ARRAY_SIZE(run_options),
     .run = cv_command_run},
    {.name = "check",
     .summary = "check a config, a snapshot, or both",
     .help =
         "Check without starting anything. A config is checked with the certificates that it\n"
         "names, and with the snapshot that it names unless --snapshot gives another one.\n"
         "Without any option it is culvert.yaml. An error names file, line or JSON path, and\n"
         "what would be right; then the exit code is 1. Warnings, about what is allowed and "
         "hardly\n"
         "meant (a selector that can match no host, say), do not change it.\n\n"
         "--json prints one line: {\"ok\":true,\"schema_version\":1,\"version\":V,\"users\":N,\n"
         "\"routing_policies\":N,\"egresses\":N}, or {\"ok\":false,\"stage\":S,\"error\":TEXT} "
         "with S\n"
         "one of config, read, decode, compile. No secret is ever printed.",
     .options = check_options,
     .n_options = CV_ARRAY_SIZE(check_options),
     .run = cv_command_check},
    {.name = "explain",
     .summary = "tell how a snapshot decides about one target",
     .help =
         "Tell which policy, route, selector and egress a user's connection to a target meets,\n"
         "and for a direct connection to an address whether that address may be dialled.",
     .options = explain_options,
     .n_options = CV_ARRAY_SIZE(explain_options),
     .run = cv_command_explain},
    {.name = "tunnel",
     .summary = "try out an OpenVPN profile",
     .args = "test PROFILE",
     .n_args = 2,
     .help =
         "Connect as an OpenVPN client by a profile (.ovpn) and print each step with the time "
         "that\n"
         "it took: the socket, the server's first answer, TLS version and cipher, the key "
         "exchange,\n"
         "the pushed options. Needs no privilege and changes nothing on this machine. If a step\n"
         "fails, it is named with the likely reason, and the exit code is 1.",
     .options = tunnel_options,
     .n_options = CV_ARRAY_SIZE(tunnel_options),
     .run = cv_command_tunnel},
    {.name = "passwd",
     .summary = "hash a password for a snapshot",
     .help = "Read a password, from the terminal without showing it or else the first line of\n"
             "standard input, and print its hashed form for the 'password' of a user.",
     .options = passwd_options,
     .n_options = CV_ARRAY_SIZE(passwd_options),
     .run = cv_command_passwd},
    {.name = "init",
     .summary = "write a first config and snapshot",
     .help =
         "Write a config for this machine only (127.0.0.1:1080, admin on 127.0.0.1:9090) and a\n"
         "snapshot with one user and a random password, each only if there is none, and print a\n"
         "curl line to try it with.",
     .options = init_options,
     .n_options = CV_ARRAY_SIZE(init_options),
     .run = cv_command_init},
    {.name = "version",
     .summary = "print the version and the libraries",
     .help = "Print the version and the versions of the libraries that it was built with.",
     .run = command_version},
    {.name = "config-reference",
     .summary = "print doc/config.md",
     .help = "Print doc/config.md, made from the table of config options.",
     .hidden = true,
     .run = command_config_reference},
    {.name = "cli-reference",
     .summary = "print doc/cli.md",
     .help = "Print doc/cli.md, made from the tables of commands and options.",
     .hidden = true,
     .run = command_cli_reference},
};

const struct cv_cli_program cv_command_program = {
    .name = "culvert",
    .summary = "Culvert, an egress gateway: users come in by SOCKS5 and HTTP, a policy decides.",
    .commands = commands,
    .n_commands = CV_ARRAY_SIZE(commands),
};

static int command_version(const struct cv_cli_call *call)
{
    fprintf(call->out, "culvert %s\n%s\n", CV_VERSION, CV_LIBRARIES);
    return 0;
}

static int command_config_reference(const struct cv_cli_call *call)
{
    cv_option_reference(call->out);
    return 0;
}

static int command_cli_reference(const struct cv_cli_call *call)
{
    cv_cli_reference(&cv_command_program, call->out);
    return 0;
}

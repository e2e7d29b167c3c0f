/* A running node: everything below put together, on the control thread.
 *
 * The control thread is the main thread; its loop has the signals, the watches of the config and
 * the snapshot, the admin API and a few timers. Workers carry the sessions (crew.h) that come in by
 * the listeners (front.h) and are decided by what the source (control/source.h) has put in force.
 *
 * Life: cv_runtime_main() parses the config, raises the limit of descriptors, starts the workers,
 * loads the snapshot, and only then opens the listeners: a client never meets a node that has not
 * made up its mind. All listeners must open, or the start fails with exit code 1. A snapshot that
 * is missing or bad fails nothing: logins do, and readiness says so.
 *
 * SIGHUP or a changed config file: the new config is applied as a whole, or not at all with the
 * reason in the log. Running sessions are not touched.
 *
 * Takeover (takeover_give.h, takeover_take.h): the new node gets the sockets of the old one, starts
 * everything but accepting, accepts beside the old one, and only then does the old one stop and
 * drain. SIGUSR2 starts the new one. While a takeover is on its way reloads wait.
 *
 * SIGTERM, SIGINT: backlogs are taken, then the listeners close; sessions may go on for drain_grace
 * and are ended then, or at once by a second signal; logs are flushed; exit code 0. */
#pragma once

#include "common/defs.h"

/* Run the node until it is told to end; the exit code. 'takeover': in place of the node that runs.
 */
int cv_runtime_main(const char *config_path, bool takeover);

/* The worker threads: started, spoken to, joined by the control thread. */
#pragma once

#include "flow/worker.h"

struct cv_crew;
/* Runs on the worker's thread. */
typedef void (*cv_crew_fn)(struct cv_worker *w, void *arg);

/* Start 'n' workers (1..CV_WORKERS_MAX). 0, or a code: then none runs. */
int cv_crew_start(unsigned n, struct cv_node *node, struct cv_settings *settings,
                  struct cv_crew **ret_crew) CV_MUST_CHECK;
/* Run 'fn' on each worker and wait until all have. The control thread blocks for the rest of a
 * worker's turn, and no worker ever waits for the control thread. */
void cv_crew_run(struct cv_crew *crew, cv_crew_fn fn, void *arg);
/* The same without waiting; 'arg' must outlive the crew. */
void cv_crew_post(struct cv_crew *crew, cv_crew_fn fn, void *arg);
/* End the threads. False: a worker still has sessions, so that nothing of it can be freed, since
 * they may point anywhere; the process is to end. NULL is accepted. */
bool cv_crew_join(struct cv_crew *crew);
/* Free the workers; after cv_crew_join(), and after the threads of the offload have ended, which
 * hand their jobs back to the workers' loops. NULL is accepted. */
void cv_crew_free(struct cv_crew *crew);

unsigned cv_crew_count(const struct cv_crew *crew);
struct cv_worker *const *cv_crew_workers(const struct cv_crew *crew);

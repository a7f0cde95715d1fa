/* SPDX-License-Identifier: MIT */
/* The library's own threads, for a context without a pool of the caller. */
#ifndef GSC_POOL_H
#define GSC_POOL_H

#include "gradscaler.h"

typedef struct gsc_pool gsc_pool;

/* Makes threads - 1 threads; the calling thread also works. NULL: out of memory or threads. */
gsc_pool *gsc_pool_create(uint32_t threads);
void gsc_pool_destroy(gsc_pool *pool);
/* Runs tasks. One call at a time has the threads; another call runs its tasks on its own thread. */
gsc_parallel_for gsc_pool_run;

#endif

/* SPDX-License-Identifier: MIT */
/* Threads of the library's own, for a context whose caller lends it no pool. */
#ifndef GSC_POOL_H
#define GSC_POOL_H

#include "gradscaler.h"

typedef struct gsc_pool gsc_pool;

/* Makes threads - 1 threads, to which each call adds its own; NULL: out of memory or threads. */
gsc_pool *gsc_pool_create(uint32_t threads);
void gsc_pool_destroy(gsc_pool *pool);
/* One call at a time has the threads; whoever else calls meanwhile runs its tasks itself. */
gsc_parallel_for gsc_pool_run;

#endif

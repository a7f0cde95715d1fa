/* SPDX-License-Identifier: MIT */
/* The CPU backend: host memory, the calling thread and other threads. */
#ifndef GSC_CPU_H
#define GSC_CPU_H

#include "backend.h"

/* A context's data. Without a context, the calling thread works alone. */
typedef struct gsc_cpu {
    uint32_t threads;
    gsc_parallel_for *parallel_for;
    void *pool;
} gsc_cpu;

gsc_status gsc_cpu_open(const gsc_cpu_options *options, gsc_cpu **out, gsc_error *err);

/* The operation `tensors` of backend.h. */
gsc_status gsc_cpu_tensors(const gsc_exec *exec, const gsc_job *job, gsc_error *err);

#endif

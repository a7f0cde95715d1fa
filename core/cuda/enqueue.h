/* SPDX-License-Identifier: MIT */
/*
 * The public functions on a CUDA device, after their arguments in host memory were checked and `on`
 * was read in full: nothing but launches, of which none waits for another on the host.
 */
#ifndef GSC_CUDA_ENQUEUE_H
#define GSC_CUDA_ENQUEUE_H

#include "internal.h"
#include "kernels.h"

/* A call on a list that was checked. */
typedef struct gsc_cuda_job {
    enum gsc_cuda_op op;
    bool by_scale;                   /* multiplies by the factor's scale instead of its inverse */
    const gsc_factor *factor;        /* NULL: 1 */
    const gsc_tensor *tensors, *out; /* out: NULL for a call that only reads */
    uint64_t n;
    double limit;
    uint32_t want;
    gsc_report *report;   /* NULL: not wanted */
    int tensors_argument; /* position of the list, for errors */
} gsc_cuda_job;

gsc_status gsc_cuda_tensors(const gsc_exec *on, const gsc_cuda_job *job, gsc_error *err);
gsc_status gsc_cuda_workspace_size(const gsc_tensor *tensors, uint64_t n, uint32_t want,
                                   uint64_t *size, gsc_error *err);

/* The arguments as in the public function; what it lacks is NULL or 0. */
gsc_status gsc_cuda_step(const gsc_exec *on, enum gsc_cuda_step step, const gsc_policy *policy,
                         const void *a, const void *b, double number, void *out, gsc_error *err);

#endif

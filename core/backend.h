/* SPDX-License-Identifier: MIT */
/*
 * What a kind of hardware has to do: one table of operations, which the public functions call once
 * they have checked everything that is in host memory. A backend is a folder, a table, and the
 * function that creates its contexts.
 */
#ifndef GSC_BACKEND_H
#define GSC_BACKEND_H

#include "dtypes.h"
#include "internal.h"
#include "step.h"

/* What is done with the products. */
enum gsc_operation { GSC_OPERATION_CHECK, GSC_OPERATION_STORE, GSC_OPERATION_ADD };

/* A call on a list of tensors. All of it but what is marked is host memory, and was checked. */
typedef struct gsc_job {
    enum gsc_operation operation;
    bool by_scale;            /* multiplies by the factor's scale instead of its inverse */
    const gsc_factor *factor; /* the backend's memory, not checked; NULL: 1 */
    const gsc_tensor *in;     /* data: the backend's memory */
    const gsc_tensor *out;    /* NULL for a check */
    uint64_t n;
    uint64_t chunks, bytes;   /* of `in`; a chunk as in numerics.md */
    int64_t elements;         /* likewise; a complex one counts once */
    bool has_empty;           /* likewise: a tensor without elements */
    uint32_t want;            /* GSC_WANT_* bits, those of the policy among them */
    double clamp;             /* 0: none */
    const gsc_policy *policy; /* in full; NULL: none */
    gsc_report *report;       /* the backend's memory; NULL: not wanted */
    gsc_report *per_tensor;   /* likewise, n of them */
    int64_t *histogram;       /* likewise */
    int tensors_argument, options_argument, report_argument; /* positions, for errors */
} gsc_job;

/*
 * `exec` is in full and never NULL; exec->context may be NULL for the CPU alone. What is wrong with
 * values in the backend's memory the CPU says in *err; a device writes it to where the result goes.
 */
typedef struct gsc_backend {
    /* Whether `on` can be used; before any other operation on it. */
    gsc_status (*check)(const gsc_exec *exec, gsc_error *err);
    gsc_status (*tensors)(const gsc_exec *exec, const gsc_job *job, gsc_error *err);
    /* The bytes of exec->workspace that `tensors` needs; the job has neither factor, out nor
     * report.
     */
    gsc_status (*workspace_size)(const gsc_exec *exec, const gsc_job *job, uint64_t *size,
                                 gsc_error *err);
    gsc_status (*step)(const gsc_exec *exec, const gsc_step *step, gsc_error *err);
    /* `kind` and `size` are possible; `data` is that of the context. */
    gsc_status (*memory_create)(void *data, uint32_t kind, uint64_t size, void **out,
                                gsc_error *err);
    void (*memory_destroy)(void *data, void *memory);
    gsc_status (*memory_copy)(const gsc_exec *exec, void *to, const void *from, uint64_t size,
                              gsc_error *err);
    gsc_status (*wait)(const gsc_exec *exec, gsc_error *err);
    void (*destroy)(void *data);
} gsc_backend;

struct gsc_context {
    const gsc_backend *backend;
    void *data; /* the backend's own */
};

/* The first knows what needs no kernels, lest a program that calls nothing else links them all. */
extern const gsc_backend gsc_thread_backend, gsc_cpu_backend, gsc_cuda_backend;

/*
 * Where a call runs, in full and checked, argument 0 of it; and the backend that runs it, which
 * without a context is `otherwise`.
 */
gsc_status gsc_exec_read(const gsc_exec *exec, const gsc_backend *otherwise, gsc_exec *full,
                         const gsc_backend **backend, gsc_error *err);

#endif

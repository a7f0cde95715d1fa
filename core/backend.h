/* SPDX-License-Identifier: MIT */
/*
 * A backend runs the calls on one kind of hardware: a folder, a table of operations, and a function
 * that creates contexts. The public functions check everything in host memory, then call the table.
 */
#ifndef GSC_BACKEND_H
#define GSC_BACKEND_H

#include "dtypes.h"
#include "internal.h"
#include "step.h"

/* Check the products, store them, or add them to the output. */
enum gsc_operation { GSC_OPERATION_MEASURE, GSC_OPERATION_STORE, GSC_OPERATION_ADD };

/* A call on a list of tensors. Unless marked, all of it is host memory and was checked. */
typedef struct gsc_job {
    enum gsc_operation operation;
    bool by_scale;            /* multiplies by the factor's scale instead of its inverse */
    const gsc_factor *factor; /* backend's memory, not checked; NULL: 1 */
    const gsc_state *state;   /* as `factor`; nothing is written if it skips; NULL: none */
    const gsc_tensor *in;     /* the data is the backend's memory */
    const gsc_tensor *out;    /* NULL for a check */
    uint64_t n;
    uint64_t chunks, bytes;   /* of `in`; numerics.md defines a chunk */
    int64_t elements;         /* of `in`; a complex element counts once */
    bool has_empty;           /* `in` has a tensor without elements */
    uint32_t want;            /* GSC_WANT_* bits of the options and of the policy */
    double clamp;             /* 0: none */
    const gsc_policy *policy; /* all fields of this version; NULL: none */
    const gsc_tensor *loss;   /* the loss before scaling; the data is the backend's; NULL: none */
    gsc_report *report;       /* backend's memory; NULL: not wanted */
    gsc_report *per_tensor;   /* n reports; backend's memory; NULL: not wanted */
    int64_t *histogram;       /* backend's memory; NULL: not wanted */
    int tensors_argument, options_argument, report_argument; /* positions, for errors */
} gsc_job;

/*
 * `exec` is complete and never NULL; exec->context can be NULL for the CPU only. If a value in the
 * backend's memory is wrong, the CPU writes *err, and a device writes the status to the result.
 * With GSC_EXEC_WRITE_FAILURES the CPU does both.
 */
typedef struct gsc_backend {
    /* Checks that `exec` can be used. Called before any other operation with it. */
    gsc_status (*check)(const gsc_exec *exec, gsc_error *err);
    gsc_status (*tensors)(const gsc_exec *exec, const gsc_job *job, gsc_error *err);
    /* Writes the bytes of workspace that `tensors` needs. The job has no factor, out or report. */
    gsc_status (*workspace_size)(const gsc_exec *exec, const gsc_job *job, uint64_t *size,
                                 gsc_error *err);
    gsc_status (*step)(const gsc_exec *exec, const gsc_step *step, gsc_error *err);
    /* `kind` and `size` were checked; `data` is the context's. */
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

/* gsc_thread_backend has no calls on tensors: a program without them links no kernels. */
extern const gsc_backend gsc_thread_backend, gsc_cpu_backend, gsc_cuda_backend;

/* Where a call runs: the caller's exec, complete, and its backend. */
typedef struct gsc_target {
    gsc_exec exec;
    const gsc_backend *backend;
} gsc_target;

/* Reads and checks `exec`, which is argument 0. Without a context the backend is `otherwise`. */
gsc_status gsc_exec_read(const gsc_exec *exec, const gsc_backend *otherwise, gsc_target *on,
                         gsc_error *err);
/* As gsc_begin, of a function that has an exec and no tensors. */
gsc_status gsc_begin_on(const gsc_exec *exec, gsc_target *on, gsc_error *err);

#endif

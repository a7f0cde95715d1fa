/* SPDX-License-Identifier: MIT */
/*
 * What the host hands to the kernels. All of it travels as kernel parameters: nothing in host
 * memory is read once a call has returned, and a graph needs no node but launches.
 *
 * A call on tensors is a launch of `begin`, which writes what all others need into the workspace,
 * one of `chunks` for every GSC_CUDA_TENSORS tensors, or of `many` for every GSC_CUDA_MANY, and one
 * of `finish`, which folds the chunks into the report. Everything else is one launch of `step`.
 */
#ifndef GSC_CUDA_KERNELS_H
#define GSC_CUDA_KERNELS_H

#include "gradscaler.h"

/* The last is for drivers that take 32 KiB of parameters. */
#define GSC_FOR_CUDA_KERNELS(X) X(begin) X(chunks) X(finish) X(step) X(many)

enum gsc_cuda_kernel {
#define GSC_KERNEL(name) GSC_CUDA_##name,
    GSC_FOR_CUDA_KERNELS(GSC_KERNEL)
#undef GSC_KERNEL
};

enum {
    GSC_CUDA_THREADS = 256, /* of a block, which takes a chunk; `step` needs one */
    GSC_CUDA_TENSORS = 170, /* of a launch: 4 KiB of parameters, which all drivers take */
    GSC_CUDA_MANY = 1364,   /* likewise: 32 KiB, from CUDA 12.1 on */
    GSC_CUDA_BLOCK = 4096,  /* these three as in numerics.md */
    GSC_CUDA_CHUNK = 65536,
    GSC_CUDA_LANES = 64,
    GSC_CUDA_COMPLEX = 1u << 7, /* in in_dtype: two parts make an element */
};

/* What is done with a product, where there is an output. */
enum gsc_cuda_op { GSC_CUDA_STORE, GSC_CUDA_CLIP, GSC_CUDA_ADD };

/* The sum of squares of a chunk, and its tensor's index in the list. */
typedef struct gsc_cuda_sum {
    double sum;
    uint64_t tensor;
} gsc_cuda_sum;

/* A call, in the workspace. `begin` fills in what depends on the factor. */
typedef struct gsc_cuda_call {
    gsc_report *total;        /* in the workspace: what the chunks add, in any order */
    gsc_report *report;       /* the caller's */
    double *tensor_sums;      /* `tensors` of them, with GSC_WANT_NORM */
    gsc_cuda_sum *chunk_sums; /* `chunks` of them, likewise */
    uint64_t tensors, chunks;
    int64_t elements, histogram_elements;
    double multiplier, limit;
    float multiplier_f32, limit_f32;
    uint32_t op, want, in_double;
    gsc_status status;
} gsc_cuda_call;

/* The workspace, up to its sums. */
typedef struct gsc_cuda_workspace {
    gsc_report total;
    gsc_cuda_call call, add; /* gsc_accumulate is a check and, if all is finite, an addition */
} gsc_cuda_workspace;

typedef struct gsc_cuda_begin_parameter {
    gsc_cuda_workspace *workspace;
    const gsc_factor *factor; /* NULL: 1 */
    uint64_t by_scale;        /* not 0: multiplies by factor->scale instead of its inverse */
    gsc_cuda_call call;
} gsc_cuda_begin_parameter;

typedef struct gsc_cuda_tensor {
    const unsigned char *in;
    unsigned char *out;          /* NULL: nothing is written */
    uint32_t end;                /* chunks of this launch up to the tensor's last */
    uint16_t last;               /* elements, or parts, of its last chunk, less 1 */
    uint8_t in_dtype, out_dtype; /* enum gsc_dtype */
} gsc_cuda_tensor;

typedef struct gsc_cuda_chunks_parameter {
    const gsc_cuda_call *call;
    uint32_t first_tensor, first_chunk;
    gsc_cuda_tensor tensors[GSC_CUDA_TENSORS];
} gsc_cuda_chunks_parameter;

typedef struct gsc_cuda_many_parameter { /* the same, and more tensors */
    const gsc_cuda_call *call;
    uint32_t first_tensor, first_chunk;
    gsc_cuda_tensor tensors[GSC_CUDA_MANY];
} gsc_cuda_many_parameter;

typedef struct gsc_cuda_finish_parameter {
    const gsc_cuda_call *call;
} gsc_cuda_finish_parameter;

enum gsc_cuda_step {
    GSC_CUDA_STATE_INIT,
    GSC_CUDA_UPDATE,
    GSC_CUDA_SET_SCALE,
    GSC_CUDA_FACTOR_MULTIPLY,
    GSC_CUDA_MERGE,
    GSC_CUDA_CLIP_FACTOR
};

/* The arguments of the public function, in its order; a, b and out are device memory. */
typedef struct gsc_cuda_step_parameter {
    uint64_t step; /* enum gsc_cuda_step */
    gsc_policy policy;
    const void *a, *b;
    double number;
    void *out;
} gsc_cuda_step_parameter;

/*
 * The kernels as PTX, generated from kernels.cu. A module is its version, the first text and, where
 * the driver takes it, the second, which is `many`: an older one would refuse the whole module.
 */
#define GSC_CUDA_PTX_VERSION      ".version 6.0\n"
#define GSC_CUDA_PTX_VERSION_MANY ".version 8.1\n"
extern const char gsc_cuda_ptx[], gsc_cuda_ptx_many[];

#endif

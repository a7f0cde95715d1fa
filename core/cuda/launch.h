/* SPDX-License-Identifier: MIT */
/*
 * The parameters of the kernels. All input from the host is in parameters: no host memory is read
 * after a call has returned, and a graph needs only launch nodes.
 *
 * A call on tensors launches `begin`, which writes the call and GSC_CUDA_TENSORS tensors of the
 * list into the workspace. Further launches write the rest of the list: of `begin`, or of `many`
 * with GSC_CUDA_MANY tensors. Then each pass over the list is a launch of `chunks`. If a result is
 * wanted, `fold` adds the sums of a list of more than GSC_RUN chunks, and `finish` makes the
 * reports. Every other call is one launch of `step`.
 */
#ifndef GSC_CUDA_LAUNCH_H
#define GSC_CUDA_LAUNCH_H

#include "bits.h"
#include "convert.h"
#include "gradscaler.h"

/* `many` is for drivers that take 32 KiB of parameters. */
#define GSC_FOR_CUDA_KERNELS(X) X(begin) X(chunks) X(fold) X(finish) X(step) X(many)
#define GSC_CUDA_PREFIX         "gsc_cuda_" /* prefix of the kernels' names in the module */

enum gsc_cuda_kernel {
#define GSC_CUDA_KERNEL(name) GSC_CUDA_##name,
    GSC_FOR_CUDA_KERNELS(GSC_CUDA_KERNEL)
#undef GSC_CUDA_KERNEL
};

enum {
    GSC_CUDA_THREADS = 256, /* threads of a block, which runs a chunk; `step` needs one thread */
    GSC_CUDA_TENSORS = 160, /* tensors of a launch of `begin`: 4 KiB, as all drivers take */
    GSC_CUDA_MANY = 1354,   /* tensors of a launch of `many`: 32,744 bytes, from CUDA 12.1 on */
    GSC_CUDA_COMPLEX = 1u << 7, /* bit of in_dtype: two parts make an element */
};

/* Store a product, clamp and store it, or add it to the output. */
enum gsc_cuda_operation { GSC_CUDA_STORE, GSC_CUDA_CLAMP, GSC_CUDA_ADD };

/* The counts of a tensor. */
enum gsc_cuda_count {
    GSC_CUDA_NAN,
    GSC_CUDA_INF,
    GSC_CUDA_ZEROS,
    GSC_CUDA_SUBNORMALS,
    GSC_CUDA_CLAMPED,
    GSC_CUDA_COUNTS
};

/* A tensor of the list. Chunks are numbered in the order of the list. */
typedef struct gsc_cuda_tensor {
    const unsigned char *in;
    unsigned char *out;          /* NULL: nothing is written */
    uint32_t end;                /* number of the chunk after the tensor's last */
    uint16_t last;               /* elements, or parts, of the last chunk, less 1 */
    uint8_t in_dtype, out_dtype; /* enum gsc_real_dtype */
} gsc_cuda_tensor;

/* The results of a tensor, in 64 bytes. Its chunks add to the record in any order. */
typedef struct gsc_cuda_record {
    uint32_t first_chunk, chunks;
    uint64_t amax; /* |bits| of the largest magnitude */
    int64_t counts[GSC_CUDA_COUNTS];
    int64_t first_element; /* the first that is not finite; INT64_MAX: none */
} gsc_cuda_record;

typedef struct gsc_cuda_chunk {
    double sum_squares; /* after `fold`, the first chunk of a run has the sum of the run */
    uint64_t index;     /* number of the chunk in its tensor */
} gsc_cuda_chunk;

/* A call, in the workspace. `begin` sets the fields that depend on the factor. */
typedef struct gsc_cuda_call {
    gsc_cuda_tensor *list;           /* `tensors` entries */
    gsc_cuda_record *records;        /* `tensors` entries */
    gsc_cuda_chunk *chunks;          /* `all_chunks` entries */
    int64_t *overflow;               /* not 0 if an element is not finite; NULL: not wanted */
    int64_t *bins;                   /* GSC_BINS counts of a histogram; NULL: not wanted */
    gsc_report *report, *per_tensor; /* the caller's; NULL: not wanted */
    int64_t *histogram;              /* the caller's; NULL: not wanted */
    double multiplier; /* this to `status`, which all chunks need, is 32 bytes: one access */
    float multiplier_f32;
    uint32_t operation, want, in_double, writes;
    gsc_status status;
    uint64_t tensors, all_chunks;
    int64_t elements, histogram_elements;
    double limits[gsc_dtypes]; /* the clamp, by the output's dtype */
    uint64_t generation;       /* the factor's */
} gsc_cuda_call;

/* The head of the workspace. Records, list and chunks follow. */
typedef struct gsc_cuda_workspace {
    gsc_cuda_call call, add; /* second pass of gsc_unscale_accumulate, if all products are finite */
    int64_t overflow, bins[GSC_BINS];
} gsc_cuda_workspace;

/* The fields of gsc_policy that the kernels use. Later versions only add fields after them. */
typedef struct gsc_cuda_policy {
    uint64_t words[27];
} gsc_cuda_policy;

typedef struct gsc_cuda_begin_header {
    gsc_cuda_workspace *workspace;
    const gsc_factor *factor; /* NULL: 1 */
    uint64_t by_scale;        /* not 0: multiplies by factor->scale instead of its inverse */
    gsc_cuda_call call;
    uint32_t first_tensor, tensors; /* tensors of this launch; the first launch has tensor 0 */
} gsc_cuda_begin_header;

typedef struct gsc_cuda_begin_parameter {
    gsc_cuda_begin_header header;
    gsc_cuda_tensor tensors[1 + GSC_CUDA_TENSORS]; /* [0]: only `end`, of the tensor before */
} gsc_cuda_begin_parameter;

typedef struct gsc_cuda_many_parameter { /* as gsc_cuda_begin_parameter, with more tensors */
    gsc_cuda_begin_header header;
    gsc_cuda_tensor tensors[1 + GSC_CUDA_MANY];
} gsc_cuda_many_parameter;

typedef struct gsc_cuda_chunks_parameter {
    const gsc_cuda_call *call;
    const gsc_cuda_tensor *list; /* the call's */
    uint32_t tensors;
} gsc_cuda_chunks_parameter;

typedef struct gsc_cuda_fold_parameter {
    const gsc_cuda_call *call;
} gsc_cuda_fold_parameter;

typedef struct gsc_cuda_finish_parameter {
    const gsc_cuda_call *call;
    gsc_cuda_policy policy; /* all zeros: none, so only elements are judged */
} gsc_cuda_finish_parameter;

/* A gsc_step, byte for byte; the policy ends earlier. */
typedef struct gsc_cuda_step_parameter {
    uint32_t kind, merge;
    uint64_t has_policy;
    const gsc_factor *factor;
    const gsc_state *state, *other;
    const gsc_report *reports;
    uint64_t n;
    double number;
    void *out;
    gsc_cuda_policy policy;
} gsc_cuda_step_parameter;

/*
 * The kernels as PTX, generated from kernels.cu. A module is a version line and the first text. If
 * the driver takes 32 KiB of parameters, the second text, `many`, follows: an older driver would
 * refuse the whole module.
 */
#define GSC_CUDA_PTX_VERSION      ".version 6.0\n"
#define GSC_CUDA_PTX_VERSION_MANY ".version 8.1\n"
extern const char gsc_cuda_ptx[], gsc_cuda_ptx_many[];

#endif

/* SPDX-License-Identifier: MIT */
/*
 * What the host hands to the kernels. All of it travels as kernel parameters: nothing in host
 * memory is read once a call has returned, and a graph needs no node but launches.
 *
 * A call on tensors is a launch of `begin`, which writes what all others need into the workspace
 * with the first GSC_CUDA_TENSORS tensors of the list, more of it for the others, or of `many` for
 * GSC_CUDA_MANY at a time; one of `chunks` for each pass over the list; and, where somebody asks,
 * one of `fold`, which adds sums, and of `finish`, which makes the reports. Everything else is one
 * launch of `step`.
 */
#ifndef GSC_CUDA_LAUNCH_H
#define GSC_CUDA_LAUNCH_H

#include "bits.h"
#include "convert.h"
#include "gradscaler.h"

/* The last is for drivers that take 32 KiB of parameters. */
#define GSC_FOR_CUDA_KERNELS(X) X(begin) X(chunks) X(fold) X(finish) X(step) X(many)
#define GSC_CUDA_PREFIX         "gsc_cuda_" /* of their names in the module */

enum gsc_cuda_kernel {
#define GSC_CUDA_KERNEL(name) GSC_CUDA_##name,
    GSC_FOR_CUDA_KERNELS(GSC_CUDA_KERNEL)
#undef GSC_CUDA_KERNEL
};

enum {
    GSC_CUDA_THREADS = 256,     /* of a block, which takes a chunk; `step` needs one */
    GSC_CUDA_TENSORS = 160,     /* of a launch: 4 KiB of parameters, which all drivers take */
    GSC_CUDA_MANY = 1354,       /* likewise: 32,744 bytes, from CUDA 12.1 on */
    GSC_CUDA_COMPLEX = 1u << 7, /* in in_dtype: two parts make an element */
};

/* What is done with a product, where there is an output. */
enum gsc_cuda_operation { GSC_CUDA_STORE, GSC_CUDA_CLAMP, GSC_CUDA_ADD };

/* What is counted of a tensor. */
enum gsc_cuda_count {
    GSC_CUDA_NAN,
    GSC_CUDA_INF,
    GSC_CUDA_ZEROS,
    GSC_CUDA_SUBNORMALS,
    GSC_CUDA_CLAMPED,
    GSC_CUDA_COUNTS
};

/* Of a list, in the order of which chunks are numbered. */
typedef struct gsc_cuda_tensor {
    const unsigned char *in;
    unsigned char *out;          /* NULL: nothing is written */
    uint32_t end;                /* chunks of the call up to the tensor's last */
    uint16_t last;               /* elements, or parts, of its last chunk, less 1 */
    uint8_t in_dtype, out_dtype; /* enum gsc_real_dtype */
} gsc_cuda_tensor;

/* What is known of a tensor, in 64 bytes; its chunks add to it in any order. */
typedef struct gsc_cuda_record {
    uint32_t first_chunk, chunks; /* zeros, as `elements`, if it has none */
    int64_t elements;
    int64_t counts[GSC_CUDA_COUNTS];
    int64_t first_element; /* that is not finite; INT64_MAX: none */
} gsc_cuda_record;

/* What is measured of a chunk; after `fold`, the first of a run has it of all of them. */
typedef struct gsc_cuda_chunk {
    double sum_squares, amax;
    uint64_t index; /* in the tensor */
} gsc_cuda_chunk;

/* A call, in the workspace. `begin` fills in what depends on the factor. */
typedef struct gsc_cuda_call {
    gsc_cuda_tensor *list;           /* `tensors` of them */
    gsc_cuda_record *records;        /* likewise */
    gsc_cuda_chunk *chunks;          /* `all_chunks` of them */
    int64_t *overflow;               /* set where an element is not finite; NULL: nobody asks */
    int64_t *bins;                   /* of a histogram, GSC_BINS of them; NULL: none is wanted */
    gsc_report *report, *per_tensor; /* the caller's; NULL: not wanted */
    int64_t *histogram;              /* likewise */
    uint64_t tensors, all_chunks;
    int64_t elements, histogram_elements;
    double multiplier;
    double limits[gsc_dtypes]; /* of the clamp, by the output's dtype */
    uint64_t generation;       /* of the factor */
    float multiplier_f32;
    uint32_t operation, want, in_double, writes;
    gsc_status status;
} gsc_cuda_call;

/* The workspace, up to its records, list and chunks. */
typedef struct gsc_cuda_workspace {
    gsc_cuda_call call,
        add; /* gsc_unscale_accumulate is a check and, if all is finite, an addition */
    int64_t overflow, bins[GSC_BINS];
} gsc_cuda_workspace;

/* What of a gsc_policy the kernels know: whatever it grows by is not theirs, and 0 is none. */
typedef struct gsc_cuda_policy {
    uint64_t words[27];
} gsc_cuda_policy;

typedef struct gsc_cuda_begin_header {
    gsc_cuda_workspace *workspace;
    const gsc_factor *factor; /* NULL: 1 */
    uint64_t by_scale;        /* not 0: multiplies by factor->scale instead of its inverse */
    gsc_cuda_call call;
    uint32_t first_tensor, tensors; /* of this launch; the first is of tensor 0 */
} gsc_cuda_begin_header;

typedef struct gsc_cuda_begin_parameter {
    gsc_cuda_begin_header header;
    gsc_cuda_tensor tensors[1 + GSC_CUDA_TENSORS]; /* the first only says where it ends */
} gsc_cuda_begin_parameter;

typedef struct gsc_cuda_many_parameter { /* the same, and more tensors */
    gsc_cuda_begin_header header;
    gsc_cuda_tensor tensors[1 + GSC_CUDA_MANY];
} gsc_cuda_many_parameter;

typedef struct gsc_cuda_chunks_parameter {
    const gsc_cuda_call *call;
} gsc_cuda_chunks_parameter, gsc_cuda_fold_parameter;

typedef struct gsc_cuda_finish_parameter {
    const gsc_cuda_call *call;
    gsc_cuda_policy policy; /* zeros, which judge by the elements: none */
} gsc_cuda_finish_parameter;

/* A gsc_step. */
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
 * The kernels as PTX, generated from kernels.cu. A module is its version, the first text and, where
 * the driver takes it, the second, which is `many`: an older one would refuse the whole module.
 */
#define GSC_CUDA_PTX_VERSION      ".version 6.0\n"
#define GSC_CUDA_PTX_VERSION_MANY ".version 8.1\n"
extern const char gsc_cuda_ptx[], gsc_cuda_ptx_many[];

#endif

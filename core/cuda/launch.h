/* SPDX-License-Identifier: MIT */
/*
 * The parameters of the kernels. All input from the host is in parameters: no host memory is read
 * after a call has returned, and a graph needs only launch nodes.
 *
 * A call on tensors is a launch of `chunks`, with the list in its parameter; gsc_unscale_accumulate
 * is two, as nothing is added if a product or the loss is not finite. The block that ends last adds
 * the results and makes the reports. A list of more than GSC_CUDA_TENSORS tensors, or with a
 * histogram, is written into the workspace before: by `list`, or by `many` with GSC_CUDA_MANY
 * tensors in each launch. Every other call is one launch of `step`.
 */
#ifndef GSC_CUDA_LAUNCH_H
#define GSC_CUDA_LAUNCH_H

#include "bits.h"
#include "convert.h"
#include "gradscaler.h"

/* `many` is for drivers that take 32 KiB of parameters. */
#define GSC_FOR_CUDA_KERNELS(X) X(list) X(chunks) X(step) X(many)
#define GSC_CUDA_PREFIX         "gsc_cuda_" /* prefix of the kernels' names in the module */

enum gsc_cuda_kernel {
#define GSC_CUDA_KERNEL(name) GSC_CUDA_##name,
    GSC_FOR_CUDA_KERNELS(GSC_CUDA_KERNEL)
#undef GSC_CUDA_KERNEL
};

enum {
    GSC_CUDA_THREADS = 256, /* threads of a block, which runs chunks; `step` needs one thread */
    GSC_CUDA_BLOCKS_PER_PROCESSOR = 4,
    GSC_CUDA_TENSORS = 150, /* tensors in a parameter of 4 KiB, which all drivers take */
    GSC_CUDA_MANY = 1354,   /* tensors of a launch of `many`: in 32,764 bytes, from CUDA 12.1 on */
    GSC_CUDA_COMPLEX = 1u << 7, /* bit of in_dtype: two parts make an element */
    GSC_CUDA_POLICY_WORDS = 22, /* words of gsc_policy up to the last field that the kernels use */
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

/* The results of a chunk. The first chunk of a run of GSC_RUN chunks of a tensor gets the run's. */
typedef struct gsc_cuda_chunk {
    double sum_squares, amax;
    uint32_t counts[GSC_CUDA_COUNTS];
    uint32_t first;      /* position in the chunk of the first that is not finite; ~0: none */
    uint32_t has_counts; /* 0: no element is counted, and all are finite */
    uint32_t run;        /* chunks of the run that begins here; 0: none does */
} gsc_cuda_chunk;

/* A call. `chunks` sets the fields from `multiplier` on, by what is in memory. */
typedef struct gsc_cuda_call {
    const gsc_factor *factor; /* NULL: 1 */
    const gsc_state *state;   /* nothing runs if it skips; NULL: none */
    gsc_cuda_chunk *chunks;   /* `all_chunks` entries */
    uint64_t *ended;          /* counts blocks that have ended; NULL: no results are wanted */
    int64_t *bad;             /* not 0 if a product or the loss is not finite; NULL: not wanted */
    int64_t *bins;            /* GSC_BINS counts of a histogram; NULL: none, or no tensors */
    gsc_report *report, *per_tensor;      /* the caller's; NULL: not wanted */
    int64_t *histogram;                   /* the caller's; NULL: not wanted */
    const unsigned char *loss, *loss_end; /* NULL: none, or no report is wanted */
    int64_t elements, histogram_elements;
    double limits[gsc_dtypes]; /* the clamp, by the output's dtype */
    uint64_t first_ended;      /* where `ended` begins: another number for each call */
    uint32_t operation, want, writes, by_scale, tensors;
    uint32_t loss_dtype; /* enum gsc_real_dtype */
    uint32_t prefetches; /* 1: too few blocks to hide the memory's latency */
    double multiplier;
    float multiplier_f32;
    uint32_t in_double;
    uint64_t generation;
    gsc_status status;
    uint32_t all_chunks; /* to run: 0 if the factor is bad, or nothing is to be written */
} gsc_cuda_call;

/* The head of the workspace. The list and the chunks follow. */
typedef struct gsc_cuda_workspace {
    uint64_t ended;
    int64_t bad, bins[GSC_BINS];
} gsc_cuda_workspace;

/* The beginning of a gsc_policy. Later versions only add fields after it. */
typedef struct gsc_cuda_policy {
    uint64_t words[GSC_CUDA_POLICY_WORDS];
} gsc_cuda_policy;

typedef struct gsc_cuda_list_header {
    gsc_cuda_tensor *to;
    int64_t *bins; /* to clear; NULL: none */
    uint64_t tensors;
} gsc_cuda_list_header;

typedef struct gsc_cuda_list_parameter {
    gsc_cuda_list_header header;
    gsc_cuda_tensor tensors[GSC_CUDA_TENSORS];
} gsc_cuda_list_parameter;

typedef struct gsc_cuda_many_parameter { /* as gsc_cuda_list_parameter, with more tensors */
    gsc_cuda_list_header header;
    gsc_cuda_tensor tensors[GSC_CUDA_MANY];
} gsc_cuda_many_parameter;

typedef struct gsc_cuda_chunks_parameter {
    gsc_cuda_call call;
    gsc_cuda_policy policy;      /* all zeros: none, so only elements are judged */
    const gsc_cuda_tensor *list; /* NULL: the list is here */
    gsc_cuda_tensor tensors[GSC_CUDA_TENSORS];
} gsc_cuda_chunks_parameter;

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

/* SPDX-License-Identifier: MIT */
/* Blocks of a tensor. A block is read from memory once, and measured while it is in the cache. */
#ifndef GSC_BLOCK_H
#define GSC_BLOCK_H

#include "plan.h"

/* n real numbers of a tensor, from number `first` on. An element has `parts` numbers. */
typedef struct gsc_block {
    const unsigned char *in;
    unsigned char *out; /* NULL for a call that only reads */
    uint64_t n, tensor, first, parts;
} gsc_block;

/* The state of a thread that runs the blocks of a share of the list in order. */
typedef struct gsc_worker {
    const gsc_pass *pass;
    const gsc_plan *plan; /* plan of the current block */
    gsc_report *tally;    /* the blocks' counts; not the sums, which need a fixed order */
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    uint64_t finite; /* from these |bits| of the source on, products are not finite; 0: unknown */
    gsc_norm norm;   /* norm.sum is the sum of the last block, if wanted */
} gsc_worker;

/* Counts underflows, clamped elements and the histogram before a kernel overwrites the source. */
void gsc_count_before(gsc_worker *w, const gsc_block *b, const void *source);
/* Runs a block with several kernels. */
void gsc_run_with_kernels(gsc_worker *w, const gsc_block *b);
/* Judges a block after its kernel, if the largest |bits|, `most`, or the sum require it. */
void gsc_judge_direct(gsc_worker *w, const gsc_block *b, uint64_t most);

static inline bool gsc_is_trusted(double sum)
{
    return sum >= GSC_TRUSTED_SUM && isfinite(sum);
}

/* Returns true if a block must be summed again in double. `most`: its largest |bits|. */
static inline bool gsc_lacks_range(const gsc_plan *plan, uint64_t most, double sum)
{
    return most && plan->sums_floats && !gsc_is_trusted(sum);
}

/* Returns true if the kernel counts underflows. It cannot count complex elements. */
static inline bool gsc_kernel_counts(const gsc_worker *w, const gsc_block *b)
{
    return w->plan->counts && b->parts == 1;
}

static inline void gsc_tally_small(gsc_worker *w)
{
    w->tally->underflows_to_zero += (int64_t)w->norm.small.zeros;
    w->tally->underflows_to_subnormal += (int64_t)w->norm.small.subnormals;
}

/* Runs a block with one kernel, and judges the block if required. Returns true if the tally can
 * have changed. */
static inline bool gsc_run_with_kernel(gsc_worker *w, const gsc_block *b)
{
    const gsc_plan *plan = w->plan;
    gsc_kernel *kernel = b->in == b->out ? plan->keeping : plan->kernel;
    const uint64_t most = kernel(b->in, b->out, b->n, plan->multiplier, &w->norm);
    if (plan->counts)
        gsc_tally_small(w);
    const bool judged = most >= plan->safe || gsc_lacks_range(plan, most, w->norm.sum);
    if (judged)
        gsc_judge_direct(w, b, most);
    return judged || plan->counts;
}

#endif

/* SPDX-License-Identifier: MIT */
/* A block of a tensor: it comes from memory once, and all is found out of it that is wanted. */
#ifndef GSC_BLOCK_H
#define GSC_BLOCK_H

#include "plan.h"

/* A run of real numbers of the list: `parts` of them are an element. */
typedef struct gsc_block {
    const unsigned char *in;
    unsigned char *out; /* NULL for a call that only reads */
    uint64_t n, tensor, first, parts;
} gsc_block;

/* What runs the blocks of a share of the list, one after the other. */
typedef struct gsc_worker {
    const gsc_pass *pass;
    const gsc_plan *plan; /* of the block that runs */
    gsc_report *tally;    /* what they said, except for the sums, whose order matters */
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    uint64_t finite; /* the least |bits| of the source whose product is not finite; 0: not known */
    gsc_norm norm;   /* its sum is that of the last block, if wanted */
} gsc_worker;

/* What is counted of the source before a kernel runs. */
void gsc_count_before(gsc_worker *w, const gsc_block *b, const void *source);
/* A block that takes more than a kernel. */
void gsc_run_steps(gsc_worker *w, const gsc_block *b);
/* A block whose kernel did all, and found `most` or a sum that are to be judged. */
void gsc_judge_direct(gsc_worker *w, const gsc_block *b, uint64_t most);

static inline bool gsc_is_trusted(double sum)
{
    return sum >= GSC_TRUSTED_SUM && isfinite(sum);
}

/* Whether a block with these largest |bits| is to be summed again, in double. */
static inline bool gsc_lacks_range(const gsc_plan *plan, uint64_t most, double sum)
{
    return most && plan->sums_floats && !gsc_is_trusted(sum);
}

/* Whether the kernel counts what becomes small: it sees real numbers, not what parts make. */
static inline bool gsc_kernel_counts(const gsc_worker *w, const gsc_block *b)
{
    return w->plan->counts && b->parts == 1;
}

static inline void gsc_tally_small(gsc_worker *w)
{
    w->tally->underflows_to_zero += (int64_t)w->norm.small.zeros;
    w->tally->underflows_to_subnormal += (int64_t)w->norm.small.subnormals;
}

/* A block of which a kernel does all, unless it meets what is to be judged. Returns whether there
 * is something to tally. */
static inline bool gsc_run_direct(gsc_worker *w, const gsc_block *b)
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

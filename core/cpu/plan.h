/* SPDX-License-Identifier: MIT */
/*
 * What to run on the blocks of a pair of dtypes. Rounding keeps the order of magnitudes, so that
 * whatever a report counts is a count of inputs whose |bits| reach some limit, and a plan finds
 * these limits by trying.
 */
#ifndef GSC_PLAN_H
#define GSC_PLAN_H

#include "backend.h"
#include "kernels.h"

/* A job as the blocks see it. */
typedef struct gsc_pass {
    const gsc_tensor *in, *out; /* out: NULL for a check that judges as in place */
    const gsc_kernels *kernels;
    double multiplier, clamp;           /* clamp: 0 is none */
    uint64_t chunks, bytes, generation; /* bytes: of `in` */
    enum gsc_operation operation;
    uint32_t want;
    bool counts;            /* somebody reads the report, or those of the tensors */
    bool streams;           /* output that is not in place goes past the caches */
    gsc_report *per_tensor; /* NULL: not wanted */
    int64_t *histogram;
} gsc_pass;

typedef struct gsc_plan {
    gsc_kernel *kernel;  /* NULL: there is no plan yet */
    gsc_kernel *keeping; /* the same in place, where it has to keep its input */
    gsc_kernel *last;    /* if any, makes the output of the kernel's products */
    uint32_t in, out;    /* dtypes of convert.h; out is in where there is none */
    uint32_t source;     /* what is multiplied: f64 where `in` is widened first, else in */
    uint32_t wide;       /* its multiplying type */
    uint32_t judged;     /* an element is bad if it is not finite in this dtype */
    double multiplier;
    double limit;      /* of the clamp: the largest of `out` */
    uint32_t limited;  /* what is clamped: numbers of this dtype */
    bool copies;       /* multiplied by 1: the kernel reads, the bits are copied */
    bool streams;      /* output elsewhere waits in the L1 cache to be streamed */
    bool may_overflow; /* a finite input may become bad */
    bool sums_floats;  /* its sums of squares may lack range */
    bool is_direct;    /* the kernel does it all, if |bits| stay below `safe` */
    bool counts;       /* the kernel counts what becomes zero or subnormal, of real numbers */
    uint64_t block;    /* numbers that the kernel takes at once, if it does it all */
    uint64_t safe;
    /* Least |bits| of the source whose product is beyond the clamp ... */
    uint64_t beyond;
    /* ... and whose product belongs to bin k or a later one, or to none. */
    uint64_t bins[GSC_BINS + 1];
    gsc_small small;             /* of the source */
    bool has_table, keeps_input; /* as in gsc_norm */
    gsc_table table;
} gsc_plan;

/* Makes `plan`; if it was one of the same input and another output, some of it stays. */
void gsc_plan_make(const gsc_pass *pass, uint32_t in, uint32_t out, gsc_plan *plan);

/* Whether a NaN among the outputs may stand for Inf, and so tells less than the input did. */
static inline bool gsc_hides_infinity(const gsc_plan *plan)
{
    return plan->may_overflow && gsc_encodings[plan->out].infinity == gsc_encodings[plan->out].nan;
}

/* To another dtype: direct, or through n floats of scratch, which changes no bit. */
static inline void gsc_convert(const gsc_kernels *kernels, uint32_t from, const void *in,
                               uint32_t to, void *out, uint64_t n, double multiplier, void *floats)
{
    if (kernels->unscale[0][from][to]) {
        kernels->unscale[0][from][to](in, out, n, multiplier, NULL);
    } else {
        kernels->unscale[0][from][gsc_f32](in, floats, n, multiplier, NULL);
        kernels->unscale[0][gsc_f32][to](floats, out, n, 1.0, NULL);
    }
}

/* The least |bits| of `from` that become `target` or more; at most the first that is not finite. */
uint64_t gsc_threshold(uint32_t from, uint32_t to, uint64_t target, double multiplier);
/* Whether an input of these |bits| is bad. */
bool gsc_is_bad(const gsc_plan *plan, uint64_t most);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * A plan: the kernels and limits for the blocks of a pair of dtypes. Rounding keeps the order of
 * magnitudes, so every count of a report is a count of inputs with |bits| of at least some limit. A
 * plan finds these limits by trial.
 */
#ifndef GSC_PLAN_H
#define GSC_PLAN_H

#include "backend.h"
#include "kernels.h"

/* One pass over the list of a job, as the blocks see it. */
typedef struct gsc_pass {
    const gsc_tensor *in, *out; /* out: NULL for a check, which judges by the input's dtype */
    const gsc_kernels *kernels;
    double multiplier, clamp;           /* clamp: 0 is none */
    uint64_t chunks, bytes, generation; /* bytes: of `in` */
    enum gsc_operation operation;
    uint32_t want;
    bool counts;            /* there is a report, or one for each tensor */
    bool streams;           /* output that is not in place bypasses the caches */
    gsc_report *per_tensor; /* NULL: not wanted */
    int64_t *histogram;
} gsc_pass;

typedef struct gsc_plan {
    gsc_kernel *kernel;  /* NULL: there is no plan yet */
    gsc_kernel *keeping; /* the kernel for in place, if the input must be kept */
    gsc_kernel *last; /* converts or adds the kernel's products to the output; NULL: not needed */
    uint32_t in, out; /* dtypes of convert.h; out is in if there is no output */
    uint32_t source;  /* dtype that is multiplied: f64 if `in` is widened first, else in */
    uint32_t wide;    /* multiplying type of the source */
    uint32_t judged;  /* an element is bad if it is not finite in this dtype */
    double multiplier;
    double limit;      /* the clamp: the largest value that `out` can have */
    uint32_t limited;  /* dtype of the numbers that are clamped */
    bool copies;       /* the multiplier is 1: the kernel only reads, the bits are copied */
    bool streams;      /* output that is not in place stays in L1 until it is streamed */
    bool may_overflow; /* a finite input can become bad */
    bool sums_floats;  /* sums of squares in float can lack range */
    bool is_direct;    /* one kernel is enough if |bits| are below `safe` */
    bool counts;       /* the kernel counts underflows of real numbers */
    uint64_t block;    /* numbers in a block if is_direct */
    uint64_t safe;
    uint64_t beyond;             /* least |bits| of the source with a product beyond the clamp */
    uint64_t bins[GSC_BINS + 1]; /* least |bits| with a product in bin k or above; last: none */
    gsc_small small;             /* limits of the source */
    bool has_table, keeps_input; /* as in gsc_norm */
    gsc_table table;
} gsc_plan;

/* Makes `plan`. If it was a plan of the same input and another output, its bins stay. */
void gsc_plan_make(const gsc_pass *pass, uint32_t in, uint32_t out, gsc_plan *plan);

/* Returns true if a NaN in the output can stand for an Inf: the dtype has no Inf. */
static inline bool gsc_hides_infinity(const gsc_plan *plan)
{
    return plan->may_overflow && gsc_encodings[plan->out].infinity == gsc_encodings[plan->out].nan;
}

/* Multiplies and converts numbers, directly or through n floats of scratch, with equal bits. */
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

/* Returns the least |bits| of `from` that become `target` or more, or that are not finite. */
uint64_t gsc_threshold(uint32_t from, uint32_t to, uint64_t target, double multiplier);
/* Returns true if an input with these |bits| is bad. */
bool gsc_is_bad(const gsc_plan *plan, uint64_t most);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The list of kernels, once: dispatch, tests and benchmarks expand it. A rung is an instruction
 * set; its install function overrides what the rung below put into the table, and keeps the rest.
 */
#ifndef GSC_KERNELS_H
#define GSC_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "gradscaler.h"

/* X(dtype) for every dtype, X(in, out) for every pair: a new dtype goes into all three lists. */
#define GSC_FOR_DTYPES(X)      X(f32) X(f64) X(f16) X(bf16)
#define GSC_FOR_OUTPUTS(X, in) X(in, f32) X(in, f64) X(in, f16) X(in, bf16)
#define GSC_FOR_PAIRS(X)                                                                           \
    GSC_FOR_OUTPUTS(X, f32) GSC_FOR_OUTPUTS(X, f64) GSC_FOR_OUTPUTS(X, f16) GSC_FOR_OUTPUTS(X, bf16)

/* Index of a dtype in the tables, in the order of GSC_FOR_DTYPES; its GSC_* constant less 1. */
enum gsc_dtype {
#define GSC_INDEX(dtype) gsc_##dtype,
    GSC_FOR_DTYPES(GSC_INDEX)
#undef GSC_INDEX
        gsc_dtypes
};

enum {
    GSC_BLOCK = 4096,  /* elements of a kernel call: f32 fits in L1 with its output */
    GSC_CHUNK = 65536, /* elements that are summed, and shared among threads, as one */
    GSC_LANES = 64,    /* element i of a block belongs to lane i mod 64 */
};

/*
 * One block of n <= GSC_BLOCK elements, in == out or disjoint, any alignment. Elements are
 * multiplied in double if `in` is f64, else in float, to which `multiplier` is then already
 * rounded. Kernels with a norm write GSC_LANES sums of squares, of that type, to `lanes`: lane by
 * lane fma(x, x, lane) from +0 in the order of the elements, x the product before it is rounded to
 * the output. Returns the largest |bits| of the input, by which the caller knows whether all of
 * it, and of its product, is finite.
 */
typedef uint64_t gsc_kernel(const void *in, void *out, uint64_t n, double multiplier, void *lanes);

typedef struct gsc_kernels {
    const char *name;
    gsc_kernel *check[gsc_dtypes]; /* reads only; out and lanes are NULL */
    gsc_kernel *norm[gsc_dtypes];  /* reads only; out is NULL */
    gsc_kernel *unscale[gsc_dtypes][gsc_dtypes];
    gsc_kernel *unscale_norm[gsc_dtypes][gsc_dtypes];
} gsc_kernels;

/* In an install function: the kernels of a dtype, or of a pair, that this rung has. */
#define GSC_INSTALL_READERS(in)                                                                    \
    kernels->check[gsc_##in] = check_##in;                                                         \
    kernels->norm[gsc_##in] = norm_##in;
#define GSC_INSTALL_WRITERS(in, out)                                                               \
    kernels->unscale[gsc_##in][gsc_##out] = unscale_##in##_##out;                                  \
    kernels->unscale_norm[gsc_##in][gsc_##out] = unscale_norm_##in##_##out;

void gsc_install_scalar(gsc_kernels *kernels);
void gsc_install_avx2(gsc_kernels *kernels);

/* The rung of this machine, or the one that GSC_CPU names; chosen at the first call. */
const gsc_kernels *gsc_kernels_best(void);
const char *gsc_cpu_available(void);
const char *gsc_cpu_note(void);

/* Rung i of this build from plain C upwards, NULL past the last; *runs: whether it can run here. */
const gsc_kernels *gsc_kernels_rung(uint32_t i, bool *runs);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The list of kernels, once: dispatch, tests and benchmarks expand it. A rung is an instruction
 * set; its install function overrides what the rung below put into the table, and keeps the rest.
 */
#ifndef GSC_KERNELS_H
#define GSC_KERNELS_H

#include <stdbool.h>

#include "bits.h"
#include "convert.h"

/* X(in, out) for the pairs that have kernels; all others go through float, which changes no bit. */
#define GSC_FOR_PAIRS(X)                                                                           \
    X(f32, f32)                                                                                    \
    X(f32, f64)                                                                                    \
    X(f64, f32)                                                                                    \
    X(f64, f64)                                                                                    \
    GSC_PAIRS_OF(X, f16)                                                                           \
    GSC_PAIRS_OF(X, bf16)                                                                          \
    GSC_PAIRS_OF(X, f8_e4m3fn)                                                                     \
    GSC_PAIRS_OF(X, f8_e5m2)                                                                       \
    GSC_PAIRS_OF(X, cb16)
#define GSC_PAIRS_OF(X, d) X(d, d) X(d, f32) X(f32, d) X(f64, d)

/* X(in, out) for the sums: products in the multiplying type to any accumulator. */
#define GSC_FOR_SUMS(X)                                                                            \
    GSC_SUMS_OF(X, f32)                                                                            \
    GSC_SUMS_OF(X, f64)                                                                            \
    GSC_SUMS_OF(X, f16)                                                                            \
    GSC_SUMS_OF(X, bf16)                                                                           \
    GSC_SUMS_OF(X, f8_e4m3fn)                                                                      \
    GSC_SUMS_OF(X, f8_e5m2)                                                                        \
    GSC_SUMS_OF(X, cb16)
#define GSC_SUMS_OF(X, out) X(f32, out) X(f64, out)

/*
 * One block of n <= GSC_BLOCK elements, in == out or disjoint, any alignment. Elements are
 * multiplied in double if `in` is f64, else in float, to which `number` is then already rounded.
 * Returns the largest |bits| of the input, by which the caller knows whether all of it, and of its
 * product, is finite; `add` and `clamp` return 0. Only kernels with a norm look at `norm`.
 */
typedef struct gsc_norm {
    double sum; /* of squares, folded; says nothing if the input is not all finite */
    /* The input of unscale_norm of a narrow dtype to itself, which in place is gone. */
    unsigned char input[GSC_BLOCK * sizeof(uint16_t)];
} gsc_norm;
typedef uint64_t gsc_kernel(const void *in, void *out, uint64_t n, double number, gsc_norm *norm);

/* How many elements have |bits| of `least` or more, from 1 to the least that is NaN. */
typedef uint64_t gsc_counter(const void *in, uint64_t n, uint64_t least);

/* A copy with zero in place of what has |bits| of `limit` or more, from 1 to the least NaN. */
typedef void gsc_cleaner(const void *in, void *out, uint64_t n, uint64_t limit);

/* memcpy of bytes that nobody reads soon: past the caches, to which a plain store fetches a line.
 */
typedef void gsc_streamer(const void *in, void *out, uint64_t bytes);

typedef struct gsc_kernels {
    const char *name;
    gsc_counter *count[gsc_dtypes];
    gsc_cleaner *clean[gsc_dtypes];
    gsc_kernel *check[gsc_dtypes]; /* reads only: out is NULL; multiplies nothing */
    gsc_kernel *norm[gsc_dtypes];  /* reads only: out is NULL */
    gsc_kernel *unscale[gsc_dtypes][gsc_dtypes];
    gsc_kernel *unscale_norm[gsc_dtypes][gsc_dtypes];
    gsc_kernel *add[gsc_f64 + 1][gsc_dtypes]; /* out += in * number, which is finite */
    gsc_kernel *clamp[gsc_f64 + 1];           /* to [-number, number]; NaN stays */
    gsc_streamer *stream;
} gsc_kernels;

/* In an install function: the kernels of a dtype, or of a pair, that this rung has. */
#define GSC_INSTALL_READERS(in)                                                                    \
    kernels->count[gsc_##in] = count_##in;                                                         \
    kernels->clean[gsc_##in] = clean_##in;                                                         \
    kernels->check[gsc_##in] = check_##in;                                                         \
    kernels->norm[gsc_##in] = norm_##in;
#define GSC_INSTALL_WRITERS(in, out)                                                               \
    kernels->unscale[gsc_##in][gsc_##out] = unscale_##in##_##out;                                  \
    kernels->unscale_norm[gsc_##in][gsc_##out] = unscale_norm_##in##_##out;
#define GSC_INSTALL_SUM(in, out) kernels->add[gsc_##in][gsc_##out] = add_##in##_##out;
#define GSC_INSTALL_CLAMP(in)    kernels->clamp[gsc_##in] = clamp_##in;

void gsc_install_scalar(gsc_kernels *kernels);
void gsc_install_avx2(gsc_kernels *kernels);
void gsc_install_avx512(gsc_kernels *kernels);
void gsc_install_neon(gsc_kernels *kernels);

/* The rung of this machine, or the one that GSC_CPU names; chosen at the first call. */
const gsc_kernels *gsc_kernels_best(void);
const char *gsc_cpu_available(void);
const char *gsc_cpu_note(void);

/* Rung i of this build from plain C upwards, NULL past the last; *runs: whether it can run here. */
const gsc_kernels *gsc_kernels_rung(uint32_t i, bool *runs);

#endif

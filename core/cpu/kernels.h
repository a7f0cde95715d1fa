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
    GSC_FOR_FAST_PAIRS(X) X(f64, f16) X(f64, bf16) X(f64, f8_e4m3fn) X(f64, f8_e5m2) X(f64, cb16)
/* Those that every rung has; doubles to narrow types stay in plain C: nobody trains that way. */
#define GSC_FOR_FAST_PAIRS(X)                                                                      \
    GSC_FOR_COUNTED_PAIRS(X)                                                                       \
    X(f32, f64)                                                                                    \
    X(f64, f32)                                                                                    \
    X(f32, f16)                                                                                    \
    X(f32, bf16)                                                                                   \
    X(f32, f8_e4m3fn)                                                                              \
    X(f32, f8_e5m2)                                                                                \
    X(f32, cb16)
/* Those that can count what becomes small; all others do so on the way through the wider type. */
#define GSC_FOR_COUNTED_PAIRS(X)                                                                   \
    X(f32, f32)                                                                                    \
    X(f64, f64)                                                                                    \
    X(f16, f16)                                                                                    \
    X(f16, f32)                                                                                    \
    X(bf16, bf16)                                                                                  \
    X(bf16, f32)                                                                                   \
    X(f8_e4m3fn, f8_e4m3fn)                                                                        \
    X(f8_e4m3fn, f32)                                                                              \
    X(f8_e5m2, f8_e5m2)                                                                            \
    X(f8_e5m2, f32)                                                                                \
    X(cb16, cb16)                                                                                  \
    X(cb16, f32)

/* X(in, out) for the sums: products in the multiplying type to any accumulator. */
#define GSC_FOR_SUMS(X)                                                                            \
    GSC_FOR_FAST_SUMS(X)                                                                           \
    X(f64, f32) X(f64, f16) X(f64, bf16) X(f64, f8_e4m3fn) X(f64, f8_e5m2) X(f64, cb16)
#define GSC_FOR_FAST_SUMS(X)                                                                       \
    X(f32, f32)                                                                                    \
    X(f32, f64)                                                                                    \
    X(f32, f16)                                                                                    \
    X(f32, bf16)                                                                                   \
    X(f32, f8_e4m3fn)                                                                              \
    X(f32, f8_e5m2)                                                                                \
    X(f32, cb16)                                                                                   \
    X(f64, f64)

/*
 * All products of a multiplier, of a dtype of one byte to itself: 128, as a sign is only kept. For
 * instruction sets that look up 16 at a time, and for what is finite, also by the distance of
 * |bits| x and result, which is towards zero unless the multiplier `grows`, and ends at zero or
 * Inf: steps[x % 16], where both are normal. Otherwise x is below `last`, and window[(x - last) %
 * 16] is to be added, which wraps around. What is more than 16 below becomes zero, or has its
 * result in bottom[x - first]. A power of two has one step: its distance is exact[], of x % 16 from
 * the 15 below `last` on.
 */
typedef struct gsc_table {
    uint8_t results[128];
    uint8_t steps[16], window[16], bottom[16], exact[16];
    int first, last;
    bool grows, is_power;
} gsc_table;

/*
 * One block of n <= GSC_BLOCK elements, or of twice as many where no norm is wanted and they have 2
 * bytes at most; in == out or disjoint, any alignment. Elements are multiplied in double if `in` is
 * f64, else in float, to which `number` is then already rounded. Returns the largest |bits| of the
 * input, by which the caller knows whether all of it, and of its product, is finite; `add` and
 * `clamp` return 0. Only kernels with a norm or with counts, and those of one byte to itself, look
 * at `norm`.
 */
typedef struct gsc_small {      /* |bits| from ... and below ... */
    uint64_t not_zero;          /* 1: become zero */
    uint64_t least, normal;     /* become subnormal, and were not */
    uint64_t zeros, subnormals; /* how many did */
} gsc_small;
typedef struct gsc_norm {
    double sum; /* of squares, folded; says nothing if the input is not all finite */
    gsc_small small;
    uint64_t limit; /* finite_norm takes what has these |bits| or more for zero */
    /* What a narrow dtype to itself took, which in place is gone: a block with a norm, or two of
     * bytes by a table. */
    unsigned char input[GSC_BLOCK * sizeof(uint16_t)] __attribute__((aligned(64)));
    const gsc_table *table; /* of the multiplier, where it is worth while; else NULL */
    bool keeps_input;       /* by a table without a norm, too */
} gsc_norm;
typedef uint64_t gsc_kernel(const void *in, void *out, uint64_t n, double number, gsc_norm *norm);

/*
 * How many elements have |bits| of `low` <= `high` or more, from 1 to the least that is NaN. Quick
 * with `near`, should few reach `low`: it gets the element from which on a finder, in so many
 * bytes, meets the first of them, if there is one.
 */
enum { GSC_ROW = 256 };
typedef struct gsc_found {
    uint64_t low, high;
} gsc_found;
typedef gsc_found gsc_counter(const void *in, uint64_t n, uint64_t low, uint64_t high,
                              uint64_t *near);
/* The first that reaches `low`, of at most GSC_ROW bytes in which one does. */
typedef uint64_t gsc_finder(const void *in, uint64_t n, uint64_t low);

/* memcpy of bytes that nobody reads soon: past the caches, to which a plain store fetches a line.
 */
typedef void gsc_streamer(const void *in, void *out, uint64_t bytes);

typedef struct gsc_kernels {
    const char *name;
    gsc_counter *count[gsc_dtypes];
    gsc_finder *find[gsc_dtypes];
    gsc_kernel *check[gsc_dtypes]; /* reads only: out is NULL; multiplies nothing */
    gsc_kernel *norm[gsc_dtypes];  /* reads only: out is NULL */
    gsc_kernel *finite_norm[gsc_dtypes];
    gsc_kernel *unscale[4][gsc_dtypes][gsc_dtypes]; /* by what else: GSC_SUMS, GSC_COUNTS */
    gsc_kernel *add[gsc_f64 + 1][gsc_dtypes];       /* out += in * number, which is finite */
    gsc_kernel *clamp[gsc_f64 + 1];                 /* to [-number, number]; NaN stays */
    gsc_streamer *stream;
    bool looks_up; /* those of one byte to itself use a table, if they get one */
} gsc_kernels;

/* The table of a multiplier that is a normal float, of a dtype of one byte. */
void gsc_table_make(const gsc_kernels *kernels, uint32_t dtype, double multiplier,
                    gsc_table *table);

/* An element to another dtype, by plain C. */
uint64_t gsc_convert_one(uint32_t from, uint64_t bits, uint32_t to, double multiplier);

/* ---- what the files of the rungs share; rung.h makes their functions ---- */

#if defined(__OPTIMIZE__) && !defined(GSC_SANITIZED)
#define GSC_INLINE static inline __attribute__((always_inline))
#else
#define GSC_INLINE static inline /* for debuggers; clang 14 fails at all of it sanitized */
#endif
enum { GSC_SUMS = 1, GSC_COUNTS = 2, GSC_WRITES = 4, GSC_CLEANS = 8 }; /* what `multiply` does */

/* Bytes of an element, and of a number in the type that multiplies. */
GSC_INLINE uint64_t size_of(enum gsc_real_dtype dtype)
{
    return dtype == gsc_f64                                 ? sizeof(f64_bits)
           : dtype == gsc_f32                               ? sizeof(f32_bits)
           : dtype == gsc_f8_e4m3fn || dtype == gsc_f8_e5m2 ? sizeof(f8_e5m2_bits)
                                                            : sizeof(f16_bits);
}

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

/* SPDX-License-Identifier: MIT */
/*
 * The list of kernels, which dispatch, tests and benchmarks expand. The install function of an
 * instruction set replaces entries of the table that the lower sets filled.
 */
#ifndef GSC_KERNELS_H
#define GSC_KERNELS_H

#include <stdbool.h>

#include "bits.h"
#include "convert.h"

/* X(in, out) for each pair that has a kernel. Other pairs go through float, with equal bits. */
#define GSC_FOR_PAIRS(X)                                                                           \
    GSC_FOR_FAST_PAIRS(X) X(f64, f16) X(f64, bf16) X(f64, f8_e4m3fn) X(f64, f8_e5m2) X(f64, cb16)
/* The pairs that every set has. Doubles to narrow types: only in plain C, as they are rare. */
#define GSC_FOR_FAST_PAIRS(X)                                                                      \
    GSC_FOR_COUNTED_PAIRS(X)                                                                       \
    X(f32, f64)                                                                                    \
    X(f64, f32)                                                                                    \
    X(f32, f16)                                                                                    \
    X(f32, bf16)                                                                                   \
    X(f32, f8_e4m3fn)                                                                              \
    X(f32, f8_e5m2)                                                                                \
    X(f32, cb16)
/* The pairs that can count underflows. Other pairs count them in the wider type. */
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

/* X(in, out) for the sums: adds products in the multiplying type to any dtype. */
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
 * All products of one multiplier, for a dtype of one byte to itself: results[x] for the 128 |bits|
 * x; the sign stays. Instruction sets that look up 16 entries at a time find a finite result by its
 * distance from x. It goes towards zero, or towards Inf if the multiplier `grows`, and ends there.
 * - x from `last` on: the distance is normal[x % 16]; x and the result are normal.
 * - the 16 values below `last`: add window[(x - last) % 16], which wraps around.
 * - below those: the result is bottom[x - first], or zero.
 * A power of two has one distance for all normal x; for x from last - 15 to `last` it is
 * exact[x % 16].
 */
typedef struct gsc_table {
    uint8_t results[128];
    uint8_t normal[16], window[16], bottom[16], exact[16];
    int first, last;
    bool grows, is_power;
} gsc_table;

/* The |bits| of inputs that underflow, and counts of such elements. */
typedef struct gsc_small {
    uint64_t not_zero;      /* |bits| from 1 and below this become zero */
    uint64_t least, normal; /* |bits| from least and below normal were normal, become subnormal */
    uint64_t zeros, subnormals; /* counts of both */
} gsc_small;
typedef struct gsc_norm {
    double sum; /* sum of squares; undefined if an input is not finite */
    gsc_small small;
    uint64_t limit; /* finite_norm counts elements with these |bits| or more as zero */
    /* A copy of the input, which a kernel from a narrow dtype to itself overwrites in place: a
     * block with a norm, or two blocks of bytes by a table. */
    unsigned char input[GSC_BLOCK * sizeof(uint16_t)] __attribute__((aligned(64)));
    const gsc_table *table; /* the multiplier's table; NULL: products are faster */
    bool keeps_input;       /* a table without a norm also keeps its input */
} gsc_norm;

/*
 * A kernel runs a block of n <= GSC_BLOCK elements, or twice as many if there is no norm and they
 * have at most 2 bytes. in == out or disjoint, with any alignment. If `in` is f64, it multiplies in
 * double, else in float, and `number` is already rounded to float. It returns the largest |bits| of
 * the input: they tell if the input and the products are finite. `add` and `clamp` return 0. Only
 * kernels with a norm or counts, and kernels from one byte to itself, use `norm`.
 */
typedef uint64_t gsc_kernel(const void *in, void *out, uint64_t n, double number, gsc_norm *norm);

/*
 * Counts the elements with |bits| of at least `low` and of at least `high`: 1 <= low <= high <= the
 * least NaN. With `near` this is fast if few reach `low`; *near becomes an element from which a
 * finder finds the first of them within GSC_ROW bytes.
 */
enum { GSC_ROW = 256 };
typedef struct gsc_found {
    uint64_t low, high;
} gsc_found;
typedef gsc_found gsc_counter(const void *in, uint64_t n, uint64_t low, uint64_t high,
                              uint64_t *near);
/* Returns the first element that reaches `low`. There is one, in at most GSC_ROW bytes. */
typedef uint64_t gsc_finder(const void *in, uint64_t n, uint64_t low);

/* Copies bytes that nobody reads soon, past the caches: a plain store would fetch a cache line. */
typedef void gsc_streamer(const void *in, void *out, uint64_t bytes);

typedef struct gsc_kernels {
    const char *name;
    gsc_counter *count[gsc_dtypes];
    gsc_finder *find[gsc_dtypes];
    gsc_kernel *check[gsc_dtypes]; /* reads only: out is NULL; multiplies nothing */
    gsc_kernel *norm[gsc_dtypes];  /* reads only: out is NULL */
    gsc_kernel *finite_norm[gsc_dtypes];
    gsc_kernel *unscale[4][gsc_dtypes][gsc_dtypes]; /* first index: GSC_SUMS | GSC_COUNTS */
    gsc_kernel *add[gsc_f64 + 1][gsc_dtypes];       /* out += in * number; the product is finite */
    gsc_kernel *clamp[gsc_f64 + 1];                 /* to [-number, number]; NaN stays */
    gsc_streamer *stream;
    bool looks_up; /* kernels of one byte to itself use a table, if there is one */
} gsc_kernels;

/* Makes the table of a multiplier, which is a normal float, for a dtype of one byte. */
void gsc_table_make(const gsc_kernels *kernels, uint32_t dtype, double multiplier,
                    gsc_table *table);

/* Multiplies an element and converts it to another dtype, in plain C. */
uint64_t gsc_convert_one(uint32_t from, uint64_t bits, uint32_t to, double multiplier);

/* ---- shared by the files of the instruction sets; install.h makes their functions ---- */

#if defined(__OPTIMIZE__) && !defined(GSC_SANITIZED)
#define GSC_INLINE static inline __attribute__((always_inline))
#else
#define GSC_INLINE                                                                                 \
    static inline /* for debuggers; clang 14 fails to inline all of it with sanitizers */
#endif
enum { GSC_SUMS = 1, GSC_COUNTS = 2, GSC_WRITES = 4, GSC_CLEANS = 8 }; /* bits of `does` */

/* Returns the bytes of an element. */
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

/* Returns the best set of this machine, or the one that GSC_CPU names. The first call chooses. */
const gsc_kernels *gsc_kernels_best(void);
const char *gsc_cpu_available(void);
const char *gsc_cpu_note(void);

/* Returns set i of this build; 0 is plain C. NULL past the last. *runs: true if it runs here. */
const gsc_kernels *gsc_kernels_of_set(uint32_t i, bool *runs);

#endif

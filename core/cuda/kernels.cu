/* SPDX-License-Identifier: MIT */
/*
 * The kernels: CUDA C for a device, and C for the emulation of one, which the tests compare with
 * the CPU. ci/generate compiles this file to PTX; the library itself does not.
 *
 * A chunk is a block of 256 threads, 16 to each of its blocks of 4,096 elements. A thread has the
 * same 4 neighbours of the 64 lanes in all 64 rows of its block, as a vector of up to 16 bytes
 * where the data is aligned so far, so every lane is accumulated in order by one thread, in one
 * pass. Rows that are not finite, that end within a vector, or of which more is wanted, take the
 * long way: careful().
 *
 * In place, what was read is gone when a block's float sum turns out not to be trusted: all sums
 * are kept in double lanes, too. That is meant to be hidden behind the memory, but not measured.
 * Where the input outlives the call, a block could instead be read again when it is not trusted.
 */
#if defined(__CUDA__) && defined(__clang__) /* without a toolkit */
#pragma clang force_cuda_host_device begin
#include <math.h>
#include <stdint.h>
#include <string.h>
#pragma clang force_cuda_host_device end
#define __device__    __attribute__((device))
#define __constant__  __attribute__((constant))
#define __global__    __attribute__((global))
#define __shared__    __attribute__((shared))
#define __noinline__  __attribute__((noinline))
#define LAUNCH_BOUNDS __attribute__((launch_bounds(GSC_CUDA_THREADS, 4)))
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#define LAUNCH_BOUNDS __launch_bounds__(GSC_CUDA_THREADS, 4)
#endif

#if defined(__CUDACC__) || defined(__CUDA__)
/* The headers of the core say `static inline`. */
#define inline __inline__ __device__
/* Policies that predict are refused before: log2 and exp2 are the host's. */
#define log2(x) (x)
#define exp2(x) (x)
#include "convert.h"
#include "step.h"
#undef inline
#include "kernels.h"
#define DEVICE     static __inline__ __device__
#define SLOW       static __device__ __noinline__
#define INLINED    static __inline__ __device__ __attribute__((always_inline))
#define CONSTANT   static __constant__ const
#define SHARED     __shared__
#define ONE_BY_ONE _Pragma("unroll 1")
#define UNROLLED   _Pragma("unroll")
#define BRANCH     asm volatile("") /* is not computed and thrown away where it does not apply */
#define KERNEL(name)                                                                               \
    extern "C" __global__ void LAUNCH_BOUNDS gsc_cuda_##name(const gsc_cuda_##name##_parameter p)
/*
 * What the body writes, all threads see after it; only shared memory outlives it. Not to be left
 * but by its end.
 */
#define EACH_THREAD(t)                                                                             \
    for (uint32_t t = thread_index(), more_ = 1; more_; more_ = 0, __syncthreads())

DEVICE uint32_t thread_index(void)
{
    uint32_t t;
    asm("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

DEVICE uint32_t block_index(void)
{
    uint32_t b;
    asm("mov.u32 %0, %%ctaid.x;" : "=r"(b));
    return b;
}

DEVICE void atomic_add(int64_t *to, int64_t x)
{
    asm volatile("red.add.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

DEVICE void atomic_min(int64_t *to, int64_t x)
{
    asm volatile("red.min.s64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

/* Of doubles that are not negative, whose order is that of their bits. */
DEVICE void atomic_max(double *to, double x)
{
    asm volatile("red.max.u64 [%0], %1;" ::"l"(to), "l"(gsc_double_bits(x)) : "memory");
}

/* IEEE conversions, but for the payload of a NaN. */
DEVICE float f16_quick_load(f16_bits bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

DEVICE f16_bits f16_quick_from_float(float x)
{
    f16_bits bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#else
#include "emulation.h"
#endif

/* ---- conversions of the quick path: the bits of convert.h, but for NaN, which it leaves alone
 * ---- */

#define f32_quick_load        f32_load
#define f64_quick_load        f64_load
#define f32_quick_from_float  f32_from_float
#define f64_quick_from_double f64_from_double

DEVICE float bf16_quick_load(bf16_bits bits)
{
    return gsc_float((uint32_t)bits << 16);
}

DEVICE bf16_bits bf16_quick_from_float(float x)
{
    const uint32_t bits = gsc_float_bits(x);
    return (bf16_bits)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/*
 * To float by the exponents' difference as a factor, which is exact. Back, normal numbers by
 * rounding the bits; subnormal ones by an addition of which the result's last bit is worth as much
 * as theirs.
 */
#define QUICK_NARROW(dtype)                                                                        \
    DEVICE float dtype##_quick_load(dtype##_bits bits)                                             \
    {                                                                                              \
        const uint32_t magnitude = GSC_MAGNITUDE(dtype, bits);                                     \
        const uint32_t sign = (uint32_t)(bits ^ magnitude) << (32 - 8 * sizeof bits);              \
        const float x = gsc_float(sign | magnitude << (23 - dtype##_MANTISSA));                    \
        return magnitude < dtype##_INF ? x * gsc_float((254u - dtype##_BIAS) << 23) : INFINITY;    \
    }                                                                                              \
    DEVICE dtype##_bits dtype##_quick_from_float(float x)                                          \
    {                                                                                              \
        const uint32_t bits = gsc_float_bits(x), magnitude = bits & 0x7fffffffu;                   \
        const uint32_t shift = 23 - dtype##_MANTISSA, least = (128u - dtype##_BIAS) << 23;         \
        const uint32_t sum_to = (151u - dtype##_BIAS - dtype##_MANTISSA) << 23;                    \
        const uint32_t rounded = magnitude + ((1u << (shift - 1)) - 1) + (magnitude >> shift & 1); \
        uint32_t result = (rounded >> shift) - ((127u - dtype##_BIAS) << dtype##_MANTISSA);        \
        result = result < dtype##_INF ? result : dtype##_INF;                                      \
        if (magnitude < least)                                                                     \
            result = gsc_float_bits(gsc_float(magnitude) + gsc_float(sum_to)) - sum_to;            \
        return (dtype##_bits)(bits >> 31 << (8 * sizeof(dtype##_bits) - 1) | result);              \
    }
QUICK_NARROW(f8_e4m3fn)
QUICK_NARROW(f8_e5m2)
QUICK_NARROW(cb16)

/* ---- dtypes by number ---- */

typedef struct dtype {
    uint32_t size, mantissa;
    uint64_t infinity, nan; /* |bits| of the least that is not finite, that is NaN */
} dtype;

CONSTANT dtype dtypes[] = {
#define DTYPE(name) {sizeof(name##_bits), name##_MANTISSA, name##_INF, name##_NAN},
    GSC_FOR_DTYPES(DTYPE)
#undef DTYPE
};

DEVICE uint64_t magnitude_of(uint32_t type, uint64_t bits)
{
    return bits & ~(uint64_t)0 >> (65 - 8 * dtypes[type].size);
}

DEVICE uint64_t read_bits(uint32_t type, const unsigned char *from)
{
    uint64_t bits = 0;
    const uint32_t size = dtypes[type].size;
    if (((uintptr_t)from & (size - 1)) != 0) {
        for (uint32_t i = 0; i < size; i++)
            bits |= (uint64_t)from[i] << 8 * i;
        return bits;
    }
    switch (size) {
    case 1:
        return *from;
    case 2: {
        uint16_t x;
        memcpy(&x, __builtin_assume_aligned(from, 2), 2);
        return x;
    }
    case 4: {
        uint32_t x;
        memcpy(&x, __builtin_assume_aligned(from, 4), 4);
        return x;
    }
    default:
        memcpy(&bits, __builtin_assume_aligned(from, 8), 8);
        return bits;
    }
}

DEVICE void write_bits(uint32_t type, unsigned char *to, uint64_t bits)
{
    const uint32_t size = dtypes[type].size;
    if (((uintptr_t)to & (size - 1)) != 0) {
        for (uint32_t i = 0; i < size; i++)
            to[i] = (unsigned char)(bits >> 8 * i);
        return;
    }
    switch (size) {
    case 1:
        *to = (unsigned char)bits;
        return;
    case 2: {
        const uint16_t x = (uint16_t)bits;
        memcpy(__builtin_assume_aligned(to, 2), &x, 2);
        return;
    }
    case 4: {
        const uint32_t x = (uint32_t)bits;
        memcpy(__builtin_assume_aligned(to, 4), &x, 4);
        return;
    }
    default:
        memcpy(__builtin_assume_aligned(to, 8), &bits, 8);
    }
}

/* Exact; of what is no NaN. */
DEVICE double widen(uint32_t type, uint64_t bits)
{
    switch (type) {
#define WIDEN(dtype)                                                                               \
    case gsc_##dtype:                                                                              \
        return (double)dtype##_load((dtype##_bits)bits);
        GSC_FOR_DTYPES(WIDEN)
#undef WIDEN
    default:
        return 0;
    }
}

/* Rounded once; of what is no NaN. */
DEVICE uint64_t narrow(uint32_t type, double x)
{
    switch (type) {
#define NARROW(dtype)                                                                              \
    case gsc_##dtype:                                                                              \
        return dtype##_from_double(x);
        GSC_FOR_DTYPES(NARROW)
#undef NARROW
    default:
        return 0;
    }
}

/* In integers: what a device makes of a NaN has another payload. */
DEVICE uint64_t convert_nan(uint32_t in, uint32_t out, uint64_t bits)
{
    const uint64_t fraction = bits & (((uint64_t)1 << dtypes[in].mantissa) - 1);
    const uint64_t payload = fraction << (52 - dtypes[in].mantissa) | (uint64_t)1 << 51;
    const uint64_t sign = bits >> (8 * dtypes[in].size - 1);
    return sign << (8 * dtypes[out].size - 1) | dtypes[out].infinity |
           payload >> (52 - dtypes[out].mantissa);
}

/* ---- rows ---- */

/* What a thread found. */
typedef struct found {
    double wide[4];
    float narrow[4];
    double amax;
    uint32_t nan_count, inf_count, zeros_made, subnormals_made;
    uint32_t first_bad; /* position in the chunk */
} found;

/* What a thread works on: its lanes of a block of GSC_CUDA_BLOCK elements or fewer. */
typedef struct piece {
    const gsc_cuda_call *call;
    const unsigned char *in;
    unsigned char *out; /* NULL: nothing is written */
    uint32_t in_dtype, out_dtype, complex;
    uint32_t n, start; /* elements, and the position of the first in the chunk */
    uint32_t thread;   /* of the 16; its lanes are the 4 from 4 * thread on */
    uint32_t binned;   /* a histogram is wanted */
    uint32_t *bins;    /* of it; never NULL, which a cast to shared memory and back need not keep */
} piece;

/* An element at `i` of the block, by its |bits| and those of its output, and its |product|. */
DEVICE void count(const piece *p, found *f, uint32_t i, uint64_t before, uint64_t after,
                  double product)
{
    const dtype *in = &dtypes[p->in_dtype], *out = &dtypes[p->out_dtype];
    const uint64_t in_normal = (uint64_t)1 << in->mantissa;
    if (p->call->op == GSC_CUDA_CLIP ? !isfinite(product) : after >= out->infinity) {
        f->nan_count += before >= in->nan;
        f->inf_count += before < in->nan;
        f->first_bad = p->start + i < f->first_bad ? p->start + i : f->first_bad;
    }
    if (p->call->want & GSC_WANT_UNDERFLOW) {
        f->zeros_made += after == 0 && before != 0;
        f->subnormals_made += after != 0 && after < (uint64_t)1 << out->mantissa &&
                              !(before != 0 && before < in_normal);
    }
    if (p->binned && product > 0 && isfinite(product)) {
        const int bin = ((int)(gsc_double_bits(product) >> 52) - (1023 - 48)) >> 2;
        p->bins[bin < 0 ? 0 : bin < 16 ? bin : 15]++;
    }
}

/* Element, or part, `i` of the block: converts it, and gives what count() asks for. */
DEVICE void element(const piece *p, found *f, uint32_t i, uint32_t k, uint64_t *before,
                    uint64_t *after, double *product)
{
    const gsc_cuda_call *call = p->call;
    const uint32_t in = p->in_dtype, out = p->out_dtype, op = call->op;
    const int in_double = call->in_double || in == gsc_f64;
    const double m = in_double ? call->multiplier : (double)call->multiplier_f32;
    const double limit = in_double ? call->limit : (double)call->limit_f32;
    const uint64_t bits = read_bits(in, p->in + (uint64_t)i * dtypes[in].size);
    uint64_t result;
    double x = HUGE_VAL;
    *before = magnitude_of(in, bits);
    if (*before >= dtypes[in].nan) {
        result = op == GSC_CUDA_STORE && in == out && m == 1 ? bits : convert_nan(in, out, bits);
    } else {
        x = widen(in, bits) * m;
        if (!in_double) /* the product of two floats is exact in double */
            x = (double)(float)x;
        result = narrow(out, x);
    }
    *after = magnitude_of(out, result);
    *product = fabs(x);
    if (isfinite(x)) {
        f->amax = *product > f->amax ? *product : f->amax;
        f->narrow[k] = fmaf((float)x, (float)x, f->narrow[k]);
        f->wide[k] = fma(x, x, f->wide[k]);
    }
    if (op == GSC_CUDA_CLIP && *product > limit && *before < dtypes[in].nan)
        result = narrow(out, copysign(limit, x));
    if (!p->out)
        return;
    unsigned char *to = p->out + (uint64_t)i * dtypes[out].size;
    if (op == GSC_CUDA_ADD) {
        const uint64_t old = read_bits(out, to);
        if (magnitude_of(out, old) >= dtypes[out].nan) {
            result = convert_nan(out, out, old);
        } else {
            double sum = x + widen(out, old);
            if (!in_double && out != gsc_f64)
                sum = (double)((float)x + (float)widen(out, old));
            result = narrow(out, sum);
        }
    }
    write_bits(out, to, result);
}

/* Rows `row` to `end`, whatever is in them. */
SLOW void careful(const piece *p, found *f, uint32_t row, uint32_t end)
{
    for (; row < end; row++)
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t i = GSC_CUDA_LANES * row + 4 * p->thread + k;
            uint64_t before, after;
            double product;
            if (i >= p->n)
                continue;
            element(p, f, i, k, &before, &after, &product);
            if (p->complex) { /* counts as its larger part does */
                uint64_t before_2, after_2;
                double product_2;
                element(p, f, i + 1, ++k, &before_2, &after_2, &product_2);
                before = before_2 > before ? before_2 : before;
                after = after_2 > after ? after_2 : after;
                product = product_2 > product ? product_2 : product;
            }
            count(p, f, i, before, after, product);
        }
}

/*
 * quick_ and single_INPUT_OUTPUT: rows from `row` to `rows`, four or a multiple, of a block, in
 * floats or, for f64, doubles; returns the first row that it leaves to careful(). Nothing of it
 * lives on over that call, which would cost registers here. The next four elements are on their way
 * while four are worked on: as a vector, or one by one where only they are aligned.
 */
#define AS_VECTOR(bits)  (16 < 4 * sizeof(bits) ? 16 : 4 * sizeof(bits))
#define AS_ELEMENT(bits) sizeof(bits)
#define ROWS(how, alignment, input, output, multiplying, real)                                     \
    typedef struct how##_in_##input##_##output {                                                   \
        input##_bits v[4];                                                                         \
    } __attribute__((aligned(alignment(input##_bits)))) how##_in_##input##_##output;               \
    typedef struct how##_out_##input##_##output {                                                  \
        output##_bits v[4];                                                                        \
    } __attribute__((aligned(alignment(output##_bits)))) how##_out_##input##_##output;             \
    SLOW uint32_t how##_##input##_##output(const piece *p, found *f, uint32_t row, uint32_t rows)  \
    {                                                                                              \
        const gsc_cuda_call *call = p->call;                                                       \
        const real m = sizeof(real) == 4 ? (real)call->multiplier_f32 : (real)call->multiplier;    \
        const real limit = sizeof(real) == 4 ? (real)call->limit_f32 : (real)call->limit;          \
        const uint32_t norm = call->want & GSC_WANT_NORM, op = call->op;                           \
        const how##_in_##input##_##output *from =                                                  \
            (const how##_in_##input##_##output *)(const void *)p->in + 16 * row + p->thread;       \
        how##_out_##input##_##output *to = (how##_out_##input##_##output *)(void *)p->out;         \
        enum { AHEAD = sizeof(real) == 4 ? 4 : 1 };                                                \
        how##_in_##input##_##output ahead[AHEAD];                                                  \
        multiplying##_bits most = 0;                                                               \
        real s[4];                                                                                 \
        double w[4];                                                                               \
        for (int k = 0; k < 4; k++) {                                                              \
            s[k] = (real)f->narrow[k];                                                             \
            w[k] = f->wide[k];                                                                     \
        }                                                                                          \
        UNROLLED for (uint32_t u = 0; u < AHEAD; u++) ahead[u] = from[16 * u];                     \
        if (to)                                                                                    \
            to += 16 * row + p->thread;                                                            \
        ONE_BY_ONE for (; row < rows; row += AHEAD)                                                \
        {                                                                                          \
            from += 16 * AHEAD;                                                                    \
            UNROLLED for (uint32_t u = 0; u < AHEAD; u++)                                          \
            {                                                                                      \
                const how##_in_##input##_##output quad = ahead[u];                                 \
                how##_out_##input##_##output result, old;                                          \
                multiplying##_bits largest = 0;                                                    \
                output##_bits written = 0;                                                         \
                real x[4];                                                                         \
                if (row + AHEAD < rows)                                                            \
                    ahead[u] = from[16 * u];                                                       \
                for (int k = 0; k < 4; k++)                                                        \
                    x[k] = input##_quick_load(quad.v[k]) * m;                                      \
                if (op == GSC_CUDA_ADD) {                                                          \
                    BRANCH;                                                                        \
                    old = to[16 * u];                                                              \
                    for (int k = 0; k < 4; k++)                                                    \
                        x[k] += output##_quick_load(old.v[k]);                                     \
                }                                                                                  \
                for (int k = 0; k < 4; k++) {                                                      \
                    const multiplying##_bits bits =                                                \
                        GSC_MAGNITUDE(multiplying, multiplying##_from_##real(x[k]));               \
                    largest = bits > largest ? bits : largest;                                     \
                    result.v[k] = output##_quick_from_##real(x[k]);                                \
                    const output##_bits magnitude = GSC_MAGNITUDE(output, result.v[k]);            \
                    if (output##_MANTISSA < multiplying##_MANTISSA) /* else largest says it */     \
                        written = magnitude > written ? magnitude : written;                       \
                }                                                                                  \
                if (largest >= multiplying##_INF ||                                                \
                    (op != GSC_CUDA_CLIP && written >= output##_INF)) {                            \
                    row += u;                                                                      \
                    goto end;                                                                      \
                }                                                                                  \
                most = largest > most ? largest : most;                                            \
                if (norm)                                                                          \
                    for (int k = 0; k < 4; k++) {                                                  \
                        if (sizeof(real) == 4)                                                     \
                            s[k] = multiplying##_fma(x[k], x[k], s[k]);                            \
                        w[k] = fma((double)x[k], (double)x[k], w[k]);                              \
                    }                                                                              \
                if (op == GSC_CUDA_CLIP) {                                                         \
                    BRANCH;                                                                        \
                    for (int k = 0; k < 4; k++) {                                                  \
                        const real y = x[k] > limit ? limit : x[k] < -limit ? -limit : x[k];       \
                        result.v[k] = output##_quick_from_##real(y);                               \
                    }                                                                              \
                }                                                                                  \
                if (to)                                                                            \
                    to[16 * u] = result;                                                           \
            }                                                                                      \
            if (to)                                                                                \
                to += 16 * AHEAD;                                                                  \
        }                                                                                          \
    end:                                                                                           \
        for (int k = 0; k < 4; k++) {                                                              \
            f->narrow[k] = (float)s[k];                                                            \
            f->wide[k] = w[k];                                                                     \
        }                                                                                          \
        const double amax = (double)multiplying##_load(most);                                      \
        f->amax = amax > f->amax ? amax : f->amax;                                                 \
        return row;                                                                                \
    }

#define f32_fma fmaf
#define f64_fma fma

/* Pairs of dtypes that have a quick path: alike, and from and to float. */
#define FOR_QUICK(X)                                                                               \
    X(f32, f32, f32, float)                                                                        \
    X(f64, f64, f64, double)                                                                       \
    X(f16, f16, f32, float)                                                                        \
    X(bf16, bf16, f32, float)                                                                      \
    X(f8_e4m3fn, f8_e4m3fn, f32, float)                                                            \
    X(f8_e5m2, f8_e5m2, f32, float)                                                                \
    X(cb16, cb16, f32, float)                                                                      \
    X(f16, f32, f32, float)                                                                        \
    X(bf16, f32, f32, float)                                                                       \
    X(f8_e4m3fn, f32, f32, float)                                                                  \
    X(f8_e5m2, f32, f32, float)                                                                    \
    X(cb16, f32, f32, float)                                                                       \
    X(f32, f16, f32, float)                                                                        \
    X(f32, bf16, f32, float)                                                                       \
    X(f32, f8_e4m3fn, f32, float)                                                                  \
    X(f32, f8_e5m2, f32, float)                                                                    \
    X(f32, cb16, f32, float)
/* Those that have one where only the elements are aligned, as in a list without gaps. */
#define FOR_SINGLE(X)                                                                              \
    X(f32, f32, f32, float)                                                                        \
    X(f64, f64, f64, double)                                                                       \
    X(f16, f16, f32, float)                                                                        \
    X(bf16, bf16, f32, float)                                                                      \
    X(f16, f32, f32, float)                                                                        \
    X(bf16, f32, f32, float)
#define QUICK(in, out, multiplying, real)  ROWS(quick, AS_VECTOR, in, out, multiplying, real)
#define SINGLE(in, out, multiplying, real) ROWS(single, AS_ELEMENT, in, out, multiplying, real)
FOR_QUICK(QUICK)
FOR_SINGLE(SINGLE)

/* Whether elements of a dtype can be moved `n` at a time. */
DEVICE int is_aligned(uint32_t type, const unsigned char *data, uint32_t n)
{
    const uint32_t size = n * dtypes[type].size;
    return ((uintptr_t)data & ((size < 16 ? size : 16) - 1)) == 0;
}

DEVICE int are_aligned(const piece *p, uint32_t n)
{
    return is_aligned(p->in_dtype, p->in, n) && is_aligned(p->out_dtype, p->out, n);
}

/* Whole rows from `row` on; returns the first that is left to careful(), ~0 if all are. */
DEVICE uint32_t quick(const piece *p, found *f, uint32_t row, uint32_t rows)
{
    const uint32_t pair = p->in_dtype * gsc_dtypes + p->out_dtype;
#define CASE(how, in, out)                                                                         \
    case gsc_##in *gsc_dtypes + gsc_##out:                                                         \
        return how##_##in##_##out(p, f, row, rows);
#define QUICK_CASE(in, out, multiplying, real)  CASE(quick, in, out)
#define SINGLE_CASE(in, out, multiplying, real) CASE(single, in, out)
    if (are_aligned(p, 4))
        switch (pair) {
            FOR_QUICK(QUICK_CASE)
        }
    else if (are_aligned(p, 1))
        switch (pair) {
            FOR_SINGLE(SINGLE_CASE)
        }
    return ~(uint32_t)0;
}

DEVICE void run_piece(const piece *p, found *f)
{
    const uint32_t first = 4 * p->thread, all = (p->n + GSC_CUDA_LANES - 1) / GSC_CUDA_LANES;
    const uint32_t whole = p->n < first + 4 ? 0 : (p->n - first - 4) / GSC_CUDA_LANES + 1;
    const int any_way = !p->binned && !(p->call->want & GSC_WANT_UNDERFLOW) &&
                        !(p->call->in_double && p->in_dtype != gsc_f64);
    for (uint32_t row = 0; row < all;) {
        const uint32_t rows = any_way ? row + (whole - row) / 4 * 4 : row;
        const uint32_t left = row < rows ? quick(p, f, row, rows) : rows;
        /* One row that is not finite, or the last ones, or all. */
        const uint32_t end = left < rows ? left + 1 : all;
        row = left <= rows ? left : row;
        careful(p, f, row, end);
        row = end;
    }
}

/* ---- kernels ---- */

KERNEL(begin)
{
    EACH_THREAD(t)
    {
        const gsc_cuda_call *call = &p.call;
        if (call->want & GSC_WANT_NORM)
            for (uint64_t i = t; i < call->tensors; i += GSC_CUDA_THREADS)
                call->tensor_sums[i] = 0;
        if (t == 0) {
            gsc_cuda_workspace *w = p.workspace;
            gsc_factor factor = p.factor ? *p.factor : gsc_factor_of(1, 0);
            memset(&w->total, 0, sizeof w->total);
            w->call = p.call;
            w->call.status = gsc_factor_status(&factor);
            w->call.multiplier = p.by_scale ? factor.scale : factor.inverse;
            w->call.multiplier_f32 = (float)w->call.multiplier;
            w->call.limit_f32 = (float)w->call.limit;
            /* Not a normal float: numerics.md says why. */
            const uint32_t exponent = gsc_float_bits(w->call.multiplier_f32) >> 23;
            w->call.in_double = exponent == 0 || exponent == 255;
            w->add = w->call;
            w->add.op = GSC_CUDA_ADD;
            w->add.want = 0;
        }
    }
}

/* Sums of 16 blocks of lanes, as a tree, and what the threads of a chunk found. */
typedef struct chunk_shared {
    double narrow[16][GSC_CUDA_LANES], wide[16][GSC_CUDA_LANES];
    double amax[GSC_CUDA_THREADS];
    uint32_t counts[4][GSC_CUDA_THREADS], first_bad[GSC_CUDA_THREADS];
    uint32_t bins[16][16]; /* of each of the threads that look at the first block */
} chunk_shared;

/* A float sum that is not below this, nor infinite, has lost no squares. */
#define TRUSTED_SUM 0x1p-80

DEVICE void commit(const gsc_cuda_call *call, const chunk_shared *s, int in_double, uint64_t tensor,
                   uint64_t chunk_of_tensor, uint32_t complex, uint64_t chunk)
{
    gsc_report *total = call->total;
    if (call->want & GSC_WANT_NORM) {
        double sum = 0;
        for (int b = 0; b < 16; b++) {
            const double quick = s->narrow[b][0];
            sum += in_double || !(quick >= TRUSTED_SUM && isfinite(quick)) ? s->wide[b][0] : quick;
        }
        call->chunk_sums[chunk].sum = sum;
        call->chunk_sums[chunk].tensor = tensor;
    }
    if (s->amax[0] > 0)
        atomic_max(&total->amax, s->amax[0]);
    if (s->counts[0][0])
        atomic_add(&total->nan_count, s->counts[0][0]);
    if (s->counts[1][0])
        atomic_add(&total->inf_count, s->counts[1][0]);
    if (s->counts[2][0])
        atomic_add(&total->zeros_made, s->counts[2][0]);
    if (s->counts[3][0])
        atomic_add(&total->subnormals_made, s->counts[3][0]);
    if (s->counts[0][0] || s->counts[1][0]) { /* the smaller, the earlier; 0 is none */
        uint64_t element = (chunk_of_tensor * GSC_CUDA_CHUNK + s->first_bad[0]) >> complex;
        tensor = tensor < 0x7ffffe ? tensor : 0x7ffffe;
        element = element < 0xfffffffffe ? element : 0xfffffffffe;
        atomic_min(&total->first_bad, INT64_MIN + (int64_t)(tensor << 40 | element));
    }
}

/* The chunk of this block, which is `index` of the call; of a tensor whose first in this launch is
 * `first`. */
INLINED void run_chunk(const gsc_cuda_call *call, const gsc_cuda_tensor *tensor,
                       uint64_t tensor_index, uint32_t first, uint64_t index)
{
    SHARED chunk_shared s;
    const uint32_t block = block_index(), in = tensor->in_dtype, out = tensor->out_dtype;
    const uint32_t in_dtype = in & ~(uint32_t)GSC_CUDA_COMPLEX, complex = in != in_dtype;
    const uint32_t n = block + 1 == tensor->end ? tensor->last + 1u : (uint32_t)GSC_CUDA_CHUNK;
    const uint64_t start = (uint64_t)(block - first) * GSC_CUDA_CHUNK;

    EACH_THREAD(t)
    {
        const uint32_t b = t / 16, begin = b * GSC_CUDA_BLOCK;
        found f;
        piece mine;
        memset(&f, 0, sizeof f);
        f.first_bad = ~(uint32_t)0;
        mine.call = call;
        mine.in = tensor->in + (start + begin) * dtypes[in_dtype].size;
        mine.out = tensor->out;
        if (mine.out)
            mine.out += (start + begin) * dtypes[out].size;
        mine.in_dtype = in_dtype;
        mine.out_dtype = out;
        mine.complex = complex;
        mine.n = n <= begin ? 0 : n - begin < GSC_CUDA_BLOCK ? n - begin : GSC_CUDA_BLOCK;
        mine.start = begin;
        mine.thread = t % 16;
        mine.binned = b == 0 && (call->want & GSC_WANT_HISTOGRAM);
        mine.bins = s.bins[mine.thread];
        if (t < 16)
            memset(s.bins[t], 0, sizeof s.bins[t]);
        run_piece(&mine, &f);
        for (uint32_t k = 0; k < 4; k++) {
            s.narrow[b][4 * mine.thread + k] = (double)f.narrow[k];
            s.wide[b][4 * mine.thread + k] = f.wide[k];
        }
        s.amax[t] = f.amax;
        s.counts[0][t] = f.nan_count;
        s.counts[1][t] = f.inf_count;
        s.counts[2][t] = f.zeros_made;
        s.counts[3][t] = f.subnormals_made;
        s.first_bad[t] = f.first_bad;
    }
    if (call->op == GSC_CUDA_ADD) /* the report is that of the products, checked before */
        return;
    for (uint32_t half = GSC_CUDA_THREADS / 2; half > 0; half /= 2)
        EACH_THREAD(t)
        {
            if (t < half) {
                s.amax[t] = s.amax[t + half] > s.amax[t] ? s.amax[t + half] : s.amax[t];
                for (int k = 0; k < 4; k++)
                    s.counts[k][t] += s.counts[k][t + half];
                if (s.first_bad[t + half] < s.first_bad[t])
                    s.first_bad[t] = s.first_bad[t + half];
            }
            if (half < GSC_CUDA_LANES)
                for (uint32_t i = t; i < 16 * half; i += GSC_CUDA_THREADS) {
                    s.narrow[i / half][i % half] += s.narrow[i / half][i % half + half];
                    s.wide[i / half][i % half] += s.wide[i / half][i % half + half];
                }
        }
    EACH_THREAD(t)
    {
        if (t == 0)
            commit(call, &s, call->in_double || in_dtype == gsc_f64, tensor_index, block - first,
                   complex, index);
        if (t < 16 && (call->want & GSC_WANT_HISTOGRAM)) {
            int64_t sum = 0;
            for (int i = 0; i < 16; i++)
                sum += s.bins[i][t];
            if (sum)
                atomic_add(&call->total->histogram[t], sum);
        }
    }
}

/* The search is no function: with a pointer to them, every thread would copy the parameters. */
#define CHUNKS(kernel, n)                                                                          \
    KERNEL(kernel)                                                                                 \
    {                                                                                              \
        const gsc_cuda_call *call = p.call;                                                        \
        const uint32_t block = block_index();                                                      \
        uint32_t index = 0, above = n - 1; /* the first tensor that ends past `block` */           \
        if (call->status != GSC_OK)                                                                \
            return;                                                                                \
        if (call->op == GSC_CUDA_ADD && (call->total->nan_count || call->total->inf_count))        \
            return;                                                                                \
        while (index < above) {                                                                    \
            const uint32_t middle = (index + above) / 2;                                           \
            if (p.tensors[middle].end > block)                                                     \
                above = middle;                                                                    \
            else                                                                                   \
                index = middle + 1;                                                                \
        }                                                                                          \
        const gsc_cuda_tensor tensor = p.tensors[index];                                           \
        run_chunk(call, &tensor, p.first_tensor + index,                                           \
                  index == 0 ? 0 : p.tensors[index - 1].end, p.first_chunk + block);               \
    }
CHUNKS(chunks, GSC_CUDA_TENSORS)
CHUNKS(many, GSC_CUDA_MANY)

/* Sums that are added in order, read by all threads and added by one. */
enum { TILE = 1024 };
typedef struct finish_shared {
    double sums[TILE], sum;
    uint64_t tensors[TILE];
} finish_shared;

/* Several sums are on their way while one is added. */
DEVICE double add_in_order(double sum, const double *sums, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        double ahead[8];
        for (uint32_t k = 0; k < 8; k++)
            ahead[k] = sums[i + k];
        for (uint32_t k = 0; k < 8; k++)
            sum += ahead[k];
    }
    for (; i < n; i++)
        sum += sums[i];
    return sum;
}

/* The first of `sums` that is of a later tensor. */
DEVICE uint32_t end_of(const uint64_t *tensors, uint32_t i, uint32_t n)
{
    const uint64_t tensor = tensors[i];
    while (i < n) {
        const uint32_t middle = (i + n) / 2;
        if (tensors[middle] > tensor)
            n = middle;
        else
            i = middle + 1;
    }
    return n;
}

DEVICE void write_report(const gsc_cuda_call *call, double sum_squares)
{
    const uint32_t all = GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD | GSC_WANT_NORM | GSC_WANT_AMAX |
                         GSC_WANT_UNDERFLOW | GSC_WANT_HISTOGRAM;
    gsc_report r = *call->total;
    r.status = call->status;
    /* Nothing was unscaled after a failure: whoever reads this alone must not step. */
    r.overflow = call->status != GSC_OK || r.nan_count || r.inf_count;
    r.found_inf = (float)r.overflow;
    if (call->status == GSC_OK) {
        r.absent = all & ~call->want;
        r.elements = call->elements;
        r.sum_squares = sum_squares;
        if (r.absent & GSC_WANT_COUNTS)
            r.nan_count = r.inf_count = 0;
        if (r.absent & GSC_WANT_FIRST_BAD)
            r.first_bad = 0;
        if (r.absent & GSC_WANT_AMAX)
            r.amax = 0;
        if (call->want & GSC_WANT_HISTOGRAM)
            r.histogram_elements = call->histogram_elements;
    }
    *call->report = r;
}

KERNEL(finish)
{
    SHARED finish_shared s;
    const gsc_cuda_call *call = p.call;
    const int norm = (call->want & GSC_WANT_NORM) && call->status == GSC_OK;
    for (uint64_t done = 0; norm && done < call->chunks; done += TILE) {
        const uint32_t n = call->chunks - done < TILE ? (uint32_t)(call->chunks - done) : TILE;
        EACH_THREAD(t)
        {
            for (uint32_t i = t; i < n; i += GSC_CUDA_THREADS) {
                s.sums[i] = call->chunk_sums[done + i].sum;
                s.tensors[i] = call->chunk_sums[done + i].tensor;
            }
        }
        EACH_THREAD(t)
        {
            for (uint32_t i = t; i < n; i += GSC_CUDA_THREADS)
                if (i == 0 || s.tensors[i] != s.tensors[i - 1]) {
                    double *sum = &call->tensor_sums[s.tensors[i]];
                    *sum = add_in_order(*sum, s.sums + i, end_of(s.tensors, i, n) - i);
                }
        }
    }
    EACH_THREAD(t)
    {
        if (t == 0)
            s.sum = 0;
    }
    for (uint64_t done = 0; norm && done < call->tensors; done += TILE) {
        const uint32_t n = call->tensors - done < TILE ? (uint32_t)(call->tensors - done) : TILE;
        EACH_THREAD(t)
        {
            for (uint32_t i = t; i < n; i += GSC_CUDA_THREADS)
                s.sums[i] = call->tensor_sums[done + i];
        }
        EACH_THREAD(t)
        {
            if (t == 0)
                s.sum = add_in_order(s.sum, s.sums, n);
        }
    }
    EACH_THREAD(t)
    {
        if (t == 0)
            write_report(call, s.sum);
    }
}

/* A state that could not be changed says so and is otherwise as it was. */
DEVICE gsc_state failed(const gsc_state *state, gsc_status status)
{
    gsc_state s = *state;
    s.status = status;
    return s;
}

KERNEL(step)
{
    EACH_THREAD(t)
    {
        const gsc_policy *policy = &p.policy;
        const gsc_state *state = (const gsc_state *)p.a;
        gsc_factor factor;
        gsc_status status;
        if (t != 0)
            continue;
        switch (p.step) {
        case GSC_CUDA_STATE_INIT:
            *(gsc_state *)p.out = gsc_initial_state(policy);
            break;
        case GSC_CUDA_UPDATE: {
            const gsc_report *report = (const gsc_report *)p.b;
            status = gsc_state_status(state);
            if (status == GSC_OK)
                status = gsc_report_status(policy, report);
            gsc_state s =
                status == GSC_OK ? gsc_updated(policy, state, report) : failed(state, status);
            if (status != GSC_OK)
                s.events = GSC_EVENT_SKIPPED;
            *(gsc_state *)p.out = s;
            break;
        }
        case GSC_CUDA_SET_SCALE: {
            const double scale = gsc_format(policy, *(const double *)p.b);
            status = gsc_state_status(state);
            if (status == GSC_OK && !gsc_usable(scale))
                status = GSC_ERROR_VALUE;
            *(gsc_state *)p.out =
                status == GSC_OK ? gsc_rescaled(policy, state, scale) : failed(state, status);
            break;
        }
        case GSC_CUDA_FACTOR_MULTIPLY:
            factor = *(const gsc_factor *)p.a;
            status = gsc_factor_status(&factor);
            if (status == GSC_OK)
                status = gsc_factor_times(&factor, p.number, &factor);
            if (status != GSC_OK) /* no place for it: a factor that all calls refuse */
                memset(&factor, 0, sizeof factor);
            *(gsc_factor *)p.out = factor;
            break;
        case GSC_CUDA_MERGE:
            *(gsc_report *)p.out = gsc_merged((const gsc_report *)p.a, (const gsc_report *)p.b);
            break;
        default: /* GSC_CUDA_CLIP_FACTOR */
            factor = p.b ? *(const gsc_factor *)p.b : gsc_factor_of(1, 0);
            status = gsc_factor_status(&factor);
            if (status == GSC_OK)
                status = gsc_norm_status((const gsc_report *)p.a);
            if (status == GSC_OK) {
                factor = gsc_factor_clipped(&factor, (const gsc_report *)p.a, p.number);
                status = gsc_factor_status(&factor);
            }
            if (status != GSC_OK)
                memset(&factor, 0, sizeof factor);
            *(gsc_factor *)p.out = factor;
        }
    }
}

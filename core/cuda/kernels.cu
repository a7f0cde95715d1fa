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
#include "convert.h"
#include "step.h"
#undef inline
#include "launch.h"
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

/* IEEE conversions, except for the payload of a NaN. */
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

/* ---- conversions of the quick path: the bits of convert.h, except for NaN, left alone ---- */

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
    uint32_t counts[GSC_CUDA_COUNTS];
    uint32_t first; /* position in the chunk of the first that is not finite */
} found;

/* What a thread works on: its lanes of a block of GSC_BLOCK elements or fewer. */
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

/* An element: its |bits|, those of its output before a clamp, its |product|, was it clamped. */
typedef struct seen {
    uint64_t before, after;
    double product;
    uint32_t clamped;
} seen;

/* At `i` of the block. */
DEVICE void count(const piece *p, found *f, uint32_t i, const seen *e)
{
    const dtype *in = &dtypes[p->in_dtype], *out = &dtypes[p->out_dtype];
    const uint64_t in_normal = (uint64_t)1 << in->mantissa;
    if (p->call->operation == GSC_CUDA_CLAMP ? !isfinite(e->product) : e->after >= out->infinity) {
        f->counts[e->before >= in->nan ? GSC_CUDA_NAN : GSC_CUDA_INF]++;
        f->first = p->start + i < f->first ? p->start + i : f->first;
    }
    f->counts[GSC_CUDA_CLAMPED] += e->clamped && e->before < in->nan;
    if (p->call->want & GSC_WANT_UNDERFLOW) {
        f->counts[GSC_CUDA_ZEROS] += e->after == 0 && e->before != 0;
        f->counts[GSC_CUDA_SUBNORMALS] += e->after != 0 &&
                                          e->after < (uint64_t)1 << out->mantissa &&
                                          !(e->before != 0 && e->before < in_normal);
    }
    if (p->binned && e->product > 0 && isfinite(e->product)) {
        const int exponent = (int)(gsc_double_bits(e->product) >> 52) - 1023 - GSC_BIN_FIRST;
        const int bin = exponent < 0 ? 0 : exponent / GSC_BIN_POWERS;
        p->bins[bin < GSC_BINS ? bin : GSC_BINS - 1]++;
    }
}

/* Element, or part, `i` of the block: converts it. */
DEVICE void element(const piece *p, found *f, uint32_t i, uint32_t k, seen *e)
{
    const gsc_cuda_call *call = p->call;
    const uint32_t in = p->in_dtype, out = p->out_dtype, operation = call->operation;
    const int in_double = call->in_double || in == gsc_f64;
    const double m = in_double ? call->multiplier : (double)call->multiplier_f32;
    const double clamp = in_double ? call->clamp : (double)call->clamp_f32;
    const uint64_t bits = read_bits(in, p->in + (uint64_t)i * dtypes[in].size);
    uint64_t result;
    double x = HUGE_VAL;
    e->before = magnitude_of(in, bits);
    if (e->before >= dtypes[in].nan) {
        result =
            operation == GSC_CUDA_STORE && in == out && m == 1 ? bits : convert_nan(in, out, bits);
    } else {
        x = widen(in, bits) * m;
        if (!in_double) /* the product of two floats is exact in double */
            x = (double)(float)x;
        result = narrow(out, x);
    }
    e->after = magnitude_of(out, result);
    e->product = fabs(x);
    if (isfinite(x)) {
        f->amax = e->product > f->amax ? e->product : f->amax;
        f->narrow[k] = fmaf((float)x, (float)x, f->narrow[k]);
        f->wide[k] = fma(x, x, f->wide[k]);
    }
    e->clamped = operation == GSC_CUDA_CLAMP && e->before < dtypes[in].nan && e->product > clamp;
    if (e->clamped)
        result = narrow(out, copysign(clamp, x));
    if (!p->out)
        return;
    unsigned char *to = p->out + (uint64_t)i * dtypes[out].size;
    if (operation == GSC_CUDA_ADD) {
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
            const uint32_t i = GSC_LANES * row + 4 * p->thread + k;
            if (i >= p->n)
                continue;
            seen e, other;
            element(p, f, i, k, &e);
            if (p->complex) { /* counts as its larger part does */
                element(p, f, i + 1, ++k, &other);
                e.before = other.before > e.before ? other.before : e.before;
                e.after = other.after > e.after ? other.after : e.after;
                e.product = other.product > e.product ? other.product : e.product;
                e.clamped |= other.clamped;
            }
            count(p, f, i, &e);
        }
}

/* Clamps four elements, or parts, of which each two are one; returns how many are not the same. */
#define CLAMP(real)                                                                                \
    DEVICE uint32_t clamp_##real(real *x, real clamp, uint32_t complex)                            \
    {                                                                                              \
        uint32_t clamped = 0, before = 0;                                                          \
        for (uint32_t k = 0; k < 4; k++) {                                                         \
            const real y = x[k] > clamp ? clamp : x[k] < -clamp ? -clamp : x[k];                   \
            const uint32_t changed = y != x[k];                                                    \
            clamped += changed & ~(complex & k & before);                                          \
            before = changed;                                                                      \
            x[k] = y;                                                                              \
        }                                                                                          \
        return clamped;                                                                            \
    }
CLAMP(float)
CLAMP(double)

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
        const real clamp = sizeof(real) == 4 ? (real)call->clamp_f32 : (real)call->clamp;          \
        const uint32_t norm = call->want & GSC_WANT_NORM, operation = call->operation;             \
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
                real x[4], y[4];                                                                   \
                if (row + AHEAD < rows)                                                            \
                    ahead[u] = from[16 * u];                                                       \
                for (int k = 0; k < 4; k++)                                                        \
                    x[k] = input##_quick_load(quad.v[k]) * m;                                      \
                if (operation == GSC_CUDA_ADD) {                                                   \
                    BRANCH;                                                                        \
                    old = to[16 * u];                                                              \
                    for (int k = 0; k < 4; k++)                                                    \
                        x[k] += output##_quick_load(old.v[k]);                                     \
                }                                                                                  \
                for (int k = 0; k < 4; k++) {                                                      \
                    const multiplying##_bits bits =                                                \
                        GSC_MAGNITUDE(multiplying, multiplying##_from_##real(x[k]));               \
                    largest = bits > largest ? bits : largest;                                     \
                    y[k] = x[k];                                                                   \
                }                                                                                  \
                if (operation == GSC_CUDA_CLAMP && largest < multiplying##_INF) {                  \
                    BRANCH;                                                                        \
                    f->counts[GSC_CUDA_CLAMPED] += clamp_##real(y, clamp, p->complex);             \
                }                                                                                  \
                for (int k = 0; k < 4; k++) {                                                      \
                    result.v[k] = output##_quick_from_##real(y[k]);                                \
                    const output##_bits magnitude = GSC_MAGNITUDE(output, result.v[k]);            \
                    if (output##_MANTISSA < multiplying##_MANTISSA) /* else largest says it */     \
                        written = magnitude > written ? magnitude : written;                       \
                }                                                                                  \
                if (largest >= multiplying##_INF ||                                                \
                    (operation != GSC_CUDA_CLAMP && written >= output##_INF)) {                    \
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
    const uint32_t first = 4 * p->thread, all = (p->n + GSC_LANES - 1) / GSC_LANES;
    const uint32_t whole = p->n < first + 4 ? 0 : (p->n - first - 4) / GSC_LANES + 1;
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
        const uint64_t i = (uint64_t)block_index() * GSC_CUDA_THREADS + t;
        if (i < p.call.tensors) {
            gsc_cuda_record *record = &p.call.records[i];
            memset(record, 0, sizeof *record);
            record->first_element = INT64_MAX;
        }
        if (i == 0) {
            gsc_cuda_workspace *w = p.workspace;
            gsc_factor factor = p.factor ? *p.factor : gsc_factor_of(1, 0);
            w->overflow = 0;
            memset(w->bins, 0, sizeof w->bins);
            w->call = p.call;
            w->call.status = gsc_factor_status(&factor);
            w->call.serial = factor.serial;
            w->call.multiplier = p.by_scale ? factor.scale : factor.inverse;
            w->call.multiplier_f32 = (float)w->call.multiplier;
            w->call.clamp_f32 = (float)w->call.clamp;
            /* Not a normal float: numerics.md says why. */
            const uint32_t exponent = gsc_float_bits(w->call.multiplier_f32) >> 23;
            w->call.in_double = exponent == 0 || exponent == 255;
            w->add = w->call;
            w->add.operation = GSC_CUDA_ADD;
            w->add.want = 0;
            w->add.bins = NULL;
        }
    }
}

/* Sums of 16 blocks of lanes, as a tree, and what the threads of a chunk found. */
typedef struct chunk_shared {
    double narrow[16][GSC_LANES], wide[16][GSC_LANES];
    double amax[GSC_CUDA_THREADS];
    uint32_t counts[GSC_CUDA_COUNTS][GSC_CUDA_THREADS], first[GSC_CUDA_THREADS];
    uint32_t bins[16][GSC_BINS]; /* of each of the threads that look at the first block */
} chunk_shared;

/* The whole of a chunk, `index` of the call, the one after `before` of `tensor` in the list. */
DEVICE void commit(const gsc_cuda_call *call, const chunk_shared *s, const gsc_cuda_tensor *tensor,
                   uint64_t tensor_index, uint32_t before, uint32_t index, uint32_t first)
{
    gsc_cuda_record *record = &call->records[tensor_index];
    gsc_cuda_chunk *chunk = &call->chunks[index];
    const uint32_t complex = (tensor->in_dtype & GSC_CUDA_COMPLEX) != 0;
    const int in_double = call->in_double || (tensor->in_dtype & ~GSC_CUDA_COMPLEX) == gsc_f64;
    double sum = 0;
    for (int b = 0; b < 16; b++) {
        const double quick = s->narrow[b][0];
        sum += in_double || !(quick >= GSC_TRUSTED_SUM && isfinite(quick)) ? s->wide[b][0] : quick;
    }
    chunk->sum_squares = sum;
    chunk->amax = s->amax[0];
    chunk->index = before;
    if (before == 0) {
        record->first_chunk = index;
        record->chunks = tensor->end - first;
        record->elements =
            ((int64_t)(record->chunks - 1) * GSC_CHUNK + tensor->last + 1) >> complex;
    }
    for (int k = 0; k < GSC_CUDA_COUNTS; k++)
        if (s->counts[k][0])
            atomic_add(&record->counts[k], s->counts[k][0]);
    if (s->first[0] != ~(uint32_t)0) {
        atomic_min(&record->first_element,
                   ((int64_t)before * GSC_CHUNK + (int64_t)s->first[0]) >> complex);
        if (call->overflow)
            atomic_add(call->overflow, 1);
    }
}

/* The chunk of this block, which is `index` of the call; of a tensor whose first in this launch is
 * `first`. */
INLINED void run_chunk(const gsc_cuda_call *call, const gsc_cuda_tensor *tensor,
                       uint64_t tensor_index, uint32_t first, uint32_t index)
{
    SHARED chunk_shared s;
    const uint32_t block = block_index(), out = tensor->out_dtype;
    const uint32_t in_dtype = tensor->in_dtype & ~(uint32_t)GSC_CUDA_COMPLEX;
    const uint32_t n = block + 1 == tensor->end ? tensor->last + 1u : (uint32_t)GSC_CHUNK;
    const uint64_t start = (uint64_t)(block - first) * GSC_CHUNK;

    EACH_THREAD(t)
    {
        const uint32_t b = t / 16, begin = b * GSC_BLOCK;
        found f;
        piece mine;
        memset(&f, 0, sizeof f);
        f.first = ~(uint32_t)0;
        mine.call = call;
        mine.in = tensor->in + (start + begin) * dtypes[in_dtype].size;
        mine.out = tensor->out;
        if (mine.out)
            mine.out += (start + begin) * dtypes[out].size;
        mine.in_dtype = in_dtype;
        mine.out_dtype = out;
        mine.complex = in_dtype != tensor->in_dtype;
        mine.n = n <= begin ? 0 : n - begin < GSC_BLOCK ? n - begin : GSC_BLOCK;
        mine.start = begin;
        mine.thread = t % 16;
        mine.binned = b == 0 && call->bins;
        mine.bins = s.bins[mine.thread];
        if (t < 16)
            memset(s.bins[t], 0, sizeof s.bins[t]);
        run_piece(&mine, &f);
        for (uint32_t k = 0; k < 4; k++) {
            s.narrow[b][4 * mine.thread + k] = (double)f.narrow[k];
            s.wide[b][4 * mine.thread + k] = f.wide[k];
        }
        s.amax[t] = f.amax;
        for (int k = 0; k < GSC_CUDA_COUNTS; k++)
            s.counts[k][t] = f.counts[k];
        s.first[t] = f.first;
    }
    if (call->operation == GSC_CUDA_ADD) /* the reports are of the products, checked before */
        return;
    for (uint32_t half = GSC_CUDA_THREADS / 2; half > 0; half /= 2)
        EACH_THREAD(t)
        {
            if (t < half) {
                s.amax[t] = s.amax[t + half] > s.amax[t] ? s.amax[t + half] : s.amax[t];
                for (int k = 0; k < GSC_CUDA_COUNTS; k++)
                    s.counts[k][t] += s.counts[k][t + half];
                s.first[t] = s.first[t + half] < s.first[t] ? s.first[t + half] : s.first[t];
            }
            if (half < GSC_LANES)
                for (uint32_t i = t; i < 16 * half; i += GSC_CUDA_THREADS) {
                    s.narrow[i / half][i % half] += s.narrow[i / half][i % half + half];
                    s.wide[i / half][i % half] += s.wide[i / half][i % half + half];
                }
        }
    EACH_THREAD(t)
    {
        if (t == 0)
            commit(call, &s, tensor, tensor_index, block - first, index, first);
        if (t < GSC_BINS && call->bins) {
            int64_t sum = 0;
            for (int i = 0; i < 16; i++)
                sum += s.bins[i][t];
            if (sum)
                atomic_add(&call->bins[t], sum);
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
        if (call->operation == GSC_CUDA_ADD && *call->overflow)                                    \
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

enum { TILE = 4 * GSC_CUDA_THREADS }; /* chunks, or tensors, that are looked at together */

typedef struct finish_shared {
    double sums[TILE], amax[TILE]; /* of a tile */
    uint32_t runs_on[TILE];        /* chunks of the same run before this one */
    double runs[TILE / GSC_RUN], sum;
    /* Of the tensors that a thread looked at, then of all. */
    double most[GSC_CUDA_THREADS];
    int64_t counts[GSC_CUDA_COUNTS][GSC_CUDA_THREADS];
    uint64_t first[GSC_CUDA_THREADS]; /* tensor with what is not finite; ~0: none */
} finish_shared;

/*
 * From chunk `i` of a tile of `n` to the end of its run, or of the tile. The run's first chunk,
 * which may be in an earlier tile, becomes the sum.
 */
DEVICE void add_run(const finish_shared *s, gsc_cuda_chunk *chunks, uint32_t i, uint32_t n)
{
    gsc_cuda_chunk *run = chunks + i - s->runs_on[i];
    double sum = s->runs_on[i] ? run->sum_squares : 0, amax = s->runs_on[i] ? run->amax : 0;
    do {
        sum += s->sums[i];
        amax = s->amax[i] > amax ? s->amax[i] : amax;
    } while (++i < n && s->runs_on[i]);
    run->sum_squares = sum;
    run->amax = amax;
}

/* What is left of it is where, and how many, the elements are. */
DEVICE gsc_report report_of(const gsc_cuda_call *call, const gsc_policy *policy,
                            const int64_t *counts, double amax, double sum)
{
    gsc_report r;
    memset(&r, 0, sizeof r);
    if (call->status != GSC_OK) { /* nothing was unscaled: whoever reads this must not step */
        gsc_report_failed(&r, call->status);
        return r;
    }
    r.amax = call->want & GSC_WANT_AMAX ? amax : 0;
    r.sum_squares = call->want & GSC_WANT_NORM ? sum : 0;
    r.nan_count = counts[GSC_CUDA_NAN];
    r.inf_count = counts[GSC_CUDA_INF];
    r.zeros_made = counts[GSC_CUDA_ZEROS];
    r.subnormals_made = counts[GSC_CUDA_SUBNORMALS];
    r.clamped = counts[GSC_CUDA_CLAMPED];
    gsc_report_finish(&r, call->want, call->serial, policy);
    return r;
}

/* Tensor `index`; returns its sum. */
DEVICE double finish_tensor(const gsc_cuda_call *call, finish_shared *s, uint32_t t, uint64_t index)
{
    const gsc_cuda_record record = call->records[index];
    double sum = 0, amax = 0;
    for (uint32_t i = 0; i < record.chunks; i += GSC_RUN) {
        const gsc_cuda_chunk *run = &call->chunks[record.first_chunk + i];
        sum += run->sum_squares;
        amax = run->amax > amax ? run->amax : amax;
    }
    s->most[t] = amax > s->most[t] ? amax : s->most[t];
    for (int k = 0; k < GSC_CUDA_COUNTS; k++)
        s->counts[k][t] += record.counts[k];
    const int bad = record.first_element != INT64_MAX;
    if (bad && index < s->first[t])
        s->first[t] = index;
    if (call->each) {
        gsc_report r = report_of(call, NULL, record.counts, amax, sum);
        r.elements = record.elements;
        r.first_tensor = bad ? (int64_t)index : 0;
        r.first_element = bad ? record.first_element : 0;
        call->each[index] = r;
    }
    return sum;
}

DEVICE gsc_policy policy_of(const gsc_cuda_policy *policy)
{
    gsc_policy p;
    memset(&p, 0, sizeof p);
    memcpy(&p, policy, sizeof *policy);
    return p;
}

KERNEL(finish)
{
    SHARED finish_shared s;
    const gsc_cuda_call *call = p.call;
    const uint64_t measured =
        (call->want & (GSC_WANT_NORM | GSC_WANT_AMAX)) && call->status == GSC_OK ? call->all_chunks
                                                                                 : 0;
    for (uint64_t done = 0; done < measured; done += TILE) {
        const uint32_t n = measured - done < TILE ? (uint32_t)(measured - done) : TILE;
        EACH_THREAD(t)
        {
            for (uint32_t i = t; i < n; i += GSC_CUDA_THREADS) {
                s.sums[i] = call->chunks[done + i].sum_squares;
                s.amax[i] = call->chunks[done + i].amax;
                s.runs_on[i] = (uint32_t)(call->chunks[done + i].index % GSC_RUN);
            }
        }
        EACH_THREAD(t)
        {
            for (uint32_t i = 4 * t; i < 4 * t + 4 && i < n; i++)
                if (i == 0 || !s.runs_on[i])
                    add_run(&s, call->chunks + done, i, n);
        }
    }
    EACH_THREAD(t)
    {
        s.most[t] = 0;
        for (int k = 0; k < GSC_CUDA_COUNTS; k++)
            s.counts[k][t] = 0;
        s.first[t] = ~(uint64_t)0;
        if (t == 0)
            s.sum = 0;
    }
    for (uint64_t done = 0; done < call->tensors; done += TILE) {
        const uint32_t n = call->tensors - done < TILE ? (uint32_t)(call->tensors - done) : TILE;
        EACH_THREAD(t)
        {
            for (uint32_t i = t; i < TILE; i += GSC_CUDA_THREADS)
                s.sums[i] = i < n ? finish_tensor(call, &s, t, done + i) : 0;
        }
        EACH_THREAD(t)
        {
            if (t < TILE / GSC_RUN) {
                double run = 0;
                for (uint32_t i = 0; i < GSC_RUN; i++)
                    run += s.sums[GSC_RUN * t + i];
                s.runs[t] = run;
            }
        }
        EACH_THREAD(t)
        {
            if (t == 0)
                for (uint32_t i = 0; i < TILE / GSC_RUN; i++)
                    s.sum += s.runs[i];
        }
    }
    for (uint32_t half = GSC_CUDA_THREADS / 2; half > 0; half /= 2)
        EACH_THREAD(t)
        {
            if (t < half) {
                s.most[t] = s.most[t + half] > s.most[t] ? s.most[t + half] : s.most[t];
                for (int k = 0; k < GSC_CUDA_COUNTS; k++)
                    s.counts[k][t] += s.counts[k][t + half];
                s.first[t] = s.first[t + half] < s.first[t] ? s.first[t + half] : s.first[t];
            }
        }
    EACH_THREAD(t)
    {
        if (t == 0 && call->report) {
            const gsc_policy policy = policy_of(&p.policy);
            int64_t counts[GSC_CUDA_COUNTS];
            for (int k = 0; k < GSC_CUDA_COUNTS; k++)
                counts[k] = s.counts[k][0];
            gsc_report r = report_of(call, &policy, counts, s.most[0], s.sum);
            if (call->status == GSC_OK)
                r.elements = call->elements;
            if (s.first[0] != ~(uint64_t)0) {
                r.first_tensor = (int64_t)s.first[0];
                r.first_element = call->records[s.first[0]].first_element;
            }
            *call->report = r;
        }
        if (t <= GSC_BINS && call->histogram && call->status == GSC_OK)
            call->histogram[t] = t < GSC_BINS ? call->bins[t] : call->histogram_elements;
    }
}

KERNEL(step)
{
    EACH_THREAD(t)
    {
        gsc_step step;
        if (t != 0)
            continue;
        step.kind = p.kind;
        step.merge = p.merge;
        step.has_policy = p.has_policy;
        step.policy = policy_of(&p.policy);
        step.factor = p.factor;
        step.state = p.state;
        step.reports = p.reports;
        step.n = p.n;
        step.number = p.number;
        step.out = p.out;
        const gsc_status status = gsc_step_run(&step);
        if (status != GSC_OK)
            gsc_step_failed(&step, status);
    }
}

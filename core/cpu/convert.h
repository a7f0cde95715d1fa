/* SPDX-License-Identifier: MIT */
/*
 * What a dtype is: its bits, and the way to and from the type that multiplies it. Halves widen
 * exactly and round to nearest even; a NaN becomes quiet and keeps its sign and upper payload.
 * f16 in integer arithmetic, so that its bits do not depend on the host's floating-point settings.
 */
#ifndef GSC_CONVERT_H
#define GSC_CONVERT_H

#include <string.h>

#include "kernels.h"

/* Storage, multiplying type, |bits| of infinity, of the smallest normal number. */
typedef uint32_t f32_bits;
typedef uint64_t f64_bits;
typedef uint16_t f16_bits;
typedef uint16_t bf16_bits;
typedef float f32_wide;
typedef double f64_wide;
typedef float f16_wide;
typedef float bf16_wide;
#define f32_INF     0x7f800000u
#define f64_INF     0x7ff0000000000000u
#define f16_INF     0x7c00u
#define bf16_INF    0x7f80u
#define f32_NORMAL  0x00800000u
#define f64_NORMAL  0x0010000000000000u
#define f16_NORMAL  0x0400u
#define bf16_NORMAL 0x0080u

/* |bits|: all but the sign. */
#define GSC_MAGNITUDE(dtype, bits) ((dtype##_bits)((bits) & ((dtype##_bits) ~(dtype##_bits)0 >> 1)))

static inline float gsc_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t gsc_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double gsc_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t gsc_double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- to the multiplying type ---- */

static inline float f32_load(uint32_t bits)
{
    return gsc_float(bits);
}

static inline double f64_load(uint64_t bits)
{
    return gsc_double(bits);
}

static inline float f16_load(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= f16_INF) /* quiet bit set in a NaN */
        return gsc_float(sign | 0x7f800000u | (magnitude > f16_INF ? 0x400000u : 0u) |
                         (magnitude & 0x3ffu) << 13);
    if (magnitude >= f16_NORMAL)
        return gsc_float(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
    /* subnormal: magnitude * 2^-24, exact in float */
    return gsc_float(sign | gsc_float_bits((float)magnitude * 0x1p-24f));
}

static inline float bf16_load(uint16_t bits)
{
    return gsc_float((uint32_t)bits << 16);
}

/* ---- from float ---- */

static inline uint32_t f32_from_float(float x)
{
    return gsc_float_bits(x);
}

static inline uint64_t f64_from_float(float x)
{
    return gsc_double_bits((double)x);
}

/* bits >> shift, rounded to nearest even. */
static inline uint64_t gsc_round_shift(uint64_t bits, unsigned shift)
{
    uint64_t half = (uint64_t)1 << (shift - 1);
    return (bits + (half - 1) + (bits >> shift & 1)) >> shift;
}

/*
 * A magnitude with `exponent` (unbiased) and a 53-bit significand (2^52 set), rounded to f16.
 * Values below 2^-25 are 0, and a carry out of the largest normal is infinity.
 */
static inline uint16_t gsc_round_f16(int exponent, uint64_t significand)
{
    if (exponent > 15)
        return f16_INF;
    if (exponent < -25)
        return 0;
    if (exponent < -14) /* subnormal: units of 2^-24 */
        return (uint16_t)gsc_round_shift(significand, (unsigned)(52 - 24 - exponent));
    uint64_t rounded = gsc_round_shift(significand, 42); /* 11 bits, 2^10 set */
    return (uint16_t)(((uint64_t)(exponent + 14) << 10) + rounded);
}

static inline uint16_t f16_from_float(float x)
{
    uint32_t bits = gsc_float_bits(x), magnitude = bits & 0x7fffffffu;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (magnitude > f32_INF)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude < 0x33000000u) /* below 2^-25 */
        return sign;
    uint64_t significand = (uint64_t)((magnitude & 0x7fffffu) | 0x800000u) << 29;
    return (uint16_t)(sign | gsc_round_f16((int)(magnitude >> 23) - 127, significand));
}

static inline uint16_t bf16_from_float(float x)
{
    uint32_t bits = gsc_float_bits(x);
    if ((bits & 0x7fffffffu) > f32_INF)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)gsc_round_shift(bits, 16);
}

/* ---- from double ---- */

static inline uint64_t f64_from_double(double x)
{
    return gsc_double_bits(x);
}

static inline uint32_t f32_from_double(double x)
{
    return gsc_float_bits((float)x);
}

static inline uint16_t f16_from_double(double x)
{
    uint64_t bits = gsc_double_bits(x), magnitude = bits & ~((uint64_t)1 << 63);
    uint16_t sign = (uint16_t)(bits >> 48 & 0x8000u);
    if (magnitude > f64_INF)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 42 & 0x3ffu));
    if (magnitude < 0x3e60000000000000u) /* below 2^-25 */
        return sign;
    uint64_t significand = (magnitude & 0xfffffffffffffu) | 0x10000000000000u;
    return (uint16_t)(sign | gsc_round_f16((int)(magnitude >> 52) - 1023, significand));
}

/*
 * Rounding to odd first makes the second rounding the only one that counts: a float that is not
 * exact gets its last bit set, so bf16 never sees a false tie.
 */
static inline uint16_t bf16_from_double(double x)
{
    float near = (float)x;
    uint32_t bits = gsc_float_bits(near);
    uint64_t magnitude = gsc_double_bits(x) & ~((uint64_t)1 << 63);
    if (magnitude < f64_INF && (double)near != x) {
        uint64_t near_magnitude = gsc_double_bits((double)near) & ~((uint64_t)1 << 63);
        if (near_magnitude > magnitude)
            bits--; /* towards zero; from infinity to the largest float */
        bits |= 1;
    }
    return bf16_from_float(gsc_float(bits));
}

#endif

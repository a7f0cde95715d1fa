/* SPDX-License-Identifier: MIT */
/*
 * The bits of each dtype, and its conversion to and from the type that multiplies it. Narrow types
 * widen exactly and round to nearest even; a NaN becomes quiet and keeps its sign and upper
 * payload. Integer arithmetic gives the same bits on a device, and under any floating-point
 * settings of the host.
 */
#ifndef GSC_CONVERT_H
#define GSC_CONVERT_H

#include <stdint.h>
#include <string.h>

#ifndef GSC_FUNCTION /* kernels.cu compiles these functions for a device */
#define GSC_FUNCTION static inline
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "compile without -ffast-math: NaN, Inf and roundings are what this library is about"
#endif

/* X(dtype) for every dtype of real numbers. Add a new one at the end. */
#define GSC_FOR_DTYPES(X) X(f32) X(f64) X(f16) X(bf16) X(f8_e4m3fn) X(f8_e5m2) X(cb16)

/* Index of a dtype in the tables. gsc_reals maps GSC_* constants to it. */
enum gsc_real_dtype {
#define GSC_INDEX(dtype) gsc_##dtype,
    GSC_FOR_DTYPES(GSC_INDEX)
#undef GSC_INDEX
        gsc_dtypes
};

/*
 * Per dtype: storage type (_bits), multiplying type (_wide), bits of mantissa, exponent bias, and
 * the least |bits| that are not finite (_INF) and that are NaN (_NAN).
 */
typedef uint32_t f32_bits;
typedef uint64_t f64_bits;
typedef uint16_t f16_bits;
typedef uint16_t bf16_bits;
typedef uint8_t f8_e4m3fn_bits;
typedef uint8_t f8_e5m2_bits;
typedef uint16_t cb16_bits;
typedef float f32_wide;
typedef double f64_wide;
typedef float f16_wide;
typedef float bf16_wide;
typedef float f8_e4m3fn_wide;
typedef float f8_e5m2_wide;
typedef float cb16_wide;
#define f32_MANTISSA       23
#define f64_MANTISSA       52
#define f16_MANTISSA       10
#define bf16_MANTISSA      7
#define f8_e4m3fn_MANTISSA 3
#define f8_e5m2_MANTISSA   2
#define cb16_MANTISSA      9
#define f32_BIAS           127
#define f64_BIAS           1023
#define f16_BIAS           15
#define bf16_BIAS          127
#define f8_e4m3fn_BIAS     7
#define f8_e5m2_BIAS       15
#define cb16_BIAS          42
#define f32_INF            0x7f800000u
#define f64_INF            0x7ff0000000000000u
#define f16_INF            0x7c00u
#define bf16_INF           0x7f80u
#define f8_e4m3fn_INF      0x7fu
#define f8_e5m2_INF        0x7cu
#define cb16_INF           0x7e00u
#define f32_NAN            (f32_INF + 1)
#define f64_NAN            (f64_INF + 1)
#define f16_NAN            (f16_INF + 1)
#define bf16_NAN           (bf16_INF + 1)
#define f8_e4m3fn_NAN      f8_e4m3fn_INF
#define f8_e5m2_NAN        (f8_e5m2_INF + 1)
#define cb16_NAN           (cb16_INF + 1)

/* The |bits| of the smallest normal number. */
#define GSC_NORMAL(dtype) ((uint64_t)1 << dtype##_MANTISSA)
/* The |bits|: all bits except the sign. */
#define GSC_MAGNITUDE(dtype, bits) ((dtype##_bits)((bits) & ((dtype##_bits) ~(dtype##_bits)0 >> 1)))

GSC_FUNCTION float gsc_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

GSC_FUNCTION uint32_t gsc_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

GSC_FUNCTION double gsc_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

GSC_FUNCTION uint64_t gsc_double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/*
 * 1 if products, sums and conversions make a NaN quiet and keep its sign and payload: on x86 and
 * Arm, not on RISC-V. A CUDA device does not either; the kernels handle NaNs themselves.
 */
#if defined(__x86_64__) || defined(__aarch64__)
#define GSC_KEEPS_NANS 1
#else
#define GSC_KEEPS_NANS 0
#endif

/* ---- the types that multiply ---- */

GSC_FUNCTION float f32_load(uint32_t bits)
{
    return gsc_float(bits);
}

GSC_FUNCTION double f64_load(uint64_t bits)
{
    return gsc_double(bits);
}

GSC_FUNCTION uint32_t f32_from_float(float x)
{
    return gsc_float_bits(x);
}

GSC_FUNCTION uint64_t f64_from_float(float x)
{
    const uint32_t bits = gsc_float_bits(x);
    const uint64_t quiet = (uint64_t)(bits & 0x80000000u) << 32 | f64_INF |
                           (uint64_t)((bits & 0x7fffffffu) | 0x400000u) << 29;
    return GSC_KEEPS_NANS || x == x ? gsc_double_bits((double)x) : quiet;
}

GSC_FUNCTION uint32_t f32_from_double(double x)
{
    const uint64_t bits = gsc_double_bits(x);
    const uint32_t quiet =
        ((uint32_t)(bits >> 32) & 0x80000000u) | 0x7fc00000u | ((uint32_t)(bits >> 29) & 0x3fffffu);
    return GSC_KEEPS_NANS || x == x ? gsc_float_bits((float)x) : quiet;
}

GSC_FUNCTION uint64_t f64_from_double(double x)
{
    return gsc_double_bits(x);
}

/* ---- narrow types ---- */

/* Returns bits >> shift, rounded to nearest even. */
GSC_FUNCTION uint64_t gsc_round_shift(uint64_t bits, int shift)
{
    uint64_t half = (uint64_t)1 << (shift - 1);
    return (bits + (half - 1) + (bits >> shift & 1)) >> shift;
}

/*
 * Rounds a magnitude to a type with `mantissa` bits. The magnitude has an unbiased exponent and a
 * 53-bit significand with 2^52 set. If it is too large for the type, returns `infinity`.
 */
GSC_FUNCTION uint32_t gsc_round(int exponent, uint64_t significand, int mantissa, int bias,
                                uint32_t infinity)
{
    const int least = 1 - bias, excess = exponent - least;
    if (excess < -mantissa - 1) /* below half of the smallest subnormal */
        return 0;
    if (excess < 0)
        return (uint32_t)gsc_round_shift(significand, 52 - mantissa - excess);
    const uint32_t bits =
        ((uint32_t)excess << mantissa) + (uint32_t)gsc_round_shift(significand, 52 - mantissa);
    return bits < infinity ? bits : infinity;
}

#define GSC_NARROW(dtype)                                                                          \
    GSC_FUNCTION float dtype##_load(dtype##_bits bits)                                             \
    {                                                                                              \
        const uint32_t magnitude = GSC_MAGNITUDE(dtype, bits);                                     \
        const uint32_t sign = (uint32_t)(bits ^ magnitude) << (32 - 8 * sizeof bits);              \
        const uint32_t shifted = magnitude << (23 - dtype##_MANTISSA);                             \
        if (magnitude >= dtype##_NAN)                                                              \
            return gsc_float(sign | 0x7fc00000u | shifted);                                        \
        if (magnitude >= dtype##_INF)                                                              \
            return gsc_float(sign | 0x7f800000u);                                                  \
        if (dtype##_BIAS == 127) /* subnormal like float */                                        \
            return gsc_float(sign | shifted);                                                      \
        if (magnitude >= GSC_NORMAL(dtype))                                                        \
            return gsc_float(sign | (shifted + ((127u - dtype##_BIAS) << 23)));                    \
        const uint32_t unit = (128u - dtype##_BIAS - dtype##_MANTISSA) << 23;                      \
        return gsc_float(sign | gsc_float_bits((float)magnitude * gsc_float(unit)));               \
    }                                                                                              \
    GSC_FUNCTION dtype##_bits dtype##_from_double(double x)                                        \
    {                                                                                              \
        const uint64_t bits = gsc_double_bits(x), magnitude = bits & ~((uint64_t)1 << 63);         \
        const uint32_t sign = (uint32_t)(bits >> 63) << (8 * sizeof(dtype##_bits) - 1);            \
        const uint32_t quiet = dtype##_INF | (uint32_t)GSC_NORMAL(dtype) >> 1;                     \
        const uint64_t fraction = magnitude & (GSC_NORMAL(f64) - 1);                               \
        if (magnitude > f64_INF)                                                                   \
            return (dtype##_bits)(sign | quiet | (uint32_t)(fraction >> (52 - dtype##_MANTISSA))); \
        return (dtype##_bits)(sign | gsc_round((int)(magnitude >> 52) - 1023,                      \
                                               fraction | GSC_NORMAL(f64), dtype##_MANTISSA,       \
                                               dtype##_BIAS, dtype##_INF));                        \
    }                                                                                              \
    GSC_FUNCTION dtype##_bits dtype##_from_float(float x)                                          \
    {                                                                                              \
        const uint32_t bits = gsc_float_bits(x), magnitude = bits & 0x7fffffffu;                   \
        const uint32_t sign = (bits >> 31) << (8 * sizeof(dtype##_bits) - 1);                      \
        const uint32_t quiet = dtype##_INF | (uint32_t)GSC_NORMAL(dtype) >> 1;                     \
        const uint32_t fraction = magnitude & (uint32_t)(GSC_NORMAL(f32) - 1);                     \
        if (magnitude > f32_INF)                                                                   \
            return (dtype##_bits)(sign | quiet | fraction >> (23 - dtype##_MANTISSA));             \
        if (dtype##_BIAS == 127)                                                                   \
            return (dtype##_bits)(sign | gsc_round_shift(magnitude, 23 - dtype##_MANTISSA));       \
        return (dtype##_bits)(sign | gsc_round((int)(magnitude >> 23) - 127,                       \
                                               (fraction | GSC_NORMAL(f32)) << 29,                 \
                                               dtype##_MANTISSA, dtype##_BIAS, dtype##_INF));      \
    }
GSC_NARROW(f16)
GSC_NARROW(bf16)
GSC_NARROW(f8_e4m3fn)
GSC_NARROW(f8_e5m2)
GSC_NARROW(cb16)

#endif

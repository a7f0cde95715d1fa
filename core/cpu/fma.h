/* SPDX-License-Identifier: MIT */
/*
 * x * y + z, rounded once to nearest, for C libraries that round twice, as on Windows. The tests
 * compare every other fma with these functions.
 */
#ifndef GSC_FMA_H
#define GSC_FMA_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The product is exact. Rounding the sum to odd keeps all that the second rounding needs. */
static inline float gsc_fmaf(float x, float y, float z)
{
    const double product = (double)x * y;
    double sum = product + z;
    const double part = sum - product, error = (product - (sum - part)) + (z - part);
    uint64_t bits;
    memcpy(&bits, &sum, 8);
    if (isfinite(sum) && error != 0 && bits % 2 == 0) {
        bits += (error > 0) == (sum > 0) ? 1 : UINT64_MAX;
        memcpy(&sum, &bits, 8);
    }
    return (float)sum;
}

__extension__ typedef unsigned __int128 gsc_wide;

/* The number wide * 2^power. The highest bit of `wide` is GSC_TOP: a sum of two numbers fits. */
enum { GSC_TOP = 125 };
typedef struct gsc_exact {
    gsc_wide wide;
    int power;
    bool minus;
} gsc_exact;

static inline int gsc_top(gsc_wide wide)
{
    const uint64_t high = (uint64_t)(wide >> 64);
    return high ? 127 - __builtin_clzll(high) : 63 - __builtin_clzll((uint64_t)wide);
}

static inline gsc_exact gsc_exact_of(gsc_wide wide, int power, bool minus)
{
    const int by = GSC_TOP - gsc_top(wide);
    const gsc_exact exact = {wide << by, power - by, minus};
    return exact;
}

/* Splits a finite x: |x| is the result times 2^*power. */
static inline uint64_t gsc_integer(double x, int *power)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    const int exponent = (int)(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & UINT64_MAX >> 12;
    *power = (exponent ? exponent : 1) - 1075;
    return exponent ? fraction | UINT64_C(1) << 52 : fraction;
}

/* Shifts down. If a bit that is not 0 is lost, sets the lowest bit. */
static inline gsc_wide gsc_shift_down(gsc_wide wide, int by)
{
    if (by > GSC_TOP)
        return wide != 0;
    const gsc_wide kept = wide >> by;
    return kept | (kept << by != wide);
}

static inline double gsc_add_exact(gsc_exact larger, gsc_exact smaller)
{
    const gsc_wide low = gsc_shift_down(smaller.wide, larger.power - smaller.power);
    gsc_wide sum = larger.minus == smaller.minus ? larger.wide + low : larger.wide - low;
    if (sum == 0)
        return 0;
    /* Rounds to 53 bits, or to fewer if the result is subnormal. */
    const int top = gsc_top(sum), least = -1074 - larger.power;
    const int by = top - 52 > least ? top - 52 : least;
    if (by > 0) {
        sum = gsc_shift_down(sum, by - 2 < 0 ? 0 : by - 2);
        const int rest = by < 2 ? by : 2;
        const gsc_wide half = (gsc_wide)1 << (rest - 1), even = sum >> rest & 1;
        sum = (sum + half - 1 + even) >> rest;
        larger.power += by;
    }
    const double result = ldexp((double)(uint64_t)sum, larger.power);
    return larger.minus ? -result : result;
}

static inline double gsc_fma(double x, double y, double z)
{
    if (!isfinite(x) || !isfinite(y) || x == 0 || y == 0)
        return x * y + z;
    if (!isfinite(z) || z == 0)
        return z == 0 ? x * y : z + z;
    int x_power, y_power, z_power;
    const gsc_wide x_integer = gsc_integer(x, &x_power), y_integer = gsc_integer(y, &y_power);
    const gsc_wide z_integer = gsc_integer(z, &z_power);
    const bool minus = !signbit(x) != !signbit(y);
    const gsc_exact a = gsc_exact_of(x_integer * y_integer, x_power + y_power, minus);
    const gsc_exact b = gsc_exact_of(z_integer, z_power, signbit(z));
    const bool is_less = a.power != b.power ? a.power < b.power : a.wide < b.wide;
    return is_less ? gsc_add_exact(b, a) : gsc_add_exact(a, b);
}

#endif

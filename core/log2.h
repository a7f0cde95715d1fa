/* SPDX-License-Identifier: MIT */
/*
 * log2 and exp2, built from + - * / and integer operations, which every machine rounds alike: a
 * policy's prediction must not depend on the machine's libm. Errors are about one unit in the last
 * place.
 */
#ifndef GSC_LOG2_H
#define GSC_LOG2_H

#include "convert.h"

/* Keeps the code of a device small, which one thread runs. */
#ifdef __CUDA_ARCH__
#define GSC_ROLLED _Pragma("unroll 1")
#else
#define GSC_ROLLED
#endif

/* Returns 2^n for n from -1022 to 1023. */
GSC_FUNCTION double gsc_power_of_two(int n)
{
    return gsc_double((uint64_t)(n + 1023) << 52);
}

/*
 * Returns log2 of a finite x > 0. x = m * 2^e with m from sqrt(1/2) to sqrt(2). With f = m - 1,
 * s = f / (2 + f) and z = s * s: log(m) = 2 atanh(s) = f - f*f/2 + s * (f*f/2 + 2z/3 + 2z^2/5 +
 * ...). The first two terms and 1 / log(2) are split into halves: the product of the upper halves
 * is then exact.
 */
GSC_FUNCTION double gsc_log2(double x)
{
    const double over_ln2_high = 0x1.71547652p+0, over_ln2_low = 0x1.705fc2eefa2p-33;
    uint64_t bits = gsc_double_bits(x);
    int exponent = (int)(bits >> 52) - 1023;
    if (exponent == -1023) { /* subnormal: a host may flush it to zero */
        exponent++;
        while (bits < GSC_NORMAL(f64)) {
            bits <<= 1;
            exponent--;
        }
    }
    bits = (bits & (GSC_NORMAL(f64) - 1)) | (uint64_t)1023 << 52;
    if (gsc_double(bits) > 0x1.6a09e667f3bcdp0) { /* sqrt(2) */
        bits -= GSC_NORMAL(f64);
        exponent++;
    }
    const double f = gsc_double(bits) - 1.0, s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    double series = 0;
    GSC_ROLLED for (int k = 23; k >= 3; k -= 2) series = series * z + 2.0 / k;
    const double rest = s * (half + series * z);
    const double high = gsc_double(gsc_double_bits(f - half) & ~(uint64_t)0xffffffff);
    const double low = ((f - high) - half) + rest;
    const double product = high * over_ln2_high, sum = (double)exponent + product;
    return sum + (((double)exponent - sum) + product +
                  ((low + high) * over_ln2_low + low * over_ln2_high));
}

/* Returns 2^x for any x except NaN: 2^n times the series of e^((x - n) log(2)), n = round(x). */
GSC_FUNCTION double gsc_exp2(double x)
{
    const double ln2 = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;
    if (x > 1100.0)
        x = 1100.0;
    if (x < -1100.0)
        x = -1100.0;
    const int n = (int)(x < 0 ? x - 0.5 : x + 0.5);
    const double r = x - (double)n, t = r * ln2;
    double series = 0; /* (e^t - 1 - t) / t^2 */
    GSC_ROLLED for (int k = 14; k >= 2; k--) series = (series * t + 1.0) / k;
    const double e = 1.0 + (t + (t * (t * series) + r * ln2_low));
    return e * gsc_power_of_two(n / 2) * gsc_power_of_two(n - n / 2);
}

#endif

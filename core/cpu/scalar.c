/* SPDX-License-Identifier: MIT */
/* Plain C: every kernel, as numerics.md defines it. The tests compare all other sets with it. */
#include <math.h>

#include "dtypes.h"
#include "install.h"
#include "kernels.h"
#if defined(_WIN32)
#include "fma.h"
#endif

/* ---- an element: its bits, and its value in the type that multiplies ---- */

GSC_INLINE uint64_t load(enum gsc_real_dtype dtype, const void *at, uint64_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)at + i * size_of(dtype), size_of(dtype));
    return bits;
}

GSC_INLINE void store(enum gsc_real_dtype dtype, void *at, uint64_t i, uint64_t bits)
{
    memcpy((char *)at + i * size_of(dtype), &bits, size_of(dtype));
}

GSC_INLINE uint64_t magnitude_of(enum gsc_real_dtype dtype, uint64_t bits)
{
    return bits & ~UINT64_C(0) >> (65 - 8 * size_of(dtype));
}

/* Returns a NaN made quiet, for machines that would change its sign or payload. */
GSC_INLINE uint64_t quiet(enum gsc_real_dtype dtype, uint64_t bits)
{
    return bits | gsc_encodings[dtype].normal >> 1;
}

/* A number in the multiplying type: `d` if the input is f64, else `f`. */
struct number {
    float f;
    double d;
};

GSC_INLINE float widen(enum gsc_real_dtype dtype, uint64_t bits)
{
    switch (dtype) {
    case gsc_f16:
        return f16_load((f16_bits)bits);
    case gsc_bf16:
        return bf16_load((bf16_bits)bits);
    case gsc_f8_e4m3fn:
        return f8_e4m3fn_load((f8_e4m3fn_bits)bits);
    case gsc_f8_e5m2:
        return f8_e5m2_load((f8_e5m2_bits)bits);
    case gsc_cb16:
        return cb16_load((cb16_bits)bits);
    default:
        return gsc_float((uint32_t)bits);
    }
}

GSC_INLINE uint64_t round_float(enum gsc_real_dtype out, float x)
{
    switch (out) {
    case gsc_f64:
        return f64_from_float(x);
    case gsc_f16:
        return f16_from_float(x);
    case gsc_bf16:
        return bf16_from_float(x);
    case gsc_f8_e4m3fn:
        return f8_e4m3fn_from_float(x);
    case gsc_f8_e5m2:
        return f8_e5m2_from_float(x);
    case gsc_cb16:
        return cb16_from_float(x);
    default:
        return gsc_float_bits(x);
    }
}

GSC_INLINE uint64_t round_double(enum gsc_real_dtype out, double x)
{
    switch (out) {
    case gsc_f32:
        return f32_from_double(x);
    case gsc_f16:
        return f16_from_double(x);
    case gsc_bf16:
        return bf16_from_double(x);
    case gsc_f8_e4m3fn:
        return f8_e4m3fn_from_double(x);
    case gsc_f8_e5m2:
        return f8_e5m2_from_double(x);
    case gsc_cb16:
        return cb16_from_double(x);
    default:
        return gsc_double_bits(x);
    }
}

/* ---- kernels ---- */

GSC_INLINE struct number product(enum gsc_real_dtype in, uint64_t bits, double m)
{
    if (in == gsc_f64) {
        const double x = gsc_double(bits);
        return (struct number){.d = GSC_KEEPS_NANS || x == x ? x * m : gsc_double(quiet(in, bits))};
    }
    const float x = widen(in, bits);
    if (GSC_KEEPS_NANS || x == x)
        return (struct number){.f = x * (float)m};
    return (struct number){.f = gsc_float((uint32_t)quiet(gsc_f32, gsc_float_bits(x)))};
}

/* Returns lane + x * x, rounded once in the multiplying type of `in`. */
GSC_INLINE double add_square(enum gsc_real_dtype in, struct number x, double lane)
{
#if defined(_WIN32)
    return in == gsc_f64 ? gsc_fma(x.d, x.d, lane) : (double)gsc_fmaf(x.f, x.f, (float)lane);
#else
    return in == gsc_f64 ? fma(x.d, x.d, lane) : (double)fmaf(x.f, x.f, (float)lane);
#endif
}

/* Adds the lanes as a balanced tree: lane j + 32 to lane j, then lane j + 16, ... */
static double fold(double *lanes)
{
    for (int half = GSC_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    return lanes[0];
}

GSC_INLINE uint64_t multiply(enum gsc_real_dtype in, enum gsc_real_dtype out, unsigned does,
                             const void *from, void *to, uint64_t n, double m, gsc_norm *norm)
{
    double lanes[GSC_LANES] = {0};
    uint64_t most = 0, zeros = 0, subnormals = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t bits = load(in, from, i), magnitude = magnitude_of(in, bits);
        const struct number x = product(in, bits, m);
        double *lane = &lanes[i % GSC_LANES];
        if ((does & GSC_CLEANS) && magnitude >= norm->limit)
            continue;
        most = magnitude > most ? magnitude : most;
        if (does & GSC_COUNTS) {
            zeros += magnitude - 1 < norm->small.not_zero - 1;
            subnormals += magnitude >= norm->small.least && magnitude < norm->small.normal;
        }
        if ((does & GSC_WRITES) && (does & GSC_SUMS) && in == out && size_of(in) <= 2)
            store(in, norm->input, i, bits);
        if (does & GSC_WRITES)
            store(out, to, i, in == gsc_f64 ? round_double(out, x.d) : round_float(out, x.f));
        if (does & GSC_SUMS)
            *lane = add_square(in, x, *lane);
    }
    if (does & GSC_COUNTS) {
        norm->small.zeros = zeros;
        norm->small.subnormals = subnormals;
    }
    if (does & GSC_SUMS)
        norm->sum = fold(lanes);
    return most;
}

/* Adds in the wider of the two multiplying types. */
GSC_INLINE uint64_t add(enum gsc_real_dtype in, enum gsc_real_dtype out, const void *from, void *to,
                        uint64_t n, double m)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t addend = load(in, from, i), bits = load(out, to, i);
        const float f = gsc_float((uint32_t)addend) * (float)m;
        const double d = in == gsc_f64 ? gsc_double(addend) * m : (double)f;
        uint64_t sum;
        if (!GSC_KEEPS_NANS && magnitude_of(out, bits) >= gsc_encodings[out].nan)
            sum = quiet(out, bits);
        else if (out == gsc_f64)
            sum = gsc_double_bits(gsc_double(bits) + d);
        else if (in == gsc_f64)
            sum = round_double(out, (double)widen(out, bits) + d);
        else
            sum = round_float(out, widen(out, bits) + f);
        store(out, to, i, sum);
    }
    return 0;
}

GSC_INLINE uint64_t clamp(enum gsc_real_dtype dtype, const void *from, void *to, uint64_t n,
                          double most)
{
    const float f_most = (float)most;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t bits = load(dtype, from, i);
        const double d = gsc_double(bits);
        const float f = gsc_float((uint32_t)bits);
        store(dtype, to, i,
              dtype == gsc_f64 ? gsc_double_bits(d > most    ? most
                                                 : d < -most ? -most
                                                             : d)
                               : gsc_float_bits(f > f_most    ? f_most
                                                : f < -f_most ? -f_most
                                                              : f));
    }
    return 0;
}

GSC_INLINE uint64_t check(enum gsc_real_dtype dtype, const void *from, uint64_t n)
{
    uint64_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t magnitude = magnitude_of(dtype, load(dtype, from, i));
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

GSC_INLINE gsc_found count(enum gsc_real_dtype dtype, const void *from, uint64_t n, uint64_t low,
                           uint64_t high, uint64_t *near)
{
    gsc_found found = {0, 0};
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t magnitude = magnitude_of(dtype, load(dtype, from, i));
        if (near && magnitude >= low && found.low == 0)
            *near = i;
        found.low += magnitude >= low;
        found.high += magnitude >= high;
    }
    return found;
}

GSC_INLINE uint64_t find(enum gsc_real_dtype dtype, const void *from, uint64_t n, uint64_t low)
{
    uint64_t i = 0;
    while (i < n && magnitude_of(dtype, load(dtype, from, i)) < low)
        i++;
    return i;
}

uint64_t gsc_convert_one(uint32_t from, uint64_t bits, uint32_t to, double multiplier)
{
    const struct number x = product(from, bits, multiplier);
    return from == gsc_f64 ? round_double(to, x.d) : round_float(to, x.f);
}

static void stream(const void *in, void *out, uint64_t bytes)
{
    memcpy(out, in, bytes);
}

GSC_FOR_DTYPES(GSC_READERS)
GSC_FOR_PAIRS(GSC_WRITERS)
GSC_FOR_COUNTED_PAIRS(GSC_COUNTERS)
GSC_FOR_SUMS(GSC_SUM)
GSC_KERNEL(clamp_f32, clamp(gsc_f32, from, to, n, number))
GSC_KERNEL(clamp_f64, clamp(gsc_f64, from, to, n, number))

void gsc_install_scalar(gsc_kernels *kernels)
{
    GSC_FOR_DTYPES(GSC_INSTALL_READERS)
    GSC_FOR_PAIRS(GSC_INSTALL_WRITERS)
    GSC_FOR_COUNTED_PAIRS(GSC_INSTALL_COUNTERS)
    GSC_FOR_SUMS(GSC_INSTALL_SUM)
    kernels->clamp[gsc_f32] = clamp_f32;
    kernels->clamp[gsc_f64] = clamp_f64;
    kernels->stream = stream;
}

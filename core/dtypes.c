/* SPDX-License-Identifier: MIT */
/* The tables of dtypes. */
#include "dtypes.h"

const struct gsc_encoding gsc_encodings[] = {
#define ENCODING(name) {sizeof(name##_bits), name##_INF, name##_NAN, GSC_NORMAL(name)},
    GSC_FOR_DTYPES(ENCODING)
#undef ENCODING
};

#define REAL(real, parts, name)                                                                    \
    {                                                                                              \
        gsc_##real, parts, parts * sizeof(real##_bits), name                                       \
    }
const struct gsc_real gsc_reals[] = {
    [GSC_F32] = REAL(f32, 1, "float32"),
    [GSC_F64] = REAL(f64, 1, "float64"),
    [GSC_F16] = REAL(f16, 1, "float16"),
    [GSC_BF16] = REAL(bf16, 1, "bfloat16"),
    [GSC_F8_E4M3FN] = REAL(f8_e4m3fn, 1, "float8_e4m3fn"),
    [GSC_F8_E5M2] = REAL(f8_e5m2, 1, "float8_e5m2"),
    [GSC_CB16] = REAL(cb16, 1, "cb16"),
    [GSC_COMPLEX64] = REAL(f32, 2, "complex64"),
    [GSC_COMPLEX128] = REAL(f64, 2, "complex128"),
};

/* Rounds a double towards zero to the bits that a dtype has, and to at most `largest`. */
static double round_down(double clamp, int mantissa, int bias, double largest)
{
    const uint64_t bits = gsc_double_bits(clamp);
    const int exponent = bits < GSC_NORMAL(f64) ? -1022 : (int)(bits >> 52) - 1023;
    const int below_normal = 1 - bias - exponent;
    const int dropped_bits = 52 - mantissa + (below_normal > 0 ? below_normal : 0);
    if (clamp >= largest)
        return largest;
    return dropped_bits > 52 ? 0 : gsc_double(bits >> dropped_bits << dropped_bits);
}

double gsc_clamp_limit(uint32_t dtype, double clamp)
{
    switch (dtype) {
#define CASE(name)                                                                                 \
    case gsc_##name:                                                                               \
        return round_down(clamp, name##_MANTISSA, name##_BIAS, (double)name##_load(name##_INF - 1));
        GSC_FOR_DTYPES(CASE)
#undef CASE
    default:
        return 0;
    }
}

bool gsc_is_finite_as(uint32_t dtype, double value)
{
    switch (dtype) {
#define CASE(name)                                                                                 \
    case gsc_##name:                                                                               \
        return GSC_MAGNITUDE(name, name##_from_double(value)) < name##_INF;
        GSC_FOR_DTYPES(CASE)
#undef CASE
    default:
        return false;
    }
}

const char *gsc_dtype_name(uint32_t dtype)
{
    return gsc_is_dtype(dtype) ? gsc_reals[dtype].name : NULL;
}

uint32_t gsc_dtype_bits(uint32_t dtype)
{
    return 8 * gsc_dtype_size(dtype);
}

uint32_t gsc_dtype_size(uint32_t dtype)
{
    return gsc_is_dtype(dtype) ? gsc_reals[dtype].size : 0;
}

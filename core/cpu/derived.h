/* SPDX-License-Identifier: MIT */
/*
 * Operations of simd.h that are made of others, for instruction sets that have no instruction for
 * them: NEON and AVX2. Their files define the operations before these, bytes_up and
 * f8_e4m3fn_shifted, then include this file.
 */
GSC_INLINE ints merge_cb16(ints even, ints odd, ints bits)
{
    return ints_or(merge_upper(ints_shl(even, 2), ints_shl(odd, 2)),
                   ints_and(bits, ints_set(0x80008000)));
}

GSC_INLINE half f8_e4m3fn_to_f16(quarter bits)
{
    const half upper = bytes_up(bits, 8);
    return (half){f8_e4m3fn_shifted(upper.low), f8_e4m3fn_shifted(upper.high)};
}

GSC_INLINE floats byte_widen(enum gsc_real_dtype dtype, ints bits, int k, quarter from)
{
    (void)bits, (void)k;
    return dtype == gsc_f8_e5m2 ? f16_widen(bytes_up(from, 8))
                                : floats_mul(f16_widen(f8_e4m3fn_to_f16(from)), floats_set(0x1p8f));
}

/* Not used: the values of bytes are computed from their bits. */
typedef int byte_values;
enum { SUMS_AT_ONCE = 0, BYTE_UNIT = 256 /* of f8_e4m3fn */ };

GSC_INLINE byte_values byte_values_load(enum gsc_real_dtype dtype)
{
    (void)dtype;
    return 0;
}

GSC_INLINE void byte_order(floats *a, floats *b, floats *c, floats *d)
{
    (void)a, (void)b, (void)c, (void)d; /* they are in order */
}

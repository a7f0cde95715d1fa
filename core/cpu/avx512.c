/* SPDX-License-Identifier: MIT */
/* AVX-512: F, BW, VL and DQ. The ends of a list are masked. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels.h"

#define W      16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma,bmi2,popcnt")))
#define OP     static inline TARGET

typedef __m512i ints;
typedef __m512 floats;
typedef __m512d doubles;
typedef __m256i raw2;
typedef __m128i raw1;

/* ---- memory ---- */

/* Bits for the first `left` elements; all, if there are more than a mask has bits. */
OP uint64_t first(uint64_t left)
{
    return left < 64 ? _bzhi_u64(~UINT64_C(0), (unsigned)left) : ~UINT64_C(0);
}

#define MEMORY(size, type, load, store, masked_load, masked_store, mask)                           \
    OP type read##size(const void *at)                                                             \
    {                                                                                              \
        return load(at);                                                                           \
    }                                                                                              \
    OP void write##size(void *at, type x)                                                          \
    {                                                                                              \
        store(at, x);                                                                              \
    }                                                                                              \
    OP type read_first##size(const void *at, uint64_t left)                                        \
    {                                                                                              \
        return masked_load((mask)first(left), at);                                                 \
    }                                                                                              \
    OP void write_first##size(void *at, type x, uint64_t left)                                     \
    {                                                                                              \
        masked_store(at, (mask)first(left), x);                                                    \
    }
MEMORY(4, ints, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_maskz_loadu_epi32,
       _mm512_mask_storeu_epi32, __mmask16)
MEMORY(2, raw2, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_maskz_loadu_epi16,
       _mm256_mask_storeu_epi16, __mmask16)
MEMORY(1, raw1, _mm_loadu_si128, _mm_storeu_si128, _mm_maskz_loadu_epi8, _mm_mask_storeu_epi8,
       __mmask16)
MEMORY(8, doubles, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_maskz_loadu_pd, _mm512_mask_storeu_pd,
       __mmask8)

OP ints read_bytes(const void *at, uint64_t bytes)
{
    return _mm512_maskz_loadu_epi8(first(bytes), at);
}

OP void write_bytes(void *at, ints x, uint64_t bytes)
{
    _mm512_mask_storeu_epi8(at, first(bytes), x);
}

/* At a multiple of a register's bytes. */
OP void stream4(void *at, ints x)
{
    _mm512_stream_si512(at, x);
}

OP void stream_end(void)
{
    _mm_sfence();
}

/* ---- integers ---- */

OP ints ints_set(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

#define BINARY(name, intrinsic)                                                                    \
    OP ints name(ints a, ints b)                                                                   \
    {                                                                                              \
        return intrinsic(a, b);                                                                    \
    }
BINARY(ints_add, _mm512_add_epi32)
BINARY(ints_sub, _mm512_sub_epi32)
BINARY(ints_and, _mm512_and_si512)
BINARY(ints_or, _mm512_or_si512)
BINARY(ints_min, _mm512_min_epu32)
BINARY(max1, _mm512_max_epu8)
BINARY(max2, _mm512_max_epu16)
BINARY(max4, _mm512_max_epu32)
BINARY(max8, _mm512_max_epu64)
BINARY(min2, _mm512_min_epu16)
#define ints_shl(a, count) _mm512_slli_epi32(a, count)
#define ints_shr(a, count) _mm512_srli_epi32(a, count)

/* a >= b ? x : y */
OP ints ints_select_ge(ints a, ints b, ints x, ints y)
{
    return _mm512_mask_blend_epi32(_mm512_cmpge_epu32_mask(a, b), y, x);
}

/* x + bit 16 of x */
OP ints add_bit16(ints x)
{
    return _mm512_mask_add_epi32(x, _mm512_test_epi32_mask(x, _mm512_set1_epi32(0x10000)), x,
                                 _mm512_set1_epi32(1));
}

OP ints magnitudes1(ints bits)
{
    return _mm512_and_si512(bits, _mm512_set1_epi8(0x7f));
}

OP ints magnitudes2(ints bits)
{
    return _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
}

OP ints magnitudes4(ints bits)
{
    return _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
}

OP ints magnitudes8(ints bits)
{
    return _mm512_and_si512(bits, _mm512_set1_epi64(INT64_MAX));
}

OP uint64_t largest2(ints x)
{
    const __m256i half =
        _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    const __m128i most =
        _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1)));
    return 0xffff ^ (uint64_t)_mm_extract_epi16(least, 0);
}

OP uint64_t largest1(ints x)
{
    return largest2(
        _mm512_max_epu8(_mm512_srli_epi16(x, 8), _mm512_and_si512(x, _mm512_set1_epi16(0xff))));
}

OP uint64_t largest4(ints x)
{
    return _mm512_reduce_max_epu32(x);
}

OP uint64_t largest8(ints x)
{
    return _mm512_reduce_max_epu64(x);
}

#define AT_LEAST(size, type, set, compare)                                                         \
    OP uint64_t at_least##size(ints x, uint64_t least)                                             \
    {                                                                                              \
        return (uint64_t)_mm_popcnt_u64(compare(x, set((type)least)));                             \
    }
AT_LEAST(1, char, _mm512_set1_epi8, _mm512_cmpge_epu8_mask)
AT_LEAST(2, short, _mm512_set1_epi16, _mm512_cmpge_epu16_mask)
AT_LEAST(4, int, _mm512_set1_epi32, _mm512_cmpge_epu32_mask)
AT_LEAST(8, long long, _mm512_set1_epi64, _mm512_cmpge_epu64_mask)

#define KEEP_BELOW(size, type, set, compare, keep)                                                 \
    OP ints keep_below##size(ints x, uint64_t limit)                                               \
    {                                                                                              \
        return keep(compare(magnitudes##size(x), set((type)limit)), x);                            \
    }
KEEP_BELOW(1, char, _mm512_set1_epi8, _mm512_cmplt_epu8_mask, _mm512_maskz_mov_epi8)
KEEP_BELOW(2, short, _mm512_set1_epi16, _mm512_cmplt_epu16_mask, _mm512_maskz_mov_epi16)
KEEP_BELOW(4, int, _mm512_set1_epi32, _mm512_cmplt_epu32_mask, _mm512_maskz_mov_epi32)
KEEP_BELOW(8, long long, _mm512_set1_epi64, _mm512_cmplt_epu64_mask, _mm512_maskz_mov_epi64)

OP ints sub2(ints a, uint16_t b)
{
    return _mm512_sub_epi16(a, _mm512_set1_epi16((short)b));
}

OP ints add_where_not_zero2(ints bits, uint16_t b)
{
    const __mmask32 some = _mm512_test_epi16_mask(bits, _mm512_set1_epi16(0x7fff));
    return _mm512_mask_add_epi16(bits, some, bits, _mm512_set1_epi16((short)b));
}

OP bool any_below2(ints x, uint16_t limit)
{
    return _mm512_cmplt_epu16_mask(x, _mm512_set1_epi16((short)limit)) != 0;
}

OP bool any_above2(ints x, uint16_t limit)
{
    return _mm512_cmpgt_epu16_mask(x, _mm512_set1_epi16((short)limit)) != 0;
}

/* The upper halves of both, a float's width each: of `even` into the lower place. */
OP ints merge_upper(ints even, ints odd)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(even, 16), odd);
}

/* ---- widths ---- */

OP ints whole4(ints x)
{
    return x;
}

OP ints whole2(raw2 x)
{
    return _mm512_zextsi256_si512(x);
}

OP ints whole1(raw1 x)
{
    return _mm512_zextsi128_si512(x);
}

OP ints widen2(raw2 x)
{
    return _mm512_cvtepu16_epi32(x);
}

OP ints widen1(raw1 x)
{
    return _mm512_cvtepu8_epi32(x);
}

OP raw2 narrow2(ints x)
{
    return _mm512_cvtepi32_epi16(x);
}

OP raw1 narrow1(ints x)
{
    return _mm512_cvtepi32_epi8(x);
}

/* ---- floats ---- */

OP floats floats_of(ints bits)
{
    return _mm512_castsi512_ps(bits);
}

OP ints bits_of(floats x)
{
    return _mm512_castps_si512(x);
}

OP floats floats_set(float x)
{
    return _mm512_set1_ps(x);
}

OP floats floats_add(floats a, floats b)
{
    return _mm512_add_ps(a, b);
}

OP floats floats_sub(floats a, floats b)
{
    return _mm512_sub_ps(a, b);
}

OP floats floats_mul(floats a, floats b)
{
    return _mm512_mul_ps(a, b);
}

OP floats floats_fma(floats a, floats b, floats c)
{
    return _mm512_fmadd_ps(a, b, c);
}

OP floats floats_clamp(floats x, floats low, floats high)
{
    return _mm512_max_ps(low, _mm512_min_ps(high, x)); /* a NaN is the second operand, and stays */
}

OP floats f16_widen(raw2 bits)
{
    return _mm512_cvtph_ps(bits);
}

OP raw2 f16_narrow(floats x)
{
    /* All lanes; without a mask gcc's macro, which is a function only where it optimises, warns. */
    return _mm512_maskz_cvtps_ph(0xFFFF, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* ---- doubles ---- */

OP doubles doubles_of(ints bits)
{
    return _mm512_castsi512_pd(bits);
}

OP doubles doubles_set(double x)
{
    return _mm512_set1_pd(x);
}

OP doubles doubles_add(doubles a, doubles b)
{
    return _mm512_add_pd(a, b);
}

OP doubles doubles_mul(doubles a, doubles b)
{
    return _mm512_mul_pd(a, b);
}

OP doubles doubles_fma(doubles a, doubles b, doubles c)
{
    return _mm512_fmadd_pd(a, b, c);
}

OP doubles doubles_clamp(doubles x, doubles low, doubles high)
{
    return _mm512_max_pd(low, _mm512_min_pd(high, x));
}

OP doubles doubles_low(floats x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

OP doubles doubles_high(floats x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

OP void write_half4(void *at, doubles x)
{
    _mm256_storeu_ps(at, _mm512_cvtpd_ps(x));
}

OP void write_first_half4(void *at, doubles x, uint64_t left)
{
    _mm256_mask_storeu_ps(at, (__mmask8)first(left), _mm512_cvtpd_ps(x));
}

/* The sum of lanes j and j + 4, of these j and j + 2, of these both. */
OP double doubles_fold(doubles x)
{
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#include "simd.h"

void gsc_install_avx512(gsc_kernels *kernels)
{
    gsc_kernel *const narrower = kernels->unscale_norm[gsc_f32][gsc_f32];
    INSTALL
    /* Measured: as fast in L2, and with data from DRAM 0.88 of the limit against 1.1. */
    kernels->unscale_norm[gsc_f32][gsc_f32] = narrower;
}
#else
typedef int gsc_no_avx512; /* an empty translation unit is not C */
#endif

/* SPDX-License-Identifier: MIT */
/* AVX-512 F, BW, DQ, VL, VBMI: a vector of simd.h is one register; loads of ends are masked. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "kernels.h"

/* The instruction sets that this file's functions are compiled for. */
#if defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,f16c,fma,bmi2,popcnt"))), \
    apply_to = function)
#else
#pragma GCC push_options /* other files follow when the library is one file */
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,f16c,fma,bmi2,popcnt")
#endif

typedef __m512i ints;
typedef __m512 floats;
typedef __m512d doubles;
typedef __m256i half;
typedef __m128i quarter;

enum { FROM_B_WHERE_A = 0xca }; /* ternarylogic: a ? b : c for each bit */

/* ---- memory ---- */

/* Returns a mask of the first `bytes` < 64. */
GSC_INLINE uint64_t first(uint64_t bytes)
{
    return _bzhi_u64(~UINT64_C(0), (unsigned)bytes);
}

GSC_INLINE ints load(const void *at)
{
    return _mm512_loadu_si512(at);
}

GSC_INLINE ints load_first(const void *at, uint64_t bytes)
{
    if (bytes == 32) /* can be forwarded from an earlier store; a masked load would wait */
        return _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_loadu_si256(at), 0);
    return _mm512_maskz_loadu_epi8(first(bytes), at);
}

GSC_INLINE void store(void *at, ints x)
{
    _mm512_storeu_si512(at, x);
}

GSC_INLINE half load_half(const void *at)
{
    return _mm256_loadu_si256(at);
}

GSC_INLINE void store_half(void *at, half x)
{
    _mm256_storeu_si256(at, x);
}

GSC_INLINE quarter load_quarter(const void *at)
{
    return _mm_loadu_si128(at);
}

GSC_INLINE void store_quarter(void *at, quarter x)
{
    _mm_storeu_si128(at, x);
}

/*
 * Stores bytes % 16 bytes: 8, 4, 2 and 1 by the bits of `bytes`. After a masked store, a load of
 * the bytes behind it would wait. Measured: the functions of ends.h take registers that every small
 * tensor would have to save: 1.2 times as long for 32 floats.
 */
GSC_INLINE void store_first_quarter(char *at, quarter x, uint64_t bytes)
{
    uint64_t word = (uint64_t)_mm_cvtsi128_si64(x);
    if (bytes & 8) {
        memcpy(at, &word, 8);
        word = (uint64_t)_mm_extract_epi64(x, 1);
    }
    if (bytes & 4) {
        memcpy(at + (bytes & 8), &word, 4);
        word >>= 32;
    }
    if (bytes & 2) {
        memcpy(at + (bytes & 12), &word, 2);
        word >>= 16;
    }
    if (bytes & 1)
        memcpy(at + (bytes & 14), &word, 1);
}

GSC_INLINE void store_first_half(char *at, half x, uint64_t bytes)
{
    quarter rest = _mm256_castsi256_si128(x);
    if (bytes & 16) {
        store_quarter(at, rest);
        rest = _mm256_extracti128_si256(x, 1);
    }
    store_first_quarter(at + (bytes & 16), rest, bytes);
}

GSC_INLINE void store_first(char *at, ints x, uint64_t bytes)
{
    half rest = _mm512_castsi512_si256(x);
    if (bytes & 32) {
        store_half(at, rest);
        rest = _mm512_extracti64x4_epi64(x, 1);
    }
    if (bytes % 32)
        store_first_half(at + (bytes & 32), rest, bytes);
}

GSC_INLINE void store_past_caches(void *at, ints x)
{
    _mm512_stream_si512(at, x);
}

GSC_INLINE void store_past_caches_done(void)
{
    _mm_sfence();
}

/* ---- by the size of elements ---- */

GSC_INLINE ints all(uint64_t size, uint64_t x)
{
    return size == 1   ? _mm512_set1_epi8((char)x)
           : size == 2 ? _mm512_set1_epi16((short)x)
           : size == 4 ? _mm512_set1_epi32((int)x)
                       : _mm512_set1_epi64((long long)x);
}

GSC_INLINE ints larger(uint64_t size, ints a, ints b)
{
    return size == 1   ? _mm512_max_epu8(a, b)
           : size == 2 ? _mm512_max_epu16(a, b)
           : size == 4 ? _mm512_max_epu32(a, b)
                       : _mm512_max_epu64(a, b);
}

GSC_INLINE ints magnitudes(uint64_t size, ints x)
{
    return _mm512_and_si512(x, all(size, ~UINT64_C(0) >> (65 - 8 * size)));
}

GSC_INLINE uint64_t largest2(ints x)
{
    const __m256i four =
        _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    const __m128i most =
        _mm_max_epu16(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1)));
    return 0xffff ^ (uint64_t)_mm_extract_epi16(least, 0);
}

GSC_INLINE uint64_t largest(uint64_t size, ints x)
{
    return size == 1   ? largest2(_mm512_max_epu8(_mm512_srli_epi16(x, 8),
                                                  _mm512_and_si512(x, _mm512_set1_epi16(0xff))))
           : size == 2 ? largest2(x)
           : size == 4 ? _mm512_reduce_max_epu32(x)
                       : _mm512_reduce_max_epu64(x);
}

/* Returns a bit for each element, set if its magnitude is below `limit`. */
GSC_INLINE uint64_t below(uint64_t size, ints x, uint64_t limit)
{
    return size == 1   ? _mm512_cmplt_epu8_mask(x, all(1, limit))
           : size == 2 ? _mm512_cmplt_epu16_mask(x, all(2, limit))
           : size == 4 ? _mm512_cmplt_epu32_mask(x, all(4, limit))
                       : _mm512_cmplt_epu64_mask(x, all(8, limit));
}

GSC_INLINE uint64_t between(uint64_t size, ints x, uint64_t low, uint64_t high)
{
    return (uint64_t)_mm_popcnt_u64(below(size, x, high) & ~below(size, x, low));
}

GSC_INLINE bool any_below(uint64_t size, ints x, uint64_t limit)
{
    return below(size, x, limit) != 0;
}

GSC_INLINE ints smaller(uint64_t size, ints a, ints b)
{
    return size == 1   ? _mm512_min_epu8(a, b)
           : size == 2 ? _mm512_min_epu16(a, b)
           : size == 4 ? _mm512_min_epu32(a, b)
                       : _mm512_min_epu64(a, b);
}

GSC_INLINE ints sub(uint64_t size, ints a, uint64_t b)
{
    return size == 1   ? _mm512_sub_epi8(a, all(1, b))
           : size == 2 ? _mm512_sub_epi16(a, all(2, b))
           : size == 4 ? _mm512_sub_epi32(a, all(4, b))
                       : _mm512_sub_epi64(a, all(8, b));
}

GSC_INLINE uint64_t at_least(uint64_t size, ints x, uint64_t least)
{
    return 64 / size - (uint64_t)_mm_popcnt_u64(below(size, x, least));
}

GSC_INLINE bool any_at_least(uint64_t size, ints x, uint64_t least)
{
    return (size == 1   ? _mm512_cmpge_epu8_mask(x, all(1, least))
            : size == 2 ? _mm512_cmpge_epu16_mask(x, all(2, least))
            : size == 4 ? _mm512_cmpge_epu32_mask(x, all(4, least))
                        : _mm512_cmpge_epu64_mask(x, all(8, least))) != 0;
}

GSC_INLINE uint64_t before_first(uint64_t size, ints x, uint64_t least)
{
    return (uint64_t)__builtin_ctzll(~below(size, x, least));
}

GSC_INLINE ints keep_below(uint64_t size, ints x, uint64_t limit)
{
    const uint64_t kept = below(size, magnitudes(size, x), limit);
    return size == 1   ? _mm512_maskz_mov_epi8(kept, x)
           : size == 2 ? _mm512_maskz_mov_epi16((__mmask32)kept, x)
           : size == 4 ? _mm512_maskz_mov_epi32((__mmask16)kept, x)
                       : _mm512_maskz_mov_epi64((__mmask8)kept, x);
}

/* ---- integers ---- */

GSC_INLINE ints ints_set(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

GSC_INLINE ints ints_add(ints a, ints b)
{
    return _mm512_add_epi32(a, b);
}

GSC_INLINE ints ints_sub(ints a, ints b)
{
    return _mm512_sub_epi32(a, b);
}

GSC_INLINE ints ints_and(ints a, ints b)
{
    return _mm512_and_si512(a, b);
}

GSC_INLINE ints ints_or(ints a, ints b)
{
    return _mm512_or_si512(a, b);
}

GSC_INLINE ints ints_min(ints a, ints b)
{
    return _mm512_min_epu32(a, b);
}

/* For shifts: without optimisation, the intrinsics accept only a literal count. */
typedef uint32_t words __attribute__((vector_size(64)));

GSC_INLINE ints ints_shl(ints x, uint32_t count)
{
    return (ints)((words)x << count);
}

GSC_INLINE ints ints_shr(ints x, uint32_t count)
{
    return (ints)((words)x >> count);
}

GSC_INLINE ints ints_select_ge(ints a, ints b, ints x, ints y)
{
    return _mm512_mask_blend_epi32(_mm512_cmpge_epu32_mask(a, b), y, x);
}

GSC_INLINE ints add_bit(ints x, int index)
{
    return _mm512_mask_add_epi32(x, _mm512_test_epi32_mask(x, _mm512_set1_epi32(1 << index)), x,
                                 _mm512_set1_epi32(1));
}

/* ---- integers of 2 bytes ---- */

GSC_INLINE ints add_where_not_zero2(ints bits, uint16_t b)
{
    const __mmask32 some = _mm512_test_epi16_mask(bits, all(2, 0x7fff));
    return _mm512_mask_add_epi16(bits, some, bits, all(2, b));
}

GSC_INLINE bool any_above2(ints x, uint16_t limit)
{
    return _mm512_cmpgt_epu16_mask(x, all(2, limit)) != 0;
}

GSC_INLINE ints merge_upper(ints even, ints odd)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, ints_shr(even, 16), odd);
}

GSC_INLINE ints merge_cb16(ints even, ints odd, ints bits)
{
    const __m512i places = _mm512_set1_epi64(0x362e362e160e160e);
    const __m512i both = _mm512_mask_multishift_epi64_epi8(
        _mm512_multishift_epi64_epi8(places, even), 0xcccccccccccccccc, places, odd);
    return _mm512_ternarylogic_epi64(_mm512_set1_epi32((int)0x80008000), bits, both,
                                     FROM_B_WHERE_A);
}

/* ---- widths ---- */

GSC_INLINE half half_of(ints x, int k)
{
    return k == 0 ? _mm512_castsi512_si256(x) : _mm512_extracti64x4_epi64(x, 1);
}

GSC_INLINE ints ints_of_halves(half low, half high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

GSC_INLINE quarter quarter_of(ints x, int k)
{
    const __m256i part = half_of(x, k / 2);
    return k % 2 == 0 ? _mm256_castsi256_si128(part) : _mm256_extracti128_si256(part, 1);
}

GSC_INLINE ints widen2(half x)
{
    return _mm512_cvtepu16_epi32(x);
}

GSC_INLINE half narrow2(ints x)
{
    return _mm512_cvtepi32_epi16(x);
}

GSC_INLINE quarter narrow1(ints x)
{
    return _mm512_cvtepi32_epi8(x);
}

/* ---- floats ---- */

GSC_INLINE floats floats_of(ints bits)
{
    return _mm512_castsi512_ps(bits);
}

GSC_INLINE ints bits_of(floats x)
{
    return _mm512_castps_si512(x);
}

GSC_INLINE floats floats_set(float x)
{
    return _mm512_set1_ps(x);
}

GSC_INLINE floats floats_add(floats a, floats b)
{
    return _mm512_add_ps(a, b);
}

GSC_INLINE floats floats_sub(floats a, floats b)
{
    return _mm512_sub_ps(a, b);
}

GSC_INLINE floats floats_mul(floats a, floats b)
{
    return _mm512_mul_ps(a, b);
}

GSC_INLINE floats floats_fma(floats a, floats b, floats c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* Clamps. A NaN stays: it is the second operand. */
GSC_INLINE floats floats_clamp(floats x, floats least, floats most)
{
    return _mm512_max_ps(least, _mm512_min_ps(most, x));
}

GSC_INLINE floats f16_widen(half bits)
{
    return _mm512_cvtph_ps(bits);
}

GSC_INLINE half f16_narrow(floats x)
{
    /* The mask has all lanes: without optimisation, gcc's macro without a mask warns. */
    return _mm512_maskz_cvtps_ph(0xFFFF, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* ---- bytes ---- */

/*
 * The magnitude of a byte's value as a float: its two upper bytes; the two lower bytes are 0. A
 * permute and interleaving take less time than conversions from f16.
 */
static uint8_t third_bytes[2][128], fourth_bytes[2][128]; /* [is f8_e5m2][|bits|] */

typedef struct byte_values {
    __m512i third_low, third_high, fourth_low, fourth_high;
} byte_values;
enum { SUMS_AT_ONCE = 1, BYTE_UNIT = 1 };

static void byte_values_make(const gsc_kernels *kernels, enum gsc_real_dtype dtype)
{
    uint8_t bits[128];
    float values[128];
    for (int i = 0; i < 128; i++)
        bits[i] = (uint8_t)i;
    kernels->unscale[0][dtype][gsc_f32](bits, values, 128, 1, NULL);
    for (int i = 0; i < 128; i++) {
        third_bytes[dtype == gsc_f8_e5m2][i] = (uint8_t)(gsc_float_bits(values[i]) >> 16);
        fourth_bytes[dtype == gsc_f8_e5m2][i] = (uint8_t)(gsc_float_bits(values[i]) >> 24);
    }
}

GSC_INLINE byte_values byte_values_load(enum gsc_real_dtype dtype)
{
    const uint8_t *third = third_bytes[dtype == gsc_f8_e5m2];
    const uint8_t *fourth = fourth_bytes[dtype == gsc_f8_e5m2];
    return (byte_values){load(third), load(third + 64), load(fourth), load(fourth + 64)};
}

/* Returns `magnitudes` with the signs of `bits`. A permute of 128 bytes ignores signs. */
GSC_INLINE ints byte_signed(ints bits, ints magnitudes)
{
    return _mm512_ternarylogic_epi64(_mm512_set1_epi8((char)0x80), bits, magnitudes,
                                     FROM_B_WHERE_A);
}

/* Returns vector k of the magnitudes: elements 4k to 4k + 3 of each 16. */
GSC_INLINE floats byte_value(enum gsc_real_dtype dtype, byte_values t, ints bits, int k)
{
    const __m512i zero = _mm512_setzero_si512();
    const __m512i third = _mm512_permutex2var_epi8(t.third_low, bits, t.third_high);
    const __m512i fourth = _mm512_permutex2var_epi8(t.fourth_low, bits, t.fourth_high);
    const __m512i upper =
        k < 2 ? _mm512_unpacklo_epi8(third, fourth) : _mm512_unpackhi_epi8(third, fourth);
    (void)dtype;
    return _mm512_castsi512_ps(k % 2 == 0 ? _mm512_unpacklo_epi16(zero, upper)
                                          : _mm512_unpackhi_epi16(zero, upper));
}

/*
 * An order of 64 bytes for byte_widen: interleaving then puts the two upper bytes of a value into
 * the lower or the upper half of its float, and a shift or a mask does the rest.
 */
static const uint8_t byte_places[64] = {
    0,  16, 1,  17, 2,  18, 3,  19, 32, 48, 33, 49, 34, 50, 35, 51, 4,  20, 5,  21, 6,  22,
    7,  23, 36, 52, 37, 53, 38, 54, 39, 55, 8,  24, 9,  25, 10, 26, 11, 27, 40, 56, 41, 57,
    42, 58, 43, 59, 12, 28, 13, 29, 14, 30, 15, 31, 44, 60, 45, 61, 46, 62, 47, 63};

GSC_INLINE floats byte_widen(enum gsc_real_dtype dtype, ints bits, int k, quarter from)
{
    const byte_values t = byte_values_load(dtype);
    const __m512i x = _mm512_permutexvar_epi8(load(byte_places), bits);
    const __m512i third = _mm512_permutex2var_epi8(t.third_low, x, t.third_high);
    const __m512i fourth = byte_signed(x, _mm512_permutex2var_epi8(t.fourth_low, x, t.fourth_high));
    const __m512i upper =
        k < 2 ? _mm512_unpacklo_epi8(third, fourth) : _mm512_unpackhi_epi8(third, fourth);
    (void)from;
    return _mm512_castsi512_ps(k % 2 == 0
                                   ? _mm512_slli_epi32(upper, 16)
                                   : _mm512_and_si512(upper, _mm512_set1_epi32((int)0xffff0000)));
}

/* Puts the lanes of byte_value's vectors in order: transposes 4 by 4 parts. */
GSC_INLINE void byte_order(floats *a, floats *b, floats *c, floats *d)
{
    enum { EVEN = 0x88, ODD = 0xdd };
    const floats ab = _mm512_shuffle_f32x4(*a, *b, EVEN), cd = _mm512_shuffle_f32x4(*c, *d, EVEN);
    const floats ab_odd = _mm512_shuffle_f32x4(*a, *b, ODD);
    const floats cd_odd = _mm512_shuffle_f32x4(*c, *d, ODD);
    *a = _mm512_shuffle_f32x4(ab, cd, EVEN);
    *b = _mm512_shuffle_f32x4(ab_odd, cd_odd, EVEN);
    *c = _mm512_shuffle_f32x4(ab, cd, ODD);
    *d = _mm512_shuffle_f32x4(ab_odd, cd_odd, ODD);
}

/* One kind of table for every multiplier: the results by |bits|. */
enum { TAKES_ALL = 0, REPEATS = 0 };

GSC_INLINE int table_kind(const gsc_table *from)
{
    (void)from;
    return 0;
}

typedef struct table {
    __m512i low, high;
} table;

GSC_INLINE table table_load(int kind, const gsc_table *from)
{
    (void)kind;
    return (table){_mm512_loadu_si512(from->results), _mm512_loadu_si512(from->results + 64)};
}

GSC_INLINE ints table_results(enum gsc_real_dtype dtype, int kind, table t, ints bits)
{
    (void)dtype, (void)kind;
    return byte_signed(bits, _mm512_permutex2var_epi8(t.low, bits, t.high));
}

/* ---- doubles ---- */

GSC_INLINE doubles doubles_of(ints bits)
{
    return _mm512_castsi512_pd(bits);
}

GSC_INLINE ints bits_of_doubles(doubles x)
{
    return _mm512_castpd_si512(x);
}

GSC_INLINE doubles doubles_set(double x)
{
    return _mm512_set1_pd(x);
}

GSC_INLINE doubles doubles_add(doubles a, doubles b)
{
    return _mm512_add_pd(a, b);
}

GSC_INLINE doubles doubles_mul(doubles a, doubles b)
{
    return _mm512_mul_pd(a, b);
}

GSC_INLINE doubles doubles_fma(doubles a, doubles b, doubles c)
{
    return _mm512_fmadd_pd(a, b, c);
}

GSC_INLINE doubles doubles_clamp(doubles x, doubles least, doubles most)
{
    return _mm512_max_pd(least, _mm512_min_pd(most, x));
}

GSC_INLINE doubles doubles_low(floats x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

GSC_INLINE doubles doubles_high(floats x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

GSC_INLINE half doubles_narrow(doubles x)
{
    return _mm256_castps_si256(_mm512_cvtpd_ps(x));
}

GSC_INLINE double doubles_fold(doubles x)
{
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#include "simd.h"

void gsc_install_avx512(gsc_kernels *kernels)
{
    byte_values_make(kernels, gsc_f8_e4m3fn);
    byte_values_make(kernels, gsc_f8_e5m2);
    install(kernels);
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int gsc_no_avx512; /* an empty translation unit is not C */
#endif

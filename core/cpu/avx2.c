/* SPDX-License-Identifier: MIT */
/* AVX2, F16C and FMA: a vector of simd.h is two registers. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "ends.h"
#include "kernels.h"

/* The instruction sets that this file's functions are compiled for. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,fma,popcnt"))), apply_to = function)
#else
#pragma GCC push_options /* other files follow when the library is one file */
#pragma GCC target("avx2,f16c,fma,popcnt")
#endif

typedef struct ints {
    __m256i low, high;
} ints;
typedef struct floats {
    __m256 low, high;
} floats;
typedef struct doubles {
    __m256d low, high;
} doubles;
typedef struct half {
    __m128i low, high;
} half;
typedef __m128i quarter;

/* ---- memory ---- */

/* Returns all ones in the first count < 8 elements of 4 bytes. */
GSC_INLINE __m256i first(uint64_t count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

GSC_INLINE quarter load_quarter(const void *at)
{
    return _mm_loadu_si128(at);
}

GSC_INLINE half load_half(const char *at)
{
    return (half){load_quarter(at), load_quarter(at + 16)};
}

GSC_INLINE quarter load_first_quarter(const void *at, uint64_t bytes)
{
    const gsc_end x = gsc_load_end(at, bytes);
    return _mm_set_epi64x((long long)x.high, (long long)x.low);
}

GSC_INLINE void store_first_quarter(void *at, quarter x, uint64_t bytes)
{
    const gsc_end end = {(uint64_t)_mm_cvtsi128_si64(x), (uint64_t)_mm_extract_epi64(x, 1)};
    gsc_store_end(at, end, bytes);
}

GSC_INLINE void store_quarter(void *at, quarter x)
{
    _mm_storeu_si128(at, x);
}

GSC_INLINE void store_half(char *at, half x)
{
    _mm_storeu_si128((void *)at, x.low);
    _mm_storeu_si128((void *)(at + 16), x.high);
}

GSC_INLINE void store_first_half(char *at, half x, uint64_t bytes)
{
    if (bytes >= 16)
        store_quarter(at, x.low);
    else
        store_first_quarter(at, x.low, bytes);
    if (bytes > 16)
        store_first_quarter(at + 16, x.high, bytes - 16);
}

/* Loads a number of bytes that is not a multiple of 4. Not inlined: it is long and rarely runs. */
static __attribute__((noinline)) __m256i load_odd(const char *at, uint64_t bytes)
{
    return _mm256_setr_m128i(load_first_quarter(at, bytes < 16 ? bytes : 16),
                             load_first_quarter(at + 16, bytes > 16 ? bytes - 16 : 0));
}

GSC_INLINE __m256i load_register(const char *at, uint64_t bytes)
{
    if (bytes >= 32)
        return _mm256_loadu_si256((const void *)at);
    if (bytes % 4 == 0)
        return _mm256_maskload_epi32((const void *)at, first(bytes / 4));
    return load_odd(at, bytes);
}

static __attribute__((noinline)) void store_odd(char *at, __m256i x, uint64_t bytes)
{
    const half halves = {_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)};
    store_first_half(at, halves, bytes);
}

GSC_INLINE void store_register(char *at, __m256i x, uint64_t bytes)
{
    if (bytes >= 32)
        _mm256_storeu_si256((void *)at, x);
    else if (bytes % 4 == 0)
        _mm256_maskstore_epi32((void *)at, first(bytes / 4), x);
    else
        store_odd(at, x, bytes);
}

GSC_INLINE ints load(const char *at)
{
    return (ints){_mm256_loadu_si256((const void *)at),
                  _mm256_loadu_si256((const void *)(at + 32))};
}

GSC_INLINE void store(void *at, ints x)
{
    _mm256_storeu_si256(at, x.low);
    _mm256_storeu_si256((void *)((char *)at + 32), x.high);
}

GSC_INLINE ints load_first(const char *at, uint64_t bytes)
{
    return (ints){load_register(at, bytes),
                  bytes > 32 ? load_register(at + 32, bytes - 32) : _mm256_setzero_si256()};
}

GSC_INLINE void store_first(char *at, ints x, uint64_t bytes)
{
    store_register(at, x.low, bytes);
    if (bytes > 32)
        store_register(at + 32, x.high, bytes - 32);
}

GSC_INLINE void store_past_caches(char *at, ints x)
{
    _mm256_stream_si256((void *)at, x.low);
    _mm256_stream_si256((void *)(at + 32), x.high);
}

GSC_INLINE void store_past_caches_done(void)
{
    _mm_sfence();
}

/* ---- by the size of elements ---- */

GSC_INLINE __m256i all(uint64_t size, uint64_t x)
{
    return size == 1   ? _mm256_set1_epi8((char)x)
           : size == 2 ? _mm256_set1_epi16((short)x)
           : size == 4 ? _mm256_set1_epi32((int)x)
                       : _mm256_set1_epi64x((long long)x);
}

/* Returns all ones where a > b. For magnitudes only: the comparison is signed. */
GSC_INLINE __m256i greater(uint64_t size, __m256i a, __m256i b)
{
    return size == 1   ? _mm256_cmpgt_epi8(a, b)
           : size == 2 ? _mm256_cmpgt_epi16(a, b)
           : size == 4 ? _mm256_cmpgt_epi32(a, b)
                       : _mm256_cmpgt_epi64(a, b);
}

GSC_INLINE __m256i larger_register(uint64_t size, __m256i a, __m256i b)
{
    return size == 1   ? _mm256_max_epu8(a, b)
           : size == 2 ? _mm256_max_epu16(a, b)
           : size == 4 ? _mm256_max_epu32(a, b)
                       : _mm256_blendv_epi8(a, b, greater(8, b, a));
}

GSC_INLINE ints larger(uint64_t size, ints a, ints b)
{
    return (ints){larger_register(size, a.low, b.low), larger_register(size, a.high, b.high)};
}

GSC_INLINE ints magnitudes(uint64_t size, ints x)
{
    const __m256i magnitude = all(size, ~UINT64_C(0) >> (65 - 8 * size));
    return (ints){_mm256_and_si256(x.low, magnitude), _mm256_and_si256(x.high, magnitude)};
}

GSC_INLINE uint64_t largest2(__m256i x)
{
    const __m128i most = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1)));
    return 0xffff ^ (uint64_t)_mm_extract_epi16(least, 0);
}

GSC_INLINE uint64_t largest(uint64_t size, ints elements)
{
    __m256i x = larger_register(size, elements.low, elements.high);
    if (size == 1)
        return largest2(
            _mm256_max_epu8(_mm256_srli_epi16(x, 8), _mm256_and_si256(x, all(2, 0xff))));
    if (size == 2)
        return largest2(x);
    x = larger_register(size, x, _mm256_permute4x64_epi64(x, 0x4e));
    x = larger_register(size, x, _mm256_permute4x64_epi64(x, 0xb1));
    const uint64_t most = (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(x));
    const uint64_t low = most & 0xffffffff, high = most >> 32;
    return size == 8 ? most : low > high ? low : high;
}

GSC_INLINE __m256i smaller_register(uint64_t size, __m256i a, __m256i b)
{
    return size == 1   ? _mm256_min_epu8(a, b)
           : size == 2 ? _mm256_min_epu16(a, b)
                       : _mm256_min_epu32(a, b);
}

GSC_INLINE ints smaller(uint64_t size, ints a, ints b)
{
    return (ints){smaller_register(size, a.low, b.low), smaller_register(size, a.high, b.high)};
}

GSC_INLINE __m256i sub_register(uint64_t size, __m256i a, __m256i b)
{
    return size == 1   ? _mm256_sub_epi8(a, b)
           : size == 2 ? _mm256_sub_epi16(a, b)
                       : _mm256_sub_epi32(a, b);
}

GSC_INLINE ints sub(uint64_t size, ints a, uint64_t b)
{
    return (ints){sub_register(size, a.low, all(size, b)),
                  sub_register(size, a.high, all(size, b))};
}

GSC_INLINE __m256i equal(uint64_t size, __m256i a, __m256i b)
{
    return size == 1   ? _mm256_cmpeq_epi8(a, b)
           : size == 2 ? _mm256_cmpeq_epi16(a, b)
                       : _mm256_cmpeq_epi32(a, b);
}

GSC_INLINE bool any_below(uint64_t size, ints x, uint64_t limit)
{
    const __m256i least = smaller_register(size, x.low, x.high), most = all(size, limit - 1);
    return limit > 0 &&
           _mm256_movemask_epi8(equal(size, smaller_register(size, least, most), least)) != 0;
}

GSC_INLINE uint64_t between(uint64_t size, ints x, uint64_t low, uint64_t high)
{
    const __m256i least = all(size, low), limit = all(size, high);
    const uint64_t first = (uint32_t)_mm256_movemask_epi8(
        _mm256_andnot_si256(greater(size, least, x.low), greater(size, limit, x.low)));
    const uint64_t last = (uint32_t)_mm256_movemask_epi8(
        _mm256_andnot_si256(greater(size, least, x.high), greater(size, limit, x.high)));
    return (uint64_t)_mm_popcnt_u64(first | last << 32) / size;
}

/* Returns a bit for each byte, set if its magnitude is below `limit`. */
GSC_INLINE uint64_t below(uint64_t size, ints x, uint64_t limit)
{
    const __m256i above = all(size, limit);
    const uint64_t low = (uint32_t)_mm256_movemask_epi8(greater(size, above, x.low));
    const uint64_t high = (uint32_t)_mm256_movemask_epi8(greater(size, above, x.high));
    return low | high << 32;
}

GSC_INLINE uint64_t at_least(uint64_t size, ints x, uint64_t least)
{
    return (64 - (uint64_t)_mm_popcnt_u64(below(size, x, least))) / size;
}

GSC_INLINE bool any_at_least(uint64_t size, ints x, uint64_t least)
{
    const __m256i most = larger_register(size, x.low, x.high), limit = all(size, least);
    if (size == 8)
        return _mm256_movemask_epi8(greater(8, limit, most)) != -1;
    return _mm256_movemask_epi8(equal(size, larger_register(size, most, limit), most)) != 0;
}

GSC_INLINE uint64_t before_first(uint64_t size, ints x, uint64_t least)
{
    return (uint64_t)__builtin_ctzll(~below(size, x, least)) / size;
}

GSC_INLINE ints keep_below(uint64_t size, ints x, uint64_t limit)
{
    const ints magnitude = magnitudes(size, x);
    const __m256i most = all(size, limit);
    return (ints){_mm256_and_si256(x.low, greater(size, most, magnitude.low)),
                  _mm256_and_si256(x.high, greater(size, most, magnitude.high))};
}

/* ---- integers ---- */

GSC_INLINE ints ints_set(uint32_t x)
{
    return (ints){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}

GSC_INLINE ints ints_add(ints a, ints b)
{
    return (ints){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

GSC_INLINE ints ints_sub(ints a, ints b)
{
    return (ints){_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

GSC_INLINE ints ints_and(ints a, ints b)
{
    return (ints){_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}

GSC_INLINE ints ints_or(ints a, ints b)
{
    return (ints){_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}

GSC_INLINE ints ints_min(ints a, ints b)
{
    return (ints){_mm256_min_epu32(a.low, b.low), _mm256_min_epu32(a.high, b.high)};
}

GSC_INLINE ints ints_shl(ints x, uint32_t count)
{
    return (ints){_mm256_slli_epi32(x.low, (int)count), _mm256_slli_epi32(x.high, (int)count)};
}

GSC_INLINE ints ints_shr(ints x, uint32_t count)
{
    return (ints){_mm256_srli_epi32(x.low, (int)count), _mm256_srli_epi32(x.high, (int)count)};
}

GSC_INLINE ints ints_select_ge(ints a, ints b, ints x, ints y)
{
    return (ints){_mm256_blendv_epi8(x.low, y.low, greater(4, b.low, a.low)),
                  _mm256_blendv_epi8(x.high, y.high, greater(4, b.high, a.high))};
}

GSC_INLINE ints add_bit(ints x, int index)
{
    return ints_add(x, ints_and(ints_shr(x, (uint32_t)index), ints_set(1)));
}

/* ---- integers of 2 bytes ---- */

GSC_INLINE ints add_where_not_zero2(ints bits, uint16_t b)
{
    const ints magnitude = magnitudes(2, bits);
    const __m256i addend = all(2, b); /* times the sign of a magnitude, 1 or 0 */
    return (ints){_mm256_add_epi16(bits.low, _mm256_sign_epi16(addend, magnitude.low)),
                  _mm256_add_epi16(bits.high, _mm256_sign_epi16(addend, magnitude.high))};
}

GSC_INLINE bool any_above2(ints x, uint16_t limit)
{
    const __m256i over = _mm256_subs_epu16(_mm256_max_epu16(x.low, x.high), all(2, limit));
    return !_mm256_testz_si256(over, over);
}

GSC_INLINE ints merge_upper(ints even, ints odd)
{
    const ints lower = ints_shr(even, 16);
    return (ints){_mm256_blend_epi16(lower.low, odd.low, 0xaa),
                  _mm256_blend_epi16(lower.high, odd.high, 0xaa)};
}

/* ---- widths ---- */

GSC_INLINE half half_of(ints x, int k)
{
    const __m256i part = k == 0 ? x.low : x.high;
    return (half){_mm256_castsi256_si128(part), _mm256_extracti128_si256(part, 1)};
}

GSC_INLINE ints ints_of_halves(half low, half high)
{
    return (ints){_mm256_setr_m128i(low.low, low.high), _mm256_setr_m128i(high.low, high.high)};
}

GSC_INLINE quarter quarter_of(ints x, int k)
{
    const half part = half_of(x, k / 2);
    return k % 2 == 0 ? part.low : part.high;
}

GSC_INLINE ints widen2(half x)
{
    return (ints){_mm256_cvtepu16_epi32(x.low), _mm256_cvtepu16_epi32(x.high)};
}

GSC_INLINE half narrow2(ints x)
{
    const half low = half_of(x, 0), high = half_of(x, 1);
    return (half){_mm_packus_epi32(low.low, low.high), _mm_packus_epi32(high.low, high.high)};
}

GSC_INLINE quarter narrow1(ints x)
{
    const half elements = narrow2(x);
    return _mm_packus_epi16(elements.low, elements.high);
}

/* ---- floats ---- */

GSC_INLINE floats floats_of(ints bits)
{
    return (floats){_mm256_castsi256_ps(bits.low), _mm256_castsi256_ps(bits.high)};
}

GSC_INLINE ints bits_of(floats x)
{
    return (ints){_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)};
}

GSC_INLINE floats floats_set(float x)
{
    return (floats){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

GSC_INLINE floats floats_add(floats a, floats b)
{
    return (floats){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

GSC_INLINE floats floats_sub(floats a, floats b)
{
    return (floats){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

GSC_INLINE floats floats_mul(floats a, floats b)
{
    return (floats){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

GSC_INLINE floats floats_fma(floats a, floats b, floats c)
{
    return (floats){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

/* Clamps. A NaN stays: it is the second operand. */
GSC_INLINE floats floats_clamp(floats x, floats least, floats most)
{
    return (floats){_mm256_max_ps(least.low, _mm256_min_ps(most.low, x.low)),
                    _mm256_max_ps(least.high, _mm256_min_ps(most.high, x.high))};
}

GSC_INLINE floats f16_widen(half bits)
{
    return (floats){_mm256_cvtph_ps(bits.low), _mm256_cvtph_ps(bits.high)};
}

GSC_INLINE half f16_narrow(floats x)
{
    return (half){_mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                  _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

/* ---- bytes ---- */

/* Widens each byte to 2 bytes and shifts it up by count <= 8. */
GSC_INLINE half bytes_up(quarter x, int count)
{
    const __m128i zero = _mm_setzero_si128();
    const __m128i low = _mm_unpacklo_epi8(zero, x), high = _mm_unpackhi_epi8(zero, x);
    return (half){_mm_srli_epi16(low, 8 - count), _mm_srli_epi16(high, 8 - count)};
}

/* Returns f16 bits of 2^-8 of the value. A NaN of f8_e4m3fn needs the missing exponent bit. */
GSC_INLINE __m128i f8_e4m3fn_shifted(__m128i upper)
{
    const __m128i bits = _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16((short)0xbf80));
    const __m128i next = _mm_add_epi16(bits, _mm_set1_epi16(0x80));
    return _mm_or_si128(bits, _mm_and_si128(next, _mm_set1_epi16(0x4000)));
}

#include "derived.h"

GSC_INLINE floats byte_value(enum gsc_real_dtype dtype, byte_values values, ints bits, int k)
{
    const int down = dtype == gsc_f8_e5m2 ? 0 : 1;
    const __m256i zero = _mm256_setzero_si256();
    const __m256i x = _mm256_and_si256(k < 2 ? bits.low : bits.high, all(1, 0x7f));
    const __m256i first = _mm256_srli_epi16(_mm256_unpacklo_epi8(zero, x), down);
    const __m256i last = _mm256_srli_epi16(_mm256_unpackhi_epi8(zero, x), down);
    (void)values;
    return f16_widen(
        k % 2 == 0 ? (half){_mm256_castsi256_si128(first), _mm256_castsi256_si128(last)}
                   : (half){_mm256_extracti128_si256(first, 1), _mm256_extracti128_si256(last, 1)});
}

/*
 * Products of bytes by look-ups of 16 entries: see gsc_table. Each kind of multiplier has its own
 * loop. TAKES_ALL also takes Inf and NaN.
 */
enum { GROWS = 1, IS_POWER = 2, TAKES_ALL = 4, REPEATS = 1 };

GSC_INLINE int table_kind(const gsc_table *from)
{
    return (from->grows ? GROWS : 0) | (from->is_power ? IS_POWER : 0);
}

/* A gsc_table, copied to both halves of registers for the permute of bytes. */
typedef struct table {
    __m256i normal, window, bottom, first, last; /* for a power of two, window is `exact` */
} table;

GSC_INLINE __m256i both_halves(const uint8_t *at)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)at));
}

GSC_INLINE table table_load(int kind, const gsc_table *from)
{
    const bool is_power = kind & IS_POWER;
    return (table){both_halves(from->normal), both_halves(is_power ? from->exact : from->window),
                   both_halves(from->bottom), all(1, (uint64_t)from->first),
                   all(1, (uint64_t)(is_power ? from->last : 128 - from->last))};
}

/*
 * Returns the products. A permute uses the lower 4 bits of an index, and gives 0 if the highest bit
 * is set. An x below the window gets the distance of a larger x, which is too large: `room`, the
 * distance to the right result, limits it. For an x above `bottom`, `room` is too large, not used.
 */
GSC_INLINE __m256i register_results(enum gsc_real_dtype dtype, int kind, table t, __m256i bits)
{
    const uint64_t infinity = dtype == gsc_f8_e5m2 ? f8_e5m2_INF : f8_e4m3fn_INF;
    const __m256i x = _mm256_and_si256(bits, all(1, 0x7f));
    __m256i distance, room = x;
    if (kind & IS_POWER)
        distance = _mm256_shuffle_epi8(t.window, _mm256_min_epu8(x, t.last));
    else
        distance = _mm256_add_epi8(_mm256_shuffle_epi8(t.normal, x),
                                   _mm256_shuffle_epi8(t.window, _mm256_add_epi8(x, t.last)));
    if (kind & GROWS)
        room = _mm256_sub_epi8(all(1, infinity), x);
    else if (dtype == gsc_f8_e4m3fn)
        room = _mm256_sub_epi8(x, _mm256_shuffle_epi8(t.bottom, _mm256_sub_epi8(x, t.first)));
    distance = _mm256_min_epu8(distance, room);
    if (kind & TAKES_ALL) {
        const __m256i is_nan = greater(1, x, all(1, infinity));
        distance = _mm256_and_si256(distance, greater(1, all(1, infinity), x));
        if (dtype == gsc_f8_e5m2)
            bits = _mm256_or_si256(bits, _mm256_and_si256(is_nan, all(1, 2)));
    }
    return kind & GROWS ? _mm256_add_epi8(bits, distance) : _mm256_sub_epi8(bits, distance);
}

GSC_INLINE ints table_results(enum gsc_real_dtype dtype, int kind, table t, ints bits)
{
    return (ints){register_results(dtype, kind, t, bits.low),
                  register_results(dtype, kind, t, bits.high)};
}

/* ---- doubles ---- */

GSC_INLINE doubles doubles_of(ints bits)
{
    return (doubles){_mm256_castsi256_pd(bits.low), _mm256_castsi256_pd(bits.high)};
}

GSC_INLINE ints bits_of_doubles(doubles x)
{
    return (ints){_mm256_castpd_si256(x.low), _mm256_castpd_si256(x.high)};
}

GSC_INLINE doubles doubles_set(double x)
{
    return (doubles){_mm256_set1_pd(x), _mm256_set1_pd(x)};
}

GSC_INLINE doubles doubles_add(doubles a, doubles b)
{
    return (doubles){_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
}

GSC_INLINE doubles doubles_mul(doubles a, doubles b)
{
    return (doubles){_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)};
}

GSC_INLINE doubles doubles_fma(doubles a, doubles b, doubles c)
{
    return (doubles){_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
}

GSC_INLINE doubles doubles_clamp(doubles x, doubles least, doubles most)
{
    return (doubles){_mm256_max_pd(least.low, _mm256_min_pd(most.low, x.low)),
                     _mm256_max_pd(least.high, _mm256_min_pd(most.high, x.high))};
}

GSC_INLINE doubles doubles_low(floats x)
{
    return (doubles){_mm256_cvtps_pd(_mm256_castps256_ps128(x.low)),
                     _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1))};
}

GSC_INLINE doubles doubles_high(floats x)
{
    return (doubles){_mm256_cvtps_pd(_mm256_castps256_ps128(x.high)),
                     _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1))};
}

GSC_INLINE half doubles_narrow(doubles x)
{
    return (half){_mm_castps_si128(_mm256_cvtpd_ps(x.low)),
                  _mm_castps_si128(_mm256_cvtpd_ps(x.high))};
}

GSC_INLINE double doubles_fold(doubles x)
{
    const __m256d four = _mm256_add_pd(x.low, x.high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#include "simd.h"

void gsc_install_avx2(gsc_kernels *kernels)
{
    install(kernels);
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int gsc_no_avx2; /* an empty translation unit is not C */
#endif

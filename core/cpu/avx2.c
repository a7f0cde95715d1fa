/* SPDX-License-Identifier: MIT */
/* AVX2, F16C and FMA. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "ends.h"
#include "kernels.h"

#define W      8
#define TARGET __attribute__((target("avx2,f16c,fma,popcnt")))
#define OP     static inline TARGET

typedef __m256i ints;
typedef __m256 floats;
typedef __m256d doubles;
typedef __m128i raw2;
typedef __m128i raw1; /* its lower half */

/* ---- memory ---- */

OP __m128i load_end(const void *at, uint64_t bytes)
{
    const gsc_end x = gsc_load_end(at, bytes);
    return _mm_set_epi64x((long long)x.high, (long long)x.low);
}

OP void store_end(void *at, __m128i x, uint64_t bytes)
{
    const gsc_end end = {(uint64_t)_mm_cvtsi128_si64(x), (uint64_t)_mm_extract_epi64(x, 1)};
    gsc_store_end(at, end, bytes);
}

/* Ones for the first left < 8 ints. */
OP ints first(uint64_t left)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)left),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

OP ints read4(const void *at)
{
    return _mm256_loadu_si256(at);
}

OP void write4(void *at, ints x)
{
    _mm256_storeu_si256(at, x);
}

OP ints read_first4(const void *at, uint64_t left)
{
    return left >= 8 ? read4(at) : _mm256_maskload_epi32(at, first(left));
}

OP void write_first4(void *at, ints x, uint64_t left)
{
    if (left >= 8)
        write4(at, x);
    else
        _mm256_maskstore_epi32(at, first(left), x);
}

OP ints read_bytes(const void *at, uint64_t bytes)
{
    if (bytes >= 32)
        return read4(at);
    const uint64_t low = bytes < 16 ? bytes : 16;
    return _mm256_setr_m128i(load_end(at, low), load_end((const char *)at + low, bytes - low));
}

OP void write_bytes(void *at, ints x, uint64_t bytes)
{
    const uint64_t low = bytes < 16 ? bytes : 16, high = bytes < 32 ? bytes - low : 16;
    store_end(at, _mm256_castsi256_si128(x), low);
    store_end((char *)at + low, _mm256_extracti128_si256(x, 1), high);
}

OP raw2 read2(const void *at)
{
    return _mm_loadu_si128(at);
}

OP void write2(void *at, raw2 x)
{
    _mm_storeu_si128(at, x);
}

OP raw2 read_first2(const void *at, uint64_t left)
{
    return left >= 8 ? read2(at) : load_end(at, 2 * left);
}

OP void write_first2(void *at, raw2 x, uint64_t left)
{
    if (left >= 8)
        write2(at, x);
    else
        store_end(at, x, 2 * left);
}

OP raw1 read1(const void *at)
{
    return _mm_loadl_epi64(at);
}

OP void write1(void *at, raw1 x)
{
    _mm_storel_epi64(at, x);
}

OP raw1 read_first1(const void *at, uint64_t left)
{
    return left >= 8 ? read1(at) : load_end(at, left);
}

OP void write_first1(void *at, raw1 x, uint64_t left)
{
    store_end(at, x, left < 8 ? left : 8);
}

OP doubles read8(const void *at)
{
    return _mm256_loadu_pd(at);
}

OP void write8(void *at, doubles x)
{
    _mm256_storeu_pd(at, x);
}

OP doubles read_first8(const void *at, uint64_t left)
{
    return left >= 4 ? read8(at) : _mm256_castsi256_pd(_mm256_maskload_epi32(at, first(2 * left)));
}

OP void write_first8(void *at, doubles x, uint64_t left)
{
    if (left >= 4)
        write8(at, x);
    else
        _mm256_maskstore_epi32(at, first(2 * left), _mm256_castpd_si256(x));
}

/* At a multiple of a register's bytes. */
OP void stream4(void *at, ints x)
{
    _mm256_stream_si256(at, x);
}

OP void stream_end(void)
{
    _mm_sfence();
}

/* ---- integers ---- */

OP ints ints_set(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}

#define BINARY(name, intrinsic)                                                                    \
    OP ints name(ints a, ints b)                                                                   \
    {                                                                                              \
        return intrinsic(a, b);                                                                    \
    }
BINARY(ints_add, _mm256_add_epi32)
BINARY(ints_sub, _mm256_sub_epi32)
BINARY(ints_and, _mm256_and_si256)
BINARY(ints_or, _mm256_or_si256)
BINARY(ints_min, _mm256_min_epu32)
BINARY(max1, _mm256_max_epu8)
BINARY(max2, _mm256_max_epu16)
BINARY(max4, _mm256_max_epu32)
BINARY(min2, _mm256_min_epu16)
#define ints_shl(a, count) _mm256_slli_epi32(a, count)
#define ints_shr(a, count) _mm256_srli_epi32(a, count)

OP ints max8(ints a, ints b) /* magnitudes: no sign to mistake */
{
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(b, a));
}

/* a >= b ? x : y, of magnitudes */
OP ints ints_select_ge(ints a, ints b, ints x, ints y)
{
    return _mm256_blendv_epi8(x, y, _mm256_cmpgt_epi32(b, a));
}

/* x + bit 16 of x */
OP ints add_bit16(ints x)
{
    return _mm256_add_epi32(x, _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1)));
}

OP ints magnitudes1(ints bits)
{
    return _mm256_and_si256(bits, _mm256_set1_epi8(0x7f));
}

OP ints magnitudes2(ints bits)
{
    return _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
}

OP ints magnitudes4(ints bits)
{
    return _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
}

OP ints magnitudes8(ints bits)
{
    return _mm256_and_si256(bits, _mm256_set1_epi64x(INT64_MAX));
}

OP uint64_t largest2(ints x)
{
    const __m128i most = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1)));
    return 0xffff ^ (uint64_t)_mm_extract_epi16(least, 0);
}

OP uint64_t largest1(ints x)
{
    return largest2(
        _mm256_max_epu8(_mm256_srli_epi16(x, 8), _mm256_and_si256(x, _mm256_set1_epi16(0xff))));
}

OP uint64_t largest4(ints x)
{
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(most);
}

OP uint64_t largest8(ints x)
{
    const ints pairs = max8(x, _mm256_permute4x64_epi64(x, 0x4e));
    const ints all = max8(pairs, _mm256_permute4x64_epi64(pairs, 0xb1));
    return (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(all));
}

/* Bytes of the elements that are at least `least`, by those that are below. */
#define AT_LEAST(size, type, set, greater)                                                         \
    OP uint64_t at_least##size(ints x, uint64_t least)                                             \
    {                                                                                              \
        const int below = _mm256_movemask_epi8(greater(set((type)least), x));                      \
        return (uint64_t)(32 - _mm_popcnt_u32((unsigned)below)) / size;                            \
    }
AT_LEAST(1, char, _mm256_set1_epi8, _mm256_cmpgt_epi8)
AT_LEAST(2, short, _mm256_set1_epi16, _mm256_cmpgt_epi16)
AT_LEAST(4, int, _mm256_set1_epi32, _mm256_cmpgt_epi32)
AT_LEAST(8, long long, _mm256_set1_epi64x, _mm256_cmpgt_epi64)

#define KEEP_BELOW(size, type, set, greater)                                                       \
    OP ints keep_below##size(ints x, uint64_t limit)                                               \
    {                                                                                              \
        return _mm256_and_si256(x, greater(set((type)limit), magnitudes##size(x)));                \
    }
KEEP_BELOW(1, char, _mm256_set1_epi8, _mm256_cmpgt_epi8)
KEEP_BELOW(2, short, _mm256_set1_epi16, _mm256_cmpgt_epi16)
KEEP_BELOW(4, int, _mm256_set1_epi32, _mm256_cmpgt_epi32)
KEEP_BELOW(8, long long, _mm256_set1_epi64x, _mm256_cmpgt_epi64)

OP ints sub2(ints a, uint16_t b)
{
    return _mm256_sub_epi16(a, _mm256_set1_epi16((short)b));
}

OP ints add_where_not_zero2(ints bits, uint16_t b)
{
    const ints zero = _mm256_cmpeq_epi16(magnitudes2(bits), _mm256_setzero_si256());
    return _mm256_add_epi16(bits, _mm256_andnot_si256(zero, _mm256_set1_epi16((short)b)));
}

OP bool any_below2(ints x, uint16_t limit)
{
    const ints under = _mm256_subs_epu16(_mm256_set1_epi16((short)limit), x);
    return !_mm256_testz_si256(under, under);
}

OP bool any_above2(ints x, uint16_t limit)
{
    const ints over = _mm256_subs_epu16(x, _mm256_set1_epi16((short)limit));
    return !_mm256_testz_si256(over, over);
}

/* The upper halves of both, a float's width each: of `even` into the lower place. */
OP ints merge_upper(ints even, ints odd)
{
    return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
}

/* ---- widths ---- */

OP ints whole4(ints x)
{
    return x;
}

OP ints whole2(raw2 x)
{
    return _mm256_zextsi128_si256(x);
}

OP ints whole1(raw1 x)
{
    return _mm256_zextsi128_si256(x);
}

OP ints widen2(raw2 x)
{
    return _mm256_cvtepu16_epi32(x);
}

OP ints widen1(raw1 x)
{
    return _mm256_cvtepu8_epi32(x);
}

OP raw2 narrow2(ints x)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

OP raw1 narrow1(ints x)
{
    return _mm_packus_epi16(narrow2(x), _mm_setzero_si128());
}

/* ---- floats ---- */

OP floats floats_of(ints bits)
{
    return _mm256_castsi256_ps(bits);
}

OP ints bits_of(floats x)
{
    return _mm256_castps_si256(x);
}

OP floats floats_set(float x)
{
    return _mm256_set1_ps(x);
}

OP floats floats_add(floats a, floats b)
{
    return _mm256_add_ps(a, b);
}

OP floats floats_sub(floats a, floats b)
{
    return _mm256_sub_ps(a, b);
}

OP floats floats_mul(floats a, floats b)
{
    return _mm256_mul_ps(a, b);
}

OP floats floats_fma(floats a, floats b, floats c)
{
    return _mm256_fmadd_ps(a, b, c);
}

OP floats floats_clamp(floats x, floats low, floats high)
{
    return _mm256_max_ps(low, _mm256_min_ps(high, x)); /* a NaN is the second operand, and stays */
}

OP floats f16_widen(raw2 bits)
{
    return _mm256_cvtph_ps(bits);
}

OP raw2 f16_narrow(floats x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* ---- doubles ---- */

OP doubles doubles_of(ints bits)
{
    return _mm256_castsi256_pd(bits);
}

OP doubles doubles_set(double x)
{
    return _mm256_set1_pd(x);
}

OP doubles doubles_add(doubles a, doubles b)
{
    return _mm256_add_pd(a, b);
}

OP doubles doubles_mul(doubles a, doubles b)
{
    return _mm256_mul_pd(a, b);
}

OP doubles doubles_fma(doubles a, doubles b, doubles c)
{
    return _mm256_fmadd_pd(a, b, c);
}

OP doubles doubles_clamp(doubles x, doubles low, doubles high)
{
    return _mm256_max_pd(low, _mm256_min_pd(high, x));
}

OP doubles doubles_low(floats x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

OP doubles doubles_high(floats x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

OP void write_half4(void *at, doubles x)
{
    _mm_storeu_ps(at, _mm256_cvtpd_ps(x));
}

OP void write_first_half4(void *at, doubles x, uint64_t left)
{
    store_end(at, _mm_castps_si128(_mm256_cvtpd_ps(x)), 4 * left);
}

/* The sum of lanes j and j + 2, of these both. */
OP double doubles_fold(doubles x)
{
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#include "simd.h"

void gsc_install_avx2(gsc_kernels *kernels)
{
    INSTALL
}
#else
typedef int gsc_no_avx2; /* an empty translation unit is not C */
#endif

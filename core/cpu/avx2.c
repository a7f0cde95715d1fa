/* SPDX-License-Identifier: MIT */
/*
 * AVX2, F16C and FMA. A vector holds 8 elements that are multiplied in float, or 4 doubles. Each
 * dtype has read (its bits), widen (to the multiplying type), most (largest |bits| so far) and
 * write (from the multiplying type); the loops are the same for all.
 */
#if defined(__x86_64__)
#include <immintrin.h>

#include "convert.h"

/* Per function, so that no build system needs a flag for this file. */
#define AVX2 static inline __attribute__((target("avx2,f16c,fma")))

/* ---- dtypes that are multiplied in float ---- */

typedef __m256i f32_vector;
typedef __m128i f16_vector;
typedef __m128i bf16_vector;

AVX2 __m256i f32_read(const void *at)
{
    return _mm256_loadu_si256(at);
}

AVX2 __m128i f16_read(const void *at)
{
    return _mm_loadu_si128(at);
}

AVX2 __m128i bf16_read(const void *at)
{
    return _mm_loadu_si128(at);
}

AVX2 __m256 f32_widen(__m256i bits)
{
    return _mm256_castsi256_ps(bits);
}

AVX2 __m256 f16_widen(__m128i bits)
{
    return _mm256_cvtph_ps(bits);
}

AVX2 __m256 bf16_widen(__m128i bits)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

AVX2 __m256i f32_most(__m256i most, __m256i bits)
{
    return _mm256_max_epu32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
}

AVX2 __m128i f16_most(__m128i most, __m128i bits)
{
    return _mm_max_epu16(most, _mm_and_si128(bits, _mm_set1_epi16(0x7fff)));
}

AVX2 __m128i bf16_most(__m128i most, __m128i bits)
{
    return f16_most(most, bits);
}

AVX2 void f32_write(void *at, __m256 x)
{
    _mm256_storeu_ps(at, x);
}

AVX2 void f64_write(void *at, __m256 x)
{
    _mm256_storeu_pd(at, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    _mm256_storeu_pd((double *)at + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
}

AVX2 void f16_write(void *at, __m256 x)
{
    _mm_storeu_si128(at, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

AVX2 void bf16_write(void *at, __m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    _mm_storeu_si128(at, packed);
}

/* ---- doubles ---- */

typedef __m256i f64_vector;

/* No unsigned 64-bit maximum before AVX-512: |bits| have no sign, so the signed one does. */
AVX2 __m256i f64_most(__m256i most, __m256i bits)
{
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi64x(INT64_MAX));
    return _mm256_blendv_epi8(most, magnitude, _mm256_cmpgt_epi64(magnitude, most));
}

AVX2 void f64_write_f64(void *at, __m256d x)
{
    _mm256_storeu_pd(at, x);
}

AVX2 void f64_write_f32(void *at, __m256d x)
{
    _mm_storeu_ps(at, _mm256_cvtpd_ps(x));
}

/* ---- loops ---- */

/*
 * Asks for the bytes that the loop reads a little later. Where a loop computes much per cache line,
 * too few lines are under way to hide the latency of DRAM. It costs nothing in cache.
 */
#define AHEAD 3072
#define PREFETCH(in, elements)                                                                     \
    for (uint64_t ahead = 0; ahead < elements * sizeof(in##_bits); ahead += 64)                    \
        _mm_prefetch((const void *)((uintptr_t)from + i * sizeof(in##_bits) + AHEAD + ahead),      \
                     _MM_HINT_T0);

/* The largest of the |bits| in a vector. */
#define REDUCE(in, most)                                                                           \
    in##_bits parts[sizeof(in##_vector) / sizeof(in##_bits)], largest = 0;                         \
    memcpy(parts, &most, sizeof parts);                                                            \
    for (unsigned j = 0; j < sizeof parts / sizeof *parts; j++)                                    \
        largest = parts[j] > largest ? parts[j] : largest;

#define NO_WRITE(at, x) (void)(x) /* `at` is not evaluated: a reader's `to` is NULL */

/* One vector at element i + k of the pointers `a` and `b`; product in x##k. */
#define VECTOR(in, k, a, b, osize, WRITE)                                                          \
    in##_vector bits##k = in##_read((const char *)(a) + (i + k) * sizeof(in##_bits));              \
    most = in##_most(most, bits##k);                                                               \
    __m256 x##k = _mm256_mul_ps(in##_widen(bits##k), m);                                           \
    WRITE((char *)(b) + (i + k) * osize, x##k);

/* The last n - i < 8 elements, padded with zeros, which change neither `most` nor a sum. */
#define TAIL(in, osize, WRITE, add)                                                                \
    if (i < n) {                                                                                   \
        char padded[8 * sizeof(in##_bits)] = {0}, results[8 * sizeof(double)];                     \
        const uint64_t first = i, rest = n - i;                                                    \
        memcpy(padded, (const char *)from + first * sizeof(in##_bits), rest * sizeof(in##_bits));  \
        i = 0;                                                                                     \
        VECTOR(in, 0, padded, results, osize, WRITE)                                               \
        add(first);                                                                                \
        if (osize)                                                                                 \
            memcpy((char *)to + first * osize, results, rest * osize);                             \
    }

#define NO_SUM(first) (void)x0
#define LANE_SUM(first)                                                                            \
    float *lane = sums + (first) % GSC_LANES;                                                      \
    _mm256_storeu_ps(lane, _mm256_fmadd_ps(x0, x0, _mm256_loadu_ps(lane)))

#define UNSCALE(name, in, osize, WRITE)                                                            \
    __attribute__((target("avx2,f16c,fma"))) static uint64_t name(                                 \
        const void *from, void *to, uint64_t n, double multiplier, void *lanes)                    \
    {                                                                                              \
        const __m256 m = _mm256_set1_ps((float)multiplier);                                        \
        in##_vector most = {0};                                                                    \
        uint64_t i = 0;                                                                            \
        (void)lanes;                                                                               \
        for (; i + 32 <= n; i += 32) {                                                             \
            PREFETCH(in, 32)                                                                       \
            VECTOR(in, 0, from, to, osize, WRITE)                                                  \
            VECTOR(in, 8, from, to, osize, WRITE)                                                  \
            VECTOR(in, 16, from, to, osize, WRITE)                                                 \
            VECTOR(in, 24, from, to, osize, WRITE)                                                 \
        }                                                                                          \
        for (; i + 8 <= n; i += 8) {                                                               \
            VECTOR(in, 0, from, to, osize, WRITE)                                                  \
        }                                                                                          \
        TAIL(in, osize, WRITE, NO_SUM)                                                             \
        REDUCE(in, most)                                                                           \
        return largest;                                                                            \
    }

#define SUMMED(in, k, osize, WRITE)                                                                \
    VECTOR(in, k, from, to, osize, WRITE)                                                          \
    sum##k = _mm256_fmadd_ps(x##k, x##k, sum##k);

#define UNSCALE_NORM(name, in, osize, WRITE)                                                       \
    __attribute__((target("avx2,f16c,fma"))) static uint64_t name(                                 \
        const void *from, void *to, uint64_t n, double multiplier, void *lanes)                    \
    {                                                                                              \
        const __m256 m = _mm256_set1_ps((float)multiplier);                                        \
        __m256 sum0 = _mm256_setzero_ps(), sum8 = sum0, sum16 = sum0, sum24 = sum0;                \
        __m256 sum32 = sum0, sum40 = sum0, sum48 = sum0, sum56 = sum0;                             \
        in##_vector most = {0};                                                                    \
        float *sums = lanes;                                                                       \
        uint64_t i = 0;                                                                            \
        for (; i + 64 <= n; i += 64) {                                                             \
            PREFETCH(in, 64)                                                                       \
            SUMMED(in, 0, osize, WRITE)                                                            \
            SUMMED(in, 8, osize, WRITE)                                                            \
            SUMMED(in, 16, osize, WRITE)                                                           \
            SUMMED(in, 24, osize, WRITE)                                                           \
            SUMMED(in, 32, osize, WRITE)                                                           \
            SUMMED(in, 40, osize, WRITE)                                                           \
            SUMMED(in, 48, osize, WRITE)                                                           \
            SUMMED(in, 56, osize, WRITE)                                                           \
        }                                                                                          \
        _mm256_storeu_ps(sums, sum0);                                                              \
        _mm256_storeu_ps(sums + 8, sum8);                                                          \
        _mm256_storeu_ps(sums + 16, sum16);                                                        \
        _mm256_storeu_ps(sums + 24, sum24);                                                        \
        _mm256_storeu_ps(sums + 32, sum32);                                                        \
        _mm256_storeu_ps(sums + 40, sum40);                                                        \
        _mm256_storeu_ps(sums + 48, sum48);                                                        \
        _mm256_storeu_ps(sums + 56, sum56);                                                        \
        for (; i + 8 <= n; i += 8) {                                                               \
            VECTOR(in, 0, from, to, osize, WRITE)                                                  \
            LANE_SUM(i);                                                                           \
        }                                                                                          \
        TAIL(in, osize, WRITE, LANE_SUM)                                                           \
        REDUCE(in, most)                                                                           \
        return largest;                                                                            \
    }

/* Doubles: 64 lanes do not fit in registers; they stay in L1. */
#define VECTOR_F64(a, b, osize, WRITE, add, first)                                                 \
    {                                                                                              \
        __m256i bits = _mm256_loadu_si256((const void *)((const char *)(a) + i * 8));              \
        most = f64_most(most, bits);                                                               \
        __m256d x = _mm256_mul_pd(_mm256_castsi256_pd(bits), m);                                   \
        WRITE((char *)(b) + i * osize, x);                                                         \
        add(first);                                                                                \
    }

#define NO_SUM_F64(first) (void)x
#define LANE_SUM_F64(first)                                                                        \
    double *lane = sums + (first) % GSC_LANES;                                                     \
    _mm256_storeu_pd(lane, _mm256_fmadd_pd(x, x, _mm256_loadu_pd(lane)))

#define KERNEL_F64(name, osize, WRITE, add)                                                        \
    __attribute__((target("avx2,f16c,fma"))) static uint64_t name(                                 \
        const void *from, void *to, uint64_t n, double multiplier, void *lanes)                    \
    {                                                                                              \
        const __m256d m = _mm256_set1_pd(multiplier);                                              \
        f64_vector most = {0};                                                                     \
        double *sums = lanes;                                                                      \
        uint64_t i = 0;                                                                            \
        if (sums)                                                                                  \
            memset(sums, 0, GSC_LANES * sizeof *sums);                                             \
        for (; i + 4 <= n; i += 4) {                                                               \
            PREFETCH(f64, 4)                                                                       \
            VECTOR_F64(from, to, osize, WRITE, add, i)                                             \
        }                                                                                          \
        if (i < n) {                                                                               \
            double padded[4] = {0}, results[4];                                                    \
            const uint64_t first = i, rest = n - i;                                                \
            memcpy(padded, (const double *)from + first, rest * sizeof(double));                   \
            i = 0;                                                                                 \
            VECTOR_F64(padded, results, osize, WRITE, add, first)                                  \
            if (osize)                                                                             \
                memcpy((char *)to + first * osize, results, rest * osize);                         \
        }                                                                                          \
        REDUCE(f64, most)                                                                          \
        return largest;                                                                            \
    }

#define READERS(in)                                                                                \
    UNSCALE(check_##in, in, 0, NO_WRITE)                                                           \
    UNSCALE_NORM(norm_##in, in, 0, NO_WRITE)
#define WRITERS(in, out)                                                                           \
    UNSCALE(unscale_##in##_##out, in, sizeof(out##_bits), out##_write)                             \
    UNSCALE_NORM(unscale_norm_##in##_##out, in, sizeof(out##_bits), out##_write)
/* The pairs that this rung has; a dtype that is not here stays in plain C. */
#define FOR_INPUTS(X)      X(f32) X(f16) X(bf16)
#define FOR_OUTPUTS(X, in) X(in, f32) X(in, f64) X(in, f16) X(in, bf16)
#define FOR_FLOAT_PAIRS(X) FOR_OUTPUTS(X, f32) FOR_OUTPUTS(X, f16) FOR_OUTPUTS(X, bf16)
FOR_INPUTS(READERS)
FOR_FLOAT_PAIRS(WRITERS)

KERNEL_F64(check_f64, 0, NO_WRITE, NO_SUM_F64)
KERNEL_F64(norm_f64, 0, NO_WRITE, LANE_SUM_F64)
KERNEL_F64(unscale_f64_f64, 8, f64_write_f64, NO_SUM_F64)
KERNEL_F64(unscale_norm_f64_f64, 8, f64_write_f64, LANE_SUM_F64)
KERNEL_F64(unscale_f64_f32, 4, f64_write_f32, NO_SUM_F64)
KERNEL_F64(unscale_norm_f64_f32, 4, f64_write_f32, LANE_SUM_F64)

/* Doubles to halves stay in plain C: nobody trains that way. */
void gsc_install_avx2(gsc_kernels *kernels)
{
    FOR_INPUTS(GSC_INSTALL_READERS)
    GSC_INSTALL_READERS(f64)
    FOR_FLOAT_PAIRS(GSC_INSTALL_WRITERS)
    GSC_INSTALL_WRITERS(f64, f64)
    GSC_INSTALL_WRITERS(f64, f32)
}
#else
typedef int gsc_no_avx2; /* an empty translation unit is not C */
#endif

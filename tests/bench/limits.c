/* SPDX-License-Identifier: MIT */
/*
 * The loops that the benchmark times, in C, so that no figure of the library holds time of Python:
 * loops of calls, and the loops over plain memory that are their limits. Each goes round `pairs`
 * times two; the second of a pair undoes the first, so that the values stay normal numbers.
 */
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <gradscaler.h>

/* 512-bit vectors would be faster in the L1 cache only. */
#if defined(__x86_64__)
#define VECTORS __attribute__((target("avx2"), noinline))
#else
#define VECTORS __attribute__((noinline))
#endif

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

VECTORS static void multiply(float *x, uint64_t n, float by)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] *= by;
}

/* The limit in place: each 4 bytes are read, multiplied and written once, whatever they mean. */
double multiply_seconds(void *memory, uint64_t bytes, uint64_t pairs)
{
    double start = seconds();
    for (uint64_t i = 0; i < 2 * pairs; i++)
        multiply(memory, bytes / sizeof(float), i & 1 ? 0.25f : 4.0f);
    return seconds() - start;
}

/*
 * The conversions that a dtype cannot be multiplied without: they are the limit if memory is near.
 * On as many values in a register as the library has; no tails.
 */
typedef void loop(void *memory, uint64_t bytes, float by);

/* Two bf16 in each word, the even and the odd, rounded to nearest even. */
VECTORS static void bf16_pairs(void *memory, uint64_t bytes, float by)
{
    union {
        uint32_t bits;
        float value;
    } even, odd;
    uint32_t *x = memory;
    for (uint64_t i = 0; i < bytes / sizeof *x; i++) {
        even.bits = x[i] << 16;
        odd.bits = x[i] & 0xffff0000;
        even.value *= by;
        odd.value *= by;
        even.bits += 0x7fff + (even.bits >> 16 & 1);
        odd.bits += 0x7fff + (odd.bits >> 16 & 1);
        x[i] = even.bits >> 16 | (odd.bits & 0xffff0000);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"), noinline)) static void f16_8(void *memory, uint64_t bytes,
                                                                 float by)
{
    const __m256 m = _mm256_set1_ps(by);
    char *x = memory;
    for (uint64_t i = 0; i + 16 <= bytes; i += 16) {
        const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + i)));
        _mm_storeu_si128((void *)(x + i), _mm256_cvtps_ph(_mm256_mul_ps(wide, m), 0));
    }
}

#define VECTORS_512 __attribute__((target("avx512f,avx512bw,avx512vbmi")))

VECTORS_512 static void f16_16(void *memory, uint64_t bytes, float by)
{
    const __m512 m = _mm512_set1_ps(by);
    char *x = memory;
    for (uint64_t i = 0; i + 32 <= bytes; i += 32) {
        const __m512 wide = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(x + i)));
        const __m256i half = _mm512_maskz_cvtps_ph(0xffff, _mm512_mul_ps(wide, m), 0);
        _mm256_storeu_si256((void *)(x + i), half);
    }
}

/* The upper halves, rounded; the lower ones are left as they come. */
VECTORS_512 static inline __m512i round_16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __m512i even = _mm512_mask_add_epi32(bits, is_odd, bits, _mm512_set1_epi32(1));
    return _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff));
}

VECTORS_512 static void bf16_32(void *memory, uint64_t bytes, float by)
{
    const __m512 m = _mm512_set1_ps(by);
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    char *x = memory;
    for (uint64_t i = 0; i + 64 <= bytes; i += 64) {
        const __m512i bits = _mm512_loadu_si512(x + i);
        const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
        const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(bits, upper));
        const __m512i low = _mm512_srli_epi32(round_16(_mm512_mul_ps(even, m)), 16);
        const __m512i high = round_16(_mm512_mul_ps(odd, m));
        _mm512_storeu_si512(x + i, _mm512_mask_blend_epi16(0xaaaaaaaa, low, high));
    }
}

/* By a table of the results, here the values themselves; the sign is kept. */
VECTORS_512 static void f8_64(void *memory, uint64_t bytes, float by)
{
    char table[128], *x = memory;
    for (int i = 0; i < 128; i++)
        table[i] = (char)i;
    const __m512i first = _mm512_loadu_si512(table), second = _mm512_loadu_si512(table + 64);
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    (void)by;
    for (uint64_t i = 0; i + 64 <= bytes; i += 64) {
        const __m512i bits = _mm512_loadu_si512(x + i);
        const __m512i results = _mm512_permutex2var_epi8(first, bits, second);
        _mm512_storeu_si512(x + i, _mm512_ternarylogic_epi64(sign, bits, results, 0xca));
    }
}
#elif defined(__aarch64__)
static void f16_each(void *memory, uint64_t bytes, float by)
{
    __fp16 *x = memory;
    for (uint64_t i = 0; i < bytes / sizeof *x; i++)
        x[i] = (__fp16)((float)x[i] * by);
}
#endif

/* NULL: it has none, or not on the instruction set that the library uses. */
static loop *conversions(uint32_t dtype)
{
    gsc_info info = GSC_INFO_INIT;
    if (gsc_info_get(&info, NULL) != GSC_OK)
        return NULL;
#if defined(__x86_64__)
    const int is_512 = strcmp(info.cpu, "avx512") == 0, is_256 = strcmp(info.cpu, "avx2") == 0;
    if (dtype == GSC_F16)
        return is_512 ? f16_16 : is_256 ? f16_8 : NULL;
    if (dtype == GSC_F8_E4M3FN || dtype == GSC_F8_E5M2)
        return is_512 ? f8_64 : NULL;
    if (dtype == GSC_BF16 && is_512)
        return bf16_32;
#elif defined(__aarch64__)
    if (dtype == GSC_F16)
        return f16_each;
#endif
    return dtype == GSC_BF16 ? bf16_pairs : NULL;
}

/* Less than 0 where there is no loop. */
double convert_seconds(uint32_t dtype, void *memory, uint64_t bytes, uint64_t pairs)
{
    loop *convert = conversions(dtype);
    double start = seconds();
    for (uint64_t i = 0; convert && i < 2 * pairs; i++)
        convert(memory, bytes, i & 1 ? 0.25f : 4.0f);
    return convert ? seconds() - start : -1;
}

#define WIDEN(name, narrow)                                                                        \
    VECTORS static void name(const narrow *restrict in, uint32_t *restrict out, uint64_t n)        \
    {                                                                                              \
        for (uint64_t i = 0; i < n; i++)                                                           \
            out[i] = in[i];                                                                        \
    }
WIDEN(widen, uint16_t)
WIDEN(widen_bytes, uint8_t)

/* The limit of 1 or 2 `bytes` into 4: they are read and written, without arithmetic. */
double widen_seconds(uint32_t bytes, const void *in, void *out, uint64_t n, uint64_t pairs)
{
    double start = seconds();
    for (uint64_t i = 0; i < 2 * pairs; i++)
        if (bytes == 1)
            widen_bytes(in, out, n);
        else
            widen(in, out, n);
    return seconds() - start;
}

/*
 * Unscaling by `scale`, `next`, `scale` ... `each` and `histogram` may be NULL. With max_norm above
 * 0 the clip coefficient is also computed, and if `applied`, and below 1, multiplied in a second
 * pass. Returns a status below 0 if a call failed or met an overflow: the time is then not a good
 * step's.
 */
double unscale_seconds(gsc_context *context, const gsc_tensor *in, const gsc_tensor *out,
                       uint64_t n, uint32_t want, gsc_report *each, int64_t *histogram,
                       double scale, double next, double max_norm, int32_t applied, uint64_t pairs)
{
    gsc_exec on = GSC_EXEC_INIT;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_factor factors[2], clip;
    gsc_report report;
    on.context = context;
    options.want = want;
    options.per_tensor = each;
    options.histogram = histogram;
    gsc_status status = gsc_factor_init(scale, &factors[0], NULL);
    if (status == GSC_OK)
        status = gsc_factor_init(next, &factors[1], NULL);
    double start = seconds();
    for (uint64_t i = 0; i < 2 * pairs && status == GSC_OK; i++) {
        status = gsc_unscale(&on, &factors[i & 1], in, out, n, &options, &report, NULL);
        if (status == GSC_OK && report.overflow)
            status = GSC_ERROR_VALUE;
        if (status != GSC_OK || max_norm <= 0)
            continue;
        status = gsc_factor_clip_grad_norm(NULL, NULL, &report, max_norm, &clip, NULL);
        if (status != GSC_OK || !applied || clip.inverse >= 1)
            continue;
        status = gsc_factor_init(clip.inverse, &clip, NULL);
        if (status == GSC_OK)
            status = gsc_scale(&on, &clip, out, out, n, NULL, NULL, NULL);
    }
    return status == GSC_OK ? seconds() - start : status;
}

/* The limit of gsc_copy_unless_skipped: each tensor by memcpy. */
double copy_seconds(const gsc_tensor *in, const gsc_tensor *out, uint64_t n, uint64_t pairs)
{
    double start = seconds();
    for (uint64_t i = 0; i < 2 * pairs; i++)
        for (uint64_t k = 0; k < n; k++)
            memcpy(out[k].data, in[k].data, in[k].count * gsc_dtype_size(in[k].dtype));
    return seconds() - start;
}

/* After a step that was taken. Returns a status below 0 if a call failed. */
double copy_unless_skipped_seconds(const gsc_tensor *in, const gsc_tensor *out, uint64_t n,
                                   uint64_t pairs)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_status status = gsc_state_init(NULL, &policy, &state, NULL);
    double start = seconds();
    for (uint64_t i = 0; i < 2 * pairs && status == GSC_OK; i++)
        status = gsc_copy_unless_skipped(NULL, &state, in, out, n, NULL);
    return status == GSC_OK ? seconds() - start : status;
}

/* Seconds of one merge of so many reports of ranks. */
double merge_seconds(const gsc_report *reports, uint64_t n, gsc_report *out, uint64_t times)
{
    gsc_status status = GSC_OK;
    double start = seconds();
    for (uint64_t i = 0; i < times && status == GSC_OK; i++)
        status = gsc_report_merge(NULL, reports, n, GSC_MERGE_SHARDS, NULL, out, NULL);
    return status == GSC_OK ? (seconds() - start) / (double)times : status;
}

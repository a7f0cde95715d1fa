/* SPDX-License-Identifier: MIT */
/*
 * What the benchmark times in C, so that no figure of the library holds time of Python: loops of
 * calls, and the loops over plain memory that are their limits. Each goes round `pairs` times two;
 * the second of a pair undoes the first, so that the values stay normal numbers.
 */
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
 * f16 is bound by the processor's conversions where the memory is near: each value goes to float
 * and back. As many in a register as the library has, which takes the widest that runs here.
 */
#if defined(__x86_64__)
__attribute__((target("avx2,f16c"), noinline)) static void convert_8(uint16_t *x, uint64_t n,
                                                                     float by)
{
    const __m256 m = _mm256_set1_ps(by);
    for (uint64_t i = 0; i + 8 <= n; i += 8) {
        const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + i)));
        _mm_storeu_si128((void *)(x + i), _mm256_cvtps_ph(_mm256_mul_ps(wide, m), 0));
    }
}

__attribute__((target("avx512f"), noinline)) static void convert_16(uint16_t *x, uint64_t n,
                                                                    float by)
{
    const __m512 m = _mm512_set1_ps(by);
    for (uint64_t i = 0; i + 16 <= n; i += 16) {
        const __m512 wide = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(x + i)));
        const __m256i half = _mm512_maskz_cvtps_ph(0xffff, _mm512_mul_ps(wide, m), 0);
        _mm256_storeu_si256((void *)(x + i), half);
    }
}

static void convert(void *x, uint64_t n, float by)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vbmi"))
        convert_16(x, n, by);
    else
        convert_8(x, n, by);
}
#elif defined(__aarch64__)
static void convert(void *memory, uint64_t n, float by)
{
    __fp16 *x = memory;
    for (uint64_t i = 0; i < n; i++)
        x[i] = (__fp16)((float)x[i] * by);
}
#endif

/* The limit of f16 in place; less than 0 where there is no loop for this processor. */
double convert_seconds(void *memory, uint64_t bytes, uint64_t pairs)
{
    double start = seconds();
#if defined(__x86_64__) || defined(__aarch64__)
    for (uint64_t i = 0; i < 2 * pairs; i++)
        convert(memory, bytes / sizeof(uint16_t), i & 1 ? 0.25f : 4.0f);
    return seconds() - start;
#else
    (void)memory, (void)bytes, (void)pairs, (void)start;
    return -1;
#endif
}

VECTORS static void widen(const uint16_t *restrict in, uint32_t *restrict out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = in[i];
}

/* The limit of 16 bits into 32: 2 bytes are read and 4 written, without arithmetic. */
double widen_seconds(const void *in, void *out, uint64_t n, uint64_t pairs)
{
    double start = seconds();
    for (uint64_t i = 0; i < 2 * pairs; i++)
        widen(in, out, n);
    return seconds() - start;
}

VECTORS static void widen_bytes(const uint8_t *restrict in, uint32_t *restrict out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = in[i];
}

/* The same of 8 bits. */
double widen_bytes_seconds(const void *in, void *out, uint64_t n, uint64_t pairs)
{
    double start = seconds();
    for (uint64_t i = 0; i < 2 * pairs; i++)
        widen_bytes(in, out, n);
    return seconds() - start;
}

/*
 * Unscaling by `scale`, `next`, `scale` ... `each` and `histogram` may be NULL. With max_norm above
 * 0 the clip coefficient is computed, too, and where `applied`, and below 1, multiplied in a second
 * pass. Returns a status below 0 if a call failed or met an overflow, after which the time is not
 * that of good steps.
 */
double unscale_seconds(gsc_context *context, const gsc_tensor *in, const gsc_tensor *out,
                       uint64_t n, uint32_t want, gsc_report *each, int64_t *histogram,
                       double scale, double next, double max_norm, int32_t applied, uint64_t pairs)
{
    gsc_exec on = GSC_EXEC_INIT;
    gsc_options options = GSC_OPTIONS_INIT;
    gsc_factor factors[2], clip;
    gsc_report report;
    on.context = context;
    options.want = want;
    options.each = each;
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
        status = gsc_factor_clip(NULL, NULL, &report, max_norm, &clip, NULL);
        if (status != GSC_OK || !applied || clip.inverse >= 1)
            continue;
        status = gsc_factor_init(clip.inverse, &clip, NULL);
        if (status == GSC_OK)
            status = gsc_scale(&on, &clip, out, out, n, NULL, NULL, NULL);
    }
    return status == GSC_OK ? seconds() - start : status;
}

/* Seconds of one merge of so many reports of ranks. */
double merge_seconds(const gsc_report *reports, uint64_t n, gsc_report *out, uint64_t times)
{
    gsc_status status = GSC_OK;
    double start = seconds();
    for (uint64_t i = 0; i < times && status == GSC_OK; i++)
        status = gsc_report_merge(NULL, reports, n, GSC_MERGE_PARTS, NULL, out, NULL);
    return status == GSC_OK ? (seconds() - start) / (double)times : status;
}

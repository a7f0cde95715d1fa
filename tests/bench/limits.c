/* SPDX-License-Identifier: MIT */
/*
 * What the benchmark times in C, so that no figure of the library holds time of Python: loops of
 * calls, and the loops over plain memory that are their limits. Each goes round `pairs` times two;
 * the second of a pair undoes the first, so that the values stay normal numbers.
 */
#include <time.h>

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

/* SPDX-License-Identifier: MIT */
/*
 * Unscaling GPT-2's 148 gradient tensors (124M values) in place, against an in-place multiply of
 * the same memory: alternating rounds in one process, so that a busy machine slows both; the
 * quartiles of the paired ratios are printed, the lower one says what the code can do.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gradscaler.h>

enum { TENSORS = 148, MAX_ROUNDS = 1000 };

static void gpt2_counts(uint64_t *counts)
{
    const uint64_t d = 768, block[] = {d, d, 3 * d * d, 3 * d, d * d,     d,
                                       d, d, 4 * d * d, 4 * d, 4 * d * d, d};
    *counts++ = 50257 * d;
    *counts++ = 1024 * d;
    for (int layer = 0; layer < 12; layer++)
        for (int i = 0; i < 12; i++)
            *counts++ = block[i];
    *counts++ = d;
    *counts++ = d;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The limit: each 4 bytes are read, multiplied and written once, whatever they mean. */
#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static void
multiply(float *x, uint64_t n, float m)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] *= m;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const struct {
    const char *name;
    uint32_t dtype, size;
} dtypes[] = {{"f32", GSC_F32, 4}, {"f16", GSC_F16, 2}, {"bf16", GSC_BF16, 2}};

/* One row of the table: `rounds` pairs of limit and unscale over the same bytes. */
static void measure(gsc_tensor *list, unsigned char *memory, int dtype, uint32_t want, int rounds)
{
    static double ratios[MAX_ROUNDS];
    gsc_report report;
    gsc_factor factor;
    uint64_t bytes = 0, used = 0;
    for (int i = 0; i < TENSORS; i++) {
        list[i].data = memory + bytes;
        list[i].dtype = dtypes[dtype].dtype;
        bytes += list[i].count * dtypes[dtype].size;
    }
    if (gsc_factor_init(1.25, &factor, NULL) != GSC_OK)
        exit(1);
    for (int round = -1; round < rounds; round++) { /* round -1 warms up */
        memset(memory, 0x3c, bytes);                /* a normal value in every dtype */
        double start = seconds();
        multiply((float *)(void *)memory, bytes / 4, 1.25f);
        double middle = seconds();
        if (gsc_unscale(NULL, &factor, list, list, TENSORS, want, &report, NULL) != GSC_OK)
            exit(1);
        double end = seconds();
        if (round >= 0)
            ratios[used++] = (end - middle) / (middle - start);
        fprintf(stderr, "\r%s round %d of %d ", dtypes[dtype].name, round + 1, rounds);
    }
    qsort(ratios, used, sizeof *ratios, ascending);
    fprintf(stderr, "\r%30s\r", "");
    printf("%-5s %-14s %6.0f MB   %6.3f %8.3f %8.3f\n", dtypes[dtype].name,
           want ? "check + norm" : "check", (double)bytes / 1e6, ratios[used / 4], ratios[used / 2],
           ratios[used * 3 / 4]);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    uint64_t counts[TENSORS], total = 0;
    gsc_tensor list[TENSORS] = {0};
    gsc_info info = GSC_INFO_INIT;
    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench [ROUNDS], 1 to %d\n", MAX_ROUNDS);
        return 2;
    }
    gpt2_counts(counts);
    for (int i = 0; i < TENSORS; i++)
        total += list[i].count = counts[i];
    unsigned char *memory = malloc(total * 4);
    if (!memory || gsc_get_info(&info, NULL) != GSC_OK)
        return 1;
    printf("gsc_unscale in place, GPT-2: %d tensors, %" PRIu64
           " values, %s, one thread, %d rounds\n",
           TENSORS, total, info.cpu, rounds);
    printf("time over an in-place multiply of the same bytes: lower quartile, median, upper\n\n");
    for (int dtype = 0; dtype < 3; dtype++) {
        measure(list, memory, dtype, 0, rounds);
        measure(list, memory, dtype, GSC_WANT_NORM, rounds);
    }
    free(memory);
    return 0;
}

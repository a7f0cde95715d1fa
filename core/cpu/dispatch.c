/* SPDX-License-Identifier: MIT */
/* The ladder of instruction sets, and which rung this machine gets. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels.h"

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
/*
 * The compiler's runtime asks CPUID and, for the wide registers, whether the OS saves them. It has
 * no name for F16C in some compilers.
 */
static bool has_avx2(void)
{
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("popcnt") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("bmi2");
}

/* The first CPUs with AVX-512 clock down under it; those that followed know VBMI. */
static bool prefers_avx512(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vbmi");
}
#endif

/* From plain C upwards: each rung overrides the one before it. */
static const struct rung {
    const char *name;
    bool (*runs)(void), (*is_preferred)(void);
    void (*install)(gsc_kernels *);
} rungs[] = {
    {"scalar", always, always, gsc_install_scalar},
#if defined(__x86_64__)
    {"avx2", has_avx2, has_avx2, gsc_install_avx2},
    {"avx512", has_avx512, prefers_avx512, gsc_install_avx512},
#elif defined(__aarch64__)
    {"neon", always, always, gsc_install_neon},
#endif
};

enum { RUNGS = sizeof rungs / sizeof *rungs };

static gsc_kernels tables[RUNGS];
static uint32_t best;
static char available[64], note[160];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    for (uint32_t i = 0; i < RUNGS; i++) {
        for (uint32_t below = 0; below <= i; below++)
            rungs[below].install(&tables[i]);
        tables[i].name = rungs[i].name;
        if (!rungs[i].runs())
            continue;
        if (rungs[i].is_preferred())
            best = i;
        size_t length = strlen(available);
        snprintf(available + length, sizeof available - length, "%s%s", length ? " " : "",
                 rungs[i].name);
    }
    const char *asked = getenv("GSC_CPU");
    if (!asked || !*asked)
        return;
    for (uint32_t i = 0; i < RUNGS; i++)
        if (strcmp(asked, rungs[i].name) == 0 && rungs[i].runs()) {
            best = i;
            return;
        }
    snprintf(note, sizeof note, "GSC_CPU=%.40s cannot run here (%s can): using %s", asked,
             available, rungs[best].name);
}

const gsc_kernels *gsc_kernels_best(void)
{
    pthread_once(&once, choose);
    return &tables[best];
}

const gsc_kernels *gsc_kernels_rung(uint32_t i, bool *runs)
{
    pthread_once(&once, choose);
    *runs = i < RUNGS && rungs[i].runs();
    return i < RUNGS ? &tables[i] : NULL;
}

const char *gsc_cpu_available(void)
{
    pthread_once(&once, choose);
    return available;
}

const char *gsc_cpu_note(void)
{
    pthread_once(&once, choose);
    return note;
}

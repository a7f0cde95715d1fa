/* SPDX-License-Identifier: MIT */
/* The list of instruction sets, and the choice of one for this machine. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "internal.h"
#include "kernels.h"

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
/* Bits of CPUID, by leaf and register, and of XCR0: the registers that the system saves. */
static const unsigned FMA_POPCNT_OSXSAVE_AVX_F16C =
    1u << 12 | 1u << 23 | 1u << 27 | 1u << 28 | 1u << 29;
static const unsigned AVX2 = 1u << 5, BMI2 = 1u << 8;
static const unsigned AVX512_F_DQ_BW_VL = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
static const unsigned AVX512_VBMI = 1u << 1;
static const unsigned SAVES_YMM = 0x06u;
static const unsigned SAVES_ZMM = 0xe6u;

/* Results of CPUID. Compilers' runtimes differ in what they detect, and some detect nothing. */
static struct {
    unsigned c1, b7, c7, saved;
} cpu;

static void ask_cpu(void)
{
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d))
        cpu.c1 = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        cpu.b7 = b;
        cpu.c7 = c;
    }
    if (cpu.c1 & 1u << 27)
        __asm__ volatile("xgetbv" : "=a"(cpu.saved), "=d"(d) : "c"(0));
}

static bool has(unsigned word, unsigned bits)
{
    return (word & bits) == bits;
}

static bool has_avx2(void)
{
    return has(cpu.c1, FMA_POPCNT_OSXSAVE_AVX_F16C) && has(cpu.b7, AVX2) &&
           has(cpu.saved, SAVES_YMM);
}

/* Requires VBMI to leave out the first CPUs with AVX-512: AVX-512 lowers their clock. */
static bool has_avx512(void)
{
    return has_avx2() && has(cpu.b7, AVX512_F_DQ_BW_VL | BMI2) && has(cpu.c7, AVX512_VBMI) &&
           has(cpu.saved, SAVES_ZMM);
}
#else
static void ask_cpu(void)
{
}
#endif

/* The sets from plain C upwards. Each one replaces kernels of the sets before it. */
static const struct instruction_set {
    const char *name, *needs; /* needs: text for the note if the set cannot run */
    bool (*runs)(void);
    void (*install)(gsc_kernels *);
} sets[] = {
    {"scalar", "", always, gsc_install_scalar},
#if defined(__x86_64__)
    {"avx2", " without AVX2, FMA and F16C", has_avx2, gsc_install_avx2},
    {"avx512", " without AVX-512 F, BW, DQ, VL and VBMI", has_avx512, gsc_install_avx512},
#elif defined(__aarch64__)
    {"neon", "", always, gsc_install_neon},
#endif
};

enum { SETS = sizeof sets / sizeof *sets };

static gsc_kernels tables[SETS];
static uint32_t best;
static char available[64], note[160];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    ask_cpu();
    for (uint32_t i = 0; i < SETS; i++) {
        tables[i].name = sets[i].name;
        if (!sets[i].runs()) /* its install function cannot run either */
            continue;
        for (uint32_t below = 0; below <= i; below++)
            sets[below].install(&tables[i]);
        best = i;
        size_t length = strlen(available);
        snprintf(available + length, sizeof available - length, "%s%s", length ? " " : "",
                 sets[i].name);
    }
    const char *asked = getenv("GSC_CPU");
    if (!asked || !*asked)
        return;
    const char *needs = "";
    for (uint32_t i = 0; i < SETS; i++) {
        if (strcmp(asked, sets[i].name) != 0)
            continue;
        needs = sets[i].needs;
        if (sets[i].runs()) {
            best = i;
            return;
        }
    }
    char quoted[48];
    gsc_quote(quoted, sizeof quoted, asked);
    snprintf(note, sizeof note, "GSC_CPU=%s cannot run here%s (%s can): using %s", quoted, needs,
             available, sets[best].name);
}

const gsc_kernels *gsc_kernels_best(void)
{
    pthread_once(&once, choose);
    return &tables[best];
}

const gsc_kernels *gsc_kernels_of_set(uint32_t i, bool *runs)
{
    pthread_once(&once, choose);
    *runs = i < SETS && sets[i].runs();
    return i < SETS ? &tables[i] : NULL;
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

/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "emulation.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct emulated emulated;

/* Number k of n in an order: forward, backward, or in steps of a prime. */
static uint32_t ordered(uint64_t order, uint32_t k, uint32_t n)
{
    if (order != 2)
        return order == 0 ? k : n - 1 - k;
    return (uint32_t)((k * UINT64_C(2654435761) + emulated.launches) % n);
}

uint32_t emulated_thread(uint32_t k)
{
    const uint32_t n = emulated.thread_count;
    return k < n ? ordered(emulated.launches / 3 % 3, k, n) : 0;
}

static void execute(const char *name, uint32_t blocks, uint32_t threads, const void *parameter)
{
    emulated.launches++;
    emulated.block_count = blocks;
    emulated.thread_count = threads;
    for (uint32_t k = 0; k < blocks; k++) {
        emulated.block = ordered(emulated.launches % 3, k, blocks);
#define RUN(kernel)                                                                                \
    if (strcmp(name, GSC_CUDA_PREFIX #kernel) == 0)                                                \
        emulated_##kernel(*(const gsc_cuda_##kernel##_parameter *)parameter);
        GSC_FOR_CUDA_KERNELS(RUN)
#undef RUN
    }
}

/* GSC_EMULATED_VERSION: of the driver, 12040 without it. */
__attribute__((constructor)) static void emulate(void)
{
    const char *version = getenv("GSC_EMULATED_VERSION");
    standin_state()->execute = execute;
    if (version)
        standin_state()->version = atoi(version);
}

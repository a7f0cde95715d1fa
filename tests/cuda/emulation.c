/* SPDX-License-Identifier: MIT */
/* The emulated device behind core/cuda/driver.h, in the place of the driver. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "emulation.h"

#include <sys/mman.h>

#include "cuda/driver.h"

struct emulated emulated = {.end = UINT64_MAX};
static unsigned char *memory;
static uint64_t memory_size;

/* Number k of n in an order; a shuffled one takes steps that have no factor in common with n. */
static uint32_t ordered(enum emulated_order order, uint32_t k, uint32_t n)
{
    uint64_t stride = 2654435761u % n | 1;
    if (order != EMULATED_SHUFFLED)
        return order == EMULATED_FORWARD ? k : n - 1 - k;
    for (uint64_t a = stride, b = n;; a = stride, b = n) {
        while (b != 0) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            break;
        stride++;
    }
    return (uint32_t)((k * stride + emulated.launches) % n);
}

enum { BEYOND = 1 << 16 }; /* bytes after the memory, which fault, too */

unsigned char *emulated_memory(uint64_t size)
{
    if (memory)
        munmap(memory, memory_size + BEYOND);
    void *made = mmap(NULL, size + BEYOND, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    memory = made;
    memory_size = size;
    emulated.start = (uint64_t)(uintptr_t)made;
    emulated.end = emulated.start + size;
    emulated_reach(true);
    return memory;
}

void emulated_reach(bool reached)
{
    mprotect(memory, memory_size, reached ? PROT_READ | PROT_WRITE : PROT_NONE);
}

uint32_t emulated_thread(uint32_t k)
{
    const uint32_t n = emulated.thread_count;
    return k < n ? ordered(emulated.threads, k, n) : 0;
}

const char *gsc_cuda_missing(void)
{
    return NULL;
}

const char *gsc_cuda_refusal(void)
{
    return "";
}

gsc_status gsc_cuda_open(int32_t number, gsc_cuda **out, gsc_error *err)
{
    (void)number, (void)err;
    *out = (gsc_cuda *)(void *)&emulated;
    return GSC_OK;
}

void gsc_cuda_close(void *data)
{
    (void)data;
}

gsc_status gsc_cuda_check(const gsc_exec *on, gsc_error *err)
{
    (void)on, (void)err;
    return GSC_OK;
}

bool gsc_cuda_has(const gsc_exec *on, int kernel)
{
    (void)on;
    return kernel != GSC_CUDA_many || emulated.takes_many;
}

/* Memory is the stand-in's, and here that of a test. */
gsc_status gsc_cuda_memory_create(void *data, uint32_t kind, uint64_t size, void **out,
                                  gsc_error *err)
{
    (void)data, (void)kind, (void)size, (void)out, (void)err;
    return GSC_ERROR_UNAVAILABLE;
}

void gsc_cuda_memory_destroy(void *data, void *memory)
{
    (void)data, (void)memory;
}

gsc_status gsc_cuda_memory_copy(const gsc_exec *on, void *to, const void *from, uint64_t size,
                                gsc_error *err)
{
    (void)on, (void)to, (void)from, (void)size, (void)err;
    return GSC_ERROR_UNAVAILABLE;
}

gsc_status gsc_cuda_wait(const gsc_exec *on, gsc_error *err)
{
    (void)on, (void)err;
    return GSC_OK;
}

gsc_status gsc_cuda_launch(const gsc_exec *on, int kernel, uint32_t blocks, uint32_t threads,
                           const void *parameter, gsc_error *err)
{
    (void)on, (void)err;
    emulated_reach(true);
    emulated.launches++;
    emulated.thread_count = threads;
    for (uint32_t k = 0; k < blocks; k++) {
        emulated.block = ordered(emulated.blocks, k, blocks);
        switch (kernel) {
#define RUN(name)                                                                                  \
    case GSC_CUDA_##name:                                                                          \
        emulated_##name(*(const gsc_cuda_##name##_parameter *)parameter);                          \
        break;
            GSC_FOR_CUDA_KERNELS(RUN)
#undef RUN
        default:
            return GSC_ERROR_DEVICE;
        }
    }
    emulated_reach(false);
    return GSC_OK;
}

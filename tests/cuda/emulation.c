/* SPDX-License-Identifier: MIT */
/* The emulated device behind core/cuda/driver.h, in the place of the driver. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "emulation.h"

#include <sys/mman.h>

#include "cuda/driver.h"

static struct {
    uint64_t launches, memory_size;
    unsigned char *memory;
    uint32_t block, blocks, threads, step;
    enum emulated_order block_order, thread_order;
    bool many;
} device = {.step = 1};

uint64_t emulated_start = 0, emulated_end = UINT64_MAX;

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
    return (uint32_t)((k * stride + device.launches) % n);
}

void emulated_run(enum emulated_order blocks, enum emulated_order threads)
{
    device.block_order = blocks;
    device.thread_order = threads;
}

void emulated_takes_many(bool many)
{
    device.many = many;
}

uint64_t emulated_launches(void)
{
    return device.launches;
}

enum { BEYOND = 1 << 16 }; /* bytes after the memory, which fault, too */

unsigned char *emulated_memory(uint64_t size)
{
    if (device.memory)
        munmap(device.memory, device.memory_size + BEYOND);
    void *memory = mmap(NULL, size + BEYOND, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    device.memory = memory;
    device.memory_size = size;
    emulated_start = (uint64_t)(uintptr_t)memory;
    emulated_end = emulated_start + size;
    emulated_reach(true);
    return memory;
}

void emulated_reach(bool reached)
{
    mprotect(device.memory, device.memory_size, reached ? PROT_READ | PROT_WRITE : PROT_NONE);
}

uint32_t block_index(void)
{
    return device.block;
}

uint32_t emulated_threads(void)
{
    return device.threads;
}

uint32_t emulated_thread(uint32_t k)
{
    return k < device.threads ? ordered(device.thread_order, k, device.threads) : 0;
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
    *out = (gsc_cuda *)(void *)&device;
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
    return kernel != GSC_CUDA_many || device.many;
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
    device.launches++;
    device.threads = threads;
    for (uint32_t k = 0; k < blocks; k++) {
        device.block = ordered(device.block_order, k, blocks);
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

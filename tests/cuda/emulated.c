/* SPDX-License-Identifier: MIT */
/* The emulated device in the stand-in for the driver: launches compute. */
#include "cuda/driver.h"
#include "cuda/kernels.h"
#include "emulation.h"
#include "standin.h"

#include <string.h>

static void execute(const char *name, uint32_t blocks, uint32_t threads, const void *parameter)
{
    static const struct {
        const char *name;
        uint64_t size;
    } kernels[] = {
#define ROW(kernel) {"gsc_cuda_" #kernel, sizeof(gsc_cuda_##kernel##_parameter)},
        GSC_FOR_CUDA_KERNELS(ROW)
#undef ROW
    };
    gsc_cuda *device;
    (void)gsc_cuda_open(0, &device, NULL);
    for (int i = 0; i < (int)(sizeof kernels / sizeof *kernels); i++)
        if (strcmp(kernels[i].name, name) == 0)
            (void)gsc_cuda_launch(device, NULL, i, blocks, threads, parameter, kernels[i].size,
                                  NULL);
}

__attribute__((constructor)) static void emulate(void)
{
    standin_state()->execute = execute;
}

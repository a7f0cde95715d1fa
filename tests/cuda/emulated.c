/* SPDX-License-Identifier: MIT */
/* The emulated device in the stand-in for the driver: launches compute. */
#include "cuda/driver.h"
#include "cuda/launch.h"
#include "emulation.h"
#include "standin.h"

#include <pthread.h>
#include <string.h>

static void execute(const char *name, uint32_t blocks, uint32_t threads, const void *parameter)
{
    static const char *const kernels[] = {
#define NAME(kernel) GSC_CUDA_PREFIX #kernel,
        GSC_FOR_CUDA_KERNELS(NAME)
#undef NAME
    };
    /* The emulation is one device, which runs one kernel at a time. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const gsc_exec on = GSC_EXEC_INIT;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < (int)(sizeof kernels / sizeof *kernels); i++)
        if (strcmp(kernels[i], name) == 0)
            (void)gsc_cuda_launch(&on, i, blocks, threads, parameter, NULL);
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void emulate(void)
{
    standin_state()->execute = execute;
}

/* SPDX-License-Identifier: MIT */
/*
 * A CUDA device through the driver library, which is found at run time. Everything of the driver
 * API is behind these functions; the kernels and what they are handed are in launch.h. What has the
 * form of an operation of backend.h is one.
 */
#ifndef GSC_CUDA_DRIVER_H
#define GSC_CUDA_DRIVER_H

#include "backend.h"

typedef struct gsc_cuda gsc_cuda;

/*
 * Returns why there is no CUDA in this process, or NULL if there is. Never freed. The first call
 * starts the driver; a process that is forked afterwards has no CUDA.
 */
const char *gsc_cuda_missing(void);

/* As gsc_cuda_log. */
const char *gsc_cuda_refusal(void);

/*
 * Retains the primary context of a device and loads the kernels into it, so that no later call
 * does: what a stream capture forbids is done here.
 */
gsc_status gsc_cuda_open(int32_t device, gsc_cuda **out, gsc_error *err);
/* In a forked process it frees the memory and leaves the driver alone. */
void gsc_cuda_close(void *data);

/* Whether this process made the context; before any other use of it. */
gsc_status gsc_cuda_check(const gsc_exec *exec, gsc_error *err);

/* Whether the driver takes a kernel of launch.h: GSC_CUDA_many not before CUDA 12.1. */
bool gsc_cuda_has(const gsc_exec *exec, int kernel);

/*
 * Enqueues kernel number `kernel` of launch.h with its parameter, which is copied before the call
 * returns. The caller's current context is the same afterwards.
 */
gsc_status gsc_cuda_launch(const gsc_exec *exec, int kernel, uint32_t blocks, uint32_t threads,
                           const void *parameter, gsc_error *err);

gsc_status gsc_cuda_memory_create(void *data, uint32_t kind, uint64_t size, void **out,
                                  gsc_error *err);
void gsc_cuda_memory_destroy(void *data, void *memory);
gsc_status gsc_cuda_memory_copy(const gsc_exec *exec, void *to, const void *from, uint64_t size,
                                gsc_error *err);
gsc_status gsc_cuda_wait(const gsc_exec *exec, gsc_error *err);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * A CUDA device through the driver library, which is found at run time. Everything of the driver
 * API is behind these functions; the kernels and what they are handed are in kernels.h.
 */
#ifndef GSC_CUDA_DRIVER_H
#define GSC_CUDA_DRIVER_H

#include "internal.h"

typedef struct gsc_cuda gsc_cuda;

/*
 * "available", or why there is no CUDA in this process. Never freed. The first call starts the
 * driver; a process that is forked afterwards has no CUDA.
 */
const char *gsc_cuda_note(void);

/*
 * Retains the primary context of a device and loads the kernels into it, so that no later call
 * does: what a stream capture forbids is done here.
 */
gsc_status gsc_cuda_open(int32_t device, gsc_cuda **out, gsc_error *err);
/* In a forked process it frees the memory and leaves the driver alone. */
void gsc_cuda_close(gsc_cuda *cuda);

/* Whether this process made `cuda`; before any other use of it. */
gsc_status gsc_cuda_check(const gsc_cuda *cuda, gsc_error *err);

/* Whether the driver takes a kernel of kernels.h: GSC_CUDA_many not before CUDA 12.1. */
bool gsc_cuda_has(const gsc_cuda *cuda, int kernel);

/*
 * Enqueues kernel number `kernel` of kernels.h with its parameter, which is copied before the call
 * returns. The caller's current context is the same afterwards.
 */
gsc_status gsc_cuda_launch(gsc_cuda *cuda, void *stream, int kernel, uint32_t blocks,
                           uint32_t threads, const void *parameter, gsc_error *err);

#endif

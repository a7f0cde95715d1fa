/* SPDX-License-Identifier: MIT */
/*
 * A CUDA device through the driver library, which is found at run time. Everything of the driver
 * API is behind these functions; the kernels and what they are handed are in kernels.h.
 */
#ifndef GSC_CUDA_DRIVER_H
#define GSC_CUDA_DRIVER_H

#include "internal.h"

typedef struct gsc_cuda gsc_cuda;

/* "available", or why there is no CUDA in this process; looked up at the first call. Never freed. */
const char *gsc_cuda_note(void);

/*
 * Retains the primary context of a device and loads the kernels into it, so that no later call
 * does: what a stream capture forbids is done here.
 */
gsc_status gsc_cuda_open(int32_t device, gsc_cuda **out, gsc_error *err);
void gsc_cuda_close(gsc_cuda *cuda);

/*
 * Enqueues kernel number `kernel` of kernels.h with one parameter: a struct of `size` bytes, copied
 * before the call returns. The caller's current context is the same afterwards.
 */
gsc_status gsc_cuda_launch(gsc_cuda *cuda, void *stream, int kernel, uint32_t blocks,
                           uint32_t threads, const void *parameter, uint64_t size, gsc_error *err);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver library, which is loaded at run time. Only driver.c uses the driver API. Kernels
 * and their parameters are in launch.h. Functions with the signature of an operation of backend.h
 * are that operation.
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

/* Returns the text of gsc_cuda_log. */
const char *gsc_cuda_refusal(void);

/*
 * Retains the primary context of a device and loads the kernels into it. This is all that a stream
 * capture forbids: later calls do none of it.
 */
gsc_status gsc_cuda_open(int32_t device, gsc_cuda **out, gsc_error *err);
/* Closes a device. In a forked process it only frees the memory, and does not call the driver. */
void gsc_cuda_close(void *data);

/* Checks that this process made the context. Called before any other use of the context. */
gsc_status gsc_cuda_check(const gsc_exec *exec, gsc_error *err);

/* Returns true if the driver takes a kernel of launch.h; GSC_CUDA_many needs CUDA 12.1. */
bool gsc_cuda_has(const gsc_exec *exec, int kernel);

/* Returns how many blocks of GSC_CUDA_THREADS threads the device runs at once. */
uint32_t gsc_cuda_blocks(const gsc_exec *exec);

/*
 * Enqueues kernel number `kernel` of launch.h. The parameter is copied before the call returns. The
 * caller's current context stays current.
 */
gsc_status gsc_cuda_launch(const gsc_exec *exec, int kernel, uint32_t blocks, uint32_t threads,
                           const void *parameter, gsc_error *err);

/* Checks the alignment of a struct: a misaligned access ends all use of CUDA in the process. */
gsc_status gsc_cuda_align_check(const void *pointer, int argument, const char *name,
                                gsc_error *err);
gsc_status gsc_cuda_tensors(const gsc_exec *exec, const gsc_job *job, gsc_error *err);
gsc_status gsc_cuda_workspace_size(const gsc_exec *exec, const gsc_job *job, uint64_t *size,
                                   gsc_error *err);
gsc_status gsc_cuda_memory_create(void *data, uint32_t kind, uint64_t size, void **out,
                                  gsc_error *err);
void gsc_cuda_memory_destroy(void *data, void *memory);
gsc_status gsc_cuda_memory_copy(const gsc_exec *exec, void *to, const void *from, uint64_t size,
                                gsc_error *err);
gsc_status gsc_cuda_wait(const gsc_exec *exec, gsc_error *err);

#endif

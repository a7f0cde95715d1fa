/* SPDX-License-Identifier: MIT */
/* Generated from include/gradscaler.toml by include/generate.py. Do not edit. */
#ifndef GRADSCALER_CUDA_H
#define GRADSCALER_CUDA_H

#include "gradscaler.h"

#define GSC_CUDA_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* ---- CUDA ------------------------------------------------------------------------------------ */

/*
 * Calls on a CUDA device. This header is provisional: until the library has run on devices of
 * several kinds, a minor version can change it, and how calls of gradscaler.h treat a CUDA context.
 * A change that programs of an older header would notice raises GSC_CUDA_VERSION. Use calls on a
 * device only if gsc_has(GSC_FEATURE_CUDA) == GSC_CUDA_VERSION. On ELF systems a changed function
 * also has another symbol version: a program that was linked with the older one does not start. A
 * program that can do without CUDA looks these functions up with dlsym. Those that also work on a
 * CPU are in every build.
 *
 * With a CUDA context in gsc_exec, tensor data, factors, states, reports and histograms are memory
 * that the device can access, aligned to 8 bytes except for tensor data. gsc_exec, options,
 * policies and the lists themselves are host memory, which the call reads before it returns. The
 * call enqueues its work on exec.stream and returns immediately. Calls on one stream can share one
 * exec.workspace. A call can be captured in a CUDA graph, which keeps the lists, options, policies
 * and numbers of that time.
 *
 *     gsc_exec.stream          CUstream; NULL is the legacy default stream
 *     gsc_exec.workspace       scratch memory of the device, aligned to 8 bytes; only calls on
 *                              tensors need it
 *     gsc_exec.workspace_size  its bytes, at least as many as gsc_workspace_size says
 *
 * The device finds wrong values in its memory after the call has returned GSC_OK. It then writes
 * what GSC_EXEC_WRITE_FAILURES says: a report or a state has the error as its status. To get an
 * error message, make the same call on the host with copies of these structs. If the driver refuses
 * a launch, the call fails, but its earlier launches still run.
 */

/*
 * Starts the CUDA driver and checks that there is a device. If there is none, returns
 * GSC_ERROR_UNAVAILABLE, and err->message says why.
 */
GSC_API gsc_status gsc_cuda_start(gsc_error *err);

/*
 * Returns the log of the driver's compiler for the first device that refused the kernels, or an
 * empty text. Never NULL, never freed.
 */
GSC_API const char *gsc_cuda_log(void);

/* The device of a context. */
typedef struct gsc_cuda_options {
    uint32_t struct_size; /* set by the initialiser */
    int32_t device;       /* CUDA ordinal */
} gsc_cuda_options;

#define GSC_CUDA_OPTIONS_SIZE 8u
#define GSC_CUDA_OPTIONS_INIT {GSC_CUDA_OPTIONS_SIZE, 0}

/*
 * Makes a context on a CUDA device. It uses the device's primary context, which frameworks share.
 * It loads the kernels, so that no later call has to; this takes seconds the first time on a
 * machine. Make one context for each device, not one for each call. Minimum: compute capability
 * 7.0, driver of CUDA 11.0. cudaDeviceReset ends the context, so destroy it before.
 *
 * The first context of a device in a process makes round 0 of each comparison of gsc_exec_compare,
 * in a stream and memory of its own. If a bit differs, this context and all later ones of the
 * device fail with GSC_ERROR_DEVICE. While the legacy stream is captured, or without memory for it,
 * the next context makes them. GSC_CUDA_CHECK=0 in the environment switches them off.
 */
GSC_API gsc_status gsc_context_create_cuda(const gsc_cuda_options *options, gsc_context **out,
                                           gsc_error *err);

/* Kinds of memory of a context. On the CPU both are host memory. */
typedef uint32_t gsc_memory_kind;
#define GSC_MEMORY_DEVICE 0u /* memory of the device */
#define GSC_MEMORY_HOST   1u /* host memory that the device can also read and write */

/*
 * Allocates memory of a context, aligned to 256 bytes and not cleared. Free it before the context.
 *
 *     context  NULL: host memory
 *     size     bytes; 0 gives NULL
 */
GSC_API gsc_status gsc_memory_create(gsc_context *context, gsc_memory_kind kind, uint64_t size,
                                     void **out, gsc_error *err);

/*
 * Frees memory that gsc_memory_create made with the same context and that no call, stream or graph
 * uses any more.
 *
 *     context  NULL: host memory
 *     memory   NULL: does nothing
 */
GSC_API void gsc_memory_destroy(gsc_context *context, void *memory);

/*
 * Copies between host and device memory, in any direction, in the order of exec->stream. Host
 * memory stays in use until gsc_exec_wait, or until other code waits for the stream.
 *
 *     to    NULL only with size = 0
 *     from  NULL only with size = 0
 *     size  bytes
 */
GSC_API gsc_status gsc_memory_copy(const gsc_exec *exec, void *to, const void *from, uint64_t size,
                                   gsc_error *err);

/*
 * Waits until exec->stream has done all work that was enqueued. If the stream is being captured,
 * fails with GSC_ERROR_UNAVAILABLE, and the capture goes on.
 *
 *     exec  NULL: returns immediately
 */
GSC_API gsc_status gsc_exec_wait(const gsc_exec *exec, gsc_error *err);

/*
 * Writes the bytes of exec->workspace that any call on tensors needs for this list; 0 on the CPU.
 *
 *     tensors  NULL only with n = 0
 *     options  NULL: no options
 */
GSC_API gsc_status gsc_workspace_size(const gsc_exec *exec, const gsc_tensor *tensors, uint64_t n,
                                      const gsc_tensor_options *options, uint64_t *size,
                                      gsc_error *err);

/* Returns the name of comparison `index`, from 0, or NULL after the last. */
GSC_API const char *gsc_comparison_name(uint32_t index);

/*
 * Makes the same calls on `exec` and on the host, and compares what they write, bit for bit. If a
 * bit differs, fails with GSC_ERROR_DEVICE, and err->message says where. Writes how many bytes of
 * `exec` it used. All comparisons together show that a device works; a CUDA context makes round 0
 * of each at the first use of a device in a process.
 *
 *     index  the comparison, see gsc_comparison_name
 *     round  0 to 1000; each has other values and larger lists
 */
GSC_API gsc_status gsc_exec_compare(const gsc_exec *exec, uint32_t index, uint64_t round,
                                    uint64_t *size, gsc_error *err);

#ifdef __cplusplus
}
#endif
#endif

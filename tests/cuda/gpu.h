/* SPDX-License-Identifier: MIT */
/* Shared by the programs for a GPU: the driver, a device that is open, its memory, random numbers.
 */
#ifndef GSC_TESTS_CUDA_GPU_H
#define GSC_TESTS_CUDA_GPU_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "check.h"

/* ---- the driver ---- */

static struct {
#define X(name, symbol, signature) int32_t(*name) signature;
#include "cuda/driver.def"
#include "device.def"
#undef X
} cu;

static inline void die(const char *what, const char *detail)
{
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(1);
}

static inline void cu_check(int32_t result, const char *call)
{
    const char *text = NULL;
    if (result != 0) {
        (void)cu.error_string(result, &text);
        die(call, text ? text : "unknown error");
    }
}
#define CU(call) cu_check(cu.call, #call)

static inline void gsc_must(gsc_status status, const gsc_error *err, const char *call)
{
    if (status != GSC_OK)
        die(call, err->message);
}
#define GSC(call)                                                                                  \
    do {                                                                                           \
        gsc_error err;                                                                             \
        gsc_must(call, &err, #call);                                                               \
    } while (0)

/* The device as this program sees it: a context of the library and the primary one, current. */
static gsc_context *context;

static inline void load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol;
    if (!library)
        die("libcuda.so.1", dlerror());
#define X(name, function, signature)                                                               \
    if (!(symbol = dlsym(library, #function)) && strcmp(#function, "cuFuncLoad") != 0)             \
        die("libcuda.so.1 lacks", #function);                                                      \
    memcpy(&cu.name, &symbol, sizeof symbol);
#include "cuda/driver.def"
#include "device.def"
#undef X
}

static inline gsc_context *new_context(void)
{
    gsc_context *made;
    GSC(gsc_context_create_cuda(&(gsc_cuda_options)GSC_CUDA_OPTIONS_INIT, &made, &err));
    return made;
}

static inline void open_device(void)
{
    void *primary;
    load_driver();
    context = new_context();
    CU(context_retain(&primary, 0));
    CU(context_push(primary));
}

static inline void close_device(void)
{
    void *popped;
    CU(context_pop(&popped));
    CU(context_release(0));
    gsc_context_destroy(context);
}

static inline void *device_memory(uint64_t bytes)
{
    void *memory;
    GSC(gsc_memory_create(context, GSC_MEMORY_DEVICE, bytes ? bytes : 1, &memory, &err));
    return memory;
}

static inline void device_free(void *memory)
{
    gsc_memory_destroy(context, memory);
}

/* In the order of the legacy stream, and done. */
static inline void copy_now(void *to, const void *from, uint64_t bytes)
{
    gsc_exec on = GSC_EXEC_INIT;
    on.context = context;
    GSC(gsc_memory_copy(&on, to, from, bytes, &err));
    GSC(gsc_exec_wait(&on, &err));
}
#define upload   copy_now
#define download copy_now

static inline void *allocated(uint64_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        die("out of memory", "host");
    return memory;
}

/* A stream with a workspace, for lists up to that size. */
static inline gsc_exec stream_exec(const gsc_tensor *largest, uint64_t n)
{
    gsc_exec on = GSC_EXEC_INIT;
    on.context = context;
    CU(stream_create(&on.stream, 1)); /* not waiting for the legacy stream */
    GSC(gsc_workspace_size(&on, largest, n, NULL, &on.workspace_size, &err));
    on.workspace = device_memory(on.workspace_size);
    return on;
}

static inline void stream_free(gsc_exec *on)
{
    GSC(gsc_exec_wait(on, &err));
    CU(stream_destroy(on->stream));
    device_free(on->workspace);
}

/* ---- numbers ---- */

static uint64_t random_state = 1;

static inline uint64_t random_bits(void) /* xorshift64* */
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1dull;
}

/* Returns a number of magnitude 2^-12 to 2^3, or zero. */
static inline float random_float(void)
{
    uint64_t bits = random_bits();
    float value = (float)(1 << (bits & 15)) * 0x1p-12f * (1 + (float)(bits >> 40) * 0x1p-24f);
    return bits >> 4 & 31 ? bits >> 9 & 1 ? value : -value : 0;
}

/* ---- operations ---- */

enum operation { UNSCALE, CHECK_ONLY, SCALE, CLAMP, ACCUMULATE, OPERATIONS };

/* `options` has no clamp. */
static inline gsc_status run_operation(enum operation operation, const gsc_exec *on,
                                       const gsc_factor *factor, const gsc_tensor *in,
                                       const gsc_tensor *out, uint64_t n,
                                       const gsc_tensor_options *options, gsc_report *report,
                                       gsc_error *err)
{
    gsc_tensor_options clamped = *options;
    clamped.clamp = 0.75;
    switch (operation) {
    case SCALE:
        return gsc_scale(on, factor, in, out, n, options, report, err);
    case CHECK_ONLY:
        return gsc_measure(on, factor, in, n, options, report, err);
    case UNSCALE:
        return gsc_unscale(on, factor, in, out, n, options, report, err);
    case CLAMP:
        return gsc_unscale(on, factor, in, out, n, &clamped, report, err);
    default:
        return gsc_unscale_accumulate(on, factor, in, out, n, options, report, err);
    }
}

/* ---- dtypes ---- */

static const char *const dtype_names[] = {
    "none", "f32", "f64", "f16", "bf16", "f8_e4m3fn", "f8_e5m2", "cb16", "complex64", "complex128"};

static inline bool is_complex(uint32_t dtype)
{
    return dtype == GSC_COMPLEX64 || dtype == GSC_COMPLEX128;
}

#endif

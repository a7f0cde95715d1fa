/* SPDX-License-Identifier: MIT */
/* Contexts, gsc_exec, memory, and which features this machine has. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "cpu/cpu.h"
#include "cpu/kernels.h"
#include "cuda/driver.h"

#if defined(GSC_NO_CUDA)
static const bool has_cuda = false;

const char *gsc_cuda_missing(void)
{
    return "CUDA is not in this build: it was made with GSC_CUDA off";
}

const char *gsc_cuda_refusal(void)
{
    return "";
}
#else
static const bool has_cuda = true;
#endif

/* Makes a context that owns `data`. If memory is out, destroys `data`. */
static gsc_status create(const gsc_backend *backend, void *data, gsc_context **out, gsc_error *err)
{
    gsc_context *context = malloc(sizeof *context);
    if (!context) {
        backend->destroy(data);
        return gsc_fail_memory(err);
    }
    context->backend = backend;
    context->data = data;
    *out = context;
    return GSC_OK;
}

gsc_status gsc_context_create_cpu(const gsc_cpu_options *options, gsc_context **out, gsc_error *err)
{
    gsc_begin(err);
    gsc_cpu_options full;
    gsc_cpu *cpu;
    GSC_REQUIRE(options, 0);
    GSC_TRY(gsc_struct_read(options, &full, GSC_CPU_OPTIONS_SIZE, 0, "options", err));
    GSC_REQUIRE(out, 1);
    if (full.threads == 0 || full.threads > 1024)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 0, -1, "options.threads", full.threads, 1,
                               1024, "from 1 to 1024");
    if (full.pool && !full.parallel_for)
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1, "options.pool",
                        "is set, but parallel_for, which would run on it, is NULL");
    GSC_TRY(gsc_cpu_open(&full, &cpu, err));
    return create(&gsc_cpu_backend, cpu, out, err);
}

gsc_status gsc_context_create_cuda(const gsc_cuda_options *options, gsc_context **out,
                                   gsc_error *err)
{
    gsc_begin(err);
    gsc_cuda_options full;
    GSC_REQUIRE(options, 0);
    GSC_TRY(gsc_struct_read(options, &full, GSC_CUDA_OPTIONS_SIZE, 0, "options", err));
    GSC_REQUIRE(out, 1);
#if defined(GSC_NO_CUDA)
    return gsc_fail_otherwise(err, GSC_ERROR_UNAVAILABLE, 0, "options.device", "CUDA device %d: %s",
                              full.device, gsc_cuda_missing());
#else
    gsc_cuda *cuda;
    GSC_TRY(gsc_cuda_open(full.device, &cuda, err));
    return create(&gsc_cuda_backend, cuda, out, err);
#endif
}

void gsc_context_destroy(gsc_context *context)
{
    if (context)
        context->backend->destroy(context->data);
    free(context);
}

/* ---- gsc_exec ---- */

gsc_status gsc_exec_read(const gsc_exec *exec, const gsc_backend *otherwise, gsc_target *on,
                         gsc_error *err)
{
    *on = (gsc_target){.backend = otherwise};
    if (!exec)
        return GSC_OK;
    GSC_TRY(gsc_struct_read(exec, &on->exec, GSC_EXEC_SIZE, 0, "exec", err));
    if (on->exec.flags & ~GSC_EXEC_WRITE_FAILURES)
        return gsc_fail_bits(err, GSC_ERROR_VALUE, 0, "exec.flags", on->exec.flags,
                             GSC_EXEC_WRITE_FAILURES);
    if (on->exec.context)
        on->backend = on->exec.context->backend;
    return on->backend->check(&on->exec, err);
}

gsc_status gsc_begin_on(const gsc_exec *exec, gsc_target *on, gsc_error *err)
{
    gsc_begin(err);
    return gsc_exec_read(exec, &gsc_thread_backend, on, err);
}

gsc_status gsc_exec_wait(const gsc_exec *exec, gsc_error *err)
{
    gsc_target on;
    GSC_TRY(gsc_begin_on(exec, &on, err));
    return on.backend->wait(&on.exec, err);
}

/* ---- memory ---- */

static const gsc_backend *backend_of(const gsc_context *context)
{
    return context ? context->backend : &gsc_thread_backend;
}

gsc_status gsc_memory_create(gsc_context *context, uint32_t kind, uint64_t size, void **out,
                             gsc_error *err)
{
    gsc_begin(err);
    GSC_REQUIRE(out, 3);
    if (kind > GSC_MEMORY_HOST)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 1, -1, "kind", kind, 0, GSC_MEMORY_HOST,
                               "a kind of memory");
    if (size > INT64_MAX)
        return gsc_fail(err, GSC_ERROR_MEMORY, 2, -1, "size", "is %llu bytes: out of memory",
                        (unsigned long long)size);
    if (size == 0) {
        *out = NULL;
        return GSC_OK;
    }
    return backend_of(context)->memory_create(context ? context->data : NULL, kind, size, out, err);
}

void gsc_memory_destroy(gsc_context *context, void *memory)
{
    if (memory)
        backend_of(context)->memory_destroy(context ? context->data : NULL, memory);
}

gsc_status gsc_memory_copy(const gsc_exec *exec, void *to, const void *from, uint64_t size,
                           gsc_error *err)
{
    gsc_target on;
    GSC_TRY(gsc_begin_on(exec, &on, err));
    if (size == 0)
        return GSC_OK;
    GSC_REQUIRE(to, 1);
    GSC_REQUIRE(from, 2);
    return on.backend->memory_copy(&on.exec, to, from, size, err);
}

/* ---- version and features ---- */

gsc_status gsc_info_get(gsc_info *out, gsc_error *err)
{
    gsc_begin(err);
    GSC_REQUIRE(out, 0);
    gsc_info info = {.version = GSC_VERSION,
                     .cpu = gsc_kernels_best()->name,
                     .cpu_available = gsc_cpu_available(),
                     .cpu_note = gsc_cpu_note()};
    return gsc_struct_write(&info, GSC_INFO_SIZE, out, true, 0, "out", err);
}

gsc_status gsc_cuda_start(gsc_error *err)
{
    gsc_begin(err);
    const char *why = gsc_cuda_missing();
    return why ? gsc_fail_otherwise(err, GSC_ERROR_UNAVAILABLE, -1, "", "%s", why) : GSC_OK;
}

const char *gsc_cuda_log(void)
{
    return gsc_cuda_refusal();
}

int32_t gsc_has(gsc_feature feature)
{
    return feature == GSC_FEATURE_CUDA && has_cuda ? GSC_CUDA_VERSION : 0;
}

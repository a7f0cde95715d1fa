/* SPDX-License-Identifier: MIT */
/* The CPU's table of operations; contexts and memory. */
#include "cpu.h"

#if defined(_WIN32)
#include <malloc.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "pool.h"

gsc_status gsc_cpu_open(const gsc_cpu_options *options, gsc_cpu **out, gsc_error *err)
{
    const uint32_t threads = options->threads;
    gsc_cpu *cpu = malloc(sizeof *cpu);
    if (!cpu)
        return gsc_fail_memory(err);
    *cpu =
        (gsc_cpu){.threads = threads, .parallel_for = options->parallel_for, .pool = options->pool};
    if (threads > 1 && !cpu->parallel_for) {
        cpu->parallel_for = gsc_pool_run;
        cpu->pool = gsc_pool_create(threads);
        if (!cpu->pool) {
            free(cpu);
            return gsc_fail_otherwise(err, GSC_ERROR_MEMORY, 0, "options.threads",
                                      "out of memory or threads: %u were asked for", threads);
        }
    }
    *out = cpu;
    return GSC_OK;
}

static void destroy(void *data)
{
    gsc_cpu *cpu = data;
    if (cpu->parallel_for == gsc_pool_run)
        gsc_pool_destroy(cpu->pool);
    free(cpu);
}

static gsc_status check(const gsc_exec *exec, gsc_error *err)
{
    if (exec->stream)
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1, "exec.stream",
                        "is set, but a CPU has no streams: leave it NULL");
    if (exec->workspace || exec->workspace_size)
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1,
                        exec->workspace ? "exec.workspace" : "exec.workspace_size",
                        "is set, but a CPU needs no scratch memory: leave it 0");
    return GSC_OK;
}

static gsc_status workspace_size(const gsc_exec *exec, const gsc_job *job, uint64_t *size,
                                 gsc_error *err)
{
    (void)exec, (void)job, (void)err;
    *size = 0;
    return GSC_OK;
}

static void *allocate(uint64_t size)
{
    enum { ALIGNMENT = 256 };
    const uint64_t whole = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
#if defined(_WIN32)
    return _aligned_malloc(whole, ALIGNMENT);
#else
    return aligned_alloc(ALIGNMENT, whole);
#endif
}

static gsc_status memory_create(void *data, uint32_t kind, uint64_t size, void **out,
                                gsc_error *err)
{
    (void)data, (void)kind;
    void *memory = allocate(size);
    if (!memory)
        return gsc_fail_memory(err);
    *out = memory;
    return GSC_OK;
}

static void memory_destroy(void *data, void *memory)
{
    (void)data;
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

static gsc_status memory_copy(const gsc_exec *exec, void *to, const void *from, uint64_t size,
                              gsc_error *err)
{
    (void)exec, (void)err;
    memmove(to, from, size);
    return GSC_OK;
}

static gsc_status exec_wait(const gsc_exec *exec, gsc_error *err)
{
    (void)exec, (void)err; /* every call is done when it returns */
    return GSC_OK;
}

/* The calling thread, without calls on tensors: a program without such calls links no kernels. */
const gsc_backend gsc_thread_backend = {.check = check,
                                        .step = gsc_cpu_step,
                                        .memory_create = memory_create,
                                        .memory_destroy = memory_destroy,
                                        .memory_copy = memory_copy,
                                        .wait = exec_wait};

const gsc_backend gsc_cpu_backend = {.check = check,
                                     .tensors = gsc_cpu_tensors,
                                     .workspace_size = workspace_size,
                                     .step = gsc_cpu_step,
                                     .memory_create = memory_create,
                                     .memory_destroy = memory_destroy,
                                     .memory_copy = memory_copy,
                                     .wait = exec_wait,
                                     .destroy = destroy};

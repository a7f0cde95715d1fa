/* SPDX-License-Identifier: MIT */
/* Where a call runs: contexts, gsc_exec, and what is available on this machine. */
#include <stdlib.h>
#include <string.h>

#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "cuda/driver.h"

gsc_status gsc_context_create_cpu(uint32_t threads, gsc_parallel_for *parallel_for, void *pool,
                                  gsc_context **out, gsc_error *err)
{
    GSC_REQUIRE(out, 3);
    if (threads == 0 || threads > 1024)
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1, "threads", "threads is %u: from 1 to 1024",
                        threads);
    if (pool && !parallel_for)
        return gsc_fail(err, GSC_ERROR_VALUE, 2, -1, "pool",
                        "pool is set, but parallel_for, which would run on it, is NULL");
    gsc_context *context = malloc(sizeof *context);
    if (!context)
        return gsc_fail(err, GSC_ERROR_MEMORY, -1, -1, "context", "out of memory");
    *context = (gsc_context){.threads = threads, .parallel_for = parallel_for, .pool = pool};
    if (threads > 1 && !parallel_for) {
        context->parallel_for = gsc_pool_run;
        context->pool = gsc_pool_create(threads);
        if (!context->pool) {
            free(context);
            return gsc_fail(err, GSC_ERROR_MEMORY, 0, -1, "threads",
                            "out of memory or threads: %u were asked for", threads);
        }
    }
    *out = context;
    return GSC_OK;
}

gsc_status gsc_context_create_cuda(int32_t device, gsc_context **out, gsc_error *err)
{
    GSC_REQUIRE(out, 1);
    gsc_cuda *cuda;
    GSC_TRY(gsc_cuda_open(device, &cuda, err));
    gsc_context *context = calloc(1, sizeof *context);
    if (!context) {
        gsc_cuda_close(cuda);
        return gsc_fail(err, GSC_ERROR_MEMORY, -1, -1, "context", "out of memory");
    }
    context->cuda = cuda;
    *out = context;
    return GSC_OK;
}

void gsc_context_destroy(gsc_context *context)
{
    if (context && context->parallel_for == gsc_pool_run)
        gsc_pool_destroy(context->pool);
    if (context && context->cuda)
        gsc_cuda_close(context->cuda);
    free(context);
}

gsc_status gsc_exec_read(const gsc_exec *on, gsc_exec *full, gsc_error *err)
{
    memset(full, 0, sizeof *full);
    if (!on)
        return GSC_OK;
    GSC_TRY(gsc_struct_read(on, full, GSC_EXEC_SIZE, 0, "on", err));
    if (full->reserved != 0)
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1, "on.reserved",
                        "on.reserved is %u: it must be 0", full->reserved);
    if (full->context && full->context->cuda)
        GSC_TRY(gsc_cuda_check(full->context->cuda, err));
    else if (full->stream)
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1, "on.stream",
                        "on.stream is set, but a CPU has no streams: leave it NULL");
    return GSC_OK;
}

gsc_status gsc_prepare(const gsc_exec *on, gsc_error *err)
{
    gsc_exec where;
    GSC_TRY(gsc_exec_read(on, &where, err));
    gsc_kernels_best();
    return GSC_OK;
}

gsc_status gsc_get_info(gsc_info *out, gsc_error *err)
{
    GSC_REQUIRE(out, 0);
    gsc_info info = {.version = GSC_VERSION,
                     .cpu = gsc_kernels_best()->name,
                     .cpu_available = gsc_cpu_available(),
                     .cpu_note = gsc_cpu_note(),
                     .cuda = gsc_cuda_note()};
    return gsc_struct_write(&info, GSC_INFO_SIZE, out, true, 0, "out", err);
}

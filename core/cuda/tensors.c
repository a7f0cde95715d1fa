/* SPDX-License-Identifier: MIT */
/* Runs a list on a CUDA device. A call only launches kernels; the host does not wait between them.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "launch.h"

static gsc_cuda_policy policy_of(const gsc_policy *policy)
{
    gsc_cuda_policy p = {{0}};
    _Static_assert(sizeof p <= sizeof *policy, "kernels read no more than there is");
    _Static_assert(sizeof p >= offsetof(gsc_policy, guard_flags) + sizeof policy->guard_flags,
                   "kernels get all fields that they use");
    if (policy)
        memcpy(&p, policy, sizeof p);
    return p;
}

static uint64_t size_for(const gsc_job *job)
{
    return sizeof(gsc_cuda_workspace) + job->n * sizeof(gsc_cuda_tensor) +
           job->chunks * sizeof(gsc_cuda_chunk);
}

/* Checks the list's size: a device counts tensors and chunks in 31 bits. */
static gsc_status list_check(const gsc_job *job, gsc_error *err)
{
    if (job->chunks > INT32_MAX || job->n > INT32_MAX)
        return gsc_fail(err, GSC_ERROR_COUNT, job->tensors_argument, -1, "tensors",
                        "has more elements than the memory of a device");
    return GSC_OK;
}

gsc_status gsc_cuda_workspace_size(const gsc_exec *exec, const gsc_job *job, uint64_t *size,
                                   gsc_error *err)
{
    (void)exec;
    GSC_TRY(list_check(job, err));
    *size = size_for(job);
    return GSC_OK;
}

static gsc_status workspace_check(const gsc_exec *exec, uint64_t size, gsc_error *err)
{
    GSC_TRY(gsc_cuda_align_check(exec->workspace, 0, "exec.workspace", err));
    const uint64_t has = exec->workspace ? exec->workspace_size : 0;
    if (has < size)
        return gsc_fail(err, GSC_ERROR_CAPACITY, 0, -1, "exec.workspace",
                        "has %llu bytes, and this call needs %llu: ask for the workspace's size",
                        (unsigned long long)has, (unsigned long long)size);
    return GSC_OK;
}

/* Returns the elements in the first blocks of all chunks, which the histogram counts. */
static uint64_t sampled_elements(const gsc_tensor *tensor)
{
    uint64_t numbers = gsc_numbers_of(tensor), rest = numbers % GSC_CHUNK;
    uint64_t sampled = numbers / GSC_CHUNK * GSC_BLOCK + (rest < GSC_BLOCK ? rest : GSC_BLOCK);
    return sampled / gsc_reals[tensor->dtype].parts;
}

/* Describes n tensors from `first` on for the kernels; `end`: chunks of the tensors before. */
static void describe(const gsc_job *job, uint64_t first, uint64_t n, uint32_t end,
                     gsc_cuda_tensor *to)
{
    for (uint64_t i = first; i < first + n; i++, to++) {
        const gsc_tensor *in = &job->in[i], *out = job->out ? &job->out[i] : in;
        to->in = in->data;
        to->out = job->out ? out->data : NULL;
        to->end = end += (uint32_t)gsc_chunks_of(in);
        to->last = (uint16_t)((gsc_numbers_of(in) - 1) % GSC_CHUNK);
        to->in_dtype = (uint8_t)(gsc_reals[in->dtype].real |
                                 (gsc_reals[in->dtype].parts == 2 ? GSC_CUDA_COMPLEX : 0));
        to->out_dtype = gsc_reals[out->dtype].real;
    }
}

/* Launches the kernels that write a list into the workspace, as few as the driver allows. */
static gsc_status launch_list(const gsc_exec *exec, const gsc_job *job, gsc_cuda_tensor *list,
                              int64_t *bins, gsc_error *err)
{
    const bool has_many = gsc_cuda_has(exec, GSC_CUDA_many);
    _Static_assert(sizeof(gsc_cuda_many_parameter) <= 32764, "drivers from CUDA 12.1 on take it");
    gsc_cuda_many_parameter p; /* `list` has only the beginning */
    p.header.bins = bins;
    uint32_t end = 0;
    for (uint64_t first = 0; first < job->n; first += p.header.tensors) {
        const bool many = has_many && job->n - first > GSC_CUDA_TENSORS;
        const uint64_t most = many ? GSC_CUDA_MANY : GSC_CUDA_TENSORS, left = job->n - first;
        p.header.to = list + first;
        p.header.tensors = left < most ? left : most;
        describe(job, first, p.header.tensors, end, p.tensors);
        end = p.tensors[p.header.tensors - 1].end;
        memset(p.tensors + p.header.tensors, 0, (most - p.header.tensors) * sizeof *p.tensors);
        GSC_TRY(gsc_cuda_launch(exec, many ? GSC_CUDA_many : GSC_CUDA_list,
                                (uint32_t)(p.header.tensors - 1) / GSC_CUDA_THREADS + 1,
                                GSC_CUDA_THREADS, &p, err));
    }
    return GSC_OK;
}

/*
 * Returns a number for gsc_cuda_call.first_ended. Successive ones differ by 2^64 over the golden
 * ratio, so all of a process are far apart. The clock gives a process its first.
 */
static uint64_t new_ended(void)
{
    static _Atomic uint64_t last;
    if (atomic_load(&last) == 0) {
        struct timespec now;
        uint64_t none = 0;
        (void)timespec_get(&now, TIME_UTC);
        atomic_compare_exchange_strong(
            &last, &none, ((uint64_t)now.tv_sec << 32 ^ (uint64_t)now.tv_nsec << 2) | 1);
    }
    return atomic_fetch_add(&last, UINT64_C(0x9e3779b97f4a7c15));
}

gsc_status gsc_cuda_tensors(const gsc_exec *exec, const gsc_job *job, gsc_error *err)
{
    GSC_TRY(gsc_cuda_align_check(job->factor, 1, "factor", err));
    GSC_TRY(gsc_cuda_align_check(job->state, 1, "state", err));
    GSC_TRY(gsc_cuda_align_check(job->report, job->report_argument, "report", err));
    GSC_TRY(
        gsc_cuda_align_check(job->per_tensor, job->options_argument, "options.per_tensor", err));
    GSC_TRY(gsc_cuda_align_check(job->histogram, job->options_argument, "options.histogram", err));
    GSC_TRY(list_check(job, err));
    GSC_TRY(workspace_check(exec, size_for(job), err));
    gsc_cuda_workspace *workspace = exec->workspace;
    gsc_cuda_tensor *list = (gsc_cuda_tensor *)(void *)(workspace + 1);
    const uint32_t max_blocks = gsc_cuda_blocks(exec), chunks = (uint32_t)job->chunks;
    /* Smaller chunks on more processors would hardly make a short list faster: numerics.md defines
     * the order in a lane, so a thread runs 64 rows one after the other. */
    const uint32_t blocks = chunks == 0 ? 1 : chunks < max_blocks ? chunks : max_blocks;
    const bool adds = job->operation == GSC_OPERATION_ADD;
    const bool has_results = job->report || job->per_tensor || job->histogram || adds;
    const bool has_bins = job->histogram && job->n > 0;
    const bool list_in_workspace = job->n > GSC_CUDA_TENSORS || has_bins;
    _Static_assert(sizeof(gsc_cuda_chunks_parameter) <= 4096, "all drivers take it");
    gsc_cuda_chunks_parameter p = {
        .call = {.factor = job->factor,
                 .state = job->state,
                 .by_scale = job->by_scale,
                 .chunks = (gsc_cuda_chunk *)(void *)(list + job->n),
                 .ended = has_results ? &workspace->ended : NULL,
                 .first_ended = new_ended(),
                 .bad = adds ? &workspace->bad : NULL,
                 .bins = has_bins ? workspace->bins : NULL,
                 .report = job->report,
                 .per_tensor = job->per_tensor,
                 .histogram = job->histogram,
                 .tensors = (uint32_t)job->n,
                 .all_chunks = chunks,
                 .prefetches = blocks <= max_blocks / GSC_CUDA_BLOCKS_PER_PROCESSOR,
                 .elements = job->elements,
                 .operation = job->clamp != 0 ? GSC_CUDA_CLAMP : GSC_CUDA_STORE,
                 .want = job->want,
                 .writes = !adds},
        .policy = policy_of(job->policy),
        .list = list_in_workspace ? list : NULL,
    };
    if (job->loss && job->report) {
        const struct gsc_real *type = &gsc_reals[job->loss->dtype];
        p.call.loss = job->loss->data;
        p.call.loss_end = p.call.loss + job->loss->count * type->size;
        p.call.loss_dtype = type->real;
    }
    for (uint32_t dtype = 0; job->clamp != 0 && dtype < gsc_dtypes; dtype++)
        p.call.limits[dtype] = gsc_clamp_limit(dtype, job->clamp);
    for (uint64_t i = 0; job->histogram && i < job->n; i++)
        p.call.histogram_elements += (int64_t)sampled_elements(&job->in[i]);
    if (list_in_workspace)
        GSC_TRY(launch_list(exec, job, list, p.call.bins, err));
    else
        describe(job, 0, job->n, 0, p.tensors);
    GSC_TRY(gsc_cuda_launch(exec, GSC_CUDA_chunks, blocks, GSC_CUDA_THREADS, &p, err));
    if (!adds)
        return GSC_OK;
    p.call.operation = GSC_CUDA_ADD;
    p.call.writes = 1;
    p.call.want = 0;
    p.call.ended = NULL;
    p.call.bins = NULL;
    return gsc_cuda_launch(exec, GSC_CUDA_chunks, blocks, GSC_CUDA_THREADS, &p, err);
}

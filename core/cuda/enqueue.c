/* SPDX-License-Identifier: MIT */
/*
 * The table of operations of a CUDA device, and the launches of each call. A call only launches
 * kernels; the host does not wait between launches.
 */
#include <stddef.h>
#include <string.h>

#include "driver.h"
#include "launch.h"

/* Checks the alignment of a struct: a misaligned access ends all use of CUDA in the process. */
static gsc_status align_check(const void *pointer, int argument, const char *name, gsc_error *err)
{
    if ((uintptr_t)pointer % 8 != 0)
        return gsc_fail(err, GSC_ERROR_VALUE, argument, -1, name,
                        "is %p: on a device it must be a multiple of 8", pointer);
    return GSC_OK;
}

static gsc_cuda_policy policy_of(const gsc_policy *policy)
{
    gsc_cuda_policy p = {{0}};
    _Static_assert(sizeof p <= sizeof *policy, "kernels read no more than there is");
    if (policy)
        memcpy(&p, policy, sizeof p);
    return p;
}

/* ---- tensors ---- */

static uint64_t size_for(const gsc_job *job)
{
    return sizeof(gsc_cuda_workspace) +
           job->n * (sizeof(gsc_cuda_record) + sizeof(gsc_cuda_tensor)) +
           job->chunks * sizeof(gsc_cuda_chunk);
}

/* Checks the list's size: a device counts chunks in 31 bits. */
static gsc_status list_check(const gsc_job *job, gsc_error *err)
{
    if (job->chunks > INT32_MAX || job->n > UINT32_MAX)
        return gsc_fail(err, GSC_ERROR_COUNT, job->tensors_argument, -1, "tensors",
                        "has more elements than the memory of a device");
    return GSC_OK;
}

static gsc_status workspace_size(const gsc_exec *exec, const gsc_job *job, uint64_t *size,
                                 gsc_error *err)
{
    (void)exec;
    GSC_TRY(list_check(job, err));
    *size = size_for(job);
    return GSC_OK;
}

static gsc_status workspace_check(const gsc_exec *exec, uint64_t size, gsc_error *err)
{
    GSC_TRY(align_check(exec->workspace, 0, "exec.workspace", err));
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

/* Describes tensor i for the kernels. Returns the number of its chunks. */
static uint32_t describe(const gsc_job *job, uint64_t i, gsc_cuda_tensor *to)
{
    const gsc_tensor *in = &job->in[i], *out = job->out ? &job->out[i] : in;
    to->in = in->data;
    to->out = job->out ? out->data : NULL;
    to->last = (uint16_t)((gsc_numbers_of(in) - 1) % GSC_CHUNK);
    to->in_dtype = (uint8_t)(gsc_reals[in->dtype].real |
                             (gsc_reals[in->dtype].parts == 2 ? GSC_CUDA_COMPLEX : 0));
    to->out_dtype = gsc_reals[out->dtype].real;
    return (uint32_t)gsc_chunks_of(in);
}

/* Launches the kernels that write the call and its list, as few as the driver allows. */
static gsc_status launch_begin(const gsc_exec *exec, const gsc_job *job,
                               const gsc_cuda_begin_header *header, gsc_error *err)
{
    const bool has_many = gsc_cuda_has(exec, GSC_CUDA_many);
    gsc_cuda_many_parameter p; /* not cleared: often only the beginning is used */
    p.header = *header;
    memset(p.tensors, 0, sizeof *p.tensors);
    uint64_t first = 0;
    do { /* an empty list also has a call */
        const bool many = has_many && job->n - first > GSC_CUDA_TENSORS;
        const uint64_t most = many ? GSC_CUDA_MANY : GSC_CUDA_TENSORS, left = job->n - first;
        const uint32_t n = (uint32_t)(left < most ? left : most);
        p.header.first_tensor = (uint32_t)first;
        p.header.tensors = n;
        for (uint32_t i = 1; i <= n; i++)
            p.tensors[i].end = p.tensors[i - 1].end + describe(job, first + i - 1, &p.tensors[i]);
        memset(p.tensors + 1 + n, 0, (most - n) * sizeof *p.tensors);
        GSC_TRY(gsc_cuda_launch(exec, many ? GSC_CUDA_many : GSC_CUDA_begin,
                                n / GSC_CUDA_THREADS + 1, GSC_CUDA_THREADS, &p, err));
        p.tensors[0] = p.tensors[n];
        first += n;
    } while (first < job->n);
    return GSC_OK;
}

/*
 * Launches a pass over the list. Smaller blocks on more processors would hardly make a short list
 * faster: numerics.md defines the order in a lane, so a thread runs 64 rows one after the other.
 */
static gsc_status launch_chunks(const gsc_exec *exec, const gsc_job *job, const gsc_cuda_call *call,
                                const gsc_cuda_tensor *list, gsc_error *err)
{
    _Static_assert(offsetof(gsc_cuda_call, multiplier) % 32 == 0, "one access loads what follows");
    const gsc_cuda_chunks_parameter p = {call, list, (uint32_t)job->n};
    if (job->chunks == 0)
        return GSC_OK;
    return gsc_cuda_launch(exec, GSC_CUDA_chunks, (uint32_t)job->chunks, GSC_CUDA_THREADS, &p, err);
}

static gsc_status tensors(const gsc_exec *exec, const gsc_job *job, gsc_error *err)
{
    GSC_TRY(align_check(job->factor, 1, "factor", err));
    GSC_TRY(align_check(job->report, job->report_argument, "report", err));
    GSC_TRY(align_check(job->per_tensor, job->options_argument, "options.per_tensor", err));
    GSC_TRY(align_check(job->histogram, job->options_argument, "options.histogram", err));
    GSC_TRY(list_check(job, err));
    GSC_TRY(workspace_check(exec, size_for(job), err));
    gsc_cuda_workspace *workspace = exec->workspace;
    gsc_cuda_record *records = (gsc_cuda_record *)(void *)(workspace + 1);
    gsc_cuda_tensor *list = (gsc_cuda_tensor *)(void *)(records + job->n);
    const bool adds = job->operation == GSC_OPERATION_ADD;
    gsc_cuda_begin_header header = {
        .workspace = workspace,
        .factor = job->factor,
        .by_scale = job->by_scale,
        .call = {.list = list,
                 .records = records,
                 .chunks = (gsc_cuda_chunk *)(void *)(list + job->n),
                 .overflow = adds ? &workspace->overflow : NULL,
                 .bins = job->histogram ? workspace->bins : NULL,
                 .report = job->report,
                 .per_tensor = job->per_tensor,
                 .histogram = job->histogram,
                 .tensors = job->n,
                 .all_chunks = job->chunks,
                 .elements = job->elements,
                 .operation = job->clamp != 0 ? GSC_CUDA_CLAMP : GSC_CUDA_STORE,
                 .want = job->want,
                 .writes = !adds},
    };
    for (uint32_t dtype = 0; job->clamp != 0 && dtype < gsc_dtypes; dtype++)
        header.call.limits[dtype] = gsc_clamp_limit(dtype, job->clamp);
    for (uint64_t i = 0; job->histogram && i < job->n; i++)
        header.call.histogram_elements += (int64_t)sampled_elements(&job->in[i]);
    GSC_TRY(launch_begin(exec, job, &header, err));
    GSC_TRY(launch_chunks(exec, job, &workspace->call, list, err));
    if (adds)
        GSC_TRY(launch_chunks(exec, job, &workspace->add, list, err));
    if (!job->report && !job->per_tensor && !job->histogram)
        return GSC_OK;
    if (job->chunks > GSC_RUN && (job->want & GSC_WANT_NORM)) {
        const gsc_cuda_fold_parameter fold = {&workspace->call};
        const uint32_t blocks = (uint32_t)((job->chunks - 1) / GSC_CUDA_THREADS + 1);
        GSC_TRY(gsc_cuda_launch(exec, GSC_CUDA_fold, blocks, GSC_CUDA_THREADS, &fold, err));
    }
    const gsc_cuda_finish_parameter finish = {&workspace->call, policy_of(job->policy)};
    return gsc_cuda_launch(exec, GSC_CUDA_finish, 1, GSC_CUDA_THREADS, &finish, err);
}

/* ---- factors, reports and states ---- */

static gsc_status step(const gsc_exec *exec, const gsc_step *step, gsc_error *err)
{
    /* Positions of arguments in the public functions. The factor is always argument 1. */
    static const struct {
        int state, reports, out;
        const char *state_name, *reports_name;
    } arguments[] = {[GSC_STEP_MULTIPLY] = {0, 0, 3, "", ""},
                     [GSC_STEP_CLIP] = {0, 2, 4, "", "report"},
                     [GSC_STEP_MERGE] = {0, 1, 5, "", "reports"},
                     [GSC_STEP_SET_RANK] = {3, 1, 5, "state", "report"},
                     [GSC_STEP_STATE_INIT] = {2, 0, 3, "from", ""},
                     [GSC_STEP_UPDATE] = {2, 3, 4, "state", "report"},
                     [GSC_STEP_COMBINE] = {1, 0, 3, "state", ""},
                     [GSC_STEP_GUARD] = {2, 0, 3, "state", ""}};
    const int reports = arguments[step->kind].reports, state = arguments[step->kind].state;
    const bool starts = step->kind == GSC_STEP_STATE_INIT && !step->state; /* without `from` */
    GSC_TRY(align_check(step->factor, 1, "factor", err));
    GSC_TRY(align_check(step->state, state, arguments[step->kind].state_name, err));
    GSC_TRY(align_check(step->other, 2, "other", err));
    GSC_TRY(align_check(step->reports, reports, arguments[step->kind].reports_name, err));
    GSC_TRY(align_check(step->out, arguments[step->kind].out - starts, "out", err));
    gsc_cuda_step_parameter p;
    _Static_assert(offsetof(gsc_cuda_step_parameter, policy) == offsetof(gsc_step, policy),
                   "a step is passed as it is, without the policy's end");
    memcpy(&p, step, sizeof p);
    return gsc_cuda_launch(exec, GSC_CUDA_step, 1, 1, &p, err);
}

const gsc_backend gsc_cuda_backend = {.check = gsc_cuda_check,
                                      .tensors = tensors,
                                      .workspace_size = workspace_size,
                                      .step = step,
                                      .memory_create = gsc_cuda_memory_create,
                                      .memory_destroy = gsc_cuda_memory_destroy,
                                      .memory_copy = gsc_cuda_memory_copy,
                                      .wait = gsc_cuda_wait,
                                      .destroy = gsc_cuda_close};

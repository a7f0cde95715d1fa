/* SPDX-License-Identifier: MIT */
/* What is launched for a call, and with which parameters. */
#include "enqueue.h"

#include <string.h>

#include "convert.h"
#include "driver.h"

static uint64_t parts_of(const gsc_tensor *tensor)
{
    return tensor->count * gsc_reals[tensor->dtype].parts;
}

static uint64_t chunks_of(const gsc_tensor *tensor)
{
    uint64_t parts = parts_of(tensor);
    return parts / GSC_CUDA_CHUNK + (parts % GSC_CUDA_CHUNK != 0);
}

/* Of what a kernel reads or writes whole: elsewhere it would end the process's use of CUDA. */
static gsc_status align_check(const void *pointer, int argument, const char *name, gsc_error *err)
{
    if ((uintptr_t)pointer % 8 != 0)
        return gsc_fail(err, GSC_ERROR_VALUE, argument, -1, name,
                        "%s is %p: on a device it must be a multiple of 8", name, pointer);
    return GSC_OK;
}

/* The chunks of the list, which a device counts in 31 bits. */
static gsc_status count_chunks(const gsc_tensor *tensors, uint64_t n, int argument,
                               uint64_t *chunks, gsc_error *err)
{
    *chunks = 0;
    for (uint64_t i = 0; i < n; i++) {
        *chunks += chunks_of(&tensors[i]);
        if (*chunks > INT32_MAX || i >= UINT32_MAX)
            return gsc_fail(err, GSC_ERROR_COUNT, argument, (int64_t)i, "tensors.count",
                            "the list up to tensor %llu has more elements than the memory of a "
                            "device",
                            (unsigned long long)i);
    }
    return GSC_OK;
}

static uint64_t workspace_size(uint64_t n, uint64_t chunks, uint32_t want)
{
    uint64_t sums = n * sizeof(double) + chunks * sizeof(gsc_cuda_sum);
    return sizeof(gsc_cuda_workspace) + (want & GSC_WANT_NORM ? sums : 0);
}

gsc_status gsc_cuda_workspace_size(const gsc_tensor *tensors, uint64_t n, uint32_t want,
                                   uint64_t *size, gsc_error *err)
{
    uint64_t chunks;
    GSC_TRY(count_chunks(tensors, n, 1, &chunks, err));
    *size = workspace_size(n, chunks, want);
    return GSC_OK;
}

static gsc_status workspace_check(const gsc_exec *on, uint64_t size, gsc_error *err)
{
    GSC_TRY(align_check(on->workspace, 0, "on.workspace", err));
    if (!on->workspace || on->workspace_size < size)
        return gsc_fail(err, GSC_ERROR_CAPACITY, 0, -1, "on.workspace",
                        "on.workspace has %llu bytes, this call needs %llu: ask "
                        "gsc_workspace_size",
                        (unsigned long long)(on->workspace ? on->workspace_size : 0),
                        (unsigned long long)size);
    return GSC_OK;
}

/* Elements of the first block of each chunk. */
static uint64_t sampled(const gsc_tensor *tensor)
{
    uint64_t parts = parts_of(tensor), rest = parts % GSC_CUDA_CHUNK;
    uint64_t looked_at =
        parts / GSC_CUDA_CHUNK * GSC_CUDA_BLOCK + (rest < GSC_CUDA_BLOCK ? rest : GSC_CUDA_BLOCK);
    return looked_at / gsc_reals[tensor->dtype].parts;
}

static gsc_status launch(const gsc_exec *on, int kernel, uint32_t blocks, uint32_t threads,
                         const void *parameter, gsc_error *err)
{
    return gsc_cuda_launch(on->context->cuda, on->stream, kernel, blocks, threads, parameter, err);
}

/* Returns its chunks. */
static uint32_t describe(const gsc_cuda_job *job, uint64_t i, bool writes, gsc_cuda_tensor *to)
{
    const gsc_tensor *in = &job->tensors[i], *out = job->out ? &job->out[i] : in;
    to->in = in->data;
    to->out = job->out && writes ? out->data : NULL;
    to->last = (uint16_t)((parts_of(in) - 1) % GSC_CUDA_CHUNK);
    to->in_dtype = (uint8_t)(gsc_reals[in->dtype].real |
                             (gsc_reals[in->dtype].parts == 2 ? GSC_CUDA_COMPLEX : 0));
    to->out_dtype = gsc_reals[out->dtype].real;
    return (uint32_t)chunks_of(in);
}

/* The whole list, in as few launches as the driver takes. */
static gsc_status launch_chunks(const gsc_exec *on, const gsc_cuda_job *job,
                                const gsc_cuda_call *call, bool writes, gsc_error *err)
{
    const bool has_many = gsc_cuda_has(on->context->cuda, GSC_CUDA_many);
    gsc_cuda_many_parameter p; /* too long to be cleared where only its beginning is used */
    p.call = call;
    p.first_chunk = 0;
    for (uint64_t first = 0, length; first < job->n; first += length) {
        const bool many = has_many && job->n - first > GSC_CUDA_TENSORS;
        uint32_t end = 0;
        length = many ? GSC_CUDA_MANY : GSC_CUDA_TENSORS;
        memset(p.tensors, 0, length * sizeof *p.tensors);
        for (uint64_t i = 0; i < length; i++) {
            if (first + i < job->n)
                end += describe(job, first + i, writes, &p.tensors[i]);
            p.tensors[i].end = end; /* which never falls, for the search */
        }
        p.first_tensor = (uint32_t)first;
        if (end > 0)
            GSC_TRY(
                launch(on, many ? GSC_CUDA_many : GSC_CUDA_chunks, end, GSC_CUDA_THREADS, &p, err));
        p.first_chunk += end;
    }
    return GSC_OK;
}

gsc_status gsc_cuda_tensors(const gsc_exec *on, const gsc_cuda_job *job, gsc_error *err)
{
    uint64_t chunks;
    GSC_TRY(align_check(job->factor, 1, "factor", err));
    GSC_TRY(align_check(job->report, job->tensors_argument + (job->out ? 4 : 3), "report", err));
    GSC_TRY(count_chunks(job->tensors, job->n, job->tensors_argument, &chunks, err));
    GSC_TRY(workspace_check(on, workspace_size(job->n, chunks, job->want), err));
    gsc_cuda_workspace *workspace = on->workspace;
    double *tensor_sums = (double *)(void *)(workspace + 1);
    gsc_cuda_begin_parameter begin = {
        .workspace = workspace,
        .factor = job->factor,
        .by_scale = job->by_scale,
        .call = {.total = &workspace->total,
                 .report = job->report,
                 .tensor_sums = tensor_sums,
                 .chunk_sums = (gsc_cuda_sum *)(void *)(tensor_sums + job->n),
                 .tensors = job->n,
                 .chunks = chunks,
                 .limit = job->limit,
                 .op = job->op == GSC_CUDA_CLIP ? GSC_CUDA_CLIP : GSC_CUDA_STORE,
                 .want = job->want},
    };
    for (uint64_t i = 0; i < job->n; i++) {
        begin.call.elements += (int64_t)job->tensors[i].count;
        begin.call.histogram_elements += (int64_t)sampled(&job->tensors[i]);
    }
    gsc_cuda_finish_parameter finish = {.call = &workspace->call};
    GSC_TRY(launch(on, GSC_CUDA_begin, 1, GSC_CUDA_THREADS, &begin, err));
    const bool adds = job->op == GSC_CUDA_ADD;
    GSC_TRY(launch_chunks(on, job, &workspace->call, !adds, err));
    if (adds)
        GSC_TRY(launch_chunks(on, job, &workspace->add, true, err));
    return job->report ? launch(on, GSC_CUDA_finish, 1, GSC_CUDA_THREADS, &finish, err) : GSC_OK;
}

gsc_status gsc_cuda_step(const gsc_exec *on, enum gsc_cuda_step step, const gsc_policy *policy,
                         const void *a, const void *b, double number, void *out, gsc_error *err)
{
    /* Where `a` stands in the public function; `b` is the next. */
    static const struct {
        int first, out;
        const char *a, *b;
    } names[] = {[GSC_CUDA_STATE_INIT] = {1, 2, "", ""},
                 [GSC_CUDA_UPDATE] = {2, 4, "state", "report"},
                 [GSC_CUDA_SET_SCALE] = {2, 4, "state", "scale"},
                 [GSC_CUDA_FACTOR_MULTIPLY] = {1, 3, "factor", ""},
                 [GSC_CUDA_MERGE] = {1, 3, "a", "b"},
                 [GSC_CUDA_CLIP_FACTOR] = {1, 4, "report", "factor"}};
    GSC_TRY(align_check(a, names[step].first, names[step].a, err));
    GSC_TRY(align_check(b, names[step].first + 1, names[step].b, err));
    GSC_TRY(align_check(out, names[step].out, "out", err));
    gsc_cuda_step_parameter p = {.step = step, .a = a, .b = b, .number = number, .out = out};
    if (policy) {
        p.policy = *policy;
        if (policy->target_amax != 0)
            return gsc_fail(err, GSC_ERROR_UNAVAILABLE, 1, -1, "policy.target_amax",
                            "the policy predicts, which a device does not: log2 and exp2 of host "
                            "and device differ; update on the host");
    }
    return launch(on, GSC_CUDA_step, 1, 1, &p, err);
}

/* SPDX-License-Identifier: MIT */
/* The calls on tensors: check the arguments, then call a backend. */
#include <string.h>

#include "backend.h"

/* ---- the list ---- */

static bool tensor_is_valid(const gsc_tensor *t)
{
    const uint64_t kind = t->dtype | (uint64_t)t->flags << 32;
    return gsc_is_dtype(kind) && GSC_RESERVED_IS_ZERO(t) && t->count <= UINTPTR_MAX / 16 &&
           t->count * gsc_reals[kind].size <= UINTPTR_MAX - (uintptr_t)t->data &&
           (t->data || t->count == 0);
}

/* An element has at most 16 bytes, so a run within these limits has at most 2^62. */
enum { MAX_ORDINARY_ELEMENTS = 1 << 30, MAX_ORDINARY_TENSORS = 1 << 28 };

/* Fails because of the first wrong field of a tensor. */
static gsc_status tensor_fail(const gsc_tensor *t, int argument, uint64_t index, bool is_out,
                              gsc_error *err)
{
#define SUBJECT(field) (is_out ? "out." field : "tensors." field)
    if (!gsc_is_dtype(t->dtype))
        return gsc_fail_number(err, GSC_ERROR_DTYPE, argument, (int64_t)index, SUBJECT("dtype"),
                               t->dtype, GSC_F32, GSC_COMPLEX128, "a dtype");
    if (t->flags != 0)
        return gsc_fail_number(err, GSC_ERROR_VALUE, argument, (int64_t)index, SUBJECT("flags"),
                               t->flags, 0, 0, "0");
    if (!GSC_RESERVED_IS_ZERO(t))
        return gsc_fail_reserved(err, GSC_ERROR_VALUE, argument, (int64_t)index,
                                 SUBJECT("reserved"));
    if (!t->data && t->count > 0)
        return gsc_fail(err, GSC_ERROR_NULL, argument, (int64_t)index, SUBJECT("data"),
                        "is NULL, but there are %llu elements", (unsigned long long)t->count);
    return gsc_with_numbers(
        gsc_fail(err, GSC_ERROR_COUNT, argument, (int64_t)index, SUBJECT("count"),
                 "is %llu, more than memory: is it a byte count?", (unsigned long long)t->count),
        err, (double)t->count, NAN, NAN);
#undef SUBJECT
}

gsc_status gsc_tensor_check(const gsc_tensor *t, int argument, uint64_t index, bool is_out,
                            gsc_error *err)
{
    return tensor_is_valid(t) ? GSC_OK : tensor_fail(t, argument, index, is_out, err);
}

static gsc_status pair_check(const gsc_tensor *in, const gsc_tensor *out, bool allows_in_place,
                             int argument, uint64_t index, gsc_error *err)
{
    if (in->count != out->count) {
        return gsc_with_numbers(
            gsc_fail(err, GSC_ERROR_COUNT, argument, (int64_t)index, "out.count",
                     "is %llu, but its input has %llu elements: make them equal",
                     (unsigned long long)out->count, (unsigned long long)in->count),
            err, (double)out->count, (double)in->count, (double)in->count);
    }
    if (gsc_reals[in->dtype].parts != gsc_reals[out->dtype].parts)
        return gsc_fail(err, GSC_ERROR_DTYPE, argument, (int64_t)index, "out.dtype",
                        "is %s, but its input is %s: make both complex, or neither",
                        gsc_reals[out->dtype].name, gsc_reals[in->dtype].name);
    const uint64_t in_size = gsc_reals[in->dtype].size, out_size = gsc_reals[out->dtype].size;
    if (in->count == 0 || (allows_in_place && in->data == out->data && in_size == out_size))
        return GSC_OK;
    uintptr_t from = (uintptr_t)in->data, to = (uintptr_t)out->data;
    if (from < to + out->count * out_size && to < from + in->count * in_size)
        return gsc_fail(err, GSC_ERROR_OVERLAP, argument, (int64_t)index, "out.data",
                        "overlaps its input: %s",
                        allows_in_place ? "an in-place call needs the same address and element size"
                                        : "sums must be in other memory");
    return GSC_OK;
}

/*
 * Checks the leading tensors with the dtype of the first, addresses in the lower half, and 1 to
 * 2^30 elements; adds their totals, and returns how many. Most lists are one such run.
 */
static uint64_t check_ordinary_tensors(const gsc_tensor *t, uint64_t n, uint64_t *bytes,
                                       uint64_t *chunks, uint64_t *elements)
{
    const uint32_t dtype = t->dtype;
    if (!gsc_is_dtype(dtype) || *bytes > INT64_MAX / 2)
        return 0;
    const uint64_t parts = gsc_reals[dtype].parts;
    uint64_t i = 0, chunk_count = 0, element_count = 0;
    for (; i < n && i < MAX_ORDINARY_TENSORS; i++) {
        if (t[i].dtype != dtype || (t[i].flags | t[i].reserved[0] | t[i].reserved[1]) != 0 ||
            t[i].count - 1 >= MAX_ORDINARY_ELEMENTS || (uintptr_t)t[i].data - 1 >= UINTPTR_MAX / 2)
            break;
        chunk_count += (t[i].count * parts + GSC_CHUNK - 1) / GSC_CHUNK;
        element_count += t[i].count;
    }
    *chunks += chunk_count;
    *bytes += element_count * gsc_reals[dtype].size;
    *elements += element_count;
    return i;
}

/* Checks the whole list and sets the job's totals. job->out is NULL for a measurement, and can be
 * job->in. */
static gsc_status list_check(gsc_job *job, gsc_error *err)
{
    const bool allows_in_place = job->operation != GSC_OPERATION_ADD;
    const int argument = job->tensors_argument;
    if (job->n > 0 && !job->in)
        return gsc_fail_null(err, argument, "tensors");
    if (job->n > 0 && !job->out && job->operation != GSC_OPERATION_MEASURE)
        return gsc_fail_null(err, argument + 1, "out");
    const gsc_tensor *in = job->in, *out = job->out == job->in && allows_in_place ? NULL : job->out;
    uint64_t chunks = 0, bytes = 0, elements = 0;
    bool has_empty = false;
    for (uint64_t i = 0; i < job->n; i++) {
        if (!out) {
            i += check_ordinary_tensors(&in[i], job->n - i, &bytes, &chunks, &elements);
            if (i == job->n)
                break;
        }
        GSC_TRY(gsc_tensor_check(&in[i], argument, i, false, err));
        chunks += gsc_chunks_of(&in[i]);
        elements += in[i].count;
        has_empty |= in[i].count == 0;
        const uint64_t size = in[i].count * gsc_reals[in[i].dtype].size;
        if (size > (uint64_t)INT64_MAX - bytes) {
            return gsc_with_numbers(
                gsc_fail(err, GSC_ERROR_COUNT, argument, (int64_t)i, "tensors.count",
                         "is %llu: the list up to here has more bytes than memory",
                         (unsigned long long)in[i].count),
                err, (double)in[i].count, NAN, NAN);
        }
        bytes += size;
        if (!out)
            continue;
        GSC_TRY(gsc_tensor_check(&out[i], argument + 1, i, true, err));
        GSC_TRY(pair_check(&in[i], &out[i], allows_in_place, argument + 1, i, err));
    }
    job->chunks = chunks;
    job->bytes = bytes;
    job->elements = (int64_t)elements;
    job->has_empty = has_empty;
    return GSC_OK;
}

/* ---- options ---- */

/* Checks the loss: real numbers. Not inlined: its error would stay on the stack of the call. */
static GSC_NOINLINE gsc_status loss_check(const gsc_tensor *loss, int argument, gsc_error *err)
{
    gsc_error why;
    if (!tensor_is_valid(loss)) {
        const gsc_status status = tensor_fail(loss, argument, 0, false, &why);
        return gsc_fail(err, status, argument, -1, "options.loss", "is not usable: its %s %s",
                        why.field, why.message + why.subject_length);
    }
    if (gsc_reals[loss->dtype].parts != 1)
        return gsc_fail(err, GSC_ERROR_DTYPE, argument, -1, "options.loss",
                        "is %s: a loss is real, so give its real part or its magnitude",
                        gsc_reals[loss->dtype].name);
    return GSC_OK;
}

/* Reads and checks the options. Copies options->policy to `policy`. */
static gsc_status options_read(gsc_job *job, const gsc_tensor_options *options, gsc_policy *policy,
                               gsc_error *err)
{
    const int argument = job->options_argument;
    gsc_tensor_options full;
    if (!options)
        return GSC_OK;
    GSC_TRY(gsc_struct_read(options, &full, GSC_TENSOR_OPTIONS_SIZE, argument, "options", err));
    if (full.want & ~GSC_WANT_ALL)
        return gsc_fail_bits(err, GSC_ERROR_VALUE, argument, "options.want", full.want,
                             GSC_WANT_ALL);
    if (full.clamp != 0 && !gsc_positive(full.clamp))
        return gsc_fail_number(err, GSC_ERROR_VALUE, argument, -1, "options.clamp", full.clamp, 0,
                               NAN, "finite and above 0, or 0");
    job->want = full.want;
    job->clamp = full.clamp;
    job->per_tensor = full.per_tensor;
    job->histogram = full.histogram;
    if (full.loss) {
        GSC_TRY(loss_check(full.loss, argument, err));
        job->loss = full.loss->count > 0 ? full.loss : NULL;
    }
    if (full.policy) {
        GSC_TRY(gsc_policy_read(full.policy, policy, argument, err));
        job->policy = policy;
        job->want |= gsc_policy_wants(policy);
    }
    return GSC_OK;
}

/* Refuses a clamp that cannot apply, or is below an output dtype's smallest positive value. Not
 * inlined: its message would stay on the stack of the call. */
static GSC_NOINLINE gsc_status clamp_check(const gsc_job *job, gsc_error *err)
{
    if (job->operation != GSC_OPERATION_STORE)
        return gsc_fail_number(err, GSC_ERROR_VALUE, job->options_argument, -1, "options.clamp",
                               job->clamp, 0, 0, "0 here: only scale and unscale can clamp");
    for (uint64_t i = 0; i < job->n; i++) {
        const struct gsc_real *out = &gsc_reals[job->out[i].dtype];
        if (gsc_clamp_limit(out->real, job->clamp) > 0)
            continue;
        return gsc_with_numbers(
            gsc_fail(err, GSC_ERROR_VALUE, job->options_argument, -1, "options.clamp",
                     "is %s: tensor %llu is %s, which has no value so small: all results "
                     "would be 0",
                     GSC_EXACT(job->clamp), (unsigned long long)i, out->name),
            err, job->clamp, NAN, NAN);
    }
    return GSC_OK;
}

/* ---- the public functions ---- */

/* Makes a job. Sets each field once: clearing it first takes as long as unscaling a small tensor.
 */
static gsc_job job_of(enum gsc_operation operation, bool by_scale, const gsc_factor *factor,
                      const gsc_tensor *in, const gsc_tensor *out, uint64_t n, gsc_report *report)
{
    return (gsc_job){.operation = operation,
                     .by_scale = by_scale,
                     .factor = factor,
                     .state = NULL,
                     .in = in,
                     .out = out,
                     .n = n,
                     .chunks = 0,
                     .bytes = 0,
                     .elements = 0,
                     .has_empty = false,
                     .want = 0,
                     .clamp = 0,
                     .policy = NULL,
                     .loss = NULL,
                     .report = report,
                     .per_tensor = NULL,
                     .histogram = NULL,
                     .tensors_argument = 2,
                     .options_argument = operation == GSC_OPERATION_MEASURE ? 4 : 5,
                     .report_argument = operation == GSC_OPERATION_MEASURE ? 5 : 6};
}

/* Reads the options, checks the list, and calls the backend. */
static gsc_status run_job(const gsc_exec *exec, gsc_job *job, const gsc_tensor_options *options,
                          gsc_error *err)
{
    gsc_target on;
    gsc_policy policy;
    GSC_TRY(options_read(job, options, &policy, err));
    if (!job->report && !job->per_tensor) /* no report to write */
        job->want = 0;
    GSC_TRY(gsc_exec_read(exec, &gsc_cpu_backend, &on, err));
    GSC_TRY(list_check(job, err));
    if (job->clamp != 0)
        GSC_TRY(clamp_check(job, err));
    return on.backend->tensors(&on.exec, job, err);
}

gsc_status gsc_measure(const gsc_exec *exec, const gsc_factor *factor, const gsc_tensor *tensors,
                       uint64_t n, const gsc_tensor_options *options, gsc_report *report,
                       gsc_error *err)
{
    gsc_begin(err);
    GSC_REQUIRE(report, 5);
    gsc_job job = job_of(GSC_OPERATION_MEASURE, false, factor, tensors, NULL, n, report);
    return run_job(exec, &job, options, err);
}

gsc_status gsc_unscale(const gsc_exec *exec, const gsc_factor *factor, const gsc_tensor *tensors,
                       const gsc_tensor *out, uint64_t n, const gsc_tensor_options *options,
                       gsc_report *report, gsc_error *err)
{
    gsc_begin(err);
    gsc_job job = job_of(GSC_OPERATION_STORE, false, factor, tensors, out, n, report);
    return run_job(exec, &job, options, err);
}

gsc_status gsc_scale(const gsc_exec *exec, const gsc_factor *factor, const gsc_tensor *tensors,
                     const gsc_tensor *out, uint64_t n, const gsc_tensor_options *options,
                     gsc_report *report, gsc_error *err)
{
    gsc_begin(err);
    gsc_job job = job_of(GSC_OPERATION_STORE, true, factor, tensors, out, n, report);
    return run_job(exec, &job, options, err);
}

gsc_status gsc_unscale_accumulate(const gsc_exec *exec, const gsc_factor *factor,
                                  const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                                  const gsc_tensor_options *options, gsc_report *report,
                                  gsc_error *err)
{
    gsc_begin(err);
    GSC_REQUIRE(report, 6);
    gsc_job job = job_of(GSC_OPERATION_ADD, false, factor, tensors, out, n, report);
    return run_job(exec, &job, options, err);
}

gsc_status gsc_copy_unless_skipped(const gsc_exec *exec, const gsc_state *state,
                                   const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                                   gsc_error *err)
{
    gsc_begin(err);
    GSC_REQUIRE(state, 1);
    gsc_job job = job_of(GSC_OPERATION_STORE, false, NULL, tensors, out, n, NULL);
    job.state = state;
    return run_job(exec, &job, NULL, err);
}

gsc_status gsc_workspace_size(const gsc_exec *exec, const gsc_tensor *tensors, uint64_t n,
                              const gsc_tensor_options *options, uint64_t *size, gsc_error *err)
{
    gsc_begin(err);
    gsc_target on;
    gsc_policy policy;
    gsc_job job = job_of(GSC_OPERATION_MEASURE, false, NULL, tensors, NULL, n, NULL);
    job.tensors_argument = 1;
    job.options_argument = 3;
    GSC_REQUIRE(size, 4);
    GSC_TRY(options_read(&job, options, &policy, err));
    GSC_TRY(gsc_exec_read(exec, &gsc_cpu_backend, &on, err));
    GSC_TRY(list_check(&job, err));
    return on.backend->workspace_size(&on.exec, &job, size, err);
}

/* SPDX-License-Identifier: MIT */
/*
 * The library's calls as custom calls of XLA, on host memory and on CUDA memory. Structs travel as
 * uint32, as JAX has no wider integers by default: 8 are a factor, 96 a state, which begins with
 * its factor, 64 a report, 34 a histogram. The attribute `call` is one of enum call; each in [] is
 * there if its bit of `with` is set:
 *
 *     call            operands                           results
 *     check           gradients, [factor, state, loss]   report, [each], [histogram], [state]
 *     unscale, scale  gradients, [factor, state, loss]   gradients, and as check
 *     accumulate      gradients, sums, [as check]        sums, and as check
 *     merge           reports                            report
 *     update          state, report                      state
 *     clip            factor, report                     factor
 *     multiply        factor                             factor
 *     set_rank        report, state                      report, of rank 0
 *     combine         state, state                       state
 *
 * `count` gradients. Without a factor it is the state's factor, or 1. A state is updated by the
 * report. The loss is the loss before it was scaled. Results may be their operands. On CUDA, calls
 * on gradients have a workspace as their last result. Other attributes: policy (its bytes), want,
 * max_norm, clip_value, by, kind; absent is 0.
 */
#if !defined(_WIN32)
#include <dlfcn.h>
#endif
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xla.h"

enum call { CHECK, UNSCALE, SCALE, ACCUMULATE, MERGE, UPDATE, CLIP, MULTIPLY, SET_RANK, COMBINE };
enum with { WITH_FACTOR = 1, WITH_STATE = 2, WITH_EACH = 4, WITH_HISTOGRAM = 8, WITH_LOSS = 16 };
enum { WORD = sizeof(uint32_t), HEAD = 256 /* of a workspace: the factor that clips */ };

/* A call under way. */
struct run {
    const struct xla_frame *frame;
    bool cuda;
    gsc_exec exec;
    gsc_policy *policy; /* NULL: none */
    gsc_policy policy_copy;
    int64_t operands, results; /* taken so far */
    const char *wrong;         /* what the caller of the custom call did wrong; NULL: nothing */
    gsc_error err;
};

/* ---- attributes ---- */

static const void *attribute(const struct run *run, const char *name, int32_t type)
{
    const struct xla_attributes *all = &run->frame->attributes;
    for (int64_t i = 0; i < all->size; i++)
        if (all->types[i] == type && all->names[i]->size == strlen(name) &&
            memcmp(all->names[i]->text, name, strlen(name)) == 0)
            return all->items[i];
    return NULL;
}

static int64_t integer(const struct run *run, const char *name)
{
    const struct xla_scalar *scalar = attribute(run, name, XLA_SCALAR);
    int32_t narrow = 0;
    int64_t wide = 0;
    if (scalar && scalar->dtype == XLA_S64)
        memcpy(&wide, scalar->value, sizeof wide);
    else if (scalar && scalar->dtype == XLA_S32)
        memcpy(&narrow, scalar->value, sizeof narrow);
    return wide + narrow;
}

static double real(const struct run *run, const char *name)
{
    const struct xla_scalar *scalar = attribute(run, name, XLA_SCALAR);
    double value = 0;
    if (scalar && scalar->dtype == XLA_F64)
        memcpy(&value, scalar->value, sizeof value);
    return value;
}

static void take_policy(struct run *run)
{
    const struct xla_array *bytes = attribute(run, "policy", XLA_ARRAY);
    if (!bytes)
        return;
    if (bytes->dtype != XLA_U8 || bytes->size != sizeof run->policy_copy) {
        run->wrong = "the policy has another size than in this version";
        return;
    }
    memcpy(&run->policy_copy, bytes->data, sizeof run->policy_copy);
    run->policy = &run->policy_copy;
}

/* ---- buffers ---- */

static const struct xla_buffer *take(struct run *run, bool operand)
{
    static const struct xla_buffer none;
    const struct xla_list *list = operand ? &run->frame->operands : &run->frame->results;
    int64_t *taken = operand ? &run->operands : &run->results;
    if (*taken < list->size && list->types[*taken] == XLA_BUFFER)
        return list->items[(*taken)++];
    run->wrong = operand ? "there are too few operands" : "there are too few results";
    return &none;
}

static uint64_t elements(const struct xla_buffer *buffer)
{
    uint64_t count = 1;
    for (int64_t i = 0; i < buffer->rank; i++)
        count *= (uint64_t)buffer->dims[i];
    return count;
}

/* A struct, or `n` of them; a factor may be the beginning of a state. */
static void *take_struct(struct run *run, bool operand, size_t size, uint64_t n)
{
    const struct xla_buffer *buffer = take(run, operand);
    const uint64_t words = elements(buffer);
    const bool begins = size == sizeof(gsc_factor) && words == sizeof(gsc_state) / WORD;
    if (run->wrong)
        return NULL;
    if (buffer->dtype != XLA_U32 || (words != n * size / WORD && !(operand && begins)))
        run->wrong = "a struct is not uint32 of its size";
    else if ((uintptr_t)buffer->data % 8 != 0)
        run->wrong = "a struct is not aligned to 8 bytes";
    return buffer->data;
}

static uint32_t dtype_of(int32_t xla)
{
    switch (xla) {
    case XLA_F16:
        return GSC_F16;
    case XLA_BF16:
        return GSC_BF16;
    case XLA_F32:
        return GSC_F32;
    case XLA_F64:
        return GSC_F64;
    case XLA_F8E5M2:
        return GSC_F8_E5M2;
    case XLA_F8E4M3FN:
        return GSC_F8_E4M3FN;
    case XLA_C64:
        return GSC_COMPLEX64;
    case XLA_C128:
        return GSC_COMPLEX128;
    }
    return 0; /* which the library refuses */
}

static void take_tensors(struct run *run, bool operand, gsc_tensor *list, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const struct xla_buffer *buffer = take(run, operand);
        list[i] = (gsc_tensor){
            .data = buffer->data, .count = elements(buffer), .dtype = dtype_of(buffer->dtype)};
    }
}

/* ---- XLA's threads ---- */

/* Memory that a call shares with the threads that help it; the last to leave frees it. */
struct batch {
    gsc_task *task;
    void *data;
    uint64_t count;
    _Atomic uint64_t next, users;
    uint64_t done; /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t finished;
};

static void work(struct batch *batch)
{
    uint64_t done = 0;
    for (uint64_t i; (i = batch->next++) < batch->count; done++)
        batch->task(batch->data, i);
    pthread_mutex_lock(&batch->mutex);
    batch->done += done;
    if (done && batch->done == batch->count)
        pthread_cond_signal(&batch->finished);
    pthread_mutex_unlock(&batch->mutex);
}

static void leave(struct batch *batch)
{
    if (--batch->users != 0)
        return;
    pthread_cond_destroy(&batch->finished);
    pthread_mutex_destroy(&batch->mutex);
    free(batch);
}

static void help(void *data)
{
    work(data);
    leave(data);
}

static void discard(const struct xla_frame *frame, void *error)
{
    struct xla_error_destroy args = {sizeof args, NULL, error};
    frame->api->error_destroy(&args);
}

/* How many threads XLA has for this call; 1 where it does not say. */
static int64_t threads_of(const struct xla_frame *frame)
{
    int64_t threads = 1;
    struct xla_threads args = {sizeof args, NULL, frame->context, &threads};
    if (frame->api->struct_size < offsetof(struct xla_api, threads) + sizeof frame->api->threads)
        return 1;
    void *error = frame->api->threads(&args);
    if (error)
        discard(frame, error);
    return error || threads < 1 ? 1 : threads < 1024 ? threads : 1024;
}

/*
 * The caller also works, so the call ends however busy XLA's threads are: only those are waited for
 * that have begun a task.
 */
static int32_t parallel_for(void *pool, gsc_task *task, void *data, uint64_t count)
{
    const struct xla_frame *frame = pool;
    const uint64_t threads = (uint64_t)threads_of(frame);
    uint64_t helpers = (count < threads ? count : threads) - 1;
    struct batch *batch = calloc(1, sizeof *batch);
    if (!batch) {
        for (uint64_t i = 0; i < count; i++)
            task(data, i);
        return 0;
    }
    batch->task = task;
    batch->data = data;
    batch->count = count;
    batch->users = helpers + 1;
    pthread_mutex_init(&batch->mutex, NULL);
    pthread_cond_init(&batch->finished, NULL);
    for (; helpers > 0; helpers--) {
        struct xla_schedule args = {sizeof args, NULL, frame->context, help, batch};
        void *error = frame->api->schedule(&args);
        if (error) {
            discard(frame, error);
            leave(batch);
        }
    }
    work(batch);
    pthread_mutex_lock(&batch->mutex);
    while (batch->done < batch->count)
        pthread_cond_wait(&batch->finished, &batch->mutex);
    pthread_mutex_unlock(&batch->mutex);
    leave(batch);
    return 0;
}

/* ---- CUDA ---- */

enum { DEVICES = 64, POINTER_DEVICE_ORDINAL = 9 /* an attribute of a pointer */ };
static _Atomic(gsc_context *) contexts[DEVICES];

/* The context of a device, made once; NULL with what was wrong in *err. */
static gsc_context *context_of(int32_t device, gsc_error *err)
{
    gsc_context *none = NULL, *context;
    gsc_cuda_options options = GSC_CUDA_OPTIONS_INIT;
    options.device = device < DEVICES ? device : INT32_MAX;
    if (device < 0 || device >= DEVICES) { /* the library says what there is */
        gsc_context_create_cuda(&options, &context, err);
        return NULL;
    }
    context = contexts[device];
    if (context || gsc_context_create_cuda(&options, &context, err) != GSC_OK)
        return context;
    if (atomic_compare_exchange_strong(&contexts[device], &none, context))
        return context;
    gsc_context_destroy(context); /* another thread was faster */
    return none;
}

gsc_status gsc_xla_workspace(int32_t device, const gsc_tensor *tensors, uint64_t n, uint64_t *size,
                             gsc_error *err)
{
    gsc_exec exec = GSC_EXEC_INIT;
    exec.context = context_of(device, err);
    if (!exec.context)
        return err->status;
    gsc_status status = gsc_workspace_size(&exec, tensors, n, NULL, size, err);
    *size += HEAD;
    return status;
}

/* Returns the CUDA device of a memory, or -1: older versions of XLA do not pass the device. */
static int32_t device_of(const void *memory)
{
    int32_t ordinal = -1;
#if defined(_WIN32) /* where XLA has no CUDA */
    (void)memory;
#else
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = driver ? dlsym(driver, "cuPointerGetAttribute") : NULL;
    int32_t (*attribute_of)(void *, int32_t, uint64_t);
    memcpy(&attribute_of, &symbol, sizeof symbol);
    if (!symbol || attribute_of(&ordinal, POINTER_DEVICE_ORDINAL, (uintptr_t)memory) != 0)
        ordinal = -1;
    if (driver)
        dlclose(driver);
#endif
    return ordinal;
}

/* Where the call runs: on XLA's stream, on the device of the last result, which is never empty. */
static void *enqueue_on(struct run *run)
{
    const struct xla_list *results = &run->frame->results;
    struct xla_stream_get args = {sizeof args, NULL, run->frame->context, NULL};
    void *error = run->frame->api->stream_get(&args);
    if (error)
        return error;
    if (results->size == 0) {
        run->wrong = "there are too few results";
        return NULL;
    }
    run->exec.stream = args.stream;
    run->exec.context = context_of(
        device_of(((const struct xla_buffer *)results->items[results->size - 1])->data), &run->err);
    return NULL;
}

/* The workspace, and at its beginning room for a factor. */
static gsc_factor *take_workspace(struct run *run)
{
    const struct xla_buffer *buffer = take(run, false);
    const uint64_t size = elements(buffer);
    if (buffer->dtype != XLA_U8 || size < HEAD) {
        run->wrong = "the workspace is not uint8, or too small";
        return NULL;
    }
    run->exec.workspace = (char *)buffer->data + HEAD;
    run->exec.workspace_size = size - HEAD;
    return buffer->data;
}

/* ---- the calls ---- */

static gsc_status copy_tensors(const struct run *run, gsc_tensor *to, const gsc_tensor *from,
                               uint64_t n, gsc_error *err)
{
    gsc_status status = GSC_OK;
    for (uint64_t i = 0; i < n && status == GSC_OK; i++)
        if (to[i].data != from[i].data)
            status = gsc_memory_copy(&run->exec, to[i].data, from[i].data,
                                     from[i].count * gsc_dtype_size(from[i].dtype), err);
    return status;
}

/* The arguments of one call on tensors. */
struct tensors {
    uint64_t n;
    gsc_tensor *in, *sums, *out, loss;
    const gsc_factor *factor;
    const gsc_state *state;
    gsc_report *report;
    gsc_state *updated;
    gsc_factor *clipped; /* room for it */
    gsc_tensor_options options;
};

static gsc_status on_tensors(struct run *run, int64_t call, const struct tensors *t)
{
    gsc_error *err = &run->err;
    const double max_norm = real(run, "max_norm");
    gsc_status status;
    if (max_norm != 0 && call == UNSCALE) {
        gsc_tensor_options measure = t->options, change = GSC_TENSOR_OPTIONS_INIT;
        measure.want |= GSC_WANT_NORM;
        measure.clamp = 0;
        change.clamp = t->options.clamp;
        status = gsc_measure(&run->exec, t->factor, t->in, t->n, &measure, t->report, err);
        if (status == GSC_OK)
            status = gsc_factor_clip_grad_norm(&run->exec, t->factor, t->report, max_norm,
                                               t->clipped, err);
        if (status == GSC_OK)
            status = gsc_unscale(&run->exec, t->clipped, t->in, t->out, t->n, &change, NULL, err);
    } else if (call == CHECK) {
        status = gsc_measure(&run->exec, t->factor, t->in, t->n, &t->options, t->report, err);
    } else if (call == UNSCALE) {
        status =
            gsc_unscale(&run->exec, t->factor, t->in, t->out, t->n, &t->options, t->report, err);
    } else if (call == SCALE) {
        status = gsc_scale(&run->exec, t->factor, t->in, t->out, t->n, &t->options, t->report, err);
    } else {
        status = copy_tensors(run, t->out, t->sums, t->n, err);
        if (status == GSC_OK)
            status = gsc_unscale_accumulate(&run->exec, t->factor, t->in, t->out, t->n, &t->options,
                                            t->report, err);
    }
    if (status == GSC_OK && t->updated)
        status = gsc_state_update(&run->exec, run->policy, t->state, t->report, t->updated, err);
    return status;
}

/* In XLA's threads, if there are some; the bits are the same, and lists too short for them. */
static gsc_status on_host_tensors(struct run *run, int64_t call, const struct tensors *t)
{
    const int64_t threads = threads_of(run->frame);
    gsc_status status;
    if (threads > 1) {
        gsc_cpu_options options = GSC_CPU_OPTIONS_INIT;
        options.threads = (uint32_t)threads;
        options.parallel_for = parallel_for;
        options.pool = (void *)run->frame;
        status = gsc_context_create_cpu(&options, &run->exec.context, &run->err);
        if (status != GSC_OK)
            return status;
    }
    status = on_tensors(run, call, t);
    if (threads > 1)
        gsc_context_destroy(run->exec.context);
    return status;
}

static gsc_status run_tensors(struct run *run, int64_t call)
{
    const int64_t with = integer(run, "with"), count = integer(run, "count");
    struct tensors t = {.options = GSC_TENSOR_OPTIONS_INIT};
    gsc_factor clipped;
    gsc_status status = GSC_OK;
    if (count < 0 || count > run->frame->operands.size) {
        run->wrong = "there are too few operands";
        return GSC_OK;
    }
    t.n = (uint64_t)count;
    t.in = malloc((3 * t.n + 1) * sizeof *t.in);
    if (!t.in) {
        snprintf(run->err.message, sizeof run->err.message, "out of memory");
        return GSC_ERROR_MEMORY;
    }
    t.sums = t.in + t.n;
    t.out = t.sums + t.n;
    t.clipped = &clipped;
    take_tensors(run, true, t.in, t.n);
    if (call == ACCUMULATE)
        take_tensors(run, true, t.sums, t.n);
    if (with & WITH_FACTOR)
        t.factor = take_struct(run, true, sizeof *t.factor, 1);
    if (with & WITH_STATE)
        t.state = take_struct(run, true, sizeof *t.state, 1);
    if (!t.factor && t.state)
        t.factor = &t.state->factor;
    if (with & WITH_LOSS) {
        take_tensors(run, true, &t.loss, 1);
        t.options.loss = &t.loss;
    }
    if (call != CHECK)
        take_tensors(run, false, t.out, t.n);
    t.report = take_struct(run, false, sizeof *t.report, 1);
    if (with & WITH_EACH)
        t.options.per_tensor = take_struct(run, false, sizeof *t.options.per_tensor, t.n);
    if (with & WITH_HISTOGRAM)
        t.options.histogram = take_struct(run, false, sizeof(int64_t), GSC_HISTOGRAM_LENGTH);
    if (with & WITH_STATE)
        t.updated = take_struct(run, false, sizeof *t.updated, 1);
    if (run->cuda)
        t.clipped = take_workspace(run);
    for (uint64_t i = 0; i < t.n && call == ACCUMULATE; i++)
        if (t.sums[i].count != t.out[i].count || t.sums[i].dtype != t.out[i].dtype)
            run->wrong = "sums and results differ";
    t.options.want = (uint32_t)integer(run, "want");
    t.options.policy = run->policy;
    t.options.clamp = real(run, "clip_value");
    if (!run->wrong)
        status = run->cuda ? on_tensors(run, call, &t) : on_host_tensors(run, call, &t);
    free(t.in);
    return status;
}

static gsc_status run_structs(struct run *run, int64_t call)
{
    const gsc_state *state = NULL, *other = NULL;
    const gsc_factor *factor = NULL;
    const gsc_report *report = NULL;
    gsc_status status;
    uint64_t n = 1;
    if (call == UPDATE || call == COMBINE)
        state = take_struct(run, true, sizeof *state, 1);
    else if (call == CLIP || call == MULTIPLY)
        factor = take_struct(run, true, sizeof *factor, 1);
    if (call == MERGE && run->frame->operands.size > 0)
        n = elements(run->frame->operands.items[0]) * WORD / sizeof *report;
    if (call == COMBINE)
        other = take_struct(run, true, sizeof *other, 1);
    else if (call != MULTIPLY)
        report = take_struct(run, true, sizeof *report, n);
    if (call == SET_RANK)
        state = take_struct(run, true, sizeof *state, 1);
    void *out = take_struct(run, false,
                            call == UPDATE || call == COMBINE   ? sizeof *state
                            : call == MERGE || call == SET_RANK ? sizeof *report
                                                                : sizeof *factor,
                            1);
    if (run->wrong)
        return GSC_OK;
    switch (call) {
    case MERGE:
        return gsc_report_merge(&run->exec, report, n, (uint32_t)integer(run, "kind"), run->policy,
                                out, &run->err);
    case UPDATE:
        return gsc_state_update(&run->exec, run->policy, state, report, out, &run->err);
    case SET_RANK: /* the report tells of a failure, as on a device: other ranks wait for it */
        status = gsc_report_set_rank(&run->exec, report, run->policy, state, 0, out, &run->err);
        return status == GSC_ERROR_REPORT || status == GSC_ERROR_STATE ||
                       status == GSC_ERROR_VERSION
                   ? GSC_OK
                   : status;
    case COMBINE:
        return gsc_state_combine_decisions(&run->exec, state, other, out, &run->err);
    case CLIP:
        return gsc_factor_clip_grad_norm(&run->exec, factor, report, real(run, "max_norm"), out,
                                         &run->err);
    default:
        return gsc_factor_multiply(&run->exec, factor, real(run, "by"), out, &run->err);
    }
}

/* ---- what XLA calls ---- */

static void *error_of(const struct xla_frame *frame, int32_t code, const char *text)
{
    char message[sizeof((gsc_error *)0)->message + 64];
    struct xla_error_create args = {sizeof args, NULL, message, code};
    snprintf(message, sizeof message, "gradscaler: %s", text);
    return frame->api->error_create(&args);
}

/*
 * Before anything else: XLA asks in a frame that has the stage of a call, and before jaxlib 0.8 no
 * api. What newer versions have behind the traits is of handlers with state, and stays as it is.
 */
static bool was_asked(const struct xla_frame *frame)
{
    struct xla_extension *extension = frame->extension;
    while (extension && extension->type != XLA_METADATA)
        extension = extension->next;
    if (!extension)
        return false;
    struct xla_metadata *metadata = ((struct xla_metadata_extension *)extension)->metadata;
    metadata->version.struct_size = sizeof metadata->version;
    metadata->version.extension = NULL;
    metadata->version.major = XLA_MAJOR;
    metadata->version.minor = XLA_MINOR;
    metadata->traits = XLA_GRAPHS;
    return true;
}

static void *run(struct xla_frame *frame, bool cuda)
{
    struct run run = {.frame = frame, .cuda = cuda, .exec = GSC_EXEC_INIT};
    gsc_status status;
    if (was_asked(frame))
        return NULL;
    if (frame->stage != XLA_EXECUTE)
        return NULL;
    if (cuda) {
        void *error = enqueue_on(&run);
        if (error)
            return error;
        if (!run.wrong && !run.exec.context)
            return error_of(frame, XLA_INTERNAL, run.err.message);
    } else {
        run.exec.flags = GSC_EXEC_WRITE_FAILURES;
    }
    take_policy(&run);
    const int64_t call = integer(&run, "call");
    if (call < CHECK || call > COMBINE)
        run.wrong = "there is no such call";
    if (run.wrong)
        return error_of(frame, XLA_INVALID_ARGUMENT, run.wrong);
    fenv_t environment; /* XLA lets its threads flush subnormals */
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    status = call < MERGE ? run_tensors(&run, call) : run_structs(&run, call);
    fesetenv(&environment);
    if (run.wrong)
        return error_of(frame, XLA_INVALID_ARGUMENT, run.wrong);
    if (status != GSC_OK)
        return error_of(frame,
                        status == GSC_ERROR_MEMORY   ? XLA_RESOURCE_EXHAUSTED
                        : status == GSC_ERROR_DEVICE ? XLA_INTERNAL
                                                     : XLA_INVALID_ARGUMENT,
                        run.err.message);
    return NULL;
}

void *gsc_xla_host(struct xla_frame *frame)
{
    return run(frame, false);
}

void *gsc_xla_cuda(struct xla_frame *frame)
{
    return run(frame, true);
}

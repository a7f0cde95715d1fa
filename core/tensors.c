/* SPDX-License-Identifier: MIT */
/*
 * Tensor operations: validate the list, cut it into chunks and blocks, run a kernel on each block,
 * and fold what the blocks say into one report in a fixed order, so that the bits do not depend on
 * who ran which chunk. A block is read and written once, in L1; what a kernel cannot tell (where a
 * NaN is, a sum out of float's range) is found on that block alone.
 */
#include <math.h>
#include <string.h>

#include "cpu/convert.h"
#include "internal.h"

#define WANT_BITS                                                                                  \
    (GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD | GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW)

enum {
    BATCH = 1024,            /* chunks whose sums wait to be folded */
    TASKS = 64,              /* shares of a batch */
    PARALLEL_BYTES = 1 << 20 /* below this, sharing costs more than it saves */
};

static const struct dtype {
    uint64_t size, infinity, normal; /* bytes; |bits| of infinity and of the smallest normal */
} dtypes[] = {
#define DTYPE(name) {sizeof(name##_bits), name##_INF, name##_NORMAL},
    GSC_FOR_DTYPES(DTYPE)
#undef DTYPE
};

/* ---- plan: what to run on the blocks of a pair of dtypes ---- */

typedef struct plan {
    gsc_kernel *kernel;
    uint32_t in, out; /* dtypes in the tables; out is in for a call that only reads */
    uint32_t source;  /* dtype that the kernel reads: f64 where `in` is widened first, else in */
    double multiplier;
    bool copies;       /* multiplied by 1: the kernel reads, the bits are copied */
    bool may_overflow; /* a finite input may become infinite */
} plan;

typedef struct job {
    const gsc_kernels *kernels;
    const gsc_tensor *in, *out; /* out is NULL for a call that only reads */
    uint64_t n, chunks;
    double multiplier;
    uint32_t want;
} job;

/* One element with these |bits| through the kernel that writes `out`. */
static uint64_t convert_one(const job *job, const plan *plan, uint64_t bits, uint32_t out)
{
    uint64_t result = 0;
    job->kernels->unscale[plan->source][out](&bits, &result, 1, plan->multiplier, NULL);
    return result;
}

static bool overflows(const job *job, const plan *plan, uint64_t magnitude)
{
    return convert_one(job, plan, magnitude, plan->out) >= dtypes[plan->out].infinity;
}

static plan plan_for(const job *job, uint32_t in, uint32_t out)
{
    const gsc_kernels *k = job->kernels;
    bool norm = job->want & GSC_WANT_NORM;
    float rounded = (float)job->multiplier;
    plan p = {.in = in, .out = out, .source = in, .multiplier = job->multiplier};
    if (in != gsc_f64 && !isnormal(rounded))
        p.source = gsc_f64; /* the host may flush subnormal floats to zero */
    else if (in != gsc_f64)
        p.multiplier = (double)rounded;
    p.copies = in == out && p.multiplier == 1.0;
    if (!job->out || p.copies)
        p.kernel = norm ? k->norm[p.source] : k->check[p.source];
    else
        p.kernel = norm ? k->unscale_norm[p.source][out] : k->unscale[p.source][out];
    p.may_overflow = overflows(job, &p, dtypes[p.source].infinity - 1);
    return p;
}

/* ---- block ---- */

/* What a share of the list said, but for the sums, whose order matters. */
typedef struct partial {
    bool overflow;
    double amax;
    int64_t first_bad, nan_count, inf_count, zeros_made, subnormals_made;
} partial;

typedef struct position {
    uint64_t tensor, element;
} position;

/* first_bad of a report: the smaller, the earlier; negative, so that 0 is none. */
static int64_t bad_key(position at)
{
    uint64_t tensor = at.tensor < 0x7ffffe ? at.tensor : 0x7ffffe;
    uint64_t element = at.element < 0xfffffffffe ? at.element : 0xfffffffffe;
    return INT64_MIN + (int64_t)(tensor << 40 | element);
}

static uint64_t magnitude_at(const unsigned char *data, uint32_t dtype, uint64_t i)
{
    uint64_t bits = 0, size = dtypes[dtype].size;
    memcpy(&bits, data + i * size, size);
    return bits & ~(uint64_t)0 >> (65 - 8 * size);
}

static void count_bad(const unsigned char *results, uint32_t dtype, uint64_t n, position at,
                      partial *part)
{
    uint64_t infinity = dtypes[dtype].infinity;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t magnitude = magnitude_at(results, dtype, i);
        if (magnitude < infinity)
            continue;
        int64_t key = bad_key((position){at.tensor, at.element + i});
        part->first_bad = key < part->first_bad ? key : part->first_bad;
        part->nan_count += magnitude > infinity;
        part->inf_count += magnitude == infinity;
    }
}

static void count_underflow(const unsigned char *source, uint32_t in, const unsigned char *results,
                            uint32_t out, uint64_t n, partial *part)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t before = magnitude_at(source, in, i), after = magnitude_at(results, out, i);
        bool was_subnormal = before > 0 && before < dtypes[in].normal;
        part->zeros_made += after == 0 && before != 0;
        part->subnormals_made += after != 0 && after < dtypes[out].normal && !was_subnormal;
    }
}

/* The lanes as a balanced tree: lane j takes lane j + 32, then j + 16, ... */
static double fold_lanes(double *lanes)
{
    for (int half = GSC_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    return lanes[0];
}

/* A float sum below this may have lost squares to underflow. */
#define TRUSTED_SUM 0x1p-80

static bool trusted(double sum)
{
    return sum >= TRUSTED_SUM && isfinite(sum);
}

/* The lanes that a kernel wrote, as a sum. */
static double sum_lanes(const plan *plan, const void *lanes)
{
    double wide[GSC_LANES];
    if (plan->source == gsc_f64) {
        memcpy(wide, lanes, sizeof wide);
    } else {
        for (int j = 0; j < GSC_LANES; j++)
            wide[j] = (double)((const float *)lanes)[j];
    }
    return fold_lanes(wide);
}

/* The sum over the finite products, in float lanes where the type and their range allow. */
static double sum_products(const double *products, uint64_t n, bool in_double)
{
    double lanes[GSC_LANES] = {0};
    float narrow[GSC_LANES] = {0};
    if (!in_double) {
        for (uint64_t i = 0; i < n; i++)
            if (isfinite(products[i]))
                narrow[i % GSC_LANES] =
                    fmaf((float)products[i], (float)products[i], narrow[i % GSC_LANES]);
        for (int j = 0; j < GSC_LANES; j++)
            lanes[j] = (double)narrow[j];
        double sum = fold_lanes(lanes);
        if (trusted(sum))
            return sum;
        memset(lanes, 0, sizeof lanes);
    }
    for (uint64_t i = 0; i < n; i++)
        if (isfinite(products[i]))
            lanes[i % GSC_LANES] = fma(products[i], products[i], lanes[i % GSC_LANES]);
    return fold_lanes(lanes);
}

/*
 * A block that its kernel could not settle. `source` is what the kernel read, or its products if
 * `is_product`; `results` what it wrote, NULL for a call that only reads. Returns the sum of
 * squares.
 */
static GSC_NOINLINE double examine_block(const job *job, const plan *plan,
                                         const unsigned char *source, bool is_product,
                                         const unsigned char *results, uint64_t n, position at,
                                         bool bad, partial *part)
{
    union {
        unsigned char bytes[GSC_BLOCK * sizeof(double)];
        double products[GSC_BLOCK];
    } scratch;
    gsc_kernel *const *kernels = job->kernels->unscale[plan->source];
    if (bad && (job->want & (GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD))) {
        if (!results)
            kernels[plan->out](source, scratch.bytes, n, plan->multiplier, NULL);
        count_bad(results ? results : scratch.bytes, plan->out, n, at, part);
    }
    if (!(job->want & (GSC_WANT_NORM | GSC_WANT_AMAX)))
        return 0;
    double *products = scratch.products;
    kernels[gsc_f64](source, products, n, is_product ? 1.0 : plan->multiplier, NULL);
    if (bad && (job->want & GSC_WANT_AMAX))
        for (uint64_t i = 0; i < n; i++)
            if (isfinite(products[i]) && fabs(products[i]) > part->amax)
                part->amax = fabs(products[i]);
    return sum_products(products, n, plan->source == gsc_f64);
}

/* Underflow in a call that only reads: what unscaling in place would have made. */
static GSC_NOINLINE void underflow_of_check(const job *job, const plan *plan,
                                            const unsigned char *source, const unsigned char *in,
                                            uint64_t n, partial *part)
{
    unsigned char results[GSC_BLOCK * sizeof(double)];
    job->kernels->unscale[plan->source][plan->out](source, results, n, plan->multiplier, NULL);
    count_underflow(in, plan->in, results, plan->out, n, part);
}

/* Whether what is wanted needs the input of a block in place after its output is known. */
static bool needs_input(const job *job, const plan *plan)
{
    bool results_are_products = plan->in == plan->out && plan->source == plan->in &&
                                (plan->in == gsc_f32 || plan->in == gsc_f64);
    return !plan->copies &&
           ((job->want & GSC_WANT_UNDERFLOW) ||
            (!results_are_products && (job->want & (GSC_WANT_NORM | GSC_WANT_AMAX))));
}

/* One block; out is NULL for a call that only reads. Returns its sum of squares, if wanted. */
static double run_block(const job *job, const plan *plan, const unsigned char *in,
                        unsigned char *out, uint64_t n, position at, partial *part)
{
    double widened[GSC_BLOCK];
    float narrow_results[GSC_BLOCK];
    union {
        float narrow[GSC_LANES];
        double wide[GSC_LANES];
    } lanes;
    const bool norm = job->want & GSC_WANT_NORM, in_place = in == out;
    const bool waits = in_place && needs_input(job, plan);
    const unsigned char *source = in;
    /* Results wait aside while the input is needed; doubles, which are not widened, in `widened`.
     */
    void *aside = plan->in == gsc_f64 ? (void *)widened : narrow_results;
    unsigned char *to = waits ? aside : out;

    if (plan->source != plan->in) { /* exact */
        job->kernels->unscale[plan->in][gsc_f64](in, widened, n, 1.0, NULL);
        source = (const unsigned char *)widened;
    }
    const uint64_t most = plan->kernel(source, to, n, plan->multiplier, norm ? &lanes : NULL);
    if (plan->copies && out && !in_place)
        memcpy(out, in, n * dtypes[plan->in].size);

    double sum = 0;
    bool bad =
        most >= dtypes[plan->source].infinity || (plan->may_overflow && overflows(job, plan, most));
    part->overflow |= bad;
    if (norm && !bad)
        sum = sum_lanes(plan, &lanes);
    if (bad || (norm && most && plan->source != gsc_f64 && !trusted(sum)))
        sum = examine_block(job, plan, source, source == to, to, n, at, bad, part);
    if (!bad && (job->want & GSC_WANT_AMAX)) {
        double amax = gsc_double(convert_one(job, plan, most, gsc_f64));
        part->amax = amax > part->amax ? amax : part->amax;
    }
    if ((job->want & GSC_WANT_UNDERFLOW) && !plan->copies) {
        if (out)
            count_underflow(in, plan->in, to, plan->out, n, part);
        else
            underflow_of_check(job, plan, source, in, n, part);
    }
    if (waits)
        memcpy(out, aside, n * dtypes[plan->out].size);
    return norm ? sum : 0;
}

/* ---- chunks: the list as one row of them, in batches, shared among threads or not ---- */

static uint64_t chunks_of(const gsc_tensor *tensor)
{
    return tensor->count / GSC_CHUNK + (tensor->count % GSC_CHUNK != 0);
}

/* Chunk `chunk` of tensor `tensor`. */
typedef struct cursor {
    uint64_t tensor, chunk;
} cursor;

static cursor skip_chunks(const job *job, cursor at, uint64_t count)
{
    at.chunk += count;
    for (; at.tensor < job->n; at.tensor++) {
        uint64_t chunks = chunks_of(&job->in[at.tensor]);
        if (at.chunk < chunks)
            break;
        at.chunk -= chunks;
    }
    return at;
}

static double run_chunk(const job *job, const plan *plan, cursor at, partial *part)
{
    const gsc_tensor *in = &job->in[at.tensor];
    unsigned char *from = in->data, *to = job->out ? job->out[at.tensor].data : NULL;
    const uint64_t from_size = dtypes[plan->in].size, to_size = dtypes[plan->out].size;
    uint64_t i = at.chunk * GSC_CHUNK, end = i + GSC_CHUNK < in->count ? i + GSC_CHUNK : in->count;
    double sum = 0;
    for (; i < end; i += GSC_BLOCK) {
        uint64_t n = end - i < GSC_BLOCK ? end - i : GSC_BLOCK;
        sum += run_block(job, plan, from + i * from_size, to ? to + i * to_size : NULL, n,
                         (position){at.tensor, i}, part);
    }
    return sum;
}

/* `count` chunks from `at`; their sums go to sums[0..]. */
static void run_chunks(const job *job, cursor at, uint64_t count, double *sums, partial *part)
{
    plan current = {.kernel = NULL};
    for (uint64_t done = 0; done < count; at = skip_chunks(job, at, 1)) {
        uint32_t in = job->in[at.tensor].dtype - 1;
        uint32_t out = job->out ? job->out[at.tensor].dtype - 1 : in;
        if (!current.kernel || current.in != in || current.out != out)
            current = plan_for(job, in, out);
        sums[done++] = run_chunk(job, &current, at, part);
    }
}

typedef struct batch {
    const job *job;
    cursor start;
    uint64_t count, tasks;
    double sums[BATCH];
    partial parts[TASKS];
} batch;

static void run_task(void *data, uint64_t task)
{
    batch *b = data;
    uint64_t first = b->count * task / b->tasks, end = b->count * (task + 1) / b->tasks;
    cursor at = skip_chunks(b->job, b->start, first);
    run_chunks(b->job, at, end - first, b->sums + first, &b->parts[task]);
}

static void add_partial(gsc_report *report, const partial *part)
{
    report->overflow |= part->overflow;
    report->amax = part->amax > report->amax ? part->amax : report->amax;
    report->first_bad = part->first_bad < report->first_bad ? part->first_bad : report->first_bad;
    report->nan_count += part->nan_count;
    report->inf_count += part->inf_count;
    report->zeros_made += part->zeros_made;
    report->subnormals_made += part->subnormals_made;
}

/* Adds the sums of a batch: chunks within a tensor, then tensors, each in order. */
static void fold_sums(const job *job, const batch *b, double *tensor_sum, gsc_report *report)
{
    cursor at = b->start;
    for (uint64_t i = 0; i < b->count; i++) {
        *tensor_sum += b->sums[i];
        cursor next = skip_chunks(job, at, 1);
        if (next.tensor != at.tensor) {
            report->sum_squares += *tensor_sum;
            *tensor_sum = 0;
        }
        at = next;
    }
}

static void run_job(const job *job, const gsc_context *context, uint64_t bytes, gsc_report *report)
{
    batch b;
    double tensor_sum = 0;
    b.job = job;
    b.start = skip_chunks(job, (cursor){0, 0}, 0);
    bool shared = context && context->threads > 1 && bytes >= PARALLEL_BYTES;
    for (uint64_t done = 0; done < job->chunks; done += b.count) {
        b.count = job->chunks - done < BATCH ? job->chunks - done : BATCH;
        b.tasks = shared ? 4 * (uint64_t)context->threads : 1;
        b.tasks = b.tasks < TASKS ? b.tasks : TASKS;
        b.tasks = b.tasks < b.count ? b.tasks : b.count;
        memset(b.parts, 0, b.tasks * sizeof *b.parts);
        if (b.tasks > 1)
            context->parallel_for(context->pool, run_task, &b, b.tasks);
        else
            run_task(&b, 0);
        for (uint64_t task = 0; task < b.tasks; task++)
            add_partial(report, &b.parts[task]);
        if (job->want & GSC_WANT_NORM)
            fold_sums(job, &b, &tensor_sum, report);
        b.start = skip_chunks(job, b.start, b.count);
    }
}

/* ---- validation ---- */

static gsc_status tensor_check(const gsc_tensor *t, int argument, uint64_t index, const char *list,
                               gsc_error *err)
{
    char name[32];
#define FAIL(status, field, ...)                                                                   \
    return (strcat(strcpy(name, list), "." field),                                                 \
            gsc_fail(err, status, argument, (int64_t)index, name, __VA_ARGS__))
    if (t->dtype - 1 >= gsc_dtypes)
        FAIL(GSC_ERROR_DTYPE, "dtype", "tensor %llu of %s has dtype %u, which is none: see GSC_F32",
             (unsigned long long)index, list, t->dtype);
    if (t->reserved != 0)
        FAIL(GSC_ERROR_VALUE, "reserved", "tensor %llu of %s has reserved = %u: it must be 0",
             (unsigned long long)index, list, t->reserved);
    uint64_t size = dtypes[t->dtype - 1].size;
    if (t->count > UINT64_MAX / size || t->count * size > UINTPTR_MAX - (uintptr_t)t->data)
        FAIL(GSC_ERROR_COUNT, "count",
             "tensor %llu of %s has %llu elements, more than memory: is it a byte count?",
             (unsigned long long)index, list, (unsigned long long)t->count);
    if (!t->data && t->count > 0)
        FAIL(GSC_ERROR_NULL, "data", "tensor %llu of %s has %llu elements and no data: set either",
             (unsigned long long)index, list, (unsigned long long)t->count);
#undef FAIL
    return GSC_OK;
}

static gsc_status pair_check(const gsc_tensor *in, const gsc_tensor *out, int argument,
                             uint64_t index, gsc_error *err)
{
    if (in->count != out->count)
        return gsc_fail(err, GSC_ERROR_COUNT, argument, (int64_t)index, "out.count",
                        "tensor %llu has %llu elements, its output %llu: make them equal",
                        (unsigned long long)index, (unsigned long long)in->count,
                        (unsigned long long)out->count);
    uint64_t in_size = dtypes[in->dtype - 1].size, out_size = dtypes[out->dtype - 1].size;
    if (in->count == 0 || (in->data == out->data && in_size == out_size))
        return GSC_OK;
    uintptr_t from = (uintptr_t)in->data, to = (uintptr_t)out->data;
    if (from < to + out->count * out_size && to < from + in->count * in_size)
        return gsc_fail(err, GSC_ERROR_OVERLAP, argument, (int64_t)index, "out.data",
                        "tensor %llu and its output overlap: in place needs the same address and "
                        "element size",
                        (unsigned long long)index);
    return GSC_OK;
}

/* The whole list; out may be NULL or the same list. Sums up the chunks and bytes. */
static gsc_status list_check(job *job, int tensors_argument, uint64_t *bytes, gsc_error *err)
{
    *bytes = 0;
    for (uint64_t i = 0; i < job->n; i++) {
        GSC_TRY(tensor_check(&job->in[i], tensors_argument, i, "tensors", err));
        job->chunks += chunks_of(&job->in[i]);
        uint64_t size = job->in[i].count * dtypes[job->in[i].dtype - 1].size;
        if (size > (uint64_t)INT64_MAX - *bytes)
            return gsc_fail(err, GSC_ERROR_COUNT, tensors_argument, (int64_t)i, "tensors.count",
                            "the list up to tensor %llu has more bytes than memory",
                            (unsigned long long)i);
        *bytes += size;
        if (!job->out || job->out == job->in)
            continue;
        GSC_TRY(tensor_check(&job->out[i], tensors_argument + 1, i, "out", err));
        GSC_TRY(pair_check(&job->in[i], &job->out[i], tensors_argument + 1, i, err));
    }
    return GSC_OK;
}

static gsc_status want_check(uint32_t want, int argument, gsc_error *err)
{
    if (want & ~WANT_BITS)
        return gsc_fail(err, GSC_ERROR_WANT, argument, -1, "want",
                        "want has unknown bits 0x%x: it is a union of GSC_WANT_*",
                        want & ~WANT_BITS);
    return GSC_OK;
}

/* ---- the public functions ---- */

uint32_t gsc_dtype_size(uint32_t dtype)
{
    return dtype - 1 < gsc_dtypes ? (uint32_t)dtypes[dtype - 1].size : 0;
}

/* What is the same for the three operations; `tensors` is argument 2 of each. */
static gsc_status run(const gsc_exec *on, job *job, gsc_report *report, gsc_error *err)
{
    gsc_context *context;
    gsc_report result;
    uint64_t bytes;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_TRY(list_check(job, 2, &bytes, err));
    job->kernels = gsc_kernels_best();
    memset(&result, 0, sizeof result);
    run_job(job, context, bytes, &result);
    if (!report)
        return GSC_OK;
    result.found_inf = (float)result.overflow;
    result.absent = WANT_BITS & ~job->want;
    for (uint64_t i = 0; i < job->n; i++)
        result.elements += (int64_t)job->in[i].count;
    if (result.absent & GSC_WANT_COUNTS)
        result.nan_count = result.inf_count = 0;
    if (result.absent & GSC_WANT_FIRST_BAD)
        result.first_bad = 0;
    *report = result;
    return GSC_OK;
}

gsc_status gsc_scale(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *tensors,
                     const gsc_tensor *out, uint64_t n, gsc_error *err)
{
    if (n > 0) {
        GSC_REQUIRE(tensors, 2);
        GSC_REQUIRE(out, 3);
    }
    if (factor)
        GSC_TRY(gsc_factor_check(factor, 1, err));
    job job = {.in = tensors, .out = out, .n = n, .multiplier = factor ? factor->scale : 1};
    return run(on, &job, NULL, err);
}

gsc_status gsc_check(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *tensors,
                     uint64_t n, uint32_t want, gsc_report *report, gsc_error *err)
{
    if (n > 0)
        GSC_REQUIRE(tensors, 2);
    GSC_REQUIRE(report, 5);
    if (factor)
        GSC_TRY(gsc_factor_check(factor, 1, err));
    GSC_TRY(want_check(want, 4, err));
    job job = {.in = tensors, .n = n, .multiplier = factor ? factor->inverse : 1, .want = want};
    return run(on, &job, report, err);
}

gsc_status gsc_unscale(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *tensors,
                       const gsc_tensor *out, uint64_t n, uint32_t want, gsc_report *report,
                       gsc_error *err)
{
    if (n > 0) {
        GSC_REQUIRE(tensors, 2);
        GSC_REQUIRE(out, 3);
    }
    if (factor)
        GSC_TRY(gsc_factor_check(factor, 1, err));
    GSC_TRY(want_check(want, 5, err));
    job job = {.in = tensors, .out = out, .n = n, .multiplier = factor ? factor->inverse : 1};
    job.want = report ? want : 0;
    return run(on, &job, report, err);
}

gsc_status gsc_workspace_size(const gsc_exec *on, const gsc_tensor *tensors, uint64_t n,
                              uint32_t want, uint64_t *size, gsc_error *err)
{
    gsc_context *context;
    uint64_t bytes;
    GSC_TRY(gsc_exec_read(on, &context, err));
    if (n > 0)
        GSC_REQUIRE(tensors, 1);
    GSC_REQUIRE(size, 4);
    GSC_TRY(want_check(want, 3, err));
    job job = {.in = tensors, .n = n};
    GSC_TRY(list_check(&job, 1, &bytes, err));
    *size = 0;
    return GSC_OK;
}

/* SPDX-License-Identifier: MIT */
/*
 * Tensor operations: validate the list, cut it into chunks and blocks, run a kernel on each block,
 * and fold what the blocks say into one report in a fixed order, so that the bits do not depend on
 * who ran which chunk. A block is read and written once, in L1. Rounding keeps the order of
 * magnitudes, so that whatever a report counts is a count of inputs whose |bits| reach some limit.
 */
#include <math.h>
#include <string.h>

#include "cpu/kernels.h"
#include "internal.h"

#define WANT_BITS                                                                                  \
    (GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD | GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW |   \
     GSC_WANT_HISTOGRAM)

enum {
    BATCH = 512,             /* chunks whose sums wait to be folded */
    TASKS = 64,              /* shares of a batch */
    PARALLEL_BYTES = 4 << 20 /* below this, waking threads costs more than they save */
};

static const struct format {
    uint64_t size, infinity, nan, normal; /* bytes; least |bits| not finite, NaN, normal */
} formats[] = {
#define FORMAT(name) {sizeof(name##_bits), name##_INF, name##_NAN, GSC_NORMAL(name)},
    GSC_FOR_DTYPES(FORMAT)
#undef FORMAT
};

/* A dtype, by its GSC_* constant, as real numbers of a dtype of the tables. */
static uint32_t real_of(uint32_t dtype)
{
    return dtype == GSC_COMPLEX64 ? gsc_f32 : dtype == GSC_COMPLEX128 ? gsc_f64 : dtype - 1;
}

static uint64_t parts_of(uint32_t dtype)
{
    return dtype == GSC_COMPLEX64 || dtype == GSC_COMPLEX128 ? 2 : 1;
}

/* ---- plan: what to run on the blocks of a pair of dtypes ---- */

enum operation { CHECK, UNSCALE, CLIP, ADD };

typedef struct job {
    const gsc_tensor *in, *out; /* out is NULL for a check that judges as in place */
    uint64_t n, chunks;
    const gsc_kernels *kernels;
    double multiplier, limit;
    uint32_t want;
    enum operation operation;
} job;

typedef struct plan {
    gsc_kernel *kernel, *last; /* last, if any, makes the output of the products */
    uint32_t in, out;          /* dtypes in the tables; out is in for a call without */
    uint32_t source;           /* what is multiplied: f64 where `in` is widened first, else in */
    uint32_t wide;             /* its multiplying type */
    uint32_t judged;           /* an element is bad if it is not finite in this dtype */
    double multiplier;
    gsc_kernel *keeping; /* in place: the kernel, or the one that keeps its input, if needed */
    bool copies;         /* multiplied by 1: the kernel reads, the bits are copied */
    bool may_overflow;   /* a finite input may become bad */
    bool sums_floats;    /* its sums of squares may lack range */
    /* Least |bits| of the source whose output is not zero, or not subnormal; whose input was not */
    uint64_t not_zero, normal, was_normal;
    /* ... and whose product belongs to bin k or a later one, or to none. */
    uint64_t bins[GSC_BINS + 1];
} plan;

/* To another dtype: direct, or through n floats of scratch, which changes no bit. */
static void convert(const gsc_kernels *kernels, uint32_t from, const void *in, uint32_t to,
                    void *out, uint64_t n, double multiplier, void *floats)
{
    if (kernels->unscale[from][to]) {
        kernels->unscale[from][to](in, out, n, multiplier, NULL);
    } else {
        kernels->unscale[from][gsc_f32](in, floats, n, multiplier, NULL);
        kernels->unscale[gsc_f32][to](floats, out, n, 1.0, NULL);
    }
}

static uint64_t convert_one(const gsc_kernels *kernels, uint32_t from, uint64_t bits, uint32_t to,
                            double multiplier)
{
    uint64_t result = 0;
    float wide;
    convert(kernels, from, &bits, to, &result, 1, multiplier, &wide);
    return result;
}

/* The least |bits| of `from` that become `target` or more; at most the first that is not finite. */
static uint64_t least(const gsc_kernels *kernels, uint32_t from, uint32_t to, uint64_t target,
                      double multiplier)
{
    uint64_t low = 0, high = formats[from].infinity;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (convert_one(kernels, from, middle, to, multiplier) < target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_bad(const job *job, const plan *plan, uint64_t most)
{
    if (most >= formats[plan->source].infinity)
        return true;
    return plan->may_overflow && convert_one(job->kernels, plan->source, most, plan->judged,
                                             plan->multiplier) >= formats[plan->judged].infinity;
}

static plan plan_for(const job *job, uint32_t in, uint32_t out)
{
    const gsc_kernels *k = job->kernels;
    gsc_kernel *const(*unscale)[gsc_dtypes] =
        job->want & GSC_WANT_NORM ? k->unscale_norm : k->unscale;
    const float rounded = (float)job->multiplier;
    plan p = {.in = in, .out = out, .source = in, .multiplier = job->multiplier};
    if (in != gsc_f64 && !isnormal(rounded))
        p.source = gsc_f64; /* the host may flush subnormal floats to zero */
    else if (in != gsc_f64)
        p.multiplier = (double)rounded;
    p.wide = p.source == gsc_f64 ? gsc_f64 : gsc_f32;
    p.judged = job->operation == CLIP ? p.wide : out;
    p.copies = job->operation == UNSCALE && in == out && p.multiplier == 1.0;
    if (job->operation == CHECK || p.copies) {
        p.kernel = job->want & GSC_WANT_NORM ? k->norm[p.source] : k->check[p.source];
    } else if (job->operation == ADD && p.source == p.wide) {
        p.kernel = k->add[p.source][out];
    } else if (job->operation == UNSCALE && unscale[p.source][out]) {
        p.kernel = unscale[p.source][out];
    } else {
        p.kernel = unscale[p.source][p.wide];
        p.last = job->operation == ADD ? k->add[p.wide][out] : k->unscale[p.wide][out];
    }
    const bool has_infinity = formats[out].infinity < formats[out].nan;
    const uint32_t needs_input =
        GSC_WANT_NORM | GSC_WANT_AMAX |
        (has_infinity ? 0 : GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD); /* whose NaN counts as Inf? */
    p.keeping = job->want & needs_input ? k->unscale_norm[in][out] : p.kernel;
    p.sums_floats = (job->want & GSC_WANT_NORM) && p.wide == gsc_f32;
    p.may_overflow = true;
    p.may_overflow = is_bad(job, &p, formats[p.source].infinity - 1);
    if (job->want & GSC_WANT_UNDERFLOW) {
        p.not_zero = least(k, p.source, out, 1, p.multiplier);
        p.normal = least(k, p.source, out, formats[out].normal, p.multiplier);
        p.was_normal = convert_one(k, in, formats[in].normal, p.source, 1.0);
    }
    if (job->want & GSC_WANT_HISTOGRAM) {
        p.bins[0] = least(k, p.source, p.wide, 1, p.multiplier);
        for (int bin = 1; bin < GSC_BINS; bin++)
            p.bins[bin] =
                least(k, p.source, gsc_f64, gsc_double_bits(ldexp(1, 4 * bin - 48)), p.multiplier);
        p.bins[GSC_BINS] = least(k, p.source, p.wide, formats[p.wide].infinity, p.multiplier);
    }
    return p;
}

/* ---- block ---- */

/* What a share of the list said, but for the sums, whose order matters. */
typedef struct partial {
    bool overflow;
    double amax;
    int64_t first_bad, nan_count, inf_count, zeros_made, subnormals_made;
    int64_t histogram_elements, histogram[GSC_BINS];
} partial;

/* A run of real numbers of the list: `parts` of them are an element. */
typedef struct block {
    uint64_t n, tensor, first, parts;
} block;

/* first_bad of a report: the smaller, the earlier; negative, so that 0 is none. */
static int64_t bad_key(uint64_t tensor, uint64_t element)
{
    tensor = tensor < 0x7ffffe ? tensor : 0x7ffffe;
    element = element < 0xfffffffffe ? element : 0xfffffffffe;
    return INT64_MIN + (int64_t)(tensor << 40 | element);
}

static uint64_t magnitude_at(const void *data, uint32_t dtype, uint64_t i)
{
    uint64_t bits = 0, size = formats[dtype].size;
    memcpy(&bits, (const unsigned char *)data + i * size, size);
    return bits & ~(uint64_t)0 >> (65 - 8 * size);
}

/* The elements of a block: itself, or of complex ones the larger parts, written to `scratch`. */
static const void *elements_of(const block *b, const void *data, uint32_t dtype, void *scratch)
{
    if (b->parts == 1)
        return data;
    for (uint64_t i = 0; i < b->n / 2; i++) {
        uint64_t x = magnitude_at(data, dtype, 2 * i), y = magnitude_at(data, dtype, 2 * i + 1);
        x = x > y ? x : y;
        memcpy((unsigned char *)scratch + i * formats[dtype].size, &x, formats[dtype].size);
    }
    return scratch;
}

static void count_small(const job *job, const plan *plan, const block *b, const void *source,
                        void *scratch, partial *part)
{
    gsc_counter *count = job->kernels->count[plan->source];
    const uint64_t n = b->n / b->parts;
    const void *data = elements_of(b, source, plan->source, scratch);
    if ((job->want & GSC_WANT_UNDERFLOW) && !plan->copies) {
        uint64_t first = plan->not_zero > plan->was_normal ? plan->not_zero : plan->was_normal;
        if (plan->not_zero > 1)
            part->zeros_made += (int64_t)(count(data, n, 1) - count(data, n, plan->not_zero));
        if (first < plan->normal)
            part->subnormals_made +=
                (int64_t)(count(data, n, first) - count(data, n, plan->normal));
    }
    if ((job->want & GSC_WANT_HISTOGRAM) && b->first % GSC_CHUNK == 0) {
        uint64_t above = count(data, n, plan->bins[0]);
        for (int bin = 0; bin < GSC_BINS; bin++) {
            uint64_t next = above ? count(data, n, plan->bins[bin + 1]) : 0;
            part->histogram[bin] += (int64_t)(above - next);
            above = next;
        }
        part->histogram_elements += (int64_t)n;
    }
}

/* A float sum below this may have lost squares to underflow. */
#define TRUSTED_SUM 0x1p-80

static bool is_trusted(double sum)
{
    return sum >= TRUSTED_SUM && isfinite(sum);
}

/* Of what a kernel could not settle: numbers to multiply, and those that tell bad from good. */
typedef struct view {
    const unsigned char *data;
    uint32_t dtype;
    double multiplier;
} view;

/* Counts the elements that are not finite in `judged`, and finds the first. */
static void count_bad(const job *job, const block *b, view v, uint32_t judged, void *scratch,
                      partial *part)
{
    const gsc_kernels *k = job->kernels;
    const uint64_t n = b->n / b->parts;
    const uint64_t limit = least(k, v.dtype, judged, formats[judged].infinity, v.multiplier);
    const void *data = elements_of(b, v.data, v.dtype, scratch);
    const uint64_t nans = k->count[v.dtype](data, n, formats[v.dtype].nan);
    part->nan_count += (int64_t)nans;
    part->inf_count += (int64_t)(k->count[v.dtype](data, n, limit) - nans);
    if (part->first_bad)
        return; /* an earlier one */
    uint64_t i = 0;
    while (magnitude_at(data, v.dtype, i) < limit)
        i++;
    part->first_bad = bad_key(b->tensor, b->first / b->parts + i);
}

/*
 * A block that its kernel could not settle: what is bad, and the sum of squares and the largest of
 * the others. `wide` is scratch where the numbers are not doubles.
 */
static GSC_NOINLINE double examine(const job *job, const plan *plan, const block *b, view numbers,
                                   view outputs, bool bad, double *wide, gsc_norm *norm,
                                   partial *part)
{
    unsigned char scratch[GSC_BLOCK * sizeof(double)];
    const gsc_kernels *k = job->kernels;
    const uint64_t size = formats[numbers.dtype].size;
    if (bad && (job->want & (GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD)))
        count_bad(job, b, outputs, plan->judged, scratch, part);
    if (!(job->want & (GSC_WANT_NORM | GSC_WANT_AMAX)))
        return 0;
    if (bad) {
        const uint64_t limit =
            least(k, numbers.dtype, plan->wide, formats[plan->wide].infinity, numbers.multiplier);
        for (uint64_t i = 0; i < b->n; i++) {
            const bool counts = magnitude_at(numbers.data, numbers.dtype, i) < limit;
            const uint64_t zero = 0;
            memcpy(scratch + i * size, counts ? numbers.data + i * size : (void *)&zero, size);
        }
        numbers.data = scratch;
    }
    const uint64_t most =
        k->norm[numbers.dtype](numbers.data, NULL, b->n, numbers.multiplier, norm);
    if (most && plan->wide == gsc_f32 && !is_trusted(norm->sum)) {
        convert(k, numbers.dtype, numbers.data, gsc_f64, wide, b->n, numbers.multiplier,
                scratch + sizeof scratch / 2); /* free, as the numbers are floats at most */
        k->norm[gsc_f64](wide, NULL, b->n, 1.0, norm);
    }
    if (job->want & GSC_WANT_AMAX) {
        double amax = gsc_double(convert_one(k, numbers.dtype, most, gsc_f64, numbers.multiplier));
        part->amax = amax > part->amax ? amax : part->amax;
    }
    return norm->sum;
}

/* One block; out is NULL for a call that only reads. Returns its sum of squares, if wanted. */
static double run_block(const job *job, const plan *plan, const block *b, const unsigned char *in,
                        unsigned char *out, partial *part)
{
    double wide[GSC_BLOCK];
    float narrow[GSC_BLOCK];
    gsc_norm norm;
    const uint64_t n = b->n;
    void *products = plan->wide == gsc_f64 ? (void *)wide : narrow;
    unsigned char *to = plan->last ? products : plan->copies ? NULL : out;
    gsc_kernel *kernel = plan->kernel;
    view numbers = {in, plan->source, plan->multiplier}, outputs;

    if (plan->source != plan->in) { /* exact */
        convert(job->kernels, plan->in, in, gsc_f64, wide, n, 1.0, narrow);
        numbers.data = (const unsigned char *)wide;
    }
    const unsigned char *const source = numbers.data;
    if (job->want & (GSC_WANT_UNDERFLOW | GSC_WANT_HISTOGRAM))
        count_small(job, plan, b, source, narrow, part);

    outputs = numbers;
    if (to == products || (to && plan->out == plan->wide)) {
        outputs = numbers = (view){to, plan->wide, 1.0};
    } else if (to == source) {
        kernel = plan->keeping;
        numbers.data = norm.input;
        const bool has_infinity = formats[plan->out].infinity < formats[plan->out].nan;
        outputs = has_infinity ? (view){to, plan->out, 1.0} : numbers;
    }

    const uint64_t most = kernel(source, to, n, plan->multiplier, &norm);
    double sum = job->want & GSC_WANT_NORM ? norm.sum : 0;
    if (job->operation != ADD) {
        const bool bad = is_bad(job, plan, most);
        part->overflow |= bad;
        if (bad || (most && plan->sums_floats && !is_trusted(sum))) {
            sum = examine(job, plan, b, numbers, outputs, bad, wide, &norm, part);
        } else if (job->want & GSC_WANT_AMAX) {
            double amax = gsc_double(
                convert_one(job->kernels, plan->source, most, gsc_f64, plan->multiplier));
            part->amax = amax > part->amax ? amax : part->amax;
        }
    }
    if (plan->copies && out != in)
        memcpy(out, in, n * formats[plan->in].size);
    if (job->operation == CLIP)
        job->kernels->clamp[plan->wide](products, products, n, job->limit, NULL);
    if (plan->last)
        plan->last(products, out, n, 1.0, NULL);
    return sum;
}

/* ---- chunks: the list as one row of them, in batches, shared among threads or not ---- */

static uint64_t chunks_of(const gsc_tensor *tensor)
{
    return (tensor->count * parts_of(tensor->dtype) + GSC_CHUNK - 1) / GSC_CHUNK;
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
    const bool writes = job->operation != CHECK;
    unsigned char *from = in->data, *to = writes ? job->out[at.tensor].data : NULL;
    const uint64_t from_size = formats[plan->in].size, to_size = formats[plan->out].size;
    block b = {.tensor = at.tensor, .first = at.chunk * GSC_CHUNK, .parts = parts_of(in->dtype)};
    const uint64_t left = in->count * b.parts - b.first;
    const uint64_t end = b.first + (left < GSC_CHUNK ? left : GSC_CHUNK);
    double sum = 0;
    for (; b.first < end; b.first += GSC_BLOCK) {
        b.n = end - b.first < GSC_BLOCK ? end - b.first : GSC_BLOCK;
        sum += run_block(job, plan, &b, from + b.first * from_size,
                         writes ? to + b.first * to_size : NULL, part);
    }
    return sum;
}

/* `count` chunks from `at`; their sums go to sums[0..]. */
static void run_chunks(const job *job, cursor at, uint64_t count, double *sums, partial *part)
{
    plan plans[gsc_dtypes]; /* by input dtype: lists mix few pairs */
    for (int dtype = 0; dtype < gsc_dtypes; dtype++)
        plans[dtype].kernel = NULL;
    for (uint64_t done = 0; done < count; at = skip_chunks(job, at, 1)) {
        uint32_t in = real_of(job->in[at.tensor].dtype);
        uint32_t out = job->out ? real_of(job->out[at.tensor].dtype) : in;
        plan *plan = &plans[in];
        if (!plan->kernel || plan->out != out)
            *plan = plan_for(job, in, out);
        sums[done++] = run_chunk(job, plan, at, part);
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
    report->histogram_elements += part->histogram_elements;
    for (int bin = 0; bin < GSC_BINS; bin++)
        report->histogram[bin] += part->histogram[bin];
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
    const uint64_t size = gsc_dtype_size(t->dtype);
    if (size == 0)
        FAIL(GSC_ERROR_DTYPE, "dtype", "tensor %llu of %s has dtype %u, which is none: see GSC_F32",
             (unsigned long long)index, list, t->dtype);
    if (t->reserved != 0)
        FAIL(GSC_ERROR_VALUE, "reserved", "tensor %llu of %s has reserved = %u: it must be 0",
             (unsigned long long)index, list, t->reserved);
    if (t->count > UINTPTR_MAX / 16 || t->count * size > UINTPTR_MAX - (uintptr_t)t->data)
        FAIL(GSC_ERROR_COUNT, "count",
             "tensor %llu of %s has %llu elements, more than memory: is it a byte count?",
             (unsigned long long)index, list, (unsigned long long)t->count);
    if (!t->data && t->count > 0)
        FAIL(GSC_ERROR_NULL, "data", "tensor %llu of %s has %llu elements and no data: set either",
             (unsigned long long)index, list, (unsigned long long)t->count);
#undef FAIL
    return GSC_OK;
}

static gsc_status pair_check(const gsc_tensor *in, const gsc_tensor *out, bool may_be_same,
                             int argument, uint64_t index, gsc_error *err)
{
    if (in->count != out->count)
        return gsc_fail(err, GSC_ERROR_COUNT, argument, (int64_t)index, "out.count",
                        "tensor %llu has %llu elements, its output %llu: make them equal",
                        (unsigned long long)index, (unsigned long long)in->count,
                        (unsigned long long)out->count);
    if (parts_of(in->dtype) != parts_of(out->dtype))
        return gsc_fail(err, GSC_ERROR_DTYPE, argument, (int64_t)index, "out.dtype",
                        "of tensor %llu and its output one is complex: make both or none",
                        (unsigned long long)index);
    uint64_t in_size = gsc_dtype_size(in->dtype), out_size = gsc_dtype_size(out->dtype);
    if (in->count == 0 || (may_be_same && in->data == out->data && in_size == out_size))
        return GSC_OK;
    uintptr_t from = (uintptr_t)in->data, to = (uintptr_t)out->data;
    if (from < to + out->count * out_size && to < from + in->count * in_size)
        return gsc_fail(err, GSC_ERROR_OVERLAP, argument, (int64_t)index, "out.data",
                        "tensor %llu and its output overlap: %s", (unsigned long long)index,
                        may_be_same ? "in place needs the same address and element size"
                                    : "what is added to must be other memory");
    return GSC_OK;
}

/* The whole list; out may be NULL or the same list. Sums up the chunks and bytes. */
static gsc_status list_check(job *job, int tensors_argument, uint64_t *bytes, gsc_error *err)
{
    const bool may_be_same = job->operation != ADD;
    *bytes = 0;
    for (uint64_t i = 0; i < job->n; i++) {
        GSC_TRY(tensor_check(&job->in[i], tensors_argument, i, "tensors", err));
        job->chunks += chunks_of(&job->in[i]);
        uint64_t size = job->in[i].count * gsc_dtype_size(job->in[i].dtype);
        if (size > (uint64_t)INT64_MAX - *bytes)
            return gsc_fail(err, GSC_ERROR_COUNT, tensors_argument, (int64_t)i, "tensors.count",
                            "the list up to tensor %llu has more bytes than memory",
                            (unsigned long long)i);
        *bytes += size;
        if (!job->out || (job->out == job->in && may_be_same))
            continue;
        GSC_TRY(tensor_check(&job->out[i], tensors_argument + 1, i, "out", err));
        GSC_TRY(pair_check(&job->in[i], &job->out[i], may_be_same, tensors_argument + 1, i, err));
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
    if (dtype - 1 >= GSC_COMPLEX128)
        return 0;
    return (uint32_t)(formats[real_of(dtype)].size * parts_of(dtype));
}

/* What is the same for all operations; `list` is the position of the argument `tensors`. */
static gsc_status run(const gsc_exec *on, const gsc_factor *factor, int list, job *job,
                      gsc_report *report, gsc_error *err)
{
    gsc_context *context;
    gsc_report result;
    uint64_t bytes;
    if (job->n > 0) {
        if (!job->in)
            return gsc_fail_null(err, list, "tensors");
        if (!job->out && job->operation != CHECK)
            return gsc_fail_null(err, list + 1, "out");
    }
    if (factor)
        GSC_TRY(gsc_factor_check(factor, 1, err));
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_TRY(list_check(job, list, &bytes, err));
    job->kernels = gsc_kernels_best();
    memset(&result, 0, sizeof result);
    if (job->operation == ADD) { /* nothing is added before all of it is known to be good */
        struct job judge = *job;
        judge.operation = CHECK;
        job->want = 0;
        run_job(&judge, context, bytes, &result);
        if (!result.overflow)
            run_job(job, context, bytes, &result);
        job->want = judge.want;
    } else {
        run_job(job, context, bytes, &result);
    }
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
    job job = {.in = tensors,
               .out = out,
               .n = n,
               .multiplier = factor ? factor->scale : 1,
               .operation = UNSCALE};
    return run(on, factor, 2, &job, NULL, err);
}

gsc_status gsc_check(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *tensors,
                     uint64_t n, uint32_t want, gsc_report *report, gsc_error *err)
{
    GSC_REQUIRE(report, 5);
    GSC_TRY(want_check(want, 4, err));
    job job = {.in = tensors, .n = n, .multiplier = factor ? factor->inverse : 1, .want = want};
    return run(on, factor, 2, &job, report, err);
}

gsc_status gsc_unscale(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *tensors,
                       const gsc_tensor *out, uint64_t n, uint32_t want, gsc_report *report,
                       gsc_error *err)
{
    GSC_TRY(want_check(want, 5, err));
    job job = {.in = tensors,
               .out = out,
               .n = n,
               .multiplier = factor ? factor->inverse : 1,
               .operation = UNSCALE};
    job.want = report ? want : 0;
    return run(on, factor, 2, &job, report, err);
}

gsc_status gsc_clip_value(const gsc_exec *on, const gsc_factor *factor, double limit,
                          const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                          uint32_t want, gsc_report *report, gsc_error *err)
{
    if (!(limit > 0) || !isfinite(limit))
        return gsc_fail(err, GSC_ERROR_VALUE, 2, -1, "limit",
                        "limit is %g: it must be finite and above 0", limit);
    GSC_TRY(want_check(want, 6, err));
    job job = {.in = tensors,
               .out = out,
               .n = n,
               .multiplier = factor ? factor->inverse : 1,
               .operation = CLIP};
    job.limit = limit;
    job.want = report ? want : 0;
    return run(on, factor, 3, &job, report, err);
}

gsc_status gsc_accumulate(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *tensors,
                          const gsc_tensor *out, uint64_t n, uint32_t want, gsc_report *report,
                          gsc_error *err)
{
    GSC_REQUIRE(report, 6);
    GSC_TRY(want_check(want, 5, err));
    job job = {.in = tensors,
               .out = out,
               .n = n,
               .multiplier = factor ? factor->inverse : 1,
               .operation = ADD};
    job.want = want;
    return run(on, factor, 2, &job, report, err);
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

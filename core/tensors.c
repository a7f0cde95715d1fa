/* SPDX-License-Identifier: MIT */
/*
 * Tensor operations: validate the list, cut it into chunks and blocks, run a kernel on each block,
 * and fold what the blocks say into one report in a fixed order, so that the bits do not depend on
 * who ran which chunk. A block comes from memory once. Rounding keeps the order of
 * magnitudes, so that whatever a report counts is a count of inputs whose |bits| reach some limit.
 */
#include <math.h>
#include <string.h>

#include "cpu/kernels.h"
#include "cuda/enqueue.h"

#define WANT_BITS                                                                                  \
    (GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD | GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW |   \
     GSC_WANT_HISTOGRAM)

enum {
    BATCH = 512,             /* chunks whose sums wait to be folded */
    TASKS = 64,              /* shares of a batch */
    STREAM_BYTES = 16 << 20, /* of input; output elsewhere would only pass through the caches */
    PARALLEL_BYTES = 4 << 20 /* below this, waking threads costs more than they save */
};

static const struct format {
    uint64_t size, infinity, nan, normal; /* bytes; least |bits| not finite, NaN, normal */
} formats[] = {
#define FORMAT(name) {sizeof(name##_bits), name##_INF, name##_NAN, GSC_NORMAL(name)},
    GSC_FOR_DTYPES(FORMAT)
#undef FORMAT
};

#define REAL(name, parts)                                                                          \
    {                                                                                              \
        gsc_##name, parts, parts * sizeof(name##_bits)                                             \
    }
const struct gsc_real gsc_reals[] = {
    [GSC_F32] = REAL(f32, 1),
    [GSC_F64] = REAL(f64, 1),
    [GSC_F16] = REAL(f16, 1),
    [GSC_BF16] = REAL(bf16, 1),
    [GSC_F8_E4M3FN] = REAL(f8_e4m3fn, 1),
    [GSC_F8_E5M2] = REAL(f8_e5m2, 1),
    [GSC_CB16] = REAL(cb16, 1),
    [GSC_COMPLEX64] = REAL(f32, 2),
    [GSC_COMPLEX128] = REAL(f64, 2),
};

static bool is_dtype(uint64_t dtype)
{
    return dtype - 1 < sizeof gsc_reals / sizeof *gsc_reals - 1;
}

static bool has_infinity(uint32_t dtype)
{
    return formats[dtype].infinity < formats[dtype].nan;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- plan: what to run on the blocks of a pair of dtypes ---- */

enum operation { CHECK, UNSCALE, CLIP, ADD };

typedef struct job {
    const gsc_tensor *in, *out; /* out is NULL for a check that judges as in place */
    uint64_t n, chunks, bytes;  /* bytes of `in` */
    const gsc_kernels *kernels;
    double multiplier, limit;
    uint32_t want;
    enum operation operation;
    bool streams;  /* output that is not in place goes past the caches */
    bool by_scale; /* multiplies by the factor's scale instead of its inverse */
} job;

typedef struct plan {
    gsc_kernel *kernel;  /* NULL: there is no plan yet */
    gsc_kernel *keeping; /* the same in place, where it has to keep its input */
    gsc_kernel *last;    /* if any, makes the output of the kernel's products */
    uint32_t in, out;    /* dtypes in the tables; out is in for a call without */
    uint32_t source;     /* what is multiplied: f64 where `in` is widened first, else in */
    uint32_t wide;       /* its multiplying type */
    uint32_t judged;     /* an element is bad if it is not finite in this dtype */
    double multiplier;
    bool copies;       /* multiplied by 1: the kernel reads, the bits are copied */
    bool streams;      /* output elsewhere waits in the L1 cache to be streamed */
    bool may_overflow; /* a finite input may become bad */
    bool sums_floats;  /* its sums of squares may lack range */
    bool is_direct;    /* the kernel does it all, if |bits| stay below `safe` */
    uint64_t safe;
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
static uint64_t threshold(const gsc_kernels *kernels, uint32_t from, uint32_t to, uint64_t target,
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

static void choose_kernels(const job *job, plan *p)
{
    const gsc_kernels *k = job->kernels;
    const bool sums = job->want & GSC_WANT_NORM;
    gsc_kernel *const(*unscale)[gsc_dtypes] = sums ? k->unscale_norm : k->unscale;
    p->last = NULL;
    if (job->operation == CHECK || p->copies) {
        p->kernel = sums ? k->norm[p->source] : k->check[p->source];
    } else if (job->operation == ADD && p->source == p->wide) {
        p->kernel = k->add[p->source][p->out];
    } else if (job->operation == UNSCALE && unscale[p->source][p->out]) {
        p->kernel = unscale[p->source][p->out];
    } else {
        p->kernel = unscale[p->source][p->wide];
        p->last = job->operation == ADD ? k->add[p->wide][p->out] : k->unscale[p->wide][p->out];
    }
    uint32_t needs_input = GSC_WANT_NORM | GSC_WANT_AMAX;
    if (!has_infinity(p->out)) /* whose NaN counts as Inf? */
        needs_input |= GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD;
    p->keeping = p->kernel;
    if (job->operation == UNSCALE && p->in == p->out && p->out != p->wide &&
        (job->want & needs_input))
        p->keeping = k->unscale_norm[p->in][p->out];
}

static void find_thresholds(const job *job, plan *p)
{
    const gsc_kernels *k = job->kernels;
    p->may_overflow = true;
    p->may_overflow = is_bad(job, p, formats[p->source].infinity - 1);
    p->safe = formats[p->source].infinity;
    if (p->may_overflow) /* a search that a few blocks do not repay */
        p->safe = job->chunks < 16 ? 0
                                   : threshold(k, p->source, p->judged, formats[p->judged].infinity,
                                               p->multiplier);
    if (job->want & GSC_WANT_UNDERFLOW) {
        p->not_zero = threshold(k, p->source, p->out, 1, p->multiplier);
        p->normal = threshold(k, p->source, p->out, formats[p->out].normal, p->multiplier);
        p->was_normal = convert_one(k, p->in, formats[p->in].normal, p->source, 1.0);
    }
}

static void find_bins(const job *job, plan *p)
{
    const gsc_kernels *k = job->kernels;
    p->bins[0] = threshold(k, p->source, p->wide, 1, p->multiplier);
    for (int bin = 1; bin < GSC_BINS; bin++)
        p->bins[bin] = threshold(k, p->source, gsc_f64, gsc_double_bits(ldexp(1, 4 * bin - 48)),
                                 p->multiplier);
    p->bins[GSC_BINS] = threshold(k, p->source, p->wide, formats[p->wide].infinity, p->multiplier);
}

/* Makes `p`, which may have been the plan of the same input and another output. */
static void make_plan(const job *job, uint32_t in, uint32_t out, plan *p)
{
    const float rounded = (float)job->multiplier;
    p->in = in;
    p->out = out;
    p->source = in;
    p->multiplier = job->multiplier;
    if (in != gsc_f64 && !isnormal(rounded))
        p->source = gsc_f64; /* the host may flush subnormal floats to zero */
    else if (in != gsc_f64)
        p->multiplier = (double)rounded;
    p->wide = p->source == gsc_f64 ? gsc_f64 : gsc_f32;
    p->judged = job->operation == CLIP ? p->wide : out;
    p->copies = job->operation == UNSCALE && in == out && p->multiplier == 1.0;
    if ((job->want & GSC_WANT_HISTOGRAM) && !p->kernel)
        find_bins(job, p); /* which are the same for every output */
    choose_kernels(job, p);
    find_thresholds(job, p);
    p->streams = job->streams && !p->last && !p->copies && out != gsc_f64;
    p->sums_floats = (job->want & GSC_WANT_NORM) && p->wide == gsc_f32;
    p->is_direct = job->operation <= UNSCALE && !p->last && !p->copies && p->source == in &&
                   !(job->want & (GSC_WANT_AMAX | GSC_WANT_UNDERFLOW | GSC_WANT_HISTOGRAM));
}

/* ---- block ---- */

/* What a share of the list said, but for the sums, whose order matters. */
typedef struct tally {
    bool overflow;
    double amax;
    int64_t first_bad, nan_count, inf_count, zeros_made, subnormals_made;
    int64_t histogram_elements, histogram[GSC_BINS];
} tally;

/* A run of real numbers of the list: `parts` of them are an element. */
typedef struct block {
    const unsigned char *in;
    unsigned char *out; /* NULL for a call that only reads */
    uint64_t n, tensor, first, parts;
} block;

/* What runs the blocks of a share, one after the other. */
typedef struct worker {
    const job *job;
    tally *tally;
    const plan *plan;       /* of the block that runs, one of these */
    plan plans[gsc_dtypes]; /* by input dtype: lists mix few pairs */
    gsc_norm norm;          /* its sum is that of the last block, if wanted */
} worker;

/* first_bad of a report: the smaller, the earlier; negative, so that 0 is none. */
static int64_t bad_key(uint64_t tensor, uint64_t element)
{
    tensor = least(tensor, 0x7ffffe);
    element = least(element, 0xfffffffffe);
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

static void count_small(const worker *w, const block *b, const void *source, void *scratch)
{
    const plan *plan = w->plan;
    tally *tally = w->tally;
    gsc_counter *count = w->job->kernels->count[plan->source];
    const uint64_t n = b->n / b->parts;
    const void *data = elements_of(b, source, plan->source, scratch);
    if ((w->job->want & GSC_WANT_UNDERFLOW) && !plan->copies) {
        const uint64_t first =
            plan->not_zero > plan->was_normal ? plan->not_zero : plan->was_normal;
        const uint64_t normal = count(data, n, plan->normal);
        const uint64_t not_zero = normal < n && plan->normal > 1 ? count(data, n, 1) : normal;
        if (normal < not_zero && plan->not_zero > 1)
            tally->zeros_made += (int64_t)(not_zero - count(data, n, plan->not_zero));
        if (normal < not_zero && first < plan->normal)
            tally->subnormals_made += (int64_t)(count(data, n, first) - normal);
    }
    if ((w->job->want & GSC_WANT_HISTOGRAM) && b->first % GSC_CHUNK == 0) {
        uint64_t above = count(data, n, plan->bins[0]);
        for (int bin = 0; bin < GSC_BINS; bin++) {
            uint64_t next = above ? count(data, n, plan->bins[bin + 1]) : 0;
            tally->histogram[bin] += (int64_t)(above - next);
            above = next;
        }
        tally->histogram_elements += (int64_t)n;
    }
}

/* A float sum below this may have lost squares to underflow. */
#define TRUSTED_SUM 0x1p-80

static bool is_trusted(double sum)
{
    return sum >= TRUSTED_SUM && isfinite(sum);
}

/* Whether a block with these largest |bits| is to be summed again, in double. */
static bool lacks_range(const plan *plan, uint64_t most, double sum)
{
    return most && plan->sums_floats && !is_trusted(sum);
}

/* Of a block whose numbers have at most these |bits|. */
static void raise_amax(const worker *w, uint32_t dtype, uint64_t most, double multiplier)
{
    const double amax = gsc_double(convert_one(w->job->kernels, dtype, most, gsc_f64, multiplier));
    w->tally->amax = amax > w->tally->amax ? amax : w->tally->amax;
}

/* What a block is judged by: numbers, and what they are multiplied by. */
typedef struct view {
    const void *data;
    uint32_t dtype;
    double multiplier;
} view;

/* Counts the elements that are not finite in the judged dtype, and finds the first. */
static void count_bad(const worker *w, const block *b, view v, void *scratch)
{
    const gsc_kernels *k = w->job->kernels;
    const uint32_t judged = w->plan->judged;
    const uint64_t n = b->n / b->parts;
    const uint64_t limit = threshold(k, v.dtype, judged, formats[judged].infinity, v.multiplier);
    const void *data = elements_of(b, v.data, v.dtype, scratch);
    const uint64_t nans = k->count[v.dtype](data, n, formats[v.dtype].nan);
    w->tally->nan_count += (int64_t)nans;
    w->tally->inf_count += (int64_t)(k->count[v.dtype](data, n, limit) - nans);
    if (w->tally->first_bad)
        return; /* an earlier one */
    uint64_t i = 0;
    while (i < n && magnitude_at(data, v.dtype, i) < limit)
        i++;
    if (i < n) /* not so, if the host rounds negative numbers otherwise */
        w->tally->first_bad = bad_key(b->tensor, b->first / b->parts + i);
}

/* The sum of squares, in double where float lacks range, and the largest, of all that is not bad.
 */
static void measure(worker *w, const block *b, view v, bool bad, void *scratch, double *wide)
{
    const gsc_kernels *k = w->job->kernels;
    const uint32_t product = w->plan->wide;
    if (bad) {
        const uint64_t limit =
            threshold(k, v.dtype, product, formats[product].infinity, v.multiplier);
        k->clean[v.dtype](v.data, scratch, b->n, limit);
        v.data = scratch;
    }
    const uint64_t most = k->norm[v.dtype](v.data, NULL, b->n, v.multiplier, &w->norm);
    if (most && product == gsc_f32 && !is_trusted(w->norm.sum)) {
        /* What was cleaned are floats at most, and in the first half. */
        convert(k, v.dtype, v.data, gsc_f64, wide, b->n, v.multiplier,
                (float *)scratch + GSC_BLOCK);
        k->norm[gsc_f64](wide, NULL, b->n, 1.0, &w->norm);
    }
    if (w->job->want & GSC_WANT_AMAX)
        raise_amax(w, v.dtype, most, v.multiplier);
}

/*
 * What is left to be found out of a block whose kernel has read `source`, written `to` and returned
 * `most`. `wide` is scratch where numbers are multiplied in float.
 */
static GSC_NOINLINE void judge(worker *w, const block *b, const void *source, const void *to,
                               uint64_t most, double *wide)
{
    double scratch[GSC_BLOCK];
    const plan *plan = w->plan;
    const uint32_t want = w->job->want;
    const bool bad = is_bad(w->job, plan, most);
    w->tally->overflow |= bad;
    if (!bad && !lacks_range(plan, most, w->norm.sum)) {
        if (want & GSC_WANT_AMAX)
            raise_amax(w, plan->source, most, plan->multiplier);
        return;
    }
    /* What is to be measured, and what tells bad from good. */
    view numbers = {source, plan->source, plan->multiplier}, outputs = numbers;
    if (to && (plan->last || plan->out == plan->wide)) {
        numbers = outputs = (view){to, plan->wide, 1.0};
    } else if (to == source) { /* in place */
        numbers.data = w->norm.input;
        outputs = has_infinity(plan->out) ? (view){to, plan->out, 1.0} : numbers;
    }
    if (bad && (want & (GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD)))
        count_bad(w, b, outputs, scratch);
    if (want & (GSC_WANT_NORM | GSC_WANT_AMAX))
        measure(w, b, numbers, bad, scratch, wide);
}

/* A block that takes more than a kernel. */
static GSC_NOINLINE void run_steps(worker *w, const block *b)
{
    double wide[GSC_BLOCK];
    float narrow[GSC_BLOCK];
    const job *job = w->job;
    const plan *plan = w->plan;
    const uint64_t n = b->n;
    const void *source = b->in;
    void *to = b->out;
    if (plan->source != plan->in) { /* exact */
        convert(job->kernels, plan->in, b->in, gsc_f64, wide, n, 1.0, narrow);
        source = wide;
    }
    if (job->want & (GSC_WANT_UNDERFLOW | GSC_WANT_HISTOGRAM))
        count_small(w, b, source, narrow);

    if (plan->copies)
        to = NULL;
    else if (plan->last && plan->wide == gsc_f64)
        to = wide;
    else if (plan->last || (plan->streams && b->in != b->out))
        to = narrow;
    gsc_kernel *kernel = to == source ? plan->keeping : plan->kernel;
    const uint64_t most = kernel(source, to, n, plan->multiplier, &w->norm);
    if (job->operation != ADD)
        judge(w, b, source, to, most, wide);

    const void *results = plan->copies ? b->in : to;
    if (job->operation == CLIP)
        job->kernels->clamp[plan->wide](to, to, n, job->limit, NULL);
    if (plan->last)
        plan->last(to, b->out, n, 1.0, NULL);
    else if (b->out != results && job->streams)
        job->kernels->stream(results, b->out, n * formats[plan->out].size);
    else if (b->out != results)
        memcpy(b->out, results, n * formats[plan->out].size);
}

static GSC_NOINLINE void judge_direct(worker *w, const block *b, uint64_t most)
{
    double wide[GSC_BLOCK];
    judge(w, b, b->in, b->out, most, wide);
}

/* A block of which a kernel does all, unless it meets what is to be judged. */
static inline void run_direct(worker *w, const block *b)
{
    const plan *plan = w->plan;
    gsc_kernel *kernel = b->in == b->out ? plan->keeping : plan->kernel;
    const uint64_t most = kernel(b->in, b->out, b->n, plan->multiplier, &w->norm);
    if (most >= plan->safe || lacks_range(plan, most, w->norm.sum))
        judge_direct(w, b, most);
}

/* ---- chunks: the list as one row of them, in batches, shared among threads or not ---- */

static uint64_t chunks_of(const gsc_tensor *tensor)
{
    return (tensor->count * gsc_reals[tensor->dtype].parts + GSC_CHUNK - 1) / GSC_CHUNK;
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

/* The sum of squares of a chunk, if wanted. */
static double run_chunk(worker *w, cursor at)
{
    const plan *plan = w->plan;
    const gsc_tensor *in = &w->job->in[at.tensor];
    const unsigned char *from = in->data;
    unsigned char *to = w->job->operation == CHECK ? NULL : w->job->out[at.tensor].data;
    const bool is_direct = plan->is_direct && !(plan->streams && from != to);
    const uint64_t end = least(in->count * gsc_reals[in->dtype].parts, (at.chunk + 1) * GSC_CHUNK);
    block b = {.tensor = at.tensor, .parts = gsc_reals[in->dtype].parts};
    double sum = 0;
    for (b.first = at.chunk * GSC_CHUNK; b.first < end; b.first += GSC_BLOCK) {
        b.in = from + b.first * formats[plan->in].size;
        b.out = to ? to + b.first * formats[plan->out].size : NULL;
        b.n = least(end - b.first, GSC_BLOCK);
        if (is_direct)
            run_direct(w, &b);
        else
            run_steps(w, &b);
        sum += w->norm.sum;
    }
    return sum;
}

/*
 * Lists of small tensors, in few instructions: as many of the next `count` as are one block each,
 * with the dtypes of the first. Returns their number.
 */
static uint64_t run_small(worker *w, uint64_t tensor, uint64_t count, double *sums)
{
    const job *job = w->job;
    const gsc_tensor *in = &job->in[tensor], *out = job->out ? &job->out[tensor] : in;
    const uint32_t from = in->dtype, to = out->dtype;
    const bool reads = job->operation == CHECK;
    block b = {.parts = gsc_reals[from].parts};
    uint64_t done = 0;
    for (; done < count; done++, in++, out++) {
        b.n = in->count * b.parts;
        if (b.n - 1 >= GSC_BLOCK || in->dtype != from || out->dtype != to)
            break;
        b.in = in->data;
        b.out = reads ? NULL : out->data;
        b.tensor = tensor + done;
        run_direct(w, &b);
        sums[done] = w->norm.sum;
    }
    return done;
}

/* `count` chunks from `at`; their sums go to sums[0..]. */
static void run_chunks(const job *job, cursor at, uint64_t count, double *sums, tally *tally)
{
    worker w;
    w.job = job;
    w.tally = tally;
    w.norm.sum = 0;
    for (int dtype = 0; dtype < gsc_dtypes; dtype++)
        w.plans[dtype].kernel = NULL;
    for (uint64_t done = 0; done < count;) {
        const uint64_t chunks = chunks_of(&job->in[at.tensor]);
        if (at.chunk == chunks) {
            at = (cursor){at.tensor + 1, 0};
            continue;
        }
        const uint32_t from = gsc_reals[job->in[at.tensor].dtype].real;
        const uint32_t to = job->out ? gsc_reals[job->out[at.tensor].dtype].real : from;
        if (!w.plans[from].kernel || w.plans[from].out != to)
            make_plan(job, from, to, &w.plans[from]);
        w.plan = &w.plans[from];
        uint64_t small = 0;
        if (chunks == 1 && w.plan->is_direct)
            small = run_small(&w, at.tensor, count - done, sums + done);
        at.tensor += small;
        done += small;
        if (small == 0) {
            sums[done++] = run_chunk(&w, at);
            at.chunk++;
        }
    }
}

typedef struct batch {
    const job *job;
    cursor start;
    uint64_t count, tasks;
    double sums[BATCH];
    tally tallies[TASKS];
} batch;

static void run_task(void *data, uint64_t task)
{
    batch *b = data;
    uint64_t first = b->count * task / b->tasks, end = b->count * (task + 1) / b->tasks;
    cursor at = skip_chunks(b->job, b->start, first);
    run_chunks(b->job, at, end - first, b->sums + first, &b->tallies[task]);
}

static void add_tally(gsc_report *report, const tally *tally)
{
    report->overflow |= tally->overflow;
    report->amax = tally->amax > report->amax ? tally->amax : report->amax;
    report->first_bad = tally->first_bad < report->first_bad ? tally->first_bad : report->first_bad;
    report->nan_count += tally->nan_count;
    report->inf_count += tally->inf_count;
    report->zeros_made += tally->zeros_made;
    report->subnormals_made += tally->subnormals_made;
    report->histogram_elements += tally->histogram_elements;
    for (int bin = 0; bin < GSC_BINS; bin++)
        report->histogram[bin] += tally->histogram[bin];
}

/* Adds the sums of a batch: chunks within a tensor, then tensors, each in order. Returns its end.
 */
static cursor fold_sums(const batch *b, double *tensor_sum, gsc_report *report)
{
    cursor at = b->start;
    for (uint64_t i = 0; i < b->count; at = (cursor){at.tensor + 1, 0}) {
        const uint64_t chunks = chunks_of(&b->job->in[at.tensor]);
        for (; at.chunk < chunks; at.chunk++) {
            if (i == b->count)
                return at;
            *tensor_sum += b->sums[i++];
        }
        report->sum_squares += *tensor_sum;
        *tensor_sum = 0;
    }
    return at;
}

static void run_job(const job *job, const gsc_context *context, gsc_report *report)
{
    batch b;
    double tensor_sum = 0;
    uint64_t tasks = 1;
    if (context && context->threads > 1 && job->bytes >= PARALLEL_BYTES) {
        const uint64_t threads = least(context->threads, TASKS);
        tasks = threads * least(4, TASKS / threads);
    }
    b.job = job;
    b.start = (cursor){0, 0};
    for (uint64_t done = 0; done < job->chunks; done += b.count) {
        b.count = least(job->chunks - done, BATCH);
        b.tasks = least(b.count, tasks);
        memset(b.tallies, 0, b.tasks * sizeof *b.tallies);
        if (b.tasks > 1)
            context->parallel_for(context->pool, run_task, &b, b.tasks);
        else
            run_task(&b, 0);
        for (uint64_t task = 0; task < b.tasks; task++)
            add_tally(report, &b.tallies[task]);
        if (job->want & GSC_WANT_NORM)
            b.start = fold_sums(&b, &tensor_sum, report);
        else
            b.start = skip_chunks(job, b.start, b.count);
    }
}

/* ---- validation ---- */

static bool tensor_is_good(const gsc_tensor *t)
{
    const uint64_t kind = t->dtype | (uint64_t)t->reserved << 32;
    return is_dtype(kind) && t->count <= UINTPTR_MAX / 16 &&
           t->count * gsc_reals[kind].size <= UINTPTR_MAX - (uintptr_t)t->data &&
           (t->data || t->count == 0);
}

/* What is wrong with a tensor that is not good. */
static gsc_status tensor_fail(const gsc_tensor *t, int argument, uint64_t index, const char *list,
                              gsc_error *err)
{
    char name[32];
#define FAIL(status, field, ...)                                                                   \
    return (strcat(strcpy(name, list), "." field),                                                 \
            gsc_fail(err, status, argument, (int64_t)index, name, __VA_ARGS__))
    if (!is_dtype(t->dtype))
        FAIL(GSC_ERROR_DTYPE, "dtype", "tensor %llu of %s has dtype %u, which is none: see GSC_F32",
             (unsigned long long)index, list, t->dtype);
    if (t->reserved != 0)
        FAIL(GSC_ERROR_VALUE, "reserved", "tensor %llu of %s has reserved = %u: it must be 0",
             (unsigned long long)index, list, t->reserved);
    if (!t->data && t->count > 0)
        FAIL(GSC_ERROR_NULL, "data", "tensor %llu of %s has %llu elements and no data: set either",
             (unsigned long long)index, list, (unsigned long long)t->count);
    FAIL(GSC_ERROR_COUNT, "count",
         "tensor %llu of %s has %llu elements, more than memory: is it a byte count?",
         (unsigned long long)index, list, (unsigned long long)t->count);
#undef FAIL
}

static gsc_status pair_check(const gsc_tensor *in, const gsc_tensor *out, bool may_be_same,
                             int argument, uint64_t index, gsc_error *err)
{
    if (in->count != out->count)
        return gsc_fail(err, GSC_ERROR_COUNT, argument, (int64_t)index, "out.count",
                        "tensor %llu has %llu elements, its output %llu: make them equal",
                        (unsigned long long)index, (unsigned long long)in->count,
                        (unsigned long long)out->count);
    if (gsc_reals[in->dtype].parts != gsc_reals[out->dtype].parts)
        return gsc_fail(err, GSC_ERROR_DTYPE, argument, (int64_t)index, "out.dtype",
                        "of tensor %llu and its output one is complex: make both or none",
                        (unsigned long long)index);
    const uint64_t in_size = gsc_reals[in->dtype].size, out_size = gsc_reals[out->dtype].size;
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
static gsc_status list_check(job *job, int tensors_argument, gsc_error *err)
{
    const bool may_be_same = job->operation != ADD;
    for (uint64_t i = 0; i < job->n; i++) {
        if (!tensor_is_good(&job->in[i]))
            return tensor_fail(&job->in[i], tensors_argument, i, "tensors", err);
        job->chunks += chunks_of(&job->in[i]);
        const uint64_t size = job->in[i].count * gsc_reals[job->in[i].dtype].size;
        if (size > (uint64_t)INT64_MAX - job->bytes)
            return gsc_fail(err, GSC_ERROR_COUNT, tensors_argument, (int64_t)i, "tensors.count",
                            "the list up to tensor %llu has more bytes than memory",
                            (unsigned long long)i);
        job->bytes += size;
        if (!job->out || (job->out == job->in && may_be_same))
            continue;
        if (!tensor_is_good(&job->out[i]))
            return tensor_fail(&job->out[i], tensors_argument + 1, i, "out", err);
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
    return is_dtype(dtype) ? gsc_reals[dtype].size : 0;
}

/* The same on a device, which reads the factor and writes the report. */
static gsc_status enqueue(const gsc_exec *on, const gsc_factor *factor, int list, const job *job,
                          gsc_report *report, gsc_error *err)
{
    const gsc_cuda_job on_device = {.op = job->operation == CLIP  ? GSC_CUDA_CLIP
                                          : job->operation == ADD ? GSC_CUDA_ADD
                                                                  : GSC_CUDA_STORE,
                                    .by_scale = job->by_scale,
                                    .factor = factor,
                                    .tensors = job->in,
                                    .out = job->out,
                                    .n = job->n,
                                    .limit = job->limit,
                                    .want = job->want,
                                    .report = report,
                                    .tensors_argument = list};
    return gsc_cuda_tensors(on, &on_device, err);
}

/* What is the same for all operations; `list` is the position of the argument `tensors`. */
static gsc_status run(const gsc_exec *on, const gsc_factor *factor, int list, job *job,
                      gsc_report *report, gsc_error *err)
{
    gsc_exec where;
    gsc_report result;
    if (job->n > 0) {
        if (!job->in)
            return gsc_fail_null(err, list, "tensors");
        if (!job->out && job->operation != CHECK)
            return gsc_fail_null(err, list + 1, "out");
    }
    GSC_TRY(gsc_exec_read(on, &where, err));
    GSC_TRY(list_check(job, list, err));
    if (where.context && where.context->cuda)
        return enqueue(&where, factor, list, job, report, err);
    if (factor)
        GSC_TRY(gsc_factor_check(factor, 1, err));
    job->multiplier = !factor ? 1 : job->by_scale ? factor->scale : factor->inverse;
    job->kernels = gsc_kernels_best();
    job->streams = job->operation == UNSCALE && job->bytes >= STREAM_BYTES;
    memset(&result, 0, sizeof result);
    if (job->operation == ADD) { /* nothing is added before all of it is known to be good */
        struct job check = *job, add = *job;
        check.operation = CHECK;
        add.want = 0;
        run_job(&check, where.context, &result);
        if (!result.overflow)
            run_job(&add, where.context, &result);
    } else {
        run_job(job, where.context, &result);
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
    job job = {.in = tensors, .out = out, .n = n, .operation = UNSCALE, .by_scale = true};
    return run(on, factor, 2, &job, NULL, err);
}

gsc_status gsc_check(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *tensors,
                     uint64_t n, uint32_t want, gsc_report *report, gsc_error *err)
{
    GSC_REQUIRE(report, 5);
    GSC_TRY(want_check(want, 4, err));
    job job = {.in = tensors, .n = n, .want = want};
    return run(on, factor, 2, &job, report, err);
}

gsc_status gsc_unscale(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *tensors,
                       const gsc_tensor *out, uint64_t n, uint32_t want, gsc_report *report,
                       gsc_error *err)
{
    GSC_TRY(want_check(want, 5, err));
    job job = {.in = tensors, .out = out, .n = n, .operation = UNSCALE};
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
    job job = {.in = tensors, .out = out, .n = n, .operation = CLIP};
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
    job job = {.in = tensors, .out = out, .n = n, .operation = ADD};
    job.want = want;
    return run(on, factor, 2, &job, report, err);
}

gsc_status gsc_workspace_size(const gsc_exec *on, const gsc_tensor *tensors, uint64_t n,
                              uint32_t want, uint64_t *size, gsc_error *err)
{
    gsc_exec where;
    GSC_TRY(gsc_exec_read(on, &where, err));
    if (n > 0)
        GSC_REQUIRE(tensors, 1);
    GSC_REQUIRE(size, 4);
    GSC_TRY(want_check(want, 3, err));
    job job = {.in = tensors, .n = n};
    GSC_TRY(list_check(&job, 1, err));
    if (where.context && where.context->cuda)
        return gsc_cuda_workspace_size(tensors, n, want, size, err);
    *size = 0;
    return GSC_OK;
}

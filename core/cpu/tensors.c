/* SPDX-License-Identifier: MIT */
/*
 * Runs a call on tensors: its list is one row of chunks. Batches of chunks are divided into shares,
 * which threads run. The results of the shares are added to the reports in a fixed order: the bits
 * do not depend on which thread ran a chunk.
 */
#include <fenv.h>
#include <stdatomic.h>
#include <string.h>

#include "block.h"
#include "cpu.h"
#include "layout.h"

enum {
    BATCH = 512,            /* most chunks in a batch */
    TASKS = 48,             /* most shares of a batch */
    STREAM_BYTES = 16 << 20 /* from this input size on, output bypasses the caches */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Chunk `chunk` of tensor `tensor`. */
typedef struct position {
    uint64_t tensor, chunk;
} position;

static position skip_chunks(const gsc_pass *pass, position at, uint64_t count)
{
    at.chunk += count;
    while (at.chunk > 0) {
        const uint64_t chunks = gsc_chunks_of(&pass->in[at.tensor]);
        if (at.chunk < chunks)
            break;
        at.chunk -= chunks;
        at.tensor++;
    }
    return at;
}

/* The results of a share of a batch. */
struct share {
    gsc_report all;
    gsc_report rest; /* with pass->per_tensor: of the tensor that an earlier share began */
    uint64_t begun;  /* index of that tensor; UINT64_MAX: there is none */
};

/* ---- shares ---- */

/* The state of a thread that runs the chunks of a share. */
typedef struct runner {
    gsc_worker worker;
    struct {
        gsc_plan recent[2]; /* lists mix few pairs of dtypes */
        uint32_t last;
    } plans[gsc_dtypes]; /* by input dtype */
} runner;

/* Starts and returns the report of a tensor. */
static inline gsc_report *begin_tensor(const gsc_pass *pass, uint64_t tensor)
{
    gsc_report *report = &pass->per_tensor[tensor];
    gsc_clear(report, sizeof *report);
    report->kind = GSC_REPORT_TENSORS;
    report->measured = pass->want;
    report->generation = pass->generation;
    report->elements = (int64_t)pass->in[tensor].count;
    return report;
}

/* Completes the report of a tensor and adds it to `all`. */
static void end_tensor(gsc_report *report, gsc_report *all)
{
    gsc_set_overflow(report, gsc_has_bad(report));
    gsc_report_add(all, report);
}

/* Sets the plan for a tensor. */
static void choose_plan(runner *r, uint64_t tensor)
{
    const gsc_pass *pass = r->worker.pass;
    const uint32_t in = gsc_reals[pass->in[tensor].dtype].real;
    const uint32_t out = pass->out ? gsc_reals[pass->out[tensor].dtype].real : in;
    const gsc_plan *current = r->worker.plan;
    if (current && current->in == in && current->out == out)
        return;
    uint32_t *last = &r->plans[in].last;
    gsc_plan *plan = &r->plans[in].recent[*last];
    if (!plan->kernel || plan->out != out) {
        if (plan->kernel)
            *last ^= 1;
        plan = &r->plans[in].recent[*last];
        if (!plan->kernel || plan->out != out)
            gsc_plan_make(pass, in, out, plan);
    }
    r->worker.plan = plan;
    r->worker.finite = 0;
    r->worker.norm.small = plan->small;
    r->worker.norm.table = plan->has_table ? &plan->table : NULL;
    r->worker.norm.keeps_input = plan->keeps_input;
}

static bool is_direct_of(const gsc_worker *w, const gsc_tensor *in)
{
    return w->plan->is_direct && !(w->plan->counts && gsc_reals[in->dtype].parts > 1);
}

static void copy(const gsc_pass *pass, const void *from, void *to, uint64_t bytes)
{
    if (from == to)
        return;
    if (pass->streams)
        pass->kernels->stream(from, to, bytes);
    else
        memcpy(to, from, bytes);
}

/* Runs a chunk. Returns its sum of squares, if wanted. */
static double run_chunk(gsc_worker *w, position at)
{
    const gsc_plan *plan = w->plan;
    const gsc_tensor *in = &w->pass->in[at.tensor];
    const unsigned char *from = in->data;
    unsigned char *to =
        w->pass->operation == GSC_OPERATION_MEASURE ? NULL : w->pass->out[at.tensor].data;
    const bool is_direct = is_direct_of(w, in) && !(plan->streams && from != to);
    const uint64_t end = least(gsc_numbers_of(in), (at.chunk + 1) * GSC_CHUNK);
    const uint64_t block = is_direct ? plan->block : GSC_BLOCK;
    gsc_block b = {.tensor = at.tensor, .parts = gsc_reals[in->dtype].parts};
    double sum = 0;
    if (plan->copies && !w->pass->counts && !w->pass->histogram) {
        const uint64_t size = gsc_encodings[plan->in].size, begin = at.chunk * GSC_CHUNK;
        copy(w->pass, from + begin * size, to + begin * size, (end - begin) * size);
        return 0;
    }
    for (b.first = at.chunk * GSC_CHUNK; b.first < end; b.first += block) {
        b.in = from + b.first * gsc_encodings[plan->in].size;
        b.out = to ? to + b.first * gsc_encodings[plan->out].size : NULL;
        b.n = least(end - b.first, block);
        if (!is_direct) {
            gsc_run_with_kernels(w, &b);
        } else {
            if (w->pass->histogram && b.first % GSC_CHUNK == 0)
                gsc_count_before(w, &b, b.in);
            (void)gsc_run_with_kernel(w, &b);
        }
        sum += w->norm.sum;
    }
    return sum;
}

/*
 * Runs small tensors fast: from `tensor` on, at most `count` of them, until one has more than
 * GSC_BLOCK numbers or other dtypes than the first. Returns how many it ran. `each` (a report for
 * each tensor) and `sums_squares` are constants: a test for every tensor would cost 2 ns.
 */
static inline __attribute__((always_inline)) uint64_t run_small_as(runner *r, uint64_t tensor,
                                                                   uint64_t count, double *sums,
                                                                   gsc_report *all, bool each,
                                                                   bool sums_squares)
{
    gsc_worker *w = &r->worker;
    const gsc_pass *pass = w->pass;
    const gsc_tensor *in = &pass->in[tensor], *out = pass->out ? &pass->out[tensor] : in;
    const uint32_t from = in->dtype, to = out->dtype;
    const bool reads = pass->operation == GSC_OPERATION_MEASURE;
    gsc_block b = {.parts = gsc_reals[from].parts};
    uint64_t done = 0;
    for (; done < count; done++, in++, out++) {
        b.n = in->count * b.parts;
        if (b.n - 1 >= GSC_BLOCK || in->dtype != from || out->dtype != to)
            break;
        b.in = in->data;
        b.out = reads ? NULL : out->data;
        b.tensor = tensor + done;
        if (each)
            w->tally = begin_tensor(pass, b.tensor);
        const bool found = gsc_run_with_kernel(w, &b);
        sums[done] = w->norm.sum;
        if (each && sums_squares)
            w->tally->sum_squares = w->norm.sum;
        if (each && found)
            end_tensor(w->tally, all);
    }
    return done;
}

static uint64_t run_small(runner *r, uint64_t tensor, uint64_t count, double *sums, gsc_report *all)
{
    const gsc_pass *pass = r->worker.pass;
    if (!pass->per_tensor)
        return run_small_as(r, tensor, count, sums, all, false, false);
    return run_small_as(r, tensor, count, sums, all, true, pass->want & GSC_WANT_NORM);
}

/* Runs `count` chunks from `at` on. Adds their results to `all`, and writes their sums to
 * sums[0..]. Returns the position after them. */
static position run_chunks(const gsc_pass *pass, position at, uint64_t count, double *sums,
                           struct share *share, gsc_report *all)
{
    runner r;
    gsc_worker *w = &r.worker;
    w->pass = pass;
    w->tally = pass->per_tensor ? &share->rest : all;
    w->plan = NULL;
    w->norm.sum = 0;
    if (pass->histogram)
        memset(w->histogram, 0, sizeof w->histogram);
    for (int dtype = 0; dtype < gsc_dtypes; dtype++) {
        r.plans[dtype].recent[0].kernel = r.plans[dtype].recent[1].kernel = NULL;
        r.plans[dtype].last = 0;
    }
    if (pass->per_tensor) {
        gsc_clear(&share->rest, sizeof share->rest);
        share->begun = at.chunk > 0 ? at.tensor : UINT64_MAX;
    }
    for (uint64_t done = 0; done < count;) {
        const uint64_t chunks = gsc_chunks_of(&pass->in[at.tensor]);
        if (at.chunk == chunks) {
            at = (position){at.tensor + 1, 0};
            continue;
        }
        choose_plan(&r, at.tensor);
        uint64_t small = 0;
        if (chunks == 1 && !pass->histogram && is_direct_of(w, &pass->in[at.tensor]))
            small = run_small(&r, at.tensor, count - done, sums + done, all);
        at.tensor += small;
        done += small;
        if (small == 0) {
            if (pass->per_tensor && at.chunk == 0)
                w->tally = begin_tensor(pass, at.tensor);
            sums[done++] = run_chunk(w, at);
            at.chunk++;
            if (pass->per_tensor && chunks == 1 && (pass->want & GSC_WANT_NORM))
                w->tally->sum_squares = sums[done - 1];
            if (pass->per_tensor && (at.chunk == chunks || done == count))
                end_tensor(w->tally, all);
        }
    }
    if (pass->histogram)
        for (uint32_t word = 0; word < GSC_HISTOGRAM_LENGTH; word++)
            if (w->histogram[word])
                atomic_fetch_add((_Atomic int64_t *)&pass->histogram[word], w->histogram[word]);
    return at;
}

/* ---- batches ---- */

typedef struct batch {
    const gsc_pass *pass;
    position start, end;
    uint64_t count, tasks;
    gsc_report *all;
    fenv_t environment; /* the caller's: the bits must not depend on which thread runs a task */
    double sums[BATCH];
    struct share shares[TASKS];
} batch;

static void run_share(batch *b, uint64_t task)
{
    const uint64_t first = b->count * task / b->tasks, end = b->count * (task + 1) / b->tasks;
    const position at = skip_chunks(b->pass, b->start, first);
    struct share *share = &b->shares[task];
    gsc_report *all = b->all;
    if (b->tasks > 1) {
        all = &share->all;
        gsc_clear(all, sizeof *all);
    }
    const position after = run_chunks(b->pass, at, end - first, b->sums + first, share, all);
    if (task + 1 == b->tasks)
        b->end = after;
}

static void run_task(void *data, uint64_t task)
{
    batch *b = data;
    fenv_t own;
    fegetenv(&own);
    fesetenv(&b->environment);
    run_share(b, task);
    fesetenv(&own);
}

/* The sum of squares of the chunks so far: of the current tensor, and of the list before it. */
struct sums {
    gsc_sum tensor, list;
};

/* Adds the sums of a batch in order: chunks of a tensor, then tensors. */
static void fold_sums(const batch *b, struct sums *sums)
{
    position at = b->start;
    for (uint64_t i = 0; i < b->count; at = (position){at.tensor + 1, 0}) {
        const uint64_t chunks = gsc_chunks_of(&b->pass->in[at.tensor]);
        if (chunks == 1) {
            gsc_sum_add(&sums->list, b->sums[i++]);
            continue;
        }
        for (; at.chunk < chunks; at.chunk++) {
            if (i == b->count)
                return;
            gsc_sum_add(&sums->tensor, b->sums[i++]);
        }
        const double sum = gsc_sum_total(&sums->tensor);
        gsc_sum_add(&sums->list, sum);
        sums->tensor = (gsc_sum){0, 0, 0};
        if (b->pass->per_tensor)
            b->pass->per_tensor[at.tensor].sum_squares = sum;
    }
}

/* Adds the results of a batch's shares, in order. */
static void fold_shares(const batch *b)
{
    for (uint64_t task = 0; task < b->tasks; task++) {
        const struct share *share = &b->shares[task];
        if (b->tasks > 1)
            gsc_report_add(b->all, &share->all);
        if (b->pass->per_tensor && share->begun != UINT64_MAX) {
            gsc_report *report = &b->pass->per_tensor[share->begun];
            gsc_report_add(report, &share->rest);
            gsc_set_overflow(report, gsc_has_bad(report));
        }
    }
}

/*
 * Runs the tasks of a batch. If the pool refuses the first batch of a call, nothing was written and
 * this returns false. If it refuses a later batch, the calling thread runs the batch.
 */
static bool run_batch(batch *b, const gsc_cpu *cpu, bool is_first)
{
    if (b->tasks > 1) {
        if (cpu->parallel_for(cpu->pool, run_task, b, b->tasks) == 0)
            return true;
        if (is_first)
            return false;
    }
    for (uint64_t task = 0; task < b->tasks; task++)
        run_share(b, task);
    return true;
}

/* Runs the whole list and adds the results to `all`. Returns false if the pool refuses the call. */
static bool run_pass(const gsc_pass *pass, const gsc_cpu *cpu, uint64_t bytes, bool is_first,
                     gsc_report *all)
{
    batch b;
    struct sums sums = {{0, 0, 0}, {0, 0, 0}};
    uint64_t tasks = 1;
    if (cpu && cpu->threads > 1 && bytes >= GSC_SHARED_BYTES) {
        const uint64_t threads = least(cpu->threads, TASKS);
        tasks = threads * least(4, TASKS / threads);
        fegetenv(&b.environment);
    }
    b.pass = pass;
    b.all = all;
    b.start = (position){0, 0};
    for (uint64_t done = 0; done < pass->chunks; done += b.count) {
        b.count = least(pass->chunks - done, BATCH);
        b.tasks = least(b.count, tasks);
        if (!run_batch(&b, cpu, is_first && done == 0))
            return false;
        fold_shares(&b);
        if (pass->want & GSC_WANT_NORM)
            fold_sums(&b, &sums);
        if (done + b.count < pass->chunks)
            b.start = skip_chunks(pass, b.end, 0);
    }
    all->sum_squares = gsc_sum_total(&sums.list);
    return true;
}

/* Checks, then adds if all products and the loss are finite. Returns false if the pool refuses. */
static bool check_and_add(const gsc_pass *pass, const gsc_cpu *cpu, uint64_t bytes, uint32_t loss,
                          gsc_report *found)
{
    gsc_pass each = *pass;
    each.operation = GSC_OPERATION_MEASURE;
    if (!run_pass(&each, cpu, bytes, true, found))
        return false;
    if (gsc_has_bad(found) || loss == GSC_LOSS_NOT_FINITE)
        return true;
    const double sum_squares = found->sum_squares; /* adding finds nothing, and sets the sum to 0 */
    each.operation = GSC_OPERATION_ADD;
    each.want = 0;
    each.counts = false;
    each.per_tensor = NULL;
    each.histogram = NULL;
    const bool ran = run_pass(&each, cpu, bytes, false, found);
    found->sum_squares = sum_squares;
    return ran;
}

/* Makes the reports of tensors without elements: no chunk has them. */
static void report_empty(const gsc_pass *pass, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (pass->in[i].count == 0)
            (void)begin_tensor(pass, i);
}

/* Returns whether all elements of a loss are finite, as GSC_LOSS_*. */
static uint32_t judge_loss(const gsc_tensor *loss)
{
    if (!loss)
        return GSC_LOSS_UNKNOWN;
    const struct gsc_encoding *e = &gsc_encodings[gsc_reals[loss->dtype].real];
    const uint64_t without_sign = (UINT64_C(1) << (8 * e->size - 1)) - 1;
    for (uint64_t i = 0; i < loss->count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, (const unsigned char *)loss->data + i * e->size, e->size);
        if ((bits & without_sign) >= e->infinity)
            return GSC_LOSS_NOT_FINITE;
    }
    return GSC_LOSS_FINITE;
}

/* Checks the factor. Writes a failure into the reports if GSC_EXEC_WRITE_FAILURES is set. */
static gsc_status factor_check(const gsc_exec *exec, const gsc_job *job, gsc_error *err)
{
    const gsc_status status = job->factor ? gsc_factor_check(job->factor, 1, err) : GSC_OK;
    if (status == GSC_OK || !(exec->flags & GSC_EXEC_WRITE_FAILURES))
        return status;
    for (uint64_t i = 0; job->per_tensor && i < job->n; i++)
        gsc_report_of_failure(&job->per_tensor[i], status);
    if (job->report)
        gsc_report_of_failure(job->report, status);
    return status;
}

gsc_status gsc_cpu_tensors(const gsc_exec *exec, const gsc_job *job, gsc_error *err)
{
    const gsc_cpu *cpu = exec->context ? exec->context->data : NULL;
    gsc_report result;
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    if (job->histogram)
        memset(histogram, 0, sizeof histogram);
    GSC_TRY(factor_check(exec, job, err));
    if (job->state) {
        GSC_TRY(gsc_state_check(job->state, 1, "state", err));
        if (job->state->skip)
            return GSC_OK;
    }
    gsc_pass pass = {.in = job->in,
                     .out = job->out,
                     .kernels = gsc_kernels_best(),
                     .multiplier = !job->factor    ? 1
                                   : job->by_scale ? job->factor->scale
                                                   : job->factor->inverse,
                     .clamp = job->clamp,
                     .chunks = job->chunks,
                     .bytes = job->bytes,
                     .generation = job->factor ? job->factor->generation : 0,
                     .operation = job->operation,
                     .want = job->want,
                     .counts = job->report || job->per_tensor,
                     .streams = job->operation == GSC_OPERATION_STORE && job->clamp == 0 &&
                                job->bytes >= STREAM_BYTES,
                     .per_tensor = job->per_tensor,
                     .histogram = job->histogram ? histogram : NULL};
    gsc_clear(&result, sizeof result);
    const uint32_t loss = judge_loss(job->loss);
    if (!(job->operation == GSC_OPERATION_ADD ? check_and_add(&pass, cpu, job->bytes, loss, &result)
                                              : run_pass(&pass, cpu, job->bytes, true, &result)))
        return gsc_fail_otherwise(err, GSC_ERROR_MEMORY, 0, "exec.context",
                                  "the pool of the context ran no task: see its parallel_for");
    if (job->histogram)
        memcpy(job->histogram, histogram, sizeof histogram);
    if (pass.per_tensor && job->has_empty)
        report_empty(&pass, job->n);
    if (!job->report)
        return GSC_OK;
    result.elements = job->elements;
    result.loss = loss;
    gsc_report_finish(&result, job->want, pass.generation, job->policy);
    gsc_copy(job->report, &result, sizeof result);
    return GSC_OK;
}

/* SPDX-License-Identifier: MIT */
/* Blocks: the kernels of a plan, and a second look at what they met. */
#include "block.h"

#include <math.h>
#include <string.h>

static uint64_t magnitude_at(const void *data, uint32_t dtype, uint64_t i)
{
    uint64_t bits = 0, size = gsc_encodings[dtype].size;
    memcpy(&bits, (const unsigned char *)data + i * size, size);
    return bits & ~(uint64_t)0 >> (65 - 8 * size);
}

/* The elements of a block: itself, or of complex ones the larger parts, written to `scratch`. */
static const void *elements_of(const gsc_block *b, const void *data, uint32_t dtype, void *scratch)
{
    if (b->parts == 1)
        return data;
    for (uint64_t i = 0; i < b->n / 2; i++) {
        uint64_t x = magnitude_at(data, dtype, 2 * i), y = magnitude_at(data, dtype, 2 * i + 1);
        x = x > y ? x : y;
        memcpy((unsigned char *)scratch + i * gsc_encodings[dtype].size, &x,
               gsc_encodings[dtype].size);
    }
    return scratch;
}

static void count_small(gsc_worker *w, const gsc_block *b, const void *source, void *scratch)
{
    const gsc_plan *plan = w->plan;
    gsc_report *tally = w->tally;
    gsc_counter *count = w->pass->kernels->count[plan->source];
    const uint64_t n = b->n / b->parts;
    const void *data = elements_of(b, source, plan->source, scratch);
    if ((w->pass->want & GSC_WANT_UNDERFLOW) && !plan->copies) {
        const uint64_t first =
            plan->not_zero > plan->was_normal ? plan->not_zero : plan->was_normal;
        const uint64_t normal = count(data, n, plan->normal);
        const uint64_t not_zero = normal < n && plan->normal > 1 ? count(data, n, 1) : normal;
        if (normal < not_zero && plan->not_zero > 1)
            tally->zeros_made += (int64_t)(not_zero - count(data, n, plan->not_zero));
        if (normal < not_zero && first < plan->normal)
            tally->subnormals_made += (int64_t)(count(data, n, first) - normal);
    }
    if (w->pass->clamp != 0) {
        const uint64_t beyond = count(data, n, plan->beyond);
        if (beyond)
            tally->clamped += (int64_t)(beyond - count(data, n, gsc_encodings[plan->source].nan));
    }
    if (w->pass->histogram && b->first % GSC_CHUNK == 0) {
        uint64_t above = count(data, n, plan->bins[0]);
        for (int bin = 0; bin < GSC_BINS; bin++) {
            uint64_t next = above ? count(data, n, plan->bins[bin + 1]) : 0;
            w->histogram[bin] += (int64_t)(above - next);
            above = next;
        }
        w->histogram[GSC_BINS] += (int64_t)n;
    }
}

/* Of a block whose numbers have at most these |bits|. */
static void raise_amax(const gsc_worker *w, uint32_t dtype, uint64_t most, double multiplier)
{
    const double amax =
        gsc_double(gsc_convert_one(w->pass->kernels, dtype, most, gsc_f64, multiplier));
    w->tally->amax = amax > w->tally->amax ? amax : w->tally->amax;
}

/* What a block is judged by: numbers, and what they are multiplied by. */
typedef struct view {
    const void *data;
    uint32_t dtype;
    double multiplier;
} view;

/* Counts the elements that are not finite in the judged dtype, and finds the first. */
static void count_bad(const gsc_worker *w, const gsc_block *b, view v, void *scratch)
{
    const gsc_kernels *k = w->pass->kernels;
    const uint32_t judged = w->plan->judged;
    const uint64_t n = b->n / b->parts;
    const uint64_t limit =
        gsc_threshold(k, v.dtype, judged, gsc_encodings[judged].infinity, v.multiplier);
    const void *data = elements_of(b, v.data, v.dtype, scratch);
    const uint64_t nans = k->count[v.dtype](data, n, gsc_encodings[v.dtype].nan);
    const uint64_t all = k->count[v.dtype](data, n, limit);
    if (all && !gsc_has_bad(w->tally)) {
        uint64_t i = 0;
        while (magnitude_at(data, v.dtype, i) < limit)
            i++;
        w->tally->first_tensor = (int64_t)b->tensor;
        w->tally->first_element = (int64_t)(b->first / b->parts + i);
    }
    w->tally->nan_count += (int64_t)nans;
    w->tally->inf_count += (int64_t)(all - nans);
}

/* The sum of squares, in double where float lacks range, and the largest, of all that is not bad.
 */
static void measure(gsc_worker *w, const gsc_block *b, view v, bool bad, void *scratch,
                    double *wide)
{
    const gsc_kernels *k = w->pass->kernels;
    const uint32_t product = w->plan->wide;
    if (bad) {
        const uint64_t limit =
            gsc_threshold(k, v.dtype, product, gsc_encodings[product].infinity, v.multiplier);
        k->clean[v.dtype](v.data, scratch, b->n, limit);
        v.data = scratch;
    }
    const uint64_t most = k->norm[v.dtype](v.data, NULL, b->n, v.multiplier, &w->norm);
    if (most && product == gsc_f32 && !gsc_is_trusted(w->norm.sum)) {
        /* What was cleaned are floats at most, and in the first half. */
        gsc_convert(k, v.dtype, v.data, gsc_f64, wide, b->n, v.multiplier,
                    (float *)scratch + GSC_BLOCK);
        k->norm[gsc_f64](wide, NULL, b->n, 1.0, &w->norm);
    }
    if (w->pass->want & GSC_WANT_AMAX)
        raise_amax(w, v.dtype, most, v.multiplier);
}

/*
 * What is left to be found out of a block whose kernel has read `source`, written `to` and returned
 * `most`. `wide` is scratch where numbers are multiplied in float.
 */
static GSC_NOINLINE void judge(gsc_worker *w, const gsc_block *b, const void *source,
                               const void *to, uint64_t most, double *wide)
{
    double scratch[GSC_BLOCK];
    const gsc_plan *plan = w->plan;
    const uint32_t want = w->pass->want;
    const bool bad = gsc_is_bad(w->pass->kernels, plan, most);
    if (!bad && !gsc_lacks_range(plan, most, w->norm.sum)) {
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
        outputs = gsc_hides_infinity(plan) ? numbers : (view){to, plan->out, 1.0};
    }
    if (bad && w->pass->counts)
        count_bad(w, b, outputs, scratch);
    if (want & (GSC_WANT_NORM | GSC_WANT_AMAX))
        measure(w, b, numbers, bad, scratch, wide);
}

/* A block that takes more than a kernel. */
void gsc_run_steps(gsc_worker *w, const gsc_block *b)
{
    double wide[GSC_BLOCK];
    float narrow[GSC_BLOCK];
    const gsc_pass *pass = w->pass;
    const gsc_plan *plan = w->plan;
    const uint64_t n = b->n;
    const void *source = b->in;
    void *to = b->out;
    if (plan->source != plan->in) { /* exact */
        gsc_convert(pass->kernels, plan->in, b->in, gsc_f64, wide, n, 1.0, narrow);
        source = wide;
    }
    if (plan->counts_small)
        count_small(w, b, source, narrow);

    if (plan->copies)
        to = NULL;
    else if (plan->last && plan->wide == gsc_f64)
        to = wide;
    else if (plan->last || (plan->streams && b->in != b->out))
        to = narrow;
    gsc_kernel *kernel = to == source ? plan->keeping : plan->kernel;
    const uint64_t most = kernel(source, to, n, plan->multiplier, &w->norm);
    if (pass->operation != GSC_OPERATION_ADD)
        judge(w, b, source, to, most, wide);

    const void *results = plan->copies ? b->in : to;
    if (pass->clamp != 0)
        pass->kernels->clamp[plan->wide](to, to, n, pass->clamp, NULL);
    if (plan->last)
        plan->last(to, b->out, n, 1.0, NULL);
    else if (b->out != results && pass->streams)
        pass->kernels->stream(results, b->out, n * gsc_encodings[plan->out].size);
    else if (b->out != results)
        memcpy(b->out, results, n * gsc_encodings[plan->out].size);
}

void gsc_judge_direct(gsc_worker *w, const gsc_block *b, uint64_t most)
{
    double wide[GSC_BLOCK];
    judge(w, b, b->in, b->out, most, wide);
}

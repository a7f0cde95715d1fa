/* SPDX-License-Identifier: MIT */
/* Runs the kernels of a plan on blocks, and judges blocks that have bad elements. */
#include "block.h"

#include <string.h>

static uint64_t magnitude_at(const void *data, uint32_t dtype, uint64_t i)
{
    uint64_t bits = 0, size = gsc_encodings[dtype].size;
    memcpy(&bits, (const unsigned char *)data + i * size, size);
    return bits & ~(uint64_t)0 >> (65 - 8 * size);
}

/* Returns the elements of a block. For complex ones, writes the larger parts to `scratch`. */
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

static void count_small(gsc_worker *w, const gsc_block *b, const void *data)
{
    const gsc_plan *plan = w->plan;
    const gsc_small *small = &plan->small;
    gsc_counter *count = w->pass->kernels->count[plan->source];
    const uint64_t n = b->n / b->parts;
    const gsc_found not_small = count(data, n, small->least, small->normal, NULL);
    w->tally->underflows_to_subnormal += (int64_t)(not_small.low - not_small.high);
    if (not_small.high < n) {
        const gsc_found some = count(data, n, 1, small->not_zero, NULL);
        w->tally->underflows_to_zero += (int64_t)(some.low - some.high);
    }
}

/*
 * Counts two bins in each pass over the block, from the largest element's bin down, until every
 * element is counted: mostly one or two passes. After two passes, it counts the elements that are
 * not zero: zeros are in no bin, so waiting for them would go through all bins.
 */
static void count_bins(gsc_worker *w, const gsc_block *b, const void *data)
{
    const uint64_t *bins = w->plan->bins;
    const uint64_t n = (b->n < GSC_BLOCK ? b->n : GSC_BLOCK) / b->parts;
    const gsc_kernels *k = w->pass->kernels;
    gsc_counter *count = k->count[w->plan->source];
    const uint64_t most = k->check[w->plan->source](data, NULL, n, 1.0, NULL);
    uint64_t above =
        most < bins[GSC_BINS] ? 0 : count(data, n, bins[GSC_BINS], bins[GSC_BINS], NULL).low;
    uint64_t all = n;
    int bin = GSC_BINS - 1;
    while (bin >= 0 && most < bins[bin])
        bin--;
    for (int looks = 0; bin >= 0 && above < all; bin -= 2) {
        const gsc_found found = count(data, n, bins[bin > 0 ? bin - 1 : 0], bins[bin], NULL);
        w->histogram[bin] += (int64_t)(found.high - above);
        if (bin > 0)
            w->histogram[bin - 1] += (int64_t)(found.low - found.high);
        above = found.low;
        if (++looks == 2 && above < all)
            all = count(data, n, bins[0], bins[0], NULL).low;
    }
    w->histogram[GSC_BINS] += (int64_t)n;
}

void gsc_count_before(gsc_worker *w, const gsc_block *b, const void *source)
{
    unsigned char scratch[GSC_BLOCK * sizeof(double) / 2];
    const gsc_pass *pass = w->pass;
    const gsc_plan *plan = w->plan;
    const void *data = elements_of(b, source, plan->source, scratch);
    if ((pass->want & GSC_WANT_UNDERFLOW) && !plan->copies && !gsc_kernel_counts(w, b))
        count_small(w, b, data);
    if (pass->clamp != 0) {
        uint64_t near; /* not used; makes the count fast if there are few */
        const gsc_found beyond = pass->kernels->count[plan->source](
            data, b->n / b->parts, plan->beyond, gsc_encodings[plan->source].nan, &near);
        w->tally->clamped += (int64_t)(beyond.low - beyond.high);
    }
    if (pass->histogram && b->first % GSC_CHUNK == 0)
        count_bins(w, b, data);
}

/* Raises amax to the product of the largest |bits| of a block, `most`. */
static void raise_amax(const gsc_worker *w, uint32_t dtype, uint64_t most, double multiplier)
{
    const double amax = gsc_double(gsc_convert_one(dtype, most, gsc_f64, multiplier));
    w->tally->amax = amax > w->tally->amax ? amax : w->tally->amax;
}

/* The numbers that a block is judged by, and their multiplier. From the |bits| `bad` on, a product
 * is bad; 0: not known yet. */
typedef struct view {
    const void *data;
    uint32_t dtype;
    double multiplier;
    uint64_t bad;
} view;

/* Returns the numbers to measure: the products if they are still there, else the source. */
static inline view numbers_of(const gsc_worker *w, const void *source, const void *to)
{
    const gsc_plan *plan = w->plan;
    if (to && (plan->last || plan->out == plan->wide))
        return (view){to, plan->wide, 1.0,
                      plan->judged == plan->wide ? gsc_encodings[plan->wide].infinity : 0};
    return (view){to == source ? w->norm.input : source, plan->source, plan->multiplier,
                  plan->safe};
}

/* Returns the numbers to find bad elements in: the output if it was written in place and shows
 * every bad element, else as numbers_of. */
static inline view outputs_of(const gsc_worker *w, const void *source, const void *to)
{
    const gsc_plan *plan = w->plan;
    if (to == source && !plan->last && !gsc_hides_infinity(plan))
        return (view){to, plan->out, 1.0, gsc_encodings[plan->out].infinity};
    return numbers_of(w, source, to);
}

/* Counts the elements with |bits| of at least `limit`, and finds the first. */
static inline void tally_bad(const gsc_worker *w, const gsc_block *b, const void *data,
                             uint32_t dtype, uint64_t limit)
{
    const gsc_kernels *k = w->pass->kernels;
    const uint64_t n = b->n / b->parts, size = gsc_encodings[dtype].size, most = GSC_ROW / size;
    uint64_t near;
    const gsc_found found = k->count[dtype](data, n, limit, gsc_encodings[dtype].nan, &near);
    gsc_report *tally = w->tally;
    if (found.low && !gsc_has_bad(tally)) {
        const unsigned char *at = (const unsigned char *)data + near * size;
        near += k->find[dtype](at, n - near < most ? n - near : most, limit);
        tally->first_tensor = (int64_t)b->tensor;
        tally->first_element = (int64_t)(b->first / b->parts + near);
    }
    if (found.low)
        tally->last_tensor = (int64_t)b->tensor;
    tally->nan_count += (int64_t)found.high;
    tally->inf_count += (int64_t)(found.low - found.high);
}

/* Counts the elements that are not finite in the judged dtype. */
static void count_bad(const gsc_worker *w, const gsc_block *b, view v, void *scratch)
{
    const uint32_t judged = w->plan->judged;
    const uint64_t limit =
        v.bad ? v.bad
              : gsc_threshold(v.dtype, judged, gsc_encodings[judged].infinity, v.multiplier);
    tally_bad(w, b, elements_of(b, v.data, v.dtype, scratch), v.dtype, limit);
}

/* Returns the least |bits| from which on products are not finite in the multiplying type. Searches
 * once for each plan. */
static uint64_t finite_limit(gsc_worker *w, view v)
{
    const uint64_t infinity = gsc_encodings[w->plan->wide].infinity;
    if (v.dtype == w->plan->wide && v.multiplier == 1.0)
        return infinity;
    if (w->finite == 0)
        w->finite = gsc_threshold(v.dtype, w->plan->wide, infinity, v.multiplier);
    return w->finite;
}

/* Measures the sum of squares and the largest of the numbers that are not bad. If float lacks
 * range, sums in double. */
static void measure(gsc_worker *w, const gsc_block *b, view v, bool bad, void *scratch,
                    double *wide)
{
    const gsc_kernels *k = w->pass->kernels;
    gsc_kernel *const *norm = bad ? k->finite_norm : k->norm;
    if (bad)
        w->norm.limit = finite_limit(w, v);
    const uint64_t most = norm[v.dtype](v.data, NULL, b->n, v.multiplier, &w->norm);
    if (most && w->plan->wide == gsc_f32 && !gsc_is_trusted(w->norm.sum)) {
        gsc_convert(k, v.dtype, v.data, gsc_f64, wide, b->n, v.multiplier, scratch);
        w->norm.limit = gsc_encodings[gsc_f64].infinity;
        norm[gsc_f64](wide, NULL, b->n, 1.0, &w->norm);
    }
    if (w->pass->want & GSC_WANT_AMAX)
        raise_amax(w, v.dtype, most, v.multiplier);
}

/* Second pass over a block: counts bad elements, and measures again without them. The kernel has
 * read `source`, written `to` and returned `most`. `wide` is scratch if numbers are floats. */
static GSC_NOINLINE void judge(gsc_worker *w, const gsc_block *b, const void *source,
                               const void *to, uint64_t most, double *wide)
{
    double scratch[GSC_BLOCK / 2]; /* floats, or the larger parts of complex numbers */
    const gsc_plan *plan = w->plan;
    const uint32_t want = w->pass->want;
    const bool bad = plan->safe ? most >= plan->safe : gsc_is_bad(plan, most);
    const bool measures = bad && (want & (GSC_WANT_NORM | GSC_WANT_AMAX));
    if (bad && w->pass->counts)
        count_bad(w, b, outputs_of(w, source, to), scratch);
    if (measures || gsc_lacks_range(plan, most, w->norm.sum))
        measure(w, b, numbers_of(w, source, to), bad, scratch, wide);
    else if (want & GSC_WANT_AMAX)
        raise_amax(w, plan->source, most, plan->multiplier);
}

void gsc_run_with_kernels(gsc_worker *w, const gsc_block *b)
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
    if (pass->histogram || pass->clamp != 0 || (pass->want & GSC_WANT_UNDERFLOW))
        gsc_count_before(w, b, source);

    if (plan->copies)
        to = NULL;
    else if (plan->last && plan->wide == gsc_f64)
        to = wide;
    else if (plan->last || (plan->streams && b->in != b->out))
        to = narrow;
    gsc_kernel *kernel = to == source ? plan->keeping : plan->kernel;
    w->norm.small = plan->small;
    const uint64_t most = kernel(source, to, n, plan->multiplier, &w->norm);
    if (gsc_kernel_counts(w, b))
        gsc_tally_small(w);
    if (pass->operation != GSC_OPERATION_ADD)
        judge(w, b, source, to, most, wide);

    const void *results = plan->copies ? b->in : to;
    if (pass->clamp != 0 && plan->limited == plan->wide)
        pass->kernels->clamp[plan->wide](to, to, n, plan->limit, NULL);
    if (plan->last)
        plan->last(to, b->out, n, 1.0, NULL);
    else if (b->out != results && pass->streams)
        pass->kernels->stream(results, b->out, n * gsc_encodings[plan->out].size);
    else if (b->out != results)
        memcpy(b->out, results, n * gsc_encodings[plan->out].size);
    if (pass->clamp != 0 && plan->limited != plan->wide)
        pass->kernels->clamp[plan->limited](b->out, b->out, n, plan->limit, NULL);
}

static GSC_NOINLINE void judge_direct(gsc_worker *w, const gsc_block *b, uint64_t most)
{
    double wide[GSC_BLOCK];
    judge(w, b, b->in, b->out, most, wide);
}

/* Fast if bad elements only have to be counted: many small tensors can have some. */
void gsc_judge_direct(gsc_worker *w, const gsc_block *b, uint64_t most)
{
    const gsc_pass *pass = w->pass;
    const gsc_plan *plan = w->plan;
    if (!pass->counts || (pass->want & GSC_WANT_NORM) || b->parts > 1 || plan->safe == 0 ||
        b->in != b->out || gsc_hides_infinity(plan)) {
        judge_direct(w, b, most);
        return;
    }
    tally_bad(w, b, b->out, plan->out, gsc_encodings[plan->out].infinity);
}

/* SPDX-License-Identifier: MIT */
/* Plans: choose the kernels, and find the limits of |bits|. */
#include "plan.h"

#include <math.h>
#include <stdlib.h>

enum {
    TABLE_BYTES = 2048 /* for a shorter list, products are faster than making a table */
};

/* Guesses a threshold: the middle between `target` and the value before, divided by `multiplier`.
 */
static uint64_t guess_threshold(uint32_t from, uint32_t to, uint64_t target, double multiplier)
{
    const double above = gsc_double(gsc_convert_one(to, target, gsc_f64, 1.0));
    const double below = gsc_double(gsc_convert_one(to, target - 1, gsc_f64, 1.0));
    const double middle = isfinite(above) ? above / 2 + below / 2 : below;
    return gsc_convert_one(gsc_f64, gsc_double_bits(middle / multiplier), from, 1.0);
}

/* Searches from the guess in strides that double. The guess or its neighbour is mostly right. */
static uint64_t find_threshold(uint32_t from, uint32_t to, uint64_t target, double multiplier,
                               uint64_t guess)
{
    uint64_t low = 0, high = gsc_encodings[from].infinity;
    uint64_t x = guess < high ? guess : high - 1;
    for (uint64_t stride = 0; low < high; stride = 2 * stride + 1) {
        const bool is_below = gsc_convert_one(from, x, to, multiplier) < target;
        if (is_below)
            low = x + 1;
        else
            high = x;
        const uint64_t half = (high - low) / 2, reach = stride < half ? stride : half;
        x = is_below ? low + reach : high - 1 - reach;
    }
    return low;
}

uint64_t gsc_threshold(uint32_t from, uint32_t to, uint64_t target, double multiplier)
{
    const uint64_t infinity = gsc_encodings[from].infinity;
    if (from == to && multiplier == 1.0)
        return target < infinity ? target : infinity;
    return find_threshold(from, to, target, multiplier,
                          guess_threshold(from, to, target, multiplier));
}

bool gsc_is_bad(const gsc_plan *plan, uint64_t most)
{
    if (most >= gsc_encodings[plan->source].infinity)
        return true;
    return plan->may_overflow &&
           gsc_convert_one(plan->source, most, plan->judged, plan->multiplier) >=
               gsc_encodings[plan->judged].infinity;
}

/* ---- tables ---- */

/* Returns the distance of the result from x < Inf, as if x and the result were normal. */
static int normal_distance(const gsc_table *table, int x, int infinity)
{
    const int normal = table->normal[x % 16], room = table->grows ? infinity - x : x;
    return normal < room ? normal : room;
}

static int distance(const gsc_table *table, int x)
{
    return table->grows ? table->results[x] - x : x - table->results[x];
}

/*
 * Finds the distances of normal results from normal inputs, which depend only on the mantissas. 16
 * inputs times the multiplier's mantissa, from 1 to 2, give them; the exponent is added.
 */
static void find_normal_distances(const gsc_kernels *kernels, uint32_t dtype, double multiplier,
                                  gsc_table *table)
{
    enum { FIRST = 0x30 /* normal, and a multiple of 16 */ };
    int exponent;
    const double mantissa = 2 * frexp(multiplier, &exponent);
    const int moved = (exponent - 1) * (int)gsc_encodings[dtype].normal;
    table->grows = multiplier >= 1;
    table->is_power = mantissa == 1;
    for (int i = 0; i < 16; i++)
        table->normal[i] = (uint8_t)(FIRST + i);
    kernels->unscale[0][dtype][dtype](table->normal, table->normal, 16, mantissa, NULL);
    for (int i = 0; i < 16; i++) {
        const int normal = abs(table->normal[i] - (FIRST + i) + moved);
        table->normal[i] = (uint8_t)(normal < 255 ? normal : 255);
    }
}

/*
 * Finds the entries for subnormal inputs or results, which have other distances. They are
 * neighbours: 11 values of 3 binades in f8_e5m2, 32 values of 4 binades in f8_e4m3fn. With a power
 * of two, one of the 32 has the distance of normal numbers.
 */
static void find_windows(uint32_t dtype, gsc_table *table)
{
    const int infinity = (int)gsc_encodings[dtype].infinity;
    int last = infinity;
    while (last > 0 && distance(table, last - 1) == normal_distance(table, last - 1, infinity))
        last--;
    table->last = last;
    table->first = last - (table->is_power ? 31 : 32);
    for (int i = 0; i < 16; i++) {
        const int x = last - 16 + i, lower = table->first + i;
        table->window[i] = x < 0 ? 0 : (uint8_t)(distance(table, x) - table->normal[x % 16]);
        table->bottom[i] = lower < 0 ? 0 : table->results[lower];
        if (i > 0)
            table->exact[(x + 16) % 16] = x < 0 ? 0 : (uint8_t)distance(table, x);
    }
    table->exact[last % 16] = table->normal[0];
}

void gsc_table_make(const gsc_kernels *kernels, uint32_t dtype, double multiplier, gsc_table *table)
{
    for (int x = 0; x < 128; x++)
        table->results[x] = (uint8_t)x;
    kernels->unscale[0][dtype][dtype](table->results, table->results, 128, multiplier, NULL);
    find_normal_distances(kernels, dtype, multiplier, table);
    find_windows(dtype, table);
}

/* ---- plans ---- */

static void choose_kernels(const gsc_pass *pass, gsc_plan *p)
{
    const gsc_kernels *k = pass->kernels;
    const bool sums = pass->want & GSC_WANT_NORM, adds = pass->operation == GSC_OPERATION_ADD;
    const unsigned does = (sums ? GSC_SUMS : 0) | (p->counts ? GSC_COUNTS : 0);
    gsc_kernel *const(*unscale)[gsc_dtypes] = k->unscale[does];
    p->last = NULL;
    if (pass->operation == GSC_OPERATION_MEASURE || p->copies) {
        p->kernel = sums ? k->norm[p->source] : k->check[p->source];
    } else if (adds && p->source == p->wide) {
        p->kernel = k->add[p->source][p->out];
    } else if (!adds && pass->clamp == 0 && unscale[p->source][p->out]) {
        p->kernel = unscale[p->source][p->out];
    } else {
        p->kernel = unscale[p->source][p->wide];
        p->last = adds ? k->add[p->wide][p->out] : k->unscale[0][p->wide][p->out];
    }
    const bool measures = pass->want & (GSC_WANT_NORM | GSC_WANT_AMAX);
    const bool needs_input = measures || (pass->counts && gsc_hides_infinity(p));
    p->keeping = p->kernel;
    p->keeps_input = needs_input;
    if (pass->operation == GSC_OPERATION_STORE && pass->clamp == 0 && p->in == p->out &&
        p->source == p->in && p->out != p->wide && needs_input && !p->has_table)
        p->keeping = k->unscale[does | GSC_SUMS][p->in][p->out];
}

/* Finds the clamp's limit. If outputs are doubles, products are clamped as doubles, not floats. */
static void find_limit(const gsc_pass *pass, gsc_plan *p)
{
    p->limited = p->out == gsc_f64 ? gsc_f64 : p->wide;
    p->limit = gsc_clamp_limit(p->out, pass->clamp);
    const uint64_t limit =
        p->limited == gsc_f64 ? gsc_double_bits(p->limit) : gsc_float_bits((float)p->limit);
    p->beyond = gsc_threshold(p->source, p->limited, limit + 1, p->multiplier);
}

static void find_thresholds(const gsc_pass *pass, gsc_plan *p)
{
    p->may_overflow = true;
    p->may_overflow = gsc_is_bad(p, gsc_encodings[p->source].infinity - 1);
    p->safe = gsc_encodings[p->source].infinity;
    if (p->may_overflow) /* for few chunks, the search takes longer than it saves */
        p->safe = pass->chunks < 16
                      ? 0
                      : gsc_threshold(p->source, p->judged, gsc_encodings[p->judged].infinity,
                                      p->multiplier);
    if (pass->want & GSC_WANT_UNDERFLOW) {
        gsc_small *small = &p->small;
        const uint64_t was_normal =
            gsc_convert_one(p->in, gsc_encodings[p->in].normal, p->source, 1.0);
        small->not_zero = gsc_threshold(p->source, p->out, 1, p->multiplier);
        small->normal =
            gsc_threshold(p->source, p->out, gsc_encodings[p->out].normal, p->multiplier);
        small->least = small->not_zero > was_normal ? small->not_zero : was_normal;
        if (small->least > small->normal) /* none */
            small->least = small->normal;
    }
    if (pass->clamp != 0)
        find_limit(pass, p);
}

static void find_bins(gsc_plan *p)
{
    const uint64_t bin_width = GSC_BIN_POWERS * gsc_encodings[p->source].normal;
    uint64_t guess = 0;
    p->bins[0] = gsc_threshold(p->source, p->wide, 1, p->multiplier);
    for (int bin = 1; bin < GSC_BINS; bin++, guess = p->bins[bin - 1] + bin_width)
        p->bins[bin] = find_threshold(
            p->source, gsc_f64, gsc_double_bits(ldexp(1, GSC_BIN_POWERS * bin + GSC_BIN_FIRST)),
            p->multiplier, guess);
    p->bins[GSC_BINS] =
        gsc_threshold(p->source, p->wide, gsc_encodings[p->wide].infinity, p->multiplier);
}

void gsc_plan_make(const gsc_pass *pass, uint32_t in, uint32_t out, gsc_plan *p)
{
    const float rounded = (float)pass->multiplier;
    const bool stores = pass->operation == GSC_OPERATION_STORE && pass->clamp == 0;
    p->in = in;
    p->out = out;
    p->source = in;
    p->multiplier = pass->multiplier;
    if (in != gsc_f64 && !isnormal(rounded))
        p->source = gsc_f64; /* the host may flush subnormal floats to zero */
    else if (in != gsc_f64)
        p->multiplier = (double)rounded;
    p->wide = p->source == gsc_f64 ? gsc_f64 : gsc_f32;
    p->judged = pass->clamp != 0 ? p->wide : out;
    p->copies = stores && in == out && p->multiplier == 1.0;
    p->has_table = stores && in == out && p->source == in && !p->copies &&
                   gsc_encodings[in].size == 1 && pass->kernels->looks_up &&
                   pass->bytes >= TABLE_BYTES;
    if (p->has_table)
        gsc_table_make(pass->kernels, in, p->multiplier, &p->table);
    if (pass->histogram && !p->kernel)
        find_bins(p); /* the same for every output */
    find_thresholds(pass, p);
    p->counts =
        (pass->want & GSC_WANT_UNDERFLOW) && pass->operation == GSC_OPERATION_STORE && !p->copies;
    choose_kernels(pass, p);
    p->streams = pass->streams && !p->last && !p->copies && out != gsc_f64;
    p->sums_floats = (pass->want & GSC_WANT_NORM) && p->wide == gsc_f32;
    p->is_direct = (stores || pass->operation == GSC_OPERATION_MEASURE) && !p->last && !p->copies &&
                   p->source == in &&
                   !(pass->want & (GSC_WANT_AMAX | (p->counts ? 0 : GSC_WANT_UNDERFLOW)));
    /* Two blocks of a narrow dtype fit into L1, and two blocks of bytes into gsc_norm.input. */
    const bool is_narrow = gsc_encodings[in].size <= 2 && gsc_encodings[out].size <= 2;
    const bool sums_or_keeps = (pass->want & GSC_WANT_NORM) || p->keeping != p->kernel;
    p->block = is_narrow && !sums_or_keeps ? 2 * GSC_BLOCK : GSC_BLOCK;
}

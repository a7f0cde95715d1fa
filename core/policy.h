/* SPDX-License-Identifier: MIT */
/*
 * The policy step: how a scale changes, by the rules of every framework. The CPU and the GPU share
 * this source. It has no memory, errors or framework names: a framework's rules are field values.
 *
 * Four ideas: three counts (good_steps, steps_since_change, overflows_since_reset), each with a
 * rule that resets it; a change is computed in a number format, then limited; an overflow is
 * absorbed or backs off; a stall is a backoff that does not lower the scale.
 */
#ifndef GSC_POLICY_H
#define GSC_POLICY_H

#include <math.h>

#include "gradscaler.h"
#include "log2.h"

static inline int gsc_positive(double x)
{
    return x > 0 && isfinite(x);
}

static inline double gsc_growth_factor(const gsc_policy *p)
{
    return p->growth_factor == 0.0 ? 1.0 : p->growth_factor;
}

/* Returns the factor of a backoff; by default it divides by growth_factor. */
static inline double gsc_backoff_factor(const gsc_policy *p)
{
    return p->backoff_factor == 0.0 ? 1.0 / gsc_growth_factor(p) : p->backoff_factor;
}

static inline uint32_t gsc_hysteresis(const gsc_policy *p)
{
    return p->hysteresis > 1 ? p->hysteresis : 1;
}

static inline int gsc_moves(const gsc_policy *p)
{
    return p->target_amax != 0.0 || gsc_backoff_factor(p) < 1.0 ||
           (p->growth_interval != 0 && gsc_growth_factor(p) > 1.0);
}

/* Returns 1 if x can be a scale: x and 1 / x are finite and above 0. */
static inline int gsc_usable(double x)
{
    return gsc_positive(x) && gsc_positive(1.0 / x);
}

/* Returns x rounded to the policy's number format. */
static inline double gsc_format(const gsc_policy *p, double x)
{
    if (p->arithmetic == GSC_ARITHMETIC_F64)
        return x;
    double rounded = (double)(float)x;
    int flushed = p->arithmetic == GSC_ARITHMETIC_F32_FLUSH && fabs(rounded) < 0x1p-126;
    return flushed ? 0.0 : rounded;
}

/* Returns a growth or backoff factor, rounded if the policy's arithmetic rounds factors first. */
static inline double gsc_format_factor(const gsc_policy *p, double y)
{
    return p->arithmetic >= GSC_ARITHMETIC_F32 ? gsc_format(p, y) : y;
}

/* Applies a limit's rule to a change from `old` that reaches `bound`. Returns the scale. */
static inline double gsc_limited(gsc_state *s, uint32_t rule, double old, double bound,
                                 uint32_t event)
{
    s->events |= event | (rule == GSC_LIMIT_STOP ? GSC_EVENT_STOPPED : 0u);
    int past = event == GSC_EVENT_AT_FLOOR ? old < bound : old > bound;
    int stays = rule == GSC_LIMIT_REJECT || rule == GSC_LIMIT_STOP ||
                (rule == GSC_LIMIT_CLAMP_UNLESS_PAST && past);
    return stays ? old : bound;
}

/* Rounds a limit x > 0 to the policy's number format: up if `at_least`, else down. */
static inline double gsc_format_limit(const gsc_policy *p, double x, int at_least)
{
    if (p->arithmetic == GSC_ARITHMETIC_F64)
        return x;
    float near = (float)x;
    if (at_least ? (double)near < x : (double)near > x)
        near = gsc_float(gsc_float_bits(near) + (at_least ? 1u : ~0u));
    return gsc_format(p, (double)near);
}

static inline double gsc_max_scale(const gsc_policy *p)
{
    return p->max_scale == 0.0 ? (double)INFINITY : gsc_format_limit(p, p->max_scale, 0);
}

static inline double gsc_min_scale(const gsc_policy *p)
{
    return p->min_scale == 0.0 ? 0.0 : gsc_format_limit(p, p->min_scale, 1);
}

static inline double gsc_back_off(const gsc_policy *p, gsc_state *s, double old)
{
    double growth = gsc_growth_factor(p);
    double moved = p->backoff_factor == 0.0
                       ? gsc_format(p, old / gsc_format_factor(p, growth))
                       : gsc_format(p, old * gsc_format_factor(p, p->backoff_factor));
    s->steps_since_change = 0;
    if (p->overflow_reset & GSC_RESET_ON_BACKOFF)
        s->overflows_since_reset = 0;
    double floor = gsc_min_scale(p);
    return moved > floor ? moved : gsc_limited(s, p->floor_rule, old, floor, GSC_EVENT_AT_FLOOR);
}

static inline double gsc_grow(const gsc_policy *p, gsc_state *s, double old)
{
    double growth = gsc_growth_factor(p);
    double moved = gsc_format(p, old * gsc_format_factor(p, growth));
    double ceiling = gsc_max_scale(p);
    s->steps_since_change = 0;
    if (p->growth_rule != GSC_GROWTH_EVERY)
        s->good_steps = 0;
    if (p->overflow_reset & GSC_RESET_ON_GROWTH)
        s->overflows_since_reset = 0;
    return moved < ceiling ? moved
                           : gsc_limited(s, p->ceiling_rule, old, ceiling, GSC_EVENT_AT_CEILING);
}

/* Returns 1 if the hysteresis or the tolerance absorbs this overflow. */
static inline int gsc_absorbs(const gsc_policy *p, const gsc_state *s)
{
    double share = (double)s->overflows_since_reset / (double)s->steps_since_change;
    int tolerated = p->quirks & GSC_QUIRK_TOLERANCE_EXCLUSIVE ? share < p->overflow_tolerance
                                                              : share <= p->overflow_tolerance;
    return tolerated || s->overflows_since_reset < (int64_t)p->hysteresis;
}

static inline int gsc_growth_due(const gsc_policy *p, const gsc_state *s)
{
    int64_t count = p->growth_rule == GSC_GROWTH_ALL_STEPS ? s->steps_since_change : s->good_steps;
    int64_t n = count - (int64_t)p->growth_extra_steps;
    if (n <= 0 || p->growth_interval == 0)
        return 0;
    switch (p->growth_rule) {
    case GSC_GROWTH_EXACT:
        return (uint64_t)n == p->growth_interval;
    case GSC_GROWTH_EVERY:
        return (uint64_t)n % p->growth_interval == 0;
    default:
        return (uint64_t)n >= p->growth_interval;
    }
}

/*
 * Adds a sample x = log2(amax) to the running means and predicts the scale from them. A decay is
 * rounded as a factor is. 1 - decay is not: OpenSeq2Seq computes it in doubles.
 */
static inline double gsc_predict(const gsc_policy *p, gsc_state *s, double x)
{
    double fast = gsc_format_factor(p, p->log2_decay);
    double slow = gsc_format_factor(p, p->log2_slow_decay);
    s->log2_mean = fast * s->log2_mean + (1.0 - p->log2_decay) * x;
    s->log2_zero_weight = gsc_format(p, fast * s->log2_zero_weight);
    s->log2_slow_mean = slow * s->log2_slow_mean + (1.0 - p->log2_slow_decay) * x;
    s->log2_slow_zero_weight = gsc_format(p, slow * s->log2_slow_zero_weight);
    s->log2_mean_square = slow * s->log2_mean_square + (1.0 - p->log2_slow_decay) * (x * x);
    double mean = s->log2_mean / (1.0 - s->log2_zero_weight);
    double log2_slow_mean = s->log2_slow_mean / (1.0 - s->log2_slow_zero_weight);
    double variance =
        s->log2_mean_square / (1.0 - s->log2_slow_zero_weight) - log2_slow_mean * log2_slow_mean;
    double sigma = sqrt(variance > 0.0 ? variance : 0.0);
    double scale = p->target_amax * gsc_exp2(-(mean + p->log2_margin_sigmas * sigma));
    /* A prediction stays in the range where the scale and its inverse are normal floats. */
    return scale < 0x1p-126 ? 0x1p-126 : scale > 0x1p126 ? 0x1p126 : scale;
}

static inline double gsc_count(const gsc_policy *p, gsc_state *s, int overflow, double scale)
{
    if (overflow) {
        s->good_steps = 0;
        s->overflows_since_reset++;
        if (gsc_absorbs(p, s))
            s->events |= GSC_EVENT_ABSORBED;
        else
            scale = gsc_back_off(p, s, scale);
        if (p->quirks & GSC_QUIRK_OVERFLOW_IS_GOOD) {
            s->good_steps++;
            s->steps_since_change++;
        }
    } else if (p->overflow_reset & GSC_RESET_ON_GOOD_STEP) {
        s->overflows_since_reset = 0;
    }
    /* After an overflow, only policies that count overflow steps can be due for a growth. */
    return gsc_growth_due(p, s) ? gsc_grow(p, s, scale) : scale;
}

/* ---- the guard: a second rule, for norms that are finite but absurd ---- */

/* The largest norm that can be a sample: the square of a difference stays finite. */
#define GSC_GUARD_MOST 0x1p500

static inline int gsc_guards(const gsc_policy *p)
{
    return p->guard_norm != 0.0 || p->guard_ratio != 0.0 || p->guard_sigmas != 0.0;
}

/* Returns the number or the norm of a report. */
static inline double gsc_signal(const gsc_report *report)
{
    return report->kind == GSC_REPORT_NUMBER ? report->number : sqrt(report->sum_squares);
}

/* Returns the least threshold that is on, or infinity if there is none yet. */
static inline double gsc_guard_threshold(const gsc_policy *p, const gsc_state *s)
{
    double least = (double)INFINITY;
    if ((uint64_t)s->guard_count < p->guard_warmup)
        return least;
    if (p->guard_norm != 0.0)
        least = p->guard_norm;
    if (p->guard_ratio != 0.0 && s->guard_mean > 0.0) {
        double limit = p->guard_ratio * s->guard_mean;
        least = limit < least ? limit : least;
    }
    if (p->guard_sigmas != 0.0 && (s->guard_variance > 0.0 || p->guard_init_mean != 0.0)) {
        double limit = s->guard_mean + p->guard_sigmas * sqrt(s->guard_variance);
        least = limit < least ? limit : least;
    }
    return least;
}

/*
 * Adds a sample to the mean and the variance. Recurrence: Welford (Technometrics 4, 1962); with a
 * decay, Finch ("Incremental calculation of weighted mean and variance", 2009). A mean of squares
 * minus a squared mean would cancel, and could be negative.
 */
static inline void gsc_guard_enter(const gsc_policy *p, gsc_state *s, double x)
{
    int64_t n = ++s->guard_count;
    double decay = p->guard_decay;
    int corrected = (p->guard_flags & GSC_GUARD_BIAS_CORRECTED) != 0;
    int even = decay == 0.0 || (n == 1 && (corrected || p->guard_init_mean == 0.0)) ||
               (!corrected && (uint64_t)n <= p->guard_warmup);
    double weight = even ? 1.0 / (double)n : 1.0 - decay;
    if (corrected && !even)
        weight = weight / (1.0 - gsc_exp2((double)n * gsc_log2(decay)));
    if (weight > 1.0) /* by a rounding */
        weight = 1.0;
    double rest = 1.0 - weight;
    double distance = x - s->guard_mean;
    double step = weight * distance;
    s->guard_mean += step;
    if (p->guard_flags & GSC_GUARD_VARIANCE_AFTER_MEAN && !even) {
        double after = x - s->guard_mean;
        s->guard_variance = rest * s->guard_variance + weight * (after * after);
    } else {
        s->guard_variance = rest * (s->guard_variance + distance * step);
    }
}

/* Returns the norm to which a norm x above the threshold is clipped. */
static inline double gsc_guard_target(const gsc_policy *p, const gsc_state *s, double threshold,
                                      double x)
{
    if (!(threshold > s->guard_mean))
        return threshold;
    if (p->guard_flags & GSC_GUARD_CLIP_TO_MEAN)
        return s->guard_mean;
    if (!(p->guard_flags & GSC_GUARD_CLIP_PROGRESSIVE))
        return threshold;
    double excess = threshold - s->guard_mean;
    return s->guard_mean + excess * (excess / (x - s->guard_mean));
}

/* Judges the norm of a step without overflow. */
static inline void gsc_guard_step(const gsc_policy *p, gsc_state *s, double x)
{
    if (s->guard_count == 0 && s->guard_mean == 0.0)
        s->guard_mean = p->guard_init_mean;
    const double threshold = gsc_guard_threshold(p, s);
    int out = p->guard_flags & GSC_GUARD_INCLUSIVE ? x >= threshold : x > threshold;
    s->guard_value = x + 0.0; /* -0 is 0 */
    s->guard_threshold = isfinite(threshold) ? threshold : 0.0;
    s->guard_in_a_row = out ? s->guard_in_a_row + 1 : 0;
    if (!out) {
        gsc_guard_enter(p, s, x);
        return;
    }
    s->events |= GSC_EVENT_OUTLIER;
    int last = p->guard_max_in_a_row != 0 && (uint64_t)s->guard_in_a_row >= p->guard_max_in_a_row;
    if (last && !(p->guard_flags & GSC_GUARD_STOP)) {
        gsc_guard_enter(p, s, x);
        return;
    }
    double target = gsc_guard_target(p, s, threshold, x);
    double share = p->guard_flags & GSC_GUARD_CLIP && target > 0.0 ? target / x : 0.0;
    if (share > 1.0) /* by a rounding */
        share = 1.0;
    s->guard_multiplier = share;
    s->events |= share > 0.0 ? GSC_EVENT_CLIPPED : GSC_EVENT_SKIPPED;
    s->events |= last ? GSC_EVENT_STOPPED : 0u;
    s->total_guard_skips += share == 0.0;
    if (p->guard_sample != GSC_SAMPLE_NONE)
        gsc_guard_enter(p, s, p->guard_sample == GSC_SAMPLE_AS_IS ? x : target);
}

/*
 * Updates the state by one optimizer step and returns the new scale. Only predictive policies read
 * amax; only policies that guard read the signal. The caller sets s->factor and s->next.
 */
static inline double gsc_policy_step(const gsc_policy *p, gsc_state *s, int overflow, double amax,
                                     double signal)
{
    double old = s->next.scale, scale = old;
    s->events = overflow ? GSC_EVENT_SKIPPED : 0u;
    s->guard_multiplier = 1.0;
    s->guard_value = s->guard_threshold = 0.0;
    if (gsc_guards(p) && !overflow)
        gsc_guard_step(p, s, signal);
    if (s->events & GSC_EVENT_OUTLIER && s->events & GSC_EVENT_SKIPPED &&
        !(p->guard_flags & GSC_GUARD_SKIP_IS_GOOD))
        return old;
    s->total_overflows += overflow;
    s->good_steps++;
    s->steps_since_change++;
    if (p->target_amax == 0.0)
        scale = gsc_count(p, s, overflow, old);
    else if (overflow || amax > 0.0)
        scale = gsc_predict(p, s, overflow ? p->overflow_sample_log2 : gsc_log2(amax));
    if (p->ceiling_rule == GSC_LIMIT_ENFORCE && scale > gsc_max_scale(p))
        scale = gsc_max_scale(p);
    if (p->floor_rule == GSC_LIMIT_ENFORCE && scale < gsc_min_scale(p))
        scale = gsc_min_scale(p);
    scale = gsc_format(p, scale);
    s->events |= scale > old ? GSC_EVENT_GREW : scale < old ? GSC_EVENT_BACKED_OFF : 0u;
    s->total_growths += scale > old;
    s->total_backoffs += scale < old;

    if (!(s->events & GSC_EVENT_ABSORBED)) {
        s->failed_backoffs = overflow && scale == old ? s->failed_backoffs + 1 : 0;
        s->events |= s->failed_backoffs > 0 ? GSC_EVENT_BACKOFF_FAILED : 0u;
    }
    if (p->max_failed_backoffs && (uint64_t)s->failed_backoffs >= p->max_failed_backoffs)
        s->events |= GSC_EVENT_STOPPED;
    return scale;
}

#endif

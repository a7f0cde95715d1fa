/* SPDX-License-Identifier: MIT */
/*
 * The policy step: how a scale changes, by the rules of every framework. The CPU and the GPU share
 * this source. It allocates nothing and knows no errors or frameworks: a
 * framework's rules are field values.
 *
 * Its parts: three counts (good_steps, steps_since_change, overflows_since_reset), each with a
 * rule that resets it; a change is rounded by the policy's arithmetic, then limited; an overflow is
 * absorbed or lowers the scale; a backoff fails if it does not lower the scale.
 */
#ifndef GSC_POLICY_H
#define GSC_POLICY_H

#include <math.h>

#include "gradscaler.h"
#include "log2.h"

GSC_FUNCTION int gsc_positive(double x)
{
    return x > 0 && isfinite(x);
}

GSC_FUNCTION double gsc_growth_factor(const gsc_policy *p)
{
    return p->growth_factor == 0.0 ? 1.0 : p->growth_factor;
}

/* Returns the factor of a backoff; by default it divides by growth_factor. */
GSC_FUNCTION double gsc_backoff_factor(const gsc_policy *p)
{
    return p->backoff_factor == 0.0 ? 1.0 / gsc_growth_factor(p) : p->backoff_factor;
}

GSC_FUNCTION uint32_t gsc_hysteresis(const gsc_policy *p)
{
    return p->hysteresis > 1 ? p->hysteresis : 1;
}

/* Returns 1 if x can be a scale: x and 1 / x are finite and above 0. */
GSC_FUNCTION int gsc_usable(double x)
{
    return gsc_positive(x) && gsc_positive(1.0 / x);
}

/* Returns x, rounded by the policy's arithmetic. */
GSC_FUNCTION double gsc_rounded(const gsc_policy *p, double x)
{
    if (p->arithmetic == GSC_ARITHMETIC_F64)
        return x;
    double rounded = (double)(float)x;
    int flushed = p->arithmetic == GSC_ARITHMETIC_F32_FLUSH && fabs(rounded) < 0x1p-126;
    return flushed ? 0.0 : rounded;
}

/* Returns a growth or backoff factor, rounded if the policy's arithmetic rounds factors first. */
GSC_FUNCTION double gsc_rounded_factor(const gsc_policy *p, double y)
{
    return p->arithmetic >= GSC_ARITHMETIC_F32 ? gsc_rounded(p, y) : y;
}

/* Returns the new scale after a change from `old` that reached the limit `bound`. */
GSC_FUNCTION double gsc_limited(gsc_state *s, uint32_t rule, double old, double bound,
                                uint32_t event)
{
    s->events |= event | (rule == GSC_LIMIT_STOP ? GSC_EVENT_STOPPED : 0u);
    int old_is_past = event == GSC_EVENT_AT_FLOOR ? old < bound : old > bound;
    int stays = rule == GSC_LIMIT_REJECT || rule == GSC_LIMIT_STOP ||
                (rule == GSC_LIMIT_CLAMP_UNLESS_PAST && old_is_past);
    return stays ? old : bound;
}

/* Rounds a limit x > 0 by the policy's arithmetic, up or down. */
GSC_FUNCTION double gsc_rounded_limit(const gsc_policy *p, double x, int round_up)
{
    if (p->arithmetic == GSC_ARITHMETIC_F64)
        return x;
    float near = (float)x;
    if (round_up ? (double)near < x : (double)near > x)
        near = gsc_float(gsc_float_bits(near) + (round_up ? 1u : ~0u));
    return gsc_rounded(p, (double)near);
}

GSC_FUNCTION double gsc_max_scale(const gsc_policy *p)
{
    return p->max_scale == 0.0 ? (double)INFINITY : gsc_rounded_limit(p, p->max_scale, 0);
}

GSC_FUNCTION double gsc_min_scale(const gsc_policy *p)
{
    return p->min_scale == 0.0 ? 0.0 : gsc_rounded_limit(p, p->min_scale, 1);
}

/* Returns x, or the ceiling if it is enforced and x is above it. */
GSC_FUNCTION double gsc_below_ceiling(const gsc_policy *p, double x)
{
    if (p->ceiling_rule != GSC_LIMIT_ENFORCE)
        return x;
    double ceiling = gsc_max_scale(p);
    return x > ceiling ? ceiling : x;
}

/* Returns the first scale, before it is limited and rounded. */
GSC_FUNCTION double gsc_given_first(const gsc_policy *p)
{
    return p->init_scale == 0.0 ? 1.0 : p->init_scale;
}

/* Returns 1 if the first scale is above the ceiling, and nothing lowers it. */
GSC_FUNCTION int gsc_starts_too_high(const gsc_policy *p)
{
    return p->ceiling_rule != GSC_LIMIT_ENFORCE && p->max_scale != 0.0 &&
           gsc_given_first(p) > p->max_scale;
}

/* Returns the scale before the first step. */
GSC_FUNCTION double gsc_first_scale(const gsc_policy *p)
{
    const double first = gsc_given_first(p), ceiling = gsc_max_scale(p);
    const double scale = gsc_rounded(p, gsc_below_ceiling(p, first));
    return first <= p->max_scale && scale > ceiling ? ceiling : scale; /* rounded past it */
}

/* Returns x, or the floor if it is enforced and x is below it. */
GSC_FUNCTION double gsc_above_floor(const gsc_policy *p, double x)
{
    const double floor = p->floor_rule == GSC_LIMIT_ENFORCE ? gsc_min_scale(p) : 0.0;
    return x < floor ? floor : x;
}

GSC_FUNCTION double gsc_back_off(const gsc_policy *p, gsc_state *s, double old)
{
    const int divides = p->backoff_factor == 0.0;
    double factor = gsc_rounded_factor(p, divides ? gsc_growth_factor(p) : p->backoff_factor);
    double new_scale = gsc_rounded(p, divides ? old / factor : old * factor);
    s->steps_since_change = 0;
    if (p->overflow_reset & GSC_RESET_ON_BACKOFF)
        s->overflows_since_reset = 0;
    double floor = gsc_min_scale(p);
    return new_scale > floor ? new_scale
                             : gsc_limited(s, p->floor_rule, old, floor, GSC_EVENT_AT_FLOOR);
}

GSC_FUNCTION double gsc_grow(const gsc_policy *p, gsc_state *s, double old)
{
    double growth = gsc_growth_factor(p);
    double new_scale = gsc_rounded(p, old * gsc_rounded_factor(p, growth));
    double ceiling = gsc_max_scale(p);
    s->steps_since_change = 0;
    if (p->growth_rule != GSC_GROWTH_EVERY)
        s->good_steps = 0;
    if (p->overflow_reset & GSC_RESET_ON_GROWTH)
        s->overflows_since_reset = 0;
    return new_scale < ceiling
               ? new_scale
               : gsc_limited(s, p->ceiling_rule, old, ceiling, GSC_EVENT_AT_CEILING);
}

/* Returns 1 if the hysteresis or the tolerance absorbs this overflow. */
GSC_FUNCTION int gsc_absorbs(const gsc_policy *p, const gsc_state *s)
{
    double overflow_share = (double)s->overflows_since_reset / (double)s->steps_since_change;
    int tolerated = p->quirks & GSC_QUIRK_TOLERANCE_EXCLUSIVE
                        ? overflow_share < p->overflow_tolerance
                        : overflow_share <= p->overflow_tolerance;
    return tolerated || s->overflows_since_reset < (int64_t)p->hysteresis;
}

GSC_FUNCTION int gsc_growth_due(const gsc_policy *p, const gsc_state *s)
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

/* Counts an overflow. Returns the new scale after a backoff or growth, if one is due. */
GSC_FUNCTION double gsc_back_off_or_grow(const gsc_policy *p, gsc_state *s, int overflow,
                                         double scale)
{
    if (overflow) {
        s->good_steps = 0;
        s->overflows_since_reset++;
        if (gsc_absorbs(p, s))
            s->events |= GSC_EVENT_ABSORBED;
        else
            scale = gsc_back_off(p, s, scale);
        if (p->quirks & GSC_QUIRK_OVERFLOW_IS_GOOD) { /* after the resets; counts a step twice */
            s->good_steps++;
            s->steps_since_change++;
        }
    } else if (p->overflow_reset & GSC_RESET_ON_GOOD_STEP) {
        s->overflows_since_reset = 0;
    }
    /* After an overflow, only policies that count overflow steps can be due for a growth. */
    return gsc_growth_due(p, s) ? gsc_grow(p, s, scale) : scale;
}

/* ---- the guard: skips or clips steps with a finite but unusual norm ---- */

/* The largest norm that is judged: the square of a difference of two norms stays finite. */
#define GSC_GUARD_MAX_VALUE 0x1p500

GSC_FUNCTION int gsc_guards(const gsc_policy *p)
{
    return p->guard_norm != 0.0 || p->guard_ratio != 0.0 || p->guard_sigmas != 0.0;
}

/* Returns the measurements that a policy needs, as GSC_WANT_* bits. */
GSC_FUNCTION uint32_t gsc_policy_wants(const gsc_policy *policy)
{
    return policy->overflow_test == GSC_TEST_NORM || gsc_guards(policy) ? GSC_WANT_NORM : 0u;
}

/* Returns what the guard judges: the norm of a report, or its number. */
GSC_FUNCTION double gsc_guarded_value(const gsc_report *report)
{
    return report->kind == GSC_REPORT_NUMBER ? report->number : sqrt(report->sum_squares);
}

/* Returns the least of the policy's thresholds, or infinity if there is none yet. */
GSC_FUNCTION double gsc_guard_threshold(const gsc_policy *p, const gsc_state *s)
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
 * Adds a sample to the mean and the variance, by Welford (Technometrics 4, 1962); with a decay, by
 * Finch ("Incremental calculation of weighted mean and variance", 2009). A mean of squares minus a
 * squared mean would lose digits, and could be negative.
 */
GSC_FUNCTION void gsc_guard_add_sample(const gsc_policy *p, gsc_state *s, double x)
{
    int64_t n = ++s->guard_count;
    double decay = p->guard_decay;
    int corrected = (p->guard_flags & GSC_GUARD_BIAS_CORRECTED) != 0;
    int weighs_equally = decay == 0.0 || (n == 1 && (corrected || p->guard_init_mean == 0.0)) ||
                         (!corrected && (uint64_t)n <= p->guard_warmup);
    double weight = weighs_equally ? 1.0 / (double)n : 1.0 - decay;
    if (corrected && !weighs_equally)
        weight = weight / (1.0 - gsc_exp2((double)n * gsc_log2(decay)));
    if (weight > 1.0) /* rounded up */
        weight = 1.0;
    double old_weight = 1.0 - weight;
    double distance = x - s->guard_mean;
    double change = weight * distance;
    s->guard_mean += change;
    if (p->guard_flags & GSC_GUARD_VARIANCE_AFTER_MEAN && !weighs_equally) {
        double new_distance = x - s->guard_mean;
        s->guard_variance = old_weight * s->guard_variance + weight * (new_distance * new_distance);
    } else {
        s->guard_variance = old_weight * (s->guard_variance + distance * change);
    }
}

/* Returns the norm to which a norm x above the threshold is clipped. */
GSC_FUNCTION double gsc_guard_target(const gsc_policy *p, const gsc_state *s, double threshold,
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

/* Judges the norm x of a step without overflow: lets it pass, clips or skips it. */
GSC_FUNCTION void gsc_guard_judge(const gsc_policy *p, gsc_state *s, double x)
{
    if (s->guard_count == 0 && s->guard_mean == 0.0)
        s->guard_mean = p->guard_init_mean;
    const double threshold = gsc_guard_threshold(p, s);
    int is_outlier = p->guard_flags & GSC_GUARD_INCLUSIVE ? x >= threshold : x > threshold;
    s->guard_value = x + 0.0; /* makes -0 0 */
    s->guard_threshold = isfinite(threshold) ? threshold : 0.0;
    s->guard_in_a_row = is_outlier ? s->guard_in_a_row + 1 : 0;
    if (!is_outlier) {
        gsc_guard_add_sample(p, s, x);
        return;
    }
    s->events |= GSC_EVENT_OUTLIER;
    int reached_max_in_a_row =
        p->guard_max_in_a_row != 0 && (uint64_t)s->guard_in_a_row >= p->guard_max_in_a_row;
    if (reached_max_in_a_row && !(p->guard_flags & GSC_GUARD_STOP)) { /* accepts the new level */
        gsc_guard_add_sample(p, s, x);
        return;
    }
    double target = gsc_guard_target(p, s, threshold, x);
    double multiplier = p->guard_flags & GSC_GUARD_CLIP && target > 0.0 ? target / x : 0.0;
    if (multiplier > 1.0) /* rounded up */
        multiplier = 1.0;
    s->guard_multiplier = multiplier;
    s->events |= multiplier > 0.0 ? GSC_EVENT_CLIPPED : GSC_EVENT_SKIPPED;
    s->events |= reached_max_in_a_row ? GSC_EVENT_STOPPED : 0u;
    s->total_guard_skips += multiplier == 0.0;
    s->total_guard_clips += multiplier > 0.0;
    if (p->guard_sample != GSC_SAMPLE_NONE)
        gsc_guard_add_sample(p, s, p->guard_sample == GSC_SAMPLE_AS_IS ? x : target);
}

/* Returns 1 if the policy keeps the scale because the loss was not finite before scaling. */
GSC_FUNCTION int gsc_holds(const gsc_policy *p, uint32_t loss)
{
    return p->bad_loss_rule == GSC_BAD_LOSS_HOLD && loss == GSC_LOSS_NOT_FINITE;
}

GSC_FUNCTION void gsc_count_loss(gsc_state *s, uint32_t loss, int overflow)
{
    if (loss == GSC_LOSS_FINITE || (loss == GSC_LOSS_UNKNOWN && !overflow))
        s->bad_losses_in_a_row = 0;
    s->bad_losses_in_a_row += loss == GSC_LOSS_NOT_FINITE;
    s->total_bad_losses += loss == GSC_LOSS_NOT_FINITE;
}

/*
 * Updates the state by one optimizer step and returns the new scale. Only policies with a guard
 * read guarded_value. The caller sets s->factor and s->next.
 */
GSC_FUNCTION double gsc_policy_step(const gsc_policy *p, gsc_state *s, int overflow, uint32_t loss,
                                    double guarded_value)
{
    double old = s->next.scale, scale = old;
    s->events = overflow ? GSC_EVENT_SKIPPED : 0u;
    s->guard_multiplier = 1.0;
    s->guard_value = s->guard_threshold = 0.0;
    s->total_updates++;
    gsc_count_loss(s, loss, overflow);
    if (gsc_holds(p, loss)) {
        s->events = GSC_EVENT_SKIPPED | GSC_EVENT_BAD_LOSS;
        if ((uint64_t)s->bad_losses_in_a_row >= p->max_failed_backoffs)
            s->events |= GSC_EVENT_STOPPED;
        return old;
    }
    if (gsc_guards(p) && !overflow)
        gsc_guard_judge(p, s, guarded_value);
    if (s->events & GSC_EVENT_OUTLIER && s->events & GSC_EVENT_SKIPPED &&
        !(p->guard_flags & GSC_GUARD_SKIP_IS_GOOD))
        return old;
    s->total_overflows += overflow;
    s->good_steps++;
    s->steps_since_change++;
    scale = gsc_back_off_or_grow(p, s, overflow, old);
    scale = gsc_rounded(p, gsc_above_floor(p, gsc_below_ceiling(p, scale)));
    s->events |= scale > old ? GSC_EVENT_GREW : scale < old ? GSC_EVENT_BACKED_OFF : 0u;
    s->total_growths += scale > old;
    s->total_backoffs += scale < old;
    if (scale > old || (!overflow && s->updates_at_growth == 0)) {
        s->updates_at_growth = s->total_updates;
        s->overflows_at_growth = s->total_overflows;
    }

    if (!(s->events & GSC_EVENT_ABSORBED)) {
        s->failed_backoffs = overflow && scale == old ? s->failed_backoffs + 1 : 0;
        s->events |= s->failed_backoffs > 0 ? GSC_EVENT_BACKOFF_FAILED : 0u;
    }
    if (p->max_failed_backoffs && (uint64_t)s->failed_backoffs >= p->max_failed_backoffs)
        s->events |= GSC_EVENT_STOPPED;
    return scale;
}

#endif

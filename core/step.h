/* SPDX-License-Identifier: MIT */
/*
 * What happens to factors, reports and states, as values: one source for the CPU and the GPU. What
 * a failure is called, and how to mend it, is said where there is someone to read it: in factor.c
 * and state.c.
 */
#ifndef GSC_STEP_H
#define GSC_STEP_H

#include <string.h>

#include "policy.h"

/* ---- factors ---- */

static inline gsc_factor gsc_factor_of(double scale, uint64_t serial)
{
    gsc_factor f;
    f.scale = scale;
    f.inverse = 1.0 / scale;
    f.scale_f32 = (float)f.scale;
    f.inverse_f32 = (float)f.inverse;
    f.serial = serial;
    return f;
}

static inline gsc_status gsc_factor_status(const gsc_factor *f)
{
    return gsc_positive(f->scale) && gsc_positive(f->inverse) ? GSC_OK : GSC_ERROR_FACTOR;
}

static inline gsc_status gsc_factor_times(const gsc_factor *factor, double by, gsc_factor *out)
{
    gsc_factor product = *factor;
    product.scale = factor->scale * by;
    product.inverse = factor->inverse / by;
    product.scale_f32 = (float)product.scale;
    product.inverse_f32 = (float)product.inverse;
    if (gsc_factor_status(&product) != GSC_OK)
        return GSC_ERROR_VALUE;
    *out = product;
    return GSC_OK;
}

static inline gsc_status gsc_norm_status(const gsc_report *report)
{
    return !(report->absent & GSC_WANT_NORM) && report->status == GSC_OK &&
                   report->sum_squares >= 0 && isfinite(report->sum_squares)
               ? GSC_OK
               : GSC_ERROR_REPORT;
}

static inline gsc_factor gsc_factor_clipped(const gsc_factor *factor, const gsc_report *report,
                                            double max_norm)
{
    gsc_factor clipped = *factor;
    double coefficient = max_norm / (sqrt(report->sum_squares) + 1e-6);
    if (coefficient < 1.0)
        clipped.inverse *= coefficient;
    clipped.inverse_f32 = (float)clipped.inverse;
    return clipped;
}

/* ---- reports ---- */

/* Wraps where a foreign report is absurd, instead of undefined behaviour. */
static inline int64_t gsc_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline gsc_report gsc_merged(const gsc_report *a, const gsc_report *b)
{
    gsc_report r;
    memset(&r, 0, sizeof r);
    r.overflow = a->overflow || a->found_inf != 0 || b->overflow || b->found_inf != 0;
    r.found_inf = (float)r.overflow;
    r.amax = a->amax > b->amax || isnan(a->amax) ? a->amax : b->amax;
    r.absent = a->absent | b->absent;
    r.first_bad = a->first_bad < b->first_bad ? a->first_bad : b->first_bad;
    r.status = a->status < b->status ? a->status : b->status;
    r.sum_squares = a->sum_squares + b->sum_squares;
    r.elements = gsc_add(a->elements, b->elements);
    r.nan_count = gsc_add(a->nan_count, b->nan_count);
    r.inf_count = gsc_add(a->inf_count, b->inf_count);
    r.zeros_made = gsc_add(a->zeros_made, b->zeros_made);
    r.subnormals_made = gsc_add(a->subnormals_made, b->subnormals_made);
    r.histogram_elements = gsc_add(a->histogram_elements, b->histogram_elements);
    for (uint32_t k = 0; k < sizeof r.histogram / sizeof *r.histogram; k++)
        r.histogram[k] = gsc_add(a->histogram[k], b->histogram[k]);
    return r;
}

/* ---- states ---- */

#define GSC_COUNT_IS_SANE(count) ((count) >= 0 && (count) < INT64_MAX / 2)

/* X(field, holds) for what holds of the state `s` after any update. */
#define GSC_FOR_STATE_CHECKS(X)                                                                    \
    X(factor.scale, s->factor.scale >= 0 && (s->factor.scale > 0 || s->factor.serial > 0))         \
    X(next.scale, s->next.scale >= 0 && (s->next.scale > 0 || s->next.serial > 0))                 \
    X(factor.inverse, s->factor.inverse == 1.0 / s->factor.scale)                                  \
    X(next.inverse, s->next.inverse == 1.0 / s->next.scale)                                        \
    X(good, GSC_COUNT_IS_SANE(s->good))                                                            \
    X(steps, GSC_COUNT_IS_SANE(s->steps))                                                          \
    X(overflows, GSC_COUNT_IS_SANE(s->overflows))                                                  \
    X(stalled, GSC_COUNT_IS_SANE(s->stalled))                                                      \
    X(skipped, GSC_COUNT_IS_SANE(s->skipped))                                                      \
    X(growths, GSC_COUNT_IS_SANE(s->growths))                                                      \
    X(backoffs, GSC_COUNT_IS_SANE(s->backoffs))                                                    \
    X(mean, isfinite(s->mean))                                                                     \
    X(slow_mean, isfinite(s->slow_mean))                                                           \
    X(mean_square, isfinite(s->mean_square))                                                       \
    X(mean_start, s->mean_start >= 0 && s->mean_start <= 1)                                        \
    X(slow_start, s->slow_start >= 0 && s->slow_start <= 1)

static inline gsc_status gsc_state_status(const gsc_state *s)
{
#define GSC_HOLDS(field, holds)                                                                    \
    if (!(holds))                                                                                  \
        return GSC_ERROR_STATE;
    GSC_FOR_STATE_CHECKS(GSC_HOLDS)
#undef GSC_HOLDS
    return GSC_OK;
}

static inline gsc_state gsc_initial_state(const gsc_policy *policy)
{
    gsc_state s;
    memset(&s, 0, sizeof s);
    double scale = policy->init_scale == 0 ? 1.0 : policy->init_scale;
    if (policy->ceiling_rule == GSC_LIMIT_ALWAYS && scale > gsc_max_scale(policy))
        scale = gsc_max_scale(policy);
    s.factor = s.next = gsc_factor_of(gsc_format(policy, scale), 0);
    s.mean_start = s.slow_start = 1;
    return s;
}

/* Whether the report tells what the policy judges by. */
static inline gsc_status gsc_report_status(const gsc_policy *policy, const gsc_report *report)
{
    uint32_t needed = (policy->overflow_test == GSC_OVERFLOW_NORM ? GSC_WANT_NORM : 0u) |
                      (policy->target_amax != 0 ? GSC_WANT_AMAX : 0u);
    return report->status == GSC_OK && !(report->absent & needed) && report->amax >= 0 &&
                   isfinite(report->amax)
               ? GSC_OK
               : GSC_ERROR_REPORT;
}

static inline int gsc_overflowed(const gsc_policy *policy, const gsc_report *report)
{
    if (report->overflow || report->found_inf != 0)
        return 1;
    /* Not `>`: a sum of squares that is NaN is an overflow, too. */
    return policy->overflow_test == GSC_OVERFLOW_NORM && !(report->sum_squares <= 0x1.fffffep127);
}

static inline gsc_state gsc_updated(const gsc_policy *policy, const gsc_state *state,
                                    const gsc_report *report)
{
    gsc_state s = *state;
    double newest = gsc_policy_step(policy, &s, gsc_overflowed(policy, report), report->amax);
    s.next = gsc_factor_of(newest, state->next.serial + 1);
    s.factor = policy->apply_delay ? state->next : s.next;
    s.status = GSC_OK;
    return s;
}

/* `rounded` is usable, and in the policy's format. */
static inline gsc_state gsc_rescaled(const gsc_policy *policy, const gsc_state *state,
                                     double rounded)
{
    gsc_state s = gsc_initial_state(policy);
    s.factor = s.next = gsc_factor_of(rounded, state->next.serial + 1);
    s.skipped = state->skipped;
    s.growths = state->growths;
    s.backoffs = state->backoffs;
    return s;
}

#endif

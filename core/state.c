/* SPDX-License-Identifier: MIT */
/* Reports and states: the merge of what was seen, and the update that it leads to. */
#include <math.h>
#include <string.h>

#include "internal.h"
#include "policy.h"

/* ---- reports ---- */

/* Wraps where a foreign report is absurd, instead of undefined behaviour. */
static int64_t add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

gsc_status gsc_merge(const gsc_exec *on, const gsc_report *a, const gsc_report *b, gsc_report *out,
                     gsc_error *err)
{
    gsc_context *context;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_REQUIRE(a, 1);
    GSC_REQUIRE(b, 2);
    GSC_REQUIRE(out, 3);
    gsc_report r;
    memset(&r, 0, sizeof r);
    r.overflow = a->overflow || a->found_inf != 0 || b->overflow || b->found_inf != 0;
    r.found_inf = (float)r.overflow;
    r.amax = a->amax > b->amax || isnan(a->amax) ? a->amax : b->amax;
    r.absent = a->absent | b->absent;
    r.first_bad = a->first_bad < b->first_bad ? a->first_bad : b->first_bad;
    r.status = a->status < b->status ? a->status : b->status;
    r.sum_squares = a->sum_squares + b->sum_squares;
    r.elements = add(a->elements, b->elements);
    r.nan_count = add(a->nan_count, b->nan_count);
    r.inf_count = add(a->inf_count, b->inf_count);
    r.zeros_made = add(a->zeros_made, b->zeros_made);
    r.subnormals_made = add(a->subnormals_made, b->subnormals_made);
    r.histogram_elements = add(a->histogram_elements, b->histogram_elements);
    for (int bin = 0; bin < GSC_BINS; bin++)
        r.histogram[bin] = add(a->histogram[bin], b->histogram[bin]);
    *out = r;
    return GSC_OK;
}

/* ---- the state ---- */

static gsc_state initial_state(const gsc_policy *policy)
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

gsc_status gsc_state_check(const gsc_state *s, int argument, gsc_error *err)
{
#define CHECK(field, holds)                                                                        \
    if (!(holds))                                                                                  \
    return gsc_fail(err, GSC_ERROR_STATE, argument, -1, "state." #field,                           \
                    "state." #field " is %.17g, which no update leads to: use gsc_state_init",     \
                    (double)s->field)
#define COUNT(field) CHECK(field, s->field >= 0 && s->field < INT64_MAX / 2)
    CHECK(factor.scale, s->factor.scale >= 0 && (s->factor.scale > 0 || s->factor.serial > 0));
    CHECK(next.scale, s->next.scale >= 0 && (s->next.scale > 0 || s->next.serial > 0));
    CHECK(factor.inverse, s->factor.inverse == 1.0 / s->factor.scale);
    CHECK(next.inverse, s->next.inverse == 1.0 / s->next.scale);
    COUNT(good);
    COUNT(steps);
    COUNT(overflows);
    COUNT(stalled);
    COUNT(skipped);
    COUNT(growths);
    COUNT(backoffs);
    CHECK(mean, isfinite(s->mean));
    CHECK(slow_mean, isfinite(s->slow_mean));
    CHECK(mean_square, isfinite(s->mean_square));
    CHECK(mean_start, s->mean_start >= 0 && s->mean_start <= 1);
    CHECK(slow_start, s->slow_start >= 0 && s->slow_start <= 1);
#undef COUNT
#undef CHECK
    return GSC_OK;
}

gsc_status gsc_state_init(const gsc_exec *on, const gsc_policy *policy, gsc_state *out,
                          gsc_error *err)
{
    gsc_context *context;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(out, 2);
    *out = initial_state(&full);
    return GSC_OK;
}

/* Whether the report tells what the policy judges by. */
static gsc_status report_check(const gsc_policy *policy, const gsc_report *report, gsc_error *err)
{
    if (report->status != GSC_OK)
        return gsc_fail(err, GSC_ERROR_REPORT, 3, -1, "report.status", "the report failed: %s",
                        gsc_status_string((gsc_status)report->status));
    if (policy->overflow_test == GSC_OVERFLOW_NORM && (report->absent & GSC_WANT_NORM))
        return gsc_fail(err, GSC_ERROR_REPORT, 3, -1, "report.sum_squares",
                        "the policy judges by the norm, which the report lacks: ask for "
                        "GSC_WANT_NORM");
    if (policy->target_amax != 0 && (report->absent & GSC_WANT_AMAX))
        return gsc_fail(err, GSC_ERROR_REPORT, 3, -1, "report.amax",
                        "the policy predicts from amax, which the report lacks: ask for "
                        "GSC_WANT_AMAX");
    if (!(report->amax >= 0) || !isfinite(report->amax))
        return gsc_fail(err, GSC_ERROR_REPORT, 3, -1, "report.amax",
                        "report.amax is %g: it must be finite and not negative", report->amax);
    return GSC_OK;
}

static bool overflowed(const gsc_policy *policy, const gsc_report *report)
{
    if (report->overflow || report->found_inf != 0)
        return true;
    /* Not `>`: a sum of squares that is NaN is an overflow, too. */
    return policy->overflow_test == GSC_OVERFLOW_NORM && !(report->sum_squares <= 0x1.fffffep127);
}

gsc_status gsc_update(const gsc_exec *on, const gsc_policy *policy, const gsc_state *state,
                      const gsc_report *report, gsc_state *out, gsc_error *err)
{
    gsc_context *context;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(report, 3);
    GSC_REQUIRE(out, 4);
    GSC_TRY(gsc_state_check(state, 2, err));
    GSC_TRY(report_check(&full, report, err));
    gsc_state s = *state;
    double newest = gsc_policy_step(&full, &s, overflowed(&full, report), report->amax);
    s.next = gsc_factor_of(newest, state->next.serial + 1);
    s.factor = full.apply_delay ? state->next : s.next;
    *out = s;
    return GSC_OK;
}

gsc_status gsc_set_scale(const gsc_exec *on, const gsc_policy *policy, const gsc_state *state,
                         const double *scale, gsc_state *out, gsc_error *err)
{
    gsc_context *context;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(scale, 3);
    GSC_REQUIRE(out, 4);
    GSC_TRY(gsc_state_check(state, 2, err));
    double rounded = gsc_format(&full, *scale);
    if (!gsc_usable(rounded))
        return gsc_fail(err, GSC_ERROR_VALUE, 3, -1, "scale",
                        "scale is %g: it and its inverse must be finite and above 0", *scale);
    gsc_state s = initial_state(&full);
    s.factor = s.next = gsc_factor_of(rounded, state->next.serial + 1);
    s.skipped = state->skipped;
    s.growths = state->growths;
    s.backoffs = state->backoffs;
    *out = s;
    return GSC_OK;
}

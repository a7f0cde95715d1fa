/* SPDX-License-Identifier: MIT */
/* Reports and states: the merge of what was seen, and the update that it leads to. */
#include "cuda/enqueue.h"
#include "step.h"

/* ---- reports ---- */

gsc_status gsc_merge(const gsc_exec *on, const gsc_report *a, const gsc_report *b, gsc_report *out,
                     gsc_error *err)
{
    gsc_exec where;
    GSC_TRY(gsc_exec_read(on, &where, err));
    GSC_REQUIRE(a, 1);
    GSC_REQUIRE(b, 2);
    GSC_REQUIRE(out, 3);
    if (where.context && where.context->cuda)
        return gsc_cuda_step(&where, GSC_CUDA_MERGE, NULL, a, b, 0, out, err);
    *out = gsc_merged(a, b);
    return GSC_OK;
}

/* ---- the state ---- */

gsc_status gsc_state_check(const gsc_state *s, int argument, gsc_error *err)
{
#define CHECK(field, holds)                                                                        \
    if (!(holds))                                                                                  \
        return gsc_fail(err, GSC_ERROR_STATE, argument, -1, "state." #field,                       \
                        "state." #field " is %.17g, which no update leads to: use gsc_state_init", \
                        (double)s->field);
    GSC_FOR_STATE_CHECKS(CHECK)
#undef CHECK
    return GSC_OK;
}

gsc_status gsc_state_init(const gsc_exec *on, const gsc_policy *policy, gsc_state *out,
                          gsc_error *err)
{
    gsc_exec where;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &where, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(out, 2);
    if (where.context && where.context->cuda)
        return gsc_cuda_step(&where, GSC_CUDA_STATE_INIT, &full, NULL, NULL, 0, out, err);
    *out = gsc_initial_state(&full);
    return GSC_OK;
}

/* gsc_report_status in words. */
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

gsc_status gsc_update(const gsc_exec *on, const gsc_policy *policy, const gsc_state *state,
                      const gsc_report *report, gsc_state *out, gsc_error *err)
{
    gsc_exec where;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &where, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(report, 3);
    GSC_REQUIRE(out, 4);
    if (where.context && where.context->cuda)
        return gsc_cuda_step(&where, GSC_CUDA_UPDATE, &full, state, report, 0, out, err);
    GSC_TRY(gsc_state_check(state, 2, err));
    GSC_TRY(report_check(&full, report, err));
    *out = gsc_updated(&full, state, report);
    return GSC_OK;
}

gsc_status gsc_set_scale(const gsc_exec *on, const gsc_policy *policy, const gsc_state *state,
                         const double *scale, gsc_state *out, gsc_error *err)
{
    gsc_exec where;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &where, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(scale, 3);
    GSC_REQUIRE(out, 4);
    if (where.context && where.context->cuda)
        return gsc_cuda_step(&where, GSC_CUDA_SET_SCALE, &full, state, scale, 0, out, err);
    GSC_TRY(gsc_state_check(state, 2, err));
    double rounded = gsc_format(&full, *scale);
    if (!gsc_usable(rounded))
        return gsc_fail(err, GSC_ERROR_VALUE, 3, -1, "scale",
                        "scale is %g: it and its inverse must be finite and above 0", *scale);
    *out = gsc_rescaled(&full, state, rounded);
    return GSC_OK;
}

/* SPDX-License-Identifier: MIT */
/* Factors: the snapshot of a scale that one loss was multiplied by, and what is folded into it. */
#include "cuda/enqueue.h"
#include "step.h"

gsc_status gsc_factor_init(double scale, gsc_factor *out, gsc_error *err)
{
    GSC_REQUIRE(out, 1);
    if (!gsc_usable(scale))
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1, "scale",
                        "scale is %g: it and its inverse must be finite and above 0", scale);
    *out = gsc_factor_of(scale, 0);
    return GSC_OK;
}

gsc_status gsc_factor_check(const gsc_factor *factor, int argument, gsc_error *err)
{
    if (!gsc_positive(factor->scale)) {
        const char *how = "no gsc_state_init or gsc_factor_init made it";
        if (factor->scale == 0 && factor->serial)
            how = "overflows lowered it without a floor; set policy.min_scale";
        else if (factor->scale > 0 && factor->serial)
            how = "it grew without a ceiling; set policy.max_scale";
        return gsc_fail(err, GSC_ERROR_FACTOR, argument, -1, "factor.scale",
                        "factor.scale is %g after %llu updates: %s", factor->scale,
                        (unsigned long long)factor->serial, how);
    }
    if (!gsc_positive(factor->inverse))
        return gsc_fail(err, GSC_ERROR_FACTOR, argument, -1, "factor.inverse",
                        "factor.inverse is %g (factor.scale %g): it must be finite and above 0",
                        factor->inverse, factor->scale);
    return GSC_OK;
}

gsc_status gsc_factor_multiply(const gsc_exec *on, const gsc_factor *factor, double by,
                               gsc_factor *out, gsc_error *err)
{
    gsc_exec where;
    gsc_factor product;
    GSC_TRY(gsc_exec_read(on, &where, err));
    GSC_REQUIRE(factor, 1);
    GSC_REQUIRE(out, 3);
    if (where.context && where.context->cuda) {
        if (!gsc_positive(by))
            return gsc_fail(err, GSC_ERROR_VALUE, 2, -1, "by",
                            "by is %g: it must be finite and above 0", by);
        return gsc_cuda_step(&where, GSC_CUDA_FACTOR_MULTIPLY, NULL, factor, NULL, by, out, err);
    }
    GSC_TRY(gsc_factor_check(factor, 1, err));
    if (gsc_factor_times(factor, by, &product) != GSC_OK)
        return gsc_fail(err, GSC_ERROR_VALUE, 2, -1, "by",
                        "by is %g: it, the scale and its inverse must stay finite and above 0", by);
    *out = product;
    return GSC_OK;
}

gsc_status gsc_clip_factor(const gsc_exec *on, const gsc_report *report, const gsc_factor *factor,
                           double max_norm, gsc_factor *out, gsc_error *err)
{
    gsc_exec where;
    GSC_TRY(gsc_exec_read(on, &where, err));
    GSC_REQUIRE(report, 1);
    GSC_REQUIRE(out, 4);
    if (!gsc_positive(max_norm))
        return gsc_fail(err, GSC_ERROR_VALUE, 3, -1, "max_norm",
                        "max_norm is %g: it must be finite and above 0", max_norm);
    if (where.context && where.context->cuda)
        return gsc_cuda_step(&where, GSC_CUDA_CLIP_FACTOR, NULL, report, factor, max_norm, out,
                             err);
    gsc_factor clipped = factor ? *factor : gsc_factor_of(1, 0);
    GSC_TRY(gsc_factor_check(&clipped, 2, err));
    if (report->absent & GSC_WANT_NORM)
        return gsc_fail(err, GSC_ERROR_REPORT, 1, -1, "report.sum_squares",
                        "the report has no norm: ask for GSC_WANT_NORM");
    if (gsc_norm_status(report) != GSC_OK)
        return gsc_fail(err, GSC_ERROR_REPORT, 1, -1, "report.sum_squares",
                        "report.sum_squares is %g (status %lld): there is no norm to clip to",
                        report->sum_squares, (long long)report->status);
    clipped = gsc_factor_clipped(&clipped, report, max_norm);
    GSC_TRY(gsc_factor_check(&clipped, 2, err));
    *out = clipped;
    return GSC_OK;
}

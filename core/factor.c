/* SPDX-License-Identifier: MIT */
/* Factors: snapshots of a scale, multiplied or lowered by clipping. */
#include "backend.h"

gsc_status gsc_factor_init(double scale, gsc_factor *out, gsc_error *err)
{
    gsc_begin(err);
    GSC_REQUIRE(out, 1);
    const gsc_factor factor = gsc_factor_of(scale, 0);
    if (!gsc_has_floats(&factor))
        return gsc_fail_number(err, GSC_ERROR_VALUE, 0, -1, "scale", scale, 0, NAN,
                               "above 0 and finite as a float, as its inverse");
    *out = factor;
    return GSC_OK;
}

gsc_status gsc_factor_check(const gsc_factor *factor, int argument, gsc_error *err)
{
    if (!gsc_positive(factor->scale)) {
        const char *must = "finite and above 0: a state or a scale makes a factor";
        if (factor->scale == 0 && factor->generation)
            must = "above 0: overflows lowered it without a floor; set policy.min_scale";
        else if (factor->scale > 0 && factor->generation)
            must = "finite: it grew without a ceiling; set policy.max_scale";
        return gsc_fail_number(err, GSC_ERROR_FACTOR, argument, -1, "factor.scale", factor->scale,
                               0, NAN, must);
    }
    if (!gsc_positive(factor->inverse))
        return gsc_fail_number(err, GSC_ERROR_FACTOR, argument, -1, "factor.inverse",
                               factor->inverse, 0, NAN, "finite and above 0");
    if (!gsc_inverse_is_low(factor))
        return gsc_fail_number(err, GSC_ERROR_FACTOR, argument, -1, "factor.inverse",
                               factor->inverse, 0, 1 / factor->scale,
                               "1 / factor.scale or, where gradients are clipped, less");
    return GSC_OK;
}

gsc_status gsc_factor_multiply(const gsc_exec *exec, const gsc_factor *factor, double by,
                               gsc_factor *out, gsc_error *err)
{
    gsc_target on;
    GSC_TRY(gsc_begin_on(exec, &on, err));
    GSC_REQUIRE(factor, 1);
    GSC_REQUIRE(out, 3);
    if (!gsc_positive(by))
        return gsc_fail_number(err, GSC_ERROR_VALUE, 2, -1, "by", by, 0, NAN, "finite and above 0");
    const gsc_step step = {.kind = GSC_STEP_MULTIPLY, .factor = factor, .number = by, .out = out};
    return on.backend->step(&on.exec, &step, err);
}

gsc_status gsc_factor_clip_grad_norm(const gsc_exec *exec, const gsc_factor *factor,
                                     const gsc_report *report, double max_norm, gsc_factor *out,
                                     gsc_error *err)
{
    gsc_target on;
    GSC_TRY(gsc_begin_on(exec, &on, err));
    GSC_REQUIRE(report, 2);
    GSC_REQUIRE(out, 4);
    if (!gsc_positive(max_norm))
        return gsc_fail_number(err, GSC_ERROR_VALUE, 3, -1, "max_norm", max_norm, 0, NAN,
                               "finite and above 0");
    const gsc_step step = {
        .kind = GSC_STEP_CLIP, .factor = factor, .reports = report, .number = max_norm, .out = out};
    return on.backend->step(&on.exec, &step, err);
}

gsc_status gsc_factor_clip_outlier(const gsc_exec *exec, const gsc_factor *factor,
                                   const gsc_state *state, gsc_factor *out, gsc_error *err)
{
    gsc_target on;
    const gsc_step step = {.kind = GSC_STEP_GUARD, .factor = factor, .state = state, .out = out};
    GSC_TRY(gsc_begin_on(exec, &on, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(out, 3);
    return on.backend->step(&on.exec, &step, err);
}

/* SPDX-License-Identifier: MIT */
/*
 * Clipping by the norm of all gradients. The norm is known only when all were read, so one pass
 * reads, the clip becomes part of the factor, and a second pass unscales and clips at once.
 */
#include <math.h>

#include "must.h"

gsc_status unscale_and_clip(const gsc_policy *policy, gsc_state *state, const gsc_tensor *gradients,
                            const gsc_tensor *out, uint64_t count, double max_norm, int *apply,
                            gsc_error *err)
{
    gsc_report report;
    gsc_factor factor = state->factor;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.want = GSC_WANT_NORM;
    options.policy = policy;
    gsc_status status = gsc_measure(NULL, &factor, gradients, count, &options, &report, err);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, policy, state, &report, state, err);
    *apply = status == GSC_OK && !state->skip;
    if (*apply)
        status = gsc_factor_clip_grad_norm(NULL, &factor, &report, max_norm, &factor, err);
    if (*apply && status == GSC_OK)
        status = gsc_unscale(NULL, &factor, gradients, out, count, NULL, NULL, err);
    return status;
}

/* For an optimizer that multiplies the gradients itself: no second pass. */
gsc_status clip_for_fused_optimizer(const gsc_state *state, const gsc_tensor *gradients,
                                    uint64_t count, double max_norm, float *multiplier,
                                    gsc_report *report)
{
    gsc_factor clipped;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.want = GSC_WANT_NORM;
    gsc_status status = gsc_measure(NULL, &state->factor, gradients, count, &options, report, NULL);
    if (status == GSC_OK && !report->overflow)
        status = gsc_factor_clip_grad_norm(NULL, &state->factor, report, max_norm, &clipped, NULL);
    if (status == GSC_OK && !report->overflow)
        *multiplier = clipped.inverse_f32;
    return status;
}

int main(void)
{
    const float scaled = 65536;
    float weight[] = {3 * scaled, 0}, bias[] = {4 * scaled}, multiplier = 0;
    const gsc_tensor gradients[] = {{weight, 2, GSC_F32, 0, {0}}, {bias, 1, GSC_F32, 0, {0}}};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report report;
    int apply;
    MUST(gsc_policy_preset("recommended", &policy, NULL) == GSC_OK);
    MUST(gsc_state_init(NULL, &policy, &state, NULL) == GSC_OK);

    /* A norm of 5 becomes 1. */
    MUST(clip_for_fused_optimizer(&state, gradients, 2, 1, &multiplier, &report) == GSC_OK);
    MUST(report.sum_squares == 25 && fabsf(multiplier * scaled - 0.2f) < 1e-6f);
    MUST(unscale_and_clip(&policy, &state, gradients, gradients, 2, 1, &apply, NULL) == GSC_OK);
    MUST(apply && fabsf(weight[0] - 0.6f) < 1e-6f && fabsf(bias[0] - 0.8f) < 1e-6f);

    /* A norm below the limit stays. */
    weight[0] = bias[0] = scaled;
    MUST(unscale_and_clip(&policy, &state, gradients, gradients, 2, 10, &apply, NULL) == GSC_OK);
    MUST(apply && weight[0] == 1 && bias[0] == 1);

    /* An overflow is not clipped but skipped, and the gradients are left as they were. */
    weight[0] = scaled;
    bias[0] = HUGE_VALF;
    multiplier = 7;
    MUST(clip_for_fused_optimizer(&state, gradients, 2, 1, &multiplier, &report) == GSC_OK);
    MUST(report.found_inf == 1 && multiplier == 7);
    MUST(unscale_and_clip(&policy, &state, gradients, gradients, 2, 1, &apply, NULL) == GSC_OK);
    MUST(!apply && weight[0] == scaled && state.factor.scale == 32768);
    return 0;
}

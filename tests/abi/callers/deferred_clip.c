/* SPDX-License-Identifier: MIT */
/* Deferred clip: the norm is known only after all gradients were read, so one pass reads, the clip
 * is folded into the factor, and one pass unscales and clips at once. */
#include <gradscaler.h>
#include <stddef.h>

gsc_status unscale_and_clip(const gsc_policy *policy, gsc_state *state, const gsc_tensor *gradients,
                            const gsc_tensor *out, uint64_t count, double max_norm, int *apply,
                            gsc_error *err)
{
    gsc_report report;
    gsc_factor clipped;
    gsc_status status =
        gsc_check(NULL, &state->factor, gradients, count, GSC_WANT_NORM, &report, err);
    if (status == GSC_OK)
        status = gsc_clip_factor(NULL, &report, &state->factor, max_norm, &clipped, err);
    *apply = status == GSC_OK && !report.overflow;
    if (*apply)
        status = gsc_unscale(NULL, &clipped, gradients, out, count, 0, NULL, err);
    return status == GSC_OK ? gsc_update(NULL, policy, state, &report, state, err) : status;
}

/* For an optimizer that multiplies by the gradient scale itself: no second pass at all. */
gsc_status clip_for_fused_optimizer(const gsc_state *state, const gsc_tensor *gradients,
                                    uint64_t count, double max_norm, float *multiplier,
                                    gsc_report *report)
{
    gsc_factor clipped;
    gsc_status status =
        gsc_check(NULL, &state->factor, gradients, count, GSC_WANT_NORM, report, NULL);
    if (status == GSC_OK)
        status = gsc_clip_factor(NULL, report, &state->factor, max_norm, &clipped, NULL);
    if (status == GSC_OK)
        *multiplier = clipped.inverse_f32;
    return status;
}

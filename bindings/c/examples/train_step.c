/* SPDX-License-Identifier: MIT */
/*
 * A training loop. Its gradient passes through float16; its loss is so small that without scaling
 * float16 holds only zeros: then w stays 0. Every 25 steps it prints what the scaler did.
 */
#include <stdio.h>

#include <gradscaler.h>

static void print_metrics(const gsc_policy *policy, const gsc_state *state,
                          const gsc_report *report)
{
    gsc_entry metrics[32];
    uint64_t count = 0;
    gsc_state_metrics(policy, state, report, metrics, 32, &count, NULL);
    for (uint64_t i = 0; i < count; i++)
        if (metrics[i].kind != GSC_ENTRY_NULL)
            printf("%s=%g%c", metrics[i].key, metrics[i].value, i + 1 < count ? ' ' : '\n');
}

int main(void)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_state state;
    gsc_report report;
    gsc_error err;
    float w = 0, gradient;
    uint16_t half;
    const gsc_tensor full = {.data = &gradient, .count = 1, .dtype = GSC_F32},
                     stored = {.data = &half, .count = 1, .dtype = GSC_F16};

    if (gsc_policy_preset("recommended", &policy, &err) != GSC_OK ||
        gsc_state_init(NULL, &policy, &state, &err) != GSC_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    options.policy = &policy; /* report.overflow is then what this policy calls an overflow */
    for (int step = 0; step < 100; step++) {
        gradient = 2e-9f * (w - 3); /* of the loss 1e-9 (w - 3)^2 */
        gsc_scale(NULL, &state.factor, &full, &stored, 1, NULL, NULL, NULL);
        gsc_unscale(NULL, &state.factor, &stored, &full, 1, &options, &report, NULL);
        gsc_state_update(NULL, &policy, &state, &report, &state, NULL);
        if (!state.skip)
            w -= 1e8f * gradient;
        if (step % 25 == 24)
            print_metrics(&policy, &state, &report);
    }
    printf("w = %.3f, 3 is right; scale %g, %lld steps skipped\n", (double)w, state.factor.scale,
           (long long)state.total_overflows);
    return w > 2.9f && w < 3.1f ? 0 : 1;
}

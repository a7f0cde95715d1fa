/* SPDX-License-Identifier: MIT */
/*
 * Stateless frameworks: scale and counter in, scale and counter out, as jmp and Keras have it and
 * torch's _amp_update_scale_; and torch's update(new_scale), which keeps the counter.
 */
#include <string.h>

#include "must.h"

gsc_status amp_update_scale(const gsc_policy *policy, float *scale, int32_t *good, float found_inf,
                            gsc_error *err)
{
    gsc_state state;
    gsc_report report;
    gsc_status status = gsc_report_from_flag(found_inf != 0, &report, err);
    if (status == GSC_OK)
        status = gsc_state_init(NULL, policy, &state, err);
    if (status != GSC_OK)
        return status;
    state.factor.scale = (double)*scale; /* 0, too, which torch's scale can reach */
    state.good_steps = *good;
    status = gsc_state_init_from(NULL, policy, &state, &state, err);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, policy, &state, &report, &state, err);
    if (status == GSC_OK) {
        *scale = state.factor.scale_f32;
        *good = (int32_t)state.good_steps;
    }
    return status;
}

gsc_status update_to(const gsc_policy *policy, gsc_state *state, double new_scale, gsc_error *err)
{
    gsc_state from = *state;
    from.factor.scale = new_scale;
    return gsc_state_init_from(NULL, policy, &from, state, err);
}

int main(void)
{
    static const struct {
        float found_inf, scale;
        int32_t good;
    } after[] = {{0, 8, 1}, {0, 8, 2}, {0, 16, 0}, {1, 8, 0}, {0, 8, 1}};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_error err;
    float scale = 8;
    int32_t good = 0;
    MUST(gsc_policy_preset("torch", &policy, &err) == GSC_OK);
    policy.growth_interval = 3;
    for (int i = 0; i < 5; i++) {
        MUST(amp_update_scale(&policy, &scale, &good, after[i].found_inf, &err) == GSC_OK);
        MUST(scale == after[i].scale && good == after[i].good);
    }
    scale = 0;
    MUST(amp_update_scale(&policy, &scale, &good, 1, &err) == GSC_OK && scale == 0);
    scale = -1;
    MUST(amp_update_scale(&policy, &scale, &good, 0, &err) == GSC_ERROR_STATE && scale == -1);

    MUST(gsc_state_init(NULL, &policy, &state, &err) == GSC_OK);
    state.good_steps = 2;
    MUST(update_to(&policy, &state, 256, &err) == GSC_OK);
    MUST(state.factor.scale == 256 && state.factor.inverse == 1. / 256 && state.good_steps == 2);
    MUST(state.factor.generation == 2);
    return 0;
}

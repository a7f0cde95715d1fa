/* SPDX-License-Identifier: MIT */
/*
 * Offloaded gradients: float16 copies wait in host memory for an optimizer thread while the scale
 * moves on. Each keeps the factor that its loss was scaled by, so it is unscaled right, however
 * late.
 */
#include <math.h>

#include "must.h"

struct offloaded {
    gsc_factor factor; /* of the loss that these gradients belong to */
    gsc_tensor half;   /* as they came from the device */
    gsc_tensor single; /* where the optimizer reads them */
};

/* The training thread calls this with the backward pass, before any update. */
void offload(const gsc_state *state, const gsc_tensor *half, const gsc_tensor *single,
             struct offloaded *out)
{
    out->factor = state->factor;
    out->half = *half;
    out->single = *single;
}

/* The optimizer thread calls this; updates may have run since. */
gsc_status take(const struct offloaded *in, gsc_report *report, gsc_error *err)
{
    return gsc_unscale(NULL, &in->factor, &in->half, &in->single, 1, NULL, report, err);
}

/* The training thread calls this when the optimizer thread has answered. The report knows the
 * serial of its factor, so nobody has to keep count of how late it is. */
gsc_status answer(const gsc_policy *policy, gsc_state *state, const gsc_report *report,
                  uint64_t *updates_late, gsc_error *err)
{
    *updates_late = state->factor.generation - report->generation;
    return gsc_state_update(NULL, policy, state, report, state, err);
}

int main(void)
{
    enum { ONE = 0x3C00, INF = 0x7C00 }; /* of float16 */
    uint16_t halves[3][2] = {{ONE, ONE}, {ONE, INF}, {ONE, ONE}};
    float singles[3][2];
    struct offloaded waiting[3];
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report report;
    gsc_error err;
    uint64_t late;
    MUST(gsc_policy_preset("recommended", &policy, &err) == GSC_OK);
    policy.init_scale = 1024;
    MUST(gsc_state_init(NULL, &policy, &state, &err) == GSC_OK);
    for (int i = 0; i < 3; i++) { /* three passes before the first answer */
        const gsc_tensor half = {halves[i], 2, GSC_F16, 0, {0}},
                         single = {singles[i], 2, GSC_F32, 0, {0}};
        offload(&state, &half, &single, &waiting[i]);
    }
    for (int i = 0; i < 3; i++) {
        MUST(take(&waiting[i], &report, &err) == GSC_OK);
        MUST(singles[i][0] == 1.f / 1024 && report.overflow == (i == 1));
        MUST(answer(&policy, &state, &report, &late, &err) == GSC_OK && late == (uint64_t)i);
        MUST(((state.events & GSC_EVENT_STALE) != 0) == (i > 0));
    }
    MUST(state.factor.scale == 512 && state.total_overflows == 1);
    return 0;
}

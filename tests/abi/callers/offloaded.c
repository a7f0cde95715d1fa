/* SPDX-License-Identifier: MIT */
/* Offloaded gradients: float16 copies wait in host memory for an optimizer thread, while the scale
 * moves on. Each keeps the factor its loss was scaled by, so it is unscaled right, however late. */
#include <gradscaler.h>
#include <stddef.h>

struct offloaded {
    gsc_factor factor; /* of the loss that these gradients belong to */
    gsc_tensor half;   /* as they came from the device */
    gsc_tensor single; /* where the optimizer reads them */
};

/* Training thread: with the backward pass, before any update. */
void offload(const gsc_state *state, const gsc_tensor *half, const gsc_tensor *single,
             struct offloaded *out)
{
    out->factor = state->factor;
    out->half = *half;
    out->single = *single;
}

/* Optimizer thread: updates may have run since. */
gsc_status take(const struct offloaded *in, gsc_report *report, gsc_error *err)
{
    return gsc_unscale(NULL, &in->factor, &in->half, &in->single, 1, 0, report, err);
}

/* Training thread: once the optimizer thread has answered. How late it was is a difference. */
gsc_status answer(const gsc_policy *policy, gsc_state *state, const struct offloaded *in,
                  const gsc_report *report, uint64_t *updates_late, gsc_error *err)
{
    *updates_late = state->factor.serial - in->factor.serial;
    return gsc_update(NULL, policy, state, report, state, err);
}

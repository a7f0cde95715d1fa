/* SPDX-License-Identifier: MIT */
/* Delayed policy: the next backward pass starts before the last one's gradients are judged, so what
 * an update decides is in force one step later; state.factor belongs to the pass under way. */
#include <gradscaler.h>
#include <stddef.h>

struct pipeline {
    uint64_t count; /* gradients, in one of two buffers in turn */
    void (*start_backward)(struct pipeline *self, const gsc_factor *loss_factor);
    const gsc_tensor *(*finish_backward)(struct pipeline *self);
    void (*start_optimizer)(struct pipeline *self, const gsc_tensor *gradients);
};

gsc_status start(struct pipeline *p, gsc_policy *policy, gsc_state *state, gsc_error *err)
{
    gsc_status status = gsc_policy_init(GSC_POLICY_SIZE, policy, err);
    if (status == GSC_OK) /* any other preset with apply_delay = 1 would do */
        status = gsc_policy_preset("roundpipe", policy, err);
    if (status == GSC_OK)
        status = gsc_state_init(NULL, policy, state, err);
    if (status == GSC_OK)
        p->start_backward(p, &state->factor);
    return status;
}

gsc_status turn(struct pipeline *p, const gsc_policy *policy, gsc_state *state, gsc_error *err)
{
    gsc_report report;
    const gsc_tensor *gradients = p->finish_backward(p);
    p->start_backward(p, &state->next); /* which this turn's update puts in force */
    gsc_status status =
        gsc_unscale(NULL, &state->factor, gradients, gradients, p->count, 0, &report, err);
    if (status == GSC_OK && !report.overflow)
        p->start_optimizer(p, gradients);
    return status == GSC_OK ? gsc_update(NULL, policy, state, &report, state, err) : status;
}

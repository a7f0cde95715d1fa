/* SPDX-License-Identifier: MIT */
/* Serial training on the calling thread: the model computes gradients of the scaled loss and
 * applies them; the library says which steps to leave out and when going on is pointless. */
#include <gradscaler.h>
#include <stddef.h>

struct model {
    const gsc_tensor *gradients;
    uint64_t count;
    void (*backward)(struct model *self, double loss_scale);
    void (*optimizer_step)(struct model *self);
};

gsc_status train(struct model *model, uint64_t steps, gsc_error *err)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report report;
    gsc_status status = gsc_policy_preset("recommended", &policy, err);
    if (status == GSC_OK)
        status = gsc_state_init(NULL, &policy, &state, err);
    while (status == GSC_OK && steps-- > 0 && !(state.events & GSC_EVENT_STOPPED)) {
        model->backward(model, state.factor.scale);
        status = gsc_unscale(NULL, &state.factor, model->gradients, model->gradients, model->count,
                             0, &report, err);
        if (status == GSC_OK && !report.overflow)
            model->optimizer_step(model);
        if (status == GSC_OK)
            status = gsc_update(NULL, &policy, &state, &report, &state, err);
    }
    return status;
}

/* SPDX-License-Identifier: MIT */
/* Two optimizers on one scale, such as a generator's and a discriminator's: each skips for its own
 * gradients, the scale moves once for both. */
#include <gradscaler.h>
#include <stddef.h>

struct optimizer {
    const gsc_tensor *gradients;
    uint64_t count;
    void (*step)(struct optimizer *self);
};

gsc_status unscale_and_step(struct optimizer *o, const gsc_factor *factor, gsc_report *report)
{
    gsc_status status =
        gsc_unscale(NULL, factor, o->gradients, o->gradients, o->count, 0, report, NULL);
    if (status == GSC_OK && !report->overflow)
        o->step(o);
    return status;
}

gsc_status step_both(const gsc_policy *policy, gsc_state *state, struct optimizer *generator,
                     struct optimizer *discriminator)
{
    gsc_report one, other;
    gsc_status status = unscale_and_step(generator, &state->factor, &one);
    if (status == GSC_OK)
        status = unscale_and_step(discriminator, &state->factor, &other);
    if (status == GSC_OK)
        status = gsc_merge(NULL, &one, &other, &one, NULL);
    if (status == GSC_OK)
        status = gsc_update(NULL, policy, state, &one, state, NULL);
    return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * Two optimizers on one scale, such as a generator's and a discriminator's: each skips because of
 * its own gradients only, and the scale moves once for both.
 */
#include <math.h>

#include "must.h"

struct optimizer {
    const gsc_tensor *gradients;
    uint64_t count;
    void (*step)(struct optimizer *self);
};

gsc_status unscale_and_step(struct optimizer *o, const gsc_factor *factor,
                            const gsc_tensor_options *options, gsc_report *report)
{
    gsc_status status =
        gsc_unscale(NULL, factor, o->gradients, o->gradients, o->count, options, report, NULL);
    if (status == GSC_OK && !report->overflow)
        o->step(o);
    return status;
}

gsc_status step_both(const gsc_policy *policy, gsc_state *state, struct optimizer *generator,
                     struct optimizer *discriminator)
{
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_report reports[2];
    options.policy = policy;
    gsc_status status = unscale_and_step(generator, &state->factor, &options, &reports[0]);
    if (status == GSC_OK)
        status = unscale_and_step(discriminator, &state->factor, &options, &reports[1]);
    if (status == GSC_OK)
        status = gsc_report_merge(NULL, reports, 2, GSC_MERGE_SHARDS, policy, &reports[0], NULL);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, policy, state, &reports[0], state, NULL);
    return status;
}

/* The same in one pass over the gradients of both: the first `of_first` tensors are the first
 * optimizer's, and merging the reports of its tensors gives its verdict. */
gsc_status step_both_at_once(const gsc_policy *policy, gsc_state *state,
                             struct optimizer *optimizers[2], const gsc_tensor *gradients,
                             uint64_t count, uint64_t of_first, gsc_report *each)
{
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_report report, own[2];
    options.policy = policy;
    options.per_tensor = each;
    gsc_status status =
        gsc_unscale(NULL, &state->factor, gradients, gradients, count, &options, &report, NULL);
    if (status == GSC_OK)
        status = gsc_report_merge(NULL, each, of_first, GSC_MERGE_SHARDS, policy, &own[0], NULL);
    if (status == GSC_OK)
        status = gsc_report_merge(NULL, each + of_first, count - of_first, GSC_MERGE_SHARDS, policy,
                                  &own[1], NULL);
    for (int i = 0; status == GSC_OK && i < 2; i++)
        if (!own[i].overflow)
            optimizers[i]->step(optimizers[i]);
    return status == GSC_OK ? gsc_state_update(NULL, policy, state, &report, state, NULL) : status;
}

struct toy {
    struct optimizer optimizer;
    int steps;
};

static void step(struct optimizer *self)
{
    ((struct toy *)self)->steps++;
}

int main(void)
{
    float values[4] = {1, 1, 1, 1};
    const gsc_tensor tensors[] = {{&values[0], 1, GSC_F32, 0, {0}},
                                  {&values[1], 2, GSC_F32, 0, {0}},
                                  {&values[3], 1, GSC_F32, 0, {0}}};
    struct toy generator = {{&tensors[0], 2, step}, 0}, discriminator = {{&tensors[2], 1, step}, 0};
    struct optimizer *both[] = {&generator.optimizer, &discriminator.optimizer};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report each[3];
    MUST(gsc_policy_preset("recommended", &policy, NULL) == GSC_OK);
    MUST(gsc_state_init(NULL, &policy, &state, NULL) == GSC_OK);

    MUST(step_both(&policy, &state, both[0], both[1]) == GSC_OK);
    MUST(generator.steps == 1 && discriminator.steps == 1 && state.total_overflows == 0);
    values[2] = HUGE_VALF; /* one skips, the other steps, the scale backs off once */
    MUST(step_both(&policy, &state, both[0], both[1]) == GSC_OK);
    MUST(generator.steps == 1 && discriminator.steps == 2 && state.factor.scale == 32768);

    values[2] = 1;
    values[3] = NAN;
    MUST(step_both_at_once(&policy, &state, both, tensors, 3, 2, each) == GSC_OK);
    MUST(generator.steps == 2 && discriminator.steps == 2 && state.factor.scale == 16384);
    values[3] = 1;
    MUST(step_both_at_once(&policy, &state, both, tensors, 3, 2, each) == GSC_OK);
    MUST(generator.steps == 3 && discriminator.steps == 3 && state.factor.scale == 16384);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * A skip that the host does not wait for. An optimizer that always runs writes new parameters and
 * momenta to memory of its own; one call copies them over the old ones, unless the step is skipped.
 * On a CUDA device all of this is only enqueued.
 */
#include <math.h>

#include "must.h"

struct optimizer {
    const gsc_tensor *gradients, *now, *next; /* now, next: parameters, then momenta */
    uint64_t gradients_count, count;
    void (*run)(struct optimizer *self); /* makes `next` of `now` and the gradients */
};

gsc_status step(const gsc_exec *on, const gsc_policy *policy, gsc_state *state, gsc_report *report,
                struct optimizer *o, gsc_error *err)
{
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = policy;
    gsc_status status = gsc_unscale(on, &state->factor, o->gradients, o->gradients,
                                    o->gradients_count, &options, report, err);
    if (status == GSC_OK)
        status = gsc_state_update(on, policy, state, report, state, err);
    if (status != GSC_OK)
        return status;
    o->run(o);
    return gsc_copy_unless_skipped(on, state, o->next, o->now, o->count, err);
}

/* A gradient, and a weight with its momentum, now and next. */
static float values[5] = {0, 1, 0, NAN, NAN};

static void run(struct optimizer *self)
{
    (void)self;
    values[4] = 0.5f * values[2] + values[0];
    values[3] = values[1] - values[4];
}

int main(void)
{
    const gsc_tensor gradient = {&values[0], 1, GSC_F32, 0, {0}};
    const gsc_tensor now[] = {{&values[1], 1, GSC_F32, 0, {0}}, {&values[2], 1, GSC_F32, 0, {0}}};
    const gsc_tensor next[] = {{&values[3], 1, GSC_F32, 0, {0}}, {&values[4], 1, GSC_F32, 0, {0}}};
    struct optimizer optimizer = {&gradient, now, next, 1, 2, run};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report report;
    gsc_error err;
    MUST(gsc_policy_preset("recommended", &policy, &err) == GSC_OK);
    MUST(gsc_state_init(NULL, &policy, &state, &err) == GSC_OK);

    values[0] = state.factor.scale_f32 / 4;
    MUST(step(NULL, &policy, &state, &report, &optimizer, &err) == GSC_OK);
    MUST(!state.skip && values[1] == 0.75f && values[2] == 0.25f);
    values[0] = HUGE_VALF;
    MUST(step(NULL, &policy, &state, &report, &optimizer, &err) == GSC_OK);
    MUST(state.skip && values[1] == 0.75f && values[2] == 0.25f && !isfinite(values[3]));
    values[0] = state.factor.scale_f32 / 8; /* as if the bad batch had not been */
    MUST(step(NULL, &policy, &state, &report, &optimizer, &err) == GSC_OK);
    MUST(!state.skip && values[1] == 0.5f && values[2] == 0.25f);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * Training on the calling thread. Because of options.policy, report.overflow is the verdict of that
 * policy, so this loop is right for every policy, also for one that judges by the norm.
 */
#include <math.h>

#include "must.h"

struct model {
    const gsc_tensor *gradients;
    uint64_t count;
    void (*backward)(struct model *self, double loss_scale);
    void (*optimizer_step)(struct model *self);
};

gsc_status train(struct model *model, const gsc_policy *policy, gsc_state *state, uint64_t steps,
                 gsc_error *err)
{
    gsc_report report;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = policy;
    gsc_status status = gsc_state_init(NULL, policy, state, err);
    while (status == GSC_OK && steps-- > 0 && !(state->events & GSC_EVENT_STOPPED)) {
        model->backward(model, state->factor.scale);
        status = gsc_unscale(NULL, &state->factor, model->gradients, model->gradients, model->count,
                             &options, &report, err);
        if (status == GSC_OK)
            status = gsc_state_update(NULL, policy, state, &report, state, err);
        if (status == GSC_OK && !state->skip)
            model->optimizer_step(model);
    }
    return status;
}

/* A model whose gradients are 1, except for the backward passes that spoil their first element. */
struct toy {
    struct model model;
    gsc_tensor tensor;
    float gradients[4], spoilt;
    int passes, first_spoilt, last_spoilt, steps;
};

static void backward(struct model *self, double loss_scale)
{
    struct toy *toy = (struct toy *)self;
    for (int i = 0; i < 4; i++)
        toy->gradients[i] = (float)loss_scale;
    toy->passes++;
    if (toy->passes >= toy->first_spoilt && toy->passes <= toy->last_spoilt)
        toy->gradients[0] = toy->spoilt;
}

static void optimizer_step(struct model *self)
{
    struct toy *toy = (struct toy *)self;
    MUST(toy->gradients[0] == 1 && toy->gradients[3] == 1);
    toy->steps++;
}

static struct toy toy_with(int first_spoilt, int last_spoilt, float spoilt)
{
    const struct toy toy = {{NULL, 1, backward, optimizer_step},
                            {NULL, 4, GSC_F32, 0, {0}},
                            {0},
                            spoilt,
                            0,
                            first_spoilt,
                            last_spoilt,
                            0};
    return toy;
}

static gsc_state trained(struct toy *toy, const char *preset, uint64_t steps)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    toy->tensor.data = toy->gradients;
    toy->model.gradients = &toy->tensor;
    MUST(gsc_policy_preset(preset, &policy, NULL) == GSC_OK);
    MUST(train(&toy->model, &policy, &state, steps, NULL) == GSC_OK);
    return state;
}

int main(void)
{
    struct toy toy = toy_with(3, 3, HUGE_VALF);
    gsc_state state = trained(&toy, "recommended", 5);
    MUST(toy.passes == 5 && toy.steps == 4 && state.total_overflows == 1 &&
         state.factor.scale == 32768);

    /* Every element is finite, but fairseq judges by the norm, and its square is not. */
    toy = toy_with(3, 3, 1e30f);
    state = trained(&toy, "fairseq", 5);
    MUST(toy.passes == 5 && toy.steps == 4 && state.total_overflows == 1);

    /* From 65536 down to the floor, then ten more: the policy stops the training. */
    toy = toy_with(3, 1000, HUGE_VALF);
    state = trained(&toy, "recommended", 1000);
    MUST(toy.passes == 42 && toy.steps == 2 && (state.events & GSC_EVENT_STOPPED));
    return 0;
}

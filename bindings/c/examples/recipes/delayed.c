/* SPDX-License-Identifier: MIT */
/*
 * A pipeline starts the next backward pass before it has judged the last one's gradients. So a
 * policy with apply_delay puts what an update decides in force one step later: state.factor belongs
 * to the pass that is under way, state.next to the one that starts.
 */
#include <math.h>

#include "must.h"

struct pipeline {
    uint64_t count;
    void (*start_backward)(struct pipeline *self, const gsc_factor *loss_factor);
    const gsc_tensor *(*finish_backward)(struct pipeline *self);
    void (*start_optimizer)(struct pipeline *self, const gsc_tensor *gradients);
};

gsc_status start(struct pipeline *p, gsc_policy *policy, gsc_state *state, gsc_error *err)
{
    gsc_status status = gsc_policy_preset("roundpipe", policy, err); /* it has apply_delay = 1 */
    if (status == GSC_OK)
        status = gsc_state_init(NULL, policy, state, err);
    if (status == GSC_OK)
        p->start_backward(p, &state->factor);
    return status;
}

gsc_status turn(struct pipeline *p, const gsc_policy *policy, gsc_state *state, gsc_error *err)
{
    gsc_report report;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = policy;
    const gsc_tensor *gradients = p->finish_backward(p);
    p->start_backward(p, &state->next); /* the update of this turn puts it in force */
    gsc_status status =
        gsc_unscale(NULL, &state->factor, gradients, gradients, p->count, &options, &report, err);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, policy, state, &report, state, err);
    if (status == GSC_OK && !state->skip)
        p->start_optimizer(p, gradients);
    return status;
}

/* Two buffers in turn; every gradient is 1, except that pass 2 is spoilt. */
struct toy {
    struct pipeline pipeline;
    float buffers[2];
    gsc_tensor tensors[2];
    int started, finished, steps;
    double scales[8];
};

static void start_backward(struct pipeline *self, const gsc_factor *loss_factor)
{
    struct toy *toy = (struct toy *)self;
    toy->scales[toy->started] = loss_factor->scale;
    toy->buffers[toy->started % 2] = toy->started == 2 ? NAN : loss_factor->scale_f32;
    toy->started++;
}

static const gsc_tensor *finish_backward(struct pipeline *self)
{
    struct toy *toy = (struct toy *)self;
    return &toy->tensors[toy->finished++ % 2];
}

static void start_optimizer(struct pipeline *self, const gsc_tensor *gradients)
{
    MUST(*(const float *)gradients->data == 1);
    ((struct toy *)self)->steps++;
}

int main(void)
{
    struct toy toy = {{1, start_backward, finish_backward, start_optimizer},
                      {0, 0},
                      {{NULL, 1, GSC_F32, 0, {0}}, {NULL, 1, GSC_F32, 0, {0}}},
                      0,
                      0,
                      0,
                      {0}};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_error err;
    toy.tensors[0].data = &toy.buffers[0];
    toy.tensors[1].data = &toy.buffers[1];
    MUST(start(&toy.pipeline, &policy, &state, &err) == GSC_OK);
    for (int i = 0; i < 6; i++) {
        MUST(state.factor.scale == toy.scales[i]);
        MUST(turn(&toy.pipeline, &policy, &state, &err) == GSC_OK);
    }
    /* Pass 3 had started when pass 2 was judged, so pass 4 is the first with the lower scale. */
    MUST(toy.steps == 5 && state.total_overflows == 1 && toy.scales[3] == toy.scales[0]);
    MUST(toy.scales[4] < toy.scales[3] && toy.scales[5] == toy.scales[4]);
    return 0;
}

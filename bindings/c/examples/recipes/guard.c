/* SPDX-License-Identifier: MIT */
/*
 * A guard on the norm, which clips, and one on the loss, which skips: the update comes before the
 * step, as only it knows outliers, and what both decided is joined. The norms of two layers are
 * merges of the reports of their tensors, to say which of them grew.
 */
#include <math.h>

#include "must.h"

enum { TENSORS = 3 };

struct guarded {
    gsc_policy policy, loss_policy;
    gsc_state state, losses;
};

static gsc_status guard(struct guarded *g, double loss, gsc_tensor *gradients, double layers[2],
                        uint32_t *events)
{
    gsc_report each[TENSORS], report, of_loss, layer;
    gsc_factor factor = g->state.factor, clipped;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = &g->policy; /* which wants the norm */
    options.per_tensor = each;
    gsc_state joined;
    gsc_status status = gsc_measure(NULL, &factor, gradients, TENSORS, &options, &report, NULL);
    for (int i = 0; status == GSC_OK && i < 2; i++) { /* the last tensor is a layer by itself */
        status = gsc_report_merge(NULL, each + 2 * i, 2 - (uint64_t)i, GSC_MERGE_SHARDS, NULL,
                                  &layer, NULL);
        layers[i] = sqrt(layer.sum_squares);
    }
    if (status == GSC_OK)
        status = gsc_report_from_number(loss, &of_loss, NULL);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, &g->policy, &g->state, &report, &g->state, NULL);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, &g->loss_policy, &g->losses, &of_loss, &g->losses, NULL);
    if (status == GSC_OK)
        status = gsc_state_combine_decisions(NULL, &g->state, &g->losses, &joined, NULL);
    if (status == GSC_OK)
        status = gsc_factor_clip_outlier(NULL, &factor, &joined, &clipped, NULL);
    if (status == GSC_OK && !(joined.events & GSC_EVENT_SKIPPED))
        status = gsc_unscale(NULL, &clipped, gradients, gradients, TENSORS, NULL, NULL, NULL);
    *events = joined.events;
    return status;
}

int main(void)
{
    const float scale = 65536;
    float first[2], second[1], third[1];
    gsc_tensor gradients[TENSORS] = {
        {first, 2, GSC_F32, 0, {0}}, {second, 1, GSC_F32, 0, {0}}, {third, 1, GSC_F32, 0, {0}}};
    const gsc_policy off = GSC_POLICY_INIT;
    struct guarded g;
    double layers[2];
    uint32_t events = 0;
    g.policy = g.loss_policy = off;
    MUST(gsc_policy_preset("recommended", &g.policy, NULL) == GSC_OK);
    g.policy.guard_ratio = 4;
    g.policy.guard_decay = 0.9;
    g.policy.guard_warmup = 10;
    g.policy.guard_sample = GSC_SAMPLE_THRESHOLD;
    g.policy.guard_flags = GSC_GUARD_CLIP;
    g.loss_policy.guard_sigmas = 6;
    g.loss_policy.guard_warmup = 10;
    g.loss_policy.guard_sample = GSC_SAMPLE_NONE;
    g.loss_policy.guard_max_in_a_row = 5;
    MUST(gsc_state_init(NULL, &g.policy, &g.state, NULL) == GSC_OK);
    MUST(gsc_state_init(NULL, &g.loss_policy, &g.losses, NULL) == GSC_OK);
    for (int step = 0; step < 24; step++) {
        const int spike = step == 20, bad_batch = step == 22;
        first[0] = 3 * scale, first[1] = 0, second[0] = 0;
        third[0] = spike ? 96 * scale : 4 * scale;
        const double loss = bad_batch ? 40 : 2 + 0.1 * (step % 3);
        MUST(guard(&g, loss, gradients, layers, &events) == GSC_OK);
        MUST(layers[0] == 3 && layers[1] == (spike ? 96 : 4));
        MUST(events == (spike       ? GSC_EVENT_OUTLIER | GSC_EVENT_CLIPPED
                        : bad_batch ? GSC_EVENT_OUTLIER | GSC_EVENT_SKIPPED
                                    : 0u));
        if (spike) /* a norm of four times the mean of 5 */
            MUST(fabs(sqrt(first[0] * first[0] + third[0] * third[0]) - 20) < 1e-5);
        else
            MUST(first[0] == (bad_batch ? 3 * scale : 3));
    }
    MUST(g.losses.total_guard_skips == 1 && g.state.total_guard_skips == 0 &&
         g.state.good_steps == 24);
    return 0;
}

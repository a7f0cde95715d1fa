/* SPDX-License-Identifier: MIT */
/*
 * Accumulation over micro-batches. One that overflowed is dropped: it is not added, the step goes
 * on with the mean of the others (divided by the number that was added, not by the number that
 * ran), and the scale backs off all the same, once. If all were dropped there is no step. To give
 * up the whole step for one bad micro-batch, as torch does, do not apply it where `report`
 * overflows.
 */
#include <math.h>
#include <string.h>

#include "must.h"

struct accumulator {
    gsc_report reports[2]; /* of all micro-batches, the dropped ones included, and of the newest */
    double added;          /* micro-batches in the sums */
};

/* The sums also start at zero. */
void begin(struct accumulator *a)
{
    memset(a, 0, sizeof *a);
    MUST(!gsc_report_merge(NULL, NULL, 0, GSC_MERGE_ADDENDS, NULL, &a->reports[0], NULL));
}

gsc_status add(struct accumulator *a, const gsc_state *state, const gsc_tensor *gradients,
               const gsc_tensor *sums, uint64_t count, gsc_error *err)
{
    gsc_status status = gsc_unscale_accumulate(NULL, &state->factor, gradients, sums, count, NULL,
                                               &a->reports[1], err);
    if (status != GSC_OK)
        return status;
    a->added += !a->reports[1].overflow;
    return gsc_report_merge(NULL, a->reports, 2, GSC_MERGE_ADDENDS, NULL, &a->reports[0], err);
}

/* Makes the sums, which are unscaled already, the mean. A policy that judges by the norm needs that
 * of the mean, which the norms of the micro-batches do not tell. A drop is a verdict without it. */
gsc_status finish(const struct accumulator *a, const gsc_policy *policy, gsc_state *state,
                  const gsc_tensor *sums, uint64_t count, int *apply, gsc_error *err)
{
    gsc_factor number;
    gsc_report report = a->reports[0];
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_status status = GSC_OK;
    options.policy = policy;
    *apply = 0;
    if (a->added > 0) {
        status = gsc_factor_init(a->added, &number, err);
        if (status == GSC_OK)
            status = gsc_unscale(NULL, &number, sums, sums, count, &options, &report, err);
        *apply = status == GSC_OK && !report.overflow;
    }
    if (a->reports[0].overflow)
        report = a->reports[0];
    return status == GSC_OK ? gsc_state_update(NULL, policy, state, &report, state, err) : status;
}

/* Sums micro-batches of one gradient each, given unscaled, and returns whether to apply the sum. */
static int accumulated(const gsc_policy *policy, gsc_state *state, const float *micro_batches,
                       int number, float *sum)
{
    struct accumulator a;
    float gradient;
    int apply;
    gsc_error err;
    const gsc_tensor gradients = {&gradient, 1, GSC_F32, 0, {0}}, sums = {sum, 1, GSC_F32, 0, {0}};
    *sum = 0;
    begin(&a);
    for (int i = 0; i < number; i++) {
        gradient = micro_batches[i] * state->factor.scale_f32;
        MUST(add(&a, state, &gradients, &sums, 1, &err) == GSC_OK);
        MUST(a.reports[0].elements == i + 1);
    }
    MUST(!(a.reports[0].measured &
           GSC_WANT_NORM)); /* nobody clips by a norm that is not the sum's */
    MUST(finish(&a, policy, state, &sums, 1, &apply, &err) == GSC_OK);
    return apply;
}

int main(void)
{
    static const char *const presets[] = {"recommended",
                                          "fairseq"}; /* fairseq judges by the norm */
    const float good[] = {1, 2, 6}, one_bad[] = {1, NAN, 5}, all_bad[] = {HUGE_VALF, NAN};
    const float long_sum[] = {3e38f, 3e38f};
    for (int i = 0; i < 2; i++) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_state state;
        float sum;
        MUST(gsc_policy_preset(presets[i], &policy, NULL) == GSC_OK);
        policy.init_scale = 1; /* so that long_sum reaches the sum */
        MUST(gsc_state_init(NULL, &policy, &state, NULL) == GSC_OK);
        MUST(accumulated(&policy, &state, good, 3, &sum) && sum == 3 && state.total_overflows == 0);
        MUST(accumulated(&policy, &state, one_bad, 3, &sum) && sum == 3 &&
             state.total_overflows == 1);
        MUST(!accumulated(&policy, &state, all_bad, 2, &sum) && sum == 0 &&
             state.total_overflows == 2);
        MUST(!accumulated(&policy, &state, long_sum, 2, &sum) && state.total_overflows == 3);
    }
    return 0;
}

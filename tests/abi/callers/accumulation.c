/* SPDX-License-Identifier: MIT */
/* Accumulation over micro-batches: each is checked by itself, only a bad one is left out, and the
 * sum of the others is unscaled by scale times their number. The scale moves once, for all. */
#include <gradscaler.h>
#include <stddef.h>
#include <string.h>

struct accumulator {
    gsc_report report; /* of all micro-batches, the bad ones included */
    double good;       /* micro-batches in the sum */
    void (*add)(const gsc_tensor *sums, const gsc_tensor *gradients, uint64_t count);
};

void begin(struct accumulator *a)
{
    memset(&a->report, 0, sizeof a->report); /* the report of an empty list */
    a->good = 0;
}

gsc_status accumulate(struct accumulator *a, const gsc_state *state, const gsc_tensor *gradients,
                      const gsc_tensor *sums, uint64_t count, gsc_error *err)
{
    gsc_report report;
    gsc_status status = gsc_check(NULL, &state->factor, gradients, count, 0, &report, err);
    if (status == GSC_OK && !report.overflow) {
        a->add(sums, gradients, count);
        a->good++;
    }
    return status == GSC_OK ? gsc_merge(NULL, &a->report, &report, &a->report, err) : status;
}

/* The sums are the mean gradients of the good micro-batches when *apply. */
gsc_status finish(struct accumulator *a, const gsc_policy *policy, gsc_state *state,
                  const gsc_tensor *sums, uint64_t count, int *apply, gsc_error *err)
{
    gsc_factor all;
    gsc_report of_sums;
    gsc_status status = GSC_OK;
    *apply = 0;
    if (a->good > 0) {
        status = gsc_factor_multiply(NULL, &state->factor, a->good, &all, err);
        if (status == GSC_OK)
            status = gsc_unscale(NULL, &all, sums, sums, count, 0, &of_sums, err);
        if (status == GSC_OK)
            status = gsc_merge(NULL, &a->report, &of_sums, &a->report, err);
        *apply = status == GSC_OK && !of_sums.overflow;
    }
    return status == GSC_OK ? gsc_update(NULL, policy, state, &a->report, state, err) : status;
}

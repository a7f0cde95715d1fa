/* SPDX-License-Identifier: MIT */
/* Ranks that each hold a shard of the gradients: the report is reduced in place, a collective for
 * each group of its words, and then every rank updates its own copy of the state alike. */
#include <gradscaler.h>
#include <stddef.h>
#include <string.h>

typedef void all_reduce(void *group, void *words, uint64_t count);

struct collectives {
    void *group;
    all_reduce *max_int64, *min_int64, *sum_int64, *sum_double;
};

void reduce_report(const struct collectives *c, gsc_report *report)
{
    unsigned char *bytes = (unsigned char *)report;
    c->max_int64(c->group, bytes, 4);
    c->min_int64(c->group, bytes + offsetof(gsc_report, first_bad), 4);
    c->sum_double(c->group, bytes + offsetof(gsc_report, sum_squares), 2);
    c->sum_int64(c->group, bytes + offsetof(gsc_report, elements), 22);
}

/* Every rank asks for the same. One that fails says so in the report, and the updates of all are
 * refused, instead of leaving the others to wait for it. */
gsc_status step_on_rank(const struct collectives *c, const gsc_policy *policy, gsc_state *state,
                        const gsc_tensor *shard, uint64_t count, gsc_report *report, gsc_error *err)
{
    gsc_status status =
        gsc_unscale(NULL, &state->factor, shard, shard, count, GSC_WANT_NORM, report, err);
    if (status != GSC_OK) {
        memset(report, 0, sizeof *report);
        report->status = status;
    }
    reduce_report(c, report);
    return status == GSC_OK ? gsc_update(NULL, policy, state, report, state, err) : status;
}

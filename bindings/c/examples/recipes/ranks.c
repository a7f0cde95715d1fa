/* SPDX-License-Identifier: MIT */
/*
 * Ranks that each hold a shard of the gradients gather their reports and merge them in rank order.
 * So all reach the same verdict, bit for bit, before any of them steps. A rank that had a failed
 * call sends a report with status and overflow, instead of leaving the others to wait: then nobody
 * steps and every rank's update is refused. So it is where a rank goes on from another state.
 */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "must.h"

/* As MPI_Allgather: `all` receives `size` bytes of each rank, in rank order. */
typedef void all_gather(void *group, const void *mine, void *all, uint64_t size);

gsc_status step_on_rank(void *group, all_gather *gather, uint32_t rank, gsc_report *of_ranks,
                        uint64_t ranks, const gsc_policy *policy, gsc_state *state,
                        const gsc_tensor *shard, uint64_t count, int *step, gsc_error *err)
{
    gsc_report report;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = policy;
    gsc_status status =
        gsc_unscale(NULL, &state->factor, shard, shard, count, &options, &report, err);
    if (status == GSC_OK)
        status = gsc_report_set_rank(NULL, &report, policy, state, rank, &report, err);
    if (status != GSC_OK) {
        memset(&report, 0, sizeof report);
        report.status = status;
        report.overflow = 1;
        report.status_rank_plus_1 = rank + 1;
    }
    gather(group, &report, of_ranks, sizeof report);
    if (status == GSC_OK)
        status = gsc_report_merge(NULL, of_ranks, ranks, GSC_MERGE_SHARDS, policy, &report, err);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, policy, state, &report, state, err);
    *step = status == GSC_OK && !state->skip;
    return status;
}

/* A group of threads: all write, all wait, all read, all wait. */
enum { RANKS = 4, COUNT = 3 };

static struct {
    pthread_barrier_t barrier;
    gsc_report mailbox[RANKS];
} group;

struct rank {
    pthread_t thread;
    int number, step;
    const gsc_policy *policy;
    gsc_state state;
    gsc_tensor shard;
    float gradients[COUNT];
    gsc_status status;
    char message[sizeof((gsc_error *)0)->message];
};

static void gather_in_group(void *rank, const void *mine, void *all, uint64_t size)
{
    memcpy(&group.mailbox[((struct rank *)rank)->number], mine, (size_t)size);
    pthread_barrier_wait(&group.barrier);
    memcpy(all, group.mailbox, RANKS * (size_t)size);
    pthread_barrier_wait(&group.barrier);
}

static void *run_rank(void *rank)
{
    struct rank *r = (struct rank *)rank;
    gsc_report of_ranks[RANKS];
    gsc_error err;
    r->status = step_on_rank(r, gather_in_group, (uint32_t)r->number, of_ranks, RANKS, r->policy,
                             &r->state, &r->shard, 1, &r->step, &err);
    if (r->status != GSC_OK)
        memcpy(r->message, err.message, sizeof r->message);
    return NULL;
}

/* One step of all ranks; how many stepped? */
static int step_all(struct rank *ranks)
{
    int steps = 0;
    for (int i = 0; i < RANKS; i++)
        MUST(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) == 0);
    for (int i = 0; i < RANKS; i++) {
        MUST(pthread_join(ranks[i].thread, NULL) == 0);
        steps += ranks[i].step;
    }
    return steps;
}

static void set(struct rank *ranks, float value)
{
    for (int i = 0; i < RANKS; i++)
        for (int k = 0; k < COUNT; k++)
            ranks[i].gradients[k] = value;
}

int main(void)
{
    static struct rank ranks[RANKS];
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state before;
    MUST(pthread_barrier_init(&group.barrier, NULL, RANKS) == 0);
    MUST(gsc_policy_preset("recommended", &policy, NULL) == GSC_OK);
    for (int i = 0; i < RANKS; i++) {
        const gsc_tensor shard = {ranks[i].gradients, COUNT, GSC_F32, 0, {0}};
        ranks[i].number = i;
        ranks[i].policy = &policy;
        ranks[i].shard = shard;
        MUST(gsc_state_init(NULL, &policy, &ranks[i].state, NULL) == GSC_OK);
    }

    set(ranks, 1);
    MUST(step_all(ranks) == RANKS && ranks[0].state.total_overflows == 0);

    set(ranks, 1);
    ranks[1].gradients[2] = NAN; /* one rank overflows: all skip */
    MUST(step_all(ranks) == 0 && ranks[0].state.total_overflows == 1);

    set(ranks, 1);
    before = ranks[0].state;
    ranks[2].shard.dtype = 99; /* one rank's call fails: all refuse, no state has changed */
    MUST(step_all(ranks) == 0 && memcmp(&ranks[0].state, &before, sizeof before) == 0);
    for (int i = 0; i < RANKS; i++) {
        MUST(ranks[i].status == (i == 2 ? GSC_ERROR_DTYPE : GSC_ERROR_REPORT));
        MUST(i == 2 || strstr(ranks[i].message, "rank 2") != NULL);
    }
    ranks[2].shard.dtype = GSC_F32; /* and when that is mended they go on */
    set(ranks, 1);
    MUST(step_all(ranks) == RANKS);
    for (int i = 1; i < RANKS; i++)
        MUST(memcmp(&ranks[i].state, &ranks[0].state, sizeof ranks[i].state) == 0);

    set(ranks, 1); /* one rank loaded another checkpoint: all refuse, and know which */
    ranks[3].state.good_steps++;
    MUST(step_all(ranks) == 0);
    for (int i = 0; i < RANKS; i++) {
        MUST(ranks[i].status == GSC_ERROR_MISMATCH);
        MUST(strstr(ranks[i].message, "rank 3") != NULL);
    }
    return 0;
}

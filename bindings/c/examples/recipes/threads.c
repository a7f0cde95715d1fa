/* SPDX-License-Identifier: MIT */
/*
 * Threads: the library's own, or a pool that the caller has already and lends. Both give the bits
 * of one thread.
 */
#include <pthread.h>
#include <string.h>

#include "must.h"

struct pool {
    uint32_t threads;
    void (*run)(struct pool *self, void (*job)(void *, uint64_t), void *data, uint64_t jobs);
};

int32_t run_on_pool(void *pool, gsc_task *task, void *data, uint64_t count)
{
    struct pool *p = (struct pool *)pool;
    p->run(p, task, data, count);
    return 0;
}

/* Once for a program: a context has threads of its own, which sleep between the calls. */
gsc_status open_context(struct pool *pool, gsc_exec *on, gsc_error *err)
{
    gsc_cpu_options options = GSC_CPU_OPTIONS_INIT;
    options.threads = 4;
    if (pool) {
        options.threads = pool->threads;
        options.parallel_for = run_on_pool;
        options.pool = pool;
    }
    return gsc_context_create_cpu(&options, &on->context, err);
}

gsc_status unscale_in_parallel(const gsc_exec *on, const gsc_state *state,
                               const gsc_tensor *gradients, uint64_t count, gsc_report *report)
{
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.want = GSC_WANT_NORM;
    return gsc_unscale(on, &state->factor, gradients, gradients, count, &options, report, NULL);
}

/* A pool that makes its threads anew for each call; thread t runs every third job, from t on. */
enum { THREADS = 3, COUNT = 1500001 }; /* 6 MB: smaller lists stay on the calling thread */

struct share {
    void (*job)(void *, uint64_t);
    void *data;
    uint64_t first, jobs;
};

static void *work(void *share)
{
    const struct share *s = (const struct share *)share;
    for (uint64_t i = s->first; i < s->jobs; i += THREADS)
        s->job(s->data, i);
    return NULL;
}

static int calls;

static void run(struct pool *self, void (*job)(void *, uint64_t), void *data, uint64_t jobs)
{
    pthread_t threads[THREADS];
    struct share shares[THREADS];
    calls++;
    for (uint32_t t = 0; t < self->threads; t++) {
        const struct share share = {job, data, t, jobs};
        shares[t] = share;
        MUST(pthread_create(&threads[t], NULL, work, &shares[t]) == 0);
    }
    for (uint32_t t = 0; t < self->threads; t++)
        MUST(pthread_join(threads[t], NULL) == 0);
}

static float alone[COUNT], parallel[COUNT];

static gsc_report unscaled(const gsc_exec *on, float *values)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report report;
    const gsc_tensor gradients = {values, COUNT, GSC_F32, 0, {0}};
    for (uint32_t i = 0; i < COUNT; i++)
        values[i] = (float)(i % 1000) * 0.37f;
    MUST(gsc_policy_preset("recommended", &policy, NULL) == GSC_OK);
    MUST(gsc_state_init(NULL, &policy, &state, NULL) == GSC_OK);
    MUST(unscale_in_parallel(on, &state, &gradients, 1, &report) == GSC_OK);
    return report;
}

int main(void)
{
    struct pool pool = {THREADS, run};
    struct pool *const pools[] = {NULL, &pool};
    const gsc_report expected = unscaled(NULL, alone);
    MUST(expected.elements == COUNT && !expected.overflow && expected.sum_squares > 0);
    for (int i = 0; i < 2; i++) {
        gsc_exec on = GSC_EXEC_INIT;
        MUST(open_context(pools[i], &on, NULL) == GSC_OK);
        const gsc_report report = unscaled(&on, parallel);
        MUST(memcmp(&report, &expected, sizeof report) == 0);
        MUST(memcmp(parallel, alone, sizeof alone) == 0);
        gsc_context_destroy(on.context);
    }
    MUST(calls > 0);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/* Threads: the library's own, or a pool that the caller has already and lends to it; the results
 * have the same bits as on one thread. */
#include <gradscaler.h>
#include <stddef.h>

struct pool {
    uint32_t threads;
    void (*run)(struct pool *self, void (*job)(void *, uint64_t), void *data, uint64_t jobs);
};

void run_on_pool(void *pool, gsc_task *task, void *data, uint64_t count)
{
    struct pool *p = (struct pool *)pool;
    p->run(p, task, data, count);
}

gsc_status open_context(struct pool *pool, gsc_exec *on, gsc_error *err)
{
    gsc_status status = gsc_exec_init(GSC_EXEC_SIZE, on, err);
    if (status != GSC_OK)
        return status;
    if (!pool)
        return gsc_context_create_cpu(4, NULL, NULL, &on->context, err);
    return gsc_context_create_cpu(pool->threads, run_on_pool, pool, &on->context, err);
}

gsc_status unscale_in_parallel(const gsc_exec *on, const gsc_state *state,
                               const gsc_tensor *gradients, uint64_t count, gsc_report *report)
{
    return gsc_unscale(on, &state->factor, gradients, gradients, count, 0, report, NULL);
}

void close_context(gsc_exec *on)
{
    gsc_context_destroy(on->context);
    on->context = NULL;
}

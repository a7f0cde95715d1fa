/* SPDX-License-Identifier: MIT */
/* CUDA graph: everything slow happens before the capture; inside it unscale and update are only
 * enqueued. State, report and gradients are device memory, policy and list are the host's. */
#include <gradscaler.h>
#include <stddef.h>

struct gpu {
    void *stream;
    void *(*allocate)(struct gpu *self, uint64_t bytes);
    void (*begin_capture)(struct gpu *self);
    void (*end_capture)(struct gpu *self);
};

/* The graph overwrites *report and *state, which an optimizer kernel in it reads in place. On an
 * error the caller still destroys on->context. */
gsc_status capture_step(struct gpu *gpu, const gsc_policy *policy, gsc_state *state,
                        gsc_report *report, const gsc_tensor *gradients, uint64_t count,
                        gsc_exec *on, gsc_error *err)
{
    gsc_status status = gsc_exec_init(GSC_EXEC_SIZE, on, err);
    if (status == GSC_OK)
        status = gsc_context_create_cuda(0, &on->context, err);
    on->stream = gpu->stream;
    if (status == GSC_OK)
        status = gsc_workspace_size(on, gradients, count, 0, &on->workspace_size, err);
    if (status == GSC_OK)
        on->workspace = gpu->allocate(gpu, on->workspace_size);
    if (status == GSC_OK)
        status = gsc_prepare(on, err);
    if (status == GSC_OK)
        status = gsc_state_init(on, policy, state, err);
    if (status != GSC_OK)
        return status;
    gpu->begin_capture(gpu);
    status = gsc_unscale(on, &state->factor, gradients, gradients, count, 0, report, err);
    if (status == GSC_OK)
        status = gsc_update(on, policy, state, report, state, err);
    gpu->end_capture(gpu);
    return status;
}

/* SPDX-License-Identifier: MIT */
/*
 * A training step in a CUDA graph. State, report and gradients are memory of the device; unscaling
 * and the update are only enqueued. State and report are in shared memory, so the host can look at
 * them once it has waited.
 */
#include <math.h>
#include <string.h>

#include "must.h"

struct gpu {
    void *stream;
    void (*begin_capture)(struct gpu *self);
    void (*end_capture)(struct gpu *self);
    void (*launch)(struct gpu *self);
};

struct shared {
    gsc_state state;
    gsc_report report;
};

struct step {
    gsc_exec on;
    struct shared *shared;
};

gsc_status capture_step(struct gpu *gpu, const gsc_policy *policy,
                        const gsc_tensor_options *options, const gsc_tensor *gradients,
                        uint64_t count, struct step *step, gsc_error *err)
{
    gsc_exec *on = &step->on;
    void *memory = NULL;
    gsc_status status = gsc_workspace_size(on, gradients, count, options, &on->workspace_size, err);
    if (status == GSC_OK)
        status = gsc_memory_create(on->context, GSC_MEMORY_DEVICE, on->workspace_size,
                                   &on->workspace, err);
    if (status == GSC_OK)
        status =
            gsc_memory_create(on->context, GSC_MEMORY_HOST, sizeof *step->shared, &memory, err);
    if (status != GSC_OK)
        return status;
    struct shared *shared = step->shared = (struct shared *)memory;
    status = gsc_state_init(on, policy, &shared->state, err);
    if (status != GSC_OK)
        return status;
    gpu->begin_capture(gpu);
    status = gsc_unscale(on, &shared->state.factor, gradients, gradients, count, options,
                         &shared->report, err);
    if (status == GSC_OK)
        status = gsc_state_update(on, policy, &shared->state, &shared->report, &shared->state, err);
    gpu->end_capture(gpu);
    return status;
}

void close_step(struct step *step)
{
    gsc_memory_destroy(step->on.context, step->shared);
    gsc_memory_destroy(step->on.context, step->on.workspace);
    gsc_context_destroy(step->on.context);
}

/* A GPU without graphs: what would be captured runs at once. */
static void nothing(struct gpu *self)
{
    (void)self;
}

static void one_step(struct gpu *gpu, struct step *step, const gsc_policy *policy,
                     const gsc_tensor *gradients, float value)
{
    const float values[2] = {value, 65536};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_error err;
    options.want = GSC_WANT_NORM;
    options.policy = policy;
    MUST(gsc_memory_copy(&step->on, gradients->data, values, sizeof values, &err) == GSC_OK);
    MUST(capture_step(gpu, policy, &options, gradients, 1, step, &err) == GSC_OK);
    gpu->launch(gpu);
    MUST(gsc_exec_wait(&step->on, &err) == GSC_OK);
}

/* Argument "cpu": on a context of the CPU, which has the same calls. */
int main(int argc, char **argv)
{
    struct gpu gpu = {NULL, nothing, nothing, nothing};
    const gsc_exec alone = GSC_EXEC_INIT;
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_error err;
    gsc_cpu_options two = GSC_CPU_OPTIONS_INIT;
    gsc_cuda_options first = GSC_CUDA_OPTIONS_INIT;
    two.threads = 2;
    MUST(gsc_policy_preset("recommended", &policy, NULL) == GSC_OK);
    for (int bad = 0; bad < 2; bad++) {
        struct step step = {alone, NULL};
        const gsc_status status = argc > 1 && strcmp(argv[1], "cpu") == 0
                                      ? gsc_context_create_cpu(&two, &step.on.context, &err)
                                      : gsc_context_create_cuda(&first, &step.on.context, &err);
        if (status == GSC_ERROR_UNAVAILABLE) {
            printf("not run: %s\n", err.message);
            return 77;
        }
        MUST(status == GSC_OK);
        gsc_tensor gradients = {NULL, 2, GSC_F32, 0, {0}};
        MUST(gsc_memory_create(step.on.context, GSC_MEMORY_DEVICE, 2 * sizeof(float),
                               &gradients.data, &err) == GSC_OK);
        one_step(&gpu, &step, &policy, &gradients, bad ? HUGE_VALF : 65536);

        float values[2];
        MUST(gsc_memory_copy(&step.on, values, gradients.data, sizeof values, &err) == GSC_OK);
        MUST(gsc_exec_wait(&step.on, &err) == GSC_OK && values[1] == 1);
        MUST(step.shared->report.overflow == bad && step.shared->state.total_overflows == bad);
        MUST(step.shared->state.factor.scale == (bad ? 32768 : 65536));
        MUST(bad || step.shared->report.sum_squares == 2);
        gsc_memory_destroy(step.on.context, gradients.data);
        close_step(&step);
    }
    return 0;
}

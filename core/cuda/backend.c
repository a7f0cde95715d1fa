/* SPDX-License-Identifier: MIT */
/* The table of operations of a CUDA device; steps of factors, reports and states, a launch each. */
#include <stddef.h>
#include <string.h>

#include "driver.h"
#include "launch.h"

gsc_status gsc_cuda_align_check(const void *pointer, int argument, const char *name, gsc_error *err)
{
    if ((uintptr_t)pointer % 8 != 0)
        return gsc_fail(err, GSC_ERROR_VALUE, argument, -1, name,
                        "is %p: on a device it must be a multiple of 8", pointer);
    return GSC_OK;
}

static gsc_status step(const gsc_exec *exec, const gsc_step *step, gsc_error *err)
{
    /* Positions of arguments in the public functions. The factor is always argument 1. */
    static const struct {
        int state, reports, out;
        const char *state_name, *reports_name;
    } arguments[] = {[GSC_STEP_MULTIPLY] = {0, 0, 3, "", ""},
                     [GSC_STEP_CLIP] = {0, 2, 4, "", "report"},
                     [GSC_STEP_MERGE] = {0, 1, 5, "", "reports"},
                     [GSC_STEP_SET_RANK] = {3, 1, 5, "state", "report"},
                     [GSC_STEP_STATE_INIT] = {2, 0, 3, "from", ""},
                     [GSC_STEP_UPDATE] = {2, 3, 4, "state", "report"},
                     [GSC_STEP_COMBINE] = {1, 0, 3, "state", ""},
                     [GSC_STEP_GUARD] = {2, 0, 3, "state", ""}};
    const int reports = arguments[step->kind].reports, state = arguments[step->kind].state;
    const bool starts = step->kind == GSC_STEP_STATE_INIT && !step->state; /* without `from` */
    GSC_TRY(gsc_cuda_align_check(step->factor, 1, "factor", err));
    GSC_TRY(gsc_cuda_align_check(step->state, state, arguments[step->kind].state_name, err));
    GSC_TRY(gsc_cuda_align_check(step->other, 2, "other", err));
    GSC_TRY(gsc_cuda_align_check(step->reports, reports, arguments[step->kind].reports_name, err));
    GSC_TRY(gsc_cuda_align_check(step->out, arguments[step->kind].out - starts, "out", err));
    gsc_cuda_step_parameter p;
    _Static_assert(offsetof(gsc_cuda_step_parameter, policy) == offsetof(gsc_step, policy),
                   "a step is passed as it is, without the policy's end");
    memcpy(&p, step, sizeof p);
    return gsc_cuda_launch(exec, GSC_CUDA_step, 1, 1, &p, err);
}

const gsc_backend gsc_cuda_backend = {.check = gsc_cuda_check,
                                      .tensors = gsc_cuda_tensors,
                                      .workspace_size = gsc_cuda_workspace_size,
                                      .step = step,
                                      .memory_create = gsc_cuda_memory_create,
                                      .memory_destroy = gsc_cuda_memory_destroy,
                                      .memory_copy = gsc_cuda_memory_copy,
                                      .wait = gsc_cuda_wait,
                                      .destroy = gsc_cuda_close};

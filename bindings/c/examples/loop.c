/* SPDX-License-Identifier: MIT */
/* loop STEPS: a training that resumes; step 100 has a NaN in its data, step 200 a wrong label. */
#include <gradscaler.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    struct {
        float w[2];
        int64_t step;
        uint64_t size;
        char scaler[GSC_SAVED_SIZE_MAX];
    } run = {.w = {0.1f, 3}, .step = 1};
    const char *const names[] = {"first", "second"};
    const uint64_t order[] = {1, 0}; /* the backward pass begins at the last layer */
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report report, each[2];
    gsc_reason reason;
    gsc_note finding;
    gsc_error err;
    char line[4096];
    uint64_t size, found;
    FILE *saved = fopen("run.checkpoint", "rb"), *history = fopen("run.jsonl", "a");
    if (gsc_policy_preset("recommended", &policy, &err) ||
        gsc_state_init(NULL, &policy, &state, &err) ||
        (saved && fread(&run, sizeof run, 1, saved) &&
         gsc_state_load(run.scaler, run.size, &policy, &state, &err)) ||
        gsc_history_start(&policy, NULL, &state, names, 2, run.step, 0, 0, 0, line, sizeof line,
                          &size, &err))
        return puts(err.message);
    fwrite(line, size, 1, history);
    for (int64_t end = run.step + atoi(argv[argc - 1]); run.step < end; run.step++) {
        float x = run.step == 100 ? NAN : 1, label = run.step == 200 ? 30 : 3;
        float error = run.w[1] * run.w[0] * x - label, loss = 0.01f * error * error;
        float grads[] = {0.02f * error * run.w[1] * x, 0.02f * error * run.w[0] * x};
        uint16_t half[2];
        const gsc_tensor losses = {&loss, 1, GSC_F32, 0, {0}},
                         wide[] = {{grads, 1, GSC_F32, 0, {0}}, {grads + 1, 1, GSC_F32, 0, {0}}},
                         narrow[] = {{half, 1, GSC_F16, 0, {0}}, {half + 1, 1, GSC_F16, 0, {0}}};
        gsc_tensor_options options = {sizeof options, 0, &policy, 0, each, NULL, &losses};
        if (gsc_scale(NULL, &state.factor, wide, narrow, 2, NULL, NULL, &err) ||
            gsc_unscale(NULL, &state.factor, narrow, wide, 2, &options, &report, &err) ||
            gsc_state_update(NULL, &policy, &state, &report, &state, &err) ||
            gsc_state_reason(&state, &report, NULL, each, names, order, 2, &reason, &err) ||
            gsc_history_line(&state, &report, &reason, each, names, 2, run.step, 0, 0, line,
                             sizeof line, &size, &err))
            return puts(err.message);
        fwrite(line, size, 1, history);
        if (state.skip)
            printf("step %d %s\n", (int)run.step, reason.message);
        for (int i = 0; i < 2 && !state.skip; i++)
            run.w[i] -= grads[i];
    }
    if (gsc_state_diagnose(&policy, &state, &report, each, 2, 0, 0, &finding, 1, &found, &err) ||
        gsc_state_save(&policy, &state, run.scaler, sizeof run.scaler, &run.size, &err))
        return puts(err.message);
    printf("y = %g x, scale %g\n", run.w[0] * run.w[1], state.factor.scale);
    puts(found ? finding.message : "nothing was found");
    return !fwrite(&run, sizeof run, 1, fopen("run.checkpoint", "wb"));
}

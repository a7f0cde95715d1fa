/* SPDX-License-Identifier: MIT */
/*
 * A team moves in the middle of a run: the scaler's part of a checkpoint that another framework
 * saved, named keys with numbers, becomes policy and state; the settings that it does not hold come
 * from the configuration; and what is saved afterwards that framework can load again.
 */
#include <string.h>

#include "must.h"

enum { MOST = 64 };

/* Reads on from a checkpoint. What it did not say, or said in vain, is printed. */
static int resume(const char *format, const gsc_entry *entries, uint64_t n, gsc_policy *policy,
                  gsc_state *state)
{
    gsc_note notes[MOST];
    uint64_t count;
    gsc_error err;
    if (gsc_state_import(format, NULL, entries, n, policy, policy, state, notes, MOST, &count,
                         &err)) {
        fprintf(stderr, "cannot resume: %s\n", err.message);
        return 0;
    }
    for (uint64_t i = 0; i < count && i < MOST; i++)
        printf("%s\n", notes[i].message);
    return 1;
}

int main(void)
{
    /* The arguments of Megatron-LM, and what it saved. */
    const gsc_entry arguments[] = {{"initial_loss_scale", GSC_ENTRY_NUMBER, 0, 65536, 0, "", {0}},
                                   {"loss_scale_window", GSC_ENTRY_NUMBER, 0, 4, 0, "", {0}},
                                   {"hysteresis", GSC_ENTRY_NUMBER, 0, 3, 0, "", {0}}};
    const gsc_entry saved[] = {
        {"grad_scaler.scale", GSC_ENTRY_NUMBER, 0, 262144, 0, "", {0}},
        {"grad_scaler.growth_tracker", GSC_ENTRY_NUMBER, 0, 2, 0, "", {0}},
        {"grad_scaler.hysteresis_tracker", GSC_ENTRY_NUMBER, 0, 1, 0, "", {0}}};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report good, overflow;
    gsc_entry back[MOST];
    uint64_t count;
    MUST(!gsc_report_from_flag(0, &good, NULL) && !gsc_report_from_flag(1, &overflow, NULL));
    MUST(!gsc_policy_import("megatron", NULL, arguments, 3, NULL, &policy, NULL, 0, NULL, NULL));
    MUST(resume("megatron", saved, 3, &policy, &state));
    /* Two of three overflows were absorbed, two of four good steps were done. */
    MUST(state.factor.scale == 262144 && state.overflows_since_reset == 2 && state.good_steps == 2);
    MUST(!gsc_state_update(NULL, &policy, &state, &overflow, &state, NULL));
    MUST(state.factor.scale == 131072);
    for (int i = 0; i < 4; i++)
        MUST(!gsc_state_update(NULL, &policy, &state, &good, &state, NULL));
    MUST(state.factor.scale == 262144);

    MUST(!gsc_state_export("megatron", "grad_scaler", &policy, &state, back, MOST, &count, NULL, 0,
                           NULL, NULL));
    MUST(count == 3 && strcmp(back[2].key, "grad_scaler.hysteresis_tracker") == 0 &&
         back[2].value == 3);
    MUST(!resume("torch", saved + 1, 2, &policy, &state)); /* without a scale */
    return 0;
}

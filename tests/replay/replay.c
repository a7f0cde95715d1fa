/* SPDX-License-Identifier: MIT */
/* The C client of replay.py, which says what is read and written: one line per recording. */
#include <stdio.h>

#include "pairs.h"

static gsc_status replay(gsc_policy *policy, gsc_state *state, char *steps, gsc_error *err)
{
    gsc_status status = GSC_OK;
    char *rest, *step = strtok_r(steps, ",", &rest);
    for (; status == GSC_OK && step; step = strtok_r(NULL, ",", &rest)) {
        const gsc_report report = read_step(step);
        printf("%a", state->factor.scale);
        status = gsc_state_update(NULL, policy, state, &report, state, err);
        print_update(step, state);
    }
    if (status == GSC_OK)
        printf("%a\n", state->factor.scale);
    return status;
}

int main(void)
{
    static char line[1 << 16], preset[64], settings[4096], steps[1 << 16], checkpoint[4096];
    while (fgets(line, sizeof line, stdin)) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_state state;
        gsc_error err = {0};
        *checkpoint = '\0';
        if (sscanf(line, "%63s %4095s %65535s %4095s", preset, settings, steps, checkpoint) < 3)
            puts("error three words expected");
        else if (read_policy(preset, settings, &policy, &err) != GSC_OK ||
                 read_state(preset, checkpoint, &policy, &state, &err) != GSC_OK ||
                 replay(&policy, &state, steps, &err) != GSC_OK)
            printf("error %d %s\n", err.status, err.message);
    }
    return 0;
}

/* SPDX-License-Identifier: MIT */
/* The C client of replay.py, which says what is read and written: one line per recording. */
#include "pairs.h"

static gsc_status replay(const gsc_policy *policy, gsc_state *state, char *steps, gsc_error *err)
{
    gsc_status status = GSC_OK;
    char *rest, *step = strtok_r(steps, ",", &rest);
    for (; status == GSC_OK && step; step = strtok_r(NULL, ",", &rest)) {
        const gsc_report report = read_step(step);
        printf("%.17g", state->factor.scale);
        status = gsc_state_update(NULL, policy, state, &report, state, err);
        print_update(step, state);
    }
    return status;
}

int main(void)
{
    answer_lines(replay);
    return 0;
}

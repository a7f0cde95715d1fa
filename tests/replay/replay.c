/* SPDX-License-Identifier: MIT */
/* The C client of replay.py, which says what is read and written: one line per recording. */
#include <inttypes.h>
#include <stdio.h>

#include "fields.h"

static gsc_status replay(const gsc_policy *policy, char *steps, gsc_error *err)
{
    gsc_state state;
    gsc_status status = gsc_state_init(NULL, policy, NULL, &state, err);
    char *rest, *step = strtok_r(steps, ",", &rest);
    for (; status == GSC_OK && step; step = strtok_r(NULL, ",", &rest)) {
        gsc_report report = {0};
        report.overflow = *step == '1';
        report.found_inf = (float)report.overflow;
        report.amax = *step == 'a' ? strtod(step + 1, NULL) : 0;
        printf("%a/", state.factor.scale);
        status = gsc_state_update(NULL, policy, &state, &report, &state, err);
        printf("%" PRIu32 " ", state.events);
    }
    if (status == GSC_OK)
        printf("%a\n", state.factor.scale);
    return status;
}

int main(void)
{
    static char line[1 << 16], preset[64], settings[4096], steps[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_error err = {0};
        if (sscanf(line, "%63s %4095s %65535s", preset, settings, steps) != 3) {
            puts("error three words expected");
        } else if (gsc_policy_preset(preset, &policy, &err) != GSC_OK) {
            printf("error %d %s\n", err.status, err.message);
        } else if (set_fields(&policy, settings) && replay(&policy, steps, &err) != GSC_OK) {
            printf("error %d %s\n", err.status, err.message);
        }
    }
    return 0;
}

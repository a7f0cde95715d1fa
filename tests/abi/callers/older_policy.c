/* SPDX-License-Identifier: MIT */
/* An older client, whose policy ends before target_amax: its size tells the library to read and
 * write no further, and a preset that needs the missing fields is refused. */
#include <gradscaler.h>
#include <stddef.h>

enum { OLDER_SIZE = offsetof(gsc_policy, target_amax) };

struct older_policy {
    uint64_t words[OLDER_SIZE / 8];
};

gsc_status open_older(const char *preset, struct older_policy *storage, gsc_state *state,
                      gsc_error *err)
{
    gsc_policy *policy = (gsc_policy *)storage;
    gsc_status status = gsc_policy_init(OLDER_SIZE, policy, err);
    if (status == GSC_OK)
        status = gsc_policy_preset(preset, policy, err);
    return status == GSC_OK ? gsc_state_init(NULL, policy, state, err) : status;
}

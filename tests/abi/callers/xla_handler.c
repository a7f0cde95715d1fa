/* SPDX-License-Identifier: MIT */
/* An XLA-like handler: buffers in, buffers out, the policy an attribute, the state 64 uint32, since
 * JAX has no 64-bit types by default. */
#include <gradscaler.h>
#include <stdlib.h>
#include <string.h>

struct buffer {
    void *data;
    uint64_t count;
    uint32_t dtype; /* GSC_F32 ... */
};

void list_of(const struct buffer *buffers, uint64_t n, gsc_tensor *list)
{
    for (uint64_t i = 0; i < n; i++) {
        const gsc_tensor tensor = {buffers[i].data, buffers[i].count, buffers[i].dtype, 0};
        list[i] = tensor;
    }
}

/* NULL, or the text that XLA shows. in and out: n gradients each, then the state. */
const char *handle_step(const gsc_policy *policy, const struct buffer *in, const struct buffer *out,
                        uint64_t n, gsc_error *err)
{
    gsc_state state;
    gsc_report report;
    gsc_tensor *lists = (gsc_tensor *)malloc((2 * n + 1) * sizeof *lists);
    if (!lists)
        return gsc_status_string(GSC_ERROR_MEMORY);
    list_of(in, n, lists);
    list_of(out, n, lists + n);
    memcpy(&state, in[n].data, sizeof state);
    gsc_status status = gsc_unscale(NULL, &state.factor, lists, lists + n, n, 0, &report, err);
    if (status == GSC_OK)
        status = gsc_update(NULL, policy, &state, &report, &state, err);
    if (status == GSC_OK)
        memcpy(out[n].data, &state, sizeof state);
    free(lists);
    return status == GSC_OK ? NULL : err->message;
}

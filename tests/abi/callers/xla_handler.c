/* SPDX-License-Identifier: MIT */
/*
 * A handler as XLA calls it: buffers in, buffers out, nothing changed in place. In: n gradients and
 * the state. Out: n gradients, the state, the report, and n reports of the tensors. As JAX has no
 * 64-bit types by default, the structs travel as uint32: 96 of them a state, 64 a report.
 */
#include <math.h>
#include <string.h>

#include "must.h"

struct buffer { /* XLA aligns its memory to 64 bytes */
    void *data;
    uint64_t count;
    uint32_t dtype; /* GSC_F32 ... */
};

static void list_of(const struct buffer *buffers, uint64_t n, gsc_tensor *list)
{
    for (uint64_t i = 0; i < n; i++) {
        const gsc_tensor tensor = {buffers[i].data, buffers[i].count, buffers[i].dtype, 0, {0}};
        list[i] = tensor;
    }
}

/* NULL, or the text that XLA shows. */
const char *handle_step(const gsc_policy *policy, const struct buffer *in, const struct buffer *out,
                        uint64_t n, gsc_error *err)
{
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    const gsc_state *state = (const gsc_state *)in[n].data;
    gsc_report *report = (gsc_report *)out[n + 1].data;
    gsc_tensor *lists = (gsc_tensor *)malloc((2 * n + 1) * sizeof *lists);
    if (!lists)
        return gsc_status_string(GSC_ERROR_MEMORY);
    options.policy = policy;
    options.per_tensor = (gsc_report *)out[n + 2].data;
    list_of(in, n, lists);
    list_of(out, n, lists + n);
    gsc_status status =
        gsc_unscale(NULL, &state->factor, lists, lists + n, n, &options, report, err);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, policy, state, report, (gsc_state *)out[n].data, err);
    free(lists);
    return status == GSC_OK ? NULL : err->message;
}

int main(void)
{
    enum { N = 2 };
    uint16_t half[] = {0x3C00, 0x3C00}; /* 1 in float16 */
    float single[] = {65536, HUGE_VALF, 65536}, out_half[2], out_single[3];
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state before, after;
    gsc_report report, each[N];
    gsc_error err;
    MUST(gsc_policy_preset("recommended", &policy, &err) == GSC_OK);
    MUST(gsc_state_init(NULL, &policy, &before, &err) == GSC_OK);
    struct buffer in[] = {{half, 2, GSC_F16}, {single, 3, GSC_F32}, {&before, 96, 0}};
    const struct buffer out[] = {{out_half, 2, GSC_F32},
                                 {out_single, 3, GSC_F32},
                                 {&after, 96, 0},
                                 {&report, 64, 0},
                                 {each, N * 64, 0}};
    MUST(sizeof before == 96 * sizeof(uint32_t) && sizeof report == 64 * sizeof(uint32_t));

    MUST(!handle_step(&policy, in, out, N, &err));
    MUST(out_half[0] == 1.f / 65536 && out_single[0] == 1 && out_single[2] == 1);
    MUST(report.overflow && !each[0].overflow && each[1].overflow && each[1].first_element == 1);
    MUST(before.factor.scale == 65536 && after.factor.scale == 32768 && after.skip_f32 == 1);

    in[1].dtype = 99;
    const char *text = handle_step(&policy, in, out, N, &err);
    MUST(text && strstr(text, "tensors[1].dtype"));
    return 0;
}

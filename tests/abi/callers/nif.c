/* SPDX-License-Identifier: MIT */
/* NIF-like functions: binaries in, fresh binaries out, nothing mutated, errors as text. A binary
 * may be part of another one, so structs are copied out of it; tensor data is used where it is. */
#include <gradscaler.h>
#include <stddef.h>
#include <string.h>

struct binary {
    size_t size;
    unsigned char *data;
};

/* NULL, or the text of an ArgumentError. The binaries `out` and `report_out` are fresh ones. */
const char *nif_unscale(struct binary factor_in, struct binary in, uint32_t dtype,
                        struct binary out, struct binary report_out, gsc_error *err)
{
    gsc_factor factor;
    gsc_report report;
    const uint32_t element_size = gsc_dtype_size(dtype);
    if (factor_in.size != sizeof factor || report_out.size != sizeof report ||
        out.size != in.size || !element_size || in.size % element_size)
        return "a binary has the wrong size";
    memcpy(&factor, factor_in.data, sizeof factor);
    const gsc_tensor from = {in.data, in.size / element_size, dtype, 0};
    const gsc_tensor to = {out.data, from.count, dtype, 0};
    if (gsc_unscale(NULL, &factor, &from, &to, 1, GSC_WANT_COUNTS, &report, err) != GSC_OK)
        return err->message;
    memcpy(report_out.data, &report, sizeof report);
    return NULL;
}

const char *nif_update(const gsc_policy *policy, struct binary state_in, struct binary report_in,
                       struct binary state_out, gsc_error *err)
{
    gsc_state state;
    gsc_report report;
    if (state_in.size != sizeof state || state_out.size != sizeof state ||
        report_in.size != sizeof report)
        return "a binary has the wrong size";
    memcpy(&state, state_in.data, sizeof state);
    memcpy(&report, report_in.data, sizeof report);
    if (gsc_update(NULL, policy, &state, &report, &state, err) != GSC_OK)
        return err->message;
    memcpy(state_out.data, &state, sizeof state);
    return NULL;
}

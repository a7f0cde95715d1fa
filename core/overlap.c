/* SPDX-License-Identifier: MIT */
/* Checks that the outputs of a list share no memory with other entries. */
#include "backend.h"

static uintptr_t start_of(const gsc_tensor *tensor)
{
    return (uintptr_t)tensor->data;
}

static uintptr_t end_of(const gsc_tensor *tensor)
{
    return start_of(tensor) + tensor->count * gsc_reals[tensor->dtype].size;
}

/*
 * Sorts indices of outputs by address: merges runs of 1, 2, 4 ... from one half of `indices` into
 * the other. Returns the half that is sorted.
 */
static uint64_t *sort(const gsc_tensor *out, uint64_t *indices, uint64_t n)
{
    uint64_t *from = indices, *to = indices + n;
    for (uint64_t run = 1; run < n; run *= 2) {
        for (uint64_t left = 0; left < n; left += 2 * run) {
            const uint64_t middle = left + run < n ? left + run : n;
            const uint64_t right = middle + run < n ? middle + run : n;
            for (uint64_t i = left, a = left, b = middle; i < right; i++) {
                const bool takes_left = a < middle && (b == right || start_of(&out[from[a]]) <=
                                                                         start_of(&out[from[b]]));
                to[i] = from[takes_left ? a++ : b++];
            }
        }
        uint64_t *merged = to;
        to = from;
        from = merged;
    }
    return from;
}

/* Compares each output with the next in memory. */
static gsc_status outputs_check(const gsc_tensor *out, const uint64_t *sorted, uint64_t n,
                                bool in_place, gsc_error *err)
{
    const char *name = in_place ? "tensors" : "out";
    for (uint64_t i = 1; i < n; i++) {
        const uint64_t a = sorted[i - 1], b = sorted[i], first = a < b ? a : b;
        if (end_of(&out[a]) <= start_of(&out[b]))
            continue;
        return gsc_with_numbers(gsc_fail(err, GSC_ERROR_OVERLAP, !in_place,
                                         (int64_t)(first == a ? b : a), name,
                                         "shares memory with %s[%llu]: it would be written twice",
                                         name, (unsigned long long)first),
                                err, (double)first, NAN, NAN);
    }
    return GSC_OK;
}

/* Searches the outputs for each input. The outputs are sorted and share no memory. */
static gsc_status inputs_check(const gsc_tensor *tensors, uint64_t n, const gsc_tensor *out,
                               const uint64_t *sorted, uint64_t outputs, gsc_error *err)
{
    if (outputs == 0)
        return GSC_OK;
    const uintptr_t lowest = start_of(&out[sorted[0]]), highest = end_of(&out[sorted[outputs - 1]]);
    for (uint64_t i = 0; i < n; i++) {
        const uintptr_t start = start_of(&tensors[i]), end = end_of(&tensors[i]);
        if (start == end || end <= lowest || start >= highest)
            continue;
        uint64_t k = 0; /* becomes the first output that ends above `start` */
        for (uint64_t above = outputs; k < above;) {
            const uint64_t middle = k + (above - k) / 2;
            if (end_of(&out[sorted[middle]]) <= start)
                k = middle + 1;
            else
                above = middle;
        }
        for (; k < outputs && start_of(&out[sorted[k]]) < end; k++)
            if (sorted[k] != i)
                return gsc_with_numbers(
                    gsc_fail(err, GSC_ERROR_OVERLAP, 0, (int64_t)i, "tensors",
                             "shares memory with out[%llu]: it would be written before it is read",
                             (unsigned long long)sorted[k]),
                    err, (double)sorted[k], NAN, NAN);
    }
    return GSC_OK;
}

gsc_status gsc_tensors_check_overlap(const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                                     uint64_t *scratch, uint64_t scratch_capacity, gsc_error *err)
{
    gsc_begin(err);
    if (n == 0)
        return GSC_OK;
    GSC_REQUIRE(tensors, 0);
    GSC_REQUIRE(out, 1);
    GSC_REQUIRE(scratch, 3);
    if (scratch_capacity / 2 < n)
        return gsc_with_numbers(gsc_fail(err, GSC_ERROR_CAPACITY, 4, -1, "scratch_capacity",
                                         "is %llu: it must be at least twice n, which is %llu",
                                         (unsigned long long)scratch_capacity,
                                         (unsigned long long)n),
                                err, (double)scratch_capacity, 2 * (double)n, NAN);
    const bool in_place = out == tensors;
    uint64_t outputs = 0;
    bool in_order = true;
    for (uint64_t i = 0; i < n; i++) {
        GSC_TRY(gsc_tensor_check(&tensors[i], 0, i, false, err));
        if (!in_place)
            GSC_TRY(gsc_tensor_check(&out[i], 1, i, true, err));
        if (out[i].count == 0)
            continue;
        in_order =
            in_order && (outputs == 0 || end_of(&out[scratch[outputs - 1]]) <= start_of(&out[i]));
        scratch[outputs++] = i;
    }
    const uint64_t *sorted = scratch;
    if (!in_order) {
        sorted = sort(out, scratch, outputs);
        GSC_TRY(outputs_check(out, sorted, outputs, in_place, err));
    }
    return in_place ? GSC_OK : inputs_check(tensors, n, out, sorted, outputs, err);
}

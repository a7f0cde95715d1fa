/* SPDX-License-Identifier: MIT */
/* The fields of a policy and a state, by name. */
#include <math.h>
#include <string.h>

#include "formats.h"

const struct gsc_field gsc_fields[FIELDS] = {
#define X(name, member, type) {#name, type, offsetof(struct scaler, member)},
    FOR_POLICY(X) FOR_STATE(X)
#undef X
};

double gsc_get(const struct scaler *s, enum field f)
{
    const char *at = (const char *)s + gsc_fields[f].offset;
    uint32_t u32;
    uint64_t u64;
    int64_t i64;
    double f64;
    switch (gsc_fields[f].type) {
    case U32:
        memcpy(&u32, at, sizeof u32);
        return u32;
    case U64:
        memcpy(&u64, at, sizeof u64);
        return u64 < MOST_U64 ? (double)u64 : (double)MOST_U64;
    case I64:
        memcpy(&i64, at, sizeof i64);
        return (double)i64;
    default:
        memcpy(&f64, at, sizeof f64);
        return f64;
    }
}

double gsc_most_of(enum field f)
{
    return f == events                 ? GSC_EVENTS
           : gsc_fields[f].type == U32 ? 0xffffffffp0
           : gsc_fields[f].type == U64 ? (double)MOST_U64
                                       : GSC_COUNT_MOST;
}

bool gsc_put(struct scaler *s, enum field f, double x)
{
    char *at = (char *)s + gsc_fields[f].offset;
    if (gsc_fields[f].type == F64 ? isnan(x) : !(x >= 0 && x <= gsc_most_of(f) && x == floor(x)))
        return false;
    switch (gsc_fields[f].type) {
    case U32:
        memcpy(at, &(uint32_t){(uint32_t)x}, 4);
        break;
    case U64:
        memcpy(at, &(uint64_t){(uint64_t)x}, 8);
        break;
    case I64:
        memcpy(at, &(int64_t){(int64_t)x}, 8);
        break;
    default:
        memcpy(at, &x, 8);
    }
    return true;
}

void gsc_put_exact(struct scaler *s, enum field f, int64_t integer)
{
    if (gsc_fields[f].type == I64 || gsc_fields[f].type == U64)
        memcpy((char *)s + gsc_fields[f].offset, &integer, sizeof integer);
}

bool gsc_affects_training(const gsc_policy *p, enum field f)
{
    switch (f) {
    case good_steps:
        return p->growth_interval != 0 && p->growth_rule != GSC_GROWTH_ALL_STEPS && gsc_moves(p);
    case steps_since_change:
        return (p->growth_interval != 0 && p->growth_rule == GSC_GROWTH_ALL_STEPS) ||
               p->overflow_tolerance > 0;
    case overflows_since_reset:
        return p->hysteresis > 1 || p->overflow_tolerance > 0;
    case failed_backoffs:
        return p->max_failed_backoffs > 1; /* with 1, the first one stops */
    case bad_losses_in_a_row:
        return p->bad_loss_rule == GSC_BAD_LOSS_HOLD && p->max_failed_backoffs > 1;
    case next_scale:
        return p->apply_delay != 0;
    case guard_mean:
    case guard_variance:
    case guard_count:
        return p->guard_ratio != 0 || p->guard_sigmas != 0 || p->guard_warmup != 0 ||
               p->guard_flags & (GSC_GUARD_CLIP_TO_MEAN | GSC_GUARD_CLIP_PROGRESSIVE);
    case guard_in_a_row:
        return p->guard_max_in_a_row != 0;
    case guard_multiplier:
    case guard_threshold:
    case guard_value:
    case total_updates:
    case nans_in_a_row:
    case empty_in_a_row:
    case updates_at_growth:
    case overflows_at_growth:
    case generation:
    case next_generation:
    case events:
        return false; /* later steps do not read them */
    default:
        return true;
    }
}

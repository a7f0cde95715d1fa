/* SPDX-License-Identifier: MIT */
/*
 * Operations on factors, reports and states; every backend shares this source. If the status is
 * not GSC_OK, nothing is written. core/cpu/backend.c makes the error message; a device and
 * GSC_EXEC_WRITE_FAILURES call gsc_step_failed.
 */
#ifndef GSC_STEP_H
#define GSC_STEP_H

#include <string.h>

#include "bits.h"
#include "policy.h"

/* Kinds of step, and the fields of gsc_step that each one reads. */
enum gsc_step_kind {
    GSC_STEP_MULTIPLY,   /* factor, number -> gsc_factor */
    GSC_STEP_CLIP,       /* factor (NULL: 1), reports[0], number -> gsc_factor */
    GSC_STEP_MERGE,      /* reports, n, merge, has_policy, policy -> gsc_report */
    GSC_STEP_SET_RANK,   /* reports[0], n, has_policy, policy, state (NULL: none) -> gsc_report */
    GSC_STEP_STATE_INIT, /* policy, state (NULL: the policy's start) -> gsc_state */
    GSC_STEP_UPDATE,     /* policy, state, reports[0] -> gsc_state */
    GSC_STEP_COMBINE,    /* state, other -> gsc_state */
    GSC_STEP_GUARD,      /* factor (NULL: 1), state -> gsc_factor */
};

/* A step and its arguments. All pointers are the backend's memory. */
typedef struct gsc_step {
    uint32_t kind;       /* enum gsc_step_kind */
    uint32_t merge;      /* GSC_MERGE_* */
    uint64_t has_policy; /* 1: a merge or set_rank has a policy; it decides a merge's overflow */
    const gsc_factor *factor;
    const gsc_state *state, *other;
    const gsc_report *reports;
    uint64_t n; /* number of reports; of set_rank: the rank */
    double number;
    void *out;
    gsc_policy policy; /* the last: later versions add fields to it */
} gsc_step;

#ifdef __CUDA_ARCH__
typedef uint64_t __attribute__((may_alias)) gsc_word; /* of any struct */
/* A loop of words ends with this: a compiler makes it a memcpy or memset, of bytes on a device. */
#define GSC_KEEP_LOOP __asm__ volatile("" ::: "memory")
#endif

/*
 * Copies a report or state, unless it stays in place. A compiler copies 64 bytes as vectors; a
 * memcpy of the whole takes as long as a block of numbers.
 */
GSC_FUNCTION void gsc_copy(void *to, const void *from, size_t size)
{
#ifdef __CUDA_ARCH__
    GSC_ROLLED for (size_t i = 0; i < size / 8; i++)
    {
        ((gsc_word *)to)[i] = ((const gsc_word *)from)[i];
        GSC_KEEP_LOOP;
    }
#else
    if (to == from)
        return;
    for (size_t i = 0; i < size; i += 64)
        memcpy((char *)to + i, (const char *)from + i, 64);
#endif
}

GSC_FUNCTION void gsc_clear(void *to, size_t size)
{
#ifdef __CUDA_ARCH__
    GSC_ROLLED for (size_t i = 0; i < size / 8; i++)
    {
        ((gsc_word *)to)[i] = 0;
        GSC_KEEP_LOOP;
    }
#else
    for (size_t i = 0; i < size; i += 64)
        memset((char *)to + i, 0, 64);
#endif
}

/* ---- factors ---- */

GSC_FUNCTION gsc_factor gsc_factor_of(double scale, uint64_t generation)
{
    gsc_factor f;
    f.scale = scale;
    f.inverse = 1.0 / scale;
    f.scale_f32 = (float)f.scale;
    f.inverse_f32 = (float)f.inverse;
    f.generation = generation;
    return f;
}

/* Returns 1 if inverse <= 1 / scale, up to rounding. Clipping only lowers the inverse. */
GSC_FUNCTION int gsc_inverse_is_low(const gsc_factor *f)
{
    return f->scale * f->inverse <= 1 + 0x1p-20;
}

GSC_FUNCTION gsc_status gsc_factor_status(const gsc_factor *f)
{
    return gsc_positive(f->scale) && gsc_positive(f->inverse) && gsc_inverse_is_low(f)
               ? GSC_OK
               : GSC_ERROR_FACTOR;
}

/* Returns 1 if the floats are finite and above 0. Clipping can make inverse_f32 0. */
GSC_FUNCTION int gsc_has_floats(const gsc_factor *f)
{
    return gsc_positive((double)f->scale_f32) && gsc_positive((double)f->inverse_f32);
}

GSC_FUNCTION gsc_status gsc_factor_times(const gsc_factor *factor, double by, gsc_factor *out)
{
    gsc_factor product = *factor;
    if (gsc_factor_status(factor) != GSC_OK)
        return GSC_ERROR_FACTOR;
    product.scale = factor->scale * by;
    product.inverse = factor->inverse / by;
    product.scale_f32 = (float)product.scale;
    product.inverse_f32 = (float)product.inverse;
    if (gsc_factor_status(&product) != GSC_OK || !gsc_has_floats(&product))
        return GSC_ERROR_VALUE;
    *out = product;
    return GSC_OK;
}

/* ---- sums ---- */

/* A sum of any number of addends: GSC_RUN addends make a run, and the runs are added in order. */
typedef struct gsc_sum {
    double runs, run;
    uint64_t n;
} gsc_sum;

GSC_FUNCTION void gsc_sum_add(gsc_sum *sum, double addend)
{
    sum->run += addend;
    if (++sum->n % GSC_RUN == 0) {
        sum->runs += sum->run;
        sum->run = 0;
    }
}

GSC_FUNCTION double gsc_sum_total(const gsc_sum *sum)
{
    return sum->runs + sum->run;
}

/* ---- reports ---- */

#define GSC_WANT_ALL (GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW)

GSC_FUNCTION int gsc_has_bad(const gsc_report *report)
{
    return (report->nan_count | report->inf_count) != 0;
}

/* Without a policy: a found_inf beside a bad loss can be the loss's, see gsc_judge_loss. */
GSC_FUNCTION int gsc_says_overflow(const gsc_report *report)
{
    return report->overflow != 0 || report->status != GSC_OK ||
           (report->found_inf != 0 && report->loss != GSC_LOSS_NOT_FINITE);
}

/* Returns 1 if the report itself is an overflow; found_inf can be other code's. */
GSC_FUNCTION int gsc_flags_overflow(const gsc_policy *policy, const gsc_report *report)
{
    return report->overflow != 0 || report->status != GSC_OK ||
           (report->found_inf != 0 && !gsc_holds(policy, report->loss));
}

GSC_FUNCTION int gsc_overflowed(const gsc_policy *policy, const gsc_report *report)
{
    if (gsc_flags_overflow(policy, report))
        return 1;
    /* Not `>`: a sum of squares that is NaN is also an overflow. */
    const double square =
        report->kind == GSC_REPORT_NUMBER ? report->number * report->number : report->sum_squares;
    if (gsc_guards(policy) && !(square <= GSC_GUARD_MAX_VALUE * GSC_GUARD_MAX_VALUE))
        return 1;
    return policy->overflow_test == GSC_TEST_NORM && !(square <= 0x1.fffffep127);
}

GSC_FUNCTION void gsc_set_overflow(gsc_report *report, int overflow)
{
    report->overflow = overflow;
    report->found_inf = (float)overflow;
}

/* Sets found_inf, not overflow, if the policy skips the step because of the loss. */
GSC_FUNCTION void gsc_judge_loss(const gsc_policy *policy, gsc_report *report)
{
    if (gsc_holds(policy, report->loss))
        report->found_inf = 1;
}

/* Completes a report that has only measurements. policy NULL: Inf and NaN are overflows. */
GSC_FUNCTION void gsc_report_finish(gsc_report *report, uint32_t want, uint64_t generation,
                                    const gsc_policy *policy)
{
    report->kind = GSC_REPORT_TENSORS;
    report->measured = want;
    report->generation = generation;
    gsc_set_overflow(report, gsc_has_bad(report));
    if (policy) {
        gsc_set_overflow(report, gsc_overflowed(policy, report));
        gsc_judge_loss(policy, report);
    }
}

/* Marks a report as failed: sets its status and an overflow. */
GSC_FUNCTION void gsc_report_failed(gsc_report *report, gsc_status status)
{
    report->status = status;
    gsc_set_overflow(report, 1);
}

/* Makes the report of a call that failed and read no report, or several. */
GSC_FUNCTION void gsc_report_of_failure(gsc_report *report, gsc_status status)
{
    gsc_clear(report, sizeof *report);
    gsc_report_failed(report, status);
}

GSC_FUNCTION int gsc_words_are_zero(const uint64_t *words, uint32_t n)
{
    uint64_t any = 0;
    GSC_ROLLED for (uint32_t i = 0; i < n; i++) any |= words[i];
    return any == 0;
}
#define GSC_RESERVED_IS_ZERO(s)                                                                    \
    gsc_words_are_zero((s)->reserved, sizeof(s)->reserved / sizeof *(s)->reserved)

/* X(field, high, words, holds): `holds` is true for every valid report `r`. */
#define GSC_FOR_REPORT_VALUES(X)                                                                   \
    X(kind, GSC_REPORT_FLAG, "0 to 4", r->kind <= GSC_REPORT_FLAG)                                 \
    X(flags, 0, "0", r->flags == 0)                                                                \
    X(has_flag, 1, "0, or 1 in a merged report",                                                   \
      r->has_flag <= (r->kind == GSC_REPORT_MERGED ? 1u : 0u))                                     \
    X(loss, GSC_LOSS_NOT_FINITE, "0 to 2, but 0 in the report of a flag, of a number or of none",  \
      r->loss <= (r->kind == GSC_REPORT_TENSORS || r->kind == GSC_REPORT_MERGED                    \
                      ? GSC_LOSS_NOT_FINITE                                                        \
                      : GSC_LOSS_UNKNOWN))                                                         \
    X(measured, GSC_WANT_ALL, "a union of the bits 1, 2 and 4, but 0 in the report of a flag",     \
      r->measured <= (r->kind == GSC_REPORT_FLAG ? 0u : GSC_WANT_ALL))                             \
    X(sum_squares, NAN, "0 or above", !(r->sum_squares < 0))
/* The same for the fields that gsc_report_is_usual tests at once. */
#define GSC_FOR_REPORT_COUNTS(X)                                                                   \
    X(number, NAN, "finite in the report of a number and 0 in others",                             \
      r->kind == GSC_REPORT_NUMBER ? isfinite(r->number) : r->number == 0)                         \
    X(elements, NAN, "0 or above", r->elements >= 0)                                               \
    X(nan_count, NAN, "0 or above", r->nan_count >= 0)                                             \
    X(inf_count, NAN, "0 or above", r->inf_count >= 0)                                             \
    X(first_tensor, NAN, "0 or above", r->first_tensor >= 0)                                       \
    X(first_element, NAN, "0 or above", r->first_element >= 0)                                     \
    X(last_tensor, NAN, "0 or above", r->last_tensor >= 0)                                         \
    X(underflows_to_zero, NAN, "0 or above", r->underflows_to_zero >= 0)                           \
    X(underflows_to_subnormal, NAN, "0 or above", r->underflows_to_subnormal >= 0)                 \
    X(clamped, NAN, "0 or above", r->clamped >= 0)

/* Returns 1 if no call filled the report in. A report with an overflow needs no kind. */
GSC_FUNCTION int gsc_is_unfilled(const gsc_report *r)
{
    return r->kind == GSC_REPORT_NONE && !gsc_says_overflow(r);
}

#ifndef __CUDA_ARCH__ /* nvcc has no vectors on a device */
/*
 * Returns 1 if the 9 words from elements to clamped are 0 or above, and the 13 from number to the
 * end are 0. By pairs, which no compiler makes by itself, a merge takes a sixth less time.
 */
GSC_FUNCTION int gsc_report_is_usual(const gsc_report *r)
{
    typedef uint64_t pair __attribute__((vector_size(16), aligned(8), may_alias));
    const pair *counts = (const pair *)&r->elements, *rest = (const pair *)&r->number;
    pair any = (counts[0] | counts[1] | counts[2] | counts[3]) >> 63;
    for (int i = 0; i < 6; i++)
        any |= rest[i];
    return (any[0] | any[1] | r->reserved[11]) == 0 && r->clamped >= 0;
}
#endif

GSC_FUNCTION gsc_status gsc_report_values_status(const gsc_report *r)
{
#define GSC_HOLDS(field, high, words, holds)                                                       \
    if (!(holds))                                                                                  \
        return GSC_ERROR_REPORT;
    GSC_FOR_REPORT_VALUES(GSC_HOLDS)
    if (gsc_is_unfilled(r) || (gsc_has_bad(r) && !gsc_says_overflow(r)))
        return GSC_ERROR_REPORT;
#ifndef __CUDA_ARCH__
    if (gsc_report_is_usual(r))
        return GSC_OK;
#endif
    GSC_FOR_REPORT_COUNTS(GSC_HOLDS)
#undef GSC_HOLDS
    return GSC_RESERVED_IS_ZERO(r) ? GSC_OK : GSC_ERROR_REPORT;
}

/* Returns the GSC_WANT_* bits that the policy needs and the report lacks. A number is a norm. */
GSC_FUNCTION uint32_t gsc_report_lacks(const gsc_policy *policy, const gsc_report *report)
{
    const uint32_t number = report->kind == GSC_REPORT_NUMBER ? GSC_WANT_NORM : 0u;
    return gsc_flags_overflow(policy, report) || gsc_holds(policy, report->loss)
               ? 0u
               : gsc_policy_wants(policy) & ~(report->measured | number);
}

GSC_FUNCTION gsc_status gsc_report_status(const gsc_policy *policy, const gsc_report *report)
{
    return report->status == GSC_OK && !gsc_report_lacks(policy, report) && report->amax >= 0 &&
                   isfinite(report->amax) && gsc_report_values_status(report) == GSC_OK
               ? GSC_OK
               : GSC_ERROR_REPORT;
}

GSC_FUNCTION gsc_status gsc_norm_status(const gsc_report *report)
{
    return (report->measured & GSC_WANT_NORM) && report->status == GSC_OK &&
                   isfinite(report->sum_squares) && gsc_report_values_status(report) == GSC_OK
               ? GSC_OK
               : GSC_ERROR_REPORT;
}

GSC_FUNCTION gsc_status gsc_factor_shrunk(gsc_factor factor, double coefficient, gsc_factor *out)
{
    if (coefficient < 1.0)
        factor.inverse *= coefficient;
    factor.inverse_f32 = (float)factor.inverse;
    if (gsc_factor_status(&factor) != GSC_OK)
        return GSC_ERROR_FACTOR;
    *out = factor;
    return GSC_OK;
}

GSC_FUNCTION gsc_status gsc_factor_clipped(const gsc_factor *factor, const gsc_report *report,
                                           double max_norm, gsc_factor *out)
{
    const gsc_factor unclipped = factor ? *factor : gsc_factor_of(1, 0);
    if (gsc_factor_status(&unclipped) != GSC_OK)
        return GSC_ERROR_FACTOR;
    if (gsc_norm_status(report) != GSC_OK)
        return GSC_ERROR_REPORT;
    return gsc_factor_shrunk(unclipped, max_norm / (sqrt(report->sum_squares) + 1e-6), out);
}

/* Adds counts, which are 0 or above. A sum above the largest number becomes that number. */
GSC_FUNCTION int64_t gsc_count_sum(int64_t a, int64_t b)
{
    const uint64_t sum = (uint64_t)a + (uint64_t)b;
    return sum > (uint64_t)INT64_MAX ? INT64_MAX : (int64_t)sum;
}

/* Adds the counts of `from` to `to`, but not the sum of squares: its order of addition is fixed. */
GSC_FUNCTION void gsc_report_add(gsc_report *to, const gsc_report *from)
{
    if (from->amax > to->amax || isnan(from->amax))
        to->amax = from->amax;
    if (gsc_has_bad(from)) {
        if (!gsc_has_bad(to)) {
            to->first_tensor = from->first_tensor;
            to->first_element = from->first_element;
            to->first_rank_plus_1 = from->first_rank_plus_1;
        }
        to->last_tensor = from->last_tensor;
        to->last_rank_plus_1 = from->last_rank_plus_1;
        to->nan_count = gsc_count_sum(to->nan_count, from->nan_count);
        to->inf_count = gsc_count_sum(to->inf_count, from->inf_count);
    }
    to->elements = gsc_count_sum(to->elements, from->elements);
    to->underflows_to_zero = gsc_count_sum(to->underflows_to_zero, from->underflows_to_zero);
    to->underflows_to_subnormal =
        gsc_count_sum(to->underflows_to_subnormal, from->underflows_to_subnormal);
    to->clamped = gsc_count_sum(to->clamped, from->clamped);
}

/* Returns the first report with another digest than the reports before it, or n. */
GSC_FUNCTION uint64_t gsc_first_mismatch(const gsc_report *reports, uint64_t n)
{
    uint64_t agreement = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (reports[i].digest != 0 && agreement != 0 && reports[i].digest != agreement)
            return i;
        if (agreement == 0)
            agreement = reports[i].digest;
    }
    return n;
}

/* Merges reports. policy NULL: an overflow in any report is an overflow. */
GSC_FUNCTION gsc_status gsc_merged(const gsc_report *reports, uint64_t n, uint32_t merge,
                                   const gsc_policy *policy, gsc_report *out)
{
    gsc_report r;
    gsc_sum sum = {0, 0, 0};
    int overflow = 0, found_inf = 0;
    uint64_t differ = 0;
    gsc_clear(&r, sizeof r);
    r.kind = GSC_REPORT_MERGED;
    r.measured = merge == GSC_MERGE_ADDENDS && n > 0 ? GSC_WANT_UNDERFLOW : GSC_WANT_ALL;
    for (uint64_t i = 0; i < n; i++) {
        const gsc_report *report = &reports[i];
        if (gsc_report_values_status(report) != GSC_OK || report->kind == GSC_REPORT_NUMBER)
            return gsc_first_mismatch(reports, n) < n ? GSC_ERROR_MISMATCH : GSC_ERROR_REPORT;
        if (gsc_says_overflow(report)) {
            if (!overflow) /* a later report that has counts replaces it */
                r.first_rank_plus_1 = report->first_rank_plus_1;
            if (!gsc_has_bad(&r))
                r.last_rank_plus_1 = report->last_rank_plus_1;
            if (r.status == GSC_OK && report->status != GSC_OK) {
                r.status = report->status;
                r.status_rank_plus_1 = report->status_rank_plus_1;
            }
            overflow = 1;
        }
        gsc_report_add(&r, report);
        gsc_sum_add(&sum, report->sum_squares);
        found_inf |= report->found_inf != 0;
        r.measured &= report->measured;
        r.has_flag |= report->has_flag | (report->kind == GSC_REPORT_FLAG);
        if (report->loss == GSC_LOSS_NOT_FINITE && r.loss != GSC_LOSS_NOT_FINITE)
            r.loss_rank_plus_1 = report->loss_rank_plus_1;
        if (report->loss > r.loss)
            r.loss = report->loss;
        r.digest |= report->digest; /* those that are not 0 are equal, or this fails */
        differ |= report->digest ^ reports->digest;
        if (report->generation - 1 < r.generation - 1) /* 0, unknown, becomes the largest */
            r.generation = report->generation;
    }
    if (differ != 0 && gsc_first_mismatch(reports, n) < n)
        return GSC_ERROR_MISMATCH;
    r.sum_squares = gsc_sum_total(&sum);
    if (!(r.measured & GSC_WANT_NORM))
        r.sum_squares = 0;
    if (!(r.measured & GSC_WANT_AMAX))
        r.amax = 0;
    if (!(r.measured & GSC_WANT_UNDERFLOW))
        r.underflows_to_zero = r.underflows_to_subnormal = 0;
    gsc_set_overflow(&r, overflow);
    r.found_inf = (float)(overflow || found_inf);
    if (policy && !overflow) {
        if (gsc_report_lacks(policy, &r))
            return GSC_ERROR_REPORT;
        gsc_set_overflow(&r, gsc_overflowed(policy, &r));
    }
    if (policy)
        gsc_judge_loss(policy, &r);
    gsc_copy(out, &r, sizeof r);
    return GSC_OK;
}

/* ---- states ---- */

#define GSC_COUNT_IS_SANE(count) ((count) >= 0 && (count) < INT64_MAX / 4)
#define GSC_COUNT_MOST           0x1p61

/* Returns 1 for a state of a candidate before 0.10, which had two weights up to 1.0 here. */
GSC_FUNCTION int gsc_is_of_candidate(const gsc_state *s)
{
    return s->failed_backoffs >= INT64_MAX / 4 && s->bad_losses_in_a_row >= INT64_MAX / 4;
}

/* Returns 1 if `inverse` is 1 / scale in any rounding mode, with or without flush to zero. */
GSC_FUNCTION int gsc_is_inverse(double scale, double inverse)
{
    return inverse == 1.0 / scale || fabs(scale * inverse - 1.0) < 0x1p-50 ||
           (scale < 0x1p-1021 && inverse > 0x1p1020) ||
           (scale > 0x1p1021 && inverse >= 0 && inverse < 0x1p-1020);
}

/* Returns 1 if `y` is x rounded to float in any rounding mode, with or without flush to zero. */
GSC_FUNCTION int gsc_is_float_of(double x, float y)
{
    if ((double)y == x)
        return 1; /* the inverse of a scale of -0 is -Inf */
    if (x < 0x1p-125)
        return x >= 0 && y >= 0 && y <= 0x1p-125f;
    if (x >= 0x1.fffffep127)
        return y >= 0x1.fffffep127f;
    return fabs((double)y - x) <= 0x1p-22 * x;
}

#define GSC_EVENTS (2 * GSC_EVENT_EMPTY - 1) /* all bits */

/*
 * X(field, low, high, holds): `holds` is true for the state `s` after any update.
 * GSC_FOR_STATE_VALUES lists all fields that gsc_state_init_from takes besides the scale.
 */
#define GSC_FOR_STATE_VALUES(X)                                                                    \
    X(good_steps, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->good_steps))                             \
    X(steps_since_change, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->steps_since_change))             \
    X(overflows_since_reset, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->overflows_since_reset))       \
    X(failed_backoffs, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->failed_backoffs))                   \
    X(bad_losses_in_a_row, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->bad_losses_in_a_row))           \
    X(total_updates, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->total_updates))                       \
    X(total_bad_losses, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->total_bad_losses))                 \
    X(total_overflows, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->total_overflows))                   \
    X(total_growths, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->total_growths))                       \
    X(total_backoffs, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->total_backoffs))                     \
    X(guard_mean, -2 * GSC_GUARD_MAX_VALUE, 2 * GSC_GUARD_MAX_VALUE,                               \
      fabs(s->guard_mean) <= 2 * GSC_GUARD_MAX_VALUE)                                              \
    X(guard_variance, 0, 0x1p1004, s->guard_variance >= 0 && s->guard_variance <= 0x1p1004)        \
    X(guard_count, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->guard_count))                           \
    X(guard_in_a_row, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->guard_in_a_row))                     \
    X(total_guard_skips, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->total_guard_skips))               \
    X(guard_multiplier, 0, 1, s->guard_multiplier >= 0 && s->guard_multiplier <= 1)                \
    X(guard_threshold, NAN, NAN, isfinite(s->guard_threshold))                                     \
    X(guard_value, NAN, NAN, isfinite(s->guard_value))                                             \
    X(total_guard_clips, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->total_guard_clips))               \
    X(nans_in_a_row, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->nans_in_a_row))                       \
    X(empty_in_a_row, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->empty_in_a_row))                     \
    X(updates_at_growth, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->updates_at_growth))               \
    X(overflows_at_growth, 0, GSC_COUNT_MOST, GSC_COUNT_IS_SANE(s->overflows_at_growth))
#define GSC_FOR_STATE_FACTORS(X)                                                                   \
    X(factor.scale, 0, NAN,                                                                        \
      s->factor.scale >= 0 && (s->factor.scale > 0 || s->factor.generation > 0))                   \
    X(next.scale, 0, NAN, s->next.scale >= 0 && (s->next.scale > 0 || s->next.generation > 0))     \
    X(factor.inverse, 0, NAN, gsc_is_inverse(s->factor.scale, s->factor.inverse))                  \
    X(next.inverse, 0, NAN, gsc_is_inverse(s->next.scale, s->next.inverse))                        \
    X(factor.scale_f32, 0, NAN, gsc_is_float_of(s->factor.scale, s->factor.scale_f32))             \
    X(factor.inverse_f32, 0, NAN, gsc_is_float_of(s->factor.inverse, s->factor.inverse_f32))       \
    X(next.scale_f32, 0, NAN, gsc_is_float_of(s->next.scale, s->next.scale_f32))                   \
    X(next.inverse_f32, 0, NAN, gsc_is_float_of(s->next.inverse, s->next.inverse_f32))             \
    X(skip, 0, 1, s->skip == 0 || s->skip == 1)                                                    \
    X(skip_f32, 0, 1, s->skip_f32 == 0 || s->skip_f32 == 1)                                        \
    X(events, 0, GSC_EVENTS, (s->events & ~GSC_EVENTS) == 0)

#define GSC_HOLDS(field, low, high, holds)                                                         \
    if (!(holds))                                                                                  \
        return GSC_ERROR_STATE;
GSC_FUNCTION gsc_status gsc_state_values_status(const gsc_state *s)
{
    if (gsc_is_of_candidate(s))
        return GSC_ERROR_VERSION;
    GSC_FOR_STATE_VALUES(GSC_HOLDS)
    return GSC_RESERVED_IS_ZERO(s) ? GSC_OK : GSC_ERROR_STATE;
}

GSC_FUNCTION gsc_status gsc_state_status(const gsc_state *s)
{
    const gsc_status status = gsc_state_values_status(s);
    if (status != GSC_OK)
        return status;
    GSC_FOR_STATE_FACTORS(GSC_HOLDS)
    return GSC_OK;
}
#undef GSC_HOLDS

/* Sets the fields that repeat the event SKIPPED: skip, skip_f32, guard_multiplier. */
GSC_FUNCTION void gsc_set_skip(gsc_state *s)
{
    s->skip = (s->events & GSC_EVENT_SKIPPED) != 0;
    s->skip_f32 = (float)s->skip;
    if (s->skip)
        s->guard_multiplier = 0;
}

/* Makes the first state, or a state with the scale and the counts of `from`. */
GSC_FUNCTION gsc_status gsc_state_made(const gsc_policy *policy, const gsc_state *from,
                                       gsc_state *out)
{
    double scale = gsc_first_scale(policy);
    uint64_t generation = 1;
    if (from) {
        const gsc_status status = gsc_state_values_status(from);
        if (status != GSC_OK)
            return status;
        if (!(from->factor.scale >= 0))
            return GSC_ERROR_STATE;
        scale = gsc_rounded(policy, from->factor.scale);
        generation = from->next.generation + 1;
        gsc_copy(out, from, sizeof *out);
    } else {
        gsc_clear(out, sizeof *out);
    }
    out->factor = out->next = gsc_factor_of(scale, generation);
    out->events = 0;
    out->status = GSC_OK;
    out->guard_multiplier = 1;
    out->guard_value = out->guard_threshold = 0;
    gsc_set_skip(out);
    return GSC_OK;
}

/* Returns 1 if no tensor had a gradient. A flag tells nothing about that. */
GSC_FUNCTION int gsc_is_empty(const gsc_report *r)
{
    return (r->kind == GSC_REPORT_TENSORS || r->kind == GSC_REPORT_MERGED) && !r->has_flag &&
           r->elements == 0 && !gsc_says_overflow(r);
}

/* Counts what a diagnosis reads, and no later step. */
GSC_FUNCTION void gsc_count_in_a_row(gsc_state *s, const gsc_report *r)
{
    if (gsc_has_bad(r) || r->kind == GSC_REPORT_TENSORS || !gsc_says_overflow(r)) /* else unknown */
        s->nans_in_a_row = r->nan_count > 0 ? s->nans_in_a_row + 1 : 0;
    const int empty = gsc_is_empty(r);
    s->empty_in_a_row = empty ? s->empty_in_a_row + 1 : 0;
    s->events |= empty ? GSC_EVENT_EMPTY : 0u;
}

GSC_FUNCTION gsc_status gsc_updated(const gsc_policy *policy, const gsc_state *state,
                                    const gsc_report *report, gsc_state *out)
{
    const gsc_status status = gsc_state_status(state);
    if (status != GSC_OK)
        return status;
    if (gsc_report_status(policy, report) != GSC_OK)
        return GSC_ERROR_REPORT;
    gsc_copy(out, state, sizeof *out);
    const gsc_factor next = out->next;
    const int stale = report->generation != 0 && report->generation != out->factor.generation;
    const double newest = gsc_policy_step(policy, out, gsc_overflowed(policy, report), report->loss,
                                          gsc_guarded_value(report));
    gsc_count_in_a_row(out, report);
    if (stale)
        out->events |= GSC_EVENT_STALE;
    out->next = gsc_factor_of(newest, next.generation + 1);
    out->factor = policy->apply_delay ? next : out->next;
    out->status = GSC_OK;
    gsc_set_skip(out);
    return GSC_OK;
}

/* The events that concern the judged step, not the scale. */
#define GSC_EVENTS_OF_STEP                                                                         \
    (GSC_EVENT_SKIPPED | GSC_EVENT_STOPPED | GSC_EVENT_OUTLIER | GSC_EVENT_CLIPPED |               \
     GSC_EVENT_BAD_LOSS)

GSC_FUNCTION gsc_status gsc_decisions_combined(const gsc_state *state, const gsc_state *other,
                                               gsc_state *out)
{
    const gsc_status checked = gsc_state_status(state), other_checked = gsc_state_status(other);
    if (checked != GSC_OK || other_checked != GSC_OK)
        return checked != GSC_OK ? checked : other_checked;
    /* Read before it is written: `out` may be `other`. */
    const uint32_t events = other->events;
    const double multiplier = other->guard_multiplier;
    const gsc_status status = other->status;
    gsc_copy(out, state, sizeof *out);
    const int clips_more = events & GSC_EVENT_CLIPPED &&
                           !(out->events & GSC_EVENT_CLIPPED && out->guard_multiplier < multiplier);
    out->events |= events & GSC_EVENTS_OF_STEP;
    if (out->status == GSC_OK)
        out->status = status;
    gsc_set_skip(out);
    if (out->events & GSC_EVENT_SKIPPED)
        out->events &= ~GSC_EVENT_CLIPPED;
    else if (clips_more)
        out->guard_multiplier = multiplier;
    return GSC_OK;
}

GSC_FUNCTION gsc_status gsc_factor_guarded(const gsc_factor *factor, const gsc_state *state,
                                           gsc_factor *out)
{
    const gsc_factor unclipped = factor ? *factor : gsc_factor_of(1, 0);
    if (gsc_factor_status(&unclipped) != GSC_OK)
        return GSC_ERROR_FACTOR;
    const gsc_status status = gsc_state_status(state);
    if (status != GSC_OK)
        return status;
    return gsc_factor_shrunk(unclipped,
                             state->events & GSC_EVENT_CLIPPED ? state->guard_multiplier : 1, out);
}

/* ---- agreement ---- */

GSC_FUNCTION uint64_t gsc_number_word(double x)
{
    return gsc_double_bits(x + 0.0); /* -0 is 0 */
}

/*
 * Mixes words into a digest. The mixing is one to one: if exactly one word differs, the digests
 * differ. If more words differ, the digests are equal with a probability of 2^-64.
 */
GSC_FUNCTION uint64_t gsc_digest_mixed(uint64_t digest, const uint64_t *words, size_t n)
{
    GSC_ROLLED for (size_t i = 0; i < n; i++)
    {
        digest = (digest ^ words[i]) * 0x9E3779B97F4A7C15u;
        digest ^= digest >> 32;
    }
    return digest;
}

/* Returns a digest of all that decides later steps, never 0. A default counts as its value. */
GSC_FUNCTION uint64_t gsc_digest(const gsc_policy *p, const gsc_state *s)
{
    const int guards = !p || gsc_guards(p);
    uint64_t digest = (uint64_t)(p != NULL) << 1 | (uint64_t)(s != NULL);
    if (p) {
        const uint64_t words[] = {
            gsc_number_word(gsc_growth_factor(p)), gsc_number_word(p->backoff_factor),
            gsc_number_word(gsc_max_scale(p)), gsc_number_word(gsc_min_scale(p)),
            gsc_number_word(p->overflow_tolerance),
            /* choices and counts */
            p->arithmetic, p->growth_interval, p->growth_rule, p->growth_extra_steps,
            p->ceiling_rule, p->floor_rule, p->overflow_test, p->overflow_reset, gsc_hysteresis(p),
            p->apply_delay, p->max_failed_backoffs, p->quirks, p->bad_loss_rule};
        const uint64_t guard[] = {gsc_number_word(p->guard_norm), gsc_number_word(p->guard_ratio),
                                  gsc_number_word(p->guard_sigmas), gsc_number_word(p->guard_decay),
                                  gsc_number_word(p->guard_init_mean),
                                  /* counts and choices */
                                  p->guard_warmup, p->guard_max_in_a_row,
                                  (uint64_t)p->guard_sample << 32 | p->guard_flags};
        digest = gsc_digest_mixed(digest, words, sizeof words / sizeof *words);
        if (guards)
            digest = gsc_digest_mixed(digest, guard, sizeof guard / sizeof *guard);
    }
    if (s) {
        const uint64_t words[] = {gsc_number_word(s->factor.scale), gsc_number_word(s->next.scale),
                                  gsc_number_word(s->factor.inverse),
                                  gsc_number_word(s->next.inverse),
                                  /* counts */
                                  (uint64_t)s->good_steps, (uint64_t)s->steps_since_change,
                                  (uint64_t)s->overflows_since_reset, (uint64_t)s->failed_backoffs,
                                  (uint64_t)s->bad_losses_in_a_row};
        const uint64_t guard[] = {gsc_number_word(s->guard_mean),
                                  gsc_number_word(s->guard_variance), (uint64_t)s->guard_count,
                                  (uint64_t)s->guard_in_a_row};
        digest = gsc_digest_mixed(digest, words, sizeof words / sizeof *words);
        if (guards)
            digest = gsc_digest_mixed(digest, guard, sizeof guard / sizeof *guard);
    }
    return digest == 0 ? 1 : digest;
}

GSC_FUNCTION void gsc_set_rank(gsc_report *report, uint64_t rank)
{
    report->status_rank_plus_1 = report->first_rank_plus_1 = (uint32_t)rank + 1;
    report->last_rank_plus_1 = report->loss_rank_plus_1 = (uint32_t)rank + 1;
}

/* Writes the rank and the digest into a report. policy or state NULL: not in the digest. */
GSC_FUNCTION gsc_status gsc_rank_set(const gsc_report *report, const gsc_policy *policy,
                                     const gsc_state *state, uint64_t rank, gsc_report *out)
{
    if (gsc_report_values_status(report) != GSC_OK)
        return GSC_ERROR_REPORT;
    const gsc_status status = state ? gsc_state_status(state) : GSC_OK;
    if (status != GSC_OK)
        return status;
    gsc_copy(out, report, sizeof *out);
    out->digest = policy || state ? gsc_digest(policy, state) : 0;
    gsc_set_rank(out, rank);
    return GSC_OK;
}

/* ---- every kind of step ---- */

GSC_FUNCTION gsc_status gsc_step_run(const gsc_step *p)
{
    switch (p->kind) {
    case GSC_STEP_MULTIPLY:
        return gsc_factor_times(p->factor, p->number, (gsc_factor *)p->out);
    case GSC_STEP_CLIP:
        return gsc_factor_clipped(p->factor, p->reports, p->number, (gsc_factor *)p->out);
    case GSC_STEP_MERGE:
        return gsc_merged(p->reports, p->n, p->merge, p->has_policy ? &p->policy : NULL,
                          (gsc_report *)p->out);
    case GSC_STEP_SET_RANK:
        return gsc_rank_set(p->reports, p->has_policy ? &p->policy : NULL, p->state, p->n,
                            (gsc_report *)p->out);
    case GSC_STEP_STATE_INIT:
        return gsc_state_made(&p->policy, p->state, (gsc_state *)p->out);
    case GSC_STEP_COMBINE:
        return gsc_decisions_combined(p->state, p->other, (gsc_state *)p->out);
    case GSC_STEP_GUARD:
        return gsc_factor_guarded(p->factor, p->state, (gsc_factor *)p->out);
    default:
        return gsc_updated(&p->policy, p->state, p->reports, (gsc_state *)p->out);
    }
}

/* Writes the result of a failed step for a reader without *err: the input and the status. */
GSC_FUNCTION void gsc_step_failed(const gsc_step *p, gsc_status status)
{
    switch (p->kind) {
    case GSC_STEP_MULTIPLY:
    case GSC_STEP_GUARD:
    case GSC_STEP_CLIP: /* a factor has no status: write one that all calls refuse */
        /* The cast tells a device that it can clear whole words. */
        memset((gsc_factor *)p->out, 0, sizeof(gsc_factor));
        break;
    case GSC_STEP_MERGE: {
        gsc_report *report = (gsc_report *)p->out;
        const uint32_t rank_plus_1 =
            status == GSC_ERROR_MISMATCH
                ? p->reports[gsc_first_mismatch(p->reports, p->n)].status_rank_plus_1
                : 0;
        gsc_report_of_failure(report, status);
        report->status_rank_plus_1 = rank_plus_1;
        break;
    }
    case GSC_STEP_SET_RANK: { /* digest 0 agrees with all: the overflow already stops the step */
        gsc_report *report = (gsc_report *)p->out;
        gsc_copy(report, p->reports, sizeof *report);
        gsc_report_failed(report, status);
        report->digest = 0;
        gsc_set_rank(report, p->n);
        break;
    }
    default: {
        gsc_state *state = (gsc_state *)p->out;
        gsc_copy(state, p->state, sizeof *state);
        state->status = status;
        state->events = GSC_EVENT_SKIPPED;
        gsc_set_skip(state);
    }
    }
}

#endif

/* SPDX-License-Identifier: MIT */
/* Metrics of a scaler for logs, and a diagnosis that says what to do. */
#include <stdio.h>
#include <string.h>

#include "internal.h"
#include "layout.h"
#include "step.h"

/* ---- metrics ---- */

static const char *const metric_names[] = {GSC_METRIC_NAMES};
enum { METRIC_COUNT = sizeof metric_names / sizeof *metric_names };

static void set_number(gsc_entry *metrics, uint32_t metric, double value)
{
    metrics[metric].kind = GSC_ENTRY_NUMBER;
    metrics[metric].value = value;
}

static void set_integer(gsc_entry *metrics, uint32_t metric, uint32_t kind, int64_t value)
{
    metrics[metric].kind = kind;
    metrics[metric].integer = value;
    metrics[metric].value = (double)value;
}

static double zero_share(const gsc_report *report)
{
    return (double)report->underflows_to_zero / (double)report->elements;
}

static bool has_zero_share(const gsc_report *report)
{
    return (report->measured & GSC_WANT_UNDERFLOW) && report->elements > 0;
}

gsc_status gsc_state_metrics(const gsc_policy *policy, const gsc_state *state,
                             const gsc_report *report, gsc_entry *entries,
                             uint64_t entries_capacity, uint64_t *entries_count, gsc_error *err)
{
    gsc_begin(err);
    gsc_policy full;
    gsc_entry metrics[METRIC_COUNT] = {0};
    GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    GSC_REQUIRE(state, 1);
    GSC_TRY(gsc_state_check(state, 1, "state", err));
    if (report)
        GSC_TRY(gsc_report_check(report, 2, -1, "report", err));
    for (uint32_t i = 0; i < METRIC_COUNT; i++) {
        memcpy(metrics[i].key, metric_names[i], strlen(metric_names[i]));
        metrics[i].kind = GSC_ENTRY_NULL;
    }
    const bool is_skipped = state->events & GSC_EVENT_SKIPPED;
    set_number(metrics, GSC_METRIC_LOSS_SCALE, state->factor.scale);
    set_integer(metrics, GSC_METRIC_SKIP, GSC_ENTRY_BOOLEAN, is_skipped);
    set_integer(metrics, GSC_METRIC_OVERFLOW, GSC_ENTRY_BOOLEAN,
                is_skipped && gsc_cause_of(state) == GSC_CAUSE_OVERFLOW);
    const bool has_finite_gradients =
        report && report->kind != GSC_REPORT_NUMBER && !gsc_has_bad(report);
    if (report && report->loss != GSC_LOSS_UNKNOWN)
        set_integer(metrics, GSC_METRIC_BAD_LOSS, GSC_ENTRY_BOOLEAN,
                    report->loss == GSC_LOSS_NOT_FINITE);
    set_integer(metrics, GSC_METRIC_TOTAL_BAD_LOSSES, GSC_ENTRY_INTEGER, state->total_bad_losses);
    if (has_finite_gradients && (report->measured & GSC_WANT_NORM) && isfinite(report->sum_squares))
        set_number(metrics, GSC_METRIC_NORM, sqrt(report->sum_squares));
    else if (state->guard_value != 0)
        set_number(metrics, GSC_METRIC_NORM, state->guard_value);
    if (has_finite_gradients && (report->measured & GSC_WANT_AMAX) && isfinite(report->amax))
        set_number(metrics, GSC_METRIC_AMAX, report->amax);
    if (report && has_zero_share(report))
        set_number(metrics, GSC_METRIC_ZERO_SHARE, zero_share(report));
    if (report && report->kind == GSC_REPORT_TENSORS) {
        set_integer(metrics, GSC_METRIC_NAN_COUNT, GSC_ENTRY_INTEGER, report->nan_count);
        set_integer(metrics, GSC_METRIC_INF_COUNT, GSC_ENTRY_INTEGER, report->inf_count);
    }
    set_integer(metrics, GSC_METRIC_TOTAL_OVERFLOWS, GSC_ENTRY_INTEGER, state->total_overflows);
    set_integer(metrics, GSC_METRIC_TOTAL_GUARD_SKIPS, GSC_ENTRY_INTEGER, state->total_guard_skips);
    set_integer(metrics, GSC_METRIC_TOTAL_GROWTHS, GSC_ENTRY_INTEGER, state->total_growths);
    set_integer(metrics, GSC_METRIC_TOTAL_BACKOFFS, GSC_ENTRY_INTEGER, state->total_backoffs);
    set_integer(metrics, GSC_METRIC_STEPS_SINCE_CHANGE, GSC_ENTRY_INTEGER,
                state->steps_since_change);
    if (state->guard_threshold != 0)
        set_number(metrics, GSC_METRIC_GUARD_THRESHOLD, state->guard_threshold);
    set_number(metrics, GSC_METRIC_GUARD_MULTIPLIER, state->guard_multiplier);
    if (entries_capacity > 0)
        GSC_REQUIRE(entries, 3);
    for (uint64_t i = 0; i < METRIC_COUNT && i < entries_capacity; i++)
        entries[i] = metrics[i];
    gsc_tell(entries_count, METRIC_COUNT);
    return GSC_OK;
}

/* ---- diagnosis ---- */

#define MAX_ZERO_SHARE     0.01   /* above this share, too many became zero by unscaling */
#define MAX_OVERFLOW_SHARE 0.05   /* above this share of the steps, overflows are frequent, ... */
#define MIN_OVERFLOWS      10     /* ... if there are at least this many */
#define MAX_BAD_LOSS_SHARE 0.001  /* above this share of the steps, bad losses are no accident */
#define SUFFICIENT_SCALE   0x1p32 /* float16 needs no larger scale */
#define MAX_SKIPS_IN_A_ROW 10     /* from this many on, the guard can be too strict */

struct run {
    const gsc_policy *policy;
    const gsc_state *state;
    const gsc_report *report, *per_tensor;
    uint64_t n, steps, planned_steps;
};

/* Adds a note if a call failed. Returns true then: no overflow was measured. */
static bool find_failure(const struct run *run, gsc_notes *notes)
{
    const gsc_report *report = run->report;
    const bool report_failed = report && report->status != GSC_OK;
    const gsc_status status = report_failed ? report->status : run->state->status;
    char on_rank[32] = "";
    if (status == GSC_OK)
        return false;
    if (report_failed && report->status_rank_plus_1 > 0)
        (void)snprintf(on_rank, sizeof on_rank, " on rank %u", report->status_rank_plus_1 - 1);
    if (status == GSC_ERROR_MISMATCH)
        gsc_note_add(notes, GSC_NOTE_FAILURE, -1, "status", status,
                     "the ranks differ%s%s: load the same checkpoint and use the same policy "
                     "on all ranks",
                     *on_rank ? ", first" : "", on_rank);
    else
        gsc_note_add(notes, GSC_NOTE_FAILURE, -1, "status", status, "%s failed%s: %s",
                     report_failed ? "the call that made the report" : "the last update", on_rank,
                     gsc_status_string(status));
    return true;
}

/* Returns the last tensor that is not finite, the nearest to the cause, or -1 if unknown. */
static int64_t last_bad_tensor(const struct run *run)
{
    for (uint64_t i = run->n; i-- > 0;)
        if (gsc_has_bad(&run->per_tensor[i]))
            return (int64_t)i;
    return run->n == 0 && run->report && run->report->kind == GSC_REPORT_TENSORS &&
                   gsc_has_bad(run->report)
               ? run->report->last_tensor
               : -1;
}

static void find_bad_losses(const struct run *run, gsc_notes *notes)
{
    const double share = fmin(1, (double)run->state->total_bad_losses / (double)run->steps);
    if (run->steps > 0 && share > MAX_BAD_LOSS_SHARE)
        gsc_note_add(notes, GSC_NOTE_BAD_LOSSES, -1, "total_bad_losses", share,
                     "%s %% of the losses were not finite before scaling: look at the data or the "
                     "model; see docs/skipped.md#loss",
                     gsc_digits(3, 100 * share).text);
}

static void find_not_finite(const struct run *run, gsc_notes *notes)
{
    const gsc_state *s = run->state;
    const gsc_report *report = run->report;
    const double scale = s->factor.scale;
    if (!gsc_usable(scale)) {
        gsc_note_add(notes, GSC_NOTE_UNUSABLE, -1, "factor", scale,
                     "the scale is %s, and calls refuse it: set the scale, and %s",
                     GSC_SHORT(scale),
                     scale == 0 ? "min_scale to 2^-14: float16 needs no smaller scale"
                                : "max_scale to 2^24");
        return;
    }
    if (s->failed_backoffs == 0 && !(report && gsc_says_overflow(report) && scale <= 1))
        return;
    const int64_t nans = report ? report->nan_count : 0, infs = report ? report->inf_count : 0;
    if (nans > 0 || scale <= 1)
        gsc_note_add(
            notes, GSC_NOTE_NOT_FINITE, last_bad_tensor(run), "", (double)nans + (double)infs,
            "the gradients have %s at a scale of %s, and no scale cures that: look at the "
            "input, the loss and the parameters, and go back to an earlier checkpoint; see "
            "docs/skipped.md",
            nans > 0   ? "NaN"
            : infs > 0 ? "Inf"
                       : "Inf or NaN",
            GSC_SHORT(scale));
    else
        gsc_note_add(notes, GSC_NOTE_BACKOFF_FAILED, last_bad_tensor(run),
                     gsc_moves(run->policy) ? "min_scale" : "init_scale", scale,
                     "%lld overflows in a row could not lower the scale, %s: %s, or look at the "
                     "input and the loss",
                     (long long)s->failed_backoffs, GSC_SHORT(scale),
                     gsc_moves(run->policy) ? "lower min_scale"
                                            : "the policy never changes it, so lower init_scale");
}

/* Returns the share of steps that overflow if only growths cause overflows. */
static double expected_overflow_share(const gsc_policy *p)
{
    const double growth = gsc_growth_factor(p), overflows_per_backoff = gsc_hysteresis(p);
    if (p->growth_interval == 0 || growth <= 1)
        return 0;
    const double growths_per_backoff = ceil(-log(gsc_backoff_factor(p)) / log(growth));
    return overflows_per_backoff /
           (overflows_per_backoff + growths_per_backoff * (double)p->growth_interval);
}

static void find_frequent_overflows(const struct run *run, gsc_notes *notes)
{
    const double share = fmin(1, (double)run->state->total_overflows / (double)run->steps);
    if (run->steps > 0 && run->state->total_overflows >= MIN_OVERFLOWS &&
        share > MAX_OVERFLOW_SHARE && share > 3 * expected_overflow_share(run->policy))
        gsc_note_add(notes, GSC_NOTE_OVERFLOWS_OFTEN, -1, "total_overflows", share,
                     "%s %% of the steps overflowed: find which gradients are not finite, and "
                     "lower the learning rate or grow the scale less often",
                     gsc_digits(3, 100 * share).text);
}

static void find_guard_skips(const struct run *run, gsc_notes *notes)
{
    const gsc_policy *p = run->policy;
    const gsc_state *s = run->state;
    if (!gsc_guards(p))
        return;
    if ((run->steps > 0 && (uint64_t)s->total_guard_skips > run->steps / 2) ||
        (s->events & GSC_EVENT_SKIPPED &&
         s->guard_in_a_row >= (s->events & GSC_EVENT_STOPPED ? 1 : MAX_SKIPS_IN_A_ROW)))
        gsc_note_add(
            notes, GSC_NOTE_GUARD_SKIPS, -1, "total_guard_skips", (double)s->total_guard_skips,
            "the guard skipped %lld steps; the last %lld norms were above the threshold, %s: "
            "raise it, or set guard_max_in_a_row, after which the guard accepts the new level",
            (long long)s->total_guard_skips, (long long)s->guard_in_a_row,
            GSC_SHORT(s->guard_threshold));
    if (run->planned_steps > 0 && p->guard_warmup >= run->planned_steps)
        gsc_note_add(notes, GSC_NOTE_GUARD_IDLE, -1, "guard_warmup", (double)s->guard_count,
                     "the guard judges only after %llu samples, and %llu steps are planned: lower "
                     "guard_warmup",
                     (unsigned long long)p->guard_warmup, (unsigned long long)run->planned_steps);
}

static void find_underflows(const struct run *run, gsc_notes *notes)
{
    int64_t worst = -1;
    if (!run->report || !has_zero_share(run->report) || zero_share(run->report) <= MAX_ZERO_SHARE)
        return;
    for (uint64_t i = 0; i < run->n; i++)
        if (has_zero_share(&run->per_tensor[i]) &&
            (worst < 0 || zero_share(&run->per_tensor[i]) > zero_share(&run->per_tensor[worst])))
            worst = (int64_t)i;
    gsc_note_add(notes, GSC_NOTE_UNDERFLOWS, worst, "", zero_share(run->report),
                 "%s %% of the gradients became zero by unscaling: unscale into a dtype that "
                 "holds smaller numbers, such as float32",
                 gsc_digits(3, 100 * zero_share(run->report)).text);
}

static void find_slow_growth(const struct run *run, gsc_notes *notes)
{
    const gsc_policy *p = run->policy;
    const double growth = gsc_growth_factor(p);
    const uint64_t planned_steps = run->planned_steps;
    const double steps_left = planned_steps > run->steps ? (double)(planned_steps - run->steps) : 0;
    if (planned_steps == 0 || p->growth_interval == 0 || growth <= 1)
        return;
    if (p->growth_interval > planned_steps && run->state->total_growths == 0)
        gsc_note_add(notes, GSC_NOTE_NEVER_GROWS, -1, "growth_interval", (double)planned_steps,
                     "growth_interval is %llu steps, and %llu are planned: the scale never grows",
                     (unsigned long long)p->growth_interval, (unsigned long long)planned_steps);
    else if (run->state->total_overflows == 0) {
        const double highest_scale =
            run->state->factor.scale * pow(growth, floor(steps_left / (double)p->growth_interval));
        if (highest_scale < p->max_scale && highest_scale < SUFFICIENT_SCALE)
            gsc_note_add(notes, GSC_NOTE_CEILING_UNREACHABLE, -1, "max_scale", highest_scale,
                         "without an overflow the scale ends at %s, not at max_scale, %s: raise "
                         "init_scale, or lower growth_interval",
                         GSC_SHORT(highest_scale), GSC_SHORT(p->max_scale));
    }
}

void gsc_note_outside_limits(gsc_notes *notes, const gsc_policy *p, const gsc_state *s)
{
    const double ceiling = gsc_max_scale(p), floor = gsc_min_scale(p);
    const bool is_inside = s->factor.scale <= ceiling && s->factor.scale >= floor;
    const double scale = is_inside ? s->next.scale : s->factor.scale;
    const bool is_above = scale > ceiling;
    if (!gsc_usable(scale) || (!is_above && scale >= floor))
        return;
    gsc_note_add(notes, GSC_NOTE_OUTSIDE_LIMITS, -1, is_above ? "max_scale" : "min_scale", scale,
                 "the scale, %s, is %s, %s: set a scale within the limits, or change the limit",
                 GSC_SHORT(scale), is_above ? "above max_scale" : "below min_scale",
                 GSC_SHORT(is_above ? ceiling : floor));
}

gsc_status gsc_state_diagnose(const gsc_policy *policy, const gsc_state *state,
                              const gsc_report *report, const gsc_report *per_tensor,
                              uint64_t per_tensor_count, uint64_t steps, uint64_t planned_steps,
                              gsc_note *notes, uint64_t notes_capacity, uint64_t *notes_count,
                              gsc_error *err)
{
    gsc_begin(err);
    gsc_policy full;
    gsc_notes list = {.at = notes, .capacity = notes_capacity};
    const uint64_t n = per_tensor ? per_tensor_count : 0;
    struct run run = {&full, state, report, per_tensor, n, steps, planned_steps};
    GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    GSC_REQUIRE(state, 1);
    GSC_TRY(gsc_state_check(state, 1, "state", err));
    if (steps == 0)
        run.steps = (uint64_t)state->total_updates;
    if (report)
        GSC_TRY(gsc_report_check(report, 2, -1, "report", err));
    for (uint64_t i = 0; i < n; i++)
        GSC_TRY(gsc_report_check(&per_tensor[i], 3, (int64_t)i, "per_tensor", err));
    GSC_TRY(gsc_notes_check(&list, 7, err));
    const bool has_failed = find_failure(&run, &list);
    if (!has_failed) {
        find_bad_losses(&run, &list);
        find_not_finite(&run, &list);
    }
    if (list.n == 0) /* else a note above names the cause */
        find_frequent_overflows(&run, &list);
    gsc_note_outside_limits(&list, &full, state);
    find_guard_skips(&run, &list);
    if (!has_failed)
        find_underflows(&run, &list);
    find_slow_growth(&run, &list);
    gsc_tell(notes_count, list.n);
    return GSC_OK;
}

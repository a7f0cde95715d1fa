/* SPDX-License-Identifier: MIT */
/* Metrics of a scaler, for logs. */
#include <string.h>

#include "internal.h"
#include "layout.h"
#include "step.h"

static const char *const metric_names[] = {GSC_METRIC_NAMES};
_Static_assert(sizeof metric_names / sizeof *metric_names == GSC_METRICS, "GSC_METRICS");

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

static bool has_finite_gradients(const gsc_report *report)
{
    return report && report->kind != GSC_REPORT_NUMBER && !gsc_has_bad(report);
}

bool gsc_tells_norm(const gsc_report *report)
{
    return has_finite_gradients(report) && (report->measured & GSC_WANT_NORM) &&
           isfinite(report->sum_squares);
}

void gsc_metrics_of(const gsc_state *state, const gsc_report *report, gsc_entry *metrics)
{
    memset(metrics, 0, GSC_METRICS * sizeof *metrics);
    for (uint32_t i = 0; i < GSC_METRICS; i++) {
        memcpy(metrics[i].key, metric_names[i], strlen(metric_names[i]));
        metrics[i].kind = GSC_ENTRY_NULL;
    }
    const bool is_skipped = state->events & GSC_EVENT_SKIPPED;
    set_number(metrics, GSC_METRIC_LOSS_SCALE, state->factor.scale);
    set_integer(metrics, GSC_METRIC_SKIP, GSC_ENTRY_BOOLEAN, is_skipped);
    set_integer(metrics, GSC_METRIC_OVERFLOW, GSC_ENTRY_BOOLEAN,
                is_skipped && gsc_cause_of(state) == GSC_CAUSE_OVERFLOW);
    if (report && report->loss != GSC_LOSS_UNKNOWN)
        set_integer(metrics, GSC_METRIC_BAD_LOSS, GSC_ENTRY_BOOLEAN,
                    report->loss == GSC_LOSS_NOT_FINITE);
    set_integer(metrics, GSC_METRIC_TOTAL_BAD_LOSSES, GSC_ENTRY_INTEGER, state->total_bad_losses);
    if (gsc_tells_norm(report))
        set_number(metrics, GSC_METRIC_NORM, sqrt(report->sum_squares));
    else if (state->guard_value != 0)
        set_number(metrics, GSC_METRIC_NORM, state->guard_value);
    if (has_finite_gradients(report) && (report->measured & GSC_WANT_AMAX) &&
        isfinite(report->amax))
        set_number(metrics, GSC_METRIC_AMAX, report->amax);
    if (report && gsc_has_zero_share(report))
        set_number(metrics, GSC_METRIC_ZERO_SHARE, gsc_zero_share(report));
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
}

gsc_status gsc_state_metrics(const gsc_policy *policy, const gsc_state *state,
                             const gsc_report *report, gsc_entry *entries,
                             uint64_t entries_capacity, uint64_t *entries_count, gsc_error *err)
{
    gsc_begin(err);
    gsc_policy full;
    gsc_entry metrics[GSC_METRICS];
    GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    GSC_REQUIRE(state, 1);
    GSC_TRY(gsc_state_check(state, 1, "state", err));
    if (report)
        GSC_TRY(gsc_report_check(report, 2, -1, "report", err));
    if (entries_capacity > 0)
        GSC_REQUIRE(entries, 3);
    gsc_metrics_of(state, report, metrics);
    for (uint64_t i = 0; i < GSC_METRICS && i < entries_capacity; i++)
        entries[i] = metrics[i];
    gsc_tell(entries_count, GSC_METRICS);
    return GSC_OK;
}

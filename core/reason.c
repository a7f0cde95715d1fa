/* SPDX-License-Identifier: MIT */
/* Explains the decision of the last update: as data, and as one sentence for all languages. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"
#include "step.h"

/* The evidence of the caller about the tensors of the list. Each part can be NULL. */
struct tensors {
    const gsc_report *report, *each;
    const char *const *names;
    uint64_t n;
};

/* A sentence that grows from left to right. */
struct sentence {
    char *at;
    size_t size, length;
};

static void GSC_PRINTF(2, 3) append(struct sentence *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    s->length += gsc_write(s->at + s->length, s->size - s->length, format, arguments);
    va_end(arguments);
}

static uint32_t outcome_of(const gsc_state *s)
{
    return s->events & GSC_EVENT_STOPPED   ? GSC_OUTCOME_STOPPED
           : s->events & GSC_EVENT_SKIPPED ? GSC_OUTCOME_SKIPPED
           : s->events & GSC_EVENT_CLIPPED ? GSC_OUTCOME_CLIPPED
           : s->events & GSC_EVENT_OUTLIER ? GSC_OUTCOME_LET_THROUGH
                                           : GSC_OUTCOME_TAKEN;
}

static int64_t rank_of(uint32_t rank_plus_1)
{
    return (int64_t)rank_plus_1 - 1;
}

/* Sets what the report and the reports per tensor tell about an overflow. */
static void find_bad_tensors(const struct tensors *t, gsc_reason *r)
{
    gsc_report each = {0};
    for (uint64_t i = 0; t->each && i < t->n; i++) {
        r->bad_tensors += gsc_has_bad(&t->each[i]);
        gsc_report_add(&each, &t->each[i]);
        if (gsc_has_bad(&t->each[i]))
            each.last_tensor = (int64_t)i;
    }
    const gsc_report *of = t->report && gsc_has_bad(t->report) ? t->report : &each;
    if (of->nan_count != each.nan_count || of->inf_count != each.inf_count ||
        of->last_tensor != each.last_tensor)
        r->bad_tensors = 0; /* the reports are of other tensors, such as one rank's */
    r->nan_count = of->nan_count;
    r->inf_count = of->inf_count;
    if (gsc_has_bad(of) && of->kind != GSC_REPORT_NUMBER)
        r->tensor = of->last_tensor;
    if (t->report)
        r->rank = rank_of(t->report->last_rank_plus_1);
}

/* Returns true if the norm alone can be the overflow. */
static bool is_of_norm(const gsc_report *r)
{
    return r && (r->kind == GSC_REPORT_TENSORS || r->kind == GSC_REPORT_MERGED) &&
           (r->measured & GSC_WANT_NORM) && !(r->sum_squares <= 0x1.fffffep127);
}

/* Appends the bad elements, as "3 NaN and 2 Inf". */
static void append_elements(struct sentence *s, const gsc_reason *r)
{
    if (r->nan_count > 0)
        append(s, "%lld NaN%s", (long long)r->nan_count, r->inf_count > 0 ? " and " : "");
    if (r->inf_count > 0)
        append(s, "%lld Inf", (long long)r->inf_count);
}

static void append_rank(struct sentence *s, const gsc_reason *r)
{
    if (r->rank >= 0)
        append(s, " on rank %lld", (long long)r->rank);
}

static void append_tensor(struct sentence *s, const struct tensors *t, const gsc_reason *r)
{
    char quoted[86]; /* the whole sentence fits */
    const bool is_named = t->names && (uint64_t)r->tensor < t->n && t->names[r->tensor];
    if (is_named) {
        gsc_quote(quoted, sizeof quoted, t->names[r->tensor]);
        append(s, "%s", quoted);
    } else
        append(s, "tensor %lld", (long long)r->tensor);
    append_rank(s, r);
}

static void append_overflow(struct sentence *s, const struct tensors *t, const gsc_reason *r)
{
    if (r->nan_count == 0 && r->inf_count == 0) {
        append(s, is_of_norm(t->report) ? "overflow of the norm" : "overflow");
        append_rank(s, r);
        return;
    }
    append_elements(s, r);
    if (r->tensor < 0)
        return;
    if (r->bad_tensors > 1 && (uint64_t)r->bad_tensors == t->n)
        append(s, " in all %lld tensors: look at the loss and the last layer, ",
               (long long)r->bad_tensors);
    else if (r->bad_tensors > 1)
        append(s, " in %lld of %llu tensors; the last, nearest to the cause, is ",
               (long long)r->bad_tensors, (unsigned long long)t->n);
    else
        append(s, r->bad_tensors == 1 ? " in " : ", the last in ");
    append_tensor(s, t, r);
    if (r->bad_tensors == 1)
        append(s, " alone");
}

static void append_cause(struct sentence *s, const gsc_state *state, const struct tensors *t,
                         const gsc_reason *r)
{
    const bool stopped = r->outcome == GSC_OUTCOME_STOPPED;
    switch (r->cause) {
    case GSC_CAUSE_OVERFLOW:
        append(s, ": ");
        append_overflow(s, t, r);
        if (stopped)
            append(s,
                   ", at a scale of %s: look at the input, the loss and the parameters, and go "
                   "back to an earlier checkpoint",
                   GSC_SHORT(state->factor.scale));
        break;
    case GSC_CAUSE_BAD_LOSS:
        append(s, ": the loss was not finite before it was scaled");
        append_rank(s, r);
        if (r->in_a_row > 0) /* not if a combined state found it */
            append(s, ", %lld in a row", (long long)r->in_a_row);
        if (stopped)
            append(s, ": look at the input, the parameters and the learning rate, and go back to "
                      "an earlier checkpoint");
        break;
    case GSC_CAUSE_OUTLIER:
        append(s, ": the norm");
        if (r->value != 0)
            append(s, ", %s,", GSC_SHORT(r->value));
        append(s, " is above %s, %lld in a row", GSC_SHORT(r->threshold), (long long)r->in_a_row);
        if (stopped)
            append(s, ": look at the data and the learning rate");
        break;
    case GSC_CAUSE_CEILING:
        append(s, ": the scale, %s, would pass max_scale", GSC_SHORT(state->next.scale));
        break;
    case GSC_CAUSE_OTHER_STATE:
        append(s, ": decided by a combined state");
        break;
    case GSC_CAUSE_FAILURE:
        append(s, ": the update failed: %s", gsc_status_string(state->status));
        break;
    }
}

static void write_message(const gsc_state *state, const struct tensors *t, gsc_reason *r)
{
    static const char *const outcomes[] = {"", "let through", "clipped", "skipped", "stopped"};
    struct sentence s = {r->message, sizeof r->message, 0};
    if (r->outcome == GSC_OUTCOME_TAKEN)
        return;
    append(&s, "%s", outcomes[r->outcome]);
    if (r->outcome == GSC_OUTCOME_CLIPPED)
        append(&s, ": multiplied by %s", GSC_SHORT(r->multiplier));
    append_cause(&s, state, t, r);
    gsc_scramble(r->message);
}

gsc_status gsc_state_reason(const gsc_state *state, const gsc_report *report,
                            const gsc_report *per_tensor, const char *const *names, uint64_t n,
                            gsc_reason *out, gsc_error *err)
{
    gsc_begin(err);
    const struct tensors t = {report, per_tensor, names, n};
    GSC_REQUIRE(state, 0);
    GSC_REQUIRE(out, 5);
    GSC_TRY(gsc_state_check(state, 0, "state", err));
    if (report)
        GSC_TRY(gsc_report_check(report, 1, -1, "report", err));
    for (uint64_t i = 0; per_tensor && i < n; i++)
        GSC_TRY(gsc_report_check(&per_tensor[i], 2, (int64_t)i, "per_tensor", err));
    gsc_reason r = {.outcome = outcome_of(state), .cause = gsc_cause_of(state)};
    r.tensor = r.rank = -1;
    r.multiplier = state->events & GSC_EVENT_SKIPPED   ? 0
                   : state->events & GSC_EVENT_CLIPPED ? state->guard_multiplier
                                                       : 1;
    if (r.cause == GSC_CAUSE_OVERFLOW && report && report->loss == GSC_LOSS_NOT_FINITE)
        r.cause = GSC_CAUSE_BAD_LOSS; /* by a policy that does not hold */
    if (r.cause == GSC_CAUSE_OUTLIER) {
        r.value = state->guard_value;
        r.threshold = state->guard_threshold;
        r.in_a_row = state->guard_in_a_row;
    } else if (r.cause == GSC_CAUSE_BAD_LOSS) {
        r.in_a_row = state->bad_losses_in_a_row;
    }
    if (r.cause == GSC_CAUSE_OVERFLOW || r.cause == GSC_CAUSE_BAD_LOSS)
        find_bad_tensors(&t, &r);
    if (r.cause == GSC_CAUSE_BAD_LOSS && report)
        r.rank = rank_of(report->loss_rank_plus_1);
    write_message(state, &t, &r);
    *out = r;
    return GSC_OK;
}

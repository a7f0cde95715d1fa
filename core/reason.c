/* SPDX-License-Identifier: MIT */
/* Explains the decision of the last update: as data, and as one sentence for all languages. */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "dtypes.h"
#include "internal.h"
#include "step.h"

/* The facts that are known about the step. Each pointer except `state` can be NULL. */
struct facts {
    const gsc_state *state;
    const gsc_report *report, *per_tensor;
    const char *const *names;
    const uint64_t *order;
    uint64_t n, bad_tensors; /* of the list */
    bool is_first_known;     /* the first bad one of the backward pass */
    gsc_evidence evidence;
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

/* ---- the questions: why did the step overflow? ---- */

static bool is_parameter_bad(const struct facts *f)
{
    return f->evidence.bad_parameters > 0;
}

/* Returns true if the report has a bad loss, of this rank or of another one. */
static bool is_reported_loss_bad(const struct facts *f)
{
    return f->report && f->report->loss == GSC_LOSS_NOT_FINITE;
}

static bool is_loss_bad(const struct facts *f)
{
    return (f->state->events & GSC_EVENT_BAD_LOSS) || is_reported_loss_bad(f) ||
           f->evidence.bad_loss > 0;
}

/* Returns true if the scale, which is the gradient of the loss, is Inf or NaN in its dtype. */
static bool is_scale_bad(const struct facts *f)
{
    const uint32_t dtype = f->evidence.loss_dtype;
    return dtype != 0 && !gsc_is_finite_as(gsc_reals[dtype].real, f->evidence.scale);
}

static uint32_t cause_of(const struct facts *f)
{
    const uint32_t cause = gsc_cause_of(f->state);
    if (cause != GSC_CAUSE_OVERFLOW && cause != GSC_CAUSE_BAD_LOSS)
        return cause;
    return is_parameter_bad(f) ? GSC_CAUSE_PARAMETER
           : is_loss_bad(f)    ? GSC_CAUSE_BAD_LOSS
           : is_scale_bad(f)   ? GSC_CAUSE_LOSS_DTYPE
                               : GSC_CAUSE_OVERFLOW;
}

static bool is_overflow(uint32_t cause)
{
    return cause == GSC_CAUSE_OVERFLOW || cause == GSC_CAUSE_BAD_LOSS ||
           cause == GSC_CAUSE_PARAMETER || cause == GSC_CAUSE_LOSS_DTYPE;
}

/* ---- the answer as data ---- */

/* Sets what the reports tell: how many elements and tensors are bad, and the last such tensor. */
static void find_bad_tensors(struct facts *f, gsc_reason *r)
{
    gsc_report sum = {0};
    for (uint64_t i = 0; f->per_tensor && i < f->n; i++) {
        f->bad_tensors += (uint64_t)gsc_has_bad(&f->per_tensor[i]);
        gsc_report_add(&sum, &f->per_tensor[i]);
        if (gsc_has_bad(&f->per_tensor[i]))
            sum.last_tensor = (int64_t)i;
    }
    const gsc_report *of = f->report && gsc_has_bad(f->report) ? f->report : &sum;
    const bool is_of_list = of->nan_count == sum.nan_count && of->inf_count == sum.inf_count &&
                            of->last_tensor == sum.last_tensor; /* else of several ranks */
    r->nan_count = of->nan_count;
    r->inf_count = of->inf_count;
    r->bad_tensors = is_of_list ? (int64_t)f->bad_tensors : 0;
    if (gsc_has_bad(of) && of->kind != GSC_REPORT_NUMBER)
        r->tensor = of->last_tensor;
    if (f->report)
        r->rank = rank_of(f->report->last_rank_plus_1);
}

/* Sets the first bad tensor of the backward pass, of this rank, and the tensor before it. */
static void find_first_bad_tensor(struct facts *f, gsc_reason *r)
{
    uint64_t i = 0;
    while (i < f->n && !gsc_has_bad(&f->per_tensor[f->order[i]]))
        i++;
    f->is_first_known = i < f->n;
    if (!f->is_first_known)
        return;
    r->tensor = (int64_t)f->order[i];
    if (i > 0)
        r->tensor_before = (int64_t)f->order[i - 1];
    if (r->bad_tensors == 0)
        r->rank = -1; /* the report is of several ranks; this one's number is not known */
}

static void explain_overflow(struct facts *f, gsc_reason *r)
{
    find_bad_tensors(f, r);
    if (f->bad_tensors > 0 && f->order)
        find_first_bad_tensor(f, r);
    if (r->cause == GSC_CAUSE_PARAMETER) {
        r->tensor = f->evidence.parameter_plus_1 - 1;
        r->tensor_before = r->rank = -1;
    } else if (r->cause == GSC_CAUSE_BAD_LOSS) {
        r->in_a_row = f->state->bad_losses_in_a_row;
        r->rank = is_reported_loss_bad(f) ? rank_of(f->report->loss_rank_plus_1) : -1;
    }
}

static void explain_outlier(const struct facts *f, gsc_reason *r)
{
    r->value = f->state->guard_value;
    r->threshold = f->state->guard_threshold;
    r->in_a_row = f->state->guard_in_a_row;
}

/* ---- the answer as a sentence: behind the outcome, one function for each cause ---- */

static bool is_stopped(const gsc_reason *r)
{
    return r->outcome == GSC_OUTCOME_STOPPED;
}

static void append_name(struct sentence *s, const struct facts *f, int64_t tensor)
{
    char quoted[86]; /* the whole sentence fits */
    if (f->names && (uint64_t)tensor < f->n && f->names[tensor]) {
        gsc_quote(quoted, sizeof quoted, f->names[tensor]);
        append(s, "%s", quoted);
    } else
        append(s, "tensor %lld", (long long)tensor);
}

static void append_rank(struct sentence *s, const gsc_reason *r)
{
    if (r->rank >= 0)
        append(s, " on rank %lld", (long long)r->rank);
}

static void append_cause_tensor(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    append_name(s, f, r->tensor);
    append_rank(s, r);
}

static void append_parameter(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    const long long bad = f->evidence.bad_parameters;
    if (f->n > 0)
        append(s, "%lld of %llu parameters ", bad, (unsigned long long)f->n);
    else
        append(s, bad == 1 ? "%lld parameter " : "%lld parameters ", bad);
    append(s, bad == 1 ? "has NaN or Inf" : "have NaN or Inf");
    if (r->tensor >= 0) {
        append(s, bad == 1 ? ", " : ", the first is ");
        append_name(s, f, r->tensor);
    }
    append(s, ": go back to an earlier checkpoint");
}

static void append_row(struct sentence *s, const gsc_reason *r)
{
    if (r->in_a_row > 1)
        append(s, ", %lld in a row", (long long)r->in_a_row);
}

static void append_bad_loss(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    const uint32_t number = r->rank < 0 ? f->evidence.bad_loss : 0; /* not of another rank */
    if (number > 0 && f->evidence.losses > 1)
        append(s, "loss %lu of %lu", (unsigned long)number, (unsigned long)f->evidence.losses);
    else
        append(s, "the loss");
    append(s, " was not finite before it was scaled");
    append_rank(s, r);
    append_row(s, r);
    if (number > 1)
        append(s, "; the first was finite");
    if (is_stopped(r))
        append(s, ": look at the input, the parameters and the learning rate, and go back to an "
                  "earlier checkpoint");
    else if (number > 1 && !(f->state->events & GSC_EVENT_BAD_LOSS))
        append(s, ": if it has a gradient penalty, the scale was too large for it, else look at "
                  "its data");
}

static void append_loss_dtype(struct sentence *s, const struct facts *f)
{
    const struct gsc_real *real = &gsc_reals[f->evidence.loss_dtype];
    const double largest = gsc_clamp_limit(real->real, INFINITY);
    append(
        s, "the scale, %s, is above the largest %s, %s: make the loss float32 before it is scaled",
        GSC_APART(f->evidence.scale, largest), real->name, GSC_APART(largest, f->evidence.scale));
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

/* Returns true if the call on the gradients had the losses, and all ranks' were finite. */
static bool is_every_loss_finite(const struct facts *f)
{
    return f->report && f->report->loss == GSC_LOSS_FINITE;
}

/* Returns true if this rank's losses are known: a bad one would be the cause. */
static bool is_loss_finite(const struct facts *f)
{
    return f->evidence.losses > 0 || is_every_loss_finite(f);
}

/* Appends how many tensors are bad, before the name of one. */
static void append_share(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    if (r->bad_tensors > 1)
        append(s, " in %lld of %llu tensors", (long long)r->bad_tensors, (unsigned long long)f->n);
    else if (r->bad_tensors == 1)
        append(s, " in ");
}

/* Every gradient is bad: the last layer did it, or a loss that nobody judged. */
static void append_all_tensors(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    const bool is_finite = is_loss_finite(f);
    const bool has_ranks =
        !is_every_loss_finite(f) &&
        (f->evidence.ranks > 1 || (f->report && f->report->last_rank_plus_1 > 0));
    append(s, r->bad_tensors > 0 ? " in all %llu tensors" : ", in all %llu tensors of this rank",
           (unsigned long long)f->n);
    if (is_finite)
        append(s, has_ranks ? ", but this rank's loss was finite" : ", but the loss was finite");
    append(s, ": look at the last layer, ");
    append_cause_tensor(s, f, r);
    if (!is_finite || has_ranks)
        append(s, is_finite ? ", and the losses of other ranks" : ", and the loss");
}

static void append_first_tensor(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    append_share(s, f, r);
    if (r->bad_tensors != 1)
        append(s, r->bad_tensors > 0 ? "; the backward pass made "
                                     : "; on this rank the backward pass made ");
    append_cause_tensor(s, f, r);
    append(s, r->bad_tensors == 1 ? " alone" : " bad first");
    if (r->tensor_before >= 0) {
        append(s, "; ");
        append_name(s, f, r->tensor_before);
        append(s, ", made just before, is finite");
    } else {
        append(s, ", the first gradient of all: look at this layer%s",
               is_loss_finite(f) ? "" : " and the loss");
    }
}

static void append_last_tensor(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    append_share(s, f, r);
    if (r->bad_tensors != 1)
        append(s, r->bad_tensors > 1 ? "; the last, nearest to the cause, is " : ", the last in ");
    append_cause_tensor(s, f, r);
    if (r->bad_tensors == 1)
        append(s, " alone");
}

static void append_overflow(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    if (r->nan_count == 0 && r->inf_count == 0) {
        append(s, is_of_norm(f->report) ? "overflow of the norm" : "overflow");
        append_rank(s, r);
    } else
        append_elements(s, r);
    if (r->tensor >= 0 && f->n > 1 && f->bad_tensors == f->n)
        append_all_tensors(s, f, r);
    else if (r->tensor >= 0 && f->is_first_known)
        append_first_tensor(s, f, r);
    else if (r->tensor >= 0)
        append_last_tensor(s, f, r);
    if (is_stopped(r))
        append(s,
               ", at a scale of %s: look at the input, the loss and the parameters, and go back to "
               "an earlier checkpoint",
               GSC_SHORT(f->state->factor.scale));
}

static void append_outlier(struct sentence *s, const gsc_reason *r)
{
    append(s, "the norm");
    if (r->value != 0)
        append(s, ", %s,", GSC_APART(r->value, r->threshold));
    append(s, " is %s %s", r->value == r->threshold ? "not below" : "above",
           GSC_APART(r->threshold, r->value));
    append_row(s, r);
    if (is_stopped(r))
        append(s, ": look at the data and the learning rate");
}

static void append_cause(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    switch (r->cause) {
    case GSC_CAUSE_PARAMETER:
        append_parameter(s, f, r);
        break;
    case GSC_CAUSE_BAD_LOSS:
        append_bad_loss(s, f, r);
        break;
    case GSC_CAUSE_LOSS_DTYPE:
        append_loss_dtype(s, f);
        break;
    case GSC_CAUSE_OVERFLOW:
        append_overflow(s, f, r);
        break;
    case GSC_CAUSE_OUTLIER:
        append_outlier(s, r);
        break;
    case GSC_CAUSE_CEILING:
        append(s, "the scale, %s, would pass max_scale", GSC_SHORT(f->state->next.scale));
        break;
    case GSC_CAUSE_OTHER_STATE:
        append(s, "decided by a combined state");
        break;
    case GSC_CAUSE_FAILURE:
        append(s, "the update failed: %s", gsc_status_string(f->state->status));
        break;
    }
}

/* Appends where the guide explains the cause; a single skip is no reason to read it. */
static void append_page(struct sentence *s, const struct facts *f, const gsc_reason *r)
{
    append(s, "; see docs/skipped.md#%s",
           r->cause == GSC_CAUSE_PARAMETER    ? "parameter"
           : r->cause == GSC_CAUSE_LOSS_DTYPE ? "dtype"
           : r->cause == GSC_CAUSE_OVERFLOW   ? "backward"
           : f->evidence.bad_loss > 1         ? "later-loss"
                                              : "loss");
}

static void write_message(const struct facts *f, gsc_reason *r)
{
    static const char *const outcomes[] = {"", "let through", "clipped", "skipped", "stopped"};
    struct sentence s = {r->message, sizeof r->message, 0};
    if (r->outcome == GSC_OUTCOME_TAKEN)
        return;
    append(&s, "%s", outcomes[r->outcome]);
    if (r->outcome == GSC_OUTCOME_CLIPPED)
        append(&s, ": multiplied by %s", GSC_SHORT(r->multiplier));
    if (r->cause != GSC_CAUSE_NONE)
        append(&s, ": ");
    append_cause(&s, f, r);
    if (is_stopped(r) && is_overflow(r->cause))
        append_page(&s, f, r);
    gsc_scramble(r->message);
}

/* ---- the call ---- */

static gsc_status evidence_check(const gsc_evidence *e, gsc_error *err)
{
#define CHECK(field, high, words, holds)                                                           \
    if (!(holds))                                                                                  \
        return gsc_fail_number(err, GSC_ERROR_VALUE, 2, -1, "evidence." #field, (double)e->field,  \
                               0, high, words);
    CHECK(bad_parameters, NAN, "0 or above", e->bad_parameters >= 0)
    CHECK(parameter_plus_1, NAN, "0 or above", e->parameter_plus_1 >= 0)
    CHECK(scale, DBL_MAX, "finite, and 0 or above", e->scale >= 0 && isfinite(e->scale))
    CHECK(loss_dtype, GSC_COMPLEX128, "a dtype or 0", e->loss_dtype <= GSC_COMPLEX128)
    CHECK(bad_loss, e->losses, "at most evidence.losses", e->bad_loss <= e->losses)
#undef CHECK
    if (!GSC_RESERVED_IS_ZERO(e))
        return gsc_fail_reserved(err, GSC_ERROR_VALUE, 2, -1, "evidence.reserved");
    return GSC_OK;
}

static gsc_status order_check(const uint64_t *order, uint64_t n, gsc_error *err)
{
    for (uint64_t i = 0; order && i < n; i++)
        if (order[i] >= n)
            return gsc_fail_number(err, GSC_ERROR_VALUE, 5, (int64_t)i, "order", (double)order[i],
                                   0, (double)n - 1, "below the number of tensors");
    return GSC_OK;
}

gsc_status gsc_state_reason(const gsc_state *state, const gsc_report *report,
                            const gsc_evidence *evidence, const gsc_report *per_tensor,
                            const char *const *names, const uint64_t *order, uint64_t n,
                            gsc_reason *out, gsc_error *err)
{
    gsc_begin(err);
    struct facts f = {state, report, per_tensor, names, order, .n = n};
    GSC_REQUIRE(state, 0);
    GSC_REQUIRE(out, 7);
    GSC_TRY(gsc_state_check(state, 0, "state", err));
    if (report)
        GSC_TRY(gsc_report_check(report, 1, -1, "report", err));
    if (evidence) {
        f.evidence = *evidence;
        GSC_TRY(evidence_check(evidence, err));
    }
    for (uint64_t i = 0; per_tensor && i < n; i++)
        GSC_TRY(gsc_report_check(&per_tensor[i], 3, (int64_t)i, "per_tensor", err));
    GSC_TRY(order_check(order, n, err));
    gsc_reason r = {.outcome = outcome_of(state), .cause = cause_of(&f)};
    r.tensor = r.tensor_before = r.rank = -1;
    r.multiplier = state->events & GSC_EVENT_SKIPPED   ? 0
                   : state->events & GSC_EVENT_CLIPPED ? state->guard_multiplier
                                                       : 1;
    if (is_overflow(r.cause))
        explain_overflow(&f, &r);
    else if (r.cause == GSC_CAUSE_OUTLIER)
        explain_outlier(&f, &r);
    write_message(&f, &r);
    *out = r;
    return GSC_OK;
}

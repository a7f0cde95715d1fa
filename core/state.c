/* SPDX-License-Identifier: MIT */
/* Reports and states: make, check, merge and update them. */
#include <stdio.h>

#include "backend.h"

/* Sets all but the policy, which the caller reads: to clear it takes a sixth of an update. */
static void step_make(gsc_step *step, uint32_t kind, const gsc_report *reports, uint64_t n,
                      void *out)
{
    step->kind = kind;
    step->merge = 0;
    step->has_policy = 0;
    step->factor = NULL;
    step->state = step->other = NULL;
    step->reports = reports;
    step->n = n;
    step->number = 0;
    step->out = out;
}

gsc_status gsc_report_merge(const gsc_exec *exec, const gsc_report *reports, uint64_t n,
                            uint32_t kind, const gsc_policy *policy, gsc_report *out,
                            gsc_error *err)
{
    gsc_target on;
    gsc_step step;
    step_make(&step, GSC_STEP_MERGE, reports, n, out);
    step.merge = kind;
    GSC_TRY(gsc_begin_on(exec, &on, err));
    if (n > 0)
        GSC_REQUIRE(reports, 1);
    if (kind > GSC_MERGE_ADDENDS)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 3, -1, "kind", kind, 0, GSC_MERGE_ADDENDS,
                               "0 (of different gradients) or 1 (of gradients that are added)");
    if (policy) {
        step.has_policy = 1;
        GSC_TRY(gsc_policy_read(policy, &step.policy, 4, err));
    }
    GSC_REQUIRE(out, 5);
    return on.backend->step(&on.exec, &step, err);
}

gsc_status gsc_report_from_number(double number, gsc_report *out, gsc_error *err)
{
    gsc_begin(err);
    const int too_large = fabs(number) > GSC_GUARD_MAX_VALUE;
    gsc_report r = {.elements = 1, .nan_count = isnan(number), .inf_count = too_large};
    GSC_REQUIRE(out, 1);
    r.number = isnan(number) || too_large ? 0 : number;
    r.amax = fabs(r.number);
    gsc_report_finish(&r, GSC_WANT_AMAX, 0, NULL);
    r.kind = GSC_REPORT_NUMBER;
    *out = r;
    return GSC_OK;
}

gsc_status gsc_report_from_flag(int32_t overflow, gsc_report *out, gsc_error *err)
{
    gsc_begin(err);
    gsc_report r = {.kind = GSC_REPORT_FLAG};
    GSC_REQUIRE(out, 1);
    gsc_set_overflow(&r, overflow != 0);
    *out = r;
    return GSC_OK;
}

gsc_status gsc_report_set_rank(const gsc_exec *exec, const gsc_report *report,
                               const gsc_policy *policy, const gsc_state *state, uint32_t rank,
                               gsc_report *out, gsc_error *err)
{
    gsc_target on;
    gsc_step step = {
        .kind = GSC_STEP_SET_RANK, .reports = report, .state = state, .n = rank, .out = out};
    GSC_TRY(gsc_begin_on(exec, &on, err));
    GSC_REQUIRE(report, 1);
    if (policy) {
        step.has_policy = 1;
        GSC_TRY(gsc_policy_read(policy, &step.policy, 2, err));
    }
    if (rank == UINT32_MAX)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 4, -1, "rank", rank, 0, UINT32_MAX - 1.0,
                               "0 to 4294967294");
    GSC_REQUIRE(out, 5);
    return on.backend->step(&on.exec, &step, err);
}

gsc_status gsc_state_check(const gsc_state *s, int argument, const char *name, gsc_error *err)
{
    char subject[48];
    if (gsc_is_of_candidate(s))
        return gsc_fail(err, GSC_ERROR_VERSION, argument, -1, name, GSC_SAVED_BY_CANDIDATE);
#define CHECK(field, low, high, holds)                                                             \
    if (!(holds)) {                                                                                \
        (void)snprintf(subject, sizeof subject, "%s.%s", name, #field);                            \
        return gsc_fail_number(err, GSC_ERROR_STATE, argument, -1, subject, (double)s->field, low, \
                               high, "a value that updates produce: make a new state");            \
    }
    GSC_FOR_STATE_FACTORS(CHECK)
    GSC_FOR_STATE_VALUES(CHECK)
#undef CHECK
    if (!GSC_RESERVED_IS_ZERO(s)) {
        (void)snprintf(subject, sizeof subject, "%s.reserved", name);
        return gsc_fail_reserved(err, GSC_ERROR_STATE, argument, -1, subject);
    }
    return GSC_OK;
}

gsc_status gsc_report_check(const gsc_report *r, int argument, int64_t index, const char *name,
                            gsc_error *err)
{
    char subject[48];
#define SUBJECT(field) ((void)snprintf(subject, sizeof subject, "%s." field, name), subject)
#define CHECK(field, high, words, holds)                                                           \
    if (!(holds))                                                                                  \
        return gsc_fail_number(err, GSC_ERROR_REPORT, argument, index, SUBJECT(#field),            \
                               (double)r->field, 0, high, words);
    GSC_FOR_REPORT_VALUES(CHECK)
    GSC_FOR_REPORT_COUNTS(CHECK)
#undef CHECK
    if (gsc_is_unfilled(r))
        return gsc_fail(err, GSC_ERROR_REPORT, argument, index, SUBJECT("kind"),
                        "is 0: no call wrote the report; one of your own needs 1 to 4");
    if (gsc_has_bad(r) && !gsc_says_overflow(r))
        return gsc_fail(err, GSC_ERROR_REPORT, argument, index, SUBJECT("overflow"),
                        "is 0, but %lld elements are NaN and %lld are Inf: it must be 1",
                        (long long)r->nan_count, (long long)r->inf_count);
    if (!GSC_RESERVED_IS_ZERO(r))
        return gsc_fail_reserved(err, GSC_ERROR_REPORT, argument, index, SUBJECT("reserved"));
#undef SUBJECT
    return GSC_OK;
}

static gsc_status state_make(const gsc_exec *exec, const gsc_policy *policy, const gsc_state *from,
                             gsc_state *out, gsc_error *err)
{
    gsc_target on;
    gsc_step step = {.kind = GSC_STEP_STATE_INIT, .state = from, .out = out};
    GSC_TRY(gsc_begin_on(exec, &on, err));
    GSC_TRY(gsc_policy_read(policy, &step.policy, 1, err));
    GSC_REQUIRE(out, from ? 3 : 2);
    return on.backend->step(&on.exec, &step, err);
}

gsc_status gsc_state_init(const gsc_exec *exec, const gsc_policy *policy, gsc_state *out,
                          gsc_error *err)
{
    return state_make(exec, policy, NULL, out, err);
}

gsc_status gsc_state_init_from(const gsc_exec *exec, const gsc_policy *policy,
                               const gsc_state *from, gsc_state *out, gsc_error *err)
{
    GSC_REQUIRE(from, 2);
    return state_make(exec, policy, from, out, err);
}

gsc_status gsc_state_update(const gsc_exec *exec, const gsc_policy *policy, const gsc_state *state,
                            const gsc_report *report, gsc_state *out, gsc_error *err)
{
    gsc_target on;
    gsc_step step;
    GSC_TRY(gsc_begin_on(exec, &on, err));
    GSC_TRY(gsc_policy_read(policy, &step.policy, 1, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(report, 3);
    GSC_REQUIRE(out, 4);
    step_make(&step, GSC_STEP_UPDATE, report, 1, out);
    step.state = state;
    return on.backend->step(&on.exec, &step, err);
}

gsc_status gsc_state_combine_decisions(const gsc_exec *exec, const gsc_state *state,
                                       const gsc_state *other, gsc_state *out, gsc_error *err)
{
    gsc_target on;
    const gsc_step step = {.kind = GSC_STEP_COMBINE, .state = state, .other = other, .out = out};
    GSC_TRY(gsc_begin_on(exec, &on, err));
    GSC_REQUIRE(state, 1);
    GSC_REQUIRE(other, 2);
    GSC_REQUIRE(out, 3);
    return on.backend->step(&on.exec, &step, err);
}

gsc_status gsc_state_digest(const gsc_policy *policy, const gsc_state *state, uint64_t *digest,
                            gsc_error *err)
{
    gsc_begin(err);
    gsc_policy full;
    if (policy)
        GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    else
        GSC_REQUIRE(state, 1);
    if (state)
        GSC_TRY(gsc_state_check(state, 1, "state", err));
    GSC_REQUIRE(digest, 2);
    *digest = gsc_digest(policy ? &full : NULL, state);
    return GSC_OK;
}

/* An outlier that this state found has a threshold and a count; a combined one only the event. */
uint32_t gsc_cause_of(const gsc_state *s)
{
    if (s->status != GSC_OK)
        return GSC_CAUSE_FAILURE;
    if (s->events & GSC_EVENT_BAD_LOSS)
        return GSC_CAUSE_BAD_LOSS;
    if (s->events & GSC_EVENT_OUTLIER)
        return s->guard_threshold != 0 && s->guard_in_a_row != 0 ? GSC_CAUSE_OUTLIER
                                                                 : GSC_CAUSE_OTHER_STATE;
    return s->events & GSC_EVENT_SKIPPED   ? GSC_CAUSE_OVERFLOW
           : s->events & GSC_EVENT_STOPPED ? GSC_CAUSE_CEILING
                                           : GSC_CAUSE_NONE;
}

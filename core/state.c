/* SPDX-License-Identifier: MIT */
/* Reports and states: the merge of what was seen, and the update that it leads to. */
#include <stdio.h>

#include "backend.h"

gsc_status gsc_report_merge(const gsc_exec *on, const gsc_report *reports, uint64_t n,
                            uint32_t kind, const gsc_policy *policy, gsc_report *out,
                            gsc_error *err)
{
    gsc_begin(err);
    gsc_exec where;
    const gsc_backend *backend;
    gsc_step step = {.kind = GSC_STEP_MERGE, .merge = kind, .reports = reports, .n = n, .out = out};
    GSC_TRY(gsc_exec_read(on, &gsc_thread_backend, &where, &backend, err));
    if (n > 0)
        GSC_REQUIRE(reports, 1);
    if (kind > GSC_MERGE_SUMMANDS)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 3, -1, "kind", kind, 0, GSC_MERGE_SUMMANDS,
                               "0 (of different gradients) or 1 (of gradients that are added)");
    if (policy) {
        step.has_policy = 1;
        GSC_TRY(gsc_policy_read(policy, &step.policy, 4, err));
    }
    GSC_REQUIRE(out, 5);
    return backend->step(&where, &step, err);
}

gsc_status gsc_report_from_number(double number, gsc_report *out, gsc_error *err)
{
    gsc_begin(err);
    const int infinite = fabs(number) > GSC_GUARD_MOST;
    gsc_report r = {.elements = 1, .nan_count = isnan(number), .inf_count = infinite};
    GSC_REQUIRE(out, 1);
    r.number = isnan(number) || infinite ? 0 : number;
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

gsc_status gsc_report_stamp(const gsc_exec *on, const gsc_report *report, const gsc_policy *policy,
                            const gsc_state *state, uint32_t rank, gsc_report *out, gsc_error *err)
{
    gsc_begin(err);
    gsc_exec where;
    const gsc_backend *backend;
    gsc_step step = {
        .kind = GSC_STEP_STAMP, .reports = report, .state = state, .n = rank, .out = out};
    GSC_TRY(gsc_exec_read(on, &gsc_thread_backend, &where, &backend, err));
    GSC_REQUIRE(report, 1);
    if (policy) {
        step.has_policy = 1;
        GSC_TRY(gsc_policy_read(policy, &step.policy, 2, err));
    }
    if (rank == UINT32_MAX)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 4, -1, "rank", rank, 0, UINT32_MAX - 1.0,
                               "0 to 4294967294");
    GSC_REQUIRE(out, 5);
    return backend->step(&where, &step, err);
}

gsc_status gsc_state_check(const gsc_state *s, int argument, const char *name, gsc_error *err)
{
    char place[48];
#define CHECK(field, low, high, holds)                                                             \
    if (!(holds)) {                                                                                \
        (void)snprintf(place, sizeof place, "%s.%s", name, #field);                                \
        return gsc_fail_number(err, GSC_ERROR_STATE, argument, -1, place, (double)s->field, low,   \
                               high, "what an update leads to: make the state anew");              \
    }
    GSC_FOR_STATE_FACTORS(CHECK)
    GSC_FOR_STATE_VALUES(CHECK)
#undef CHECK
    if (!GSC_RESERVED_IS_ZERO(s)) {
        (void)snprintf(place, sizeof place, "%s.reserved", name);
        return gsc_fail_reserved(err, GSC_ERROR_STATE, argument, -1, place);
    }
    return GSC_OK;
}

gsc_status gsc_state_init(const gsc_exec *on, const gsc_policy *policy, const gsc_state *from,
                          gsc_state *out, gsc_error *err)
{
    gsc_begin(err);
    gsc_exec where;
    const gsc_backend *backend;
    gsc_step step = {.kind = GSC_STEP_STATE_INIT, .state = from, .out = out};
    GSC_TRY(gsc_exec_read(on, &gsc_thread_backend, &where, &backend, err));
    GSC_TRY(gsc_policy_read(policy, &step.policy, 1, err));
    GSC_REQUIRE(out, 3);
    return backend->step(&where, &step, err);
}

gsc_status gsc_state_update(const gsc_exec *on, const gsc_policy *policy, const gsc_state *state,
                            const gsc_report *report, gsc_state *out, gsc_error *err)
{
    gsc_begin(err);
    gsc_exec where;
    const gsc_backend *backend;
    gsc_step step = {
        .kind = GSC_STEP_UPDATE, .state = state, .reports = report, .n = 1, .out = out};
    GSC_TRY(gsc_exec_read(on, &gsc_thread_backend, &where, &backend, err));
    GSC_TRY(gsc_policy_read(policy, &step.policy, 1, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(report, 3);
    GSC_REQUIRE(out, 4);
    return backend->step(&where, &step, err);
}

gsc_status gsc_state_join(const gsc_exec *on, const gsc_state *state, const gsc_state *other,
                          gsc_state *out, gsc_error *err)
{
    gsc_begin(err);
    gsc_exec where;
    const gsc_backend *backend;
    const gsc_step step = {.kind = GSC_STEP_JOIN, .state = state, .other = other, .out = out};
    GSC_TRY(gsc_exec_read(on, &gsc_thread_backend, &where, &backend, err));
    GSC_REQUIRE(state, 1);
    GSC_REQUIRE(other, 2);
    GSC_REQUIRE(out, 3);
    return backend->step(&where, &step, err);
}

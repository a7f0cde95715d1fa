/* SPDX-License-Identifier: MIT */
/*
 * The CPU's table of operations; contexts, memory, and steps of factors, reports and states: step.h
 * runs a step, and this file makes the error message.
 */
#include "cpu.h"

#if defined(_WIN32)
#include <malloc.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "pool.h"

gsc_status gsc_cpu_open(const gsc_cpu_options *options, gsc_cpu **out, gsc_error *err)
{
    const uint32_t threads = options->threads;
    gsc_cpu *cpu = malloc(sizeof *cpu);
    if (!cpu)
        return gsc_fail_memory(err);
    *cpu =
        (gsc_cpu){.threads = threads, .parallel_for = options->parallel_for, .pool = options->pool};
    if (threads > 1 && !cpu->parallel_for) {
        cpu->parallel_for = gsc_pool_run;
        cpu->pool = gsc_pool_create(threads);
        if (!cpu->pool) {
            free(cpu);
            return gsc_fail_otherwise(err, GSC_ERROR_MEMORY, 0, "options.threads",
                                      "out of memory or threads: %u were asked for", threads);
        }
    }
    *out = cpu;
    return GSC_OK;
}

static void destroy(void *data)
{
    gsc_cpu *cpu = data;
    if (cpu->parallel_for == gsc_pool_run)
        gsc_pool_destroy(cpu->pool);
    free(cpu);
}

static gsc_status check(const gsc_exec *exec, gsc_error *err)
{
    if (exec->stream)
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1, "exec.stream",
                        "is set, but a CPU has no streams: leave it NULL");
    if (exec->workspace || exec->workspace_size)
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1,
                        exec->workspace ? "exec.workspace" : "exec.workspace_size",
                        "is set, but a CPU needs no scratch memory: leave it 0");
    return GSC_OK;
}

static gsc_status workspace_size(const gsc_exec *exec, const gsc_job *job, uint64_t *size,
                                 gsc_error *err)
{
    (void)exec, (void)job, (void)err;
    *size = 0;
    return GSC_OK;
}

static void *allocate(uint64_t size)
{
    enum { ALIGNMENT = 256 };
    const uint64_t whole = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
#if defined(_WIN32)
    return _aligned_malloc(whole, ALIGNMENT);
#else
    return aligned_alloc(ALIGNMENT, whole);
#endif
}

static gsc_status memory_create(void *data, uint32_t kind, uint64_t size, void **out,
                                gsc_error *err)
{
    (void)data, (void)kind;
    void *memory = allocate(size);
    if (!memory)
        return gsc_fail_memory(err);
    *out = memory;
    return GSC_OK;
}

static void memory_destroy(void *data, void *memory)
{
    (void)data;
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

static gsc_status memory_copy(const gsc_exec *exec, void *to, const void *from, uint64_t size,
                              gsc_error *err)
{
    (void)exec, (void)err;
    memmove(to, from, size);
    return GSC_OK;
}

static gsc_status exec_wait(const gsc_exec *exec, gsc_error *err)
{
    (void)exec, (void)err; /* every call is done when it returns */
    return GSC_OK;
}

/* ---- steps ---- */

/* Fails because a report lacks the norm. index: its entry in `reports`; -1: `report`. */
static gsc_status fail_lacks(int argument, int64_t index, gsc_error *err)
{
    return gsc_fail(err, GSC_ERROR_REPORT, argument, index,
                    index < 0 ? "report.sum_squares" : "reports.sum_squares",
                    "was not measured: the norm is needed here, so want it when you measure");
}

/* Fails because of the first wrong field of a report. */
static gsc_status fail_report(const gsc_report *report, bool lacks, int argument, gsc_error *err)
{
    if (report->status != GSC_OK && report->status_rank_plus_1 != 0)
        return gsc_fail(err, GSC_ERROR_REPORT, argument, -1, "report.status",
                        "is an error that rank %u met: %s", report->status_rank_plus_1 - 1,
                        gsc_status_string(report->status));
    if (report->status != GSC_OK)
        return gsc_fail(err, GSC_ERROR_REPORT, argument, -1, "report.status", "is an error: %s",
                        gsc_status_string(report->status));
    if (gsc_report_values_status(report) != GSC_OK)
        return gsc_report_check(report, argument, -1, "report", err);
    if (lacks)
        return fail_lacks(argument, -1, err);
    if (!(report->amax >= 0) || !isfinite(report->amax))
        return gsc_fail_number(err, GSC_ERROR_REPORT, argument, -1, "report.amax", report->amax, 0,
                               NAN, "finite and not negative");
    return gsc_fail_number(err, GSC_ERROR_REPORT, argument, -1, "report.sum_squares",
                           report->sum_squares, 0, NAN,
                           "finite and not negative, or there is no norm");
}

static gsc_status fail_clip(const gsc_step *p, gsc_status status, gsc_error *err)
{
    if (status == GSC_ERROR_REPORT)
        return fail_report(p->reports, !(p->reports->measured & GSC_WANT_NORM), 2, err);
    if (p->factor)
        GSC_TRY(gsc_factor_check(p->factor, 1, err));
    return gsc_fail_number(err, GSC_ERROR_FACTOR, 3, -1, "max_norm", p->number, 0, NAN,
                           "less far below the norm: the factor's inverse becomes 0");
}

/* Fails because a report's digest differs from the first digest. */
static gsc_status fail_agreement(const gsc_step *p, gsc_error *err)
{
    const uint64_t index = gsc_first_mismatch(p->reports, p->n);
    uint64_t first = 0;
    while (p->reports[first].digest == 0)
        first++;
    const uint32_t rank = p->reports[index].status_rank_plus_1,
                   other = p->reports[first].status_rank_plus_1;
    if (rank != 0 && rank == other)
        return gsc_fail(err, GSC_ERROR_MISMATCH, 1, (int64_t)index, "reports.digest",
                        "differs: two ranks with unlike policies or states both set rank %u: "
                        "give each rank its own number, and all the same checkpoint",
                        rank - 1);
    if (rank != 0 && other != 0)
        return gsc_fail(err, GSC_ERROR_MISMATCH, 1, (int64_t)index, "reports.digest",
                        "differs: rank %u has another policy or state than rank %u: load the same "
                        "checkpoint on all ranks, or send one rank's policy and state to all",
                        rank - 1, other - 1);
    return gsc_fail(err, GSC_ERROR_MISMATCH, 1, (int64_t)index, "reports.digest",
                    "differs from reports[%llu].digest: load the same checkpoint on all ranks, or "
                    "send one rank's policy and state to all",
                    (unsigned long long)first);
}

/* Fails because of an invalid report, or the first that lacks a measurement of the policy. */
static gsc_status fail_merge(const gsc_step *p, gsc_error *err)
{
    const uint32_t wants = p->has_policy ? gsc_policy_wants(&p->policy) : 0;
    for (uint64_t i = 0; i < p->n; i++) {
        if (gsc_report_values_status(&p->reports[i]) != GSC_OK)
            return gsc_report_check(&p->reports[i], 1, (int64_t)i, "reports", err);
        if (p->reports[i].kind == GSC_REPORT_NUMBER)
            return gsc_fail(err, GSC_ERROR_REPORT, 1, (int64_t)i, "reports.kind",
                            "is the report of a number: update a state of its own with it and "
                            "join the states");
    }
    for (uint64_t i = 0; i < p->n; i++)
        if (wants & ~p->reports[i].measured)
            return fail_lacks(1, (int64_t)i, err);
    return gsc_fail(err, GSC_ERROR_REPORT, 4, -1, "policy",
                    "judges by the norm, which is not known of a sum: check the sum of the "
                    "gradients");
}

/* Fails because of the first wrong field of the state `from`. */
static gsc_status fail_from(const gsc_state *s, gsc_error *err)
{
    if (gsc_is_of_candidate(s))
        return gsc_fail(err, GSC_ERROR_VERSION, 2, -1, "from", GSC_SAVED_BY_CANDIDATE);
#define CHECK(field, low, high, holds)                                                             \
    if (!(holds))                                                                                  \
        return gsc_fail_number(err, GSC_ERROR_STATE, 2, -1, "from." #field, (double)s->field, low, \
                               high, "what a state can have");
    GSC_FOR_STATE_VALUES(CHECK)
#undef CHECK
    if (!GSC_RESERVED_IS_ZERO(s))
        return gsc_fail_reserved(err, GSC_ERROR_STATE, 2, -1, "from.reserved");
    return gsc_fail_number(err, GSC_ERROR_STATE, 2, -1, "from.factor.scale", s->factor.scale, 0,
                           NAN, "0 or above");
}

/* Fails because of what gsc_step_run refused with `status`. */
static gsc_status fail(const gsc_step *step, gsc_status status, gsc_error *err)
{
    switch (step->kind) {
    case GSC_STEP_MULTIPLY:
        if (status == GSC_ERROR_FACTOR)
            return gsc_factor_check(step->factor, 1, err);
        return gsc_fail_number(err, GSC_ERROR_VALUE, 2, -1, "by", step->number, 0, NAN,
                               "such that scale and inverse are above 0 and finite as floats");
    case GSC_STEP_CLIP:
        return fail_clip(step, status, err);
    case GSC_STEP_MERGE:
        return status == GSC_ERROR_MISMATCH ? fail_agreement(step, err) : fail_merge(step, err);
    case GSC_STEP_SET_RANK:
        if (status != GSC_ERROR_REPORT)
            return gsc_state_check(step->state, 3, "state", err);
        return gsc_report_check(step->reports, 1, -1, "report", err);
    case GSC_STEP_STATE_INIT:
        return fail_from(step->state, err);
    case GSC_STEP_COMBINE:
        GSC_TRY(gsc_state_check(step->state, 1, "state", err));
        return gsc_state_check(step->other, 2, "other", err);
    case GSC_STEP_GUARD:
        if (step->factor)
            GSC_TRY(gsc_factor_check(step->factor, 1, err));
        GSC_TRY(gsc_state_check(step->state, 2, "state", err));
        return gsc_fail_number(err, GSC_ERROR_FACTOR, 2, -1, "state.guard_multiplier",
                               step->state->guard_multiplier, 0, 1,
                               "less close to 0: the factor's inverse becomes 0");
    default:
        if (status != GSC_ERROR_REPORT)
            return gsc_state_check(step->state, 2, "state", err);
        return fail_report(step->reports, gsc_report_lacks(&step->policy, step->reports) != 0, 3,
                           err);
    }
}

static gsc_status step_run(const gsc_exec *exec, const gsc_step *step, gsc_error *err)
{
    gsc_status status = gsc_step_run(step);
    if (status == GSC_OK)
        return GSC_OK;
    status = fail(step, status, err);
    if (exec->flags & GSC_EXEC_WRITE_FAILURES) /* after the message: a result can be an input */
        gsc_step_failed(step, status);
    return status;
}

/* ---- the table ---- */

/* The calling thread, without calls on tensors: a program without such calls links no kernels. */
const gsc_backend gsc_thread_backend = {.check = check,
                                        .step = step_run,
                                        .memory_create = memory_create,
                                        .memory_destroy = memory_destroy,
                                        .memory_copy = memory_copy,
                                        .wait = exec_wait};

const gsc_backend gsc_cpu_backend = {.check = check,
                                     .tensors = gsc_cpu_tensors,
                                     .workspace_size = workspace_size,
                                     .step = step_run,
                                     .memory_create = memory_create,
                                     .memory_destroy = memory_destroy,
                                     .memory_copy = memory_copy,
                                     .wait = exec_wait,
                                     .destroy = destroy};

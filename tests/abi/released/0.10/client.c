/* SPDX-License-Identifier: MIT */
/*
 * A program that trains, and loads bytes that its version saved. A release keeps it with its
 * header, the digest of its ABI and its bytes, so that they meet every later library.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gradscaler_cuda.h"

static int failed;

static void check(const char *what, int holds)
{
    printf("%s %s\n", holds ? "ok  " : "FAIL", what);
    failed += !holds;
}

static gsc_error err;
static gsc_policy policy = GSC_POLICY_INIT;
static gsc_state state;

static int ok(gsc_status status)
{
    if (status != GSC_OK)
        printf("     %d: %s\n", status, err.message);
    return status == GSC_OK;
}

static void check_start(void)
{
    gsc_info info = GSC_INFO_INIT;
    gsc_tensor_options options;
    check("the library is this version or a later one", gsc_version() >= GSC_VERSION);
    check("info", ok(gsc_info_get(&info, &err)) && info.version == gsc_version() && *info.cpu);
    check("a struct that is filled in without a macro",
          ok(gsc_struct_init(&options, sizeof options, &err)) &&
              options.struct_size == GSC_TENSOR_OPTIONS_SIZE && !options.policy);
    check("features", gsc_has(GSC_FEATURE_CUDA) >= 0 && !gsc_has(100000));
}

static void check_policy(void)
{
    check("a preset", ok(gsc_policy_preset("torch", &policy, &err)) &&
                          ok(gsc_policy_check(&policy, &err)) &&
                          policy.struct_size == GSC_POLICY_SIZE && policy.init_scale == 65536 &&
                          policy.growth_factor == 2 && policy.backoff_factor == 0.5 &&
                          policy.growth_interval == 2000);
    policy.min_scale = -1;
    check("an error is data",
          gsc_policy_check(&policy, &err) == GSC_ERROR_POLICY && err.status == GSC_ERROR_POLICY &&
              err.argument == 0 && err.index == -1 && strcmp(err.name, "policy") == 0 &&
              strcmp(err.field, "min_scale") == 0 && err.value == -1 && err.low == 0 &&
              strncmp(err.message, "policy.min_scale ", err.subject_length) == 0);
    policy.min_scale = 0;
}

static void check_tensors(void)
{
    float gradients[4] = {8, -16, 24, 0}, sums[4] = {1, 1, 1, 1}, more[1] = {INFINITY};
    const gsc_tensor list[2] = {{.data = gradients, .count = 4, .dtype = GSC_F32},
                                {.data = more, .count = 1, .dtype = GSC_F32}};
    const gsc_tensor sum = {.data = sums, .count = 4, .dtype = GSC_F32};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_report report, each[2], merged;
    gsc_factor factor;
    int64_t histogram[GSC_HISTOGRAM_LENGTH] = {0};
    check("a factor", ok(gsc_factor_init(4, &factor, &err)) && factor.inverse == 0.25 &&
                          factor.scale_f32 == 4 && factor.generation == 0 &&
                          ok(gsc_factor_multiply(NULL, &factor, 2, &factor, &err)) &&
                          factor.scale == 8 && factor.inverse == 0.125);
    options.want = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW;
    options.policy = &policy;
    options.per_tensor = each;
    options.histogram = histogram;
    check("a check", ok(gsc_measure(NULL, &factor, list, 2, &options, &report, &err)) &&
                         report.overflow == 1 && report.found_inf == 1 && report.status == GSC_OK &&
                         report.measured == 7 && report.amax == 3 && report.sum_squares == 14 &&
                         report.elements == 5 && report.inf_count == 1 && report.nan_count == 0 &&
                         report.first_tensor == 1 && report.first_element == 0);
    check("a report of each tensor, and a histogram",
          each[0].overflow == 0 && each[0].sum_squares == 14 && each[1].overflow == 1 &&
              each[1].first_tensor == 1 && histogram[16] == 5);
    report.kind = GSC_REPORT_MERGED;
    check("merged they are the report on the list",
          ok(gsc_report_merge(NULL, each, 2, GSC_MERGE_SHARDS, &policy, &merged, &err)) &&
              memcmp(&merged, &report, sizeof merged) == 0);
    check("accumulate",
          ok(gsc_unscale_accumulate(NULL, &factor, list, &sum, 1, NULL, &report, &err)) &&
              sums[0] == 2 && sums[1] == -1 && sums[2] == 4 && sums[3] == 1);
    options.clamp = 2;
    check("unscale, clamped",
          ok(gsc_unscale(NULL, &factor, list, list, 1, &options, &report, &err)) &&
              gradients[0] == 1 && gradients[1] == -2 && gradients[2] == 2 && report.clamped == 1 &&
              report.amax == 3);
    check("NULL is refused by name",
          gsc_measure(NULL, NULL, NULL, 1, NULL, &report, &err) == GSC_ERROR_NULL &&
              err.argument == 2 && strcmp(err.name, "tensors") == 0);
}

static void check_steps(void)
{
    gsc_report good, bad;
    check("good and bad",
          ok(gsc_report_from_flag(0, &good, &err)) && ok(gsc_report_from_flag(1, &bad, &err)));
    check("the first state", ok(gsc_state_init(NULL, &policy, &state, &err)) &&
                                 state.factor.scale == 65536 && state.factor.generation == 1);
    bad.generation = state.factor.generation;
    check("an overflow", ok(gsc_state_update(NULL, &policy, &state, &bad, &state, &err)) &&
                             state.factor.scale == 32768 && state.total_overflows == 1 &&
                             state.skip_f32 == 1 && (state.events & GSC_EVENT_SKIPPED) &&
                             (state.events & GSC_EVENT_BACKED_OFF) &&
                             !(state.events & GSC_EVENT_STALE));
    check("a good step", ok(gsc_state_update(NULL, &policy, &state, &good, &state, &err)) &&
                             state.events == 0 && state.good_steps == 1 && state.skip_f32 == 0);
}

static void check_contexts(void)
{
    gsc_exec on = GSC_EXEC_INIT;
    gsc_context *cuda = NULL;
    void *memory = NULL;
    float values[2] = {2, 4}, back[2] = {0, 0};
    gsc_cpu_options two = GSC_CPU_OPTIONS_INIT;
    gsc_cuda_options first = GSC_CUDA_OPTIONS_INIT;
    two.threads = 2;
    check("a context and its memory",
          ok(gsc_context_create_cpu(&two, &on.context, &err)) &&
              ok(gsc_memory_create(on.context, GSC_MEMORY_HOST, sizeof values, &memory, &err)));
    const gsc_tensor tensor = {.data = memory, .count = 2, .dtype = GSC_F32};
    gsc_factor factor;
    check("a call there",
          ok(gsc_memory_copy(&on, memory, values, sizeof values, &err)) &&
              ok(gsc_factor_init(2, &factor, &err)) &&
              ok(gsc_unscale(&on, &factor, &tensor, &tensor, 1, NULL, NULL, &err)) &&
              ok(gsc_memory_copy(&on, back, memory, sizeof back, &err)) &&
              ok(gsc_exec_wait(&on, &err)) && back[0] == 1 && back[1] == 2);
    gsc_memory_destroy(on.context, memory);
    gsc_context_destroy(on.context);
    const gsc_status started = gsc_cuda_start(&err);
    const gsc_status status = gsc_context_create_cuda(&first, &cuda, &err);
    check("CUDA, or none", (status == GSC_OK || status == GSC_ERROR_UNAVAILABLE) &&
                               started >= status && gsc_cuda_log());
    if (cuda)
        gsc_context_destroy(cuda);
}

/* By norms that were measured elsewhere. */
static void check_guard(void)
{
    gsc_reason reason;
    int fine = 1;
    policy.guard_ratio = 2;
    policy.guard_decay = 0.5;
    policy.guard_warmup = 2;
    policy.guard_max_in_a_row = 3;
    policy.guard_sample = GSC_SAMPLE_NONE;
    for (int i = 0; i < 4; i++) {
        const gsc_report report = {
            .kind = GSC_REPORT_TENSORS, .measured = GSC_WANT_NORM, .sum_squares = i < 3 ? 16 : 81};
        fine = fine && ok(gsc_state_update(NULL, &policy, &state, &report, &state, &err));
    }
    check("an outlier is skipped, and why",
          fine && state.skip && state.guard_mean == 4 && state.total_guard_skips == 1 &&
              ok(gsc_state_reason(&state, NULL, NULL, NULL, NULL, NULL, 0, &reason, &err)) &&
              reason.cause == GSC_CAUSE_OUTLIER && reason.value == 9 && reason.threshold == 8 &&
              reason.message[0] == 's');
}

/* The policy and the state of this program as this version saved them: `client save` wrote it. */
static const unsigned char saved[] = {
#include "saved.inc"
};

static int is_saved_as(const unsigned char *bytes, uint64_t size)
{
    gsc_policy loaded = GSC_POLICY_INIT;
    gsc_state there;
    return ok(gsc_state_load(bytes, size, &loaded, &there, &err)) &&
           memcmp(&loaded, &policy, sizeof policy) == 0 &&
           memcmp(&there, &state, sizeof state) == 0;
}

static void check_saved(int print)
{
    unsigned char bytes[GSC_SAVED_SIZE_MAX];
    uint64_t size = 0;
    check("saved and loaded",
          ok(gsc_state_save(&policy, &state, bytes, sizeof bytes, &size, &err)) &&
              is_saved_as(bytes, size));
    check("what this version saved is loaded", is_saved_as(saved, sizeof saved));
    for (uint64_t i = 0; print && i < size; i++)
        fprintf(stderr, "%u,%c", bytes[i], i % 16 == 15 || i + 1 == size ? '\n' : ' ');
}

int main(int count, char **arguments)
{
    check_start();
    check_policy();
    check_tensors();
    check_steps();
    check_contexts();
    check_guard();
    check_saved(count > 1 && strcmp(arguments[1], "save") == 0);
    printf("%d failed\n", failed);
    return failed > 0;
}

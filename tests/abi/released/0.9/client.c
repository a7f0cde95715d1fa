/* SPDX-License-Identifier: MIT */
/*
 * A program that calls each function once, and loads bytes that its version saved. A release keeps
 * it with its header and its bytes, so that it meets every later library.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gradscaler_cuda.h"

static int failed;

static void check(int holds, const char *what)
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
    check(gsc_version() >= GSC_VERSION, "the library is this version or a later one");
    check(ok(gsc_info_get(&info, &err)) && info.version == gsc_version() && *info.cpu &&
              strstr(info.cpu_available, "scalar") && info.cpu_note,
          "info");
    gsc_tensor_options options;
    check(gsc_has(GSC_FEATURE_CUDA) <= 1 && !gsc_has(100000), "features");
    check(ok(gsc_struct_init(&options, sizeof options, &err)) &&
              options.struct_size == GSC_TENSOR_OPTIONS_SIZE && !options.policy,
          "a struct that is filled in without a macro");
    check(strcmp(gsc_status_string(GSC_OK), "ok") == 0 && *gsc_status_string(GSC_ERROR_DEVICE),
          "words of a status");
    check(*gsc_preset_name(0) && *gsc_preset_summary(0) && !gsc_preset_name(100000), "presets");
    check(strcmp(gsc_dtype_name(GSC_BF16), "bfloat16") == 0 && gsc_dtype_bits(GSC_F8_E5M2) == 8 &&
              *gsc_version_string() != '\0',
          "names of dtypes and of the version");
    check(gsc_dtype_size(GSC_F32) == 4 && gsc_dtype_size(GSC_F64) == 8 &&
              gsc_dtype_size(GSC_F16) == 2 && gsc_dtype_size(GSC_BF16) == 2 &&
              gsc_dtype_size(GSC_F8_E4M3FN) == 1 && gsc_dtype_size(GSC_F8_E5M2) == 1 &&
              gsc_dtype_size(GSC_CB16) == 2 && gsc_dtype_size(GSC_COMPLEX64) == 8 &&
              gsc_dtype_size(GSC_COMPLEX128) == 16 && gsc_dtype_size(0) == 0,
          "dtypes");
}

static void check_policy(void)
{
    check(ok(gsc_policy_preset("torch", &policy, &err)) && ok(gsc_policy_check(&policy, &err)) &&
              policy.struct_size == GSC_POLICY_SIZE && policy.init_scale == 65536 &&
              policy.growth_factor == 2 && policy.backoff_factor == 0.5 &&
              policy.growth_interval == 2000,
          "a preset");
    policy.min_scale = -1;
    check(gsc_policy_check(&policy, &err) == GSC_ERROR_POLICY && err.status == GSC_ERROR_POLICY &&
              err.argument == 0 && err.index == -1 && strcmp(err.name, "policy") == 0 &&
              strcmp(err.field, "min_scale") == 0 && err.value == -1 && err.low == 0 &&
              strncmp(err.message, "policy.min_scale ", err.subject_length) == 0,
          "an error is data");
    policy.min_scale = 0;
    policy.reserved = 1;
    check(gsc_policy_check(&policy, &err) != GSC_OK, "reserved words are 0");
    policy.reserved = 0;
    check(gsc_policy_preset("no such preset", &policy, &err) == GSC_ERROR_PRESET &&
              policy.init_scale == 65536,
          "an unknown preset");
}

static void check_tensors(void)
{
    float gradients[4] = {8, -16, 24, 0}, sums[4] = {1, 1, 1, 1}, more[1] = {INFINITY};
    const gsc_tensor list[2] = {{.data = gradients, .count = 4, .dtype = GSC_F32},
                                {.data = more, .count = 1, .dtype = GSC_F32}};
    const gsc_tensor sum = {.data = sums, .count = 4, .dtype = GSC_F32}, twice[2] = {sum, sum};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_report report, each[2], merged;
    gsc_factor factor, clipped;
    int64_t histogram[GSC_HISTOGRAM_LENGTH] = {0};
    uint64_t size = 1, scratch[4];
    check(ok(gsc_factor_init(4, &factor, &err)) && factor.inverse == 0.25 &&
              factor.scale_f32 == 4 && factor.generation == 0 &&
              ok(gsc_factor_multiply(NULL, &factor, 2, &factor, &err)) && factor.scale == 8 &&
              factor.inverse == 0.125,
          "a factor");
    options.want = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW;
    options.policy = &policy;
    options.per_tensor = each;
    options.histogram = histogram;
    check(ok(gsc_measure(NULL, &factor, list, 2, &options, &report, &err)) &&
              report.overflow == 1 && report.found_inf == 1 && report.status == GSC_OK &&
              report.measured == 7 && report.amax == 3 && report.sum_squares == 14 &&
              report.elements == 5 && report.inf_count == 1 && report.nan_count == 0 &&
              report.first_tensor == 1 && report.first_element == 0,
          "a check");
    check(each[0].overflow == 0 && each[0].sum_squares == 14 && each[1].overflow == 1 &&
              each[1].first_tensor == 1 && histogram[16] == 5,
          "a report of each tensor, and a histogram");
    report.kind = GSC_REPORT_MERGED;
    check(ok(gsc_report_merge(NULL, each, 2, GSC_MERGE_SHARDS, &policy, &merged, &err)) &&
              memcmp(&merged, &report, sizeof merged) == 0,
          "merged they are that of the list");
    check(ok(gsc_report_merge(NULL, each, 2, GSC_MERGE_ADDENDS, NULL, &merged, &err)) &&
              merged.measured == GSC_WANT_UNDERFLOW,
          "of addends the norm is not known");
    check(ok(gsc_unscale_accumulate(NULL, &factor, list, &sum, 1, NULL, &report, &err)) &&
              sums[0] == 2 && sums[1] == -1 && sums[2] == 4 && sums[3] == 1,
          "accumulate");
    options.clamp = 2;
    check(ok(gsc_unscale(NULL, &factor, list, list, 1, &options, &report, &err)) &&
              gradients[0] == 1 && gradients[1] == -2 && gradients[2] == 2 && report.clamped == 1 &&
              report.amax == 3,
          "unscale, clamped");
    check(ok(gsc_factor_clip_grad_norm(NULL, &factor, &report, 1, &clipped, &err)) &&
              clipped.inverse < factor.inverse,
          "clip");
    check(ok(gsc_scale(NULL, &factor, list, list, 1, NULL, NULL, &err)) && gradients[1] == -16,
          "scale");
    check(ok(gsc_workspace_size(NULL, list, 2, NULL, &size, &err)) && size == 0, "workspace");
    check(ok(gsc_tensors_check_overlap(list, list, 2, scratch, 4, &err)),
          "lists that do not overlap");
    check(gsc_tensors_check_overlap(list, twice, 2, scratch, 4, &err) == GSC_ERROR_OVERLAP &&
              strcmp(err.name, "out") == 0 && err.index == 1 && err.value == 0,
          "and lists that do");
    check(gsc_measure(NULL, NULL, NULL, 1, NULL, &report, &err) == GSC_ERROR_NULL &&
              err.argument == 2 && strcmp(err.name, "tensors") == 0,
          "NULL is refused by name");
}

static void check_steps(void)
{
    gsc_report good, bad;
    gsc_state from;
    check(ok(gsc_report_from_flag(0, &good, &err)) && ok(gsc_report_from_flag(1, &bad, &err)),
          "good and bad");
    check(ok(gsc_state_init(NULL, &policy, &state, &err)) && state.factor.scale == 65536 &&
              state.factor.generation == 1,
          "the first state");
    bad.generation = state.factor.generation;
    check(ok(gsc_state_update(NULL, &policy, &state, &bad, &state, &err)) &&
              state.factor.scale == 32768 && state.total_overflows == 1 && state.skip_f32 == 1 &&
              (state.events & GSC_EVENT_SKIPPED) && (state.events & GSC_EVENT_BACKED_OFF) &&
              !(state.events & GSC_EVENT_STALE),
          "an overflow");
    check(ok(gsc_state_update(NULL, &policy, &state, &bad, &state, &err)) &&
              (state.events & GSC_EVENT_STALE),
          "the same report again is stale");
    check(ok(gsc_state_update(NULL, &policy, &state, &good, &state, &err)) && state.events == 0 &&
              state.good_steps == 1 && state.skip_f32 == 0,
          "a good step");
    from = state;
    from.factor.scale = 4;
    check(ok(gsc_state_init_from(NULL, &policy, &from, &from, &err)) && from.factor.scale == 4 &&
              from.factor.inverse == 0.25 && from.good_steps == 1 && from.total_overflows == 2 &&
              from.factor.generation > state.next.generation,
          "a state with another scale");
}

static void check_ranks(void)
{
    gsc_report ranks[3], out;
    gsc_state other = state;
    check(ok(gsc_report_from_flag(0, &ranks[0], &err)) &&
              ok(gsc_report_from_flag(1, &ranks[1], &err)) &&
              ok(gsc_report_from_flag(0, &ranks[2], &err)),
          "reports of flags");
    check(ok(gsc_report_set_rank(NULL, &ranks[0], &policy, &state, 0, &ranks[0], &err)) &&
              ok(gsc_report_set_rank(NULL, &ranks[1], &policy, &state, 1, &ranks[1], &err)) &&
              ranks[1].digest != 0 && ranks[1].digest == ranks[0].digest &&
              ranks[1].status_rank_plus_1 == 2 && ranks[1].first_rank_plus_1 == 2,
          "a stamp is of rank and state");
    check(ok(gsc_report_merge(NULL, ranks, 3, GSC_MERGE_ADDENDS, &policy, &out, &err)) &&
              out.digest == ranks[0].digest && out.first_rank_plus_1 == 2 &&
              out.status_rank_plus_1 == 0,
          "what has none agrees, and the rank of an overflow is told");
    other.good_steps++;
    check(ok(gsc_report_set_rank(NULL, &ranks[2], &policy, &other, 2, &ranks[2], &err)) &&
              gsc_report_merge(NULL, ranks, 3, GSC_MERGE_ADDENDS, &policy, &out, &err) ==
                  GSC_ERROR_MISMATCH &&
              err.index == 2 && strstr(err.message, "rank 2"),
          "ranks that differ are refused");
}

static void check_contexts(void)
{
    gsc_exec on = GSC_EXEC_INIT;
    void *memory = NULL;
    float values[2] = {2, 4}, back[2] = {0, 0};
    gsc_cpu_options two = GSC_CPU_OPTIONS_INIT;
    gsc_cuda_options first = GSC_CUDA_OPTIONS_INIT;
    two.threads = 2;
    check(ok(gsc_context_create_cpu(&two, &on.context, &err)) &&
              ok(gsc_memory_create(on.context, GSC_MEMORY_HOST, sizeof values, &memory, &err)),
          "a context and its memory");
    const gsc_tensor tensor = {.data = memory, .count = 2, .dtype = GSC_F32};
    gsc_factor factor;
    check(ok(gsc_memory_copy(&on, memory, values, sizeof values, &err)) &&
              ok(gsc_factor_init(2, &factor, &err)) &&
              ok(gsc_unscale(&on, &factor, &tensor, &tensor, 1, NULL, NULL, &err)) &&
              ok(gsc_memory_copy(&on, back, memory, sizeof back, &err)) &&
              ok(gsc_exec_wait(&on, &err)) && back[0] == 1 && back[1] == 2,
          "a call there");
    gsc_memory_destroy(on.context, memory);
    gsc_context_destroy(on.context);
    gsc_context *cuda = NULL;
    const gsc_status started = gsc_cuda_start(&err);
    const gsc_status status = gsc_context_create_cuda(&first, &cuda, &err);
    check((status == GSC_OK || status == GSC_ERROR_UNAVAILABLE) && started >= status &&
              gsc_cuda_log(),
          "CUDA, or none");
    if (cuda)
        gsc_context_destroy(cuda);
}

/* The norm of a report, as one who measures it elsewhere makes it. */
static gsc_report of_norm(double norm)
{
    gsc_report report;
    memset(&report, 0, sizeof report);
    report.kind = GSC_REPORT_TENSORS;
    report.measured = GSC_WANT_NORM;
    report.sum_squares = norm * norm;
    return report;
}

static void check_guard(void)
{
    gsc_policy losses = GSC_POLICY_INIT, clips = GSC_POLICY_INIT;
    gsc_state of_losses, joined, of_clips;
    gsc_report report;
    gsc_factor factor, clipped;
    gsc_reason reason;
    gsc_policy resolved = GSC_POLICY_INIT;
    uint32_t traits;
    uint64_t digest;
    policy.guard_ratio = 2;
    policy.guard_decay = 0.5;
    policy.guard_warmup = 2;
    policy.guard_max_in_a_row = 3;
    policy.guard_sample = GSC_SAMPLE_NONE;
    int fine = 1;
    for (int i = 0; i < 3; i++) {
        report = of_norm(4);
        fine = fine && ok(gsc_state_update(NULL, &policy, &state, &report, &state, &err)) &&
               !(state.events & GSC_EVENT_OUTLIER) && state.guard_multiplier == 1;
    }
    report = of_norm(9);
    fine = fine && ok(gsc_state_update(NULL, &policy, &state, &report, &state, &err));
    check(fine && state.events == (GSC_EVENT_SKIPPED | GSC_EVENT_OUTLIER) &&
              state.guard_mean == 4 && state.guard_count == 3 && state.guard_in_a_row == 1 &&
              state.total_guard_skips == 1 && state.guard_threshold == 8 && state.skip_f32 == 1,
          "an outlier is skipped");
    losses.guard_norm = 2;
    check(ok(gsc_state_init(NULL, &losses, &of_losses, &err)) &&
              ok(gsc_report_from_number(3, &report, &err)) && report.number == 3 &&
              ok(gsc_state_update(NULL, &losses, &of_losses, &report, &of_losses, &err)),
          "a loss is judged");
    clips.guard_norm = 2;
    clips.guard_flags = GSC_GUARD_CLIP;
    report = of_norm(8);
    check(ok(gsc_state_init(NULL, &clips, &of_clips, &err)) &&
              ok(gsc_state_update(NULL, &clips, &of_clips, &report, &of_clips, &err)) &&
              of_clips.events == (GSC_EVENT_CLIPPED | GSC_EVENT_OUTLIER) &&
              ok(gsc_factor_init(4, &factor, &err)) &&
              ok(gsc_factor_clip_outlier(NULL, &factor, &of_clips, &clipped, &err)) &&
              clipped.inverse == 0.0625 && clipped.scale == 4,
          "a clip is folded into a factor");
    check(ok(gsc_policy_resolve(&clips, &resolved, &traits, &err)) &&
              traits == (GSC_TRAIT_GUARDS | GSC_TRAIT_NEEDS_NORM) && resolved.init_scale == 1 &&
              ok(gsc_state_digest(&clips, &of_clips, &digest, &err)) && digest != 0,
          "what a policy does");
    check(ok(gsc_state_reason(&of_clips, &reason, &err)) && reason.outcome == GSC_OUTCOME_CLIPPED &&
              reason.cause == GSC_CAUSE_OUTLIER && reason.value == 8 && reason.threshold == 2 &&
              reason.multiplier == 0.25 && reason.in_a_row == 1 && reason.message[0] == 'c',
          "why it clips");
    gsc_entry metrics[32];
    gsc_note findings[4];
    uint64_t metrics_count = 0, findings_count = 0;
    check(ok(gsc_state_metrics(&clips, &of_clips, NULL, metrics, 32, &metrics_count, &err)) &&
              strcmp(metrics[GSC_METRIC_NORM].key, "norm") == 0 &&
              metrics[GSC_METRIC_NORM].value == 8 &&
              metrics[GSC_METRIC_GUARD_MULTIPLIER].value == 0.25 &&
              metrics[GSC_METRIC_NAN_COUNT].kind == GSC_ENTRY_NULL,
          "what it did, as numbers");
    check(ok(gsc_state_diagnose(&clips, &of_clips, NULL, NULL, 0, 0, 0, findings, 4,
                                &findings_count, &err)) &&
              findings_count == 0,
          "and nothing is wrong");
    check(ok(gsc_state_combine_decisions(NULL, &of_clips, &of_losses, &joined, &err)) &&
              joined.events == (GSC_EVENT_SKIPPED | GSC_EVENT_OUTLIER) && joined.skip_f32 == 1,
          "two signals are joined");
    losses.guard_norm = 0;
    losses.guard_sigmas = 3;
    losses.guard_sample = GSC_SAMPLE_NONE;
    check(gsc_policy_check(&losses, &err) == GSC_ERROR_POLICY &&
              strcmp(err.field, "guard_max_in_a_row") == 0,
          "a guard that locks itself out is refused");
    losses.quirks = GSC_QUIRK_ALLOW_LOCKOUT;
    check(ok(gsc_policy_check(&losses, &err)), "unless it says so");
}

enum { MOST = 64 }; /* entries and notes */

static int has(const gsc_note *notes, uint64_t count, uint32_t kind, const char *field)
{
    for (; count > 0; notes++, count--)
        if (notes->kind == kind && strcmp(notes->field, field) == 0)
            return *notes->message != 0;
    return 0;
}

static void check_formats(void)
{
    const gsc_entry entries[] = {
        {.key = "scaler.scale", .kind = GSC_ENTRY_NUMBER, .value = 2048},
        {.key = "scaler.growth_factor", .kind = GSC_ENTRY_NUMBER, .value = 2},
        {.key = "scaler.backoff_factor", .kind = GSC_ENTRY_NUMBER, .value = 0.5},
        {.key = "scaler.growth_interval", .kind = GSC_ENTRY_INTEGER, .value = 7, .integer = 7},
        {.key = "scaler._growth_tracker", .kind = GSC_ENTRY_NUMBER, .value = 3},
        {.key = "scaler.lr", .kind = GSC_ENTRY_NUMBER, .value = 0.1}};
    const gsc_entry settings[] = {
        {.key = "loss_scale", .kind = GSC_ENTRY_TEXT, .text = "dynamic"},
        {.key = "max_loss_scale", .kind = GSC_ENTRY_NULL},
        {.key = "enabled", .kind = GSC_ENTRY_BOOLEAN, .value = 1, .integer = 1}};
    gsc_entry written[MOST];
    gsc_note notes[MOST];
    uint64_t entries_count = 0, count = 0;
    gsc_policy torch = GSC_POLICY_INIT, read = GSC_POLICY_INIT;
    gsc_state there;
    check(*gsc_format_name(0) && *gsc_format_summary(0) && !gsc_format_name(100000), "formats");
    check(ok(gsc_state_import(NULL, NULL, entries, 6, NULL, &torch, &there, notes, MOST, &count,
                              &err)) &&
              there.factor.scale == 2048 && there.good_steps == 3 && torch.growth_interval == 7 &&
              has(notes, count, GSC_NOTE_FORMAT, "torch") &&
              has(notes, count, GSC_NOTE_IGNORED, ""),
          "a checkpoint is recognised and read");
    check(ok(gsc_state_export("megatron", "grad_scaler", &torch, &there, written, MOST,
                              &entries_count, notes, MOST, &count, &err)) &&
              strcmp(written[0].key, "grad_scaler.scale") == 0 && written[0].value == 2048 &&
              written[1].kind == GSC_ENTRY_INTEGER && written[1].value == 3 &&
              has(notes, count, GSC_NOTE_LOST, "growth_interval"),
          "and written for another framework");
    check(ok(gsc_state_import("megatron", "grad_scaler", written, entries_count, &torch, &read,
                              &there, notes, MOST, &count, &err)) &&
              there.good_steps == 3 && read.growth_interval == 7 &&
              has(notes, count, GSC_NOTE_MISSING, "growth_interval"),
          "which it comes back from");
    check(ok(gsc_policy_import("apex", NULL, settings, 3, NULL, &read, NULL, 0, NULL, &err)) &&
              read.max_scale == 0 && read.growth_interval == 2000,
          "settings");
    written[0].value = -1;
    check(gsc_state_import("megatron", "grad_scaler", written, entries_count, NULL, &read, &there,
                           NULL, 0, NULL, &err) == GSC_ERROR_VALUE &&
              err.argument == 2 && err.index == 0 && strcmp(err.name, "entries") == 0,
          "what cannot be is refused by its entry");
    check(gsc_state_import("no such format", NULL, entries, 6, NULL, &read, &there, NULL, 0, NULL,
                           &err) == GSC_ERROR_FORMAT,
          "an unknown format");
    written[0].value = INFINITY;
    check(ok(gsc_state_import("megatron", "grad_scaler", written, entries_count, NULL, &read,
                              &there, notes, MOST, &count, &err)) &&
              has(notes, count, GSC_NOTE_UNUSABLE, "scale"),
          "a scale that a framework reaches is read");
}

/* What this version saved of the policy and the state of this program: `client save` wrote it. */
static const unsigned char saved[] = {
#include "saved.inc"
};

static void check_saved(int print)
{
    unsigned char bytes[GSC_SAVED_SIZE_MAX];
    gsc_policy loaded = GSC_POLICY_INIT;
    gsc_state there;
    uint64_t size = 0;
    check(ok(gsc_state_save(&policy, &state, bytes, sizeof bytes, &size, &err)) &&
              ok(gsc_state_load(bytes, size, &loaded, &there, &err)) &&
              memcmp(&loaded, &policy, sizeof policy) == 0 &&
              memcmp(&there, &state, sizeof state) == 0,
          "saved and loaded");
    check(ok(gsc_state_load(saved, sizeof saved, &loaded, &there, &err)) &&
              memcmp(&loaded, &policy, sizeof policy) == 0 &&
              memcmp(&there, &state, sizeof state) == 0,
          "what this version saved is loaded");
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
    check_formats();
    check_ranks();
    check_guard();
    check_saved(count > 1 && strcmp(arguments[1], "save") == 0);
    printf("%d failed\n", failed);
    return failed > 0;
}

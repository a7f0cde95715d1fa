/* SPDX-License-Identifier: MIT */
/* Generated from include/gradscaler.toml by include/generate.py. Do not edit. */
#include <stddef.h>

#include "gradscaler_cuda.h"

#define GSC_SHARED_BYTES 4194304

_Static_assert(sizeof(gsc_error) == 512, "gsc_error");
_Static_assert(offsetof(gsc_error, status) == 0, "gsc_error.status");
_Static_assert(offsetof(gsc_error, argument) == 4, "gsc_error.argument");
_Static_assert(offsetof(gsc_error, index) == 8, "gsc_error.index");
_Static_assert(offsetof(gsc_error, name) == 16, "gsc_error.name");
_Static_assert(offsetof(gsc_error, field) == 40, "gsc_error.field");
_Static_assert(offsetof(gsc_error, value) == 72, "gsc_error.value");
_Static_assert(offsetof(gsc_error, low) == 80, "gsc_error.low");
_Static_assert(offsetof(gsc_error, high) == 88, "gsc_error.high");
_Static_assert(offsetof(gsc_error, subject_length) == 96, "gsc_error.subject_length");
_Static_assert(offsetof(gsc_error, requirement_start) == 100, "gsc_error.requirement_start");
_Static_assert(offsetof(gsc_error, message) == 104, "gsc_error.message");
_Static_assert(offsetof(gsc_error, reserved) == 496, "gsc_error.reserved");
_Static_assert(sizeof(gsc_policy) == 176, "gsc_policy");
_Static_assert(offsetof(gsc_policy, struct_size) == 0, "gsc_policy.struct_size");
_Static_assert(offsetof(gsc_policy, arithmetic) == 4, "gsc_policy.arithmetic");
_Static_assert(offsetof(gsc_policy, init_scale) == 8, "gsc_policy.init_scale");
_Static_assert(offsetof(gsc_policy, growth_factor) == 16, "gsc_policy.growth_factor");
_Static_assert(offsetof(gsc_policy, backoff_factor) == 24, "gsc_policy.backoff_factor");
_Static_assert(offsetof(gsc_policy, growth_interval) == 32, "gsc_policy.growth_interval");
_Static_assert(offsetof(gsc_policy, growth_rule) == 40, "gsc_policy.growth_rule");
_Static_assert(offsetof(gsc_policy, growth_extra_steps) == 44, "gsc_policy.growth_extra_steps");
_Static_assert(offsetof(gsc_policy, max_scale) == 48, "gsc_policy.max_scale");
_Static_assert(offsetof(gsc_policy, min_scale) == 56, "gsc_policy.min_scale");
_Static_assert(offsetof(gsc_policy, ceiling_rule) == 64, "gsc_policy.ceiling_rule");
_Static_assert(offsetof(gsc_policy, floor_rule) == 68, "gsc_policy.floor_rule");
_Static_assert(offsetof(gsc_policy, overflow_test) == 72, "gsc_policy.overflow_test");
_Static_assert(offsetof(gsc_policy, hysteresis) == 76, "gsc_policy.hysteresis");
_Static_assert(offsetof(gsc_policy, overflow_reset) == 80, "gsc_policy.overflow_reset");
_Static_assert(offsetof(gsc_policy, apply_delay) == 84, "gsc_policy.apply_delay");
_Static_assert(offsetof(gsc_policy, overflow_tolerance) == 88, "gsc_policy.overflow_tolerance");
_Static_assert(offsetof(gsc_policy, max_failed_backoffs) == 96, "gsc_policy.max_failed_backoffs");
_Static_assert(offsetof(gsc_policy, quirks) == 104, "gsc_policy.quirks");
_Static_assert(offsetof(gsc_policy, bad_loss_rule) == 108, "gsc_policy.bad_loss_rule");
_Static_assert(offsetof(gsc_policy, guard_norm) == 112, "gsc_policy.guard_norm");
_Static_assert(offsetof(gsc_policy, guard_ratio) == 120, "gsc_policy.guard_ratio");
_Static_assert(offsetof(gsc_policy, guard_sigmas) == 128, "gsc_policy.guard_sigmas");
_Static_assert(offsetof(gsc_policy, guard_decay) == 136, "gsc_policy.guard_decay");
_Static_assert(offsetof(gsc_policy, guard_init_mean) == 144, "gsc_policy.guard_init_mean");
_Static_assert(offsetof(gsc_policy, guard_warmup) == 152, "gsc_policy.guard_warmup");
_Static_assert(offsetof(gsc_policy, guard_max_in_a_row) == 160, "gsc_policy.guard_max_in_a_row");
_Static_assert(offsetof(gsc_policy, guard_sample) == 168, "gsc_policy.guard_sample");
_Static_assert(offsetof(gsc_policy, guard_flags) == 172, "gsc_policy.guard_flags");
_Static_assert(sizeof(gsc_exec) == 40, "gsc_exec");
_Static_assert(offsetof(gsc_exec, struct_size) == 0, "gsc_exec.struct_size");
_Static_assert(offsetof(gsc_exec, flags) == 4, "gsc_exec.flags");
_Static_assert(offsetof(gsc_exec, context) == 8, "gsc_exec.context");
_Static_assert(offsetof(gsc_exec, stream) == 16, "gsc_exec.stream");
_Static_assert(offsetof(gsc_exec, workspace) == 24, "gsc_exec.workspace");
_Static_assert(offsetof(gsc_exec, workspace_size) == 32, "gsc_exec.workspace_size");
_Static_assert(sizeof(gsc_cpu_options) == 24, "gsc_cpu_options");
_Static_assert(offsetof(gsc_cpu_options, struct_size) == 0, "gsc_cpu_options.struct_size");
_Static_assert(offsetof(gsc_cpu_options, threads) == 4, "gsc_cpu_options.threads");
_Static_assert(offsetof(gsc_cpu_options, parallel_for) == 8, "gsc_cpu_options.parallel_for");
_Static_assert(offsetof(gsc_cpu_options, pool) == 16, "gsc_cpu_options.pool");
_Static_assert(sizeof(gsc_info) == 32, "gsc_info");
_Static_assert(offsetof(gsc_info, struct_size) == 0, "gsc_info.struct_size");
_Static_assert(offsetof(gsc_info, version) == 4, "gsc_info.version");
_Static_assert(offsetof(gsc_info, cpu) == 8, "gsc_info.cpu");
_Static_assert(offsetof(gsc_info, cpu_available) == 16, "gsc_info.cpu_available");
_Static_assert(offsetof(gsc_info, cpu_note) == 24, "gsc_info.cpu_note");
_Static_assert(sizeof(gsc_factor) == 32, "gsc_factor");
_Static_assert(offsetof(gsc_factor, scale) == 0, "gsc_factor.scale");
_Static_assert(offsetof(gsc_factor, inverse) == 8, "gsc_factor.inverse");
_Static_assert(offsetof(gsc_factor, scale_f32) == 16, "gsc_factor.scale_f32");
_Static_assert(offsetof(gsc_factor, inverse_f32) == 20, "gsc_factor.inverse_f32");
_Static_assert(offsetof(gsc_factor, generation) == 24, "gsc_factor.generation");
_Static_assert(sizeof(gsc_report) == 256, "gsc_report");
_Static_assert(offsetof(gsc_report, found_inf) == 0, "gsc_report.found_inf");
_Static_assert(offsetof(gsc_report, overflow) == 4, "gsc_report.overflow");
_Static_assert(offsetof(gsc_report, status) == 8, "gsc_report.status");
_Static_assert(offsetof(gsc_report, measured) == 12, "gsc_report.measured");
_Static_assert(offsetof(gsc_report, generation) == 16, "gsc_report.generation");
_Static_assert(offsetof(gsc_report, amax) == 24, "gsc_report.amax");
_Static_assert(offsetof(gsc_report, sum_squares) == 32, "gsc_report.sum_squares");
_Static_assert(offsetof(gsc_report, elements) == 40, "gsc_report.elements");
_Static_assert(offsetof(gsc_report, nan_count) == 48, "gsc_report.nan_count");
_Static_assert(offsetof(gsc_report, inf_count) == 56, "gsc_report.inf_count");
_Static_assert(offsetof(gsc_report, first_tensor) == 64, "gsc_report.first_tensor");
_Static_assert(offsetof(gsc_report, first_element) == 72, "gsc_report.first_element");
_Static_assert(offsetof(gsc_report, last_tensor) == 80, "gsc_report.last_tensor");
_Static_assert(offsetof(gsc_report, underflows_to_zero) == 88, "gsc_report.underflows_to_zero");
_Static_assert(offsetof(gsc_report, underflows_to_subnormal) == 96, "gsc_report.underflows_to_subnormal");
_Static_assert(offsetof(gsc_report, clamped) == 104, "gsc_report.clamped");
_Static_assert(offsetof(gsc_report, digest) == 112, "gsc_report.digest");
_Static_assert(offsetof(gsc_report, status_rank_plus_1) == 120, "gsc_report.status_rank_plus_1");
_Static_assert(offsetof(gsc_report, first_rank_plus_1) == 124, "gsc_report.first_rank_plus_1");
_Static_assert(offsetof(gsc_report, last_rank_plus_1) == 128, "gsc_report.last_rank_plus_1");
_Static_assert(offsetof(gsc_report, loss_rank_plus_1) == 132, "gsc_report.loss_rank_plus_1");
_Static_assert(offsetof(gsc_report, loss) == 136, "gsc_report.loss");
_Static_assert(offsetof(gsc_report, kind) == 140, "gsc_report.kind");
_Static_assert(offsetof(gsc_report, flags) == 144, "gsc_report.flags");
_Static_assert(offsetof(gsc_report, has_flag) == 148, "gsc_report.has_flag");
_Static_assert(offsetof(gsc_report, number) == 152, "gsc_report.number");
_Static_assert(offsetof(gsc_report, reserved) == 160, "gsc_report.reserved");
_Static_assert(sizeof(gsc_state) == 384, "gsc_state");
_Static_assert(offsetof(gsc_state, factor) == 0, "gsc_state.factor");
_Static_assert(offsetof(gsc_state, next) == 32, "gsc_state.next");
_Static_assert(offsetof(gsc_state, good_steps) == 64, "gsc_state.good_steps");
_Static_assert(offsetof(gsc_state, steps_since_change) == 72, "gsc_state.steps_since_change");
_Static_assert(offsetof(gsc_state, overflows_since_reset) == 80, "gsc_state.overflows_since_reset");
_Static_assert(offsetof(gsc_state, failed_backoffs) == 88, "gsc_state.failed_backoffs");
_Static_assert(offsetof(gsc_state, bad_losses_in_a_row) == 96, "gsc_state.bad_losses_in_a_row");
_Static_assert(offsetof(gsc_state, events) == 104, "gsc_state.events");
_Static_assert(offsetof(gsc_state, status) == 108, "gsc_state.status");
_Static_assert(offsetof(gsc_state, total_updates) == 112, "gsc_state.total_updates");
_Static_assert(offsetof(gsc_state, total_overflows) == 120, "gsc_state.total_overflows");
_Static_assert(offsetof(gsc_state, total_bad_losses) == 128, "gsc_state.total_bad_losses");
_Static_assert(offsetof(gsc_state, total_growths) == 136, "gsc_state.total_growths");
_Static_assert(offsetof(gsc_state, total_backoffs) == 144, "gsc_state.total_backoffs");
_Static_assert(offsetof(gsc_state, skip_f32) == 152, "gsc_state.skip_f32");
_Static_assert(offsetof(gsc_state, skip) == 156, "gsc_state.skip");
_Static_assert(offsetof(gsc_state, guard_mean) == 160, "gsc_state.guard_mean");
_Static_assert(offsetof(gsc_state, guard_variance) == 168, "gsc_state.guard_variance");
_Static_assert(offsetof(gsc_state, guard_count) == 176, "gsc_state.guard_count");
_Static_assert(offsetof(gsc_state, guard_in_a_row) == 184, "gsc_state.guard_in_a_row");
_Static_assert(offsetof(gsc_state, total_guard_skips) == 192, "gsc_state.total_guard_skips");
_Static_assert(offsetof(gsc_state, guard_multiplier) == 200, "gsc_state.guard_multiplier");
_Static_assert(offsetof(gsc_state, guard_threshold) == 208, "gsc_state.guard_threshold");
_Static_assert(offsetof(gsc_state, guard_value) == 216, "gsc_state.guard_value");
_Static_assert(offsetof(gsc_state, total_guard_clips) == 224, "gsc_state.total_guard_clips");
_Static_assert(offsetof(gsc_state, nans_in_a_row) == 232, "gsc_state.nans_in_a_row");
_Static_assert(offsetof(gsc_state, empty_in_a_row) == 240, "gsc_state.empty_in_a_row");
_Static_assert(offsetof(gsc_state, updates_at_growth) == 248, "gsc_state.updates_at_growth");
_Static_assert(offsetof(gsc_state, overflows_at_growth) == 256, "gsc_state.overflows_at_growth");
_Static_assert(offsetof(gsc_state, reserved) == 264, "gsc_state.reserved");
_Static_assert(sizeof(gsc_evidence) == 64, "gsc_evidence");
_Static_assert(offsetof(gsc_evidence, bad_parameters) == 0, "gsc_evidence.bad_parameters");
_Static_assert(offsetof(gsc_evidence, parameter_plus_1) == 8, "gsc_evidence.parameter_plus_1");
_Static_assert(offsetof(gsc_evidence, scale) == 16, "gsc_evidence.scale");
_Static_assert(offsetof(gsc_evidence, loss_dtype) == 24, "gsc_evidence.loss_dtype");
_Static_assert(offsetof(gsc_evidence, losses) == 28, "gsc_evidence.losses");
_Static_assert(offsetof(gsc_evidence, bad_loss) == 32, "gsc_evidence.bad_loss");
_Static_assert(offsetof(gsc_evidence, ranks) == 36, "gsc_evidence.ranks");
_Static_assert(offsetof(gsc_evidence, reserved) == 40, "gsc_evidence.reserved");
_Static_assert(sizeof(gsc_reason) == 640, "gsc_reason");
_Static_assert(offsetof(gsc_reason, outcome) == 0, "gsc_reason.outcome");
_Static_assert(offsetof(gsc_reason, cause) == 4, "gsc_reason.cause");
_Static_assert(offsetof(gsc_reason, value) == 8, "gsc_reason.value");
_Static_assert(offsetof(gsc_reason, threshold) == 16, "gsc_reason.threshold");
_Static_assert(offsetof(gsc_reason, multiplier) == 24, "gsc_reason.multiplier");
_Static_assert(offsetof(gsc_reason, in_a_row) == 32, "gsc_reason.in_a_row");
_Static_assert(offsetof(gsc_reason, nan_count) == 40, "gsc_reason.nan_count");
_Static_assert(offsetof(gsc_reason, inf_count) == 48, "gsc_reason.inf_count");
_Static_assert(offsetof(gsc_reason, bad_tensors) == 56, "gsc_reason.bad_tensors");
_Static_assert(offsetof(gsc_reason, tensor) == 64, "gsc_reason.tensor");
_Static_assert(offsetof(gsc_reason, tensor_before) == 72, "gsc_reason.tensor_before");
_Static_assert(offsetof(gsc_reason, rank) == 80, "gsc_reason.rank");
_Static_assert(offsetof(gsc_reason, message) == 88, "gsc_reason.message");
_Static_assert(offsetof(gsc_reason, reserved) == 600, "gsc_reason.reserved");
_Static_assert(sizeof(gsc_entry) == 256, "gsc_entry");
_Static_assert(offsetof(gsc_entry, key) == 0, "gsc_entry.key");
_Static_assert(offsetof(gsc_entry, kind) == 160, "gsc_entry.kind");
_Static_assert(offsetof(gsc_entry, flags) == 164, "gsc_entry.flags");
_Static_assert(offsetof(gsc_entry, value) == 168, "gsc_entry.value");
_Static_assert(offsetof(gsc_entry, integer) == 176, "gsc_entry.integer");
_Static_assert(offsetof(gsc_entry, text) == 184, "gsc_entry.text");
_Static_assert(offsetof(gsc_entry, reserved) == 240, "gsc_entry.reserved");
_Static_assert(sizeof(gsc_note) == 512, "gsc_note");
_Static_assert(offsetof(gsc_note, kind) == 0, "gsc_note.kind");
_Static_assert(offsetof(gsc_note, flags) == 4, "gsc_note.flags");
_Static_assert(offsetof(gsc_note, entry) == 8, "gsc_note.entry");
_Static_assert(offsetof(gsc_note, value) == 16, "gsc_note.value");
_Static_assert(offsetof(gsc_note, field) == 24, "gsc_note.field");
_Static_assert(offsetof(gsc_note, value_start) == 56, "gsc_note.value_start");
_Static_assert(offsetof(gsc_note, value_length) == 60, "gsc_note.value_length");
_Static_assert(offsetof(gsc_note, message) == 64, "gsc_note.message");
_Static_assert(offsetof(gsc_note, reserved) == 496, "gsc_note.reserved");
_Static_assert(sizeof(gsc_format_key) == 112, "gsc_format_key");
_Static_assert(offsetof(gsc_format_key, key) == 0, "gsc_format_key.key");
_Static_assert(offsetof(gsc_format_key, field) == 64, "gsc_format_key.field");
_Static_assert(offsetof(gsc_format_key, uses) == 96, "gsc_format_key.uses");
_Static_assert(offsetof(gsc_format_key, flags) == 100, "gsc_format_key.flags");
_Static_assert(offsetof(gsc_format_key, reserved) == 104, "gsc_format_key.reserved");
_Static_assert(sizeof(gsc_tensor) == 40, "gsc_tensor");
_Static_assert(offsetof(gsc_tensor, data) == 0, "gsc_tensor.data");
_Static_assert(offsetof(gsc_tensor, count) == 8, "gsc_tensor.count");
_Static_assert(offsetof(gsc_tensor, dtype) == 16, "gsc_tensor.dtype");
_Static_assert(offsetof(gsc_tensor, flags) == 20, "gsc_tensor.flags");
_Static_assert(offsetof(gsc_tensor, reserved) == 24, "gsc_tensor.reserved");
_Static_assert(sizeof(gsc_tensor_options) == 48, "gsc_tensor_options");
_Static_assert(offsetof(gsc_tensor_options, struct_size) == 0, "gsc_tensor_options.struct_size");
_Static_assert(offsetof(gsc_tensor_options, want) == 4, "gsc_tensor_options.want");
_Static_assert(offsetof(gsc_tensor_options, policy) == 8, "gsc_tensor_options.policy");
_Static_assert(offsetof(gsc_tensor_options, clamp) == 16, "gsc_tensor_options.clamp");
_Static_assert(offsetof(gsc_tensor_options, per_tensor) == 24, "gsc_tensor_options.per_tensor");
_Static_assert(offsetof(gsc_tensor_options, histogram) == 32, "gsc_tensor_options.histogram");
_Static_assert(offsetof(gsc_tensor_options, loss) == 40, "gsc_tensor_options.loss");
_Static_assert(sizeof(gsc_cuda_options) == 8, "gsc_cuda_options");
_Static_assert(offsetof(gsc_cuda_options, struct_size) == 0, "gsc_cuda_options.struct_size");
_Static_assert(offsetof(gsc_cuda_options, device) == 4, "gsc_cuda_options.device");

#define GSC_METRIC_NAMES "loss_scale", "skip", "overflow", "norm", "amax", "zero_share", "total_overflows", "total_guard_skips", "total_growths", "total_backoffs", "steps_since_change", "nan_count", "inf_count", "guard_threshold", "guard_multiplier", "bad_loss", "total_bad_losses"

/* field, value, whether it is a bit, name */
#define GSC_VALUE_NAMES \
    {"arithmetic", 0, false, "F64"}, \
    {"arithmetic", 1, false, "F64_TO_F32"}, \
    {"arithmetic", 2, false, "F32"}, \
    {"arithmetic", 3, false, "F32_FLUSH"}, \
    {"growth_rule", 0, false, "REACHED"}, \
    {"growth_rule", 1, false, "EXACT"}, \
    {"growth_rule", 2, false, "EVERY"}, \
    {"growth_rule", 3, false, "ALL_STEPS"}, \
    {"ceiling_rule", 0, false, "CLAMP"}, \
    {"ceiling_rule", 1, false, "ENFORCE"}, \
    {"ceiling_rule", 2, false, "REJECT"}, \
    {"ceiling_rule", 3, false, "STOP"}, \
    {"ceiling_rule", 4, false, "CLAMP_UNLESS_PAST"}, \
    {"floor_rule", 0, false, "CLAMP"}, \
    {"floor_rule", 1, false, "ENFORCE"}, \
    {"floor_rule", 2, false, "REJECT"}, \
    {"floor_rule", 3, false, "STOP"}, \
    {"floor_rule", 4, false, "CLAMP_UNLESS_PAST"}, \
    {"overflow_test", 0, false, "ELEMENT"}, \
    {"overflow_test", 1, false, "NORM"}, \
    {"overflow_reset", 1, true, "ON_GROWTH"}, \
    {"overflow_reset", 2, true, "ON_GOOD_STEP"}, \
    {"overflow_reset", 4, true, "ON_BACKOFF"}, \
    {"quirks", 1, true, "TOLERANCE_EXCLUSIVE"}, \
    {"quirks", 2, true, "OVERFLOW_IS_GOOD"}, \
    {"quirks", 4, true, "ALLOW_LOCKOUT"}, \
    {"bad_loss_rule", 0, false, "OVERFLOW"}, \
    {"bad_loss_rule", 1, false, "HOLD"}, \
    {"guard_sample", 0, false, "AS_IS"}, \
    {"guard_sample", 1, false, "NONE"}, \
    {"guard_sample", 2, false, "THRESHOLD"}, \
    {"guard_flags", 1, true, "CLIP"}, \
    {"guard_flags", 2, true, "INCLUSIVE"}, \
    {"guard_flags", 4, true, "STOP"}, \
    {"guard_flags", 8, true, "SKIP_IS_GOOD"}, \
    {"guard_flags", 16, true, "CLIP_PROGRESSIVE"}, \
    {"guard_flags", 32, true, "VARIANCE_AFTER_MEAN"}, \
    {"guard_flags", 64, true, "BIAS_CORRECTED"}, \
    {"guard_flags", 128, true, "CLIP_TO_MEAN"}, \
    {"events", 1, true, "GREW"}, \
    {"events", 2, true, "BACKED_OFF"}, \
    {"events", 4, true, "SKIPPED"}, \
    {"events", 8, true, "ABSORBED"}, \
    {"events", 16, true, "AT_CEILING"}, \
    {"events", 32, true, "AT_FLOOR"}, \
    {"events", 64, true, "BACKOFF_FAILED"}, \
    {"events", 128, true, "STOPPED"}, \
    {"events", 256, true, "STALE"}, \
    {"events", 512, true, "OUTLIER"}, \
    {"events", 1024, true, "CLIPPED"}, \
    {"events", 2048, true, "BAD_LOSS"}, \
    {"events", 4096, true, "EMPTY"}, \
    {"outcome", 0, false, "TAKEN"}, \
    {"outcome", 1, false, "LET_THROUGH"}, \
    {"outcome", 2, false, "CLIPPED"}, \
    {"outcome", 3, false, "SKIPPED"}, \
    {"outcome", 4, false, "STOPPED"}, \
    {"cause", 0, false, "NONE"}, \
    {"cause", 1, false, "OVERFLOW"}, \
    {"cause", 2, false, "OUTLIER"}, \
    {"cause", 3, false, "CEILING"}, \
    {"cause", 4, false, "OTHER_STATE"}, \
    {"cause", 5, false, "FAILURE"}, \
    {"cause", 6, false, "BAD_LOSS"}, \
    {"cause", 7, false, "PARAMETER"}, \
    {"cause", 8, false, "LOSS_DTYPE"}

/* name, offset, bytes, kind (i: signed, u: unsigned, f: real), whether a metric has the name */
#define GSC_POLICY_FIELDS \
    {"arithmetic", offsetof(gsc_policy, arithmetic), 4, 'u', false}, \
    {"init_scale", offsetof(gsc_policy, init_scale), 8, 'f', false}, \
    {"growth_factor", offsetof(gsc_policy, growth_factor), 8, 'f', false}, \
    {"backoff_factor", offsetof(gsc_policy, backoff_factor), 8, 'f', false}, \
    {"growth_interval", offsetof(gsc_policy, growth_interval), 8, 'u', false}, \
    {"growth_rule", offsetof(gsc_policy, growth_rule), 4, 'u', false}, \
    {"growth_extra_steps", offsetof(gsc_policy, growth_extra_steps), 4, 'u', false}, \
    {"max_scale", offsetof(gsc_policy, max_scale), 8, 'f', false}, \
    {"min_scale", offsetof(gsc_policy, min_scale), 8, 'f', false}, \
    {"ceiling_rule", offsetof(gsc_policy, ceiling_rule), 4, 'u', false}, \
    {"floor_rule", offsetof(gsc_policy, floor_rule), 4, 'u', false}, \
    {"overflow_test", offsetof(gsc_policy, overflow_test), 4, 'u', false}, \
    {"hysteresis", offsetof(gsc_policy, hysteresis), 4, 'u', false}, \
    {"overflow_reset", offsetof(gsc_policy, overflow_reset), 4, 'u', false}, \
    {"apply_delay", offsetof(gsc_policy, apply_delay), 4, 'u', false}, \
    {"overflow_tolerance", offsetof(gsc_policy, overflow_tolerance), 8, 'f', false}, \
    {"max_failed_backoffs", offsetof(gsc_policy, max_failed_backoffs), 8, 'u', false}, \
    {"quirks", offsetof(gsc_policy, quirks), 4, 'u', false}, \
    {"bad_loss_rule", offsetof(gsc_policy, bad_loss_rule), 4, 'u', false}, \
    {"guard_norm", offsetof(gsc_policy, guard_norm), 8, 'f', false}, \
    {"guard_ratio", offsetof(gsc_policy, guard_ratio), 8, 'f', false}, \
    {"guard_sigmas", offsetof(gsc_policy, guard_sigmas), 8, 'f', false}, \
    {"guard_decay", offsetof(gsc_policy, guard_decay), 8, 'f', false}, \
    {"guard_init_mean", offsetof(gsc_policy, guard_init_mean), 8, 'f', false}, \
    {"guard_warmup", offsetof(gsc_policy, guard_warmup), 8, 'u', false}, \
    {"guard_max_in_a_row", offsetof(gsc_policy, guard_max_in_a_row), 8, 'u', false}, \
    {"guard_sample", offsetof(gsc_policy, guard_sample), 4, 'u', false}, \
    {"guard_flags", offsetof(gsc_policy, guard_flags), 4, 'u', false}
#define GSC_STATE_FIELDS \
    {"good_steps", offsetof(gsc_state, good_steps), 8, 'i', false}, \
    {"steps_since_change", offsetof(gsc_state, steps_since_change), 8, 'i', true}, \
    {"overflows_since_reset", offsetof(gsc_state, overflows_since_reset), 8, 'i', false}, \
    {"failed_backoffs", offsetof(gsc_state, failed_backoffs), 8, 'i', false}, \
    {"bad_losses_in_a_row", offsetof(gsc_state, bad_losses_in_a_row), 8, 'i', false}, \
    {"events", offsetof(gsc_state, events), 4, 'u', false}, \
    {"status", offsetof(gsc_state, status), 4, 'i', false}, \
    {"total_updates", offsetof(gsc_state, total_updates), 8, 'i', false}, \
    {"total_overflows", offsetof(gsc_state, total_overflows), 8, 'i', true}, \
    {"total_bad_losses", offsetof(gsc_state, total_bad_losses), 8, 'i', true}, \
    {"total_growths", offsetof(gsc_state, total_growths), 8, 'i', true}, \
    {"total_backoffs", offsetof(gsc_state, total_backoffs), 8, 'i', true}, \
    {"skip_f32", offsetof(gsc_state, skip_f32), 4, 'f', false}, \
    {"skip", offsetof(gsc_state, skip), 4, 'i', true}, \
    {"guard_mean", offsetof(gsc_state, guard_mean), 8, 'f', false}, \
    {"guard_variance", offsetof(gsc_state, guard_variance), 8, 'f', false}, \
    {"guard_count", offsetof(gsc_state, guard_count), 8, 'i', false}, \
    {"guard_in_a_row", offsetof(gsc_state, guard_in_a_row), 8, 'i', false}, \
    {"total_guard_skips", offsetof(gsc_state, total_guard_skips), 8, 'i', true}, \
    {"guard_multiplier", offsetof(gsc_state, guard_multiplier), 8, 'f', true}, \
    {"guard_threshold", offsetof(gsc_state, guard_threshold), 8, 'f', true}, \
    {"guard_value", offsetof(gsc_state, guard_value), 8, 'f', false}, \
    {"total_guard_clips", offsetof(gsc_state, total_guard_clips), 8, 'i', false}, \
    {"nans_in_a_row", offsetof(gsc_state, nans_in_a_row), 8, 'i', false}, \
    {"empty_in_a_row", offsetof(gsc_state, empty_in_a_row), 8, 'i', false}, \
    {"updates_at_growth", offsetof(gsc_state, updates_at_growth), 8, 'i', false}, \
    {"overflows_at_growth", offsetof(gsc_state, overflows_at_growth), 8, 'i', false}
#define GSC_REPORT_FIELDS \
    {"found_inf", offsetof(gsc_report, found_inf), 4, 'f', false}, \
    {"overflow", offsetof(gsc_report, overflow), 4, 'i', true}, \
    {"status", offsetof(gsc_report, status), 4, 'i', false}, \
    {"measured", offsetof(gsc_report, measured), 4, 'u', false}, \
    {"generation", offsetof(gsc_report, generation), 8, 'u', false}, \
    {"amax", offsetof(gsc_report, amax), 8, 'f', true}, \
    {"sum_squares", offsetof(gsc_report, sum_squares), 8, 'f', false}, \
    {"elements", offsetof(gsc_report, elements), 8, 'i', false}, \
    {"nan_count", offsetof(gsc_report, nan_count), 8, 'i', true}, \
    {"inf_count", offsetof(gsc_report, inf_count), 8, 'i', true}, \
    {"first_tensor", offsetof(gsc_report, first_tensor), 8, 'i', false}, \
    {"first_element", offsetof(gsc_report, first_element), 8, 'i', false}, \
    {"last_tensor", offsetof(gsc_report, last_tensor), 8, 'i', false}, \
    {"underflows_to_zero", offsetof(gsc_report, underflows_to_zero), 8, 'i', false}, \
    {"underflows_to_subnormal", offsetof(gsc_report, underflows_to_subnormal), 8, 'i', false}, \
    {"clamped", offsetof(gsc_report, clamped), 8, 'i', false}, \
    {"digest", offsetof(gsc_report, digest), 8, 'u', false}, \
    {"status_rank_plus_1", offsetof(gsc_report, status_rank_plus_1), 4, 'u', false}, \
    {"first_rank_plus_1", offsetof(gsc_report, first_rank_plus_1), 4, 'u', false}, \
    {"last_rank_plus_1", offsetof(gsc_report, last_rank_plus_1), 4, 'u', false}, \
    {"loss_rank_plus_1", offsetof(gsc_report, loss_rank_plus_1), 4, 'u', false}, \
    {"loss", offsetof(gsc_report, loss), 4, 'u', false}, \
    {"kind", offsetof(gsc_report, kind), 4, 'u', false}, \
    {"flags", offsetof(gsc_report, flags), 4, 'u', false}, \
    {"has_flag", offsetof(gsc_report, has_flag), 4, 'u', false}, \
    {"number", offsetof(gsc_report, number), 8, 'f', false}

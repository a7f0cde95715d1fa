// SPDX-License-Identifier: MIT
// Generated from include/gradscaler.toml by bindings/rust/generate.py. Do not edit.
//! The constants as types; `macros.rs` says what becomes of them.

use crate::sys;

choice! {
    /// Statuses that calls return.
    Status: sys::gsc_status(i32) {
        /// Done.
        OK = sys::GSC_OK;
        /// A required pointer is NULL.
        NULL = sys::GSC_ERROR_NULL;
        /// `struct_size` is not set, or one version lacks a field that the other needs.
        STRUCT_SIZE = sys::GSC_ERROR_STRUCT_SIZE;
        /// No preset has this name.
        PRESET = sys::GSC_ERROR_PRESET;
        /// A field of the policy is out of range.
        POLICY = sys::GSC_ERROR_POLICY;
        /// No update leads to this state.
        STATE = sys::GSC_ERROR_STATE;
        /// The report has an error, or lacks a measurement that the policy needs.
        REPORT = sys::GSC_ERROR_REPORT;
        /// A factor is zero, infinite or not a number.
        FACTOR = sys::GSC_ERROR_FACTOR;
        /// A number is out of range.
        VALUE = sys::GSC_ERROR_VALUE;
        /// Unknown dtype.
        DTYPE = sys::GSC_ERROR_DTYPE;
        /// Counts differ, or are too large.
        COUNT = sys::GSC_ERROR_COUNT;
        /// An output overlaps another entry, or overlaps its own input without being in place.
        OVERLAP = sys::GSC_ERROR_OVERLAP;
        /// The buffer is too small.
        CAPACITY = sys::GSC_ERROR_CAPACITY;
        /// The bytes are truncated, damaged or not a saved state.
        CORRUPT = sys::GSC_ERROR_CORRUPT;
        /// What was saved needs a newer version of the library, or is of a candidate before 0.10.
        VERSION = sys::GSC_ERROR_VERSION;
        /// This build or machine cannot do it.
        UNAVAILABLE = sys::GSC_ERROR_UNAVAILABLE;
        /// Out of memory or threads.
        MEMORY = sys::GSC_ERROR_MEMORY;
        /// The driver failed, or another process made the context.
        DEVICE = sys::GSC_ERROR_DEVICE;
        /// The entries match no format, or several, or no format has this name.
        FORMAT = sys::GSC_ERROR_FORMAT;
        /// The reports are from ranks with different policies or states.
        MISMATCH = sys::GSC_ERROR_MISMATCH;
    }
}

choice! {
    /// Features that a build of the library can lack.
    Feature: sys::gsc_feature(u32) {
        /// Contexts on CUDA devices, see gradscaler_cuda.h.
        CUDA = sys::GSC_FEATURE_CUDA;
    }
}

choice! {
    /// `growth_rule`: when the scale grows. The count is `good_steps` (ALL_STEPS:
    /// `steps_since_change`) minus growth_extra_steps.
    Growth: sys::gsc_growth(u32) {
        /// At the interval or past it.
        REACHED = sys::GSC_GROWTH_REACHED;
        /// At the interval only; if the count is past it, the scale does not grow until an overflow
        /// resets the count.
        EXACT = sys::GSC_GROWTH_EXACT;
        /// At each multiple of the interval; a growth does not restart the count.
        EVERY = sys::GSC_GROWTH_EVERY;
        /// As REACHED, but the count is `steps_since_change`, which includes overflows.
        ALL_STEPS = sys::GSC_GROWTH_ALL_STEPS;
    }
}

choice! {
    /// `ceiling_rule`, floor_rule: what happens to a change that would reach or pass the limit.
    LimitRule: sys::gsc_limit_rule(u32) {
        /// The scale becomes the limit.
        CLAMP = sys::GSC_LIMIT_CLAMP;
        /// As CLAMP, and every update moves a scale past the limit to the limit.
        ENFORCE = sys::GSC_LIMIT_ENFORCE;
        /// The change is dropped.
        REJECT = sys::GSC_LIMIT_REJECT;
        /// The change is dropped, with [`Event::STOPPED`].
        STOP = sys::GSC_LIMIT_STOP;
        /// As CLAMP, but a scale that is already past the limit stays.
        CLAMP_UNLESS_PAST = sys::GSC_LIMIT_CLAMP_UNLESS_PAST;
    }
}

flags! {
    /// `overflow_reset`, bits: events that set the count of overflows to 0.
    OverflowReset: sys::gsc_overflow_reset(u32) {
        /// A growth.
        ON_GROWTH = sys::GSC_RESET_ON_GROWTH;
        /// A good step.
        ON_GOOD_STEP = sys::GSC_RESET_ON_GOOD_STEP;
        /// A backoff.
        ON_BACKOFF = sys::GSC_RESET_ON_BACKOFF;
    }
}

choice! {
    /// Arithmetic: the number format in which a new scale is computed.
    Arithmetic: sys::gsc_arithmetic(u32) {
        /// Double.
        F64 = sys::GSC_ARITHMETIC_F64;
        /// Double product, rounded once to float.
        F64_TO_F32 = sys::GSC_ARITHMETIC_F64_TO_F32;
        /// Factors rounded to float first, then a float operation.
        F32 = sys::GSC_ARITHMETIC_F32;
        /// As F32; a result below 2^-126 becomes 0.
        F32_FLUSH = sys::GSC_ARITHMETIC_F32_FLUSH;
    }
}

choice! {
    /// `overflow_test`: which reports are an overflow.
    OverflowTest: sys::gsc_overflow_test(u32) {
        /// An element that is not finite.
        ELEMENT = sys::GSC_TEST_ELEMENT;
        /// An element that is not finite, or a sum of squares above the largest float.
        NORM = sys::GSC_TEST_NORM;
    }
}

flags! {
    /// Quirks, bits: behaviour of some frameworks that no new policy should have.
    Quirk: sys::gsc_quirk(u32) {
        /// A share equal to overflow_tolerance is not tolerated.
        TOLERANCE_EXCLUSIVE = sys::GSC_QUIRK_TOLERANCE_EXCLUSIVE;
        /// An overflow also counts as a good step.
        OVERFLOW_IS_GOOD = sys::GSC_QUIRK_OVERFLOW_IS_GOOD;
        /// The guard can skip all steps forever: gsc_policy_check does not require
        /// guard_max_in_a_row.
        ALLOW_LOCKOUT = sys::GSC_QUIRK_ALLOW_LOCKOUT;
    }
}

choice! {
    /// `bad_loss_rule`: what a loss means that was Inf or NaN before it was scaled, see
    /// options.loss. No scale cures such a loss.
    BadLoss: sys::gsc_bad_loss(u32) {
        /// The gradients alone decide: if the loss made them Inf or NaN, they are an overflow as
        /// any other.
        OVERFLOW = sys::GSC_BAD_LOSS_OVERFLOW;
        /// The step is skipped, also if the gradients are finite; the scale, the counts of the
        /// scale and the guard stay as they are.
        HOLD = sys::GSC_BAD_LOSS_HOLD;
    }
}

choice! {
    /// `guard_sample`: the sample that an outlier adds to the mean and the variance.
    GuardSample: sys::gsc_guard_sample(u32) {
        /// Its norm.
        AS_IS = sys::GSC_SAMPLE_AS_IS;
        /// None.
        NONE = sys::GSC_SAMPLE_NONE;
        /// The threshold, or the norm that it was clipped to.
        THRESHOLD = sys::GSC_SAMPLE_THRESHOLD;
    }
}

flags! {
    /// `guard_flags`, bits: what happens to an outlier, and how samples count.
    Guard: sys::gsc_guard(u32) {
        /// Multiply the gradients by threshold / norm and take the step; without it, or if the
        /// threshold is not above 0, skip the step.
        CLIP = sys::GSC_GUARD_CLIP;
        /// A norm equal to the threshold is also an outlier.
        INCLUSIVE = sys::GSC_GUARD_INCLUSIVE;
        /// At guard_max_in_a_row: [`Event::STOPPED`]; without it, this outlier and later ones in
        /// the row are let through, and enter the mean as they are.
        STOP = sys::GSC_GUARD_STOP;
        /// A step skipped as an outlier counts as a good step of the scale; without it, the scale
        /// and its counts stay.
        SKIP_IS_GOOD = sys::GSC_GUARD_SKIP_IS_GOOD;
        /// With CLIP: clip to mean + (threshold - mean)^2 / (norm - mean): the larger the norm, the
        /// lower.
        CLIP_PROGRESSIVE = sys::GSC_GUARD_CLIP_PROGRESSIVE;
        /// After the warm-up, the variance takes (sample - mean)^2 with the mean that includes the
        /// sample.
        VARIANCE_AFTER_MEAN = sys::GSC_GUARD_VARIANCE_AFTER_MEAN;
        /// Sample n has the weight (1 - guard_decay) / (1 - guard_decay^n), from the first sample
        /// on.
        BIAS_CORRECTED = sys::GSC_GUARD_BIAS_CORRECTED;
        /// With CLIP: clip to the mean.
        CLIP_TO_MEAN = sys::GSC_GUARD_CLIP_TO_MEAN;
    }
}

flags! {
    /// Traits of a policy, for callers that prepare for them.
    Trait: sys::gsc_trait(u32) {
        /// The scale can change from the first one on.
        MOVES = sys::GSC_TRAIT_MOVES;
        /// The policy judges the norm of finite gradients.
        GUARDS = sys::GSC_TRAIT_GUARDS;
        /// Updates need sum_squares, or a number.
        NEEDS_NORM = sys::GSC_TRAIT_NEEDS_NORM;
        /// A bad loss holds the scale: give calls on tensors the loss.
        HOLDS = sys::GSC_TRAIT_HOLDS;
    }
}

flags! {
    /// Bits of exec.flags.
    ///
    /// A call on host memory with [`ExecFlag::WRITE_FAILURES`] that refuses a value of a factor, a
    /// report or a state also writes the result that a device writes, and still returns the error.
    /// If this result is sent to other ranks, no rank steps. After another error, send a report of
    /// zeros with `status` and `overflow`.
    /// - A factor becomes all zeros, which every call refuses.
    /// - A report becomes all zeros except status, overflow and found_inf, and so does each report
    ///   of options.per_tensor. If digests differ, status_rank_plus_1 is of the first report that
    ///   differs. gsc_report_set_rank instead copies the report, then sets these three fields and
    ///   the ranks, and sets digest to 0.
    /// - A state becomes a copy of `state` or `from` with the status that the call returns, SKIPPED
    ///   as its only event, skip and skip_f32 1, and guard_multiplier 0.
    /// - Tensors and histograms are not written.
    ///
    /// This happens with [`Status::FACTOR`], [`Status::REPORT`], [`Status::STATE`],
    /// [`Status::VERSION`] and [`Status::MISMATCH`], and with [`Status::VALUE`] if the product of
    /// gsc_factor_multiply is no factor. A call that refuses another argument writes only *err. A
    /// call on a device refuses the flag.
    ExecFlag: sys::gsc_exec_flag(u32) {
        /// Also write an error to the result, as a device does.
        WRITE_FAILURES = sys::GSC_EXEC_WRITE_FAILURES;
    }
}

flags! {
    /// Measurements that a report can have. Overflow, its position and the counts are always there.
    Want: sys::gsc_want(u32) {
        /// `sum_squares`.
        NORM = sys::GSC_WANT_NORM;
        /// Amax.
        AMAX = sys::GSC_WANT_AMAX;
        /// `underflows_to_zero`, underflows_to_subnormal.
        UNDERFLOW = sys::GSC_WANT_UNDERFLOW;
    }
}

choice! {
    /// Report.kind: the source of a report.
    ReportKind: sys::gsc_report_kind(u32) {
        /// None: no call filled the report in; refused unless it has an overflow.
        NONE = sys::GSC_REPORT_NONE;
        /// The tensors of a call.
        TENSORS = sys::GSC_REPORT_TENSORS;
        /// A number.
        NUMBER = sys::GSC_REPORT_NUMBER;
        /// Other reports.
        MERGED = sys::GSC_REPORT_MERGED;
        /// A flag: only whether there was an overflow.
        FLAG = sys::GSC_REPORT_FLAG;
    }
}

choice! {
    /// Report.loss: the loss before it was scaled, see options.loss.
    Loss: sys::gsc_loss(u32) {
        /// No loss was given.
        UNKNOWN = sys::GSC_LOSS_UNKNOWN;
        /// All its elements are finite.
        FINITE = sys::GSC_LOSS_FINITE;
        /// An element is Inf or NaN: no scale causes or cures that.
        NOT_FINITE = sys::GSC_LOSS_NOT_FINITE;
    }
}

choice! {
    /// The relation between the gradients of merged reports.
    MergeKind: sys::gsc_merge_kind(u32) {
        /// Different gradients: shards, layers, optimizers; their sums of squares are added.
        SHARDS = sys::GSC_MERGE_SHARDS;
        /// Gradients to add: micro-batches, ranks before an all-reduce; the norm of their sum is
        /// unknown.
        ADDENDS = sys::GSC_MERGE_ADDENDS;
    }
}

flags! {
    /// Bits of state.events: what the last update did.
    Event: sys::gsc_event(u32) {
        /// The scale became larger.
        GREW = sys::GSC_EVENT_GREW;
        /// The scale became smaller.
        BACKED_OFF = sys::GSC_EVENT_BACKED_OFF;
        /// An overflow, a held bad loss, a skipped outlier, or a failure: leave the parameters
        /// alone.
        SKIPPED = sys::GSC_EVENT_SKIPPED;
        /// Skipped, but hysteresis or tolerance kept the scale.
        ABSORBED = sys::GSC_EVENT_ABSORBED;
        /// `max_scale` limited a growth.
        AT_CEILING = sys::GSC_EVENT_AT_CEILING;
        /// `min_scale` limited a backoff.
        AT_FLOOR = sys::GSC_EVENT_AT_FLOOR;
        /// The overflow could not lower the scale.
        BACKOFF_FAILED = sys::GSC_EVENT_BACKOFF_FAILED;
        /// The policy ends the training: by [`Guard::STOP`], max_failed_backoffs or
        /// [`LimitRule::STOP`].
        STOPPED = sys::GSC_EVENT_STOPPED;
        /// The report was made with another factor than the one in force: it is late, or was used
        /// twice.
        STALE = sys::GSC_EVENT_STALE;
        /// The guard found an outlier, see guard_threshold; without SKIPPED and CLIPPED, it was let
        /// through.
        OUTLIER = sys::GSC_EVENT_OUTLIER;
        /// Still to do: multiply the gradients by guard_multiplier, or use gsc_factor_clip_outlier.
        CLIPPED = sys::GSC_EVENT_CLIPPED;
        /// Only with [`BadLoss::HOLD`]: the loss was not finite before it was scaled, so the step
        /// is skipped and the scale is kept.
        BAD_LOSS = sys::GSC_EVENT_BAD_LOSS;
        /// The report has no elements: no tensor had a gradient; it counts as a good step, unless a
        /// bad loss is held.
        EMPTY = sys::GSC_EVENT_EMPTY;
    }
}

choice! {
    /// Reason.outcome: the decision of the last update about its step.
    Outcome: sys::gsc_outcome(u32) {
        /// Take the step; the gradients stay as they are.
        TAKEN = sys::GSC_OUTCOME_TAKEN;
        /// Take the step, although it is an outlier.
        LET_THROUGH = sys::GSC_OUTCOME_LET_THROUGH;
        /// Take the step with gradients times `multiplier`.
        CLIPPED = sys::GSC_OUTCOME_CLIPPED;
        /// Leave the parameters alone.
        SKIPPED = sys::GSC_OUTCOME_SKIPPED;
        /// End the training.
        STOPPED = sys::GSC_OUTCOME_STOPPED;
    }
}

choice! {
    /// Reason.cause: the reason for the decision.
    Cause: sys::gsc_cause(u32) {
        /// Nothing was wrong.
        NONE = sys::GSC_CAUSE_NONE;
        /// Inf or NaN that the backward pass made.
        OVERFLOW = sys::GSC_CAUSE_OVERFLOW;
        /// `value` is above `threshold`, or equal to it with INCLUSIVE.
        OUTLIER = sys::GSC_CAUSE_OUTLIER;
        /// A growth would reach max_scale, and ceiling_rule stops.
        CEILING = sys::GSC_CAUSE_CEILING;
        /// A combined state decided this.
        OTHER_STATE = sys::GSC_CAUSE_OTHER_STATE;
        /// The update failed; see state.status.
        FAILURE = sys::GSC_CAUSE_FAILURE;
        /// A loss was not finite before it was scaled.
        BAD_LOSS = sys::GSC_CAUSE_BAD_LOSS;
        /// A parameter was not finite.
        PARAMETER = sys::GSC_CAUSE_PARAMETER;
        /// The scale is Inf in the dtype of the loss.
        LOSS_DTYPE = sys::GSC_CAUSE_LOSS_DTYPE;
    }
}

choice! {
    /// Entry.kind: the type of the value. All numbers are read alike; gsc_state_export writes the
    /// types that a loader expects.
    EntryKind: sys::gsc_entry_kind(u32) {
        /// No entry: it is ignored.
        UNUSED = sys::GSC_ENTRY_UNUSED;
        /// `value`, any number.
        NUMBER = sys::GSC_ENTRY_NUMBER;
        /// `text`.
        TEXT = sys::GSC_ENTRY_TEXT;
        /// Null, None, nil: switched off.
        NULL = sys::GSC_ENTRY_NULL;
        /// `integer`, and in `value` the same number, rounded.
        INTEGER = sys::GSC_ENTRY_INTEGER;
        /// 0 or 1, in `integer` and in `value`.
        BOOLEAN = sys::GSC_ENTRY_BOOLEAN;
    }
}

choice! {
    /// Note.kind: the subject of a note.
    NoteKind: sys::gsc_note_kind(u32) {
        /// The entries were recognised: `field` is the name of the format.
        FORMAT = sys::GSC_NOTE_FORMAT;
        /// `field` is not among the entries: `value` is in force, the policy's or the start of a
        /// count.
        MISSING = sys::GSC_NOTE_MISSING;
        /// The key of `entry` has no meaning in this format.
        IGNORED = sys::GSC_NOTE_IGNORED;
        /// `field` became `value`, the meaning of `entry` in this policy.
        CHANGED = sys::GSC_NOTE_CHANGED;
        /// The scale is 0 or infinity: no call multiplies by it; also from gsc_state_diagnose, with
        /// the scale as `value`.
        UNUSABLE = sys::GSC_NOTE_UNUSABLE;
        /// The format has no key for `field`; `value` is lost.
        LOST = sys::GSC_NOTE_LOST;
        /// Diagnosis: a call failed, here or on another rank, and no rank steps; `value` is the
        /// status.
        FAILURE = sys::GSC_NOTE_FAILURE;
        /// Diagnosis: Inf or NaN that no scale cures; `value` is their number, 0 if unknown;
        /// `entry` is the last tensor with one, the nearest to the cause; `field` is nans_in_a_row
        /// if NaN alone came several times in a row, which is found at every scale, else
        /// failed_backoffs.
        NOT_FINITE = sys::GSC_NOTE_NOT_FINITE;
        /// Diagnosis: overflows cannot lower the scale, `value`; `entry` is the last tensor with
        /// Inf or NaN, the nearest to the cause.
        BACKOFF_FAILED = sys::GSC_NOTE_BACKOFF_FAILED;
        /// Diagnosis: too many steps overflowed since the last growth, or since the first good step
        /// if there was none; `value` is their share, 0 to 1. If `field` is growth_interval,
        /// growths caused them, and the share is of all steps.
        OVERFLOWS_OFTEN = sys::GSC_NOTE_OVERFLOWS_OFTEN;
        /// Diagnosis: the guard skipped more than half of the steps, or the last ones in a row;
        /// `value` is the number since the start.
        GUARD_SKIPS = sys::GSC_NOTE_GUARD_SKIPS;
        /// Diagnosis: the guard judges none of the steps that are left, because its warm-up is
        /// longer; `value` is its samples so far.
        GUARD_IDLE = sys::GSC_NOTE_GUARD_IDLE;
        /// Diagnosis: gradients became zero; `value` is their share, 0 to 1; `entry` is the tensor
        /// with the largest share.
        UNDERFLOWS = sys::GSC_NOTE_UNDERFLOWS;
        /// Diagnosis: `value` steps are planned, fewer than a growth needs, and the scale is low;
        /// if `field` is good_steps, this count is past the interval of [`Growth::EXACT`].
        NEVER_GROWS = sys::GSC_NOTE_NEVER_GROWS;
        /// Diagnosis: the planned steps end before the scale reaches 2^15, or max_scale if that is
        /// lower; `value` is the scale at the end if no step overflows.
        CEILING_UNREACHABLE = sys::GSC_NOTE_CEILING_UNREACHABLE;
        /// `value`, the scale, is above max_scale or below min_scale: `field` is that limit; from
        /// gsc_state_import, and in a diagnosis.
        OUTSIDE_LIMITS = sys::GSC_NOTE_OUTSIDE_LIMITS;
        /// Diagnosis: losses were not finite before they were scaled, the last one or too many;
        /// `value` is their share of the steps, 0 to 1.
        BAD_LOSSES = sys::GSC_NOTE_BAD_LOSSES;
        /// Diagnosis: every step so far overflowed, because init_scale, `value`, is too high.
        START_TOO_HIGH = sys::GSC_NOTE_START_TOO_HIGH;
        /// Diagnosis: in the last `value` steps no tensor had a gradient.
        NO_GRADIENTS = sys::GSC_NOTE_NO_GRADIENTS;
        /// Diagnosis: in the last step `value` tensors had only gradients of 0, and `entry` is the
        /// first of them; -1: all gradients were 0. Reports with the norm or amax tell.
        ZEROS = sys::GSC_NOTE_ZEROS;
        /// Diagnosis: the guard clipped the last steps in a row, and its threshold stays below the
        /// norms; `value` is the number since the start.
        GUARD_CLIPS = sys::GSC_NOTE_GUARD_CLIPS;
    }
}

flags! {
    /// `format_key`.uses: where a key occurs.
    KeyUse: sys::gsc_key_use(u32) {
        /// Checkpoints: gsc_state_import reads it.
        SAVED = sys::GSC_KEY_SAVED;
        /// Settings: gsc_policy_import reads it.
        SETTING = sys::GSC_KEY_SETTING;
        /// The key can end with another number instead of 0, or without _0.
        NUMBERED = sys::GSC_KEY_NUMBERED;
    }
}

choice! {
    /// Metrics of gsc_state_metrics, in this order; the keys are these names in lower case. Later
    /// versions add some at the end.
    Metric: sys::gsc_metric(u32) {
        /// The scale in force, state.factor.scale.
        LOSS_SCALE = sys::GSC_METRIC_LOSS_SCALE;
        /// 1 if the last update skipped its step, else 0.
        SKIP = sys::GSC_METRIC_SKIP;
        /// 1 if the last update skipped its step because of an overflow, else 0.
        OVERFLOW = sys::GSC_METRIC_OVERFLOW;
        /// Norm of all gradients after unscaling, or the number that the policy judged; NULL if it
        /// is not known or some are not finite.
        NORM = sys::GSC_METRIC_NORM;
        /// Largest magnitude after unscaling, if the report has amax; NULL if some are not finite.
        AMAX = sys::GSC_METRIC_AMAX;
        /// Share of the gradients that became zero by unscaling, 0 to 1; NULL unless the report
        /// measured underflows.
        ZERO_SHARE = sys::GSC_METRIC_ZERO_SHARE;
        /// Overflows since the start.
        TOTAL_OVERFLOWS = sys::GSC_METRIC_TOTAL_OVERFLOWS;
        /// Steps since the start that were skipped as outliers.
        TOTAL_GUARD_SKIPS = sys::GSC_METRIC_TOTAL_GUARD_SKIPS;
        /// Growths since the start.
        TOTAL_GROWTHS = sys::GSC_METRIC_TOTAL_GROWTHS;
        /// Backoffs since the start.
        TOTAL_BACKOFFS = sys::GSC_METRIC_TOTAL_BACKOFFS;
        /// Steps since the scale changed.
        STEPS_SINCE_CHANGE = sys::GSC_METRIC_STEPS_SINCE_CHANGE;
        /// Elements that are NaN; NULL unless report.kind is TENSORS.
        NAN_COUNT = sys::GSC_METRIC_NAN_COUNT;
        /// Elements that are Inf; NULL unless report.kind is TENSORS.
        INF_COUNT = sys::GSC_METRIC_INF_COUNT;
        /// Threshold that the guard compared the norm with; NULL if it compared none.
        GUARD_THRESHOLD = sys::GSC_METRIC_GUARD_THRESHOLD;
        /// State.guard_multiplier: 1, less if clipped, 0 if skipped.
        GUARD_MULTIPLIER = sys::GSC_METRIC_GUARD_MULTIPLIER;
        /// 1 if the loss was not finite before it was scaled, else 0; NULL if the loss is not
        /// known.
        BAD_LOSS = sys::GSC_METRIC_BAD_LOSS;
        /// Bad losses since the start.
        TOTAL_BAD_LOSSES = sys::GSC_METRIC_TOTAL_BAD_LOSSES;
    }
}

choice! {
    /// Dtype of a tensor.
    Dtype: sys::gsc_dtype(u32) {
        /// IEEE binary32.
        F32 = sys::GSC_F32;
        /// IEEE binary64.
        F64 = sys::GSC_F64;
        /// IEEE binary16.
        F16 = sys::GSC_F16;
        /// Bfloat16: the upper half of a binary32.
        BF16 = sys::GSC_BF16;
        /// OCP FP8 without Inf; up to 448.
        F8_E4M3FN = sys::GSC_F8_E4M3FN;
        /// OCP FP8: the upper half of a binary16.
        F8_E5M2 = sys::GSC_F8_E5M2;
        /// Cerebras' 16 bits: 6 of exponent, 9 of mantissa, bias 42.
        CB16 = sys::GSC_CB16;
        /// Two binary32: real, imaginary.
        COMPLEX64 = sys::GSC_COMPLEX64;
        /// Two binary64.
        COMPLEX128 = sys::GSC_COMPLEX128;
    }
}

choice! {
    /// Kinds of memory of a context. On the CPU both are host memory.
    MemoryKind: sys::gsc_memory_kind(u32) {
        /// Memory of the device.
        DEVICE = sys::GSC_MEMORY_DEVICE;
        /// Host memory that the device can also read and write.
        HOST = sys::GSC_MEMORY_HOST;
    }
}

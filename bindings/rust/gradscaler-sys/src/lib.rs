// SPDX-License-Identifier: MIT
// Generated from include/gradscaler.toml by bindings/rust/generate.py. Do not edit.
//! gradscaler: loss scaling for mixed-precision training.
//!
//! A training step in fp16 or bf16 multiplies its loss by a scale so that small gradients survive,
//! divides the gradients by the scale before the optimizer sees them, and skips the step and lowers
//! the scale when a gradient overflowed.
//!
//! ```c
//! gsc_policy policy = GSC_POLICY_INIT;
//! gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
//! gsc_state state;
//! gsc_report report;
//! gsc_error err;
//! if (gsc_policy_preset("recommended", &policy, &err) ||
//!     gsc_state_init(NULL, &policy, &state, &err))
//!     ... err.message ...
//! options.policy = &policy;
//! options.loss = &loss; // a gsc_tensor
//! while (!(state.events & GSC_EVENT_STOPPED)) {
//!     ... loss, and gradients of loss * state.factor.scale ...
//!     if (gsc_unscale(NULL, &state.factor, gradients, f32_gradients, n, &options, &report,
//!                     &err) ||
//!         gsc_state_update(NULL, &policy, &state, &report, &state, &err))
//!         ... err.message ...
//!     if (!state.skip) ... optimizer step ...
//! }
//! ```
//!
//! Rules for every function:
//! - The caller owns all structs. Only a gsc_context keeps data of a caller between calls.
//! - A function that returns a gsc_status returns GSC_OK (0) or a negative GSC_ERROR_*, and writes
//!   the same status to err->status. After an error, only *err was written, unless the text or
//!   exec.flags say otherwise. After a success, the rest of *err is unchanged. `err` is the last
//!   argument and can be NULL.
//! - A pointer can be NULL only if the text says so. Tensor data can have any alignment.
//! - Any thread can call any function at any time, as long as no two calls write the same memory
//!   and no call reads memory that another call writes. Outputs of one call overlap nothing else
//!   that it reads or writes, unless the text says so.
//! - Strings are UTF-8. Messages show other bytes as "?" and line breaks as spaces.
//! - No function prints. Only functions that create a context or memory, gsc_exec_compare,
//!   gsc_cuda_start, and the first call on a context after a fork allocate, and in other calls on a
//!   device the CUDA driver can. Calls on tensors need up to 120 KiB of stack in this version; 256
//!   KiB will do for every call in all of 1.x.
//! - Keep the memory that a call was given where it is until the call has returned, on a device
//!   until the stream has run the call: a host with a garbage collector pins it.
//! - Results have the same bits on every machine, instruction set and device, with any number of
//!   threads, and in every version of a major version. They are the bits that a floating-point unit
//!   gives if it rounds to nearest and does not flush to zero. In other modes bits differ, also
//!   between machines, and flushed numbers are zeros; nothing worse happens. No function changes
//!   settings of the floating-point unit, but calls raise its status flags: a program that traps
//!   floating-point exceptions masks the traps during a call.
//! - The library has these effects on a process. On ELF systems the shared library is never
//!   unloaded. Its threads block all signals except faults. After a fork, the next call on a
//!   context makes the context's threads again, and CUDA cannot be used if the parent process used
//!   it. The first call on tensors or of gsc_info_get reads the environment variable GSC_CPU; later
//!   calls do not.
//! - In structs that you make, set reserved words to 0, and `flags` to 0 or bits of this header:
//!   other values are refused, with the status of other wrong values of the struct. Copy and send
//!   whole structs, because a later version can keep data in reserved words.
//! - A struct that begins with struct_size can get more fields at its end; other structs keep their
//!   size within a major version. If a program was built with an older header, the fields that it
//!   lacks count as 0, and a result that needs one of them is refused with GSC_ERROR_STRUCT_SIZE;
//!   only gsc_info is cut instead. If a program was built with a newer header, the fields that the
//!   library lacks must be 0, and outputs set them to 0. A struct_size is a multiple of 8 from 8 to
//!   4,096.
//! - Later versions can add values to every group of constants, presets and formats, and accept
//!   what an earlier version refused. Treat every status except GSC_OK as a failure, and ignore an
//!   unknown bit that the library wrote. If a kind, an outcome or a cause is unknown, state.skip
//!   and GSC_EVENT_STOPPED still say what to do. If several arguments are wrong, the error is about
//!   any of them. From 1.0 on, a preset keeps its rules within a major version, and a format that
//!   is named still reads all that it read.
//! - `exec` says where the memory is and what runs the call. NULL: host memory and the calling
//!   thread. A function without `exec` takes host memory.
#![no_std]
#![allow(non_camel_case_types, non_snake_case)]

use core::ffi::c_void;

/// C's `char`; core has it only since Rust 1.64.
#[cfg(all(
    any(
        target_arch = "aarch64",
        target_arch = "arm",
        target_arch = "powerpc",
        target_arch = "powerpc64",
        target_arch = "riscv32",
        target_arch = "riscv64",
        target_arch = "s390x"
    ),
    not(any(windows, target_vendor = "apple"))
))]
pub type c_char = u8;
/// C's `char`; core has it only since Rust 1.64.
#[cfg(not(all(
    any(
        target_arch = "aarch64",
        target_arch = "arm",
        target_arch = "powerpc",
        target_arch = "powerpc64",
        target_arch = "riscv32",
        target_arch = "riscv64",
        target_arch = "s390x"
    ),
    not(any(windows, target_vendor = "apple"))
)))]
pub type c_char = i8;

/// Compares a struct with the layout that the manifest states, and makes it of zeros: what every field may be.
macro_rules! layout {
    ($name:ident, $size:literal, $($field:ident $offset:literal,)*) => {
        impl $name {
            // SAFETY: as large; integers, floats, pointers and optional functions may all be zero.
            const ZERO: Self = unsafe { core::mem::transmute([0u8; $size]) };
        }

        #[test]
        fn $name() {
            let it = core::mem::MaybeUninit::<$name>::uninit();
            let start = it.as_ptr();
            // SAFETY: the fields are not read, and lie in the same object as its start.
            unsafe {
                $(assert_eq!(core::ptr::addr_of!((*start).$field) as usize - start as usize, $offset);)*
            }
        }
    };
}

/// A type of a group of constants, or another name of a number.
macro_rules! newtype {
    ($(#[$more:meta])* $name:ident: $number:ty) => {
        $(#[$more])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
        pub struct $name(pub $number);
    };
}

/// Version of the C interface that this crate declares: major, minor and patch, a byte each.
pub const GSC_VERSION: u32 = 0x000a00;

// ---- Errors -------------------------------------------------------------------------------------

newtype! {
    /// GSC_OK, or the reason why a call did nothing.
    #[derive(Eq, Hash)]
    gsc_status: i32
}

// Statuses that calls return.

/// done
pub const GSC_OK: gsc_status = gsc_status(0);

/// a required pointer is NULL
pub const GSC_ERROR_NULL: gsc_status = gsc_status(-1);

/// struct_size is not set, or one version lacks a field that the other needs
pub const GSC_ERROR_STRUCT_SIZE: gsc_status = gsc_status(-2);

/// no preset has this name
pub const GSC_ERROR_PRESET: gsc_status = gsc_status(-3);

/// a field of the policy is out of range
pub const GSC_ERROR_POLICY: gsc_status = gsc_status(-4);

/// no update leads to this state
pub const GSC_ERROR_STATE: gsc_status = gsc_status(-5);

/// the report has an error, or lacks a measurement that the policy needs
pub const GSC_ERROR_REPORT: gsc_status = gsc_status(-6);

/// a factor is zero, infinite or not a number
pub const GSC_ERROR_FACTOR: gsc_status = gsc_status(-7);

/// a number is out of range
pub const GSC_ERROR_VALUE: gsc_status = gsc_status(-8);

/// unknown dtype
pub const GSC_ERROR_DTYPE: gsc_status = gsc_status(-9);

/// counts differ, or are too large
pub const GSC_ERROR_COUNT: gsc_status = gsc_status(-10);

/// an output overlaps another entry, or overlaps its own input without being in place
pub const GSC_ERROR_OVERLAP: gsc_status = gsc_status(-11);

/// the buffer is too small
pub const GSC_ERROR_CAPACITY: gsc_status = gsc_status(-12);

/// the bytes are truncated, damaged or not a saved state
pub const GSC_ERROR_CORRUPT: gsc_status = gsc_status(-13);

/// what was saved needs a newer version of the library, or is of a candidate before 0.10
pub const GSC_ERROR_VERSION: gsc_status = gsc_status(-14);

/// this build or machine cannot do it
pub const GSC_ERROR_UNAVAILABLE: gsc_status = gsc_status(-15);

/// out of memory or threads
pub const GSC_ERROR_MEMORY: gsc_status = gsc_status(-16);

/// the driver failed, or another process made the context
pub const GSC_ERROR_DEVICE: gsc_status = gsc_status(-17);

/// the entries match no format, or several, or no format has this name
pub const GSC_ERROR_FORMAT: gsc_status = gsc_status(-18);

/// the reports are from ranks with different policies or states
pub const GSC_ERROR_MISMATCH: gsc_status = gsc_status(-19);

/// An error. C programs print `message`; bindings make their own text from the other fields. A
/// message is one line of UTF-8, with a point in numbers in every locale. A message that is too
/// long is cut at a character and ends with "...". The words of a message can change with every
/// version: programs read the other fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_error {
    /// what the call returned
    pub status: gsc_status,
    /// position of the argument in the call, from 0; -1: none
    pub argument: i32,
    /// entry of the argument, if the argument is a list; else -1
    pub index: i64,
    /// name of the argument, such as "tensors", or of a struct that it points to, such as "policy"
    /// of options.policy
    pub name: [c_char; 24],
    /// field of the argument, such as "min_scale"; empty: the whole argument
    pub field: [c_char; 32],
    /// the refused number, or the other entry of an overlap; NaN: none
    pub value: f64,
    /// lower limit of the number; the message says if the limit itself is allowed; NaN: none
    pub low: f64,
    /// upper limit of the number, as `low`
    pub high: f64,
    /// bytes at the beginning of `message` that name the argument, with the key of an entry and a
    /// space at their end; the rest says what is wrong. 0: the whole message does
    pub subject_length: u32,
    /// byte of `message` after "it must be ", from which it says what the value must be; 0: not
    /// marked
    pub requirement_start: u32,
    /// such as "policy.backoff_factor is 2: it must be from 0 to 1"
    pub message: [c_char; 392],
    /// 0
    pub reserved: [u64; 2],
}

layout! { gsc_error, 512,
    status 0,
    argument 4,
    index 8,
    name 16,
    field 40,
    value 72,
    low 80,
    high 88,
    subject_length 96,
    requirement_start 100,
    message 104,
    reserved 496,
}

impl Default for gsc_error {
    fn default() -> Self {
        gsc_error::ZERO
    }
}

newtype! {
    /// Features that a build of the library can lack.
    #[derive(Eq, Hash)]
    gsc_feature: u32
}

/// contexts on CUDA devices, see gradscaler_cuda.h
pub const GSC_FEATURE_CUDA: gsc_feature = gsc_feature(1);

// ---- Policy: the rules --------------------------------------------------------------------------

newtype! {
    /// growth_rule: when the scale grows. The count is `good_steps` (ALL_STEPS:
    /// `steps_since_change`) minus growth_extra_steps.
    #[derive(Eq, Hash)]
    gsc_growth: u32
}

/// at the interval or past it
pub const GSC_GROWTH_REACHED: gsc_growth = gsc_growth(0);

/// at the interval only; if the count is past it, the scale does not grow until an overflow resets
/// the count
pub const GSC_GROWTH_EXACT: gsc_growth = gsc_growth(1);

/// at each multiple of the interval; a growth does not restart the count
pub const GSC_GROWTH_EVERY: gsc_growth = gsc_growth(2);

/// as REACHED, but the count is `steps_since_change`, which includes overflows
pub const GSC_GROWTH_ALL_STEPS: gsc_growth = gsc_growth(3);

newtype! {
    /// ceiling_rule, floor_rule: what happens to a change that would reach or pass the limit.
    #[derive(Eq, Hash)]
    gsc_limit_rule: u32
}

/// the scale becomes the limit
pub const GSC_LIMIT_CLAMP: gsc_limit_rule = gsc_limit_rule(0);

/// as CLAMP, and every update moves a scale past the limit to the limit
pub const GSC_LIMIT_ENFORCE: gsc_limit_rule = gsc_limit_rule(1);

/// the change is dropped
pub const GSC_LIMIT_REJECT: gsc_limit_rule = gsc_limit_rule(2);

/// the change is dropped, with GSC_EVENT_STOPPED
pub const GSC_LIMIT_STOP: gsc_limit_rule = gsc_limit_rule(3);

/// as CLAMP, but a scale that is already past the limit stays
pub const GSC_LIMIT_CLAMP_UNLESS_PAST: gsc_limit_rule = gsc_limit_rule(4);

newtype! {
    /// overflow_reset, bits: events that set the count of overflows to 0.
    #[derive(Eq, Hash)]
    gsc_overflow_reset: u32
}

/// a growth
pub const GSC_RESET_ON_GROWTH: gsc_overflow_reset = gsc_overflow_reset(1);

/// a good step
pub const GSC_RESET_ON_GOOD_STEP: gsc_overflow_reset = gsc_overflow_reset(2);

/// a backoff
pub const GSC_RESET_ON_BACKOFF: gsc_overflow_reset = gsc_overflow_reset(4);

newtype! {
    /// arithmetic: the number format in which a new scale is computed.
    #[derive(Eq, Hash)]
    gsc_arithmetic: u32
}

/// double
pub const GSC_ARITHMETIC_F64: gsc_arithmetic = gsc_arithmetic(0);

/// double product, rounded once to float
pub const GSC_ARITHMETIC_F64_TO_F32: gsc_arithmetic = gsc_arithmetic(1);

/// factors rounded to float first, then a float operation
pub const GSC_ARITHMETIC_F32: gsc_arithmetic = gsc_arithmetic(2);

/// as F32; a result below 2^-126 becomes 0
pub const GSC_ARITHMETIC_F32_FLUSH: gsc_arithmetic = gsc_arithmetic(3);

newtype! {
    /// overflow_test: which reports are an overflow.
    #[derive(Eq, Hash)]
    gsc_overflow_test: u32
}

/// an element that is not finite
pub const GSC_TEST_ELEMENT: gsc_overflow_test = gsc_overflow_test(0);

/// an element that is not finite, or a sum of squares above the largest float
pub const GSC_TEST_NORM: gsc_overflow_test = gsc_overflow_test(1);

newtype! {
    /// quirks, bits: behaviour of some frameworks that no new policy should have.
    #[derive(Eq, Hash)]
    gsc_quirk: u32
}

/// a share equal to overflow_tolerance is not tolerated
pub const GSC_QUIRK_TOLERANCE_EXCLUSIVE: gsc_quirk = gsc_quirk(1);

/// an overflow also counts as a good step
pub const GSC_QUIRK_OVERFLOW_IS_GOOD: gsc_quirk = gsc_quirk(2);

/// the guard can skip all steps forever: gsc_policy_check does not require guard_max_in_a_row
pub const GSC_QUIRK_ALLOW_LOCKOUT: gsc_quirk = gsc_quirk(4);

newtype! {
    /// bad_loss_rule: what a loss means that was Inf or NaN before it was scaled, see options.loss.
    /// No scale cures such a loss.
    #[derive(Eq, Hash)]
    gsc_bad_loss: u32
}

/// the gradients alone decide: if the loss made them Inf or NaN, they are an overflow as any other
pub const GSC_BAD_LOSS_OVERFLOW: gsc_bad_loss = gsc_bad_loss(0);

/// the step is skipped, also if the gradients are finite; the scale, the counts of the scale and
/// the guard stay as they are
pub const GSC_BAD_LOSS_HOLD: gsc_bad_loss = gsc_bad_loss(1);

newtype! {
    /// guard_sample: the sample that an outlier adds to the mean and the variance.
    #[derive(Eq, Hash)]
    gsc_guard_sample: u32
}

/// its norm
pub const GSC_SAMPLE_AS_IS: gsc_guard_sample = gsc_guard_sample(0);

/// none
pub const GSC_SAMPLE_NONE: gsc_guard_sample = gsc_guard_sample(1);

/// the threshold, or the norm that it was clipped to
pub const GSC_SAMPLE_THRESHOLD: gsc_guard_sample = gsc_guard_sample(2);

newtype! {
    /// guard_flags, bits: what happens to an outlier, and how samples count.
    #[derive(Eq, Hash)]
    gsc_guard: u32
}

/// multiply the gradients by threshold / norm and take the step; without it, or if the threshold is
/// not above 0, skip the step
pub const GSC_GUARD_CLIP: gsc_guard = gsc_guard(1);

/// a norm equal to the threshold is also an outlier
pub const GSC_GUARD_INCLUSIVE: gsc_guard = gsc_guard(2);

/// at guard_max_in_a_row: GSC_EVENT_STOPPED; without it, this outlier and later ones in the row are
/// let through, and enter the mean as they are
pub const GSC_GUARD_STOP: gsc_guard = gsc_guard(4);

/// a step skipped as an outlier counts as a good step of the scale; without it, the scale and its
/// counts stay
pub const GSC_GUARD_SKIP_IS_GOOD: gsc_guard = gsc_guard(8);

/// with CLIP: clip to mean + (threshold - mean)^2 / (norm - mean): the larger the norm, the lower
pub const GSC_GUARD_CLIP_PROGRESSIVE: gsc_guard = gsc_guard(16);

/// after the warm-up, the variance takes (sample - mean)^2 with the mean that includes the sample
pub const GSC_GUARD_VARIANCE_AFTER_MEAN: gsc_guard = gsc_guard(32);

/// sample n has the weight (1 - guard_decay) / (1 - guard_decay^n), from the first sample on
pub const GSC_GUARD_BIAS_CORRECTED: gsc_guard = gsc_guard(64);

/// with CLIP: clip to the mean
pub const GSC_GUARD_CLIP_TO_MEAN: gsc_guard = gsc_guard(128);

/// The rules of one scaler. Initialise it, then fill it with gsc_policy_preset.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_policy {
    /// set by the initialiser
    pub struct_size: u32,
    /// GSC_ARITHMETIC_*
    pub arithmetic: gsc_arithmetic,
    /// first scale; 0 is 1; at most max_scale, except with GSC_LIMIT_ENFORCE, where the first scale
    /// is then max_scale
    pub init_scale: f64,
    /// a growth multiplies by this; at least 1; 0 is 1
    pub growth_factor: f64,
    /// a backoff multiplies by this, in (0, 1]; 0: divides by growth_factor
    pub backoff_factor: f64,
    /// good steps from one growth to the next; 0 never grows
    pub growth_interval: u64,
    /// GSC_GROWTH_*
    pub growth_rule: gsc_growth,
    /// steps that a growth needs beyond the interval
    pub growth_extra_steps: u32,
    /// ceiling; 0 is none (infinity)
    pub max_scale: f64,
    /// floor; 0 is none
    pub min_scale: f64,
    /// GSC_LIMIT_* at max_scale
    pub ceiling_rule: gsc_limit_rule,
    /// GSC_LIMIT_* at min_scale; the first scale can be below it: CLAMP raises it at the first
    /// backoff, ENFORCE at the first update
    pub floor_rule: gsc_limit_rule,
    /// GSC_TEST_*
    pub overflow_test: gsc_overflow_test,
    /// number of overflows that make a backoff; the overflows before the last are absorbed;
    /// overflow_reset says what restarts the count; 0 is 1
    pub hysteresis: u32,
    /// GSC_RESET_* bits: events that set that count to 0; 0: none, so after the first backoff every
    /// overflow backs off
    pub overflow_reset: gsc_overflow_reset,
    /// 1: a new scale is in force one update later
    pub apply_delay: u32,
    /// an overflow is absorbed if overflows_since_reset is at most this share of
    /// steps_since_change; below 1, or 1 with TOLERANCE_EXCLUSIVE
    pub overflow_tolerance: f64,
    /// GSC_EVENT_STOPPED after this many overflows in a row that could not lower the scale, or,
    /// with GSC_BAD_LOSS_HOLD, after this many bad losses in a row; 0: never
    pub max_failed_backoffs: u64,
    /// GSC_QUIRK_* bits; 0 in any new policy
    pub quirks: gsc_quirk,
    /// GSC_BAD_LOSS_*; HOLD needs max_failed_backoffs above 0
    pub bad_loss_rule: gsc_bad_loss,
    /// a norm above this is an outlier; 0: no such threshold
    pub guard_norm: f64,
    /// a norm above this times a mean above 0 is an outlier; must be above 1; 0: no such threshold
    pub guard_ratio: f64,
    /// a norm this many standard deviations above the mean is an outlier; 0: no such threshold
    pub guard_sigmas: f64,
    /// factor of the old mean and variance at each sample after the warm-up; below 1; 0: all
    /// samples weigh the same
    pub guard_decay: f64,
    /// mean before the first sample, used to judge the first step; 0: none
    pub guard_init_mean: f64,
    /// samples before the first step is judged; they enter as they are and weigh the same
    pub guard_warmup: u64,
    /// at this many outliers in a row, the guard accepts a new level: it lets this outlier and
    /// later ones in the row through; with GSC_GUARD_STOP it stops instead; 0: never
    pub guard_max_in_a_row: u64,
    /// GSC_SAMPLE_*
    pub guard_sample: gsc_guard_sample,
    /// GSC_GUARD_* bits
    pub guard_flags: gsc_guard,
}

layout! { gsc_policy, 176,
    struct_size 0,
    arithmetic 4,
    init_scale 8,
    growth_factor 16,
    backoff_factor 24,
    growth_interval 32,
    growth_rule 40,
    growth_extra_steps 44,
    max_scale 48,
    min_scale 56,
    ceiling_rule 64,
    floor_rule 68,
    overflow_test 72,
    hysteresis 76,
    overflow_reset 80,
    apply_delay 84,
    overflow_tolerance 88,
    max_failed_backoffs 96,
    quirks 104,
    bad_loss_rule 108,
    guard_norm 112,
    guard_ratio 120,
    guard_sigmas 128,
    guard_decay 136,
    guard_init_mean 144,
    guard_warmup 152,
    guard_max_in_a_row 160,
    guard_sample 168,
    guard_flags 172,
}

/// Bytes of [`gsc_policy`].
pub const GSC_POLICY_SIZE: u32 = 176;

/// Zeros, and the size: where every [`gsc_policy`] starts.
pub const GSC_POLICY_INIT: gsc_policy = gsc_policy {
    struct_size: GSC_POLICY_SIZE,
    ..gsc_policy::ZERO
};

impl Default for gsc_policy {
    fn default() -> Self {
        GSC_POLICY_INIT
    }
}

newtype! {
    /// Traits of a policy, for callers that prepare for them.
    #[derive(Eq, Hash)]
    gsc_trait: u32
}

/// the scale can change from the first one on
pub const GSC_TRAIT_MOVES: gsc_trait = gsc_trait(1);

/// the policy judges the norm of finite gradients
pub const GSC_TRAIT_GUARDS: gsc_trait = gsc_trait(2);

/// updates need sum_squares, or a number
pub const GSC_TRAIT_NEEDS_NORM: gsc_trait = gsc_trait(4);

/// a bad loss holds the scale: give calls on tensors the loss
pub const GSC_TRAIT_HOLDS: gsc_trait = gsc_trait(8);

// ---- Where a call runs --------------------------------------------------------------------------

/// Threads or a device that run calls. Any number of threads can use a context at the same time;
/// its own threads work for one call, other calls then run on their calling thread.
#[repr(C)]
pub struct gsc_context {
    _opaque: [u8; 0],
    _not_send: core::marker::PhantomData<*mut u8>,
}

/// One task of a call.
pub type gsc_task = unsafe extern "C" fn(data: *mut c_void, index: u64);

/// The caller's thread pool. It runs task(data, i) for every i below count, in any order and on any
/// threads, and returns 0 when all tasks have returned. If it cannot run the tasks, it runs none
/// and returns another number. Several threads can call it at the same time, and one call on
/// tensors can call it several times. If it refuses the first tasks of a call, the call fails with
/// GSC_ERROR_MEMORY and has written nothing. If it refuses later tasks, the calling thread runs
/// them. It does not throw or jump out of the call. Tasks do not block, do not call the caller's
/// code, and need as much stack as calls on tensors.
pub type gsc_parallel_for =
    unsafe extern "C" fn(pool: *mut c_void, task: gsc_task, data: *mut c_void, count: u64) -> i32;

newtype! {
    /// Bits of exec.flags.
    ///
    /// A call on host memory with GSC_EXEC_WRITE_FAILURES that refuses a value of a factor, a
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
    /// This happens with GSC_ERROR_FACTOR, GSC_ERROR_REPORT, GSC_ERROR_STATE, GSC_ERROR_VERSION and
    /// GSC_ERROR_MISMATCH, and with GSC_ERROR_VALUE if the product of gsc_factor_multiply is no
    /// factor. A call that refuses another argument writes only *err. A call on a device refuses
    /// the flag.
    #[derive(Eq, Hash)]
    gsc_exec_flag: u32
}

/// also write an error to the result, as a device does
pub const GSC_EXEC_WRITE_FAILURES: gsc_exec_flag = gsc_exec_flag(1);

/// Where the memory of a call is, and what runs the call. A CPU context takes host memory, without
/// stream and workspace; gradscaler_cuda.h says what a CUDA context needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_exec {
    /// set by the initialiser
    pub struct_size: u32,
    /// GSC_EXEC_* bits
    pub flags: gsc_exec_flag,
    /// NULL: the calling thread
    pub context: *mut gsc_context,
    /// the queue of a device; NULL on the CPU
    pub stream: *mut c_void,
    /// scratch memory of the device; NULL on the CPU
    pub workspace: *mut c_void,
    /// bytes of the workspace; 0 on the CPU
    pub workspace_size: u64,
}

layout! { gsc_exec, 40,
    struct_size 0,
    flags 4,
    context 8,
    stream 16,
    workspace 24,
    workspace_size 32,
}

/// Bytes of [`gsc_exec`].
pub const GSC_EXEC_SIZE: u32 = 40;

/// Zeros, and the size: where every [`gsc_exec`] starts.
pub const GSC_EXEC_INIT: gsc_exec = gsc_exec {
    struct_size: GSC_EXEC_SIZE,
    ..gsc_exec::ZERO
};

impl Default for gsc_exec {
    fn default() -> Self {
        GSC_EXEC_INIT
    }
}

/// The number of threads that share the work of a call, and their pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gsc_cpu_options {
    /// set by the initialiser
    pub struct_size: u32,
    /// 1 to 1,024, including the calling thread; lists below 4 MiB run on the calling thread alone.
    /// With parallel_for: the number of threads to plan for
    pub threads: u32,
    /// the caller's pool; NULL: the context makes `threads` - 1 threads
    pub parallel_for: Option<gsc_parallel_for>,
    /// passed to parallel_for; NULL without parallel_for
    pub pool: *mut c_void,
}

layout! { gsc_cpu_options, 24,
    struct_size 0,
    threads 4,
    parallel_for 8,
    pool 16,
}

/// Bytes of [`gsc_cpu_options`].
pub const GSC_CPU_OPTIONS_SIZE: u32 = 24;

/// Zeros, and the size: where every [`gsc_cpu_options`] starts.
pub const GSC_CPU_OPTIONS_INIT: gsc_cpu_options = gsc_cpu_options {
    struct_size: GSC_CPU_OPTIONS_SIZE,
    ..gsc_cpu_options::ZERO
};

impl Default for gsc_cpu_options {
    fn default() -> Self {
        GSC_CPU_OPTIONS_INIT
    }
}

/// The library that runs here. The strings are never freed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_info {
    /// set by the initialiser
    pub struct_size: u32,
    /// as gsc_version
    pub version: u32,
    /// instruction set in use; the environment variable GSC_CPU chooses it
    pub cpu: *const c_char,
    /// instruction sets that this machine can run, separated by spaces
    pub cpu_available: *const c_char,
    /// empty, or why GSC_CPU has no effect
    pub cpu_note: *const c_char,
}

layout! { gsc_info, 32,
    struct_size 0,
    version 4,
    cpu 8,
    cpu_available 16,
    cpu_note 24,
}

/// Bytes of [`gsc_info`].
pub const GSC_INFO_SIZE: u32 = 32;

/// Zeros, and the size: where every [`gsc_info`] starts.
pub const GSC_INFO_INIT: gsc_info = gsc_info {
    struct_size: GSC_INFO_SIZE,
    ..gsc_info::ZERO
};

impl Default for gsc_info {
    fn default() -> Self {
        GSC_INFO_INIT
    }
}

// ---- Factor: what one loss was multiplied by ----------------------------------------------------

/// A snapshot of a scale. Unscale gradients with the factor that their loss was scaled with. If
/// gradients arrive late (pipelines, an optimizer thread, offloading), copy state.factor when the
/// loss is scaled, and keep the copy with the gradients.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_factor {
    /// the loss is multiplied by this
    pub scale: f64,
    /// the gradients are multiplied by this: 1 / scale, or less if they are clipped
    pub inverse: f64,
    /// scale, rounded; fused optimizers read the floats in place
    pub scale_f32: f32,
    /// inverse, rounded
    pub inverse_f32: f32,
    /// a number that rises at every update, also if the scale stays; 0: from no state
    pub generation: u64,
}

layout! { gsc_factor, 32,
    scale 0,
    inverse 8,
    scale_f32 16,
    inverse_f32 20,
    generation 24,
}

impl Default for gsc_factor {
    fn default() -> Self {
        gsc_factor::ZERO
    }
}

// ---- Report: what the gradients were like -------------------------------------------------------

newtype! {
    /// Measurements that a report can have. Overflow, its position and the counts are always there.
    #[derive(Eq, Hash)]
    gsc_want: u32
}

/// sum_squares
pub const GSC_WANT_NORM: gsc_want = gsc_want(1);

/// amax
pub const GSC_WANT_AMAX: gsc_want = gsc_want(2);

/// underflows_to_zero, underflows_to_subnormal
pub const GSC_WANT_UNDERFLOW: gsc_want = gsc_want(4);

newtype! {
    /// report.kind: the source of a report.
    #[derive(Eq, Hash)]
    gsc_report_kind: u32
}

/// none: no call filled the report in; refused unless it has an overflow
pub const GSC_REPORT_NONE: gsc_report_kind = gsc_report_kind(0);

/// the tensors of a call
pub const GSC_REPORT_TENSORS: gsc_report_kind = gsc_report_kind(1);

/// a number
pub const GSC_REPORT_NUMBER: gsc_report_kind = gsc_report_kind(2);

/// other reports
pub const GSC_REPORT_MERGED: gsc_report_kind = gsc_report_kind(3);

/// a flag: only whether there was an overflow
pub const GSC_REPORT_FLAG: gsc_report_kind = gsc_report_kind(4);

newtype! {
    /// report.loss: the loss before it was scaled, see options.loss.
    #[derive(Eq, Hash)]
    gsc_loss: u32
}

/// no loss was given
pub const GSC_LOSS_UNKNOWN: gsc_loss = gsc_loss(0);

/// all its elements are finite
pub const GSC_LOSS_FINITE: gsc_loss = gsc_loss(1);

/// an element is Inf or NaN: no scale causes or cures that
pub const GSC_LOSS_NOT_FINITE: gsc_loss = gsc_loss(2);

/// The results of calls on gradients. Calls on tensors, gsc_report_from_number,
/// gsc_report_from_flag and gsc_report_merge fill a report in. A report that is all zeros is
/// refused: no call filled it in. If a call fails on a rank, make a report of zeros yourself and
/// set `status` and `overflow`. Contradictions are also refused, such as NaN elements without an
/// overflow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_report {
    /// for fused optimizers that run before the update: not 0 for an overflow, or for a bad loss if
    /// the policy that the call was given holds; never for an outlier. Merge the reports of ranks
    /// instead of reducing it
    pub found_inf: f32,
    /// 1: an element is Inf or NaN or became so, or options.policy says so, or a device or rank
    /// failed
    pub overflow: i32,
    /// GSC_OK, or the error of a call
    pub status: gsc_status,
    /// GSC_WANT_* bits
    pub measured: gsc_want,
    /// generation of the factor; 0: unknown
    pub generation: u64,
    /// largest finite magnitude after unscaling, before rounding; a complex element counts with its
    /// larger part
    pub amax: f64,
    /// sum of squares of the finite elements after unscaling; its square root is the norm
    pub sum_squares: f64,
    /// number of elements
    pub elements: i64,
    /// elements that are NaN
    pub nan_count: i64,
    /// elements that are Inf, or became so by unscaling
    pub inf_count: i64,
    /// index of the tensor with the first NaN or Inf; 0 if there is none
    pub first_tensor: i64,
    /// index of that element in the tensor; 0 if there is none
    pub first_element: i64,
    /// index of the last tensor with NaN or Inf: in a list in the model's order, the one nearest to
    /// the cause of an overflow in the backward pass; 0 if there is none
    pub last_tensor: i64,
    /// outputs that are zero although their input was not
    pub underflows_to_zero: i64,
    /// outputs that are subnormal although their input was not
    pub underflows_to_subnormal: i64,
    /// elements that options.clamp changed
    pub clamped: i64,
    /// digest of policy and state, set by gsc_report_set_rank; 0: none
    pub digest: u64,
    /// 1 + the rank of `status`; 0: unknown
    pub status_rank_plus_1: u32,
    /// 1 + the rank of first_tensor, or, if no element was counted, of the first report with an
    /// overflow; 0: unknown
    pub first_rank_plus_1: u32,
    /// 1 + the rank of last_tensor, or, if no element was counted, of the last report with an
    /// overflow; 0: unknown
    pub last_rank_plus_1: u32,
    /// 1 + the rank of the first bad loss; 0: unknown
    pub loss_rank_plus_1: u32,
    /// GSC_LOSS_*: the loss before it was scaled; UNKNOWN in a FLAG, a NUMBER and a report of zeros
    pub loss: gsc_loss,
    /// GSC_REPORT_*
    pub kind: gsc_report_kind,
    /// 0
    pub flags: u32,
    /// 1: a MERGED report with a FLAG among its reports, so 0 elements do not mean that there were
    /// no gradients; else 0
    pub has_flag: u32,
    /// the number of a GSC_REPORT_NUMBER, which a policy judges as a norm; 0 if it is not finite. 0
    /// in other reports
    pub number: f64,
    /// 0
    pub reserved: [u64; 12],
}

layout! { gsc_report, 256,
    found_inf 0,
    overflow 4,
    status 8,
    measured 12,
    generation 16,
    amax 24,
    sum_squares 32,
    elements 40,
    nan_count 48,
    inf_count 56,
    first_tensor 64,
    first_element 72,
    last_tensor 80,
    underflows_to_zero 88,
    underflows_to_subnormal 96,
    clamped 104,
    digest 112,
    status_rank_plus_1 120,
    first_rank_plus_1 124,
    last_rank_plus_1 128,
    loss_rank_plus_1 132,
    loss 136,
    kind 140,
    flags 144,
    has_flag 148,
    number 152,
    reserved 160,
}

impl Default for gsc_report {
    fn default() -> Self {
        gsc_report::ZERO
    }
}

newtype! {
    /// The relation between the gradients of merged reports.
    #[derive(Eq, Hash)]
    gsc_merge_kind: u32
}

/// different gradients: shards, layers, optimizers; their sums of squares are added
pub const GSC_MERGE_SHARDS: gsc_merge_kind = gsc_merge_kind(0);

/// gradients to add: micro-batches, ranks before an all-reduce; the norm of their sum is unknown
pub const GSC_MERGE_ADDENDS: gsc_merge_kind = gsc_merge_kind(1);

// ---- State: the scale and its counts ------------------------------------------------------------

newtype! {
    /// Bits of state.events: what the last update did.
    #[derive(Eq, Hash)]
    gsc_event: u32
}

/// the scale became larger
pub const GSC_EVENT_GREW: gsc_event = gsc_event(1);

/// the scale became smaller
pub const GSC_EVENT_BACKED_OFF: gsc_event = gsc_event(2);

/// an overflow, a held bad loss, a skipped outlier, or a failure: leave the parameters alone
pub const GSC_EVENT_SKIPPED: gsc_event = gsc_event(4);

/// skipped, but hysteresis or tolerance kept the scale
pub const GSC_EVENT_ABSORBED: gsc_event = gsc_event(8);

/// max_scale limited a growth
pub const GSC_EVENT_AT_CEILING: gsc_event = gsc_event(16);

/// min_scale limited a backoff
pub const GSC_EVENT_AT_FLOOR: gsc_event = gsc_event(32);

/// the overflow could not lower the scale
pub const GSC_EVENT_BACKOFF_FAILED: gsc_event = gsc_event(64);

/// the policy ends the training: by GSC_GUARD_STOP, max_failed_backoffs or GSC_LIMIT_STOP
pub const GSC_EVENT_STOPPED: gsc_event = gsc_event(128);

/// the report was made with another factor than the one in force: it is late, or was used twice
pub const GSC_EVENT_STALE: gsc_event = gsc_event(256);

/// the guard found an outlier, see guard_threshold; without SKIPPED and CLIPPED, it was let through
pub const GSC_EVENT_OUTLIER: gsc_event = gsc_event(512);

/// still to do: multiply the gradients by guard_multiplier, or use gsc_factor_clip_outlier
pub const GSC_EVENT_CLIPPED: gsc_event = gsc_event(1024);

/// only with GSC_BAD_LOSS_HOLD: the loss was not finite before it was scaled, so the step is
/// skipped and the scale is kept
pub const GSC_EVENT_BAD_LOSS: gsc_event = gsc_event(2048);

/// the report has no elements: no tensor had a gradient; it counts as a good step, unless a bad
/// loss is held
pub const GSC_EVENT_EMPTY: gsc_event = gsc_event(4096);

/// The state of a scaler. It has no pointers: copy it, store it, send it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_state {
    /// the scale in force
    pub factor: gsc_factor,
    /// the newest scale. Without apply_delay it equals `factor`. With apply_delay the next update
    /// copies it to `factor`; a loss that you scale before that update needs `next`
    pub next: gsc_factor,
    /// good steps since the last overflow or growth; a growth that max_scale limited also counts;
    /// with GSC_GROWTH_EVERY since the last overflow
    pub good_steps: i64,
    /// all steps since the scale changed
    pub steps_since_change: i64,
    /// overflows not reset yet
    pub overflows_since_reset: i64,
    /// overflows in a row that could not lower the scale
    pub failed_backoffs: i64,
    /// bad losses in a row: a finite loss sets this to 0, and so does a step without overflow of an
    /// unknown loss
    pub bad_losses_in_a_row: i64,
    /// GSC_EVENT_* of the last update
    pub events: gsc_event,
    /// GSC_OK, or the error of the last update
    pub status: gsc_status,
    /// updates since the start
    pub total_updates: i64,
    /// overflows since the start, without the guard's skips and held bad losses
    pub total_overflows: i64,
    /// updates since the start with a bad loss, held or not
    pub total_bad_losses: i64,
    /// updates since the start that made the scale larger
    pub total_growths: i64,
    /// updates since the start that made the scale smaller
    pub total_backoffs: i64,
    /// 1 with GSC_EVENT_SKIPPED, else 0: found_inf for a fused optimizer that runs after the update
    pub skip_f32: f32,
    /// 1 with GSC_EVENT_SKIPPED, else 0: leave the parameters alone
    pub skip: i32,
    /// policies that guard: mean of the samples
    pub guard_mean: f64,
    /// variance of the samples
    pub guard_variance: f64,
    /// number of samples
    pub guard_count: i64,
    /// outliers in a row
    pub guard_in_a_row: i64,
    /// steps since the start that were skipped as outliers
    pub total_guard_skips: i64,
    /// multiplier of the last update: 1; below 1 if it clips; 0 with GSC_EVENT_SKIPPED
    pub guard_multiplier: f64,
    /// threshold that guard_value was compared with; 0: none
    pub guard_threshold: f64,
    /// norm or number that the last update judged; 0: none
    pub guard_value: f64,
    /// steps since the start that the guard clipped
    pub total_guard_clips: i64,
    /// updates in a row with a NaN among the gradients; an overflow without known elements does not
    /// change it
    pub nans_in_a_row: i64,
    /// updates in a row with GSC_EVENT_EMPTY
    pub empty_in_a_row: i64,
    /// total_updates when the scale last grew; before any growth, at the first good step; 0:
    /// neither yet
    pub updates_at_growth: i64,
    /// total_overflows at the same update
    pub overflows_at_growth: i64,
    /// 0
    pub reserved: [u64; 15],
}

layout! { gsc_state, 384,
    factor 0,
    next 32,
    good_steps 64,
    steps_since_change 72,
    overflows_since_reset 80,
    failed_backoffs 88,
    bad_losses_in_a_row 96,
    events 104,
    status 108,
    total_updates 112,
    total_overflows 120,
    total_bad_losses 128,
    total_growths 136,
    total_backoffs 144,
    skip_f32 152,
    skip 156,
    guard_mean 160,
    guard_variance 168,
    guard_count 176,
    guard_in_a_row 184,
    total_guard_skips 192,
    guard_multiplier 200,
    guard_threshold 208,
    guard_value 216,
    total_guard_clips 224,
    nans_in_a_row 232,
    empty_in_a_row 240,
    updates_at_growth 248,
    overflows_at_growth 256,
    reserved 264,
}

impl Default for gsc_state {
    fn default() -> Self {
        gsc_state::ZERO
    }
}

newtype! {
    /// reason.outcome: the decision of the last update about its step.
    #[derive(Eq, Hash)]
    gsc_outcome: u32
}

/// take the step; the gradients stay as they are
pub const GSC_OUTCOME_TAKEN: gsc_outcome = gsc_outcome(0);

/// take the step, although it is an outlier
pub const GSC_OUTCOME_LET_THROUGH: gsc_outcome = gsc_outcome(1);

/// take the step with gradients times `multiplier`
pub const GSC_OUTCOME_CLIPPED: gsc_outcome = gsc_outcome(2);

/// leave the parameters alone
pub const GSC_OUTCOME_SKIPPED: gsc_outcome = gsc_outcome(3);

/// end the training
pub const GSC_OUTCOME_STOPPED: gsc_outcome = gsc_outcome(4);

newtype! {
    /// reason.cause: the reason for the decision.
    #[derive(Eq, Hash)]
    gsc_cause: u32
}

/// nothing was wrong
pub const GSC_CAUSE_NONE: gsc_cause = gsc_cause(0);

/// Inf or NaN that the backward pass made
pub const GSC_CAUSE_OVERFLOW: gsc_cause = gsc_cause(1);

/// `value` is above `threshold`, or equal to it with INCLUSIVE
pub const GSC_CAUSE_OUTLIER: gsc_cause = gsc_cause(2);

/// a growth would reach max_scale, and ceiling_rule stops
pub const GSC_CAUSE_CEILING: gsc_cause = gsc_cause(3);

/// a combined state decided this
pub const GSC_CAUSE_OTHER_STATE: gsc_cause = gsc_cause(4);

/// the update failed; see state.status
pub const GSC_CAUSE_FAILURE: gsc_cause = gsc_cause(5);

/// a loss was not finite before it was scaled
pub const GSC_CAUSE_BAD_LOSS: gsc_cause = gsc_cause(6);

/// a parameter was not finite
pub const GSC_CAUSE_PARAMETER: gsc_cause = gsc_cause(7);

/// the scale is Inf in the dtype of the loss
pub const GSC_CAUSE_LOSS_DTYPE: gsc_cause = gsc_cause(8);

/// The facts that a caller knows about a step beside its report. 0 is unknown.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_evidence {
    /// tensors of the list with NaN or Inf in their parameter
    pub bad_parameters: i64,
    /// 1 + index of the first of them
    pub parameter_plus_1: i64,
    /// by which the losses of the step were multiplied
    pub scale: f64,
    /// dtype of the losses before they were scaled, GSC_F32 ...
    pub loss_dtype: u32,
    /// losses of this rank that were scaled in the step, if it is known which of them were finite
    pub losses: u32,
    /// number, from 1, of the first of them that was not finite before it was scaled; 0: all were
    /// finite, or `losses` is 0
    pub bad_loss: u32,
    /// ranks that share the gradients
    pub ranks: u32,
    /// 0
    pub reserved: [u64; 3],
}

layout! { gsc_evidence, 64,
    bad_parameters 0,
    parameter_plus_1 8,
    scale 16,
    loss_dtype 24,
    losses 28,
    bad_loss 32,
    ranks 36,
    reserved 40,
}

impl Default for gsc_evidence {
    fn default() -> Self {
        gsc_evidence::ZERO
    }
}

/// Why the last update took, clipped or skipped its step.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_reason {
    /// GSC_OUTCOME_*
    pub outcome: gsc_outcome,
    /// GSC_CAUSE_*
    pub cause: gsc_cause,
    /// with OUTLIER, the norm or number that was judged; 0: unknown
    pub value: f64,
    /// with OUTLIER, the threshold that `value` is above
    pub threshold: f64,
    /// 1; below 1 if clipped, 0 if skipped
    pub multiplier: f64,
    /// outliers in a row with OUTLIER, bad losses in a row with BAD_LOSS
    pub in_a_row: i64,
    /// elements that are NaN; 0 also if unknown
    pub nan_count: i64,
    /// elements that are Inf; 0 also if unknown
    pub inf_count: i64,
    /// tensors with NaN or Inf; 0: none, or unknown
    pub bad_tensors: i64,
    /// with PARAMETER, index of the first bad parameter; else index of the bad tensor that is
    /// nearest to the cause, the first in `order` or else the last of the list; -1: none, or
    /// unknown
    pub tensor: i64,
    /// index of the tensor before that one in `order`, which is finite; -1: none, or unknown
    pub tensor_before: i64,
    /// rank of the bad tensor or, with BAD_LOSS, of the first bad loss; without both, rank of the
    /// last report with an overflow; -1: unknown
    pub rank: i64,
    /// a sentence for a log, such as "skipped: 3 NaN in \"h.3.attn.weight\" alone"; empty if the
    /// step is taken as it is
    pub message: [c_char; 512],
    /// 0
    pub reserved: [u64; 5],
}

layout! { gsc_reason, 640,
    outcome 0,
    cause 4,
    value 8,
    threshold 16,
    multiplier 24,
    in_a_row 32,
    nan_count 40,
    inf_count 48,
    bad_tensors 56,
    tensor 64,
    tensor_before 72,
    rank 80,
    message 88,
    reserved 600,
}

impl Default for gsc_reason {
    fn default() -> Self {
        gsc_reason::ZERO
    }
}

// Size of a saved state.

/// bytes that can hold any saved state of this major version
pub const GSC_SAVED_SIZE_MAX: u32 = 1024;

// ---- Ranks: all step, or none -------------------------------------------------------------------

// ---- Checkpoints and settings of frameworks -----------------------------------------------------

newtype! {
    /// entry.kind: the type of the value. All numbers are read alike; gsc_state_export writes the
    /// types that a loader expects.
    #[derive(Eq, Hash)]
    gsc_entry_kind: u32
}

/// no entry: it is ignored
pub const GSC_ENTRY_UNUSED: gsc_entry_kind = gsc_entry_kind(0);

/// `value`, any number
pub const GSC_ENTRY_NUMBER: gsc_entry_kind = gsc_entry_kind(1);

/// `text`
pub const GSC_ENTRY_TEXT: gsc_entry_kind = gsc_entry_kind(2);

/// null, None, nil: switched off
pub const GSC_ENTRY_NULL: gsc_entry_kind = gsc_entry_kind(3);

/// `integer`, and in `value` the same number, rounded
pub const GSC_ENTRY_INTEGER: gsc_entry_kind = gsc_entry_kind(4);

/// 0 or 1, in `integer` and in `value`
pub const GSC_ENTRY_BOOLEAN: gsc_entry_kind = gsc_entry_kind(5);

/// A key of a checkpoint or a configuration, and its value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_entry {
    /// ends with a zero; nested keys are joined by dots, as in "grad_scaler.scale"
    pub key: [c_char; 160],
    /// GSC_ENTRY_*
    pub kind: gsc_entry_kind,
    /// 0
    pub flags: u32,
    /// the number
    pub value: f64,
    /// the number of an INTEGER or a BOOLEAN, exactly; if `value` is above 0, as uint64_t
    pub integer: i64,
    /// the text, such as "dynamic"; ends with a zero
    pub text: [c_char; 56],
    /// 0
    pub reserved: [u64; 2],
}

layout! { gsc_entry, 256,
    key 0,
    kind 160,
    flags 164,
    value 168,
    integer 176,
    text 184,
    reserved 240,
}

impl Default for gsc_entry {
    fn default() -> Self {
        gsc_entry::ZERO
    }
}

newtype! {
    /// note.kind: the subject of a note.
    #[derive(Eq, Hash)]
    gsc_note_kind: u32
}

/// the entries were recognised: `field` is the name of the format
pub const GSC_NOTE_FORMAT: gsc_note_kind = gsc_note_kind(1);

/// `field` is not among the entries: `value` is in force, the policy's or the start of a count
pub const GSC_NOTE_MISSING: gsc_note_kind = gsc_note_kind(2);

/// the key of `entry` has no meaning in this format
pub const GSC_NOTE_IGNORED: gsc_note_kind = gsc_note_kind(3);

/// `field` became `value`, the meaning of `entry` in this policy
pub const GSC_NOTE_CHANGED: gsc_note_kind = gsc_note_kind(4);

/// the scale is 0 or infinity: no call multiplies by it; also from gsc_state_diagnose, with the
/// scale as `value`
pub const GSC_NOTE_UNUSABLE: gsc_note_kind = gsc_note_kind(5);

/// the format has no key for `field`; `value` is lost
pub const GSC_NOTE_LOST: gsc_note_kind = gsc_note_kind(6);

/// diagnosis: a call failed, here or on another rank, and no rank steps; `value` is the status
pub const GSC_NOTE_FAILURE: gsc_note_kind = gsc_note_kind(7);

/// diagnosis: Inf or NaN that no scale cures; `value` is their number, 0 if unknown; `entry` is the
/// last tensor with one, the nearest to the cause; `field` is nans_in_a_row if NaN alone came
/// several times in a row, which is found at every scale, else failed_backoffs
pub const GSC_NOTE_NOT_FINITE: gsc_note_kind = gsc_note_kind(8);

/// diagnosis: overflows cannot lower the scale, `value`; `entry` is the last tensor with Inf or
/// NaN, the nearest to the cause
pub const GSC_NOTE_BACKOFF_FAILED: gsc_note_kind = gsc_note_kind(9);

/// diagnosis: too many steps overflowed since the last growth, or since the first good step if
/// there was none; `value` is their share, 0 to 1. If `field` is growth_interval, growths caused
/// them, and the share is of all steps
pub const GSC_NOTE_OVERFLOWS_OFTEN: gsc_note_kind = gsc_note_kind(10);

/// diagnosis: the guard skipped more than half of the steps, or the last ones in a row; `value` is
/// the number since the start
pub const GSC_NOTE_GUARD_SKIPS: gsc_note_kind = gsc_note_kind(11);

/// diagnosis: the guard judges none of the steps that are left, because its warm-up is longer;
/// `value` is its samples so far
pub const GSC_NOTE_GUARD_IDLE: gsc_note_kind = gsc_note_kind(12);

/// diagnosis: gradients became zero; `value` is their share, 0 to 1; `entry` is the tensor with the
/// largest share
pub const GSC_NOTE_UNDERFLOWS: gsc_note_kind = gsc_note_kind(13);

/// diagnosis: `value` steps are planned, fewer than a growth needs, and the scale is low; if
/// `field` is good_steps, this count is past the interval of GSC_GROWTH_EXACT
pub const GSC_NOTE_NEVER_GROWS: gsc_note_kind = gsc_note_kind(14);

/// diagnosis: the planned steps end before the scale reaches 2^15, or max_scale if that is lower;
/// `value` is the scale at the end if no step overflows
pub const GSC_NOTE_CEILING_UNREACHABLE: gsc_note_kind = gsc_note_kind(15);

/// `value`, the scale, is above max_scale or below min_scale: `field` is that limit; from
/// gsc_state_import, and in a diagnosis
pub const GSC_NOTE_OUTSIDE_LIMITS: gsc_note_kind = gsc_note_kind(16);

/// diagnosis: losses were not finite before they were scaled, the last one or too many; `value` is
/// their share of the steps, 0 to 1
pub const GSC_NOTE_BAD_LOSSES: gsc_note_kind = gsc_note_kind(17);

/// diagnosis: every step so far overflowed, because init_scale, `value`, is too high
pub const GSC_NOTE_START_TOO_HIGH: gsc_note_kind = gsc_note_kind(18);

/// diagnosis: in the last `value` steps no tensor had a gradient
pub const GSC_NOTE_NO_GRADIENTS: gsc_note_kind = gsc_note_kind(19);

/// diagnosis: in the last step `value` tensors had only gradients of 0, and `entry` is the first of
/// them; -1: all gradients were 0. Reports with the norm or amax tell
pub const GSC_NOTE_ZEROS: gsc_note_kind = gsc_note_kind(20);

/// diagnosis: the guard clipped the last steps in a row, and its threshold stays below the norms;
/// `value` is the number since the start
pub const GSC_NOTE_GUARD_CLIPS: gsc_note_kind = gsc_note_kind(21);

/// A message from a call that succeeded. Its text is like the text of a gsc_error: programs read
/// the other fields. Notes on entries come in this order: UNUSABLE, OUTSIDE_LIMITS, CHANGED, LOST,
/// FORMAT, IGNORED, MISSING.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_note {
    /// GSC_NOTE_*
    pub kind: gsc_note_kind,
    /// 0
    pub flags: u32,
    /// index in the call's list, entries or per_tensor, or of a tensor of the report, from 0; -1:
    /// none
    pub entry: i64,
    /// the number in force from now on, or as `kind` says
    pub value: f64,
    /// field of the policy or the state, or empty; with FORMAT the name of the format
    pub field: [c_char; 32],
    /// byte of `message` at which `value` stands by its name, such as "CLAMP" or "CLIP|INCLUSIVE",
    /// or as a number: bindings can write their own name there. Set in MISSING and LOST, and in
    /// CHANGED if the field is a rule
    pub value_start: u32,
    /// bytes of that name; 0: none is marked, as in other notes
    pub value_length: u32,
    /// a sentence, such as "growth_interval is not among the entries: it is 1000, as in the policy"
    pub message: [c_char; 432],
    /// 0
    pub reserved: [u64; 2],
}

layout! { gsc_note, 512,
    kind 0,
    flags 4,
    entry 8,
    value 16,
    field 24,
    value_start 56,
    value_length 60,
    message 64,
    reserved 496,
}

impl Default for gsc_note {
    fn default() -> Self {
        gsc_note::ZERO
    }
}

newtype! {
    /// format_key.uses: where a key occurs.
    #[derive(Eq, Hash)]
    gsc_key_use: u32
}

/// checkpoints: gsc_state_import reads it
pub const GSC_KEY_SAVED: gsc_key_use = gsc_key_use(1);

/// settings: gsc_policy_import reads it
pub const GSC_KEY_SETTING: gsc_key_use = gsc_key_use(2);

/// the key can end with another number instead of 0, or without _0
pub const GSC_KEY_NUMBERED: gsc_key_use = gsc_key_use(4);

/// A key that a format reads.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_format_key {
    /// without a prefix; ends with a zero
    pub key: [c_char; 64],
    /// field that it sets or decides, by the key that the format "gradscaler" has for it: a field
    /// of the policy, `scale`, or a count of the state
    pub field: [c_char; 32],
    /// GSC_KEY_* bits
    pub uses: gsc_key_use,
    /// 0
    pub flags: u32,
    /// 0
    pub reserved: [u64; 1],
}

layout! { gsc_format_key, 112,
    key 0,
    field 64,
    uses 96,
    flags 100,
    reserved 104,
}

impl Default for gsc_format_key {
    fn default() -> Self {
        gsc_format_key::ZERO
    }
}

// ---- Metrics and diagnosis ----------------------------------------------------------------------

newtype! {
    /// Metrics of gsc_state_metrics, in this order; the keys are these names in lower case. Later
    /// versions add some at the end.
    #[derive(Eq, Hash)]
    gsc_metric: u32
}

/// the scale in force, state.factor.scale
pub const GSC_METRIC_LOSS_SCALE: gsc_metric = gsc_metric(0);

/// 1 if the last update skipped its step, else 0
pub const GSC_METRIC_SKIP: gsc_metric = gsc_metric(1);

/// 1 if the last update skipped its step because of an overflow, else 0
pub const GSC_METRIC_OVERFLOW: gsc_metric = gsc_metric(2);

/// norm of all gradients after unscaling, or the number that the policy judged; NULL if it is not
/// known or some are not finite
pub const GSC_METRIC_NORM: gsc_metric = gsc_metric(3);

/// largest magnitude after unscaling, if the report has amax; NULL if some are not finite
pub const GSC_METRIC_AMAX: gsc_metric = gsc_metric(4);

/// share of the gradients that became zero by unscaling, 0 to 1; NULL unless the report measured
/// underflows
pub const GSC_METRIC_ZERO_SHARE: gsc_metric = gsc_metric(5);

/// overflows since the start
pub const GSC_METRIC_TOTAL_OVERFLOWS: gsc_metric = gsc_metric(6);

/// steps since the start that were skipped as outliers
pub const GSC_METRIC_TOTAL_GUARD_SKIPS: gsc_metric = gsc_metric(7);

/// growths since the start
pub const GSC_METRIC_TOTAL_GROWTHS: gsc_metric = gsc_metric(8);

/// backoffs since the start
pub const GSC_METRIC_TOTAL_BACKOFFS: gsc_metric = gsc_metric(9);

/// steps since the scale changed
pub const GSC_METRIC_STEPS_SINCE_CHANGE: gsc_metric = gsc_metric(10);

/// elements that are NaN; NULL unless report.kind is TENSORS
pub const GSC_METRIC_NAN_COUNT: gsc_metric = gsc_metric(11);

/// elements that are Inf; NULL unless report.kind is TENSORS
pub const GSC_METRIC_INF_COUNT: gsc_metric = gsc_metric(12);

/// threshold that the guard compared the norm with; NULL if it compared none
pub const GSC_METRIC_GUARD_THRESHOLD: gsc_metric = gsc_metric(13);

/// state.guard_multiplier: 1, less if clipped, 0 if skipped
pub const GSC_METRIC_GUARD_MULTIPLIER: gsc_metric = gsc_metric(14);

/// 1 if the loss was not finite before it was scaled, else 0; NULL if the loss is not known
pub const GSC_METRIC_BAD_LOSS: gsc_metric = gsc_metric(15);

/// bad losses since the start
pub const GSC_METRIC_TOTAL_BAD_LOSSES: gsc_metric = gsc_metric(16);

// ---- History: a file with a line for each step --------------------------------------------------

// ---- Tensors ------------------------------------------------------------------------------------

newtype! {
    /// dtype of a tensor.
    #[derive(Eq, Hash)]
    gsc_dtype: u32
}

/// IEEE binary32
pub const GSC_F32: gsc_dtype = gsc_dtype(1);

/// IEEE binary64
pub const GSC_F64: gsc_dtype = gsc_dtype(2);

/// IEEE binary16
pub const GSC_F16: gsc_dtype = gsc_dtype(3);

/// bfloat16: the upper half of a binary32
pub const GSC_BF16: gsc_dtype = gsc_dtype(4);

/// OCP FP8 without Inf; up to 448
pub const GSC_F8_E4M3FN: gsc_dtype = gsc_dtype(5);

/// OCP FP8: the upper half of a binary16
pub const GSC_F8_E5M2: gsc_dtype = gsc_dtype(6);

/// Cerebras' 16 bits: 6 of exponent, 9 of mantissa, bias 42
pub const GSC_CB16: gsc_dtype = gsc_dtype(7);

/// two binary32: real, imaginary
pub const GSC_COMPLEX64: gsc_dtype = gsc_dtype(8);

/// two binary64
pub const GSC_COMPLEX128: gsc_dtype = gsc_dtype(9);

/// A run of elements. An input is only read, although `data` is not const.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_tensor {
    /// first element, any alignment; NULL only if count is 0
    pub data: *mut c_void,
    /// elements
    pub count: u64,
    /// GSC_F32 ...
    pub dtype: gsc_dtype,
    /// 0
    pub flags: u32,
    /// 0
    pub reserved: [u64; 2],
}

layout! { gsc_tensor, 40,
    data 0,
    count 8,
    dtype 16,
    flags 20,
    reserved 24,
}

impl Default for gsc_tensor {
    fn default() -> Self {
        gsc_tensor::ZERO
    }
}

// Size of options.histogram. Word k counts magnitudes from 2^(4k-48) up to 2^(4k-44) after
// unscaling. Word 0 also counts all smaller ones except zeros, and word 15 all larger finite ones.
// Word 16 is the size of the sample, with zeros, Inf and NaN: the first 4,096 of every 65,536
// elements of a tensor, half as many of a complex tensor. The call sets the words; to merge several
// calls, add their words.

/// words of a histogram
pub const GSC_HISTOGRAM_LENGTH: u32 = 17;

/// Measurements of a call on tensors besides overflow, and a clamp. NULL is the same as
/// GSC_TENSOR_OPTIONS_INIT: overflow only, no clamp.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_tensor_options {
    /// set by the initialiser
    pub struct_size: u32,
    /// GSC_WANT_* bits
    pub want: gsc_want,
    /// also measures what this policy needs; the policy decides report.overflow; NULL: Inf and NaN
    /// are overflows
    pub policy: *const gsc_policy,
    /// above 0: limits each output to the clamp, rounded down in the dtype of the output; a clamp
    /// that rounds to 0 is refused; the report is of the values before the clamp. 0: no limit
    pub clamp: f64,
    /// n reports: per_tensor\[i\] is of tensor i alone, and its first_tensor is i; it is judged
    /// without the policy and the loss: its overflow says if the tensor has an Inf or NaN; NULL:
    /// none
    pub per_tensor: *mut gsc_report,
    /// GSC_HISTOGRAM_LENGTH words; NULL: none
    pub histogram: *mut i64,
    /// the loss before it was scaled, of any real dtype; its data is where the tensors are, and is
    /// no output of the call. report.loss says if all its elements are finite. NULL, or no
    /// elements: unknown. Do not give a loss that the scale made
    pub loss: *const gsc_tensor,
}

layout! { gsc_tensor_options, 48,
    struct_size 0,
    want 4,
    policy 8,
    clamp 16,
    per_tensor 24,
    histogram 32,
    loss 40,
}

/// Bytes of [`gsc_tensor_options`].
pub const GSC_TENSOR_OPTIONS_SIZE: u32 = 48;

/// Zeros, and the size: where every [`gsc_tensor_options`] starts.
pub const GSC_TENSOR_OPTIONS_INIT: gsc_tensor_options = gsc_tensor_options {
    struct_size: GSC_TENSOR_OPTIONS_SIZE,
    ..gsc_tensor_options::ZERO
};

impl Default for gsc_tensor_options {
    fn default() -> Self {
        GSC_TENSOR_OPTIONS_INIT
    }
}

// ---- Calls on tensors ---------------------------------------------------------------------------

// ---- CUDA ---------------------------------------------------------------------------------------

/// The device of a context.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_cuda_options {
    /// set by the initialiser
    pub struct_size: u32,
    /// CUDA ordinal
    pub device: i32,
}

layout! { gsc_cuda_options, 8,
    struct_size 0,
    device 4,
}

/// Bytes of [`gsc_cuda_options`].
pub const GSC_CUDA_OPTIONS_SIZE: u32 = 8;

/// Zeros, and the size: where every [`gsc_cuda_options`] starts.
pub const GSC_CUDA_OPTIONS_INIT: gsc_cuda_options = gsc_cuda_options {
    struct_size: GSC_CUDA_OPTIONS_SIZE,
    ..gsc_cuda_options::ZERO
};

impl Default for gsc_cuda_options {
    fn default() -> Self {
        GSC_CUDA_OPTIONS_INIT
    }
}

newtype! {
    /// Kinds of memory of a context. On the CPU both are host memory.
    #[derive(Eq, Hash)]
    gsc_memory_kind: u32
}

/// memory of the device
pub const GSC_MEMORY_DEVICE: gsc_memory_kind = gsc_memory_kind(0);

/// host memory that the device can also read and write
pub const GSC_MEMORY_HOST: gsc_memory_kind = gsc_memory_kind(1);

// ---- Functions ----------------------------------------------------------------------------------

extern "C" {
    /// Returns the meaning of a status in a few words. Never NULL, never freed.
    pub fn gsc_status_string(status: gsc_status) -> *const c_char;

    /// Returns the version of the library that runs, as major << 16 | minor << 8 | patch, with
    /// minor and patch below 256; GSC_VERSION is the version of this header.
    pub fn gsc_version() -> u32;

    /// Returns the version of the library that runs as text, such as "1.0.2". Never NULL, never
    /// freed.
    pub fn gsc_version_string() -> *const c_char;

    /// `feature` is a number, not a union of bits. Returns 0 if the library that runs was built
    /// without it or does not know it, else 1, and for GSC_FEATURE_CUDA the GSC_CUDA_VERSION of
    /// that library. gsc_cuda_start checks for a device.
    pub fn gsc_has(feature: gsc_feature) -> i32;

    /// Initialises a struct that starts with struct_size, for languages that cannot use the macros
    /// GSC_..._INIT: sets struct_size and clears the rest.
    ///
    /// - `struct_size`: bytes of the struct, as the caller's language has it
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
    pub fn gsc_struct_init(out: *mut c_void, struct_size: u32, err: *mut gsc_error) -> gsc_status;

    /// Fills *out, made by GSC_POLICY_INIT, with a named set of rules: "recommended" for new work,
    /// "guard" for bf16, "none", "static", or the exact rules of the version of a framework that
    /// gsc_preset_summary names, such as "torch" or "megatron".
    ///
    /// - `out`: read and written
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_PRESET.
    pub fn gsc_policy_preset(
        name: *const c_char,
        out: *mut gsc_policy,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Checks that the policy can be used. Every call that takes a policy makes the same check.
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY.
    pub fn gsc_policy_check(policy: *const gsc_policy, err: *mut gsc_error) -> gsc_status;

    /// Writes the traits of a policy, and a copy of the policy that has its defaults as numbers,
    /// for display. In *out, which GSC_POLICY_INIT made, init_scale, growth_factor and hysteresis
    /// are 1 if they were 0, and backoff_factor is 1 / growth_factor if it was 0. Other fields do
    /// not change. Update with *policy, not *out: a backoff_factor of 0 divides by growth_factor,
    /// and that can round differently. *out can be *policy.
    ///
    /// - `out`: NULL: not wanted; read and written
    /// - `traits`: NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY.
    pub fn gsc_policy_resolve(
        policy: *const gsc_policy,
        out: *mut gsc_policy,
        traits: *mut gsc_trait,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Returns the name of preset `index`, from 0, or NULL after the last.
    pub fn gsc_preset_name(index: u32) -> *const c_char;

    /// Returns a sentence on what preset `index` does and where its rules come from, or NULL after
    /// the last.
    pub fn gsc_preset_summary(index: u32) -> *const c_char;

    /// Makes a context of threads. Its own threads sleep between calls. Results have the same bits
    /// for any number of threads.
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_MEMORY.
    pub fn gsc_context_create_cpu(
        options: *const gsc_cpu_options,
        out: *mut *mut gsc_context,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Frees a context that no call, stream or graph uses any more.
    ///
    /// - `context`: NULL: does nothing
    pub fn gsc_context_destroy(context: *mut gsc_context);

    /// Fills *out, made by GSC_INFO_INIT.
    ///
    /// - `out`: read and written
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
    pub fn gsc_info_get(out: *mut gsc_info, err: *mut gsc_error) -> gsc_status;

    /// Makes the factor of a scale, with generation 0.
    ///
    /// - `scale`: finite and above 0 as a float, as is 1 / scale
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_VALUE.
    pub fn gsc_factor_init(scale: f64, out: *mut gsc_factor, err: *mut gsc_error) -> gsc_status;

    /// Multiplies the scale by `by` and divides the inverse by `by`. Both must stay above 0 and
    /// finite as floats. To get the mean of k gradients that were added, unscale their sum with the
    /// factor times k. *out can be *factor.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `by`: finite, above 0
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_VALUE,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_factor_multiply(
        exec: *const gsc_exec,
        factor: *const gsc_factor,
        by: f64,
        out: *mut gsc_factor,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Makes the report of a number, such as the loss of a step, for a policy that guards this
    /// number instead of gradients. Update a separate state with this report;
    /// gsc_state_combine_decisions combines the decisions of both states. The number keeps its
    /// sign. Inf and NaN are an overflow, not a bad loss: see options.loss. If the loss is in
    /// device memory, measure its magnitude with gsc_measure and GSC_WANT_NORM instead. A report of
    /// a number cannot be merged.
    ///
    /// - `number`: any; magnitudes above 2^500 count as Inf
    ///
    /// Errors: GSC_ERROR_NULL.
    pub fn gsc_report_from_number(
        number: f64,
        out: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Makes a report of the flag of other code, such as a framework's found_inf. It has no
    /// measurements, so a policy that judges by the norm refuses it unless it has an overflow.
    ///
    /// - `overflow`: not 0: an overflow
    ///
    /// Errors: GSC_ERROR_NULL.
    pub fn gsc_report_from_flag(
        overflow: i32,
        out: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Merges reports into one. Ranks gather their reports and merge them in the order of the
    /// ranks: then all get the same bits. The call does not check that each rank is there once and
    /// in order. The result has the measurements that all reports have. The norm and amax of
    /// addends are unknown: measure the sum of the gradients. first_tensor and first_element come
    /// from the first report with an element that is not finite, last_tensor from the last. The
    /// loss is bad if any known loss is bad, and finite if all known losses are. The generation is
    /// the least that is known. *out can be one of the reports.
    ///
    /// If digests differ, the call fails with GSC_ERROR_MISMATCH and the index of the first report
    /// that differs from the reports before it. A report without a digest, such as the report of a
    /// rank that failed or that has no gradients, agrees with all.
    ///
    /// Merged reports can be merged again: first in each node, then across nodes. The result has
    /// the same bits as one merge of all reports, except sum_squares, which is then a sum of the
    /// nodes' sums. If all ranks merge the same groups, all get the same sum. That sum equals one
    /// merge's bit by bit if each group except the last has 64 reports and there are at most 64
    /// groups. Give the policy to the last merge. If the merge of a group is refused, the group
    /// sends the report of GSC_EXEC_WRITE_FAILURES to the next merge, so that the other groups do
    /// not wait.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `n`: 0 gives the report of an empty list
    /// - `policy`: NULL: an overflow in any report is an overflow; with a policy, the policy judges
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_REPORT,
    /// GSC_ERROR_MISMATCH, GSC_ERROR_VALUE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_report_merge(
        exec: *const gsc_exec,
        reports: *const gsc_report,
        n: u64,
        kind: gsc_merge_kind,
        policy: *const gsc_policy,
        out: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), as
    /// torch.nn.utils.clip_grad_norm_ does. The report needs GSC_WANT_NORM. After gsc_measure,
    /// unscale with *out to clip in the same pass. If an optimizer takes a multiplier, pass
    /// out->inverse_f32; it becomes 0 if the inverse is too small for a float. To also clip
    /// outliers, make both factors from the same factor, and unscale with the one that has the
    /// smaller inverse: one after the other, they clip too much. *out can be *factor.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `max_norm`: finite, above 0
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_REPORT, GSC_ERROR_FACTOR,
    /// GSC_ERROR_VALUE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_factor_clip_grad_norm(
        exec: *const gsc_exec,
        factor: *const gsc_factor,
        report: *const gsc_report,
        max_norm: f64,
        out: *mut gsc_factor,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Makes the state before the first step.
    ///
    /// - `exec`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_MEMORY,
    /// GSC_ERROR_DEVICE.
    pub fn gsc_state_init(
        exec: *const gsc_exec,
        policy: *const gsc_policy,
        out: *mut gsc_state,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Makes a state with the scale from->factor.scale, in force immediately, and with the counts,
    /// means and totals of `from`. To set the scale or the counts of a state, change a copy of the
    /// state and pass it. *out can be *from. A scale of 0 or infinity, which some frameworks reach,
    /// is accepted, but every call that multiplies refuses its factor.
    ///
    /// - `exec`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_state_init_from(
        exec: *const gsc_exec,
        policy: *const gsc_policy,
        from: *const gsc_state,
        out: *mut gsc_state,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Updates the state by one step of the policy. Call it once for each optimizer step, also for
    /// a skipped one, with a report on all gradients of the step. *out can be *state. Then read
    /// out->skip: if it is 1, leave the parameters alone. report.overflow only says if there was an
    /// overflow: outliers are found by this update. out->events says what happened:
    /// - GSC_EVENT_CLIPPED: multiply the gradients before the step, see gsc_factor_clip_outlier.
    /// - GSC_EVENT_STOPPED: end the training. A further update works as any other.
    /// - GSC_EVENT_STALE: the report was late or used twice, but it counted like any other.
    ///
    /// A report without a measurement that the policy needs is refused: set options.policy.
    ///
    /// - `exec`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_REPORT, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_state_update(
        exec: *const gsc_exec,
        policy: *const gsc_policy,
        state: *const gsc_state,
        report: *const gsc_report,
        out: *mut gsc_state,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Copies `state` to *out, with the decisions of `other` added: *out skips, clips or stops if
    /// either state did in its last update. `other` is the state of another signal, such as the
    /// loss, with its own policy. *out has the events SKIPPED, STOPPED, OUTLIER, CLIPPED and
    /// BAD_LOSS of both, and the smaller multiplier. The scale, counts and samples come from
    /// `state`. *out can be either state. Combine several signals one after the other.
    ///
    /// - `exec`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_STATE, GSC_ERROR_VERSION,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_state_combine_decisions(
        exec: *const gsc_exec,
        state: *const gsc_state,
        other: *const gsc_state,
        out: *mut gsc_state,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Explains the decision of the last update. `report` is the report of that update; the call
    /// does not check this. The cause of an overflow is the first of these: a parameter is not
    /// finite; the first loss; a later loss; the scale does not fit the dtype of the loss; else the
    /// backward pass made Inf or NaN, and the sentence names the tensor that is nearest to the
    /// cause.
    ///
    /// The lists are about the same n tensors. `names` are UTF-8; names\[i\] can be NULL, and a name
    /// that is too long is cut. `order` has the indices of the tensors in the order in which the
    /// backward pass made their gradients: with `per_tensor`, the first bad one in it is nearest to
    /// the cause. Without an order, list the tensors in the model's order: the last bad one is
    /// nearest. If reports of ranks were merged, pass the lists of the rank that has this tensor.
    /// All memory is host memory.
    ///
    /// - `report`: NULL: the gradients and the loss are unknown
    /// - `evidence`: NULL: nothing else is known
    /// - `per_tensor`: NULL: the number of bad tensors is unknown
    /// - `names`: NULL: the sentence has the index of the tensor
    /// - `order`: NULL: the order of the backward pass is unknown
    /// - `n`: tensors of the list
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STATE, GSC_ERROR_VERSION, GSC_ERROR_REPORT,
    /// GSC_ERROR_VALUE.
    pub fn gsc_state_reason(
        state: *const gsc_state,
        report: *const gsc_report,
        evidence: *const gsc_evidence,
        per_tensor: *const gsc_report,
        names: *const *const c_char,
        order: *const u64,
        n: u64,
        out: *mut gsc_reason,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes a factor that unscales and clips the gradients of the last update in one pass. If the
    /// update has GSC_EVENT_CLIPPED, *out is *factor with its inverse multiplied by
    /// state->guard_multiplier, else *out is *factor. Pass the factor that the gradients were
    /// scaled by: a copy of state->factor from before the update. If the optimizer itself
    /// multiplies the gradients, pass it out->inverse_f32, which becomes 0 if the inverse is too
    /// small for a float, and state->skip_f32 as found_inf. *out can be *factor.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_factor_clip_outlier(
        exec: *const gsc_exec,
        factor: *const gsc_factor,
        state: *const gsc_state,
        out: *mut gsc_factor,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes policy and state, which are in host memory, as bytes with a version and a checksum.
    /// Bytes of 1.0 or later can be read by every later version on every machine. *size becomes the
    /// number of bytes; with bytes NULL and capacity 0, the call only sets *size.
    ///
    /// - `capacity`: bytes; GSC_SAVED_SIZE_MAX always suffices
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_CAPACITY.
    pub fn gsc_state_save(
        policy: *const gsc_policy,
        state: *const gsc_state,
        bytes: *mut c_void,
        capacity: u64,
        size: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Reads bytes that gsc_state_save wrote. Bytes of a candidate before 0.10 are refused with
    /// GSC_ERROR_VERSION. If the caller's gsc_policy is older and lacks fields, these must be 0 in
    /// the bytes.
    ///
    /// - `policy`: NULL: not wanted; else GSC_POLICY_INIT made it; read and written
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_CORRUPT, GSC_ERROR_VERSION.
    pub fn gsc_state_load(
        bytes: *const c_void,
        size: u64,
        policy: *mut gsc_policy,
        state: *mut gsc_state,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes a digest of all that decides later steps: rules, scales, counts and means, but not
    /// totals, generations, events, init_scale and the counts that only a diagnosis reads. It is
    /// never 0, and the same on every device and in every language. Compare digests only if
    /// gsc_version is the same.
    ///
    /// - `policy`: NULL: digest of the state alone
    /// - `state`: NULL: digest of the policy alone; one of both is required
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION.
    pub fn gsc_state_digest(
        policy: *const gsc_policy,
        state: *const gsc_state,
        digest: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Copies *report to *out and sets the rank of the copy: first_rank_plus_1, last_rank_plus_1,
    /// loss_rank_plus_1 and status_rank_plus_1 become rank + 1, and digest becomes the
    /// gsc_state_digest of policy and state. Call it before the update: all ranks then have the
    /// same state, and gsc_report_merge refuses reports with different digests. *out can be
    /// *report.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `policy`: NULL: the digest is of the state alone
    /// - `state`: NULL: the digest is of the policy alone; if both are NULL, the digest is 0
    /// - `rank`: from 0, below 2^32 - 1
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_REPORT, GSC_ERROR_VALUE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_report_set_rank(
        exec: *const gsc_exec,
        report: *const gsc_report,
        policy: *const gsc_policy,
        state: *const gsc_state,
        rank: u32,
        out: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Returns the name of format `index`, from 0, or NULL after the last. Most formats have the
    /// name of a preset.
    pub fn gsc_format_name(index: u32) -> *const c_char;

    /// Returns a sentence on the framework and the content of format `index`, or NULL after the
    /// last.
    pub fn gsc_format_summary(index: u32) -> *const c_char;

    /// Lists the keys that a format reads, the format's own first. A key is there twice if it sets
    /// one field in checkpoints and another one in settings.
    ///
    /// - `keys_capacity`: capacity of the list; further keys are only counted
    /// - `keys_count`: number of keys; NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_FORMAT.
    pub fn gsc_format_keys(
        format: *const c_char,
        keys: *mut gsc_format_key,
        keys_capacity: u64,
        keys_count: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Reads a checkpoint. *out_policy, made by GSC_POLICY_INIT, becomes `policy` with the settings
    /// in the entries. *out_state continues with the counts in the entries. Both policies can be
    /// one struct.
    ///
    /// If `prefix` is NULL, the scaler's keys are at the top or below one or two names, as in
    /// "scale", "scaler.scale" and "optimizer.grad_scaler.scale". If a scaler is only below more
    /// names, or if there are several scalers, the call fails and names the prefixes. If `format`
    /// is NULL, the keys tell the format. If several formats fit, they must give the same result,
    /// else the call fails and names the formats.
    ///
    /// If the scale is missing, or if a value cannot be a scale or a count, the call fails and
    /// names the key. The notes list everything that is not among the entries, has no meaning here,
    /// or has another meaning in this policy, such as a count past its interval.
    ///
    /// - `format`: NULL: recognised by the keys
    /// - `prefix`: beginning of the keys, up to a dot, such as "loss_scaler1"; "": the keys have no
    ///   prefix; NULL: search at the top and below one or two names
    /// - `policy`: NULL: the preset of the format
    /// - `notes_capacity`: capacity of the list; further notes are only counted
    /// - `notes_count`: number of notes; NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_VALUE,
    /// GSC_ERROR_COUNT, GSC_ERROR_VERSION, GSC_ERROR_FORMAT.
    pub fn gsc_state_import(
        format: *const c_char,
        prefix: *const c_char,
        entries: *const gsc_entry,
        entries_count: u64,
        policy: *const gsc_policy,
        out_policy: *mut gsc_policy,
        out_state: *mut gsc_state,
        notes: *mut gsc_note,
        notes_capacity: u64,
        notes_count: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes a state, and the settings of its policy that belong to it, with the keys of a
    /// framework. The notes list what these keys cannot hold; gsc_state_import restores everything
    /// else, except counts that only a diagnosis reads. If the list is too small for the entries,
    /// the call fails; with a capacity of 0 it only counts.
    ///
    /// - `prefix`: beginning of the keys, without a dot at its end; "": the keys have no prefix;
    ///   NULL: the framework's own prefix
    /// - `entries_capacity`: capacity of the list
    /// - `entries_count`: number of entries; NULL: not wanted
    /// - `notes_capacity`: capacity of the list; further notes are only counted
    /// - `notes_count`: number of notes; NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY, GSC_ERROR_FORMAT.
    pub fn gsc_state_export(
        format: *const c_char,
        prefix: *const c_char,
        policy: *const gsc_policy,
        state: *const gsc_state,
        entries: *mut gsc_entry,
        entries_capacity: u64,
        entries_count: *mut u64,
        notes: *mut gsc_note,
        notes_capacity: u64,
        notes_count: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Reads the settings of a framework's scaler: the arguments of its constructor or program, or
    /// its section of a configuration. *out_policy, made by GSC_POLICY_INIT, becomes `policy` with
    /// these settings; both can be one struct. Every format also reads the fields of gsc_policy by
    /// their own names. `format` can also be the name of a preset that is no format, such as
    /// "guard": it has no other keys. If the prefix is DeepSpeed's section for bf16, or if that
    /// section is on and fp16 is off, the scale is 1 forever, whatever `policy` starts with.
    ///
    /// - `prefix`: beginning of the keys, up to a dot, such as "fp16"; other keys are ignored, but
    ///   a prefix that no key has is refused; NULL: as "": none
    /// - `policy`: NULL: the preset of the format
    /// - `notes_capacity`: capacity of the list; further notes are only counted
    /// - `notes_count`: number of notes; NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_VALUE,
    /// GSC_ERROR_COUNT, GSC_ERROR_VERSION, GSC_ERROR_FORMAT.
    pub fn gsc_policy_import(
        format: *const c_char,
        prefix: *const c_char,
        entries: *const gsc_entry,
        entries_count: u64,
        policy: *const gsc_policy,
        out_policy: *mut gsc_policy,
        notes: *mut gsc_note,
        notes_capacity: u64,
        notes_count: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes the state after an update, and the report of that update, as numbers with names: see
    /// GSC_METRIC_*. The call does not check that the report belongs to the update. Counts are
    /// INTEGER, SKIP, OVERFLOW and BAD_LOSS are BOOLEAN, and unknown values are NULL. All memory is
    /// host memory. The call writes as many entries as the list has room for, and writes the number
    /// of all.
    ///
    /// - `report`: NULL: metrics that only a report has are NULL
    /// - `entries_capacity`: capacity of the list; further entries are only counted
    /// - `entries_count`: number of entries; NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_REPORT.
    pub fn gsc_state_metrics(
        policy: *const gsc_policy,
        state: *const gsc_state,
        report: *const gsc_report,
        entries: *mut gsc_entry,
        entries_capacity: u64,
        entries_count: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Lists the faults of a run as notes, the most important first. Each message says what to do.
    /// A count of 0 means that no fault was found. Behaviour that a framework's policy has by
    /// design is no fault. All memory is host memory. A report with an error status is accepted.
    /// Shares are of state.total_updates. The state tells what earlier steps did, so no earlier
    /// report is needed. The limits, such as the share of overflows, can change with a version.
    ///
    /// - `report`: NULL: the last gradients are unknown
    /// - `per_tensor`: NULL: the notes name only the last tensor that is not finite, and none of
    ///   zeros
    /// - `per_tensor_count`: ignored if per_tensor is NULL
    /// - `steps`: updates so far, of planned_steps; 0: state.total_updates
    /// - `planned_steps`: updates of the whole run; 0: not known
    /// - `notes_capacity`: capacity of the list; further notes are only counted
    /// - `notes_count`: number of notes; NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_REPORT.
    pub fn gsc_state_diagnose(
        policy: *const gsc_policy,
        state: *const gsc_state,
        report: *const gsc_report,
        per_tensor: *const gsc_report,
        per_tensor_count: u64,
        steps: u64,
        planned_steps: u64,
        notes: *mut gsc_note,
        notes_capacity: u64,
        notes_count: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes the line `start` of a history: the version of the library, all fields of the policy,
    /// and the whole state. The line ends with a line feed, not with a zero. *size becomes the
    /// number of bytes, also if the call fails with GSC_ERROR_CAPACITY; with bytes NULL and
    /// capacity 0, the call only sets *size.
    ///
    /// - `preset`: name of the preset that the policy was made from; NULL: left out
    /// - `state`: before the first update that has a line
    /// - `names`: of all tensors; NULL: left out
    /// - `n`: number of names
    /// - `step`: number of the next step
    /// - `rank`: rank of this process
    /// - `time`: seconds since 1970; 0: left out
    /// - `run`: name that tells this writer apart from other writers of the file; NULL: left out
    /// - `bytes`: overwritten even if the call fails
    /// - `capacity`: bytes
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VERSION, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY.
    pub fn gsc_history_start(
        policy: *const gsc_policy,
        preset: *const c_char,
        state: *const gsc_state,
        names: *const *const c_char,
        n: u64,
        step: u64,
        rank: u32,
        time: f64,
        run: *const c_char,
        bytes: *mut c_void,
        capacity: u64,
        size: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes the line of one update: the metrics of gsc_state_metrics, the events by name, the
    /// reason unless the step was taken as it is, and in `state` and `report` all other fields that
    /// are not 0, so that gsc_state_diagnose finds the same in the line as in the structs.
    /// `tensors` lists tensors by name: with `per_tensor` the first seven tensors and the last one
    /// that are not finite, the one that lost the largest share to zero, and the first of `zeros`,
    /// which had only zeros; else the last one that is not finite. The line ends with a line feed,
    /// not with a zero. *size becomes the number of bytes, also if the call fails with
    /// GSC_ERROR_CAPACITY; with bytes NULL and capacity 0, the call only sets *size.
    ///
    /// - `state`: after the update
    /// - `report`: NULL: only the state is known
    /// - `reason`: NULL: the call makes it of the other arguments
    /// - `per_tensor`: NULL: the reports of single tensors are unknown
    /// - `names`: NULL: tensors have numbers; so have those with a name that is NULL
    /// - `n`: tensors of the lists
    /// - `step`: number of the step
    /// - `time`: seconds since 1970; 0: left out
    /// - `run`: as in gsc_history_start; NULL: left out
    /// - `bytes`: overwritten even if the call fails
    /// - `capacity`: bytes
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STATE, GSC_ERROR_VERSION, GSC_ERROR_REPORT,
    /// GSC_ERROR_VALUE, GSC_ERROR_CAPACITY.
    pub fn gsc_history_line(
        state: *const gsc_state,
        report: *const gsc_report,
        reason: *const gsc_reason,
        per_tensor: *const gsc_report,
        names: *const *const c_char,
        n: u64,
        step: u64,
        time: f64,
        run: *const c_char,
        bytes: *mut c_void,
        capacity: u64,
        size: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Returns the name of a dtype, as NumPy and ml_dtypes spell it, such as "float32",
    /// "float8_e4m3fn" or "cb16"; NULL if the number is no dtype.
    pub fn gsc_dtype_name(dtype: gsc_dtype) -> *const c_char;

    /// Returns the bits of one element; 0 if the number is no dtype.
    pub fn gsc_dtype_bits(dtype: gsc_dtype) -> u32;

    /// Returns the bytes of one element; 0 if the number is no dtype, or if a byte holds several
    /// elements of the dtype.
    pub fn gsc_dtype_size(dtype: gsc_dtype) -> u32;

    /// Writes the report that gsc_unscale would make in place, each product rounded to its input's
    /// dtype. Writes no tensor.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `options`: NULL: no options; their clamp must be 0
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_FACTOR,
    /// GSC_ERROR_DTYPE, GSC_ERROR_COUNT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY, GSC_ERROR_MEMORY,
    /// GSC_ERROR_DEVICE.
    pub fn gsc_measure(
        exec: *const gsc_exec,
        factor: *const gsc_factor,
        tensors: *const gsc_tensor,
        n: u64,
        options: *const gsc_tensor_options,
        report: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes tensors * factor.inverse to `out`. Writes all elements, even if report->overflow is
    /// set. Unscale float16 gradients into float32: in place, most of what scaling saved is lost
    /// again.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `options`: NULL: no options
    /// - `report`: NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_FACTOR,
    /// GSC_ERROR_DTYPE, GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_unscale(
        exec: *const gsc_exec,
        factor: *const gsc_factor,
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        options: *const gsc_tensor_options,
        report: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes tensors * factor.scale to `out`: the loss, or the first gradients of a backward pass.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `options`: NULL: no options
    /// - `report`: NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_FACTOR,
    /// GSC_ERROR_DTYPE, GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_scale(
        exec: *const gsc_exec,
        factor: *const gsc_factor,
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        options: *const gsc_tensor_options,
        report: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Adds tensors * factor.inverse to `out` if every product is finite in the dtype of its
    /// output, and options.loss, if given, is finite; else adds nothing. A micro-batch that
    /// overflowed, or had a bad loss, is thus left out: divide the sums by the number of
    /// micro-batches that were added. The report is of the products. Unscale or check the sums to
    /// see whether they are finite. Sums are made in the multiplying type, or in double if `out` is
    /// double. The call reads `tensors` twice; `out` must be other memory.
    ///
    /// For a step of several micro-batches, call this without options.policy: the micro-batch was
    /// added if report.overflow is 0 and report.loss is not GSC_LOSS_NOT_FINITE. Keep one merged
    /// report: start it by gsc_report_merge with n = 0, then merge it with each new report as
    /// addends. If any were added, unscale the sums with options.policy and with the factor that
    /// gsc_factor_init makes of their number. Then update:
    /// - If the merged report has no overflow and, with GSC_BAD_LOSS_HOLD, no bad loss, update with
    ///   the report of the sums, and leave the parameters alone if state.skip is 1.
    /// - Else update with the merged report, so that the scale backs off or, with
    ///   GSC_BAD_LOSS_HOLD, stays. Do not read state.skip of this update: it is about the
    ///   micro-batches that were left out. The update still counts for max_failed_backoffs. Take
    ///   the step of the other micro-batches, if there are any and the report of the sums has no
    ///   overflow. A guard does not judge this step.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `options`: NULL: no options; their clamp must be 0
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_FACTOR,
    /// GSC_ERROR_DTYPE, GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_unscale_accumulate(
        exec: *const gsc_exec,
        factor: *const gsc_factor,
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        options: *const gsc_tensor_options,
        report: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Copies `tensors` to `out` if the last update of `state` takes its step. If state->skip is 1,
    /// writes nothing. So a program that does not wait for its device still skips: the optimizer
    /// writes new parameters and its new state to other memory, and after the update one call
    /// copies them all over the old ones. Bits are copied, NaN included; if the dtypes differ,
    /// values are rounded as by gsc_unscale with a factor of NULL. Pass integers as GSC_F32 or
    /// GSC_F64, by their size.
    ///
    /// On a device the call reads `state` when it runs. A state that is refused there counts as a
    /// skip.
    ///
    /// - `exec`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_STATE, GSC_ERROR_VERSION,
    /// GSC_ERROR_DTYPE, GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_copy_unless_skipped(
        exec: *const gsc_exec,
        state: *const gsc_state,
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Refuses lists in which an output shares memory with another output or with the input of
    /// another entry. Call it with the lists of a call that writes tensors. It compares addresses
    /// and does not read the data, so the data can be on any device.
    ///
    /// It does not compare an entry's input with its own output: the calls on tensors do this
    /// themselves.
    ///
    /// If it returns GSC_ERROR_OVERLAP, err->name is "tensors" or "out", err->index is the entry of
    /// that list, and err->value is the index of the entry of `out` that overlaps it. Its time is
    /// O(n) if the outputs are in the order of their addresses, else O(n log n).
    ///
    /// - `out`: `tensors` itself for a call in place
    /// - `scratch`: overwritten even if the call fails
    /// - `scratch_capacity`: capacity of `scratch`, in numbers: at least 2 * n
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_DTYPE, GSC_ERROR_COUNT, GSC_ERROR_OVERLAP,
    /// GSC_ERROR_VALUE, GSC_ERROR_CAPACITY.
    pub fn gsc_tensors_check_overlap(
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        scratch: *mut u64,
        scratch_capacity: u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Starts the CUDA driver and checks that there is a device. If there is none, returns
    /// GSC_ERROR_UNAVAILABLE, and err->message says why.
    ///
    /// Errors: GSC_ERROR_UNAVAILABLE.
    pub fn gsc_cuda_start(err: *mut gsc_error) -> gsc_status;

    /// Returns the log of the driver's compiler for the first device that refused the kernels, or
    /// an empty text. Never NULL, never freed.
    pub fn gsc_cuda_log() -> *const c_char;

    /// Makes a context on a CUDA device. It uses the device's primary context, which frameworks
    /// share. It loads the kernels, so that no later call has to; this takes seconds the first time
    /// on a machine. Make one context for each device, not one for each call. Minimum: compute
    /// capability 7.0, driver of CUDA 11.0. cudaDeviceReset ends the context, so destroy it before.
    ///
    /// The first context of a device in a process makes round 0 of each comparison of
    /// gsc_exec_compare, in a stream and memory of its own. If a bit differs, this context and all
    /// later ones of the device fail with GSC_ERROR_DEVICE. While the legacy stream is captured, or
    /// without memory for it, the next context makes them. GSC_CUDA_CHECK=0 in the environment
    /// switches them off.
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE,
    /// GSC_ERROR_DEVICE, GSC_ERROR_MEMORY.
    pub fn gsc_context_create_cuda(
        options: *const gsc_cuda_options,
        out: *mut *mut gsc_context,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Allocates memory of a context, aligned to 256 bytes and not cleared. Free it before the
    /// context.
    ///
    /// - `context`: NULL: host memory
    /// - `size`: bytes; 0 gives NULL
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_VALUE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_memory_create(
        context: *mut gsc_context,
        kind: gsc_memory_kind,
        size: u64,
        out: *mut *mut c_void,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Frees memory that gsc_memory_create made with the same context and that no call, stream or
    /// graph uses any more.
    ///
    /// - `context`: NULL: host memory
    /// - `memory`: NULL: does nothing
    pub fn gsc_memory_destroy(context: *mut gsc_context, memory: *mut c_void);

    /// Copies between host and device memory, in any direction, in the order of exec->stream. Host
    /// memory stays in use until gsc_exec_wait, or until other code waits for the stream.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `size`: bytes
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_DEVICE.
    pub fn gsc_memory_copy(
        exec: *const gsc_exec,
        to: *mut c_void,
        from: *const c_void,
        size: u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Waits until exec->stream has done all work that was enqueued. If the stream is being
    /// captured, fails with GSC_ERROR_UNAVAILABLE, and the capture goes on.
    ///
    /// - `exec`: NULL: returns immediately
    ///
    /// Errors: GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE, GSC_ERROR_DEVICE.
    pub fn gsc_exec_wait(exec: *const gsc_exec, err: *mut gsc_error) -> gsc_status;

    /// Writes the bytes of exec->workspace that any call on tensors needs for this list; 0 on the
    /// CPU.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `options`: NULL: no options
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_DTYPE,
    /// GSC_ERROR_COUNT, GSC_ERROR_VALUE, GSC_ERROR_DEVICE.
    pub fn gsc_workspace_size(
        exec: *const gsc_exec,
        tensors: *const gsc_tensor,
        n: u64,
        options: *const gsc_tensor_options,
        size: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Returns the name of comparison `index`, from 0, or NULL after the last.
    pub fn gsc_comparison_name(index: u32) -> *const c_char;

    /// Makes the same calls on `exec` and on the host, and compares what they write, bit for bit.
    /// If a bit differs, fails with GSC_ERROR_DEVICE, and err->message says where. Writes how many
    /// bytes of `exec` it used. All comparisons together show that a device works; a CUDA context
    /// makes round 0 of each at the first use of a device in a process.
    ///
    /// - `exec`: NULL: this thread, host memory
    /// - `index`: the comparison, see gsc_comparison_name
    /// - `round`: 0 to 1000; each has other values and larger lists
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_exec_compare(
        exec: *const gsc_exec,
        index: u32,
        round: u64,
        size: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;
}

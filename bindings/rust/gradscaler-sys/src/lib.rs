// SPDX-License-Identifier: MIT
// Generated from bindings/abi.toml by bindings/generate.py. Do not edit.
//! gradscaler: loss scaling for mixed-precision training.
//!
//! A training step in fp16 or bf16 multiplies its loss by a scale so that small gradients survive,
//! divides the gradients by it before the optimizer sees them, and when a gradient overflowed skips
//! the step and lowers the scale.
//!
//! ```c
//! gsc_policy policy = GSC_POLICY_INIT;
//! gsc_state state;
//! gsc_report report;
//! gsc_policy_preset("recommended", &policy, NULL);
//! gsc_state_init(NULL, &policy, &state, NULL);
//! for (;;) {
//!     ... gradients of loss * state.factor.scale ...
//!     gsc_unscale(NULL, &state.factor, gradients, gradients, count, 0, &report, NULL);
//!     if (!report.overflow) ... optimizer step ...
//!     gsc_update(NULL, &policy, &state, &report, &state, NULL);
//! }
//! ```
//!
//! Rules that hold for every function:
//! - Structs belong to the caller; nothing is kept after a call returns, but for a gsc_context.
//! - Functions return GSC_OK (0) or a negative GSC_ERROR_*. On an error nothing was written except
//!   *err, which, always last, may be NULL; gsc_exec has the exception, a launch that fails.
//! - A pointer may be NULL only where its function says so. Data pointers may have any alignment.
//! - Functions may be called from any thread at the same time, as long as no two calls write, or
//!   one writes and one reads, the same memory. Results hold in the default rounding mode. None
//!   prints, changes the floating-point environment, or allocates, but for gsc_context_create_*;
//!   the functions of the section Tensors need up to 120 KiB of stack.
//! - `on` says where the memory is: NULL is the calling thread and host memory.
#![no_std]
#![allow(non_camel_case_types, non_snake_case)]

use core::ffi::c_void;

/// C's `char`; core has it only since Rust 1.64.
#[cfg(all(target_arch = "aarch64", not(target_vendor = "apple")))]
pub type c_char = u8;
/// C's `char`; core has it only since Rust 1.64.
#[cfg(not(all(target_arch = "aarch64", not(target_vendor = "apple"))))]
pub type c_char = i8;

/// Compares a struct with the layout that the manifest states: its size at compile time, its fields in a test, as the
/// compiler of Debian 12 cannot subtract pointers in a constant.
macro_rules! layout {
    ($name:ident, $size:literal, $($field:ident $offset:literal,)*) => {
        const _: () = assert!(core::mem::size_of::<$name>() == $size);

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

/// Version of the C interface that this crate declares: major, minor and patch, a byte each.
pub const GSC_VERSION: u32 = 0x000100;

// ---- Status -------------------------------------------------------------------------------------

/// GSC_OK, or why a call did nothing.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct gsc_status(pub i32);

/// done
pub const GSC_OK: gsc_status = gsc_status(0);

/// a pointer is NULL that may not be
pub const GSC_ERROR_NULL: gsc_status = gsc_status(-1);

/// struct_size is not set or impossible, or fields of a newer version are set
pub const GSC_ERROR_STRUCT_SIZE: gsc_status = gsc_status(-2);

/// no preset has this name
pub const GSC_ERROR_PRESET: gsc_status = gsc_status(-3);

/// a field of the policy is out of range
pub const GSC_ERROR_POLICY: gsc_status = gsc_status(-4);

/// the state was not made by this library
pub const GSC_ERROR_STATE: gsc_status = gsc_status(-5);

/// the report failed, or lacks what the policy judges by
pub const GSC_ERROR_REPORT: gsc_status = gsc_status(-6);

/// a factor is zero, infinite or not a number
pub const GSC_ERROR_FACTOR: gsc_status = gsc_status(-7);

/// a number is out of range
pub const GSC_ERROR_VALUE: gsc_status = gsc_status(-8);

/// unknown dtype
pub const GSC_ERROR_DTYPE: gsc_status = gsc_status(-9);

/// counts differ, or the byte size does not fit in 64 bits
pub const GSC_ERROR_COUNT: gsc_status = gsc_status(-10);

/// input and output overlap without being the same
pub const GSC_ERROR_OVERLAP: gsc_status = gsc_status(-11);

/// unknown GSC_WANT_* bits
pub const GSC_ERROR_WANT: gsc_status = gsc_status(-12);

/// the buffer is too small
pub const GSC_ERROR_CAPACITY: gsc_status = gsc_status(-13);

/// saved bytes are truncated, damaged or something else
pub const GSC_ERROR_CORRUPT: gsc_status = gsc_status(-14);

/// saved bytes need a newer version of the library
pub const GSC_ERROR_VERSION: gsc_status = gsc_status(-15);

/// this build or machine cannot do it
pub const GSC_ERROR_UNAVAILABLE: gsc_status = gsc_status(-16);

/// out of memory or threads
pub const GSC_ERROR_MEMORY: gsc_status = gsc_status(-17);

/// the CUDA driver failed, or the context is of another process
pub const GSC_ERROR_DEVICE: gsc_status = gsc_status(-18);

/// What exactly was wrong. Written only when a call fails; pass NULL where the status is enough.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_error {
    /// what the call returned
    pub status: gsc_status,
    /// position of the argument in the call, from 0; -1: none
    pub argument: i32,
    /// index of the tensor in its list; -1: no tensor
    pub index: i64,
    /// what was wrong, such as "policy.min_scale" or "out\[3\].count"
    pub name: [c_char; 48],
    /// one sentence: what, and how to mend it
    pub message: [c_char; 192],
}

layout! { gsc_error, 256,
    status 0,
    argument 4,
    index 8,
    name 16,
    message 64,
}

// ---- Policy: the rules --------------------------------------------------------------------------

// growth_rule: when `good`, less growth_lag, makes a growth due.

/// at the interval or past it
pub const GSC_GROWTH_REACHED: u32 = 0;

/// at the interval only; a count already past it waits for an overflow
pub const GSC_GROWTH_EXACT: u32 = 1;

/// at each multiple; the count runs on over a growth
pub const GSC_GROWTH_EVERY: u32 = 2;

/// as REACHED, but counting `steps`, overflows included
pub const GSC_GROWTH_STEPS: u32 = 3;

// ceiling_rule, floor_rule: what a change does that would reach the limit.

/// ends at the limit
pub const GSC_LIMIT_CLAMP: u32 = 0;

/// as CLAMP, and every update enforces the limit
pub const GSC_LIMIT_ALWAYS: u32 = 1;

/// is dropped
pub const GSC_LIMIT_KEEP: u32 = 2;

/// is dropped, with GSC_EVENT_STOPPED
pub const GSC_LIMIT_STOP: u32 = 3;

// overflow_reset, bits: what sets the count of overflows to 0.

/// a growth
pub const GSC_RESET_ON_GROWTH: u32 = 1;

/// a step without overflow
pub const GSC_RESET_ON_GOOD_STEP: u32 = 2;

/// a backoff
pub const GSC_RESET_ON_BACKOFF: u32 = 4;

// arithmetic: the number format in which a new scale is computed.

/// double
pub const GSC_ARITHMETIC_F64: u32 = 0;

/// double product, rounded once to float
pub const GSC_ARITHMETIC_F32_ONCE: u32 = 1;

/// factors rounded to float first, then a float operation
pub const GSC_ARITHMETIC_F32: u32 = 2;

/// as F32; a result below 2^-126 becomes 0
pub const GSC_ARITHMETIC_F32_FLUSH: u32 = 3;

// overflow_test: what of a report is an overflow.

/// an element that is not finite
pub const GSC_OVERFLOW_ELEMENT: u32 = 0;

/// that, or a sum of squares above the largest float; needs GSC_WANT_NORM
pub const GSC_OVERFLOW_NORM: u32 = 1;

// quirks, bits: what a peer does and no new policy should.

/// a share equal to overflow_tolerance is not tolerated
pub const GSC_QUIRK_TOLERATE_BELOW: u32 = 1;

/// an overflow counts once more, as a good step
pub const GSC_QUIRK_OVERFLOW_COUNTS: u32 = 2;

/// The rules of one scaler. Initialise it, then fill it with gsc_policy_preset.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct gsc_policy {
    /// set by the initialiser
    pub struct_size: u32,
    /// GSC_ARITHMETIC_*
    pub arithmetic: u32,
    /// first scale; 0 is 1
    pub init_scale: f64,
    /// a growth multiplies by it; at least 1, 0 is 1
    pub growth_factor: f64,
    /// a backoff multiplies by it; in (0, 1]. 0: divides by growth_factor
    pub backoff_factor: f64,
    /// good steps from one growth to the next; 0 never grows
    pub growth_interval: u64,
    /// GSC_GROWTH_*
    pub growth_rule: u32,
    /// steps a count needs beyond the interval
    pub growth_lag: u32,
    /// ceiling; 0 is none (infinity)
    pub max_scale: f64,
    /// floor; 0 is none
    pub min_scale: f64,
    /// GSC_LIMIT_* at max_scale; ALWAYS holds for the start, too
    pub ceiling_rule: u32,
    /// GSC_LIMIT_* at min_scale; the start itself is never raised
    pub floor_rule: u32,
    /// GSC_OVERFLOW_*
    pub overflow_test: u32,
    /// overflows, counted until overflow_reset, that make a backoff; the ones before are absorbed;
    /// 0 is 1
    pub hysteresis: u32,
    /// GSC_RESET_* bits: what refills the hysteresis
    pub overflow_reset: u32,
    /// 1: a new scale is in force one update later
    pub apply_delay: u32,
    /// overflows, counted until overflow_reset, up to this share of the steps since the last change
    /// are absorbed; 0 to 1
    pub overflow_tolerance: f64,
    /// GSC_EVENT_STOPPED at this many overflows in a row that could not lower the scale; 0 never
    pub stall_limit: u64,
    /// GSC_QUIRK_* bits; 0 in any new policy
    pub quirks: u32,
    /// 0
    pub reserved: u32,
    /// not 0: the scale is predicted so that amax lands here, and nothing is counted; needs
    /// GSC_WANT_AMAX
    pub target_amax: f64,
    /// decay of the running mean of log2(amax); 0 up to, not including, 1
    pub mean_decay: f64,
    /// decay of its slower mean and of its square; likewise
    pub variance_decay: f64,
    /// standard deviations kept free above the mean
    pub margin_sigmas: f64,
    /// the sample of log2(amax) that an overflow stands for
    pub overflow_log2: f64,
}

layout! { gsc_policy, 152,
    struct_size 0,
    arithmetic 4,
    init_scale 8,
    growth_factor 16,
    backoff_factor 24,
    growth_interval 32,
    growth_rule 40,
    growth_lag 44,
    max_scale 48,
    min_scale 56,
    ceiling_rule 64,
    floor_rule 68,
    overflow_test 72,
    hysteresis 76,
    overflow_reset 80,
    apply_delay 84,
    overflow_tolerance 88,
    stall_limit 96,
    quirks 104,
    reserved 108,
    target_amax 112,
    mean_decay 120,
    variance_decay 128,
    margin_sigmas 136,
    overflow_log2 144,
}

/// Bytes of [`gsc_policy`].
pub const GSC_POLICY_SIZE: u32 = 152;

/// Zeros, and the size: where every [`gsc_policy`] starts.
pub const GSC_POLICY_INIT: gsc_policy = gsc_policy {
    struct_size: GSC_POLICY_SIZE,
    arithmetic: 0,
    init_scale: 0.0,
    growth_factor: 0.0,
    backoff_factor: 0.0,
    growth_interval: 0,
    growth_rule: 0,
    growth_lag: 0,
    max_scale: 0.0,
    min_scale: 0.0,
    ceiling_rule: 0,
    floor_rule: 0,
    overflow_test: 0,
    hysteresis: 0,
    overflow_reset: 0,
    apply_delay: 0,
    overflow_tolerance: 0.0,
    stall_limit: 0,
    quirks: 0,
    reserved: 0,
    target_amax: 0.0,
    mean_decay: 0.0,
    variance_decay: 0.0,
    margin_sigmas: 0.0,
    overflow_log2: 0.0,
};

// ---- Where a call runs --------------------------------------------------------------------------

/// Threads or a CUDA device. Made by gsc_context_create_*; any number of calls may use it at a
/// time.
#[repr(C)]
pub struct gsc_context {
    _opaque: [u8; 0],
    _not_send: core::marker::PhantomData<*mut u8>,
}

/// One piece of a call's work.
pub type gsc_task = unsafe extern "C" fn(data: *mut c_void, index: u64);

/// The caller's thread pool: runs task(data, i) once for every i below count, in any order and on
/// any threads, and returns when all have returned. The tasks neither block nor call back, and need
/// up to 120 KiB of stack.
pub type gsc_parallel_for =
    unsafe extern "C" fn(pool: *mut c_void, task: gsc_task, data: *mut c_void, count: u64);

/// Where the memory of a call is and what computes. Initialise with GSC_EXEC_INIT or gsc_exec_init.
/// A NULL gsc_exec, or one without context, is the calling thread and host memory. With a CUDA
/// context the data of tensors, factors, states, reports and the scale of gsc_set_scale are memory
/// of that device, while `on`, policies and the lists themselves are host memory that the call
/// reads before it returns; the call enqueues on `stream` and returns at once. Page-locked and
/// managed memory that the device sees does as well, but for the workspace; a pointer that it does
/// not see ends the process's use of CUDA when the kernel gets there. The workspace is in use until
/// the stream has done the call, or as long as a graph that captured it lives; calls in the order
/// of one stream may share one, of the largest size. A graph keeps policies, numbers and lists as
/// they were when it was captured.
///
/// What is wrong in the memory of a device is found there: it is said in report.status or
/// state.status, and all else stays as it was, but for the events of an update, which then are
/// GSC_EVENT_SKIPPED; where a factor cannot be made, it is all zeros, which every call refuses; an
/// optimizer kernel that reads it in place must skip its step then, as it does at found_inf. A call
/// without a report has no place to say it: gsc_scale by such a factor leaves `out` as it was, and
/// the report of unscaling by the same factor has the error. The same call on the host, with copies
/// of these structs, says in a sentence what is wrong. A predictive policy needs the host.
///
/// Pointers into the memory of a device, but for the data of tensors, must be multiples of 8. When
/// the driver refuses a launch (GSC_ERROR_DEVICE, GSC_ERROR_MEMORY), those before it are under way:
/// a part of a long list may be done.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_exec {
    /// set by the initialiser
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// NULL: the calling thread
    pub context: *mut gsc_context,
    /// CUstream of that device's primary context; NULL is the legacy default stream in any code, 2
    /// that of the thread. Without a CUDA context NULL
    pub stream: *mut c_void,
    /// scratch of a CUDA context, a multiple of 8; otherwise ignored
    pub workspace: *mut c_void,
    /// its bytes; gsc_workspace_size says how many are needed
    pub workspace_size: u64,
}

layout! { gsc_exec, 40,
    struct_size 0,
    reserved 4,
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
    reserved: 0,
    context: core::ptr::null_mut(),
    stream: core::ptr::null_mut(),
    workspace: core::ptr::null_mut(),
    workspace_size: 0,
};

/// What runs here. The strings belong to the library and are never freed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_info {
    /// set by the initialiser
    pub struct_size: u32,
    /// as gsc_version
    pub version: u32,
    /// instruction set in use: "scalar", "avx2", "avx512" or "neon"; GSC_CPU in the environment
    /// chooses
    pub cpu: *const c_char,
    /// those that this machine can run, separated by spaces
    pub cpu_available: *const c_char,
    /// empty, or why GSC_CPU was not followed
    pub cpu_note: *const c_char,
    /// "available", or why there is no CUDA, or which device refused the kernels first; finding out
    /// starts the driver, which a process forked later cannot use
    pub cuda: *const c_char,
}

layout! { gsc_info, 40,
    struct_size 0,
    version 4,
    cpu 8,
    cpu_available 16,
    cpu_note 24,
    cuda 32,
}

/// Bytes of [`gsc_info`].
pub const GSC_INFO_SIZE: u32 = 40;

/// Zeros, and the size: where every [`gsc_info`] starts.
pub const GSC_INFO_INIT: gsc_info = gsc_info {
    struct_size: GSC_INFO_SIZE,
    version: 0,
    cpu: core::ptr::null(),
    cpu_available: core::ptr::null(),
    cpu_note: core::ptr::null(),
    cuda: core::ptr::null(),
};

// ---- Factor: what one loss was multiplied by ----------------------------------------------------

/// A snapshot of a scale. Copy it freely, to device memory too; fused optimizers read the float
/// members in place, of a state before its update, which overwrites them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct gsc_factor {
    /// the loss is multiplied by this
    pub scale: f64,
    /// the gradients are multiplied by this
    pub inverse: f64,
    /// scale, rounded
    pub scale_f32: f32,
    /// inverse, rounded
    pub inverse_f32: f32,
    /// updates and gsc_set_scale calls that led to it
    pub serial: u64,
}

layout! { gsc_factor, 32,
    scale 0,
    inverse 8,
    scale_f32 16,
    inverse_f32 20,
    serial 24,
}

// ---- Report: what the gradients were like -------------------------------------------------------

// Bits: what a report is to hold beside found_inf. What is not wanted costs nothing.

/// nan_count, inf_count
pub const GSC_WANT_COUNTS: u32 = 1;

/// first_bad
pub const GSC_WANT_FIRST_BAD: u32 = 2;

/// sum_squares
pub const GSC_WANT_NORM: u32 = 4;

/// amax
pub const GSC_WANT_AMAX: u32 = 8;

/// zeros_made, subnormals_made
pub const GSC_WANT_UNDERFLOW: u32 = 16;

/// histogram, of a sample: the first 4,096 of every 65,536 elements of a tensor, of complex ones
/// half as many
pub const GSC_WANT_HISTOGRAM: u32 = 32;

/// Overwritten by the call that fills it. All zeros is the report of an empty list, and adds
/// nothing in a merge. The members stand in groups of 64-bit words that one collective each can
/// reduce over ranks that hold different gradients and want the same: words 0-3 as int64 MAX, 4-7
/// as int64 MIN, 8-9 as double SUM, 10-31 as int64 SUM. gsc_merge does the same for two reports. A
/// rank whose call failed contributes zeros, the error in `status`, and overflow and found_inf of
/// 1, which is also what a device writes: nothing was unscaled, so nobody is to step. The update is
/// then refused everywhere.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct gsc_report {
    /// 1 if an element is Inf or NaN, or became so by unscaling, or the call failed; else 0
    pub found_inf: f32,
    /// the same as an integer
    pub overflow: i32,
    /// largest finite magnitude after unscaling, before rounding to the output's dtype; of a
    /// complex value its larger part
    pub amax: f64,
    /// GSC_WANT_* bits that were not asked for
    pub absent: u32,
    /// 0
    pub max_reserved: [u32; 3],
    /// 0: none, else GSC_BAD_TENSOR and GSC_BAD_ELEMENT of it say where
    pub first_bad: i64,
    /// GSC_OK, or the GSC_ERROR_* of a device or rank that failed
    pub status: i64,
    /// 0
    pub min_reserved: [i64; 2],
    /// of the finite elements after unscaling; its root is the global norm
    pub sum_squares: f64,
    /// 0
    pub sum_reserved: f64,
    /// elements seen
    pub elements: i64,
    /// elements that are NaN
    pub nan_count: i64,
    /// elements that are Inf, or became so by unscaling
    pub inf_count: i64,
    /// outputs that are zero while their input was not
    pub zeros_made: i64,
    /// outputs that are subnormal while their input was not
    pub subnormals_made: i64,
    /// elements that the histogram looked at
    pub histogram_elements: i64,
    /// of them by magnitude after unscaling: \[k\] those from 2^(4k-48) up to 2^(4k-44); \[0\] all
    /// smaller ones but zeros, \[15\] all finite larger ones
    pub histogram: [i64; 16],
}

layout! { gsc_report, 256,
    found_inf 0,
    overflow 4,
    amax 8,
    absent 16,
    max_reserved 20,
    first_bad 32,
    status 40,
    min_reserved 48,
    sum_squares 64,
    sum_reserved 72,
    elements 80,
    nan_count 88,
    inf_count 96,
    zeros_made 104,
    subnormals_made 112,
    histogram_elements 120,
    histogram 128,
}

// Where report.first_bad points; a tensor past 2^23 - 2 or an element past 2^40 - 2 is given as
// that limit.

/// index in the list
pub const fn GSC_BAD_TENSOR(first_bad: i64) -> i64 {
    ((first_bad as u64) >> 40 & 0x7FFFFF) as i64
}

/// index in the tensor
pub const fn GSC_BAD_ELEMENT(first_bad: i64) -> i64 {
    ((first_bad as u64) & 0xFFFFFFFFFF) as i64
}

// ---- State: the scale and its counts ------------------------------------------------------------

// Bits of state.events: what the last update did.

/// the scale became larger
pub const GSC_EVENT_GREW: u32 = 1;

/// the scale became smaller
pub const GSC_EVENT_BACKED_OFF: u32 = 2;

/// an overflow, or an update that a device refused: leave the parameters alone
pub const GSC_EVENT_SKIPPED: u32 = 4;

/// the overflow was absorbed by hysteresis or tolerance
pub const GSC_EVENT_ABSORBED: u32 = 8;

/// max_scale held a growth
pub const GSC_EVENT_AT_CEILING: u32 = 16;

/// min_scale held a backoff
pub const GSC_EVENT_AT_FLOOR: u32 = 32;

/// the overflow could not lower the scale
pub const GSC_EVENT_STALLED: u32 = 64;

/// the policy gives up: training on would only skip
pub const GSC_EVENT_STOPPED: u32 = 128;

/// One scaler. A value without pointers: copy it, store it, send it. Made by gsc_state_init; the
/// fields are for reading.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct gsc_state {
    /// the scale in force
    pub factor: gsc_factor,
    /// the newest scale; another one only with apply_delay: what the next loss is scaled by while
    /// the update for this one is still under way
    pub next: gsc_factor,
    /// predictive policies: running mean of log2(amax)
    pub mean: f64,
    /// with variance_decay
    pub slow_mean: f64,
    /// of its square
    pub mean_square: f64,
    /// weight of the zero that mean began with
    pub mean_start: f64,
    /// likewise of slow_mean
    pub slow_start: f64,
    /// good steps since the last overflow or, but for GSC_GROWTH_EVERY, growth
    pub good: i64,
    /// all steps since the last change
    pub steps: i64,
    /// overflows not reset yet
    pub overflows: i64,
    /// overflows in a row that could not lower the scale
    pub stalled: i64,
    /// GSC_EVENT_* of the last update
    pub events: u32,
    /// GSC_OK, or the error of the last update on a device; the next good one clears it
    pub status: gsc_status,
    /// overflows since the start
    pub skipped: i64,
    /// updates since the start that made the scale larger
    pub growths: i64,
    /// updates since the start that made it smaller
    pub backoffs: i64,
    /// 0
    pub reserved: [u64; 11],
}

layout! { gsc_state, 256,
    factor 0,
    next 32,
    mean 64,
    slow_mean 72,
    mean_square 80,
    mean_start 88,
    slow_start 96,
    good 104,
    steps 112,
    overflows 120,
    stalled 128,
    events 136,
    status 140,
    skipped 144,
    growths 152,
    backoffs 160,
    reserved 168,
}

/// bytes that hold any saved state of this major version
pub const GSC_SAVED_SIZE: u64 = 1024;

// ---- Tensors ------------------------------------------------------------------------------------

// dtype of a tensor.

/// IEEE binary32
pub const GSC_F32: u32 = 1;

/// IEEE binary64
pub const GSC_F64: u32 = 2;

/// IEEE binary16
pub const GSC_F16: u32 = 3;

/// bfloat16: the upper half of a binary32
pub const GSC_BF16: u32 = 4;

/// 4 bits of exponent, 3 of mantissa, bias 7, no Inf; up to 448 (OCP FP8)
pub const GSC_F8_E4M3FN: u32 = 5;

/// 5 bits of exponent, 2 of mantissa, bias 15; the upper half of a binary16 (OCP FP8)
pub const GSC_F8_E5M2: u32 = 6;

/// Cerebras' 16 bits: 6 of exponent, 9 of mantissa, bias 42
pub const GSC_CB16: u32 = 7;

/// two binary32: real, imaginary
pub const GSC_COMPLEX64: u32 = 8;

/// two binary64
pub const GSC_COMPLEX128: u32 = 9;

/// A run of elements. An input is only read, although `data` is not const.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct gsc_tensor {
    /// first element, any alignment
    pub data: *mut c_void,
    /// elements
    pub count: u64,
    /// GSC_F32 ...
    pub dtype: u32,
    /// 0
    pub reserved: u32,
}

layout! { gsc_tensor, 24,
    data 0,
    count 8,
    dtype 16,
    reserved 20,
}

// ---- Functions ----------------------------------------------------------------------------------

extern "C" {
    /// The meaning of a status in a few words; "unknown status" for a number that is none. Never
    /// NULL, never freed.
    pub fn gsc_status_string(status: gsc_status) -> *const c_char;

    /// Version of the library that runs, as GSC_VERSION is that of this header.
    pub fn gsc_version() -> u32;

    /// What GSC_POLICY_INIT does, for languages without macros: zeros, and struct_size.
    ///
    /// - `struct_size`: bytes of *out
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
    pub fn gsc_policy_init(
        struct_size: u32,
        out: *mut gsc_policy,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Fills *out with a named set of rules: "recommended" for new work, "none", "static", or the
    /// exact rules of a framework, such as "torch" or "megatron" (gsc_preset_name lists them).
    /// out->struct_size must be set; a struct of an older version that lacks a field the preset
    /// needs is refused.
    ///
    /// - `out`: read and written
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_PRESET.
    pub fn gsc_policy_preset(
        name: *const c_char,
        out: *mut gsc_policy,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Whether the policy can be used; the error names the field that cannot. Every call that takes
    /// a policy checks it so.
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY.
    pub fn gsc_policy_check(policy: *const gsc_policy, err: *mut gsc_error) -> gsc_status;

    /// Number of presets.
    pub fn gsc_preset_count() -> u32;

    /// Name of preset `index`, from 0; NULL past the last. Never freed.
    pub fn gsc_preset_name(index: u32) -> *const c_char;

    /// What preset `index` does and where its rules come from, in a sentence; NULL past the last.
    /// Never freed.
    pub fn gsc_preset_summary(index: u32) -> *const c_char;

    /// What GSC_EXEC_INIT does, for languages without macros.
    ///
    /// - `struct_size`: bytes of *out
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
    pub fn gsc_exec_init(struct_size: u32, out: *mut gsc_exec, err: *mut gsc_error) -> gsc_status;

    /// A context that shares the work of a call among `threads` threads, the calling one included:
    /// through the caller's pool, or threads of its own that sleep between calls and are made anew
    /// in a forked process. The results have the same bits as with one thread. Lists below 4 MiB
    /// stay on the calling thread, as does a call while another one has the context's own threads.
    /// More than 64 threads share no better.
    ///
    /// - `threads`: 1 to 1,024
    /// - `parallel_for`: NULL: the context makes threads - 1 of its own
    /// - `pool`: NULL: handed to parallel_for as it is; without one, it must be NULL
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_VALUE, GSC_ERROR_MEMORY.
    pub fn gsc_context_create_cpu(
        threads: u32,
        parallel_for: Option<gsc_parallel_for>,
        pool: *mut c_void,
        out: *mut *mut gsc_context,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// A context on a CUDA device, through the driver that is found at run time. Where there is
    /// none, or it cannot be used, the answer is GSC_ERROR_UNAVAILABLE and gsc_info.cuda says why.
    /// The context is the device's primary one, which frameworks share; the caller's current
    /// context stays as it was. It needs compute capability 7.0 and a driver of CUDA 11.0. It loads
    /// the kernels, which takes seconds the first time on a machine, as the driver compiles them
    /// then, and keeps them for later processes if its cache, ~/.nv/ComputeCache, can be written:
    /// make one per device, not one per call. Not in a process that was forked after CUDA was used:
    /// there it has ceased to work. cudaDeviceReset ends it, too: destroy it before.
    ///
    /// - `device`: CUDA ordinal
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE, GSC_ERROR_DEVICE,
    /// GSC_ERROR_MEMORY.
    pub fn gsc_context_create_cuda(
        device: i32,
        out: *mut *mut gsc_context,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Frees a context that neither a call, on a stream or in progress, nor a CUDA graph that
    /// captured one uses any more.
    ///
    /// - `context`: NULL: does nothing
    pub fn gsc_context_destroy(context: *mut gsc_context);

    /// Loads what calls on `on` still lack, so that none of them is slow the first time or breaks a
    /// stream capture; a CUDA context has loaded all when it was made.
    ///
    /// - `on`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_DEVICE.
    pub fn gsc_prepare(on: *const gsc_exec, err: *mut gsc_error) -> gsc_status;

    /// What GSC_INFO_INIT does, for languages without macros.
    ///
    /// - `struct_size`: bytes of *out
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
    pub fn gsc_info_init(struct_size: u32, out: *mut gsc_info, err: *mut gsc_error) -> gsc_status;

    /// Fills *out, whose struct_size must be set.
    ///
    /// - `out`: read and written
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
    pub fn gsc_get_info(out: *mut gsc_info, err: *mut gsc_error) -> gsc_status;

    /// The factor of a given scale, with serial 0.
    ///
    /// - `scale`: finite, above 0, as its inverse must be
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_VALUE.
    pub fn gsc_factor_init(scale: f64, out: *mut gsc_factor, err: *mut gsc_error) -> gsc_status;

    /// *out is *factor with its scale multiplied by `by` and its inverse divided by it. The mean
    /// over k micro-batches, or ranks, whose gradients were added, is what unscaling by k times the
    /// factor gives. *out may be *factor.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `by`: finite, above 0
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_VALUE,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_factor_multiply(
        on: *const gsc_exec,
        factor: *const gsc_factor,
        by: f64,
        out: *mut gsc_factor,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// One report of two: of micro-batches, of optimizers that share a scale, of ranks. *out may be
    /// *a or *b. It lacks what one of both lacks: ask for the same. first_bad is the earlier one,
    /// so it points into the right list only when both reports are of the same list.
    ///
    /// - `on`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_MEMORY,
    /// GSC_ERROR_DEVICE.
    pub fn gsc_merge(
        on: *const gsc_exec,
        a: *const gsc_report,
        b: *const gsc_report,
        out: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// The state before the first step.
    ///
    /// - `on`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_VALUE,
    /// GSC_ERROR_UNAVAILABLE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_state_init(
        on: *const gsc_exec,
        policy: *const gsc_policy,
        out: *mut gsc_state,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// One step of the policy: *out is the state after the gradients of one optimizer step, whose
    /// report is merged over all of them. *out may be *state. What happened is out->events. An
    /// overflow is not an error.
    ///
    /// A report that lacks what the policy judges by (GSC_OVERFLOW_NORM, target_amax) is refused. A
    /// predictive policy takes a report with amax 0 and no overflow as no sample: the scale stays.
    ///
    /// - `on`: NULL: this thread, host memory
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_REPORT, GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE, GSC_ERROR_MEMORY,
    /// GSC_ERROR_DEVICE.
    pub fn gsc_update(
        on: *const gsc_exec,
        policy: *const gsc_policy,
        state: *const gsc_state,
        report: *const gsc_report,
        out: *mut gsc_state,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// *out is the state with another scale in force at once; the counts start anew, the totals
    /// stay. *out may be *state.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `scale`: one value, above 0
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_set_scale(
        on: *const gsc_exec,
        policy: *const gsc_policy,
        state: *const gsc_state,
        scale: *const f64,
        out: *mut gsc_state,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Writes policy and state as bytes that any later version on any machine reads: little-endian,
    /// versioned, with a checksum. *size becomes the number of bytes needed or written; with bytes
    /// NULL and capacity 0 only that. GSC_SAVED_SIZE always suffices. The state must be host
    /// memory.
    ///
    /// - `bytes`: NULL: with capacity 0: only the size
    /// - `capacity`: bytes
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
    /// GSC_ERROR_CAPACITY.
    pub fn gsc_state_save(
        policy: *const gsc_policy,
        state: *const gsc_state,
        bytes: *mut c_void,
        capacity: u64,
        size: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Reads what gsc_state_save wrote. policy->struct_size must be set; fields that its struct
    /// lacks must be 0 in the bytes.
    ///
    /// - `size`: bytes
    /// - `policy`: NULL: the saved policy is not wanted; read and written
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

    /// Bytes of one element of a dtype; 0 for a number that is none.
    pub fn gsc_dtype_size(dtype: u32) -> u32;

    /// out = tensors * factor.scale: the loss, or the gradient that a backward pass starts from. No
    /// check: what overflows here is found when the gradients are unscaled. `out` may be `tensors`.
    /// Without factor it is a cast; gsc_clip_value casts with saturation.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `factor`: NULL: 1: a cast, or a copy
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
    /// GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY, GSC_ERROR_MEMORY,
    /// GSC_ERROR_DEVICE.
    pub fn gsc_scale(
        on: *const gsc_exec,
        factor: *const gsc_factor,
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Reports on tensors * factor.inverse without writing it: what gsc_unscale in place would
    /// report.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `want`: GSC_WANT_* bits
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
    /// GSC_ERROR_COUNT, GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY, GSC_ERROR_MEMORY,
    /// GSC_ERROR_DEVICE.
    pub fn gsc_check(
        on: *const gsc_exec,
        factor: *const gsc_factor,
        tensors: *const gsc_tensor,
        n: u64,
        want: u32,
        report: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// out = tensors * factor.inverse, in one pass with the check and whatever `want` asks for.
    /// `out` may be `tensors`. All elements are written, also when report->overflow says not to use
    /// them. float16 gradients are best unscaled into float32: in place most of what scaling saved
    /// is lost again.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `want`: GSC_WANT_* bits
    /// - `report`: NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
    /// GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_unscale(
        on: *const gsc_exec,
        factor: *const gsc_factor,
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        want: u32,
        report: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// gsc_unscale with each product clamped to [-limit, limit] before it is rounded to its output,
    /// in the same pass: what torch.nn.utils.clip_grad_value_ does after unscaling. The report is
    /// of the products before they are clamped, so that an overflow is not hidden: Inf is clamped
    /// and counted, NaN stays. A finite product is never bad, however narrow its output: with the
    /// largest value of a dtype as limit this is a cast with saturation. Both parts of a complex
    /// value are clamped.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `limit`: finite, above 0; rounded to the type that multiplies: past the largest float it
    ///   clamps doubles only, below the smallest it is 0
    /// - `want`: GSC_WANT_* bits
    /// - `report`: NULL: not wanted
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
    /// GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_clip_value(
        on: *const gsc_exec,
        factor: *const gsc_factor,
        limit: f64,
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        want: u32,
        report: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// out += tensors * factor.inverse if every product is finite in the dtype of its output, else
    /// nothing at all: a micro-batch that overflowed adds nothing to the good ones. The sums are
    /// made in the type that multiplies, or in double if `out` is double, and rounded to `out`;
    /// that they are finite is for the unscaling or check of the accumulated gradients to find. The
    /// report is of the products. Reads the list twice. `out` and `tensors` have no byte in common.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `factor`: NULL: 1
    /// - `out`: read and written
    /// - `want`: GSC_WANT_* bits
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
    /// GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
    /// GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_accumulate(
        on: *const gsc_exec,
        factor: *const gsc_factor,
        tensors: *const gsc_tensor,
        out: *const gsc_tensor,
        n: u64,
        want: u32,
        report: *mut gsc_report,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// *out is *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), the clip
    /// coefficient of torch.nn.utils.clip_grad_norm_, where norm is the root of
    /// report->sum_squares. After gsc_check, unscaling by *out unscales and clips in one pass;
    /// after gsc_unscale, pass factor NULL and multiply by out->inverse, or hand it to the
    /// optimizer.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `report`: with GSC_WANT_NORM
    /// - `factor`: NULL: 1
    /// - `max_norm`: finite, above 0
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_REPORT, GSC_ERROR_FACTOR,
    /// GSC_ERROR_VALUE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
    pub fn gsc_clip_factor(
        on: *const gsc_exec,
        report: *const gsc_report,
        factor: *const gsc_factor,
        max_norm: f64,
        out: *mut gsc_factor,
        err: *mut gsc_error,
    ) -> gsc_status;

    /// Bytes of gsc_exec.workspace that a call over this list needs: 0 on the CPU, and where there
    /// is no list. It depends on counts and dtypes, not on data; gsc_accumulate needs it for
    /// `tensors`.
    ///
    /// - `on`: NULL: this thread, host memory
    /// - `want`: GSC_WANT_* bits
    ///
    /// Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_DTYPE, GSC_ERROR_COUNT,
    /// GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_DEVICE.
    pub fn gsc_workspace_size(
        on: *const gsc_exec,
        tensors: *const gsc_tensor,
        n: u64,
        want: u32,
        size: *mut u64,
        err: *mut gsc_error,
    ) -> gsc_status;
}

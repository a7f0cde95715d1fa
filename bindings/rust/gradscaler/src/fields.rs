// SPDX-License-Identifier: MIT
// Generated from include/gradscaler.toml by bindings/rust/generate.py. Do not edit.
//! The fields of a policy; `macros.rs` says what becomes of them.

use crate::generated::*;
use crate::policy::{Policy, PolicyBuilder};

fields! {
    /// [`Arithmetic`].
    arithmetic: Arithmetic;
    /// First scale; 0 is 1; at most max_scale, except with [`LimitRule::ENFORCE`], where the first
    /// scale is then max_scale.
    init_scale: f64;
    /// A growth multiplies by this; at least 1; 0 is 1.
    growth_factor: f64;
    /// A backoff multiplies by this, in (0, 1]; 0: divides by growth_factor.
    backoff_factor: f64;
    /// Good steps from one growth to the next; 0 never grows.
    growth_interval: u64;
    /// [`Growth`].
    growth_rule: Growth;
    /// Steps that a growth needs beyond the interval.
    growth_extra_steps: u32;
    /// Ceiling; 0 is none (infinity).
    max_scale: f64;
    /// Floor; 0 is none.
    min_scale: f64;
    /// [`LimitRule`] at max_scale.
    ceiling_rule: LimitRule;
    /// [`LimitRule`] at min_scale; the first scale can be below it: CLAMP raises it at the first
    /// backoff, ENFORCE at the first update.
    floor_rule: LimitRule;
    /// [`OverflowTest`].
    overflow_test: OverflowTest;
    /// Number of overflows that make a backoff; the overflows before the last are absorbed;
    /// overflow_reset says what restarts the count; 0 is 1.
    hysteresis: u32;
    /// [`OverflowReset`]: events that set that count to 0; 0: none, so after the first backoff
    /// every overflow backs off.
    overflow_reset: OverflowReset;
    /// 1: a new scale is in force one update later.
    apply_delay: u32;
    /// An overflow is absorbed if overflows_since_reset is at most this share of
    /// steps_since_change; below 1, or 1 with TOLERANCE_EXCLUSIVE.
    overflow_tolerance: f64;
    /// [`Event::STOPPED`] after this many overflows in a row that could not lower the scale, or,
    /// with [`BadLoss::HOLD`], after this many bad losses in a row; 0: never.
    max_failed_backoffs: u64;
    /// [`Quirk`]; 0 in any new policy.
    quirks: Quirk;
    /// [`BadLoss`]; HOLD needs max_failed_backoffs above 0.
    bad_loss_rule: BadLoss;
    /// A norm above this is an outlier; 0: no such threshold.
    guard_norm: f64;
    /// A norm above this times a mean above 0 is an outlier; must be above 1; 0: no such threshold.
    guard_ratio: f64;
    /// A norm this many standard deviations above the mean is an outlier; 0: no such threshold.
    guard_sigmas: f64;
    /// Factor of the old mean and variance at each sample after the warm-up; below 1; 0: all
    /// samples weigh the same.
    guard_decay: f64;
    /// Mean before the first sample, used to judge the first step; 0: none.
    guard_init_mean: f64;
    /// Samples before the first step is judged; they enter as they are and weigh the same.
    guard_warmup: u64;
    /// At this many outliers in a row, the guard accepts a new level: it lets this outlier and
    /// later ones in the row through; with [`Guard::STOP`] it stops instead; 0: never.
    guard_max_in_a_row: u64;
    /// [`GuardSample`].
    guard_sample: GuardSample;
    /// [`Guard`].
    guard_flags: Guard;
}

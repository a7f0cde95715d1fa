// SPDX-License-Identifier: MIT
//! A policy and a state: the scaler that a training loop owns.

use std::fmt;
use std::ptr;

use crate::error::{check, Result};
use crate::macros::Raw;
use crate::operations::{copy_unless_skipped, FactorIn, ACCUMULATE, SCALE, UNSCALE};
use crate::{sys, Event, Factor, Host, Memory, Options, Policy, Report, Status, Tensor, TensorMut};

/// A scale and its counts, as [`Scaler::state`] gives it: a value without pointers.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub struct State(pub(crate) sys::gsc_state);

impl State {
    /// The size of a state in bytes.
    pub const SIZE: usize = std::mem::size_of::<sys::gsc_state>();

    /// Returns the factor in force: the next loss is multiplied by its scale, and the gradients are
    /// divided by it.
    pub fn factor(&self) -> Factor {
        Factor(self.0.factor)
    }

    /// Returns the factor to scale the next loss by, if the update for this loss is still running. It
    /// differs from [`factor`](Self::factor) only with `apply_delay`.
    pub fn next_factor(&self) -> Factor {
        Factor(self.0.next)
    }

    /// Returns the events of the last update.
    pub fn events(&self) -> Event {
        Event::of(self.0.events)
    }

    /// Returns the counts that the policy's rules use.
    pub fn counts(&self) -> Counts {
        Counts {
            good_steps: self.0.good_steps as u64,
            steps_since_change: self.0.steps_since_change as u64,
            overflows_since_reset: self.0.overflows_since_reset as u64,
            failed_backoffs: self.0.failed_backoffs as u64,
            bad_losses_in_a_row: self.0.bad_losses_in_a_row as u64,
        }
    }

    /// Returns the number to multiply the gradients of the last update by: 1; less if the guard clips;
    /// 0 if the step is skipped.
    #[must_use]
    pub fn multiplier(&self) -> f64 {
        self.0.guard_multiplier
    }

    /// Returns true if the last update says to skip the step.
    #[must_use]
    pub fn skip(&self) -> bool {
        self.0.skip != 0
    }

    /// Returns [`Status::OK`], or the error of the last update on a device.
    pub fn status(&self) -> Status {
        Status::of(self.0.status)
    }

    /// Returns the bytes of C's `gsc_state`, which has more fields.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        // SAFETY: numbers without padding.
        unsafe { std::mem::transmute(self.0) }
    }
}

getters! {
    State:
    /// Returns 1 if the last update says to skip the step, else 0. A fused optimizer that runs after the
    /// update takes it as found_inf.
    skip_f32: f32;
    /// Returns the number of updates since the start.
    total_updates: u64;
    /// Returns the number of overflows since the start, without
    /// [`total_guard_skips`](Self::total_guard_skips) and the bad losses that the policy held.
    total_overflows: u64;
    /// Returns the number of updates since the start with a bad loss, held or not.
    total_bad_losses: u64;
    /// Returns the mean of the guard's samples.
    guard_mean: f64;
    /// Returns the variance of the guard's samples.
    guard_variance: f64;
    /// Returns the number of the guard's samples.
    guard_count: u64;
    /// Returns the number of outliers in a row.
    guard_in_a_row: u64;
    /// Returns the number of steps that the guard skipped since the start.
    total_guard_skips: u64;
    /// Returns the number of steps that the guard clipped since the start.
    total_guard_clips: u64;
    /// Returns the guard's threshold in the last update; 0 if there was none.
    guard_threshold: f64;
    /// Returns the number of growths since the start.
    total_growths: u64;
    /// Returns the number of backoffs since the start.
    total_backoffs: u64;
    /// Returns the number of updates in a row with a NaN among the gradients.
    nans_in_a_row: u64;
    /// Returns the number of updates in a row with [`Event::EMPTY`].
    empty_in_a_row: u64;
    /// Returns [`total_updates`](Self::total_updates) at the last growth, or before that at the first good
    /// step; 0: neither yet.
    updates_at_growth: u64;
    /// Returns [`total_overflows`](Self::total_overflows) at the same update.
    overflows_at_growth: u64;
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("loss_scale", &self.0.factor.scale)
            .field("counts", &self.counts())
            .field("total_updates", &self.total_updates())
            .field("total_overflows", &self.total_overflows())
            .field("total_bad_losses", &self.total_bad_losses())
            .field("total_growths", &self.total_growths())
            .field("total_backoffs", &self.total_backoffs())
            .field("events", &self.events())
            .finish_non_exhaustive()
    }
}

/// The counts that a policy's rules use; see [`Scaler::set_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Good steps since the last overflow or growth: torch's `_growth_tracker`.
    pub good_steps: u64,
    /// All steps since the last change of the scale.
    pub steps_since_change: u64,
    /// Overflows since the last reset of this count.
    pub overflows_since_reset: u64,
    /// Overflows in a row that could not lower the scale.
    pub failed_backoffs: u64,
    /// Bad losses in a row: a finite loss sets this to 0, an unknown one keeps it.
    pub bad_losses_in_a_row: u64,
}

/// A loss scale and the rules by which it moves.
///
/// ```
/// use gradscaler::{Event, Scaler, TensorMut, Want};
///
/// let mut scaler = Scaler::preset("recommended")?;
/// for step in 0..3 {
///     // The gradients of loss * scaler.loss_scale(); here the gradients of the second step overflow.
///     let scaled = if step == 1 { f32::INFINITY } else { scaler.loss_scale() as f32 };
///     let (mut weight, mut bias) = (vec![scaled; 6], vec![0f32; 2]);
///     let mut grads = [TensorMut::new(&mut weight), TensorMut::new(&mut bias)];
///
///     let report = scaler.unscale(&mut grads, Want::NORM)?;
///     if !report.overflow() {
///         assert_eq!(weight[0], 1.0); // the optimizer's step
///     }
///     let events = scaler.update(&report)?;
///     assert_eq!(events.contains(Event::BACKED_OFF), step == 1);
/// }
/// assert_eq!(scaler.state().total_overflows(), 1);
/// # Ok::<(), gradscaler::Error>(())
/// ```
///
/// It adds the gradients of micro-batches:
///
/// ```
/// use gradscaler::{Factor, Options, Scaler, Tensor, TensorMut, Want};
///
/// let mut scaler = Scaler::preset("recommended")?;
/// let (scale, mut sum) = (scaler.loss_scale() as f32, [0f32; 2]);
/// let (mut added, mut dropped) = (0, None);
/// for scaled in [[scale, 3.0 * scale], [f32::INFINITY, 0.0], [3.0 * scale, scale]] {
///     let out = &mut [TensorMut::new(&mut sum)];
///     let report = scaler.unscale_accumulate(&[Tensor::new(&scaled)], out, Want::NONE)?;
///     if report.overflow() {
///         dropped = Some(report);
///     } else {
///         added += 1;
///     }
/// }
/// // The policy judges the mean of the added micro-batches; a dropped one lowers the scale.
/// let mean = Factor::new(f64::from(added))?;
/// let judged = Options::new(Want::NORM).policy(scaler.policy());
/// let report = mean.unscale(&mut [TensorMut::new(&mut sum)], judged)?;
/// assert_eq!((sum, report.overflow()), ([2.0, 2.0], false)); // the optimizer's step
/// scaler.update(&dropped.unwrap_or(report))?;
/// # Ok::<(), gradscaler::Error>(())
/// ```
///
/// On the host it is a plain value: clone it, compare it. [`to_device`](Self::to_device) makes a scaler
/// with state and tensors on a [`Device`](crate::Device); it has the same methods.
///
/// It can be sent to another thread, and any number of threads can unscale by it at the same time; an
/// update takes `&mut`. Its calls on tensors have the errors of the same calls of [`Factor`].
#[derive(Clone, Debug, PartialEq)]
pub struct Scaler<M: Memory = Host> {
    pub(crate) policy: Policy,
    pub(crate) state: M::State,
    pub(crate) memory: M::Handle,
}

/// Displays the scale and the counts in one line.
///
/// ```
/// let scaler = gradscaler::Scaler::preset("torch")?;
/// assert_eq!(scaler.to_string(), "scale 65536, 0 good steps, 0 overflows, 0 growths, 0 backoffs");
/// # Ok::<(), gradscaler::Error>(())
/// ```
impl fmt::Display for Scaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "scale {}, {} good steps, {} overflows, {} growths, {} backoffs",
            self.loss_scale(),
            self.state.counts().good_steps,
            self.state.total_overflows(),
            self.state.total_growths(),
            self.state.total_backoffs()
        )
    }
}

impl Scaler {
    /// Makes a scaler with these rules, before its first step.
    ///
    /// # Errors
    ///
    /// [`Status::POLICY`]: the first scale cannot be used.
    pub fn new(policy: Policy) -> Result<Self> {
        let mut state = sys::gsc_state::default();
        // SAFETY: a policy with its size set, and a state to write.
        check(|err| unsafe { sys::gsc_state_init(ptr::null(), &policy.0, &mut state, err) })?;
        Ok(Self::of(policy, State(state)))
    }

    pub(crate) fn of(policy: Policy, state: State) -> Self {
        Self {
            policy,
            state,
            memory: Host,
        }
    }

    /// Makes a scaler with the rules of a preset; see [`Policy::preset`].
    ///
    /// # Errors
    ///
    /// [`Status::PRESET`]: no preset has this name.
    pub fn preset(name: &str) -> Result<Self> {
        Self::new(Policy::preset(name)?.build()?)
    }

    // ---- properties ----

    /// Returns the scale in force.
    pub fn loss_scale(&self) -> f64 {
        self.state.0.factor.scale
    }

    /// Returns a snapshot of the scale in force, to keep with gradients that are unscaled after a later
    /// update.
    pub fn factor(&self) -> Factor {
        self.state.factor()
    }

    /// Returns the events of the last update.
    pub fn events(&self) -> Event {
        self.state.events()
    }
}

impl<M: Memory> Scaler<M> {
    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the state: the scale and its counts. On a device a kernel reads `factor.scale_f32` or `factor.inverse_f32`
    /// there, at [`DeviceBuffer::as_ptr`](crate::DeviceBuffer::as_ptr).
    pub fn state(&self) -> &M::State {
        &self.state
    }

    // ---- the step ----

    operations! { M, M::Report }

    /// Returns the factor in force, which is the first field of a state.
    fn calls(&self) -> Result<FactorIn<'_, M>> {
        let factor = M::state(&self.memory, "state", &self.state)?.cast();
        // SAFETY: the state is in this memory and borrowed.
        Ok(unsafe { FactorIn::new(&self.memory, factor) })
    }

    /// Returns options with the scaler's policy, unless they have one.
    fn judged<'a>(&'a self, options: Options<'a, M>) -> Options<'a, M> {
        options.or_policy(&self.policy)
    }

    /// Moves the scale after an optimizer step, also if the step was skipped because of
    /// [`overflow`](Report::overflow). Returns the events. On a device the call only enqueues, and the
    /// events are in the [`state`](Self::state).
    ///
    /// If the policy guards, or calls were given a [loss](Options::loss), update before the step: skip the
    /// step if [`State::skip`] is true, and multiply the gradients by [`State::multiplier`] if the events have
    /// [`Event::CLIPPED`].
    ///
    /// [Merge](Report::merge) the reports of ranks, or of optimizers that share this scale, first: they
    /// are one step.
    ///
    /// [`Event::EMPTY`]: no tensor had a gradient. It counts as a good step, so the scale can grow; the crate
    /// `gradscaler-tracing` logs a warning of it.
    ///
    /// [`Event::STALE`]: the report was made with another factor than the one in force, because the
    /// gradients are late or the report was used twice.
    ///
    /// ```
    /// use gradscaler::{Event, Policy, Report, Scaler};
    ///
    /// let policy = Policy::preset("none")?.guard_norm(2.0).build()?;
    /// let mut scaler = Scaler::new(policy)?;
    /// let events = scaler.update(&Report::number(3.0))?;
    /// assert!(events.contains(Event::OUTLIER) && events.contains(Event::SKIPPED));
    /// assert_eq!(scaler.state().guard_threshold(), 2.0);
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`]: the call that made the report failed, or the report lacks a norm that the policy
    /// needs; the methods of the scaler, and [`Options::policy`], measure it.
    /// [`Status::VALUE`]: the report is on another device.
    pub fn update(&mut self, report: &M::Report) -> Result<M::Events> {
        let report = M::report(&self.memory, report)?;
        M::keep_factor(&self.memory, &self.state)?;
        let (exec, policy) = (M::exec(&self.memory), &self.policy.0);
        let state = M::state_mut(&mut self.state);
        // SAFETY: a policy, a state that may be its own output, and a report in its memory.
        check(|err| unsafe { sys::gsc_state_update(&exec, policy, state, report, state, err) })?;
        Ok(M::events(&self.state))
    }

    /// Copies tensors to `out`, unless the last update says to skip the step. On a device the call only enqueues.
    ///
    /// So an optimizer that always runs can write new parameters, and its new state, to other memory: one call after
    /// the update copies all of them over the old ones. Bits are copied, NaN included; if the dtypes differ, values
    /// are rounded.
    ///
    /// ```
    /// use gradscaler::{Report, Scaler, Tensor, TensorMut};
    ///
    /// let mut scaler = Scaler::preset("torch")?;
    /// let (new, mut weights) = ([0.5f32, 2.0], [1.0f32, 1.0]);
    /// for overflow in [true, false] {
    ///     scaler.update(&Report::of(overflow))?;
    ///     scaler.copy_unless_skipped(&[Tensor::new(&new)], &mut [TensorMut::new(&mut weights)])?;
    ///     assert_eq!(weights, if overflow { [1.0, 1.0] } else { new });
    /// }
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: the lists or a pair of entries differ in length; [`Status::DTYPE`]: one entry of a pair is
    /// complex and the other is not.
    pub fn copy_unless_skipped(
        &self,
        tensors: &[Tensor<'_, M>],
        out: &mut [TensorMut<'_, M>],
    ) -> Result<()> {
        let state = M::state(&self.memory, "state", &self.state)?;
        copy_unless_skipped(&self.memory, state, tensors, out)
    }

    /// Adopts the decision of `other` to skip, clip or stop: the state of a second scaler, which judged
    /// another signal of the same step, such as the loss.
    ///
    /// Scale, counts and samples of this scaler do not change.
    ///
    /// ```
    /// use gradscaler::{Event, Policy, Report, Scaler};
    ///
    /// let mut scaler = Scaler::preset("recommended")?;
    /// let mut losses = Scaler::new(Policy::preset("none")?.guard_norm(4.0).build()?)?;
    /// scaler.update(&Report::of(false))?;
    /// losses.update(&Report::number(9.5))?;
    /// assert!(scaler.combine_decisions(losses.state())?.contains(Event::SKIPPED));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: the state is on another device.
    pub fn combine_decisions(&mut self, other: &M::State) -> Result<M::Events> {
        let other = M::state(&self.memory, "other", other)?;
        let (exec, state) = (M::exec(&self.memory), M::state_mut(&mut self.state));
        // SAFETY: a state that may be its own output, and another in its memory.
        check(|err| unsafe { sys::gsc_state_combine_decisions(&exec, state, other, state, err) })?;
        Ok(M::events(&self.state))
    }
}

impl Scaler {
    /// Returns a report with the `rank` and a digest of policy and state. Call it before ranks gather
    /// their reports.
    ///
    /// [`Report::merge`] refuses reports with different digests. So if a rank loaded another checkpoint,
    /// missed a step or has other rules, the merge fails before any rank steps.
    ///
    /// ```
    /// use gradscaler::{MergeKind, Report, Scaler, Status};
    ///
    /// let (one, mut other) = (Scaler::preset("torch")?, Scaler::preset("torch")?);
    /// other.update(&Report::of(false))?; // a step that rank 0 did not take
    /// let of_ranks = [one.set_rank(&Report::of(false), 0)?, other.set_rank(&Report::of(false), 1)?];
    /// let error = Report::merge(&of_ranks, MergeKind::ADDENDS, None).unwrap_err();
    /// assert_eq!((error.status(), error.index()), (Status::MISMATCH, Some(1)));
    /// println!("{error}"); // rank 1 has another policy or state than rank 0 ...
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: `rank` is `u32::MAX`; [`Status::REPORT`]: no call made the report.
    pub fn set_rank(&self, report: &Report, rank: u32) -> Result<Report> {
        let (policy, state) = (&self.policy.0, &self.state.0);
        // SAFETY: a report, a policy, a state, and the output.
        Report::made(|out, err| unsafe {
            sys::gsc_report_set_rank(ptr::null(), &report.0, policy, state, rank, out, err)
        })
    }

    /// Sets the scale, in force at once; the counts do not change.
    ///
    /// It accepts 0 and infinity, because the scale of some frameworks reaches them; but calls that
    /// multiply refuse such a factor. It also accepts a scale outside the policy's limits;
    /// [`diagnose`](Self::diagnose) finds it.
    ///
    /// # Errors
    ///
    /// [`Status::STATE`]: the scale is negative or NaN.
    pub fn set_scale(&mut self, scale: f64) -> Result<()> {
        self.set_counts(scale, self.state.counts())
    }

    /// Sets the scale, in force at once, and the counts.
    ///
    /// ```
    /// use gradscaler::{Counts, Scaler};
    ///
    /// let mut scaler = Scaler::preset("torch")?;
    /// scaler.set_counts(4096.0, Counts { good_steps: 1999, ..Counts::default() })?;
    /// assert_eq!((scaler.loss_scale(), scaler.state().counts().good_steps), (4096.0, 1999));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::STATE`]: the scale is negative or NaN, or a count is too large.
    pub fn set_counts(&mut self, scale: f64, counts: Counts) -> Result<()> {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX); // refused by the call
        let mut from = self.state.0;
        from.factor.scale = scale;
        from.good_steps = count(counts.good_steps);
        from.steps_since_change = count(counts.steps_since_change);
        from.overflows_since_reset = count(counts.overflows_since_reset);
        from.failed_backoffs = count(counts.failed_backoffs);
        from.bad_losses_in_a_row = count(counts.bad_losses_in_a_row);
        let (policy, state) = (&self.policy.0, ptr::addr_of_mut!(self.state.0));
        // SAFETY: a policy, a state to start from, and one to write.
        check(|err| unsafe { sys::gsc_state_init_from(ptr::null(), policy, &from, state, err) })
            .map_err(|error| match error.field() {
                "factor.scale" => error.at("scale", ""),
                count => {
                    let count = count.to_string();
                    error.at("counts", &count)
                }
            })
    }

    // ---- to and from a checkpoint ----

    /// Returns policy and state as bytes with a checksum. From 1.0 on, every later version on any machine reads
    /// them.
    ///
    /// ```
    /// use gradscaler::Scaler;
    ///
    /// let scaler = Scaler::preset("torch")?;
    /// assert_eq!(Scaler::load(&scaler.save()?)?, scaler);
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// None for a scaler that this crate made.
    pub fn save(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; sys::GSC_SAVED_SIZE_MAX as usize];
        let (data, capacity, mut size) = (bytes.as_mut_ptr().cast(), bytes.len() as u64, 0);
        let (policy, state) = (&self.policy.0, &self.state.0);
        // SAFETY: a policy, a state, and as many bytes as the size says.
        check(|err| unsafe { sys::gsc_state_save(policy, state, data, capacity, &mut size, err) })?;
        bytes.truncate(size as usize);
        Ok(bytes)
    }

    /// Returns the scaler that [`save`](Self::save) saved.
    ///
    /// # Errors
    ///
    /// [`Status::CORRUPT`]: the bytes are truncated, damaged or not a saved scaler;
    /// [`Status::VERSION`]: they need a newer version, or a candidate before 0.10 saved them.
    pub fn load(bytes: &[u8]) -> Result<Self> {
        let (mut policy, mut state) = (sys::GSC_POLICY_INIT, sys::gsc_state::default());
        let (data, size) = (bytes.as_ptr().cast(), bytes.len() as u64);
        // SAFETY: as many bytes as the size says, a policy with its size set, and a state.
        check(|err| unsafe { sys::gsc_state_load(data, size, &mut policy, &mut state, err) })
            .map_err(|error| match error.name() {
                "size" => error.at("bytes", "len"),
                _ => error,
            })?;
        Ok(Self::of(Policy(policy), State(state)))
    }
}

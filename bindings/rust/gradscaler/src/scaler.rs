// SPDX-License-Identifier: MIT
//! A policy and a state: the scaler that a training loop owns.

use std::fmt;
use std::ptr;

use crate::error::{check, Result};
use crate::{sys, Event, Factor, How, Overflow, Policy, Report, Tensor, TensorMut, Want};

/// A scale and its counts, as [`Scaler::state`] gives it: a value of 256 bytes without pointers.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub struct State(sys::gsc_state);

impl State {
    /// What the next loss is multiplied by, and its gradients divided by.
    pub fn factor(&self) -> Factor {
        Factor(self.0.factor)
    }

    /// What the next loss is scaled by while the update for this one is still under way; another
    /// than [`factor`](Self::factor) only with `apply_delay`.
    pub fn next_factor(&self) -> Factor {
        Factor(self.0.next)
    }

    /// What the last update did.
    pub fn events(&self) -> Event {
        Event::from_raw(self.0.events)
    }

    /// Good steps since the last overflow or growth.
    pub fn good(&self) -> u64 {
        self.0.good as u64
    }

    /// Overflows since the start.
    pub fn skipped(&self) -> u64 {
        self.0.skipped as u64
    }

    /// Growths since the start.
    pub fn growths(&self) -> u64 {
        self.0.growths as u64
    }

    /// Backoffs since the start.
    pub fn backoffs(&self) -> u64 {
        self.0.backoffs as u64
    }

    /// The struct of the C interface, which has more counts.
    pub fn as_raw(&self) -> &sys::gsc_state {
        &self.0
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("loss_scale", &self.0.factor.scale)
            .field("good", &self.good())
            .field("skipped", &self.skipped())
            .field("growths", &self.growths())
            .field("backoffs", &self.backoffs())
            .field("events", &self.events())
            .finish_non_exhaustive()
    }
}

/// A loss scale and the rules by which it moves.
///
/// ```
/// use gradscaler::{Event, Scaler, TensorMut, Want};
///
/// let mut scaler = Scaler::preset("recommended")?;
/// for step in 0..3 {
///     // The gradients of loss * scaler.loss_scale(); here those of the second step overflow.
///     let scaled = if step == 1 { f32::INFINITY } else { scaler.loss_scale() as f32 };
///     let (mut weight, mut bias) = (vec![scaled; 6], vec![0f32; 2]);
///     let mut grads = [TensorMut::new(&mut weight), TensorMut::new(&mut bias)];
///
///     let report = scaler.unscale(&mut grads, Want::NORM)?;
///     if !report.found_inf() {
///         assert_eq!(weight[0], 1.0); // the optimizer's step
///     }
///     let events = scaler.update(&report)?;
///     assert_eq!(events.contains(Event::BACKED_OFF), step == 1);
/// }
/// assert_eq!(scaler.state().skipped(), 1);
/// # Ok::<(), gradscaler::Error>(())
/// ```
///
/// It is a plain value: clone it, send it to another thread; any number of threads may read it and
/// unscale by it at the same time, an update takes `&mut`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaler {
    policy: Policy,
    state: State,
}

impl Scaler {
    /// A scaler before its first step.
    ///
    /// # Errors
    ///
    /// [`Status::POLICY`](crate::Status::POLICY): the policy gives no usable first scale.
    pub fn new(policy: Policy) -> Result<Self> {
        let mut state = sys::gsc_state::default();
        // SAFETY: a policy with its size set, and a state.
        check(|err| unsafe { sys::gsc_state_init(ptr::null(), &policy.raw, &mut state, err) })?;
        Ok(Self {
            policy,
            state: State(state),
        })
    }

    /// A scaler with the rules of a preset; see [`Policy::preset`].
    ///
    /// # Errors
    ///
    /// [`Status::PRESET`](crate::Status::PRESET): no preset has this name.
    pub fn preset(name: &str) -> Result<Self> {
        Self::new(Policy::preset(name)?.build()?)
    }

    // ---- what it is ----

    /// The rules.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The scale and its counts.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the next loss is multiplied by.
    pub fn loss_scale(&self) -> f64 {
        self.state.0.factor.scale
    }

    /// A snapshot of the scale in force, to keep with gradients that are unscaled after a later
    /// update.
    pub fn factor(&self) -> Factor {
        self.state.factor()
    }

    /// What the last update did.
    pub fn events(&self) -> Event {
        self.state.events()
    }

    /// What the policy judges by: reports for [`update`](Self::update) that are made by a
    /// [`Factor`] need it. The methods of the scaler ask for it themselves.
    pub fn needs(&self) -> Want {
        let mut needs = Want::NONE;
        if self.policy.overflow_test() == Overflow::NORM {
            needs |= Want::NORM;
        }
        if self.policy.target_amax() != 0.0 {
            needs |= Want::AMAX;
        }
        needs
    }

    // ---- the step ----

    /// Multiplies by the scale, in place; see [`Factor::scale`].
    ///
    /// # Errors
    ///
    /// As [`Factor::scale`].
    pub fn scale(&self, tensors: &mut [TensorMut<'_>]) -> Result<()> {
        self.factor().scale(tensors)
    }

    /// Multiplies by the scale, into other slices; see [`Factor::scale_into`].
    ///
    /// # Errors
    ///
    /// As [`Factor::scale_into`].
    pub fn scale_into(&self, tensors: &[Tensor<'_>], out: &mut [TensorMut<'_>]) -> Result<()> {
        self.factor().scale_into(tensors, out)
    }

    /// Divides gradients by the scale in place, and reports, in one pass; see [`Factor::unscale`].
    ///
    /// The report has what `how` asks for and the policy [`needs`](Self::needs).
    ///
    /// # Errors
    ///
    /// As [`Factor::unscale`].
    pub fn unscale<'a>(
        &self,
        tensors: &mut [TensorMut<'_>],
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        self.factor().unscale(tensors, self.with_needs(how))
    }

    /// Divides gradients by the scale into other slices, and reports, in one pass; see
    /// [`Factor::unscale_into`].
    ///
    /// # Errors
    ///
    /// As [`Factor::unscale_into`].
    pub fn unscale_into<'a>(
        &self,
        tensors: &[Tensor<'_>],
        out: &mut [TensorMut<'_>],
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        self.factor()
            .unscale_into(tensors, out, self.with_needs(how))
    }

    /// Divides gradients by the scale, clamps them to -limit..limit and reports, in one pass; see
    /// [`Factor::clip_value`].
    ///
    /// # Errors
    ///
    /// As [`Factor::clip_value`].
    pub fn clip_value<'a>(
        &self,
        tensors: &mut [TensorMut<'_>],
        limit: f64,
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        self.factor()
            .clip_value(tensors, limit, self.with_needs(how))
    }

    /// Likewise into other slices; see [`Factor::clip_value_into`].
    ///
    /// # Errors
    ///
    /// As [`Factor::clip_value_into`].
    pub fn clip_value_into<'a>(
        &self,
        tensors: &[Tensor<'_>],
        out: &mut [TensorMut<'_>],
        limit: f64,
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        self.factor()
            .clip_value_into(tensors, out, limit, self.with_needs(how))
    }

    /// Adds gradients of a micro-batch, divided by the scale, to `sums` if all of them are finite;
    /// see [`Factor::accumulate`].
    ///
    /// # Errors
    ///
    /// As [`Factor::accumulate`].
    pub fn accumulate<'a>(
        &self,
        tensors: &[Tensor<'_>],
        sums: &mut [TensorMut<'_>],
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        self.factor()
            .accumulate(tensors, sums, self.with_needs(how))
    }

    /// Reports what [`unscale`](Self::unscale) would, and writes nothing.
    ///
    /// # Errors
    ///
    /// As [`Factor::check`].
    pub fn check<'a>(&self, tensors: &[Tensor<'_>], how: impl Into<How<'a>>) -> Result<Report> {
        self.factor().check(tensors, self.with_needs(how))
    }

    fn with_needs<'a>(&self, how: impl Into<How<'a>>) -> How<'a> {
        how.into().and(self.needs())
    }

    /// Moves the scale after a step of the optimizer, or one that was skipped because of
    /// [`found_inf`](Report::found_inf), and says what happened.
    ///
    /// Several reports, of micro-batches or of optimizers that share this scale, are
    /// [merged](Report::merge) first: they are one step.
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`](crate::Status::REPORT): the report lacks what the policy
    /// [`needs`](Self::needs).
    pub fn update(&mut self, report: &Report) -> Result<Event> {
        let (policy, state) = (&self.policy.raw, ptr::addr_of_mut!(self.state.0));
        // SAFETY: a policy, a state that may be its own output, and a report.
        check(|err| unsafe { sys::gsc_update(ptr::null(), policy, state, &report.0, state, err) })?;
        Ok(self.events())
    }

    /// Puts another scale in force at once; the counts start anew, the totals stay.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`](crate::Status::VALUE): the scale or its inverse is not finite and above 0.
    pub fn set_scale(&mut self, scale: f64) -> Result<()> {
        let (policy, state) = (&self.policy.raw, ptr::addr_of_mut!(self.state.0));
        // SAFETY: as in `update`.
        check(|err| unsafe { sys::gsc_set_scale(ptr::null(), policy, state, &scale, state, err) })
    }

    // ---- to and from a checkpoint ----

    /// Policy and state as bytes that any later version on any machine reads, with a checksum.
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
        let mut bytes = vec![0u8; sys::GSC_SAVED_SIZE as usize];
        let (data, capacity, mut size) = (bytes.as_mut_ptr().cast(), bytes.len() as u64, 0);
        let (policy, state) = (&self.policy.raw, &self.state.0);
        // SAFETY: a policy, a state, and as many bytes as are told.
        check(|err| unsafe { sys::gsc_state_save(policy, state, data, capacity, &mut size, err) })?;
        bytes.truncate(size as usize);
        Ok(bytes)
    }

    /// The scaler that [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// [`Status::CORRUPT`](crate::Status::CORRUPT): the bytes are truncated, damaged or something
    /// else; [`Status::VERSION`](crate::Status::VERSION): they need a newer version.
    pub fn load(bytes: &[u8]) -> Result<Self> {
        let (mut policy, mut state) = (sys::GSC_POLICY_INIT, sys::gsc_state::default());
        let (data, size) = (bytes.as_ptr().cast(), bytes.len() as u64);
        // SAFETY: as many bytes as are told, a policy with its size set, and a state.
        check(|err| unsafe { sys::gsc_state_load(data, size, &mut policy, &mut state, err) })?;
        Ok(Self {
            policy: Policy { raw: policy },
            state: State(state),
        })
    }
}

// SPDX-License-Identifier: MIT
//! Options of a call on tensors.

use std::{fmt, ptr};

use crate::macros::Raw;
use crate::{sys, Host, Memory, Policy, Tensor, Threads, Want};
#[cfg(doc)]
use crate::{BadLoss, Report};

/// Options of a call on tensors. A [`Want`] is the short form; `None` is the short form of no
/// options.
///
/// ```
/// use gradscaler::{Histogram, Options, Scaler, TensorMut, Threads, Want};
///
/// let mut scaler = Scaler::preset("recommended")?;
/// let threads = Threads::new(2)?;
/// let (mut weight, mut bias) = (vec![65536f32; 6], vec![f32::NAN; 2]);
/// let (mut reports, mut histogram) = (Vec::new(), Histogram::default());
///
/// let report = scaler.unscale(
///     &mut [TensorMut::new(&mut weight), TensorMut::new(&mut bias)],
///     Options::new(Want::NORM)
///         .clamp(0.5) // after the report is made
///         .per_tensor(&mut reports) // a report of every tensor, of the same pass
///         .histogram(&mut histogram)
///         .on(&threads),
/// )?;
/// assert_eq!((report.overflow(), report.clamped(), weight[0]), (true, 6, 0.5));
/// assert!(!reports[0].overflow() && reports[1].overflow());
/// assert_eq!(histogram.elements(), 8);
/// scaler.update(&report)?;
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Options<'a, M: Memory = Host> {
    pub(crate) want: Want,
    policy: Option<&'a Policy>,
    pub(crate) clamp: f64,
    pub(crate) loss: Option<Tensor<'a, M>>,
    pub(crate) per_tensor: Option<&'a mut M::Reports>,
    pub(crate) histogram: Option<&'a mut M::Histogram>,
    pub(crate) threads: Option<&'a Threads>,
}

impl<'a, M: Memory> Options<'a, M> {
    /// Makes options that only measure `want`.
    pub fn new(want: Want) -> Self {
        want.into()
    }

    /// Also measures the norm if this policy needs it, and lets the policy decide [`Report::overflow`]. Without a
    /// policy, Inf and NaN are overflows.
    ///
    /// The methods of a [`Scaler`](crate::Scaler) that unscale or measure use the scaler's policy.
    pub fn policy(mut self, policy: &'a Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets the policy, unless one is set.
    pub(crate) fn or_policy(mut self, policy: &'a Policy) -> Self {
        self.policy.get_or_insert(policy);
        self
    }

    /// Clamps the results to -limit..limit before they are rounded, as
    /// torch.nn.utils.clip_grad_value_ does; 0: no clamp.
    ///
    /// The report is on the results before the clamp, so it finds overflows. Inf becomes the limit, NaN
    /// stays. So a cast to fp8 saturates:
    ///
    /// ```
    /// use gradscaler::{Factor, Options, Tensor, TensorMut, F8E4M3FN};
    ///
    /// let (wide, mut narrow) = ([1000f32, -0.5], [F8E4M3FN(0); 2]);
    /// let (tensors, mut out) = ([Tensor::new(&wide)], [TensorMut::new(&mut narrow)]);
    /// let report = Factor::ONE.unscale_into(&tensors, &mut out, Options::default().clamp(448.0))?;
    /// assert_eq!((narrow, report.clamped()), ([F8E4M3FN(0x7e), F8E4M3FN(0xb0)], 1));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    pub fn clamp(mut self, limit: f64) -> Self {
        self.clamp = limit;
        self
    }

    /// Gives the call the loss before it was scaled: one or more real numbers in the memory of the tensors.
    /// [`Report::loss`] says if all are finite. Give only a loss that the scale did not make.
    ///
    /// No scale cures a loss that is Inf or NaN. With [`BadLoss::HOLD`], as in `"recommended"`, an update skips the
    /// step of such a loss, also if the gradients are finite, and leaves the scale alone:
    ///
    /// ```
    /// use gradscaler::{Event, Loss, Options, Scaler, Tensor, TensorMut, Want};
    ///
    /// let mut scaler = Scaler::preset("recommended")?;
    /// let (loss, mut grad) = ([f32::NAN], [f32::NAN; 4]);
    /// let options = Options::new(Want::NONE).loss(Tensor::new(&loss));
    /// let report = scaler.unscale(&mut [TensorMut::new(&mut grad)], options)?;
    /// assert_eq!(report.loss(), Loss::NOT_FINITE);
    /// assert!(scaler.update(&report)?.contains(Event::SKIPPED | Event::BAD_LOSS));
    /// assert_eq!((scaler.state().skip(), scaler.loss_scale()), (true, 65536.0));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    pub fn loss(mut self, loss: Tensor<'a, M>) -> Self {
        self.loss = Some(loss);
        self
    }

    /// Fills `reports` with one report for each tensor, in the same pass. On a device `reports` is a
    /// [`DeviceBuffer`](crate::DeviceBuffer), which the call resizes.
    pub fn per_tensor(mut self, reports: &'a mut M::Reports) -> Self {
        self.per_tensor = Some(reports);
        self
    }

    /// Fills `histogram` with the histogram of the results, on a device in a [`DeviceBuffer`](crate::DeviceBuffer).
    pub fn histogram(mut self, histogram: &'a mut M::Histogram) -> Self {
        self.histogram = Some(histogram);
        self
    }

    /// The result points into `self`.
    pub(crate) fn raw(
        &self,
        per_tensor: Option<*mut sys::gsc_report>,
        histogram: Option<*mut i64>,
    ) -> sys::gsc_tensor_options {
        sys::gsc_tensor_options {
            want: self.want.c(),
            policy: self.policy.map_or(ptr::null(), |policy| &policy.0),
            clamp: self.clamp,
            per_tensor: per_tensor.unwrap_or(ptr::null_mut()),
            histogram: histogram.unwrap_or(ptr::null_mut()),
            loss: self.loss.as_ref().map_or(ptr::null(), |loss| &loss.raw),
            ..sys::GSC_TENSOR_OPTIONS_INIT
        }
    }
}

impl<'a> Options<'a> {
    /// Shares the work among threads.
    pub fn on(mut self, threads: &'a Threads) -> Self {
        self.threads = Some(threads);
        self
    }
}

impl<M: Memory> From<Want> for Options<'_, M> {
    fn from(want: Want) -> Self {
        Self {
            want,
            policy: None,
            clamp: 0.0,
            loss: None,
            per_tensor: None,
            histogram: None,
            threads: None,
        }
    }
}

impl<M: Memory> From<Option<Want>> for Options<'_, M> {
    fn from(want: Option<Want>) -> Self {
        want.unwrap_or_default().into()
    }
}

impl<M: Memory> Default for Options<'_, M> {
    fn default() -> Self {
        Want::NONE.into()
    }
}

/// Counts of elements by their magnitude after unscaling, filled by [`Options::histogram`]. `+=` adds another
/// histogram.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Histogram(pub(crate) [i64; sys::GSC_HISTOGRAM_LENGTH as usize]);

impl Histogram {
    /// Returns the counts: `[k]` counts magnitudes from 2^(4k-48) up to 2^(4k-44), `[0]` all smaller ones
    /// except zeros, `[15]` all larger finite ones.
    pub fn bins(&self) -> [u64; 16] {
        std::array::from_fn(|k| self.0[k] as u64)
    }

    /// Returns the number of sampled elements: the first 4,096 of every 65,536 of a tensor; half as many of
    /// a complex tensor.
    pub fn elements(&self) -> u64 {
        self.0[16] as u64
    }
}

impl std::ops::AddAssign for Histogram {
    fn add_assign(&mut self, other: Self) {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(sum, word)| *sum += word);
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("bins", &self.bins())
            .field("elements", &self.elements())
            .finish()
    }
}

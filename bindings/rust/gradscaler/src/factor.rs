// SPDX-License-Identifier: MIT
//! Factors, and the calls on lists of tensors.

use std::ptr;

use crate::error::{check, Result};
use crate::memory::{FactorIn, ACCUMULATE, SCALE, UNSCALE};
#[cfg(doc)]
use crate::Status;
use crate::{sys, Host, Options, Report, State, Tensor, TensorMut};

/// A snapshot of a scale, and its inverse: a loss is multiplied by it, and the gradients of that loss are
/// divided by it.
///
/// If gradients arrive late (pipelines, an optimizer thread, offloading), keep the factor of their loss
/// with them, and unscale by it after any number of updates.
///
/// A call takes a list of slices of mixed dtypes and sizes. f64 is multiplied in f64, all others in f32;
/// narrow types are widened exactly and rounded to nearest even. Calls allocate nothing, and write
/// nothing if they fail.
///
/// ```
/// use gradscaler::{Factor, Tensor, TensorMut, Want, F16};
///
/// let factor = Factor::new(1024.0)?;
/// let (loss_grad, mut scaled) = ([1e-7f32; 4], [F16(0); 4]);
/// let (input, mut out) = ([Tensor::new(&loss_grad)], [TensorMut::new(&mut scaled)]);
/// factor.scale_into(&input, &mut out, Want::NONE)?;
/// // ... the backward pass in half precision ...
/// let mut grads = [0f32; 4];
/// let report =
///     factor.unscale_into(&[Tensor::new(&scaled)], &mut [TensorMut::new(&mut grads)], Want::AMAX)?;
/// assert!(!report.overflow() && (grads[0] / 1e-7 - 1.0).abs() < 1e-3);
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
#[repr(transparent)]
pub struct Factor(pub(crate) sys::gsc_factor);

impl Factor {
    /// The factor 1: `measure` reports on the tensors as they are, `scale_into` casts, and `unscale_into`
    /// casts with a report.
    pub const ONE: Self = Self(sys::gsc_factor {
        scale: 1.0,
        inverse: 1.0,
        scale_f32: 1.0,
        inverse_f32: 1.0,
        generation: 0,
    });

    /// Makes the factor of a scale.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: the scale or its inverse is not finite and above 0.
    pub fn new(scale: f64) -> Result<Self> {
        let mut out = Self::ONE;
        // SAFETY: the output is a factor.
        check(|err| unsafe { sys::gsc_factor_init(scale, &mut out.0, err) })?;
        Ok(out)
    }

    /// Returns the scale that the loss is multiplied by.
    pub fn loss_scale(&self) -> f64 {
        self.0.scale
    }

    /// Returns the number that the gradients are multiplied by.
    pub fn inverse(&self) -> f64 {
        self.0.inverse
    }

    /// Returns the number of updates and changes of the scale before this factor, from 1; 0 if no scaler
    /// made it.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// Returns this factor with its scale multiplied by `by`, finite and above 0. To get the mean of k
    /// added gradients, unscale their sum by the factor times k.
    ///
    /// # Errors
    ///
    /// [`Status::FACTOR`], [`Status::VALUE`].
    pub fn multiply(&self, by: f64) -> Result<Self> {
        let mut out = Self::ONE;
        // SAFETY: two factors.
        check(|err| unsafe {
            sys::gsc_factor_multiply(ptr::null(), &self.0, by, &mut out.0, err)
        })?;
        Ok(out)
    }

    /// Returns a factor that unscales and clips to a global norm in one pass: this one with its inverse
    /// multiplied by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ clips.
    ///
    /// `report` comes from [`measure`](Self::measure) with this factor and
    /// [`Want::NORM`](crate::Want::NORM).
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`]: the report was made without [`Want::NORM`](crate::Want::NORM); [`Status::VALUE`]:
    /// `max_norm` is not finite and above 0; [`Status::FACTOR`].
    pub fn clip_grad_norm(&self, report: &Report, max_norm: f64) -> Result<Self> {
        Self::clipped(Some(self), report, max_norm)
    }

    /// Returns a factor that unscales and clips in one pass: this one with the clip of the last update of
    /// `state`. If the update did not clip ([`Event::CLIPPED`](crate::Event::CLIPPED)), it is returned
    /// unchanged.
    ///
    /// Take the factor of the gradients from before the update.
    ///
    /// # Errors
    ///
    /// [`Status::FACTOR`].
    pub fn clip_outlier(&self, state: &State) -> Result<Self> {
        let mut out = Self::ONE;
        // SAFETY: two factors and a state.
        check(|err| unsafe {
            sys::gsc_factor_clip_outlier(ptr::null(), &self.0, &state.0, &mut out.0, err)
        })?;
        Ok(out)
    }

    pub(crate) fn clipped(factor: Option<&Self>, report: &Report, max_norm: f64) -> Result<Self> {
        let mut out = Self::ONE;
        let factor = factor.map_or(ptr::null(), |factor| &factor.0);
        // SAFETY: a report and two factors; the one that is read may be NULL.
        check(|err| unsafe {
            sys::gsc_factor_clip_grad_norm(
                ptr::null(),
                factor,
                &report.0,
                max_norm,
                &mut out.0,
                err,
            )
        })?;
        Ok(out)
    }

    /// Multiplies tensors by the scale, in place.
    ///
    /// `options` is a [`Want`](crate::Want), or [`Options`]. It makes no report: unscaling finds the
    /// overflows of the gradients.
    ///
    /// # Errors
    ///
    /// [`Status::FACTOR`]: the scale is 0, infinite or not a number; [`Status::VALUE`]: a field of
    /// the options is out of range.
    pub fn scale<'a>(
        &self,
        tensors: &mut [TensorMut<'_>],
        options: impl Into<Options<'a>>,
    ) -> Result<()> {
        let report = self.calls().in_place(SCALE, tensors, options.into());
        report.map(drop)
    }

    /// Multiplies tensors by the scale into other slices, which can have other dtypes.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: the lists or a pair of entries differ in length; otherwise as
    /// [`scale`](Self::scale).
    pub fn scale_into<'a>(
        &self,
        tensors: &[Tensor<'_>],
        out: &mut [TensorMut<'_>],
        options: impl Into<Options<'a>>,
    ) -> Result<()> {
        let report = self
            .calls()
            .out_of_place(SCALE, tensors, out, options.into());
        report.map(drop)
    }

    /// Divides gradients by the scale in place, checks them and reports, in one pass.
    ///
    /// All elements are written, also after an overflow. Unscale half-precision gradients
    /// [into](Self::unscale_into) f32, so that small values survive.
    ///
    /// `options` is a [`Want`](crate::Want), or [`Options`].
    ///
    /// # Errors
    ///
    /// [`Status::FACTOR`]: the scale is 0, infinite or not a number; [`Status::VALUE`]: a field of
    /// the options is out of range.
    pub fn unscale<'a>(
        &self,
        tensors: &mut [TensorMut<'_>],
        options: impl Into<Options<'a>>,
    ) -> Result<Report> {
        self.calls().in_place(UNSCALE, tensors, options.into())
    }

    /// Divides gradients by the scale into other slices, which can have other dtypes, checks them and
    /// reports, in one pass.
    ///
    /// With [`Factor::ONE`] and [`Options::clamp`] it is a cast that saturates:
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
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: the lists or a pair of entries differ in length; [`Status::DTYPE`]: one entry of
    /// a pair is complex and the other is not; otherwise as [`unscale`](Self::unscale).
    pub fn unscale_into<'a>(
        &self,
        tensors: &[Tensor<'_>],
        out: &mut [TensorMut<'_>],
        options: impl Into<Options<'a>>,
    ) -> Result<Report> {
        self.calls()
            .out_of_place(UNSCALE, tensors, out, options.into())
    }

    /// Adds gradients of a micro-batch, divided by the scale, to `out`, and reports on these gradients.
    ///
    /// If one of them is Inf or NaN, nothing is added; the other micro-batches still count. Sums are made
    /// in f32, or in f64 if the gradients or `out` are f64, then rounded. To check that the sums are
    /// finite, [`measure`](Self::measure) them by [`Factor::ONE`]. The gradients are read twice.
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
    /// # Errors
    ///
    /// [`Status::VALUE`]: the options clamp; otherwise as [`unscale_into`](Self::unscale_into).
    pub fn unscale_accumulate<'a>(
        &self,
        tensors: &[Tensor<'_>],
        out: &mut [TensorMut<'_>],
        options: impl Into<Options<'a>>,
    ) -> Result<Report> {
        self.calls()
            .out_of_place(ACCUMULATE, tensors, out, options.into())
    }

    /// Returns the report of [`unscale`](Self::unscale) in place, but writes nothing.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: the options clamp; [`Status::FACTOR`].
    pub fn measure<'a>(
        &self,
        tensors: &[Tensor<'_>],
        options: impl Into<Options<'a>>,
    ) -> Result<Report> {
        self.calls().measure(tensors, options.into())
    }

    fn calls(&self) -> FactorIn<'_, Host> {
        // SAFETY: a factor on the host, which is borrowed.
        unsafe { FactorIn::new(&Host, &self.0) }
    }
}

// SPDX-License-Identifier: MIT
//! Factors, and the calls on lists of tensors.

use std::ptr;

use crate::error::{check, Result};
use crate::operations::{FactorIn, ACCUMULATE, SCALE, UNSCALE};
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
        // SAFETY: the output is a factor.
        Self::made(|out, err| unsafe { sys::gsc_factor_init(scale, out, err) })
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

    /// Returns this factor with its scale multiplied by `by` and its inverse divided by it. Both must stay
    /// above 0 and finite as floats. To get the mean of k added gradients, unscale their sum by the factor
    /// times k.
    ///
    /// # Errors
    ///
    /// [`Status::FACTOR`], [`Status::VALUE`].
    pub fn multiply(&self, by: f64) -> Result<Self> {
        // SAFETY: two factors.
        Self::made(|out, err| unsafe {
            sys::gsc_factor_multiply(ptr::null(), &self.0, by, out, err)
        })
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
        // SAFETY: two factors and a state.
        Self::made(|out, err| unsafe {
            sys::gsc_factor_clip_outlier(ptr::null(), &self.0, &state.0, out, err)
        })
    }

    pub(crate) fn clipped(factor: Option<&Self>, report: &Report, max_norm: f64) -> Result<Self> {
        let factor = factor.map_or(ptr::null(), |factor| &factor.0);
        // SAFETY: a report and two factors; the one that is read may be NULL.
        Self::made(|out, err| unsafe {
            sys::gsc_factor_clip_grad_norm(ptr::null(), factor, &report.0, max_norm, out, err)
        })
    }

    operations! { Host, Report }

    fn calls(&self) -> Result<FactorIn<'_, Host>> {
        // SAFETY: a factor on the host, which is borrowed.
        Ok(unsafe { FactorIn::new(&Host, &self.0) })
    }

    fn judged<'a>(&self, options: Options<'a>) -> Options<'a> {
        options
    }

    fn made(
        call: impl FnOnce(*mut sys::gsc_factor, *mut sys::gsc_error) -> sys::gsc_status,
    ) -> Result<Self> {
        let mut out = Self::ONE;
        check(|err| call(&mut out.0, err))?;
        Ok(out)
    }
}

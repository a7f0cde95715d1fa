// SPDX-License-Identifier: MIT
//! The factor that one loss was multiplied by, and the operations on lists of tensors.

use std::ptr;

use crate::error::{check, Result};
use crate::operations::{FactorIn, ACCUMULATE, SCALE, UNSCALE};
#[cfg(doc)]
use crate::Status;
use crate::{sys, Host, Options, Report, State, Tensor, TensorMut};

/// A snapshot of a scale: what one loss was multiplied by, and its gradients are divided by.
///
/// Where gradients arrive late (pipelines, an optimizer thread, offloading), keep the factor of
/// their loss with them, whatever updates run in between.
///
/// Its operations take lists of slices, of mixed dtypes and sizes, in one call. Values are
/// multiplied in f32, f64 in f64; narrow types are widened exactly and rounded to nearest even.
/// Nothing is allocated, and nothing is written when a call fails.
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
    /// The factor 1: `measure` with it tells about the tensors as they are; `scale_into` casts, and
    /// `unscale_into` casts with a report.
    pub const ONE: Self = Self(sys::gsc_factor {
        scale: 1.0,
        inverse: 1.0,
        scale_f32: 1.0,
        inverse_f32: 1.0,
        generation: 0,
    });

    /// The factor of a scale.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: the scale or its inverse is not finite and above 0.
    pub fn new(scale: f64) -> Result<Self> {
        // SAFETY: the output is a factor.
        Self::made(|out, err| unsafe { sys::gsc_factor_init(scale, out, err) })
    }

    /// Returns what the loss is multiplied by.
    pub fn loss_scale(&self) -> f64 {
        self.0.scale
    }

    /// Returns what the gradients are multiplied by.
    pub fn inverse(&self) -> f64 {
        self.0.inverse
    }

    /// Updates and changes of the scale that led to it, from 1; 0 for one that no scaler made.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// This factor with its scale multiplied by `by`, which is finite and above 0. To get the mean
    /// of k gradients that were added, unscale their sum by the factor times k.
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

    /// The factor that unscales and clips to a global norm in one pass: this one with its inverse
    /// multiplied by min(1, max_norm / (norm + 1e-6)), the coefficient of torch.
    ///
    /// `report` is of [`measure`](Self::measure) with this factor and
    /// [`Want::NORM`](crate::Want::NORM).
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`]: the report was made without [`Want::NORM`](crate::Want::NORM); [`Status::VALUE`]:
    /// `max_norm` is not finite and above 0; [`Status::FACTOR`].
    pub fn clip_grad_norm(&self, report: &Report, max_norm: f64) -> Result<Self> {
        Self::clipped(Some(self), report, max_norm)
    }

    /// This factor with the clip of the last update of `state`, where that clips
    /// ([`Event::CLIPPED`](crate::Event::CLIPPED)), else as it is: unscales and clips in one pass.
    ///
    /// It is the factor of the gradients, taken before the update.
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

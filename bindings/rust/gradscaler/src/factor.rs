// SPDX-License-Identifier: MIT
//! What one loss was multiplied by, and the operations on lists of tensors.

use std::ptr;

use crate::error::{check, Error, Result};
use crate::{sys, How, Report, Status, Tensor, TensorMut};

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
/// factor.scale_into(&[Tensor::new(&loss_grad)], &mut [TensorMut::new(&mut scaled)])?;
/// // ... the backward pass in half precision ...
/// let mut grads = [0f32; 4];
/// let report =
///     factor.unscale_into(&[Tensor::new(&scaled)], &mut [TensorMut::new(&mut grads)], Want::AMAX)?;
/// assert!(!report.found_inf() && (grads[0] / 1e-7 - 1.0).abs() < 1e-3);
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub struct Factor(pub(crate) sys::gsc_factor);

impl Factor {
    /// The factor 1: `check` with it tells about the tensors as they are, and `scale_into` casts.
    pub const ONE: Self = Self(sys::gsc_factor {
        scale: 1.0,
        inverse: 1.0,
        scale_f32: 1.0,
        inverse_f32: 1.0,
        serial: 0,
    });

    /// The factor of a scale.
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

    /// What the loss is multiplied by.
    pub fn loss_scale(&self) -> f64 {
        self.0.scale
    }

    /// What the gradients are multiplied by.
    pub fn inverse(&self) -> f64 {
        self.0.inverse
    }

    /// Updates and changes of the scale that led to it.
    pub fn serial(&self) -> u64 {
        self.0.serial
    }

    /// This factor with its scale multiplied by `by`, finite and above 0: the mean over k
    /// micro-batches or ranks, whose gradients were added, is what unscaling by k times the factor
    /// gives.
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

    /// The factor that unscales and clips to a global norm in one pass: this one with its inverse
    /// multiplied by min(1, max_norm / (norm + 1e-6)), the coefficient of torch.
    ///
    /// `report` is of [`check`](Self::check) with this factor and [`Want::NORM`](crate::Want::NORM).
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`]: the report was made without [`Want::NORM`](crate::Want::NORM); [`Status::VALUE`]:
    /// `max_norm` is not finite and above 0; [`Status::FACTOR`].
    pub fn clip(&self, report: &Report, max_norm: f64) -> Result<Self> {
        Self::clipped(Some(self), report, max_norm)
    }

    pub(crate) fn clipped(factor: Option<&Self>, report: &Report, max_norm: f64) -> Result<Self> {
        let mut out = Self::ONE;
        let factor = factor.map_or(ptr::null(), |factor| &factor.0);
        // SAFETY: a report and two factors; the one that is read may be NULL.
        check(|err| unsafe {
            sys::gsc_clip_factor(ptr::null(), &report.0, factor, max_norm, &mut out.0, err)
        })?;
        Ok(out)
    }

    /// Multiplies by the scale, in place.
    ///
    /// # Errors
    ///
    /// [`Status::FACTOR`]: the scale is 0, infinite or not a number.
    pub fn scale(&self, tensors: &mut [TensorMut<'_>]) -> Result<()> {
        let (list, n) = (tensors.as_ptr().cast(), tensors.len() as u64);
        // SAFETY: a view is a gsc_tensor; n of them, each borrowed mutably and so apart.
        check(|err| unsafe { sys::gsc_scale(ptr::null(), &self.0, list, list, n, err) })
    }

    /// Multiplies by the scale, into other slices, which may have other dtypes.
    ///
    /// No check: what overflows here is found when the gradients are unscaled.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: the lists or a pair of entries differ in length; [`Status::FACTOR`].
    pub fn scale_into(&self, tensors: &[Tensor<'_>], out: &mut [TensorMut<'_>]) -> Result<()> {
        same_length(tensors, out)?;
        let (list, out, n) = lists(tensors, out);
        // SAFETY: as in `scale`; the outputs are borrowed mutably and so apart from the inputs.
        check(|err| unsafe { sys::gsc_scale(ptr::null(), &self.0, list, out, n, err) })
    }

    /// Divides gradients by the scale in place, and reports on the results, in one pass.
    ///
    /// All elements are written, also when the report says not to use them. Half-precision
    /// gradients are better unscaled [into](Self::unscale_into) f32: in place most of what scaling
    /// saved is lost again.
    ///
    /// `how` is a [`Want`](crate::Want), or one [on threads](crate::Want::on).
    ///
    /// # Errors
    ///
    /// [`Status::FACTOR`]: the scale is 0, infinite or not a number; [`Status::WANT`].
    pub fn unscale<'a>(
        &self,
        tensors: &mut [TensorMut<'_>],
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        let (list, n) = (tensors.as_ptr().cast(), tensors.len() as u64);
        reported(how.into(), |on, want, report, err| {
            // SAFETY: as in `scale`.
            unsafe { sys::gsc_unscale(on, &self.0, list, list, n, want, report, err) }
        })
    }

    /// Divides gradients by the scale into other slices, which may have other dtypes, and reports
    /// on the results, in one pass.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: the lists or a pair of entries differ in length; [`Status::DTYPE`]: of a
    /// pair one is complex; [`Status::FACTOR`]; [`Status::WANT`].
    pub fn unscale_into<'a>(
        &self,
        tensors: &[Tensor<'_>],
        out: &mut [TensorMut<'_>],
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        same_length(tensors, out)?;
        let (list, out, n) = lists(tensors, out);
        reported(how.into(), |on, want, report, err| {
            // SAFETY: as in `scale_into`.
            unsafe { sys::gsc_unscale(on, &self.0, list, out, n, want, report, err) }
        })
    }

    /// [`unscale`](Self::unscale) with each gradient clamped to -limit..limit, in the same pass:
    /// what torch.nn.utils.clip_grad_value_ does.
    ///
    /// The report is of the gradients before they are clamped, so that an overflow is not hidden.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: `limit` is not finite and above 0; otherwise as [`unscale`](Self::unscale).
    pub fn clip_value<'a>(
        &self,
        tensors: &mut [TensorMut<'_>],
        limit: f64,
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        let (list, n) = (tensors.as_ptr().cast(), tensors.len() as u64);
        reported(how.into(), |on, want, report, err| {
            // SAFETY: as in `scale`.
            unsafe { sys::gsc_clip_value(on, &self.0, limit, list, list, n, want, report, err) }
        })
    }

    /// [`unscale_into`](Self::unscale_into) with each gradient clamped to -limit..limit before it is
    /// rounded: with the largest number of a dtype as limit, a cast that saturates.
    ///
    /// ```
    /// use gradscaler::{Factor, Tensor, TensorMut, Want, F8E4M3FN};
    ///
    /// let (wide, mut narrow) = ([1000f32, -0.5], [F8E4M3FN(0); 2]);
    /// let (tensors, mut out) = ([Tensor::new(&wide)], [TensorMut::new(&mut narrow)]);
    /// let report = Factor::ONE.clip_value_into(&tensors, &mut out, 448.0, Want::NONE)?;
    /// assert!(!report.found_inf());
    /// assert_eq!(narrow, [F8E4M3FN(0x7e), F8E4M3FN(0xb0)]);
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: `limit` is not finite and above 0; otherwise as
    /// [`unscale_into`](Self::unscale_into).
    pub fn clip_value_into<'a>(
        &self,
        tensors: &[Tensor<'_>],
        out: &mut [TensorMut<'_>],
        limit: f64,
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        same_length(tensors, out)?;
        let (list, out, n) = lists(tensors, out);
        reported(how.into(), |on, want, report, err| {
            // SAFETY: as in `scale_into`.
            unsafe { sys::gsc_clip_value(on, &self.0, limit, list, out, n, want, report, err) }
        })
    }

    /// Adds gradients of a micro-batch, divided by the scale, to `sums`, and reports on what was to
    /// be added.
    ///
    /// Where one of them is Inf or NaN, nothing is added: the good micro-batches still count. Sums
    /// are made in the type that multiplies, or in f64 into f64, and rounded; whether they are
    /// finite is for a [`check`](Self::check) by [`Factor::ONE`] to find. The gradients are read
    /// twice.
    ///
    /// ```
    /// use gradscaler::{Factor, Tensor, TensorMut, Want};
    ///
    /// let (factor, mut sum) = (Factor::new(4.0)?, [0f32; 2]);
    /// for scaled in [[4f32, 8.0], [f32::INFINITY, 0.0], [4.0, 4.0]] {
    ///     factor.accumulate(&[Tensor::new(&scaled)], &mut [TensorMut::new(&mut sum)], Want::NONE)?;
    /// }
    /// assert_eq!(sum, [2.0, 3.0]);
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`unscale_into`](Self::unscale_into).
    pub fn accumulate<'a>(
        &self,
        tensors: &[Tensor<'_>],
        sums: &mut [TensorMut<'_>],
        how: impl Into<How<'a>>,
    ) -> Result<Report> {
        same_length(tensors, sums)?;
        let (list, out, n) = lists(tensors, sums);
        reported(how.into(), |on, want, report, err| {
            // SAFETY: as in `scale_into`.
            unsafe { sys::gsc_accumulate(on, &self.0, list, out, n, want, report, err) }
        })
    }

    /// Reports what [`unscale`](Self::unscale) in place would, and writes nothing.
    ///
    /// # Errors
    ///
    /// [`Status::FACTOR`], [`Status::WANT`].
    pub fn check<'a>(&self, tensors: &[Tensor<'_>], how: impl Into<How<'a>>) -> Result<Report> {
        let (list, n) = (tensors.as_ptr().cast(), tensors.len() as u64);
        reported(how.into(), |on, want, report, err| {
            // SAFETY: a view is a gsc_tensor; n of them, which are only read.
            unsafe { sys::gsc_check(on, &self.0, list, n, want, report, err) }
        })
    }

    /// The struct of the C interface.
    pub fn as_raw(&self) -> &sys::gsc_factor {
        &self.0
    }
}

/// Makes a call that fills a report.
fn reported(
    how: How<'_>,
    call: impl FnOnce(
        *const sys::gsc_exec,
        u32,
        *mut sys::gsc_report,
        *mut sys::gsc_error,
    ) -> sys::gsc_status,
) -> Result<Report> {
    let (on, mut report) = (how.exec(), Report::default());
    check(|err| call(&on, how.want.raw(), &mut report.0, err))?;
    Ok(report)
}

/// Both lists and their length as C takes them.
fn lists(
    tensors: &[Tensor<'_>],
    out: &mut [TensorMut<'_>],
) -> (*const sys::gsc_tensor, *const sys::gsc_tensor, u64) {
    (
        tensors.as_ptr().cast(),
        out.as_ptr().cast(),
        tensors.len() as u64,
    )
}

/// C takes one length for both lists.
fn same_length(tensors: &[Tensor<'_>], out: &[TensorMut<'_>]) -> Result<()> {
    if tensors.len() == out.len() {
        return Ok(());
    }
    let message = format!(
        "there are {} tensors and {} outputs",
        tensors.len(),
        out.len()
    );
    Err(Error::new(Status::COUNT, "out", message))
}

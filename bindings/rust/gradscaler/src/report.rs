// SPDX-License-Identifier: MIT
//! What the gradients of a call were like.

use std::fmt;
use std::ptr;

use crate::error::{check, Result};
use crate::{sys, Factor, Want};

/// What the gradients were like; made by `unscale`, `check` and others, read by
/// [`Scaler::update`](crate::Scaler::update).
///
/// A value without pointers: copy it, send it to another thread or rank, [`merge`](Self::merge) it.
/// The default is the report of an empty list. What was not asked for by [`Want`] is `None`.
#[derive(Clone, Copy, Default, PartialEq)]
#[repr(transparent)]
pub struct Report(pub(crate) sys::gsc_report);

impl Report {
    /// Of gradients that were checked elsewhere, on a device for instance: whether any was Inf or
    /// NaN, and nothing else.
    pub fn of(found_inf: bool) -> Self {
        Self(sys::gsc_report {
            found_inf: f32::from(u8::from(found_inf)),
            overflow: i32::from(found_inf),
            absent: Want::ALL.raw(),
            ..Default::default()
        })
    }

    /// Adds the largest finite magnitude after unscaling to a report of gradients checked elsewhere;
    /// a policy with a `target_amax` judges by it.
    #[must_use]
    pub fn with_amax(mut self, amax: f64) -> Self {
        self.0.amax = amax;
        self.0.absent &= !Want::AMAX.raw();
        self
    }

    /// Likewise the global norm of the finite elements after unscaling; a policy with
    /// [`Overflow::NORM`](crate::Overflow::NORM) judges by it.
    #[must_use]
    pub fn with_norm(mut self, norm: f64) -> Self {
        self.0.sum_squares = norm * norm;
        self.0.absent &= !Want::NORM.raw();
        self
    }

    /// Whether an element is Inf or NaN, or became so by unscaling: skip the step.
    pub fn found_inf(&self) -> bool {
        self.0.overflow != 0
    }

    /// Elements seen.
    pub fn elements(&self) -> u64 {
        self.0.elements as u64
    }

    /// The first element that is not finite: index of its tensor in the list, and in the tensor.
    /// `None` if there is none, or [`Want::FIRST_BAD`] was not asked for.
    pub fn first_bad(&self) -> Option<(usize, usize)> {
        let at = self.0.first_bad;
        (at != 0).then(|| {
            (
                sys::GSC_BAD_TENSOR(at) as usize,
                sys::GSC_BAD_ELEMENT(at) as usize,
            )
        })
    }

    /// Elements that are NaN; with [`Want::COUNTS`].
    pub fn nan_count(&self) -> Option<u64> {
        self.wanted(Want::COUNTS, self.0.nan_count as u64)
    }

    /// Elements that are Inf, or became so by unscaling; with [`Want::COUNTS`].
    pub fn inf_count(&self) -> Option<u64> {
        self.wanted(Want::COUNTS, self.0.inf_count as u64)
    }

    /// Sum of the squares of the finite elements after unscaling; with [`Want::NORM`].
    pub fn sum_squares(&self) -> Option<f64> {
        self.wanted(Want::NORM, self.0.sum_squares)
    }

    /// Global L2 norm of the finite elements after unscaling; with [`Want::NORM`].
    pub fn norm(&self) -> Option<f64> {
        self.sum_squares().map(f64::sqrt)
    }

    /// Largest finite magnitude after unscaling; with [`Want::AMAX`].
    pub fn amax(&self) -> Option<f64> {
        self.wanted(Want::AMAX, self.0.amax)
    }

    /// Results that are zero while their input was not; with [`Want::UNDERFLOW`].
    pub fn zeros_made(&self) -> Option<u64> {
        self.wanted(Want::UNDERFLOW, self.0.zeros_made as u64)
    }

    /// Results that are subnormal while their input was not; with [`Want::UNDERFLOW`].
    pub fn subnormals_made(&self) -> Option<u64> {
        self.wanted(Want::UNDERFLOW, self.0.subnormals_made as u64)
    }

    /// Elements that the histogram looked at; with [`Want::HISTOGRAM`].
    pub fn histogram_elements(&self) -> Option<u64> {
        self.wanted(Want::HISTOGRAM, self.0.histogram_elements as u64)
    }

    /// How many of them have which magnitude after unscaling: `[k]` those from 2^(4k-48) up to
    /// 2^(4k-44), `[0]` all smaller ones but zeros, `[15]` all finite larger ones; with
    /// [`Want::HISTOGRAM`].
    pub fn histogram(&self) -> Option<[u64; 16]> {
        self.wanted(Want::HISTOGRAM, self.0.histogram.map(|count| count as u64))
    }

    fn wanted<T>(&self, want: Want, value: T) -> Option<T> {
        (self.0.absent & want.raw() == 0).then_some(value)
    }

    /// One report of two: of micro-batches, of optimizers that share a scale, of ranks.
    ///
    /// `first_bad` is the earlier one, so it points into the right list only when both reports are
    /// of the same list.
    ///
    /// # Errors
    ///
    /// None for reports that this crate made.
    pub fn merge(&self, other: &Report) -> Result<Report> {
        let mut out = Report::default();
        // SAFETY: three reports.
        check(|err| unsafe { sys::gsc_merge(ptr::null(), &self.0, &other.0, &mut out.0, err) })?;
        Ok(out)
    }

    /// The factor that clips gradients that are unscaled already: multiply them by its
    /// [`inverse`](Factor::inverse), which is min(1, max_norm / (norm + 1e-6)).
    ///
    /// [`Factor::clip`] unscales and clips in one pass.
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`](crate::Status::REPORT): the report was made without [`Want::NORM`];
    /// [`Status::VALUE`](crate::Status::VALUE): `max_norm` is not finite and above 0.
    pub fn clip_factor(&self, max_norm: f64) -> Result<Factor> {
        Factor::clipped(None, self, max_norm)
    }

    /// The struct of the C interface.
    pub fn as_raw(&self) -> &sys::gsc_report {
        &self.0
    }

    /// From the struct of the C interface, for example after a reduction over ranks.
    pub fn from_raw(raw: sys::gsc_report) -> Self {
        Self(raw)
    }
}

impl fmt::Debug for Report {
    /// What is known; a bad element only where there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Report");
        debug
            .field("found_inf", &self.found_inf())
            .field("elements", &self.elements());
        if let Some(first_bad) = self.first_bad() {
            debug.field("first_bad", &first_bad);
        }
        let counts = [
            ("nan_count", self.nan_count()),
            ("inf_count", self.inf_count()),
            ("zeros_made", self.zeros_made()),
            ("subnormals_made", self.subnormals_made()),
        ];
        for (name, count) in counts {
            count.map(|count| debug.field(name, &count));
        }
        for (name, value) in [("norm", self.norm()), ("amax", self.amax())] {
            value.map(|value| debug.field(name, &value));
        }
        self.histogram().map(|bins| debug.field("histogram", &bins));
        debug.finish()
    }
}

// SPDX-License-Identifier: MIT
//! Reports on the gradients of a call.

use std::fmt;
use std::ptr;

use crate::error::{check, Result};
use crate::macros::Raw;
use crate::{sys, Factor, Loss, MergeKind, Policy, Status, Want};

/// A report on gradients. `unscale`, `measure` and others make it; [`Scaler::update`](crate::Scaler::update)
/// takes it.
///
/// It is a value without pointers: copy it, send it to another thread, send it [as
/// bytes](Self::to_bytes) to another rank, [`merge`](Self::merge) it. Calls refuse the default, an empty
/// report. A measurement that [`Want`] did not ask for is `None`.
///
/// The compiler warns if a report is ignored:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// gradscaler::Factor::ONE.measure(&[], None)?;
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq)]
#[repr(transparent)]
#[must_use = "it says whether to step, and `Scaler::update` takes it"]
pub struct Report(pub(crate) sys::gsc_report);

impl Report {
    /// The size of a report in bytes.
    pub const SIZE: usize = std::mem::size_of::<sys::gsc_report>();

    /// Makes a report from a flag: whether there was an overflow. Nothing else is measured.
    pub fn of(overflow: bool) -> Self {
        // SAFETY: a report that is written; the call refuses nothing.
        let report =
            Self::made(|out, err| unsafe { sys::gsc_report_from_flag(overflow.into(), out, err) });
        report.unwrap_or_default()
    }

    /// Makes a report of a number, such as the loss, for a second scaler with a guard; see
    /// [`Scaler::combine_decisions`](crate::Scaler::combine_decisions). The number counts with its sign;
    /// Inf, NaN and magnitudes above 2^500 are an overflow. The report cannot be merged.
    pub fn number(number: f64) -> Self {
        // SAFETY: a report that is written; the call refuses nothing.
        let report =
            Self::made(|out, err| unsafe { sys::gsc_report_from_number(number, out, err) });
        report.unwrap_or_default()
    }

    pub(crate) fn made(
        call: impl FnOnce(*mut sys::gsc_report, *mut sys::gsc_error) -> sys::gsc_status,
    ) -> Result<Self> {
        let mut out = Self::default();
        check(|err| call(&mut out.0, err))?;
        Ok(out)
    }

    /// Makes the report of a rank that got an error: when it is merged with other ranks' reports, no rank
    /// steps, and the update fails.
    ///
    /// ```
    /// use gradscaler::{Factor, MergeKind, Report, Scaler, Status, TensorMut, Want};
    ///
    /// let mut scaler = Scaler::preset("torch")?;
    /// let mut grad = [1f32; 4];
    /// let mine = scaler
    ///     .unscale(&mut [TensorMut::new(&mut grad)], Want::NORM)
    ///     .unwrap_or_else(|error| Report::failed(error.status()));
    /// // Each rank sets its rank in its report, gathers the bytes of all, and merges them in rank order.
    /// let mine = scaler.set_rank(&mine, 0)?;
    /// let other = scaler.set_rank(&Report::failed(Status::MEMORY), 1)?;
    /// let of_ranks = [mine, other].map(|report| report.to_bytes());
    /// let of_ranks = of_ranks.map(|bytes| Report::from_bytes(&bytes));
    /// let report = Report::merge(&of_ranks, MergeKind::SHARDS, Some(scaler.policy()))?;
    /// assert!(report.overflow());
    /// assert_eq!(report.failed_rank(), Some(1));
    /// assert!(scaler.update(&report).is_err());
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    pub fn failed(status: Status) -> Self {
        let mut report = Self::of(true);
        report.0.status = status.c();
        report
    }

    /// Adds the largest finite magnitude after unscaling to a report.
    pub fn with_amax(mut self, amax: f64) -> Self {
        self.0.amax = amax;
        self.measured(Want::AMAX)
    }

    /// Adds the global norm of the finite elements after unscaling; a policy that guards, or has
    /// [`OverflowTest::NORM`](crate::OverflowTest::NORM), needs it.
    pub fn with_norm(mut self, norm: f64) -> Self {
        self.0.sum_squares = norm * norm;
        self.measured(Want::NORM)
    }

    /// Adds the factor that the gradients were unscaled by, so that an update by a late report has
    /// [`Event::STALE`](crate::Event::STALE).
    pub fn with_factor(mut self, factor: &Factor) -> Self {
        self.0.generation = factor.generation();
        self
    }

    /// Marks a measurement as known. The report of a flag cannot have one, so it becomes a merged report.
    fn measured(mut self, want: Want) -> Self {
        if self.0.kind == sys::GSC_REPORT_FLAG {
            (self.0.kind, self.0.has_flag) = (sys::GSC_REPORT_MERGED, 1);
        }
        self.0.measured.0 |= want.raw();
        self
    }

    /// Returns true if the optimizer must not step: an element is or became Inf or NaN, the policy counts
    /// the report as an overflow, or the call failed.
    ///
    /// A policy can skip a step without an overflow, because of an outlier or a bad [`loss`](Self::loss): if the
    /// policy guards or calls were given a loss, ask [`State::skip`](crate::State::skip) after the update.
    #[must_use]
    pub fn overflow(&self) -> bool {
        self.0.overflow != 0
    }

    /// Returns [`Status::OK`], or the error of a device or a rank.
    pub fn status(&self) -> Status {
        Status::of(self.0.status)
    }

    /// Returns the first element that is Inf or NaN: the index of its tensor in the list, and its index in
    /// the tensor.
    pub fn first_overflow(&self) -> Option<(usize, usize)> {
        let (tensor, element) = (self.0.first_tensor as usize, self.0.first_element as usize);
        self.has_bad().then_some((tensor, element))
    }

    /// Returns the index of the last tensor with an Inf or NaN: in a list in the model's order, the one nearest to
    /// the cause of an overflow in the backward pass. [`State::reason`](crate::State::reason) says its name.
    pub fn last_tensor(&self) -> Option<usize> {
        self.has_bad().then_some(self.0.last_tensor as usize)
    }

    fn has_bad(&self) -> bool {
        self.0.nan_count | self.0.inf_count != 0
    }

    /// Returns whether the loss of [`Options::loss`](crate::Options::loss) was finite before it was scaled. A merged
    /// report has the worst loss that is known.
    pub fn loss(&self) -> Loss {
        Loss::of(self.0.loss)
    }

    /// Returns the rank that [`Scaler::set_rank`](crate::Scaler::set_rank) set; of a merged report, the
    /// rank of the first overflow.
    pub fn rank(&self) -> Option<u32> {
        self.0.first_rank_plus_1.checked_sub(1)
    }

    /// Returns the rank of [`last_tensor`](Self::last_tensor), or, if no element was counted, of the last report
    /// with an overflow.
    pub fn last_rank(&self) -> Option<u32> {
        self.0.last_rank_plus_1.checked_sub(1)
    }

    /// Returns the rank of the first bad loss, if its report has a rank.
    pub fn loss_rank(&self) -> Option<u32> {
        let bad = self.loss() == Loss::NOT_FINITE;
        self.0.loss_rank_plus_1.checked_sub(1).filter(|_| bad)
    }

    /// Returns the rank that failed first, if its report has a rank.
    pub fn failed_rank(&self) -> Option<u32> {
        let failed = self.status() != Status::OK;
        self.0.status_rank_plus_1.checked_sub(1).filter(|_| failed)
    }

    /// Returns the sum of the squares of the finite elements after unscaling; with [`Want::NORM`].
    pub fn sum_squares(&self) -> Option<f64> {
        self.wanted(Want::NORM, self.0.sum_squares)
    }

    /// Returns the global L2 norm of the finite elements after unscaling, with [`Want::NORM`]; of a report
    /// from [`number`](Self::number), the number itself.
    pub fn norm(&self) -> Option<f64> {
        let number = (self.0.kind == sys::GSC_REPORT_NUMBER).then_some(self.0.number);
        number.or_else(|| self.sum_squares().map(f64::sqrt))
    }

    /// Returns the largest finite magnitude after unscaling; with [`Want::AMAX`].
    pub fn amax(&self) -> Option<f64> {
        self.wanted(Want::AMAX, self.0.amax)
    }

    /// Returns how many results are zero while their input was not; with [`Want::UNDERFLOW`].
    pub fn underflows_to_zero(&self) -> Option<u64> {
        self.wanted(Want::UNDERFLOW, self.0.underflows_to_zero as u64)
    }

    /// Returns how many results are subnormal while their input was not; with [`Want::UNDERFLOW`].
    pub fn underflows_to_subnormal(&self) -> Option<u64> {
        self.wanted(Want::UNDERFLOW, self.0.underflows_to_subnormal as u64)
    }

    fn wanted<T>(&self, want: Want, value: T) -> Option<T> {
        (self.0.measured.0 & want.raw() != 0).then_some(value)
    }

    /// Merges reports, in their order, into one: the reports of ranks, micro-batches, optimizers that
    /// share a scale, or layers.
    ///
    /// [`MergeKind::SHARDS`]: the reports are on different gradients, and their squared norms are added.
    /// [`MergeKind::ADDENDS`]: the reports are on gradients that are added, such as micro-batches. The
    /// norm and the amax of the sum are then `None`; [`measure`](Factor::measure) the sum to get them.
    /// The merged report lacks each measurement that one of the reports lacks.
    ///
    /// With a policy, the policy decides [`overflow`](Self::overflow); without, one report with an
    /// overflow is enough. [`first_overflow`](Self::first_overflow) comes from the first report that has
    /// one; it has positions in the list of that report. [`last_tensor`](Self::last_tensor) comes from the last one.
    ///
    /// ```
    /// use gradscaler::{Factor, MergeKind, Report, Tensor, Want};
    ///
    /// let ranks = [[3f32], [4.0]].map(|shard| Factor::ONE.measure(&[Tensor::new(&shard)], Want::NORM));
    /// let [first, second] = ranks;
    /// let all = Report::merge(&[first?, second?], MergeKind::SHARDS, None)?;
    /// assert_eq!((all.norm(), all.elements()), (Some(5.0), 2));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::MISMATCH`]: the digests of [`Scaler::set_rank`](crate::Scaler::set_rank) differ;
    /// [`Status::REPORT`]: the policy needs a norm that a report lacks, and no report has an overflow;
    /// [`Status::VALUE`]: no such kind.
    pub fn merge(reports: &[Report], kind: MergeKind, policy: Option<&Policy>) -> Result<Report> {
        let (list, n) = (reports.as_ptr().cast(), reports.len() as u64);
        let policy = policy.map_or(ptr::null(), |policy| &policy.0);
        // SAFETY: a Report is a gsc_report; n of them, a policy or NULL, and the output.
        Self::made(|out, err| unsafe {
            sys::gsc_report_merge(ptr::null(), list, n, kind.c(), policy, out, err)
        })
    }

    /// Returns a factor that clips gradients that are already unscaled: multiply them by its
    /// [`inverse`](Factor::inverse), min(1, max_norm / (norm + 1e-6)).
    ///
    /// The factor of [`Factor::clip_grad_norm`] unscales and clips in one pass.
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`]: the report was made without [`Want::NORM`]; [`Status::VALUE`]:
    /// `max_norm` is not finite and above 0.
    pub fn clip_factor(&self, max_norm: f64) -> Result<Factor> {
        Factor::clipped(None, self, max_norm)
    }

    /// Returns the bytes, for another rank with this version of the library or a later one.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        // SAFETY: as large, and without padding.
        unsafe { std::mem::transmute(self.0) }
    }

    /// Makes a report from the bytes of another rank. Calls refuse a report with impossible values.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        // SAFETY: as large, and every bit pattern is a number.
        Self(unsafe { std::mem::transmute::<[u8; Self::SIZE], sys::gsc_report>(*bytes) })
    }
}

getters! {
    Report:
    /// Returns 1 with an [`overflow`](Self::overflow), or with a bad loss if the policy holds; else 0. A fused
    /// optimizer that runs before the update takes it.
    found_inf: f32;
    /// Returns the [`generation`](Factor::generation) of the factor; 0: unknown.
    generation: u64;
    /// Returns the number of elements.
    elements: u64;
    /// Returns how many elements are NaN.
    nan_count: u64;
    /// Returns how many elements are or became Inf.
    inf_count: u64;
    /// Returns how many elements [`Options::clamp`](crate::Options::clamp) changed.
    clamped: u64;
    /// Returns the digest that [`Scaler::set_rank`](crate::Scaler::set_rank) set; 0: none.
    digest: u64;
}

impl fmt::Debug for Report {
    /// Writes what is known; counts of faults only if they are not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Report");
        debug.field("overflow", &self.overflow());
        if self.status() != Status::OK {
            debug.field("status", &self.status());
        }
        let last_rank = self.last_rank().filter(|_| self.last_rank() != self.rank());
        for (name, rank) in [
            ("failed_rank", self.failed_rank()),
            ("rank", self.rank()),
            ("last_rank", last_rank),
        ] {
            rank.map(|rank| debug.field(name, &rank));
        }
        if self.loss() != Loss::UNKNOWN {
            debug.field("loss", &self.loss());
        }
        debug.field("elements", &self.elements());
        if let (Some(first), Some(last)) = (self.first_overflow(), self.last_tensor()) {
            debug
                .field("first_overflow", &first)
                .field("last_tensor", &last)
                .field("nan_count", &self.nan_count())
                .field("inf_count", &self.inf_count());
        }
        if self.clamped() != 0 {
            debug.field("clamped", &self.clamped());
        }
        for (name, value) in [("norm", self.norm()), ("amax", self.amax())] {
            value.map(|value| debug.field(name, &value));
        }
        let underflows = [
            ("underflows_to_zero", self.underflows_to_zero()),
            ("underflows_to_subnormal", self.underflows_to_subnormal()),
        ];
        for (name, count) in underflows {
            count.map(|count| debug.field(name, &count));
        }
        debug.finish()
    }
}

// SPDX-License-Identifier: MIT
//! What a call on tensors does beside its work.

use std::{fmt, ptr};

use crate::error::{check, Result};
use crate::macros::Raw;
use crate::{sys, Policy, Report, Threads, Want};

/// What a call on tensors does beside its work. A [`Want`] is the short form, `None` that for
/// nothing.
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
#[derive(Debug, Default)]
#[must_use]
pub struct Options<'a> {
    want: Want,
    policy: Option<&'a Policy>,
    clamp: f64,
    per_tensor: Option<&'a mut Vec<Report>>,
    histogram: Option<&'a mut Histogram>,
    threads: Option<&'a Threads>,
}

impl<'a> Options<'a> {
    /// A report with these, and nothing else.
    pub fn new(want: Want) -> Self {
        want.into()
    }

    /// Measures what this policy judges by, too, and makes [`Report::overflow`] its verdict.
    /// Without it, Inf and NaN are overflows.
    ///
    /// The methods of a [`Scaler`](crate::Scaler) that unscale or measure do so with theirs.
    pub fn policy(mut self, policy: &'a Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// The policy of a scaler, unless there is one.
    pub(crate) fn or_policy(mut self, policy: &'a Policy) -> Self {
        self.policy.get_or_insert(policy);
        self
    }

    /// Clamps the results to -limit..limit before they are rounded, as
    /// torch.nn.utils.clip_grad_value_ does. 0 does not.
    ///
    /// The report is of what they were before, so that an overflow is not hidden; Inf becomes the
    /// limit, NaN stays.
    pub fn clamp(mut self, limit: f64) -> Self {
        self.clamp = limit;
        self
    }

    /// Makes `reports` those of the tensors, one for each, in the same pass.
    pub fn per_tensor(mut self, reports: &'a mut Vec<Report>) -> Self {
        self.per_tensor = Some(reports);
        self
    }

    /// Makes `histogram` that of the results.
    pub fn histogram(mut self, histogram: &'a mut Histogram) -> Self {
        self.histogram = Some(histogram);
        self
    }

    /// Shares the work among threads.
    pub fn on(mut self, threads: &'a Threads) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Makes a call on `n` tensors that takes these.
    pub(crate) fn run(
        self,
        n: usize,
        call: impl FnOnce(
            *const sys::gsc_exec,
            *const sys::gsc_tensor_options,
            *mut sys::gsc_report,
            *mut sys::gsc_error,
        ) -> sys::gsc_status,
    ) -> Result<Report> {
        let exec = sys::gsc_exec {
            context: self.threads.map_or(ptr::null_mut(), Threads::as_ptr),
            ..sys::GSC_EXEC_INIT
        };
        let mut per_tensor = self.per_tensor;
        let reports = per_tensor.as_mut().map_or(ptr::null_mut(), |reports| {
            reports.clear();
            reports.resize(n, Report::default());
            reports.as_mut_ptr().cast()
        });
        let options = sys::gsc_tensor_options {
            want: self.want.c(),
            policy: self.policy.map_or(ptr::null(), |policy| &policy.0),
            clamp: self.clamp,
            per_tensor: reports,
            histogram: self
                .histogram
                .map_or(ptr::null_mut(), |histogram| histogram.0.as_mut_ptr()),
            ..sys::GSC_TENSOR_OPTIONS_INIT
        };
        let mut report = Report::default();
        let result = check(|err| call(&exec, &options, &mut report.0, err));
        if let (Err(_), Some(reports)) = (&result, per_tensor) {
            reports.clear(); // none was made
        }
        result.map(|()| report)
    }
}

impl From<Want> for Options<'_> {
    fn from(want: Want) -> Self {
        Self {
            want,
            ..Self::default()
        }
    }
}

impl From<Option<Want>> for Options<'_> {
    fn from(want: Option<Want>) -> Self {
        want.unwrap_or_default().into()
    }
}

/// How many elements have which magnitude after unscaling; [`Options::histogram`] makes it, `+=`
/// adds another.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Histogram([i64; sys::GSC_HISTOGRAM_LENGTH as usize]);

impl Histogram {
    /// `[k]` are the magnitudes from 2^(4k-48) up to 2^(4k-44), `[0]` all smaller ones except zeros,
    /// `[15]` all larger finite ones.
    pub fn bins(&self) -> [u64; 16] {
        std::array::from_fn(|k| self.0[k] as u64)
    }

    /// The elements that were looked at: the first 4,096 of every 65,536 of a tensor, of a complex
    /// one half as many.
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

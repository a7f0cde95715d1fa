// SPDX-License-Identifier: MIT
//! Why an update skipped or clipped its step: what is known about it; the parts, and a sentence that the library makes.

use std::ffi::CString;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

use crate::error::{check, text, Error, Result};
use crate::macros::Raw;
use crate::{sys, Cause, Dtype, Outcome, Report, State, Status};

/// The facts that are known about a step, for [`State::reason`]; each part can be missing. A report is the short form;
/// `None` is the short form of nothing.
///
/// ```
/// use gradscaler::{Cause, Evidence, Options, Scaler, TensorMut, Want};
///
/// let mut scaler = Scaler::preset("recommended")?;
/// let (mut embed, mut attention, mut head) = ([f32::NAN; 2], [1f32, f32::NAN], [1f32; 2]);
/// let mut reports = Vec::new();
/// let report = scaler.unscale(
///     &mut [&mut embed, &mut attention, &mut head].map(|grad| TensorMut::new(grad)),
///     Options::new(Want::NONE).per_tensor(&mut reports),
/// )?;
/// scaler.update(&report)?;
///
/// let evidence = Evidence::of(&report)
///     .per_tensor(&reports)
///     .names(&["embed", "attention", "head"])
///     .order(&[2, 1, 0]); // the backward pass goes from the head to the embedding
/// let reason = scaler.state().reason(evidence)?.unwrap();
/// eprintln!("{reason}"); // skipped: ... made "attention" bad first; "head", made just before, is finite
/// assert_eq!((reason.tensor, reason.tensor_before), (Some(1), Some(2)));
///
/// let reason = scaler.state().reason(Evidence::of(&report).losses(2, Some(0)))?.unwrap();
/// assert_eq!(reason.cause, Cause::BAD_LOSS);
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Evidence<'a> {
    report: Option<&'a Report>,
    per_tensor: &'a [Report],
    names: Vec<&'a str>,
    order: &'a [usize],
    other: sys::gsc_evidence,
}

impl<'a> Evidence<'a> {
    /// Makes the evidence of the report that the last update got.
    pub fn of(report: &'a Report) -> Self {
        report.into()
    }

    /// Adds the reports of each tensor of the list, see [`Options::per_tensor`](crate::Options::per_tensor).
    pub fn per_tensor(mut self, reports: &'a [Report]) -> Self {
        self.per_tensor = reports;
        self
    }

    /// Adds the names of the tensors, in the order of the list; an empty name is no name. Without an
    /// [`order`](Self::order), list the tensors in the model's order: the last bad one is nearest to the cause.
    pub fn names<S: AsRef<str>>(mut self, names: &'a [S]) -> Self {
        self.names = names.iter().map(AsRef::as_ref).collect();
        self
    }

    /// Adds the indices of the tensors in the order in which the backward pass made their gradients. With
    /// [`per_tensor`](Self::per_tensor), the first bad one in it is nearest to the cause.
    pub fn order(mut self, order: &'a [usize]) -> Self {
        self.order = order;
        self
    }

    /// Adds how many parameters of the list have Inf or NaN, and the index of the first.
    pub fn bad_parameters(mut self, count: u64, first: Option<usize>) -> Self {
        self.other.bad_parameters = count as i64;
        self.other.parameter_plus_1 = first.map_or(0, |index| index as i64 + 1);
        self
    }

    /// Adds how many losses this rank scaled in the step, and the index of the first that was not finite before.
    pub fn losses(mut self, count: u32, first_bad: Option<u32>) -> Self {
        self.other.losses = count;
        self.other.bad_loss = first_bad.map_or(0, |index| index + 1);
        self
    }

    /// Adds the number by which the losses were multiplied, and their dtype before that.
    pub fn scaled_by(mut self, scale: f64, dtype: Dtype) -> Self {
        self.other.scale = scale;
        self.other.loss_dtype = dtype.raw();
        self
    }

    /// Adds how many ranks share the gradients.
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.other.ranks = ranks;
        self
    }

    /// Returns the number of tensors; a list that is empty is missing.
    fn tensors(&self) -> Result<u64> {
        let mut known = 0;
        for (name, n) in [
            ("per_tensor", self.per_tensor.len()),
            ("names", self.names.len()),
            ("order", self.order.len()),
        ] {
            if known != 0 && n != 0 && n != known {
                let message = format!("has {n} entries, not {known} as the other lists");
                return Err(Error::new(Status::COUNT, name, message));
            }
            known = known.max(n);
        }
        Ok(known as u64)
    }
}

impl<'a> From<&'a Report> for Evidence<'a> {
    fn from(report: &'a Report) -> Self {
        Some(report).into()
    }
}

impl<'a> From<Option<&'a Report>> for Evidence<'a> {
    fn from(report: Option<&'a Report>) -> Self {
        Self {
            report,
            ..Self::default()
        }
    }
}

/// Why an update skipped, clipped or stopped, or let an outlier through; see [`State::reason`]. It is displayed as
/// one sentence.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Reason {
    /// The decision.
    pub outcome: Outcome,
    /// The reason for the decision.
    pub cause: Cause,
    /// With [`Cause::OUTLIER`], the norm or number that was judged, if it is known.
    pub value: Option<f64>,
    /// With [`Cause::OUTLIER`], the threshold that `value` is above.
    pub threshold: Option<f64>,
    /// The number to multiply the gradients by: 1; less if clipped, 0 if skipped.
    pub multiplier: f64,
    /// Outliers in a row with [`Cause::OUTLIER`], bad losses in a row with [`Cause::BAD_LOSS`].
    pub in_a_row: u64,
    /// Elements that are NaN; 0 also if unknown.
    pub nan_count: u64,
    /// Elements that are Inf; 0 also if unknown.
    pub inf_count: u64,
    /// Tensors with NaN or Inf; 0 also if unknown.
    pub bad_tensors: u64,
    /// With [`Cause::PARAMETER`], the index of the first bad parameter. Else the index of the bad tensor that is
    /// nearest to the cause: the first in the order of the backward pass, or else the last of the list.
    pub tensor: Option<usize>,
    /// The index of the tensor before that one in the order of the backward pass, which is finite.
    pub tensor_before: Option<usize>,
    /// The rank of that tensor, or, if none is known, of a report with an overflow or a failure.
    pub rank: Option<u32>,
    /// The sentence.
    pub message: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Evidence as C takes it: a report and lists of `n` entries, or NULL.
pub(crate) struct Lists {
    pub(crate) report: *const sys::gsc_report,
    pub(crate) per_tensor: *const sys::gsc_report,
    pub(crate) names: *const *const sys::c_char,
    pub(crate) n: u64,
}

impl State {
    /// Returns why the last update skipped or clipped its step, stopped, or let an outlier through; `None` if the
    /// step is taken as it is.
    ///
    /// `evidence` is what is known about that update: its report, [`Evidence`], or `None`. It decides the cause of an
    /// overflow: a parameter is not finite; the first loss; a later loss; the scale does not fit the dtype of the
    /// loss; else the backward pass made Inf or NaN, and the sentence names the tensor that is nearest to the cause.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: the lists differ in length; [`Status::VALUE`]: a name holds a NUL, or an index is too large;
    /// [`Status::REPORT`]: no call made a report, or its values are impossible.
    pub fn reason<'a>(&self, evidence: impl Into<Evidence<'a>>) -> Result<Option<Reason>> {
        self.explain(&evidence.into(), |_, reason| {
            Ok((reason.outcome != sys::GSC_OUTCOME_TAKEN).then(|| Reason::of_c(reason)))
        })
    }

    /// Passes the reason, and the lists of the evidence, to `then`.
    pub(crate) fn explain<T>(
        &self,
        evidence: &Evidence<'_>,
        then: impl FnOnce(&Lists, &sys::gsc_reason) -> Result<T>,
    ) -> Result<T> {
        let n = evidence.tensors()?;
        let names = c_strings(&evidence.names)?;
        let pointer = |name: &Option<CString>| name.as_ref().map_or(ptr::null(), |it| it.as_ptr());
        let pointers: Vec<_> = names.iter().map(pointer).collect();
        let order: Vec<_> = evidence.order.iter().map(|index| *index as u64).collect();
        let lists = Lists {
            report: evidence.report.map_or(ptr::null(), |report| &report.0),
            per_tensor: or_null(evidence.per_tensor).cast(),
            names: or_null(&pointers),
            n,
        };
        let (report, each, names) = (lists.report, lists.per_tensor, lists.names);
        let (other, order) = (&evidence.other, or_null(&order));
        let mut out = MaybeUninit::uninit();
        // SAFETY: a state, a report or NULL, evidence, lists of n entries or NULL, and a reason to write.
        check(|err| unsafe {
            let out = out.as_mut_ptr();
            sys::gsc_state_reason(&self.0, report, other, each, names, order, n, out, err)
        })?;
        // SAFETY: the call succeeded, so it is written.
        then(&lists, unsafe { out.assume_init_ref() })
    }
}

impl Reason {
    fn of_c(raw: &sys::gsc_reason) -> Self {
        let known = |number: f64| (number != 0.0).then_some(number);
        Self {
            outcome: Outcome::of(raw.outcome),
            cause: Cause::of(raw.cause),
            value: known(raw.value),
            threshold: known(raw.threshold),
            multiplier: raw.multiplier,
            in_a_row: raw.in_a_row as u64,
            nan_count: raw.nan_count as u64,
            inf_count: raw.inf_count as u64,
            bad_tensors: raw.bad_tensors as u64,
            tensor: usize::try_from(raw.tensor).ok(),
            tensor_before: usize::try_from(raw.tensor_before).ok(),
            rank: u32::try_from(raw.rank).ok(),
            message: text(&raw.message),
        }
    }
}

/// Returns names as C strings; an empty name is none.
fn c_strings(names: &[&str]) -> Result<Vec<Option<CString>>> {
    let string = |(index, name): (usize, &&str)| {
        let string = (!name.is_empty()).then(|| CString::new(*name));
        string
            .transpose()
            .map_err(|_| Error::new(Status::VALUE, "names", "holds a NUL".into()).in_list(index))
    };
    names.iter().enumerate().map(string).collect()
}

/// Returns the address of a list; NULL if it is empty.
fn or_null<T>(list: &[T]) -> *const T {
    if list.is_empty() {
        ptr::null()
    } else {
        list.as_ptr()
    }
}

// SPDX-License-Identifier: MIT
//! Why an update skipped or clipped its step: the parts, and a sentence that the library makes.

use std::ffi::CString;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

use crate::error::{check, text, Error, Result};
use crate::macros::Raw;
use crate::{sys, Cause, Outcome, Report, State, Status};

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
    /// The index of the bad tensor that is nearest to the cause of an overflow, the last of the list.
    pub tensor: Option<usize>,
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

impl State {
    /// Returns why the last update skipped or clipped its step, stopped, or let an outlier through; `None` if the
    /// step is taken as it is.
    ///
    /// `report` is the report of that update, `per_tensor` has its reports of each tensor
    /// ([`Options::per_tensor`](crate::Options::per_tensor)), and `names` the names of the tensors, in the order of
    /// the list. Each can be missing; an empty name is no name. If the list is in the model's order, the sentence
    /// names the tensor that is nearest to the cause of an overflow.
    ///
    /// ```
    /// use gradscaler::{Cause, Options, Scaler, TensorMut, Want};
    ///
    /// let mut scaler = Scaler::preset("recommended")?;
    /// let (mut weight, mut bias, mut reports) = ([1f32; 3], [f32::NAN, 1.0], Vec::new());
    /// let report = scaler.unscale(
    ///     &mut [TensorMut::new(&mut weight), TensorMut::new(&mut bias)],
    ///     Options::new(Want::NONE).per_tensor(&mut reports),
    /// )?;
    /// scaler.update(&report)?;
    /// let reason = scaler.state().reason(Some(&report), &reports, &["weight", "bias"])?.unwrap();
    /// eprintln!("{reason}"); // skipped: 1 NaN in "bias" ...
    /// assert_eq!((reason.cause, reason.nan_count, reason.tensor), (Cause::OVERFLOW, 1, Some(1)));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: `per_tensor` and `names` differ in length; [`Status::VALUE`]: a name holds a NUL;
    /// [`Status::REPORT`]: no call made a report, or its values are impossible.
    pub fn reason(
        &self,
        report: Option<&Report>,
        per_tensor: &[Report],
        names: &[&str],
    ) -> Result<Option<Reason>> {
        let (reports, named) = (per_tensor.len(), names.len());
        if reports != 0 && named != 0 && reports != named {
            let message =
                format!("has {named} entries, and per_tensor {reports}: there must be as many");
            return Err(Error::new(Status::COUNT, "names", message));
        }
        let names = c_strings(names)?;
        let pointer = |name: &Option<CString>| name.as_ref().map_or(ptr::null(), |it| it.as_ptr());
        let pointers: Vec<_> = names.iter().map(pointer).collect();
        let report = report.map_or(ptr::null(), |report| &report.0 as *const _);
        let (each, pointers) = (or_null(per_tensor).cast(), or_null(&pointers));
        let (mut out, n) = (MaybeUninit::uninit(), reports.max(named) as u64);
        // SAFETY: a state, reports or NULL, n reports or NULL, n names or NULL, and a reason to write.
        check(|err| unsafe {
            let out = out.as_mut_ptr();
            sys::gsc_state_reason(&self.0, report, ptr::null(), each, pointers, ptr::null(), n, out, err)
        })?;
        // SAFETY: the call succeeded, so it is written.
        let reason: sys::gsc_reason = unsafe { out.assume_init() };
        Ok((reason.outcome != sys::GSC_OUTCOME_TAKEN).then(|| Reason::of_c(&reason)))
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

// SPDX-License-Identifier: MIT
//! Metrics for logs, and a diagnosis of a run: what is wrong, and what to do.

use std::fmt;
use std::ops::Deref;
use std::ptr;

use crate::checkpoint::{value, Entries};
use crate::error::{check, text, Result};
use crate::{sys, Note, Policy, PolicyBuilder, Report, Scaler, State, Value};

/// The faults of a run and how to mend them, the most important first; empty if nothing is wrong. It is
/// displayed as one sentence a line.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Diagnosis(Vec<Note>);

impl Deref for Diagnosis {
    type Target = [Note];

    fn deref(&self) -> &[Note] {
        &self.0
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// Returns the names of all metrics that the library knows, the most important first; see [`Scaler::metrics`].
///
/// ```
/// assert_eq!(gradscaler::metric_names().next().as_deref(), Some("loss_scale"));
/// ```
pub fn metric_names() -> impl Iterator<Item = String> {
    let scaler = PolicyBuilder::default().build().and_then(Scaler::new).ok();
    let metrics = scaler.and_then(|it| metrics(it.policy(), it.state(), None).ok());
    metrics.into_iter().flatten().map(|(name, _)| name)
}

/// Returns all metrics; those that are not known are empty.
fn metrics(
    policy: &Policy,
    state: &State,
    report: Option<&Report>,
) -> Result<impl Iterator<Item = (String, Value)>> {
    let mut entries = vec![sys::gsc_entry::default(); 32];
    let report = report.map_or(ptr::null(), |report| &report.0 as *const _);
    let (list, capacity, mut n) = (entries.as_mut_ptr(), entries.len() as u64, 0);
    // SAFETY: a policy, a state, a report or NULL, and as many entries as are told.
    check(|err| unsafe {
        sys::gsc_state_metrics(&policy.0, &state.0, report, list, capacity, &mut n, err)
    })?;
    entries.truncate(n as usize);
    let metric = |entry: sys::gsc_entry| (text(&entry.key), value(&entry));
    Ok(entries.into_iter().map(metric))
}

impl Scaler {
    /// Returns the metrics after the last update, in the order of [`metric_names`]; other languages have the same
    /// names. The report of that update adds the norm, amax, the share of zeros, the counts of NaN and Inf, and
    /// whether the loss was bad. A metric that is not known is missing.
    ///
    /// ```
    /// use gradscaler::{Report, Scaler, Value};
    ///
    /// let mut scaler = Scaler::preset("torch")?;
    /// scaler.update(&Report::of(true))?;
    /// for (name, value) in scaler.metrics(None)? {
    ///     println!("{name}={value}"); // loss_scale=32768
    /// }
    /// let scale = scaler.metrics(None)?.find(|(name, _)| name == "loss_scale");
    /// assert_eq!(scale.unwrap().1, Value::Number(32768.0));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`](crate::Status::REPORT): no call made the report, or its values are impossible.
    pub fn metrics(
        &self,
        report: Option<&Report>,
    ) -> Result<impl Iterator<Item = (String, Value)>> {
        let metrics = metrics(self.policy(), self.state(), report)?;
        let is_known = |(_, value): &(String, Value)| *value != Value::Empty;
        Ok(metrics.filter(is_known))
    }

    /// Returns what is wrong with a run, and what to do. `report` is the last one, and `per_tensor` its reports
    /// of each tensor, if there are any. `steps` are the updates so far; 0: those that the scaler counted.
    /// `planned_steps` are the updates of the whole run; 0 if not known.
    ///
    /// ```
    /// use gradscaler::{NoteKind, Report, Scaler};
    ///
    /// let mut scaler = Scaler::preset("none")?;
    /// for _ in 0..3 {
    ///     scaler.update(&Report::of(true))?;
    /// }
    /// let diagnosis = scaler.diagnose(None, &[], 0, 0)?;
    /// eprint!("{diagnosis}");
    /// assert_eq!(diagnosis[0].kind, NoteKind::NOT_FINITE);
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::REPORT`](crate::Status::REPORT): no call made a report, or its values are impossible.
    pub fn diagnose(
        &self,
        report: Option<&Report>,
        per_tensor: &[Report],
        steps: u64,
        planned_steps: u64,
    ) -> Result<Diagnosis> {
        let report = report.map_or(ptr::null(), |report| &report.0 as *const _);
        let (policy, state) = (&self.policy().0, &self.state().0);
        let (each, n) = (per_tensor.as_ptr().cast(), per_tensor.len() as u64);
        let notes = Entries::default().read(|_, _, notes, capacity, count, err| {
            // SAFETY: a policy, a state, a report or NULL, and as many reports and notes as are told.
            unsafe {
                sys::gsc_state_diagnose(
                    policy,
                    state,
                    report,
                    each,
                    n,
                    steps,
                    planned_steps,
                    notes,
                    capacity,
                    count,
                    err,
                )
            }
        })?;
        Ok(Diagnosis(notes))
    }
}

// SPDX-License-Identifier: MIT
//! A file with a line of JSON for each step, which `gradscaler diagnose` and `gradscaler.plot` of the Python package
//! read.

use std::ffi::{c_void, CString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::ptr;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{check, Result};
use crate::{sys, Evidence, Scaler};

/// Writes a line of JSON for each update to a file. The core makes the lines, which are the same in every language.
///
/// ```
/// use gradscaler::{History, Report, Scaler};
///
/// let mut scaler = Scaler::preset("torch")?;
/// let path = std::env::temp_dir().join(format!("run-{}.jsonl", std::process::id()));
/// let mut history = History::open(&path, "run-1")?;
/// history.start(&scaler, 1)?;
/// for step in 1..4 {
///     let report = Report::of(step == 2);
///     scaler.update(&report)?;
///     history.line(&scaler, step, &report)?;
/// }
/// assert_eq!(std::fs::read_to_string(&path)?.lines().count(), 4);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct History<W> {
    to: W,
    run: String,
    rank: u32,
    has_times: bool,
}

impl History<File> {
    /// Opens the file at `path` to append, or makes it; see [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: impl AsRef<Path>, run: &str) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self::new(file, run))
    }
}

impl<W: Write> History<W> {
    /// Makes a history of any writer. `run` tells its lines apart from the lines of other writers.
    pub fn new(to: W, run: &str) -> Self {
        Self {
            to,
            run: run.into(),
            rank: 0,
            has_times: true,
        }
    }

    /// Sets the rank of this process.
    #[must_use]
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }

    /// Leaves out the times.
    #[must_use]
    pub fn without_times(mut self) -> Self {
        self.has_times = false;
        self
    }

    /// Writes the line `start`, with the policy and the state: before the first update, and after a scaler was loaded
    /// or replaced. `step` is the number of the next step.
    ///
    /// # Errors
    ///
    /// As the writer; and if `run` holds a NUL.
    pub fn start(&mut self, scaler: &Scaler, step: u64) -> io::Result<()> {
        let (run, rank, time) = (self.run()?, self.rank, self.time());
        let (policy, state) = (&scaler.policy().0, &scaler.state().0);
        let (run, none, no_names) = (run.as_ptr(), ptr::null(), ptr::null());
        let line = line_of(|bytes, capacity, size, err| {
            // SAFETY: a policy, a state, no names, a string, and as many bytes as are told.
            unsafe {
                sys::gsc_history_start(
                    policy, none, state, no_names, 0, step, rank, time, run, bytes, capacity, size,
                    err,
                )
            }
        });
        self.to.write_all(&line.map_err(other)?)
    }

    /// Writes the line of an update, with what is known about it: its report, [`Evidence`], or `None`.
    ///
    /// # Errors
    ///
    /// As the writer, and as [`State::reason`](crate::State::reason).
    pub fn line<'a>(
        &mut self,
        scaler: &Scaler,
        step: u64,
        evidence: impl Into<Evidence<'a>>,
    ) -> io::Result<()> {
        let (run, time, state) = (self.run()?, self.time(), scaler.state());
        let line = state.explain(&evidence.into(), |lists, reason| {
            let (report, each, names, n) = (lists.report, lists.per_tensor, lists.names, lists.n);
            let (state, run) = (&state.0, run.as_ptr());
            line_of(|bytes, capacity, size, err| {
                // SAFETY: a state, a report or NULL, a reason, lists of n entries or NULL, a string, and as many bytes
                // as are told.
                unsafe {
                    sys::gsc_history_line(
                        state, report, reason, each, names, n, step, time, run, bytes, capacity,
                        size, err,
                    )
                }
            })
        });
        self.to.write_all(&line.map_err(other)?)
    }

    fn run(&self) -> io::Result<CString> {
        CString::new(self.run.as_str()).map_err(other)
    }

    fn time(&self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.ok()
            .filter(|_| self.has_times)
            .map_or(0.0, |time| time.as_secs_f64())
    }
}

/// Returns the line that a function of C writes: the first call says how long it is.
fn line_of(
    call: impl Fn(*mut c_void, u64, &mut u64, *mut sys::gsc_error) -> sys::gsc_status,
) -> Result<Vec<u8>> {
    let mut size = 0;
    check(|err| call(ptr::null_mut(), 0, &mut size, err))?;
    let mut line = vec![0u8; size as usize];
    check(|err| call(line.as_mut_ptr().cast(), line.len() as u64, &mut size, err))?;
    Ok(line)
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::Other, error)
}

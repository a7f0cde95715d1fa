// SPDX-License-Identifier: MIT
//! The one place where a status of the C interface becomes a Rust error.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

use crate::macros::Raw;
use crate::sys::c_char;
use crate::{sys, Status};

/// Why a call did nothing: nothing was written, and the scaler is as it was.
///
/// An overflow is never an error; [`Report::overflow`](crate::Report::overflow) tells it.
///
/// ```
/// use gradscaler::{Policy, Scaler, Status};
///
/// let error = Scaler::preset("tortch").unwrap_err();
/// assert_eq!(error.status(), Status::PRESET);
///
/// let error = Policy::preset("torch")?.min_scale(-1.0).build().unwrap_err();
/// assert_eq!((error.place().as_str(), error.value()), ("policy.min_scale", Some(-1.0)));
/// println!("{error}"); // policy.min_scale is -1: it must be ...
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Error(Box<Details>); // a result of a call stays small

#[derive(Clone, PartialEq)]
struct Details {
    status: Status,
    name: String,
    index: Option<usize>,
    field: String,
    value: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    message: String,
    follows_place: bool,
}

/// The result that every fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The kind of error, for a program to decide by.
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// Returns what was wrong: `policy.min_scale`, `out[3].count`; empty if it was no argument.
    pub fn place(&self) -> String {
        let mut place = self.0.name.clone();
        if let Some(index) = self.0.index {
            place += &format!("[{index}]");
        }
        if !self.0.field.is_empty() {
            let dot = if place.is_empty() { "" } else { "." };
            place = place + dot + &self.0.field;
        }
        place
    }

    /// The argument that was wrong, such as `policy` or `out`; empty if none was.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its entry, if it is a list.
    pub fn index(&self) -> Option<usize> {
        self.0.index
    }

    /// The field of the argument or entry, such as `min_scale`; empty for all of it.
    pub fn field(&self) -> &str {
        &self.0.field
    }

    /// The number that was refused.
    pub fn value(&self) -> Option<f64> {
        self.0.value
    }

    /// The least and the most that it may be.
    pub fn limits(&self) -> (Option<f64>, Option<f64>) {
        (self.0.low, self.0.high)
    }

    /// Returns what is wrong: `is -1: it must be 0 or above`, to be read after the [`place`](Self::place), or a
    /// sentence of its own.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// An error that this crate finds before it calls C; the message goes on after the name.
    pub(crate) fn new(status: Status, name: &str, message: String) -> Self {
        Self(Box::new(Details {
            status,
            name: name.into(),
            index: None,
            field: String::new(),
            value: None,
            low: None,
            high: None,
            message,
            follows_place: true,
        }))
    }

    #[cold]
    fn from_raw(raw: &sys::gsc_error) -> Self {
        let number = |value: f64| (!value.is_nan()).then_some(value);
        let message = text(&raw.message);
        let rest = message
            .get(raw.subject_length as usize..)
            .map(str::to_string);
        let status = Status::of(raw.status);
        let mut error = Self::new(status, &text(&raw.name), rest.unwrap_or(message));
        error.0.index = usize::try_from(raw.index).ok();
        error.0.field = text(&raw.field);
        [error.0.value, error.0.low, error.0.high] = [raw.value, raw.low, raw.high].map(number);
        error.0.follows_place = raw.subject_length > 0;
        error
    }

    /// In an entry of a list.
    pub(crate) fn in_list(mut self, index: usize) -> Self {
        self.0.index = Some(index);
        self
    }

    /// At a key of the caller's pairs.
    pub(crate) fn of_key(mut self, key: &str) -> Self {
        self.0.index = None;
        // The library quotes the beginning of a long one.
        let shown = String::from_utf8_lossy(&key.as_bytes()[..key.len().min(64)]);
        if let Some(rest) = self.0.message.strip_prefix(&format!("of \"{shown}\" ")) {
            self.0.message = rest.into();
        }
        self.at(key, "")
    }

    /// With the field of an argument that Rust has in another place.
    pub(crate) fn at(mut self, name: &str, field: &str) -> Self {
        self.0.name = name.into();
        self.0.field = field.into();
        self
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.status)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.follows_place {
            write!(f, "{} ", self.place())?;
        }
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

/// Makes a call; every call of this crate goes through here.
pub(crate) fn check(call: impl FnOnce(*mut sys::gsc_error) -> sys::gsc_status) -> Result<()> {
    let mut error = MaybeUninit::uninit();
    if call(error.as_mut_ptr()) == sys::GSC_OK {
        return Ok(());
    }
    // SAFETY: a call that fails fills the error.
    Err(Error::from_raw(unsafe { error.assume_init_ref() }))
}

/// A text in a fixed number of bytes, up to its NUL.
pub(crate) fn text(bytes: &[c_char]) -> String {
    let until_nul = bytes.iter().take_while(|&&byte| byte != 0);
    String::from_utf8_lossy(&until_nul.map(|&byte| byte as u8).collect::<Vec<_>>()).into_owned()
}

/// A list of the library: the name of each and a sentence on it.
pub(crate) fn listed(
    name: unsafe extern "C" fn(u32) -> *const c_char,
    summary: unsafe extern "C" fn(u32) -> *const c_char,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    // SAFETY: past the last there is NULL; before, there are strings that live as long as the library.
    let text = |string: *const c_char| (!string.is_null()).then(|| unsafe { static_str(string) });
    // SAFETY: no conditions.
    (0..).map_while(move |index| unsafe { Some((text(name(index))?, text(summary(index))?)) })
}

/// A string of the library.
///
/// # Safety
///
/// `string` is a C string that is never freed.
pub(crate) unsafe fn static_str(string: *const c_char) -> &'static str {
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(string) }
        .to_str()
        .unwrap_or("(not UTF-8)")
}

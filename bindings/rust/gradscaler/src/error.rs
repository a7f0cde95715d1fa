// SPDX-License-Identifier: MIT
//! Makes a Rust error of a status of C; no other module does.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

use crate::macros::Raw;
use crate::sys::c_char;
use crate::{sys, Status};

/// The reason why a call failed. It wrote nothing, and the scaler did not change.
///
/// An overflow is not an error; see [`Report::overflow`](crate::Report::overflow). The words of a message can change
/// in any version: programs read the other methods.
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
    /// Returns the kind of error, for programs.
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// Returns the name of the wrong argument, entry or field: `policy.min_scale`, `out[3].count`. Empty if
    /// no argument was wrong.
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

    /// Returns the name of the wrong argument, such as `policy` or `out`; empty if none was wrong.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the index of the wrong entry, if the argument is a list.
    pub fn index(&self) -> Option<usize> {
        self.0.index
    }

    /// Returns the wrong field of the argument or entry, such as `min_scale`; empty if all of it is wrong.
    pub fn field(&self) -> &str {
        &self.0.field
    }

    /// Returns the refused number.
    pub fn value(&self) -> Option<f64> {
        self.0.value
    }

    /// Returns the lower and the upper limit of the number.
    pub fn limits(&self) -> (Option<f64>, Option<f64>) {
        (self.0.low, self.0.high)
    }

    /// Returns the message without [`place`](Self::place), such as `is -1: it must be 0 or above`.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Makes an error that this crate finds before it calls C. The message follows the name.
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
        let message = text(&raw.message[raw.subject_length as usize..]);
        let mut error = Self::new(Status::of(raw.status), &text(&raw.name), message);
        error.0.index = usize::try_from(raw.index).ok();
        error.0.field = text(&raw.field);
        [error.0.value, error.0.low, error.0.high] = [raw.value, raw.low, raw.high].map(number);
        error.0.follows_place = raw.subject_length > 0;
        error
    }

    /// Returns the error with the index of an entry.
    pub(crate) fn in_list(mut self, index: usize) -> Self {
        self.0.index = Some(index);
        self
    }

    /// Returns the error with the caller's key instead of an index.
    pub(crate) fn of_key(mut self, key: &str) -> Self {
        self.0.index = None;
        self.at(key, "")
    }

    /// Returns the error with another argument and field.
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

/// Makes a call of C, and an error of its status.
pub(crate) fn check(call: impl FnOnce(*mut sys::gsc_error) -> sys::gsc_status) -> Result<()> {
    let mut error = MaybeUninit::uninit();
    if call(error.as_mut_ptr()) == sys::GSC_OK {
        return Ok(());
    }
    // SAFETY: a call that fails fills the error.
    Err(Error::from_raw(unsafe { error.assume_init_ref() }))
}

/// Returns the text in an array of bytes, up to its NUL.
pub(crate) fn text(bytes: &[c_char]) -> String {
    let until_nul = bytes.iter().take_while(|&&byte| byte != 0);
    String::from_utf8_lossy(&until_nul.map(|&byte| byte as u8).collect::<Vec<_>>()).into_owned()
}

/// Returns a list of the library: the name of each entry and a sentence on it.
pub(crate) fn listed(
    name: unsafe extern "C" fn(u32) -> *const c_char,
    summary: unsafe extern "C" fn(u32) -> *const c_char,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    // SAFETY: past the last there is NULL; before, there are strings that live as long as the library.
    let text = |string: *const c_char| (!string.is_null()).then(|| unsafe { static_str(string) });
    // SAFETY: no conditions.
    (0..).map_while(move |index| unsafe { Some((text(name(index))?, text(summary(index))?)) })
}

/// Returns a string of the library.
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

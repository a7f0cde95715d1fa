// SPDX-License-Identifier: MIT
//! The one place where a status of the C interface becomes a Rust error.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

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
/// assert_eq!(error.status, Status::PRESET);
///
/// let error = Policy::preset("torch")?.min_scale(-1.0).build().unwrap_err();
/// assert_eq!((error.place().as_str(), error.value), ("policy.min_scale", Some(-1.0)));
/// println!("{error}"); // policy.min_scale is -1: it must be ...
/// # Ok::<(), gradscaler::Error>(())
/// ```
///
/// It reads as its [`Details`].
#[derive(Clone, PartialEq)]
pub struct Error(Box<Details>); // a result of a call stays small

/// The fields of an [`Error`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Details {
    /// The kind of error, for a program to decide by.
    pub status: Status,
    /// The argument that was wrong, such as `policy` or `out`; empty if none was.
    pub name: String,
    /// Its entry, if it is a list.
    pub index: Option<usize>,
    /// The field of the argument or entry, such as `min_scale`; empty for all of it.
    pub field: String,
    /// The number that was refused.
    pub value: Option<f64>,
    /// The least that it may be.
    pub low: Option<f64>,
    /// The most that it may be.
    pub high: Option<f64>,
    /// What is wrong: `is -1: it must be 0 or above`, to be read after the [`place`](Self::place), or
    /// a sentence of its own where [`follows_place`](Self::follows_place) is false.
    pub message: String,
    /// Whether the message is to be read after the place.
    pub follows_place: bool,
}

/// What every fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
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
        Self(Box::new(Details {
            status: raw.status.into(),
            name: text(&raw.name),
            index: usize::try_from(raw.index).ok(),
            field: text(&raw.field),
            value: number(raw.value),
            low: number(raw.low),
            high: number(raw.high),
            message: rest.unwrap_or(message),
            follows_place: raw.subject_length > 0,
        }))
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

impl Details {
    /// What was wrong: `policy.min_scale`, `out[3].count`; empty if it was no argument.
    pub fn place(&self) -> String {
        let mut place = self.name.clone();
        if let Some(index) = self.index {
            place += &format!("[{index}]");
        }
        if !self.field.is_empty() {
            let dot = if place.is_empty() { "" } else { "." };
            place = place + dot + &self.field;
        }
        place
    }
}

impl std::ops::Deref for Error {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.status)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.follows_place {
            write!(f, "{} ", self.place())?;
        }
        f.write_str(&self.message)
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

// SPDX-License-Identifier: MIT
//! The one place where a status of the C interface becomes a Rust error.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

use crate::sys::c_char;
use crate::{sys, Status};

/// Why a call did nothing: nothing was written, and the scaler is as it was.
///
/// An overflow is never an error; [`Report::found_inf`](crate::Report::found_inf) tells it.
///
/// ```
/// let error = gradscaler::Scaler::preset("tortch").unwrap_err();
/// assert_eq!(error.status, gradscaler::Status::PRESET);
/// println!("{error}"); // name: no preset is called "tortch" ...
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The kind of error, for a program to decide by.
    pub status: Status,
    /// Position of the argument in the C call, from 0.
    pub argument: Option<usize>,
    /// Index of the tensor in its list.
    pub index: Option<usize>,
    /// What was wrong, such as `policy.min_scale` or `out[3].count`.
    pub name: String,
    /// One sentence: what, and how to mend it.
    pub message: String,
}

/// What every fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that this crate finds before it calls C.
    pub(crate) fn new(status: Status, name: impl Into<String>, message: String) -> Self {
        let name = name.into();
        Self {
            status,
            argument: None,
            index: None,
            name,
            message,
        }
    }

    #[cold]
    fn from_raw(raw: &sys::gsc_error) -> Self {
        Self {
            status: Status::from_raw(raw.status),
            argument: usize::try_from(raw.argument).ok(),
            index: usize::try_from(raw.index).ok(),
            name: text(&raw.name),
            message: text(&raw.message),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({:?})", self.name, self.message, self.status)
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
fn text(bytes: &[c_char]) -> String {
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

// SPDX-License-Identifier: MIT
//! Shared by the tests of errors.

use std::fmt::Debug;

use gradscaler::{Result, Status};

#[track_caller]
pub fn refused<T: Debug>(result: Result<T>, status: Status, place: &str) {
    let error = result.unwrap_err();
    let (text, words) = (error.to_string(), error.message());
    let seen = (error.status(), error.place());
    assert_eq!(seen, (status, place.to_string()), "{text}");
    assert!(words.len() > 10, "{text}");
    let subject = text.strip_suffix(words).unwrap();
    assert!(subject.is_empty() || subject.starts_with(&format!("{place} ")));
    // The words are this crate's, not C's.
    let of_c = ["gsc_", "GSC_", "NULL"];
    assert!(!of_c.iter().any(|word| text.contains(word)), "{text}");
}

/// Calls, each with the status and the place of its error.
#[macro_export]
macro_rules! refused {
    ($($result:expr => $status:ident $place:expr;)*) => {
        $($crate::common::refused($result, gradscaler::Status::$status, $place);)*
    };
}

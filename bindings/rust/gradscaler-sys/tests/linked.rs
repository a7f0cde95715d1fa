// SPDX-License-Identifier: MIT
//! The declarations fit the library that is linked; layouts are compared at compile time.
#![allow(missing_docs)]

use std::ffi::CStr;
use std::ptr;

use gradscaler_sys::*;

#[test]
fn the_library_has_the_version_of_the_declarations() {
    // SAFETY: no conditions.
    assert_eq!(unsafe { gsc_version() }, GSC_VERSION);
}

#[test]
fn the_initialisers_are_those_of_the_library() {
    let mut policy = GSC_POLICY_INIT;
    policy.growth_factor = 3.0;
    // SAFETY: the size is that of the struct; the error may be NULL.
    let status = unsafe { gsc_policy_init(GSC_POLICY_SIZE, &mut policy, ptr::null_mut()) };
    assert_eq!(status, GSC_OK);
    assert_eq!(policy, GSC_POLICY_INIT);
}

#[test]
fn an_error_says_what_was_wrong() {
    let mut error = gsc_error {
        status: GSC_OK,
        argument: 0,
        index: 0,
        name: [0; 48],
        message: [0; 192],
    };
    // SAFETY: NULL is refused, not followed.
    let status = unsafe { gsc_policy_check(ptr::null(), &mut error) };
    assert_eq!((status, error.status), (GSC_ERROR_NULL, GSC_ERROR_NULL));
    // SAFETY: the call failed and so wrote a C string.
    let name = unsafe { CStr::from_ptr(error.name.as_ptr()) };
    assert_eq!(name.to_str(), Ok("policy"));
}

#[test]
fn a_list_is_unscaled_in_place() {
    let mut data = [2.0f32, f32::NAN];
    let tensor = gsc_tensor {
        data: data.as_mut_ptr().cast(),
        count: 2,
        dtype: GSC_F32,
        reserved: 0,
    };
    let (mut factor, mut report) = (gsc_factor::default(), gsc_report::default());
    let none = ptr::null_mut();
    // SAFETY: one tensor with two elements, and the outputs of the calls.
    unsafe {
        assert_eq!(gsc_factor_init(2.0, &mut factor, none), GSC_OK);
        let want = GSC_WANT_FIRST_BAD;
        let status = gsc_unscale(
            ptr::null(),
            &factor,
            &tensor,
            &tensor,
            1,
            want,
            &mut report,
            none,
        );
        assert_eq!(status, GSC_OK);
    }
    assert_eq!((data[0], report.overflow), (1.0, 1));
    assert_eq!(
        (
            GSC_BAD_TENSOR(report.first_bad),
            GSC_BAD_ELEMENT(report.first_bad)
        ),
        (0, 1)
    );
}

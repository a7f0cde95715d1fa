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
    let (mut policy, mut info) = (GSC_POLICY_INIT, GSC_INFO_INIT);
    policy.growth_factor = 3.0;
    // SAFETY: the sizes are those of the structs; the error may be NULL.
    unsafe {
        assert_eq!(gsc_policy_check(&policy, ptr::null_mut()), GSC_OK);
        assert_eq!(gsc_info_get(&mut info, ptr::null_mut()), GSC_OK);
    }
    assert_eq!(info.struct_size, GSC_INFO_SIZE);
    let only_its_size = gsc_policy {
        growth_factor: 0.0,
        ..policy
    };
    assert_eq!(only_its_size, GSC_POLICY_INIT);
    assert_eq!(gsc_exec::default(), GSC_EXEC_INIT);
    assert_eq!(GSC_TENSOR_OPTIONS_INIT.struct_size, GSC_TENSOR_OPTIONS_SIZE);
}

#[test]
fn an_error_says_what_was_wrong() {
    let mut error = gsc_error::default();
    // SAFETY: NULL is refused, not followed.
    let status = unsafe { gsc_policy_check(ptr::null(), &mut error) };
    assert_eq!((status, error.status), (GSC_ERROR_NULL, GSC_ERROR_NULL));
    assert!(matches!(status, GSC_ERROR_NULL)); // constants are patterns
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
        flags: 0,
        reserved: [0; 2],
    };
    let (mut factor, mut report) = (gsc_factor::default(), gsc_report::default());
    let none = ptr::null_mut();
    // SAFETY: one tensor with two elements, and the outputs of the calls.
    unsafe {
        assert_eq!(gsc_factor_init(2.0, &mut factor, none), GSC_OK);
        let options = gsc_tensor_options {
            want: GSC_WANT_AMAX,
            ..GSC_TENSOR_OPTIONS_INIT
        };
        let status = gsc_unscale(
            ptr::null(),
            &factor,
            &tensor,
            &tensor,
            1,
            &options,
            &mut report,
            none,
        );
        assert_eq!(status, GSC_OK);
    }
    assert_eq!((data[0], report.overflow, report.amax), (1.0, 1, 1.0));
    assert_eq!((report.first_tensor, report.first_element), (0, 1));
}

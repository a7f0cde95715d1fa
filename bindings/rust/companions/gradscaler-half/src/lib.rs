// SPDX-License-Identifier: MIT
//! [`gradscaler`] for slices of [`half::f16`] and [`half::bf16`]: they are viewed as the bit
//! patterns that gradscaler takes, without a copy.
//!
//! ```
//! use gradscaler::{Scaler, TensorMut, Want};
//! use half::f16;
//!
//! let mut scaler = Scaler::preset("recommended")?;
//! let scaled = vec![f16::from_f32(0.5); 100]; // gradients of loss * scaler.loss_scale()
//! let mut grads = vec![0f32; 100];
//! let report = scaler.unscale_into(
//!     &[gradscaler_half::tensor(&scaled)],
//!     &mut [TensorMut::new(&mut grads)],
//!     Want::NONE,
//! )?;
//! if !report.overflow() {
//!     assert_eq!(grads[0], 0.5 / 65536.0); // the optimizer's step
//! }
//! scaler.update(&report)?;
//! # Ok::<(), gradscaler::Error>(())
//! ```

use gradscaler::{Bf16, Element, Tensor, TensorMut, F16};
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// [`f16`](struct@f16) and [`bf16`].
pub trait Half: sealed::Sealed + Copy {
    /// The same number as its bits; both are transparent wrappers of a `u16`.
    type Bits: Element;
}

impl Half for f16 {
    type Bits = F16;
}

impl Half for bf16 {
    type Bits = Bf16;
}

/// The numbers of a slice as their bits.
pub fn bits<T: Half>(slice: &[T]) -> &[T::Bits] {
    // SAFETY: T and T::Bits are both a transparent u16, for which every bit pattern is a number.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) }
}

/// The numbers of a slice as their bits, to write.
pub fn bits_mut<T: Half>(slice: &mut [T]) -> &mut [T::Bits] {
    // SAFETY: as in `bits`; the borrow is handed on.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), slice.len()) }
}

/// A slice as an entry of a list that is read.
pub fn tensor<T: Half>(slice: &[T]) -> Tensor<'_> {
    Tensor::new(bits(slice))
}

/// A slice as an entry of a list that is written, or changed in place.
pub fn tensor_mut<T: Half>(slice: &mut [T]) -> TensorMut<'_> {
    TensorMut::new(bits_mut(slice))
}

const _: () = {
    assert!(std::mem::size_of::<f16>() == 2 && std::mem::align_of::<f16>() == 2);
    assert!(std::mem::size_of::<bf16>() == 2 && std::mem::align_of::<bf16>() == 2);
};

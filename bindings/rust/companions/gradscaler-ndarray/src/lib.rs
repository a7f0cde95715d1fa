// SPDX-License-Identifier: MIT
//! [`gradscaler`] for arrays of [`ndarray`]: their memory is viewed, without a copy.
//!
//! ```
//! use gradscaler::{Evidence, Scaler, Want};
//! use gradscaler_ndarray::tensor_mut;
//! use ndarray::{Array1, Array2};
//!
//! let mut scaler = Scaler::preset("recommended")?;
//! let mut weight = Array2::from_elem((64, 10), 65536f32); // gradients of loss * loss_scale()
//! let mut bias = Array1::from_elem(10, 0f32);
//! let report = scaler.unscale(
//!     &mut [tensor_mut(&mut weight)?, tensor_mut(&mut bias)?],
//!     Want::NORM,
//! )?;
//! if !report.overflow() {
//!     assert_eq!(weight[[3, 7]], 1.0); // the optimizer's step
//! }
//! scaler.update(&report)?;
//! if let Some(reason) = scaler.state().reason(Evidence::of(&report).names(&["weight", "bias"]))? {
//!     eprintln!("{reason}"); // skipped: 1 NaN, the last in "bias"
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Elements are those that gradscaler reads: floats, and the bits of half-precision ones. Two arrays
//! of one call, such as a gradient and where its f32 goes, are walked side by side, so both must lie
//! in memory row by row. What is changed in place may lie in any order: [`dense_mut`].

use std::fmt;

use gradscaler::{Element, Tensor, TensorMut};
use ndarray::{ArrayRef, Dimension};

/// An array with elements that do not lie in memory as the view needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    strides: Vec<isize>,
    shape: Vec<usize>,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the array of shape {:?} has strides {:?}, so it does not lie in memory row by row: copy \
             it with as_standard_layout; where it is changed in place and has no gaps, use dense_mut",
            self.shape, self.strides
        )
    }
}

impl std::error::Error for Layout {}

impl Layout {
    fn of<T, D: Dimension>(array: &ArrayRef<T, D>) -> Self {
        Self {
            strides: array.strides().to_vec(),
            shape: array.shape().to_vec(),
        }
    }
}

/// An array as an entry of a list that is read.
///
/// # Errors
///
/// It does not lie in memory row by row, as a transposed or sliced array may not.
pub fn tensor<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Result<Tensor<'_>, Layout> {
    let slice = array.as_slice().ok_or_else(|| Layout::of(array))?;
    Ok(Tensor::new(slice))
}

/// An array as an entry of a list that is written, or changed in place.
///
/// # Errors
///
/// As [`tensor`].
pub fn tensor_mut<T: Element, D: Dimension>(
    array: &mut ArrayRef<T, D>,
) -> Result<TensorMut<'_>, Layout> {
    let layout = Layout::of(array);
    let slice = array.as_slice_mut().ok_or(layout)?;
    Ok(TensorMut::new(slice))
}

/// An array without gaps, its elements in the order in which they lie in memory: for what is changed
/// in place, such as a gradient that is a transposed product.
///
/// # Errors
///
/// It has gaps, as a slice of columns has.
pub fn dense_mut<T: Element, D: Dimension>(
    array: &mut ArrayRef<T, D>,
) -> Result<TensorMut<'_>, Layout> {
    let layout = Layout::of(array);
    let slice = array.as_slice_memory_order_mut().ok_or(layout)?;
    Ok(TensorMut::new(slice))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use gradscaler::{Bf16, Dtype, Factor, Want};
    use ndarray::{array, s, Array, Array2};

    #[test]
    fn a_view_is_the_same_memory() {
        let mut a = array![[1f32, 2.0, 3.0], [4.0, 5.0, f32::INFINITY]];
        let view = tensor(&a).unwrap();
        assert_eq!((view.len(), view.dtype()), (6, Dtype::F32));
        let factor = Factor::new(2.0).unwrap();
        let report = factor
            .unscale(&mut [tensor_mut(&mut a).unwrap()], Want::NONE)
            .unwrap();
        assert_eq!(report.first_overflow(), Some((0, 5)));
        assert_eq!(a.slice(s![0, ..]), array![0.5, 1.0, 1.5]);
        // Arrays of any rank and element, without elements, a row of another array.
        assert_eq!(
            tensor(&Array::from_elem((2, 1, 4), Bf16(0))).unwrap().len(),
            8
        );
        assert!(tensor(&Array2::<f64>::zeros((0, 3))).unwrap().is_empty());
        assert_eq!(tensor(&a.slice(s![1..2, ..])).unwrap().len(), 3);
    }

    #[test]
    fn an_order_that_would_mix_up_elements_is_refused() {
        let mut a = array![[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
        let error = tensor(&a.t()).unwrap_err().to_string();
        assert!(error.contains("shape [3, 2] has strides [1, 3]"), "{error}");
        assert!(tensor_mut(&mut a.view_mut().reversed_axes()).is_err());
        assert!(tensor(&a.slice(s![.., 1..])).is_err());
        assert!(tensor(&a.slice(s![..;-1, ..])).is_err());
    }

    #[test]
    fn what_is_changed_in_place_may_lie_in_any_order() {
        let mut a = array![[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
        let factor = Factor::new(2.0).unwrap();
        let mut transposed = a.view_mut().reversed_axes();
        let report = factor.unscale(&mut [dense_mut(&mut transposed).unwrap()], Want::NONE);
        assert!(!report.unwrap().overflow());
        assert_eq!(a, array![[0.5, 1.0, 1.5], [2.0, 2.5, 3.0]]);
        assert!(dense_mut(&mut a.slice_mut(s![.., 1..])).is_err());
    }
}

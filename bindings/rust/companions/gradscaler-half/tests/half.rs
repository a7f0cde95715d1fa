// SPDX-License-Identifier: MIT
//! gradscaler reads and writes the numbers that the half crate means.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{Dtype, Factor, Tensor, TensorMut};
use gradscaler_half::{bits, tensor, tensor_mut, Half};
use half::{bf16, f16};

#[test]
fn a_view_is_the_same_memory() {
    let data = [f16::ONE, f16::NEG_INFINITY];
    assert_eq!(bits(&data).as_ptr().cast::<f16>(), data.as_ptr());
    let view = tensor(&data);
    assert_eq!((view.len(), view.dtype()), (2, Dtype::F16));
    assert_eq!(tensor(&[bf16::ONE; 3]).dtype(), Dtype::BF16);
}

#[test]
fn conversions_are_those_of_half() {
    converts(f16::from_bits, f16::to_f32, f16::from_f32);
    converts(bf16::from_bits, bf16::to_f32, bf16::from_f32);
}

/// Every 16-bit pattern: converted as the half crate does, NaN to NaN; and back, from numbers that need rounding.
fn converts<T: Half>(from_bits: fn(u16) -> T, wide: fn(T) -> f32, narrow: fn(f32) -> T) {
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let all: Vec<T> = (0..=u16::MAX).map(from_bits).collect();
    let mut out = vec![0f32; all.len()];
    let list = &mut [TensorMut::new(&mut out)];
    Factor::ONE.scale_into(&[tensor(&all)], list, None).unwrap();
    assert!(all.iter().zip(&out).all(|(&x, &out)| same(wide(x), out)));

    let thirds: Vec<f32> = out.iter().map(|x| x / 3.0).collect();
    let mut out = all;
    let list = &mut [tensor_mut(&mut out)];
    let thirds_view = [Tensor::new(&thirds)];
    Factor::ONE.scale_into(&thirds_view, list, None).unwrap();
    for (&x, &out) in thirds.iter().zip(&out) {
        assert!(same(wide(out), wide(narrow(x))), "{x}: {}", wide(out));
    }
}

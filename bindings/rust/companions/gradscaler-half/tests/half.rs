// SPDX-License-Identifier: MIT
//! gradscaler reads and writes the numbers that the half crate means.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{Dtype, Factor, Tensor, TensorMut};
use gradscaler_half::{bits, tensor, tensor_mut};
use half::{bf16, f16};

#[test]
fn a_view_is_the_same_memory() {
    let data = [f16::ONE, f16::NEG_INFINITY];
    assert_eq!(bits(&data).as_ptr().cast::<f16>(), data.as_ptr());
    assert_eq!(
        (tensor(&data).len(), tensor(&data).dtype()),
        (2, Dtype::F16)
    );
    assert_eq!(tensor(&[bf16::ONE; 3]).dtype(), Dtype::BF16);
}

/// Every 16-bit pattern: converted as the half crate does, NaN to NaN.
#[test]
fn conversions_are_those_of_half() {
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    let half: Vec<f16> = patterns.iter().map(|&bits| f16::from_bits(bits)).collect();
    let upper: Vec<bf16> = patterns.iter().map(|&bits| bf16::from_bits(bits)).collect();
    let (mut wide, mut wider) = (vec![0f32; 65536], vec![0f32; 65536]);
    let mut out = [TensorMut::new(&mut wide), TensorMut::new(&mut wider)];
    Factor::ONE
        .scale_into(&[tensor(&half), tensor(&upper)], &mut out, None)
        .unwrap();
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    assert!(half
        .iter()
        .zip(&wide)
        .all(|(half, &wide)| same(half.to_f32(), wide)));
    assert!(upper
        .iter()
        .zip(&wider)
        .all(|(upper, &wide)| same(upper.to_f32(), wide)));

    // And back, from numbers that need rounding.
    let thirds: Vec<f32> = wide.iter().map(|x| x / 3.0).collect();
    let (mut half, mut upper) = (vec![f16::ZERO; 65536], vec![bf16::ZERO; 65536]);
    let inputs = [Tensor::new(&thirds), Tensor::new(&thirds)];
    Factor::ONE
        .scale_into(
            &inputs,
            &mut [tensor_mut(&mut half), tensor_mut(&mut upper)],
            None,
        )
        .unwrap();
    for ((&x, half), upper) in thirds.iter().zip(&half).zip(&upper) {
        assert!(
            same(half.to_f32(), f16::from_f32(x).to_f32()),
            "{x}: {half}"
        );
        assert!(
            same(upper.to_f32(), bf16::from_f32(x).to_f32()),
            "{x}: {upper}"
        );
    }
}

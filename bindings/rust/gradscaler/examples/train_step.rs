// SPDX-License-Identifier: MIT
//! A training loop. Its gradient passes through f16; its loss is so small that without scaling f16
//! holds only zeros: then w stays 0.
//!
//!     cargo run --example train_step

use gradscaler::{Result, Scaler, Tensor, TensorMut, Want, F16};

fn main() -> Result<()> {
    let mut scaler = Scaler::preset("recommended")?;
    let (mut w, mut stored) = (0f32, [F16(0)]);
    for _ in 0..100 {
        let mut gradient = [2e-9 * (w - 3.0)]; // of the loss 1e-9 (w - 3)^2
        let scaled = &mut [TensorMut::new(&mut stored)];
        scaler.scale_into(&[Tensor::new(&gradient)], scaled, Want::NONE)?;
        let unscaled = &mut [TensorMut::new(&mut gradient)];
        let report = scaler.unscale_into(&[Tensor::new(&stored)], unscaled, Want::NONE)?;
        scaler.update(&report)?;
        if !scaler.state().skip() {
            w -= 1e8 * gradient[0];
        }
    }
    let (scale, skipped) = (scaler.loss_scale(), scaler.state().total_overflows());
    println!("w = {w:.3}, 3 is right; scale {scale}, {skipped} steps skipped");
    assert!((w - 3.0).abs() < 0.1);
    Ok(())
}

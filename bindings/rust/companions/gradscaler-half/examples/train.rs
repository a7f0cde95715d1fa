// SPDX-License-Identifier: MIT
//! A regression trained with the arithmetic of the half crate, with and without loss scaling.
//!
//!     cargo run --example train
//!
//! Sixteen weights are learned from samples of a linear rule. The loss is weighted 1e-6, as a rare
//! term of a larger loss may be, so the gradients are too small for f16. The exit status is 1 if
//! f16 learns without scaling, or does not with it.

use std::process::ExitCode;

use gradscaler::{Result, Scaler, TensorMut, Want};
use half::f16;

const WEIGHTS: usize = 16;
const SAMPLES: usize = 256;
const STEPS: usize = 400;
const LOSS_WEIGHT: f32 = 1e-6;

/// Numbers between -1 and 1, the same in every run.
fn noise(count: usize) -> Vec<f32> {
    let mut x = 1u64;
    let mut next = || {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (x >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn dot(a: &[f16], b: &[f16]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f32::from(*a) * f32::from(*b))
        .sum()
}

/// The gradient of the scaled, weighted mean square error, in f16.
fn gradient(weights: &[f16], inputs: &[f16], targets: &[f32], scale: f32) -> Vec<f16> {
    let mut gradient = vec![f16::ZERO; WEIGHTS];
    for (row, target) in inputs.chunks(WEIGHTS).zip(targets) {
        let error = dot(row, weights) - target;
        let delta = f16::from_f32(error * (scale * LOSS_WEIGHT / SAMPLES as f32));
        gradient
            .iter_mut()
            .zip(row)
            .for_each(|(sum, input)| *sum += delta * *input);
    }
    gradient
}

/// Trains and returns the largest error of a weight.
fn train(name: &str, mut scaler: Scaler) -> Result<f32> {
    let rule = noise(WEIGHTS);
    let inputs: Vec<f16> = noise(SAMPLES * WEIGHTS)
        .into_iter()
        .map(f16::from_f32)
        .collect();
    let targets: Vec<f32> = inputs
        .chunks(WEIGHTS)
        .map(|row| {
            row.iter()
                .zip(&rule)
                .map(|(input, weight)| f32::from(*input) * weight)
                .sum()
        })
        .collect();
    let mut master = [0f32; WEIGHTS];
    for _ in 0..STEPS {
        let weights: Vec<f16> = master.iter().copied().map(f16::from_f32).collect();
        let scaled = gradient(&weights, &inputs, &targets, scaler.loss_scale() as f32);
        let mut grads = [0f32; WEIGHTS];
        let mut out = [TensorMut::new(&mut grads)];
        let report =
            scaler.unscale_into(&[gradscaler_half::tensor(&scaled)], &mut out, Want::NONE)?;
        if !report.overflow() {
            master
                .iter_mut()
                .zip(&grads)
                .for_each(|(w, g)| *w -= 0.3 / LOSS_WEIGHT * g);
        }
        scaler.update(&report)?;
    }
    let error = master
        .iter()
        .zip(&rule)
        .map(|(w, r)| (w - r).abs())
        .fold(0.0, f32::max);
    println!(
        "{name:<12} largest error {error:.4}, {} steps skipped",
        scaler.state().total_overflows()
    );
    Ok(error)
}

fn main() -> Result<ExitCode> {
    let alone = train("f16", Scaler::preset("none")?)?;
    let scaled = train("f16, scaled", Scaler::preset("recommended")?)?;
    let kept = alone > 0.5 && scaled < 0.01;
    Ok(if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

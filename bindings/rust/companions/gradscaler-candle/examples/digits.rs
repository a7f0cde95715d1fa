// SPDX-License-Identifier: MIT
//! A network of candle, trained in f16 on handwritten digits, with and without loss scaling.
//!
//!     cargo run --example digits FILE
//!
//! FILE holds the 1,797 digits of scikit-learn's load_digits: 64 bytes of pixels (0 to 16) and a
//! byte of label each. The loss is weighted 1e-5, as for an auxiliary head, so most gradients are
//! too small for f16. The exit status is 1 if f16 does not fail without scaling, or does not match
//! f32 with it.

use std::process::ExitCode;

use candle_core::{DType, Device, Error, Result, Tensor, Var, D};
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW};
use candle_nn::{loss::cross_entropy, ops::sigmoid};
use gradscaler::{Policy, Scaler};
use gradscaler_candle::backward_step;

const LAYERS: [usize; 3] = [64, 32, 10];
const EPOCHS: usize = 50;
const BATCH: usize = 256;
const TRAINING_SET: usize = 5 * BATCH;
const LOSS_WEIGHT: f64 = 1e-5;

struct Digits {
    images: Tensor,
    labels: Tensor,
}

fn read(path: &str) -> Result<Digits> {
    let bytes = std::fs::read(path).map_err(Error::wrap)?;
    let count = bytes.len() / 65;
    let records = Tensor::from_vec(bytes, (count, 65), &Device::Cpu)?;
    let images = (records.narrow(1, 0, 64)?.to_dtype(DType::F32)? / 16.0)?;
    Ok(Digits {
        images,
        labels: records
            .narrow(1, 64, 1)?
            .to_dtype(DType::U32)?
            .flatten_all()?,
    })
}

/// Weights between -limit and limit from a hash of their position: the same in every run.
fn parameters() -> Result<Vec<Var>> {
    let mut variables = Vec::new();
    for layer in LAYERS.windows(2) {
        let limit = (6.0 / (layer[0] + layer[1]) as f32).sqrt();
        let hash = |i: usize| (i as u32 + 1).wrapping_mul(2654435769).wrapping_pow(3) >> 8;
        let uniform = |i| limit * (hash(i) as f32 / (1 << 23) as f32 - 1.0);
        let weight: Vec<f32> = (0..layer[0] * layer[1]).map(uniform).collect();
        let weight = Tensor::from_vec(weight, (layer[0], layer[1]), &Device::Cpu)?;
        variables.push(Var::from_tensor(&weight)?);
        variables.push(Var::zeros(layer[1], DType::F32, &Device::Cpu)?);
    }
    Ok(variables)
}

/// The logits, in f32; the network runs in `dtype`, into which the f32 variables are cast.
fn forward(variables: &[Var], images: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut x = images.to_dtype(dtype)?;
    for (i, layer) in variables.chunks(2).enumerate() {
        if i > 0 {
            x = sigmoid(&x)?;
        }
        x = x
            .matmul(&layer[0].to_dtype(dtype)?)?
            .broadcast_add(&layer[1].to_dtype(dtype)?)?;
    }
    x.to_dtype(DType::F32)
}

fn train(name: &str, dtype: DType, mut scaler: Scaler, digits: &Digits) -> Result<f64> {
    let variables = parameters()?;
    // Adam divides by the size of gradients: an epsilon with the loss's weight in it leaves f16's
    // rounding as the only difference between the runs.
    let settings = ParamsAdamW {
        lr: 0.01,
        weight_decay: 0.0,
        eps: 1e-8 * LOSS_WEIGHT,
        ..Default::default()
    };
    let mut optimizer = AdamW::new(variables.clone(), settings)?;
    for batch in (0..EPOCHS).flat_map(|_| (0..TRAINING_SET).step_by(BATCH)) {
        let logits = forward(&variables, &digits.images.narrow(0, batch, BATCH)?, dtype)?;
        let loss =
            (cross_entropy(&logits, &digits.labels.narrow(0, batch, BATCH)?)? * LOSS_WEIGHT)?;
        backward_step(&mut scaler, &loss, &variables, |grads| {
            optimizer.step(grads)
        })?;
    }
    let count = digits.labels.elem_count() - TRAINING_SET;
    let logits = forward(
        &variables,
        &digits.images.narrow(0, TRAINING_SET, count)?,
        dtype,
    )?;
    let right = logits
        .argmax(D::Minus1)?
        .eq(&digits.labels.narrow(0, TRAINING_SET, count)?)?;
    let accuracy = right.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()?;
    let skipped = scaler.state().total_overflows();
    println!(
        "{name:<14} {:>7.1}% {skipped:>9} {:>13}",
        100.0 * accuracy,
        scaler.loss_scale()
    );
    Ok(accuracy)
}

fn main() -> Result<ExitCode> {
    let path = std::env::args()
        .nth(1)
        .ok_or_else(|| Error::msg("usage: digits FILE"))?;
    let digits = read(&path)?;
    let preset = |name| Policy::preset(name).map_err(Error::wrap);
    let none = Scaler::preset("none").map_err(Error::wrap)?;
    let policy = preset("torch")?
        .init_scale(2f64.powi(40))
        .growth_interval(25)
        .build();
    let scaler = policy.and_then(Scaler::new).map_err(Error::wrap)?;
    println!(
        "{:<14} {:>8} {:>9} {:>13}",
        "training", "accuracy", "skipped", "final scale"
    );
    let f32_alone = train("f32", DType::F32, none.clone(), &digits)?;
    let f16_alone = train("f16", DType::F16, none, &digits)?;
    let f16_scaled = train("f16, scaled", DType::F16, scaler, &digits)?;
    let kept = f16_alone < f32_alone - 0.10 && (f16_scaled - f32_alone).abs() < 0.02;
    Ok(if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

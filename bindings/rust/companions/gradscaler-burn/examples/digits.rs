// SPDX-License-Identifier: MIT
//! A network of burn, trained in f16 on handwritten digits, with and without loss scaling.
//!
//!     cargo run --example digits FILE
//!
//! FILE holds the 1,797 digits of scikit-learn's load_digits: 64 bytes of pixels (0 to 16) and a
//! byte of label each. The loss is weighted 1e-5, as for an auxiliary head, so most gradients are
//! too small for f16. The exit status is 1 if f16 does not fail without scaling, or does not match
//! f32 with it.

use std::error::Error;
use std::process::ExitCode;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use gradscaler::{Policy, Scaler, Want};
use gradscaler_burn::backward;

const EPOCHS: usize = 30;
const BATCH: usize = 256;
const TRAINING_SET: usize = 5 * BATCH;
const LOSS_WEIGHT: f32 = 1e-5;

struct Digits {
    images: Tensor<2>,
    labels: Tensor<1, Int>,
}

impl Digits {
    fn read(path: &str, device: &Device) -> Result<Self, Box<dyn Error>> {
        let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
        let records: Vec<&[u8]> = bytes.chunks_exact(65).collect();
        let pixels = records.iter().flat_map(|record| &record[..64]);
        let images: Vec<f32> = pixels.map(|&pixel| f32::from(pixel) / 16.0).collect();
        let labels: Vec<i64> = records.iter().map(|record| i64::from(record[64])).collect();
        let count = records.len();
        Ok(Self {
            images: Tensor::from_data(TensorData::new(images, [count, 64]), (device, DType::F32)),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        })
    }

    /// Some of them: images and labels.
    fn part(&self, from: usize, to: usize) -> (Tensor<2>, Tensor<1, Int>) {
        let images = self.images.clone().slice(from..to);
        (images, self.labels.clone().slice(from..to))
    }
}

/// The weights are f32; `forward` casts them to the dtype that it runs in, its logits are f32.
#[derive(Module, Debug)]
struct Network {
    layers: Vec<Linear>,
}

impl Network {
    fn new(device: &Device) -> Self {
        device.seed(1);
        let layer = |sizes: &[usize]| LinearConfig::new(sizes[0], sizes[1]).init(device);
        Self {
            layers: [64, 32, 10].windows(2).map(layer).collect(),
        }
    }

    fn forward(&self, images: Tensor<2>, dtype: DType) -> Tensor<2> {
        let mut x = images.cast(dtype);
        for (i, layer) in self.layers.iter().enumerate() {
            if i > 0 {
                x = sigmoid(x);
            }
            x = x.matmul(layer.weight.val().cast(dtype));
            if let Some(bias) = &layer.bias {
                x = x + bias.val().cast(dtype).unsqueeze();
            }
        }
        x.cast(DType::F32)
    }
}

fn train(
    name: &str,
    dtype: DType,
    mut scaler: Scaler,
    digits: &Digits,
) -> Result<f64, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let mut model = Network::new(&device);
    // Adam divides by the size of gradients: an epsilon with the loss's weight in it leaves f16's
    // rounding as the only difference between the runs.
    let mut optimizer = AdamConfig::new().with_epsilon(1e-8 * LOSS_WEIGHT).init();
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    for batch in (0..EPOCHS).flat_map(|_| (0..TRAINING_SET).step_by(BATCH)) {
        let (images, labels) = digits.part(batch, batch + BATCH);
        let logits = model.forward(images, dtype);
        let loss = cross_entropy
            .forward(logits, labels)
            .mul_scalar(LOSS_WEIGHT);
        let (grads, report) = backward(&scaler, loss, &model, Want::NONE)?;
        scaler.update(&report)?;
        if !scaler.state().skip() {
            model = optimizer.step(0.01, model, grads);
        }
    }
    let count = digits.labels.dims()[0];
    let (images, labels) = digits.part(TRAINING_SET, count);
    let found = model.forward(images, dtype).argmax(1).squeeze_dim::<1>(1);
    let right: i64 = found.equal(labels).int().sum().into_scalar();
    let accuracy = right as f64 / (count - TRAINING_SET) as f64;
    let skipped = scaler.state().total_overflows();
    let scale = scaler.loss_scale();
    println!(
        "{name:<14} {:>7.1}% {skipped:>9} {scale:>13}",
        100.0 * accuracy
    );
    Ok(accuracy)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: digits FILE")?;
    let digits = Digits::read(&path, &Device::flex().autodiff())?;
    // A start that is too high on purpose and a short interval show the scale move.
    let policy = Policy::preset("torch")?
        .init_scale(2f64.powi(40))
        .growth_interval(25)
        .build()?;
    println!(
        "{:<14} {:>8} {:>9} {:>13}",
        "training", "accuracy", "skipped", "final scale"
    );
    let f32_alone = train("f32", DType::F32, Scaler::preset("none")?, &digits)?;
    let f16_alone = train("f16", DType::F16, Scaler::preset("none")?, &digits)?;
    let f16_scaled = train("f16, scaled", DType::F16, Scaler::new(policy)?, &digits)?;
    let kept = f16_alone < f32_alone - 0.10 && (f16_scaled - f32_alone).abs() < 0.02;
    Ok(if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

// SPDX-License-Identifier: MIT
//! Training in fp16, on real data: a small network learns to read handwritten digits.
//!
//!     cargo run --release --example digits FILE
//!
//! FILE holds the 1,797 digits of scikit-learn's load_digits: 64 bytes of pixels (0 to 16) and a
//! byte of label each. It trains three times from the same start: in f32; with f16 weights,
//! activations and gradients; and in f16 with a scaler. The loss is weighted 1e-4, as for an
//! auxiliary head, so most gradients are too small for f16, which rounds them to zero.
//!
//! For a training loop of your own, read `train`; the rest is network and data. The exit status is
//! 1 if f16 does not fail without scaling, or does not match f32 with it.

use std::error::Error;
use std::process::ExitCode;

use gradscaler::{Element, Factor, Policy, Result, Scaler, Tensor, TensorMut, Want, F16};

const LAYERS: [usize; 4] = [64, 64, 64, 10]; // 8x8 pixels, two hidden layers, ten digits
const PIXELS: usize = LAYERS[0];
const CLASSES: usize = LAYERS[3];
const EPOCHS: usize = 80;
const BATCH: usize = 256;
const TRAINING_SET: usize = 5 * BATCH;
const LEARNING_RATE: f32 = 0.01;
const LOSS_WEIGHT: f32 = 1e-4;

/// Trains with numbers of type T and returns the accuracy on digits that were not trained on.
fn train<T: Element + Default>(name: &str, mut scaler: Scaler, digits: &Digits) -> Result<f64> {
    let mut random = Random(1);
    let mut master = initial_parameters(&mut random);
    let mut adam = Adam::new(&master);
    let mut order: Vec<usize> = (0..TRAINING_SET).collect();
    for _ in 0..EPOCHS {
        random.shuffle(&mut order);
        for batch in order.chunks(BATCH) {
            // Forward and backward in T, from the loss's gradient times the scale.
            let parameters: Vec<Vec<T>> = master.iter().map(|p| cast(p)).collect::<Result<_>>()?;
            let activations = forward(&parameters, cast(&digits.images(batch))?)?;
            let loss_gradient = loss_gradient(&cast(&activations[3])?, &digits.labels(batch));
            let mut delta = vec![T::default(); loss_gradient.len()];
            scaler.scale_into(
                &[Tensor::new(&loss_gradient)],
                &mut [TensorMut::new(&mut delta)],
                Want::NONE,
            )?;
            let scaled = backward(&parameters, &activations, delta)?;

            // All gradients in one call: check, divide by the scale, convert to f32.
            let mut gradients: Vec<Vec<f32>> = scaled.iter().map(|g| vec![0.0; g.len()]).collect();
            let tensors: Vec<Tensor> = scaled.iter().map(|g| Tensor::new(g)).collect();
            let mut out: Vec<TensorMut> = gradients.iter_mut().map(|g| TensorMut::new(g)).collect();
            let report = scaler.unscale_into(&tensors, &mut out, Want::NONE)?;
            scaler.update(&report)?;
            if !scaler.state().skip() {
                adam.step(&mut master, &gradients);
            }
        }
    }
    let parameters: Vec<Vec<T>> = master.iter().map(|p| cast(p)).collect::<Result<_>>()?;
    let accuracy = accuracy(&parameters, digits)?;
    let (skipped, growths) = (
        scaler.state().total_overflows(),
        scaler.state().total_growths(),
    );
    println!(
        "{name:<14} {:>7.1}% {skipped:>9} {growths:>9} {:>13}",
        100.0 * accuracy,
        scaler.loss_scale()
    );
    Ok(accuracy)
}

/// Converts to another number type: scaling by 1 is a cast, rounded to nearest even.
fn cast<From: Element, To: Element + Default>(from: &[From]) -> Result<Vec<To>> {
    let mut to = vec![To::default(); from.len()];
    let (from, out) = ([Tensor::new(from)], &mut [TensorMut::new(&mut to)]);
    Factor::ONE.scale_into(&from, out, Want::NONE)?;
    Ok(to)
}

// ---- the network: parameters are weight, bias, weight, bias, ... ----

fn initial_parameters(random: &mut Random) -> Vec<Vec<f32>> {
    let mut parameters = Vec::new();
    for layer in LAYERS.windows(2) {
        let limit = (6.0 / (layer[0] + layer[1]) as f32).sqrt();
        let weight = (0..layer[0] * layer[1]).map(|_| limit * (2.0 * random.uniform() - 1.0));
        parameters.push(weight.collect());
        parameters.push(vec![0.0; layer[1]]);
    }
    parameters
}

/// The product of two matrices, with `inner` columns of the first: sums in f32, as the matrix units
/// of accelerators do.
fn matmul(a: &[f32], b: &[f32], inner: usize) -> Vec<f32> {
    let columns = b.len() / inner;
    let mut product = vec![0.0; a.len() / inner * columns];
    for (row, sums) in a.chunks(inner).zip(product.chunks_mut(columns)) {
        for (&x, ys) in row.iter().zip(b.chunks(columns)) {
            sums.iter_mut().zip(ys).for_each(|(sum, y)| *sum += x * y);
        }
    }
    product
}

fn transposed(a: &[f32], columns: usize) -> Vec<f32> {
    let column = |j| a.iter().skip(j).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

/// The activations of every layer: the images first, the logits last.
fn forward<T: Element + Default>(parameters: &[Vec<T>], images: Vec<T>) -> Result<Vec<Vec<T>>> {
    let mut activations = vec![images];
    for (i, layer) in parameters.chunks(2).enumerate() {
        let (inputs, weight, bias): (_, _, Vec<f32>) =
            (cast(&activations[i])?, cast(&layer[0])?, cast(&layer[1])?);
        let mut z = matmul(&inputs, &weight, LAYERS[i]);
        z.chunks_mut(bias.len())
            .for_each(|row| row.iter_mut().zip(&bias).for_each(|(z, b)| *z += b));
        if i + 2 < LAYERS.len() {
            z.iter_mut()
                .for_each(|z| *z = 0.5 * (0.5 * *z).tanh() + 0.5); // the sigmoid
        }
        activations.push(cast(&z)?);
    }
    Ok(activations)
}

/// d loss / d logits of the weighted mean cross-entropy.
fn loss_gradient(logits: &[f32], labels: &[usize]) -> Vec<f32> {
    let mut gradient = Vec::new();
    for (row, &label) in logits.chunks(CLASSES).zip(labels) {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = row.iter().map(|z| (z - most).exp()).sum();
        for (class, z) in row.iter().enumerate() {
            let target = if class == label { 1.0 } else { 0.0 };
            gradient.push(((z - most).exp() / sum - target) * LOSS_WEIGHT / labels.len() as f32);
        }
    }
    gradient
}

/// Returns the gradients of the parameters; `delta` is the gradient of the logits.
fn backward<T: Element + Default>(
    parameters: &[Vec<T>],
    activations: &[Vec<T>],
    mut delta: Vec<T>,
) -> Result<Vec<Vec<T>>> {
    let mut gradients = Vec::new();
    for i in (0..parameters.len() / 2).rev() {
        let (outputs, wide): (_, Vec<f32>) = (LAYERS[i + 1], cast(&delta)?);
        let inputs: Vec<f32> = cast(&activations[i])?;
        let rows = wide.len() / outputs;
        gradients.push(cast(&matmul(&vec![1.0; rows], &wide, rows))?); // the bias's
        gradients.push(cast(&matmul(&transposed(&inputs, LAYERS[i]), &wide, rows))?);
        if i == 0 {
            break; // the images have no gradient
        }
        let weight = transposed(&cast(&parameters[2 * i])?, outputs);
        let mut next = matmul(&wide, &weight, outputs);
        next.iter_mut()
            .zip(&inputs)
            .for_each(|(d, a)| *d *= a * (1.0 - a));
        delta = cast(&next)?;
    }
    gradients.reverse();
    Ok(gradients)
}

fn accuracy<T: Element + Default>(parameters: &[Vec<T>], digits: &Digits) -> Result<f64> {
    let test: Vec<usize> = (TRAINING_SET..digits.count()).collect();
    let activations = forward(parameters, cast(&digits.images(&test))?)?;
    let logits: Vec<f32> = cast(&activations[3])?;
    let best = |row: &[f32]| (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let labels = digits.labels(&test);
    let right = logits
        .chunks(CLASSES)
        .zip(&labels)
        .filter(|(row, &label)| best(row) == Some(label));
    Ok(right.count() as f64 / test.len() as f64)
}

/// Adam on the f32 master weights.
struct Adam {
    step: i32,
    mean: Vec<Vec<f32>>,
    square: Vec<Vec<f32>>,
}

impl Adam {
    fn new(master: &[Vec<f32>]) -> Self {
        let zeros: Vec<Vec<f32>> = master.iter().map(|p| vec![0.0; p.len()]).collect();
        Self {
            step: 0,
            mean: zeros.clone(),
            square: zeros,
        }
    }

    fn step(&mut self, master: &mut [Vec<f32>], gradients: &[Vec<f32>]) {
        self.step += 1;
        let (mean_share, square_share) =
            (1.0 - 0.9f32.powi(self.step), 1.0 - 0.999f32.powi(self.step));
        // Adam divides by the size of gradients: an epsilon with the loss's weight in it leaves
        // f16's rounding as the only difference between the runs.
        let epsilon = 1e-8 * LOSS_WEIGHT;
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((weights, gradient), (mean, square)) in master.iter_mut().zip(gradients).zip(moments) {
            for (i, g) in gradient.iter().enumerate() {
                mean[i] += 0.1 * (g - mean[i]);
                square[i] += 0.001 * (g * g - square[i]);
                let root = (square[i] / square_share).sqrt() + epsilon;
                weights[i] -= LEARNING_RATE * mean[i] / mean_share / root;
            }
        }
    }
}

// ---- the data ----

struct Digits(Vec<u8>);

impl Digits {
    fn read(path: &str) -> std::result::Result<Self, Box<dyn Error>> {
        let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
        if bytes.len() % (PIXELS + 1) != 0 || bytes.len() / (PIXELS + 1) <= TRAINING_SET {
            return Err(format!("{path} is not 1,797 records of {} bytes", PIXELS + 1).into());
        }
        Ok(Self(bytes))
    }

    fn count(&self) -> usize {
        self.0.len() / (PIXELS + 1)
    }

    fn record(&self, index: usize) -> &[u8] {
        &self.0[index * (PIXELS + 1)..][..PIXELS + 1]
    }

    fn images(&self, indices: &[usize]) -> Vec<f32> {
        let pixels = indices.iter().flat_map(|&i| &self.record(i)[..PIXELS]);
        pixels.map(|&pixel| f32::from(pixel) / 16.0).collect()
    }

    fn labels(&self, indices: &[usize]) -> Vec<usize> {
        indices
            .iter()
            .map(|&i| usize::from(self.record(i)[PIXELS]))
            .collect()
    }
}

/// A xorshift generator: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In [0, 1).
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    fn shuffle(&mut self, items: &mut [usize]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}

fn main() -> std::result::Result<ExitCode, Box<dyn Error>> {
    let digits = Digits::read(&std::env::args().nth(1).ok_or("usage: digits FILE")?)?;
    // A start that is too high on purpose and a short interval show the scale move.
    let policy = Policy::preset("torch")?
        .init_scale(2f64.powi(40))
        .growth_interval(25)
        .build()?;
    println!(
        "{:<14} {:>8} {:>9} {:>9} {:>13}",
        "training", "accuracy", "skipped", "growths", "final scale"
    );
    let f32_alone = train::<f32>("f32", Scaler::preset("none")?, &digits)?;
    let f16_alone = train::<F16>("f16", Scaler::preset("none")?, &digits)?;
    let f16_scaled = train::<F16>("f16, scaled", Scaler::new(policy)?, &digits)?;
    if f16_alone > f32_alone - 0.10 || (f16_scaled - f32_alone).abs() > 0.02 {
        eprintln!("f16 should fail without a scaler and match f32 with it");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

// SPDX-License-Identifier: MIT
//! Training on several ranks over MPI: all of them step, or none, with the same bits.
//!
//!     cargo build --release && mpirun -np 4 target/release/gradscaler-ranks FILE
//!
//! FILE holds the 1,797 digits of scikit-learn's load_digits: 64 bytes of pixels and a byte of
//! label each. A linear classifier with f16 gradients learns them. A batch has four parts, which 1,
//! 2 or 4 ranks share; their gradients are added in the order of the parts, so any number of ranks
//! prints the same digest of the weights. What a scaler needs from ranks is in `step`.

use std::error::Error;

use gradscaler::{
    Element, Factor, MergeKind, Policy, Report, Scaler, Tensor, TensorMut, Want, F16,
};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PARTS: usize = 4;
const PIXELS: usize = 64;
const CLASSES: usize = 10;
const BATCH: usize = 256;
const TRAINING_SET: usize = 5 * BATCH;
const EPOCHS: usize = 40;
const RATE: f32 = 0.5;

type Weights = [f32; CLASSES * PIXELS];

fn step(
    world: &SimpleCommunicator,
    scaler: &mut Scaler,
    weights: &mut Weights,
    batch: &[&[u8]],
) -> Result<()> {
    let (rank, own) = (world.rank() as usize, PARTS / world.size() as usize);
    let (mut sent, mut gradients) = (Vec::<u8>::new(), Vec::<f32>::new());
    for part in batch.chunks(BATCH / PARTS).skip(rank * own).take(own) {
        let scaled: Vec<F16> = cast(&gradient(weights, part), &scaler.factor())?;
        let mut gradient = vec![0f32; weights.len()];
        let (from, to) = ([Tensor::new(&scaled)], &mut [TensorMut::new(&mut gradient)]);
        // A rank that cannot go on says so, lest the others wait for it.
        let report = scaler
            .unscale_into(&from, to, Want::NONE)
            .unwrap_or_else(|error| Report::failed(error.status()));
        sent.extend(scaler.set_rank(&report, rank as u32)?.to_bytes());
        gradients.extend(gradient);
    }

    let mut of_all = vec![0u8; PARTS * Report::SIZE];
    world.all_gather_into(&sent[..], &mut of_all[..]);
    let of_all: Vec<Report> = of_all
        .chunks(Report::SIZE)
        .map(|bytes| Ok(Report::from_bytes(bytes.try_into()?)))
        .collect::<Result<_>>()?;
    let report = Report::merge(&of_all, MergeKind::ADDENDS, Some(scaler.policy()))?;

    let mut parts = vec![0f32; PARTS * weights.len()];
    world.all_gather_into(&gradients[..], &mut parts[..]);
    if !report.overflow() {
        for part in parts.chunks(weights.len()) {
            weights
                .iter_mut()
                .zip(part)
                .for_each(|(w, g)| *w -= RATE * g);
        }
    } else if rank == 0 {
        eprintln!("skipped: {report:?}");
    }
    scaler.update(&report)?; // an error on all ranks where the call of one failed
    Ok(())
}

fn cast<To: Element + Default>(from: &[f32], factor: &Factor) -> Result<Vec<To>> {
    let mut to = vec![To::default(); from.len()];
    factor.scale_into(
        &[Tensor::new(from)],
        &mut [TensorMut::new(&mut to)],
        Want::NONE,
    )?;
    Ok(to)
}

fn probabilities(weights: &Weights, digit: &[u8]) -> Vec<f32> {
    let logit = |row: &[f32]| -> f32 {
        row.iter()
            .zip(digit)
            .map(|(w, &pixel)| w * f32::from(pixel) / 16.0)
            .sum()
    };
    let exponentials: Vec<f32> = weights.chunks(PIXELS).map(|row| logit(row).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// Returns the gradient of the mean cross-entropy of a batch for the digits of one of its parts.
fn gradient(weights: &Weights, part: &[&[u8]]) -> Vec<f32> {
    let mut gradient = vec![0f32; weights.len()];
    for digit in part {
        for (class, p) in probabilities(weights, digit).iter().enumerate() {
            let target = if class == usize::from(digit[PIXELS]) {
                1.0
            } else {
                0.0
            };
            let row = &mut gradient[class * PIXELS..][..PIXELS];
            for (g, &pixel) in row.iter_mut().zip(*digit) {
                *g += (p - target) / BATCH as f32 * f32::from(pixel) / 16.0;
            }
        }
    }
    gradient
}

fn accuracy(weights: &Weights, test: &[&[u8]]) -> f64 {
    let right = test.iter().filter(|digit| {
        let p = probabilities(weights, digit);
        let best = (0..CLASSES).max_by(|&a, &b| p[a].total_cmp(&p[b]));
        best == Some(usize::from(digit[PIXELS]))
    });
    right.count() as f64 / test.len() as f64
}

/// FNV-1a.
fn digest(weights: &Weights) -> u64 {
    let bytes = weights.iter().flat_map(|w| w.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn main() -> Result<()> {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let world = universe.world();
    let path = std::env::args()
        .nth(1)
        .ok_or("usage: gradscaler-ranks FILE")?;
    let file = std::fs::read(path)?;
    let digits: Vec<&[u8]> = file.chunks(PIXELS + 1).collect();
    let policy = Policy::preset("torch")?
        .init_scale(f64::from(1u32 << 31)) // too high on purpose, and it grows often
        .growth_interval(25)
        .build()?;
    let (mut scaler, mut weights) = (Scaler::new(policy)?, [0.0; CLASSES * PIXELS]);
    for _ in 0..EPOCHS {
        for batch in digits[..TRAINING_SET].chunks(BATCH) {
            step(&world, &mut scaler, &mut weights, batch)?;
        }
    }
    let mine = digest(&weights);
    let mut of_all = vec![0u64; world.size() as usize];
    world.all_gather_into(&mine, &mut of_all[..]);
    if of_all.iter().any(|&digest| digest != mine) {
        return Err("the ranks have different weights".into());
    }
    let accuracy = accuracy(&weights, &digits[TRAINING_SET..]);
    if world.rank() == 0 {
        let (skipped, scale) = (scaler.state().total_overflows(), scaler.loss_scale());
        println!(
            "accuracy {:.1}%, skipped {skipped}, scale {scale}, digest {mine:016x}",
            100.0 * accuracy
        );
    }
    if accuracy < 0.85 {
        return Err("that is not what one process learns".into());
    }
    Ok(())
}

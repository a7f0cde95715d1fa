// SPDX-License-Identifier: MIT
//! Loss scaling for mixed-precision training.
//!
//! Training in fp16 multiplies the loss by a scale, so that small gradients survive, and divides the
//! gradients by the scale before the optimizer step. If a gradient overflows, the step is skipped and
//! the scale backs off; later it grows again. A [`Scaler`] does this by the rules of torch, Megatron-LM,
//! DeepSpeed and others ([`presets`]), bit-exact, in one pass over lists of slices:
//!
//! ```
//! use gradscaler::{Evidence, Options, Policy, Scaler, Tensor, TensorMut, Want, F16};
//!
//! let policy = Policy::preset("recommended")?.growth_interval(1000).build()?;
//! let mut scaler = Scaler::new(policy)?;
//!
//! let loss = [0.5f32];
//! let half_grads = vec![vec![F16(0x3c00); 64], vec![F16(0x3c00); 10]]; // of loss * loss_scale()
//! let mut grads = vec![vec![0f32; 64], vec![0f32; 10]];
//!
//! let tensors: Vec<Tensor> = half_grads.iter().map(|grad| Tensor::new(grad)).collect();
//! let mut out: Vec<TensorMut> = grads.iter_mut().map(|grad| TensorMut::new(grad)).collect();
//! let options = Options::new(Want::NORM).loss(Tensor::new(&loss)); // as it was before it was scaled
//! let report = scaler.unscale_into(&tensors, &mut out, options)?;
//! scaler.update(&report)?;
//! if !scaler.state().skip() {
//!     println!("norm {:?}", report.norm()); // the optimizer's step, with `grads`
//! } else if let Some(reason) = scaler.state().reason(Evidence::of(&report).names(&["weight", "bias"]))? {
//!     eprintln!("{reason}");
//! }
//! # Ok::<(), gradscaler::Error>(())
//! ```
//!
//! - [`Options`] add to a call: the loss, a clamp, a histogram, a report of every tensor.
//! - A [`Factor`] is the scale of one loss, for gradients that are unscaled after a later update.
//! - A [`Report`] has the overflow and the measurements of gradients.
//! - An [`Event`] says what an update did, a [`Reason`] why it skipped a step, by the [`Evidence`].
//!
//! `examples/digits.rs` is a whole training loop.
//!
//! Calls work on host memory, on the calling thread or on [`Threads`], and allocate nothing.
//! [`Scaler::to_device`] makes a scaler with state and gradients in the [`Memory`] of a CUDA
//! [`Device`]; it has the same calls. The only dependency is `gradscaler-sys`, the C interface.
#![warn(unsafe_op_in_unsafe_fn)] // also here: the compiler of Debian 12 does not read [lints]

use gradscaler_sys as sys;

#[macro_use]
mod macros;
#[macro_use]
mod operations;

mod checkpoint;
mod device;
mod error;
mod factor;
mod fields;
#[allow(dead_code)] // some groups of constants are for C alone
mod generated;
mod history;
mod info;
mod memory;
mod metrics;
mod options;
mod policy;
mod reason;
mod report;
mod scaler;
mod tensor;
mod threads;
mod value;

pub use checkpoint::{formats, Checkpoint, Format, Note};
pub use device::{Device, DeviceBuffer, Plain};
pub use error::{Error, Result};
pub use factor::Factor;
pub use generated::{
    Arithmetic, BadLoss, Cause, Dtype, Event, Growth, Guard, GuardSample, LimitRule, Loss,
    MergeKind, NoteKind, Outcome, OverflowReset, OverflowTest, Quirk, Status, Trait, Want,
};
pub use history::History;
pub use info::{info, Info};
pub use memory::{Host, Memory};
pub use metrics::{metric_names, Diagnosis};
pub use options::{Histogram, Options};
pub use policy::{presets, Policy, PolicyBuilder};
pub use reason::{Evidence, Reason};
pub use report::Report;
pub use scaler::{Counts, Scaler, State};
pub use tensor::{Bf16, Cb16, Element, Tensor, TensorMut, F16, F8E4M3FN, F8E5M2};
pub use threads::Threads;
pub use value::Value;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

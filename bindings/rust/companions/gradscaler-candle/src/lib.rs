// SPDX-License-Identifier: MIT
//! Loss scaling for candle: [`backward_step`] scales a loss, goes backward, unscales all gradients
//! in one call, and skips the optimizer's step when one of them overflowed or the loss was not finite.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use gradscaler::Scaler;
//!
//! let weight = Var::new(&[[0.1f32, 0.2]], &Device::Cpu)?; // the master weights, in f32
//! let input = Tensor::new(&[[0.3f32], [0.4]], &Device::Cpu)?.to_dtype(DType::F16)?;
//! let mut scaler = Scaler::preset("recommended").map_err(candle_core::Error::wrap)?;
//!
//! // The network runs in half precision, its loss is f32: scaled, it would not fit into f16.
//! let output = weight.to_dtype(DType::F16)?.matmul(&input)?;
//! let loss = output.to_dtype(DType::F32)?.sqr()?.mean_all()?;
//! let step = gradscaler_candle::backward_step(&mut scaler, &loss, &[weight.clone()], |grads| {
//!     let Some(grad) = grads.get(&weight) else { return Ok(()) };
//!     weight.set(&(weight.as_tensor() - (grad * 0.01)?)?) // or optimizer.step(grads)
//! })?;
//! assert!(!step.report.overflow());
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! The variables of a `VarMap` have names: [`named_variables`] returns both, so that a report tells which
//! gradient overflowed.
//!
//! [`Step::without_gradient`] has the indices of the variables that got no gradient. If they are the layers in front of
//! a module, this module has no backward pass, and candle does not say so:
//!
//! | in candle-nn 0.11 without a backward pass | use |
//! |---|---|
//! | `LayerNorm` with a bias, if its input is contiguous | `ops::layer_norm_slow` |
//! | `RmsNorm`, if its input is contiguous | `RmsNorm::forward_diff` |
//! | `ops::softmax_last_dim` | `ops::softmax` |
//! | `rotary_emb::rope`, `rope_i` | `rope_slow`, `rope_i_slow` |
//!
//! Keep the master weights in f32 variables and cast them in the network: their gradients are then
//! also f32. Gradients on a device are read to host memory and written back.

use std::collections::HashSet;
use std::sync::PoisonError;

use candle_core::backprop::GradStore;
use candle_core::{
    bail, CpuStorage, DType, Device, Error, Layout, Result, Shape, Storage, StorageRef, Tensor, Var,
};
use candle_nn::VarMap;
use gradscaler::{Dtype, Event, Evidence, Factor, Options, Report, Scaler, TensorMut};
use gradscaler_half::{tensor, tensor_mut};
use half::{bf16, f16};

/// The result of [`backward_step`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Step {
    /// The report on the gradients and the loss.
    pub report: Report,
    /// The report of each variable.
    pub per_tensor: Vec<Report>,
    /// The events of the scale's update; [`Event::EMPTY`]: no variable had a gradient.
    pub events: Event,
    /// The indices of the variables without a gradient: the loss does not depend on them, or a module between has no
    /// backward pass.
    pub without_gradient: Vec<usize>,
}

impl Step {
    /// Returns what [`State::reason`](gradscaler::State::reason) and [`History::line`](gradscaler::History::line) say of
    /// the step. `names` are the names of the variables, which [`named_variables`] returns.
    pub fn evidence<'a, S: AsRef<str>>(&'a self, names: &'a [S]) -> Evidence<'a> {
        Evidence::of(&self.report)
            .per_tensor(&self.per_tensor)
            .names(names)
    }
}

/// Returns the names and the variables of a `VarMap`, sorted by name; the map itself has another order in each
/// process. Numbers in names are sorted as numbers: `layers.2.weight` is before `layers.10.weight`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{linear, Module, VarBuilder, VarMap};
/// use gradscaler::Scaler;
///
/// let map = VarMap::new();
/// let layer = linear(2, 1, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("dense"))?;
/// let (names, variables) = gradscaler_candle::named_variables(&map);
///
/// let mut scaler = Scaler::preset("recommended").map_err(candle_core::Error::wrap)?;
/// let loss = layer.forward(&Tensor::new(&[[1e38f32, 1.0]], &Device::Cpu)?)?.sum_all()?;
/// let step = gradscaler_candle::backward_step(&mut scaler, &loss, &variables, |_| Ok(()))?;
/// let reason = scaler.state().reason(step.evidence(&names)).map_err(candle_core::Error::wrap)?;
/// println!("{}", reason.unwrap()); // skipped: 1 Inf in "dense.weight" ...
/// assert_eq!(step.report.last_tensor().map(|index| &*names[index]), Some("dense.weight"));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[must_use]
pub fn named_variables(map: &VarMap) -> (Vec<String>, Vec<Var>) {
    let data = map.data().lock();
    let data = data.unwrap_or_else(PoisonError::into_inner);
    let mut pairs: Vec<_> = data
        .iter()
        .map(|(name, variable)| (name.clone(), variable.clone()))
        .collect();
    pairs.sort_by(|(a, _), (b, _)| {
        let parts = |name: &str| -> Vec<(u64, String)> {
            let parts = name.split('.');
            let number = |part: &str| part.parse().unwrap_or(0);
            parts.map(|part| (number(part), part.into())).collect()
        };
        parts(a).cmp(&parts(b))
    });
    pairs.into_iter().unzip()
}

/// One training step: scales the loss, goes backward, unscales the gradients of `variables`, updates the
/// scale, and calls `step` with them unless the update says to skip: they overflowed, the loss was not finite
/// and the policy holds ([`BadLoss::HOLD`](gradscaler::BadLoss::HOLD)), or the policy guards and refuses
/// their norm. What a guard clips is clipped.
///
/// `loss` is a scalar, best in f32.
///
/// # Errors
///
/// A variable that has a gradient and is not in `variables`: `step` would get this gradient multiplied by the scale.
/// The error of candle or of `step`. The scale is then as it was, also if `step` panics.
pub fn backward_step(
    scaler: &mut Scaler,
    loss: &Tensor,
    variables: &[Var],
    step: impl FnOnce(&GradStore) -> Result<()>,
) -> Result<Step> {
    let scaled = (loss * scaler.loss_scale())?;
    let mut grads = scaled.backward()?;
    refuse_others(&scaled, &grads, variables)?;
    let loss = loss.to_device(&Device::Cpu)?; // Metal has no f64, which keeps Inf and NaN
    let loss: Vec<f64> = loss.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let mut per_tensor = Vec::new();
    let options = Options::default().policy(scaler.policy());
    let options = options.loss(gradscaler::Tensor::new(&loss));
    let options = options.per_tensor(&mut per_tensor);
    let report = unscale(&scaler.factor(), &mut grads, variables, options)?;
    let missing = |index: &usize| grads.get(&variables[*index]).is_none();
    let without_gradient = (0..variables.len()).filter(missing).collect();
    let mut updated = scaler.clone();
    let events = updated.update(&report).map_err(Error::wrap)?;
    if !events.contains(Event::SKIPPED) {
        multiply(&mut grads, variables, updated.state().multiplier())?;
        step(&grads)?;
    }
    *scaler = updated;
    Ok(Step {
        report,
        per_tensor,
        events,
        without_gradient,
    })
}

/// Returns an error if a variable of the graph has a gradient and is not among `variables`.
fn refuse_others(loss: &Tensor, grads: &GradStore, variables: &[Var]) -> Result<()> {
    let known: HashSet<_> = variables.iter().map(|variable| variable.id()).collect();
    for node in loss.sorted_nodes() {
        if node.is_variable() && !known.contains(&node.id()) && grads.get(node).is_some() {
            bail!(
                "a variable of the shape {:?} and dtype {:?} has a gradient but is not in `variables`, so the gradient \
                 would stay multiplied by the scale: add the variable, or detach() it in the network",
                node.dims(),
                node.dtype()
            )
        }
    }
    Ok(())
}

/// Clips by the multiplier of a guard, which is 1 in most steps.
fn multiply(grads: &mut GradStore, variables: &[Var], by: f64) -> Result<()> {
    for variable in variables.iter().filter(|_| by < 1.0) {
        if let Some(gradient) = grads.get(variable) {
            let clipped = (gradient * by)?;
            grads.insert(variable, clipped);
        }
    }
    Ok(())
}

/// Divides the gradients of `variables` by the scale that their loss was multiplied by, in one call,
/// and reports on them; for loops that do more than [`backward_step`], such as clipping or
/// accumulating.
///
/// `options` is a [`Want`](gradscaler::Want) or [`Options`]: its `policy`, the scaler's, judges
/// them, its `per_tensor` is a report of every variable.
///
/// A gradient becomes a new tensor of the same dtype on the same device: candle's tensors may share their memory. A
/// variable without gradient is left without. The gradients of all other variables stay multiplied: `grads` does not tell
/// them from the gradients of constants, so [`backward_step`] refuses them and this function cannot.
///
/// # Errors
///
/// A gradient that is not a float of 16, 32 or 64 bits; a factor that cannot divide; a device that cannot copy. The
/// gradients are then as they were.
pub fn unscale<'a>(
    factor: &Factor,
    grads: &mut GradStore,
    variables: &[Var],
    options: impl Into<Options<'a>>,
) -> Result<Report> {
    let held = variables
        .iter()
        .map(|variable| grads.get(variable).map(on_host).transpose());
    let held: Vec<Option<Tensor>> = held.collect::<Result<_>>()?;
    let memory: Vec<_> = held
        .iter()
        .map(|grad| grad.as_ref().map(Tensor::storage_and_layout))
        .collect();
    let inputs: Vec<_> = memory
        .iter()
        .enumerate()
        .map(input)
        .collect::<Result<_>>()?;
    let mut results: Vec<_> = inputs.iter().map(Elements::like).collect::<Result<_>>()?;
    let mut out: Vec<_> = results.iter_mut().map(Elements::view_mut).collect();
    let report = factor
        .unscale_into(&inputs, &mut out, options)
        .map_err(Error::wrap)?;
    let mut unscaled = Vec::new();
    for (variable, result) in variables.iter().zip(results) {
        if let Some(grad) = grads.get(variable) {
            unscaled.push((variable, result.into_tensor(grad.shape(), grad.device())?));
        }
    }
    for (variable, grad) in unscaled {
        grads.insert(variable, grad);
    }
    Ok(report)
}

/// Returns a gradient in host memory: itself, or a copy of one on a device.
fn on_host(grad: &Tensor) -> Result<Tensor> {
    grad.contiguous()?.to_device(&Device::Cpu)
}

/// The memory of the gradient of a variable; empty where there is none, so that the indices in a
/// report are the variables'.
fn input<'a>(
    (index, memory): (usize, &'a Option<(StorageRef<'_>, &Layout)>),
) -> Result<gradscaler::Tensor<'a>> {
    let Some((storage, layout)) = memory else {
        return Ok(gradscaler::Tensor::new::<f32>(&[]));
    };
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("the gradient of variable {index} is not contiguous");
    };
    match &**storage {
        Storage::Cpu(CpuStorage::F32(data)) => Ok(gradscaler::Tensor::new(&data[start..end])),
        Storage::Cpu(CpuStorage::F64(data)) => Ok(gradscaler::Tensor::new(&data[start..end])),
        Storage::Cpu(CpuStorage::F16(data)) => Ok(tensor(&data[start..end])),
        Storage::Cpu(CpuStorage::BF16(data)) => Ok(tensor(&data[start..end])),
        _ => bail!(
            "the gradient of variable {index} is {:?}, not a float of 16, 32 or 64 bits",
            storage.dtype()
        ),
    }
}

/// The elements of a result, in new memory.
enum Elements {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Elements {
    fn like(view: &gradscaler::Tensor<'_>) -> Result<Self> {
        let count = view.len();
        match view.dtype() {
            Dtype::F32 => Ok(Self::F32(vec![0.0; count])),
            Dtype::F64 => Ok(Self::F64(vec![0.0; count])),
            Dtype::F16 => Ok(Self::F16(vec![f16::ZERO; count])),
            Dtype::BF16 => Ok(Self::BF16(vec![bf16::ZERO; count])),
            other => bail!("no elements of {other:?} in candle"),
        }
    }

    fn view_mut(&mut self) -> TensorMut<'_> {
        match self {
            Self::F32(data) => TensorMut::new(data),
            Self::F64(data) => TensorMut::new(data),
            Self::F16(data) => tensor_mut(data),
            Self::BF16(data) => tensor_mut(data),
        }
    }

    fn into_tensor(self, shape: &Shape, device: &Device) -> Result<Tensor> {
        match self {
            Self::F32(data) => Tensor::from_vec(data, shape, device),
            Self::F64(data) => Tensor::from_vec(data, shape, device),
            Self::F16(data) => Tensor::from_vec(data, shape, device),
            Self::BF16(data) => Tensor::from_vec(data, shape, device),
        }
    }
}

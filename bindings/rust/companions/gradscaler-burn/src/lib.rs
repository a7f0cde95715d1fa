// SPDX-License-Identifier: MIT
//! Loss scaling for burn: [`backward`] scales a loss, goes backward, and unscales all gradients of a
//! module in one call; the update with its report says whether to step.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::SgdConfig;
//! use burn::tensor::{DType, Device, Tensor};
//! use gradscaler::{Scaler, Want};
//!
//! let device = Device::flex().autodiff();
//! let mut model: Linear = LinearConfig::new(2, 1).init(&device); // its weights stay in f32
//! let mut optimizer = SgdConfig::new().init();
//! let mut scaler = Scaler::preset("recommended")?;
//! for _ in 0..3 {
//!     // The network runs in half precision, its loss is f32: scaled, it would not fit into f16.
//!     let input = Tensor::<2>::from_data([[0.3, 0.4]], (&device, DType::F16));
//!     let output = input.matmul(model.weight.val().cast(DType::F16));
//!     let loss = output.cast(DType::F32).powi_scalar(2).mean();
//!
//!     let (grads, report) = gradscaler_burn::backward(&scaler, loss, &model, Want::NONE)?;
//!     scaler.update(&report)?;
//!     if !scaler.state().skip() {
//!         model = optimizer.step(0.01, model, grads);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Keep the weights in f32 and cast them in the network, as above: their gradients are then also f32.
//! Gradients on a device are read to host memory and written back.

use std::collections::HashSet;
use std::fmt;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{bf16, f16, DType, Device, Tensor, TensorData};
use gradscaler::{Factor, Options, Report, Scaler, TensorMut};
use gradscaler_half::tensor_mut;

/// Why gradients could not be unscaled.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The error of gradscaler, such as a factor that cannot divide.
    Refused(gradscaler::Error),
    /// The loss is no float of 16, 32 or 64 bits, or could not be read.
    Loss {
        /// The fault of the loss.
        reason: String,
    },
    /// The gradient of this parameter is no float of 16, 32 or 64 bits, or could not be read.
    Gradient {
        /// The path of the parameter, as in [`parameters`].
        parameter: String,
        /// The fault of its gradient.
        reason: String,
    },
    /// There are gradients of parameters that the module does not have: they would stay multiplied by the scale.
    NotInModule {
        /// The number of such gradients.
        count: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Loss { reason } => write!(f, "the loss {reason}"),
            Self::Gradient { parameter, reason } => {
                write!(f, "the gradient of {parameter} {reason}")
            }
            Self::NotInModule { count } => write!(
                f,
                "{count} gradients are of parameters that the module does not have, and would stay multiplied by the \
                 scale: pass the module that has all of them"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// Goes backward from `loss` times the scale and unscales the gradients of `module`, as [`unscale`]
/// does. Update the scaler with the report, which also knows whether the loss was finite; then step with the
/// gradients unless [`State::skip`](gradscaler::State::skip) is true.
/// [`State::reason`](gradscaler::State::reason) takes the names of [`parameters`] and says why it is.
///
/// `options` is a [`Want`](gradscaler::Want) or [`Options`].
///
/// # Errors
///
/// A loss that is no float of 16, 32 or 64 bits, or cannot be read; otherwise as [`unscale`].
pub fn backward<'a, M: Module>(
    scaler: &'a Scaler,
    loss: Tensor<1>,
    module: &M,
    options: impl Into<Options<'a>>,
) -> Result<(GradientsParams, Report), Error> {
    let refused = |reason| Error::Loss { reason };
    let data = loss.clone().try_into_data();
    let mut data = data.map_err(|error| refused(format!("cannot be read: {error:?}")))?;
    let loss_view = [view(&mut data).map_err(refused)?];
    let grads = loss.mul_scalar(scaler.loss_scale()).backward();
    let mut grads = GradientsParams::from_grads(grads, module);
    let options = options.into().policy(scaler.policy());
    let options = options.loss(TensorMut::as_inputs(&loss_view)[0]);
    let report = unscale(&scaler.factor(), &mut grads, module, options)?;
    Ok((grads, report))
}

/// Divides gradients by the scale that their loss was multiplied by, in one call, and reports on
/// them; for loops that do more than [`backward`], such as accumulating.
///
/// `options` is a [`Want`](gradscaler::Want) or [`Options`]: its `policy`, the scaler's, judges
/// them. The report has the indices of [`parameters`]. A parameter without gradient is left
/// without.
///
/// # Errors
///
/// A gradient that is no float of 16, 32 or 64 bits, or cannot be read; gradients of parameters that the module does not
/// have; a factor that cannot divide. The gradients are then as they were.
pub fn unscale<'a, M: Module>(
    factor: &Factor,
    grads: &mut GradientsParams,
    module: &M,
    options: impl Into<Options<'a>>,
) -> Result<Report, Error> {
    let mut read = Read::of(grads, module);
    if let Some(error) = read.wrong {
        return Err(error);
    }
    let count = grads.len() - read.with_gradient.len();
    if count > 0 {
        return Err(Error::NotInModule { count });
    }
    let mut views: Vec<TensorMut> = Vec::new();
    for ((_, data), name) in read.found.iter_mut().zip(&read.names) {
        views.push(view(data).map_err(|reason| Error::Gradient {
            parameter: name.clone(),
            reason,
        })?);
    }
    let report = factor
        .unscale(&mut views, options)
        .map_err(Error::Refused)?;
    let unscaled = read.found.into_iter();
    module.visit(&mut Write { grads, unscaled });
    Ok(report)
}

/// The paths of the parameters of a module, such as `layers.0.weight`, in the order of a report's
/// indices.
pub fn parameters<M: Module>(module: &M) -> Vec<String> {
    Read::of(&GradientsParams::new(), module).names
}

/// The elements of a tensor as gradscaler takes them; or what is wrong with it.
fn view(data: &mut TensorData) -> Result<TensorMut<'_>, String> {
    let view = match data.dtype() {
        DType::F64 => data.as_mut_slice::<f64>().map(TensorMut::new),
        DType::F32 => data.as_mut_slice::<f32>().map(TensorMut::new),
        DType::F16 => data.as_mut_slice::<f16>().map(tensor_mut),
        DType::BF16 => data.as_mut_slice::<bf16>().map(tensor_mut),
        other => return Err(format!("is {other:?}, not a float of 16, 32 or 64 bits")),
    };
    view.map_err(|error| format!("cannot be changed: {error:?}"))
}

/// Copies the gradients of a module to host memory: an empty one where a parameter has none, so that
/// a report has the indices of the parameters.
struct Read<'a> {
    grads: &'a GradientsParams,
    path: Vec<String>,
    names: Vec<String>,
    found: Vec<(Option<Device>, TensorData)>,
    with_gradient: HashSet<ParamId>,
    wrong: Option<Error>,
}

impl<'a> Read<'a> {
    fn of<M: Module>(grads: &'a GradientsParams, module: &M) -> Self {
        let mut read = Self {
            grads,
            path: Vec::new(),
            names: Vec::new(),
            found: Vec::new(),
            with_gradient: HashSet::new(),
            wrong: None,
        };
        module.visit(&mut read);
        read
    }
}

impl ModuleVisitor for Read<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.join(".");
        let grad = self.grads.get::<D>(param.id);
        let device = grad.as_ref().map(Tensor::device);
        self.with_gradient.extend(grad.as_ref().map(|_| param.id));
        match grad.map(Tensor::try_into_data).transpose() {
            Ok(data) => self.found.push((
                device,
                data.unwrap_or_else(|| TensorData::new::<f32, _>(Vec::new(), [0])),
            )),
            Err(error) => {
                self.wrong.get_or_insert(Error::Gradient {
                    parameter: name.clone(),
                    reason: format!("cannot be read: {error:?}"),
                });
            }
        }
        self.names.push(name);
    }
}

/// Puts the gradients back where they were.
struct Write<'a, I> {
    grads: &'a mut GradientsParams,
    unscaled: I,
}

impl<I: Iterator<Item = (Option<Device>, TensorData)>> ModuleVisitor for Write<'_, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some((Some(device), data)) = self.unscaled.next() {
            let dtype = data.dtype();
            let grad = Tensor::<D>::from_data(data, (&device, dtype));
            self.grads.register(param.id, grad);
        }
    }
}

// SPDX-License-Identifier: MIT
//! Gradients of burn, unscaled together; steps that overflow are skipped.
#![allow(missing_docs, clippy::unwrap_used)]

use burn::module::{Module, Param};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use gradscaler::{Event, Evidence, Factor, Loss, Scaler, Want};
use gradscaler_burn::{backward, parameters, unscale, Error};

#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Layer>,
    unused: Param<Tensor<1>>,
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn model(dtype: DType) -> Model {
    let device = device();
    let layer = |x: f32| Layer {
        weight: Param::from_tensor(Tensor::from_data([[x, 2.0], [3.0, 0.5]], (&device, dtype))),
        bias: Param::from_tensor(Tensor::from_data([x, 1.0], (&device, dtype))),
    };
    Model {
        layers: vec![layer(1.0), layer(4.0)],
        unused: Param::from_tensor(Tensor::from_data([9.0f32], (&device, dtype))),
    }
}

/// The sum of the squares of what is used.
fn loss(model: &Model) -> Tensor<1> {
    let squares = |layer: &Layer| {
        let weight = layer.weight.val().cast(DType::F32).powi_scalar(2).sum();
        weight + layer.bias.val().cast(DType::F32).powi_scalar(2).sum()
    };
    squares(&model.layers[0]) + squares(&model.layers[1])
}

fn values<const D: usize>(grads: &GradientsParams, param: &Param<Tensor<D>>) -> Vec<f32> {
    let data = grads.get::<D>(param.id).unwrap().into_data_as::<f32>();
    data.as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn every_gradient_is_divided_and_keeps_its_dtype() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let model = model(dtype);
        let scaled = loss(&model).mul_scalar(64.0).backward();
        let mut grads = GradientsParams::from_grads(scaled, &model);
        let factor = Factor::new(64.0).unwrap();
        let report = unscale(&factor, &mut grads, &model, Want::NORM).unwrap();
        let grad = grads.get::<2>(model.layers[1].weight.id).unwrap();
        assert_eq!((grad.dtype(), grad.dims()), (dtype, [2, 2]));
        let weight = values(&grads, &model.layers[1].weight);
        assert_eq!(weight, [8.0, 4.0, 6.0, 1.0]);
        assert_eq!(values(&grads, &model.layers[0].bias), [2.0, 2.0]);
        assert!(grads.get::<1>(model.unused.id).is_none());
        let measured = (report.norm(), report.elements());
        assert_eq!(measured, (Some(250f64.sqrt()), 12));
    }
}

#[test]
fn a_report_names_the_parameter_that_overflowed() {
    let model = model(DType::F32);
    let infinite = model.layers[1].bias.val().mul_scalar(f32::INFINITY);
    let scaled = (loss(&model) + infinite.sum()).backward();
    let mut grads = GradientsParams::from_grads(scaled, &model);
    let factor = Factor::new(2.0).unwrap();
    let report = unscale(&factor, &mut grads, &model, Want::NONE).unwrap();
    let names = parameters(&model);
    let expected = "layers.0.weight layers.0.bias layers.1.weight layers.1.bias unused";
    assert_eq!(names.join(" "), expected);
    let (index, element) = report.first_overflow().unwrap();
    assert_eq!((names[index].as_str(), element), ("layers.1.bias", 0));
    assert_eq!(report.last_tensor(), Some(index));

    let mut scaler = Scaler::preset("torch").unwrap();
    scaler.update(&report).unwrap();
    let reason = scaler
        .state()
        .reason(Evidence::of(&report).names(&names))
        .unwrap()
        .unwrap();
    assert!(reason.message.contains("\"layers.1.bias\""), "{reason}");
}

#[test]
fn a_bad_loss_skips_the_step_and_leaves_the_scale() {
    for (name, held) in [("recommended", true), ("torch", false)] {
        let (mut scaler, model) = (Scaler::preset(name).unwrap(), model(DType::F32));
        for dtype in [DType::F32, DType::BF16] {
            let bad = loss(&model).add_scalar(f32::NAN).cast(dtype);
            let (_, report) = backward(&scaler, bad, &model, Want::NONE).unwrap();
            assert_eq!(
                (report.loss(), report.overflow()),
                (Loss::NOT_FINITE, false)
            );
            let events = scaler.update(&report).unwrap();
            let seen = (events.contains(Event::BAD_LOSS), scaler.state().skip());
            assert_eq!(seen, (held, held));
        }
        let (_, report) = backward(&scaler, loss(&model), &model, Want::NONE).unwrap();
        assert_eq!(
            (report.loss(), scaler.update(&report).unwrap()),
            (Loss::FINITE, Event::NONE)
        );
        let bad_losses_in_a_row = scaler.state().total_bad_losses();
        assert_eq!((bad_losses_in_a_row, scaler.loss_scale()), (2, 65536.0));
    }
}

#[test]
fn an_overflow_skips_the_step_and_lowers_the_scale() {
    let mut model = model(DType::F32);
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let mut scaler = Scaler::preset("torch").unwrap();
    for (weight, overflow) in [(1.0, false), (1e38, true), (1.0, false)] {
        let before = model.layers[0].weight.val().into_data();
        let loss = loss(&model).mul_scalar(weight);
        let (grads, report) = backward(&scaler, loss, &model, Want::NONE).unwrap();
        let events = scaler.update(&report).unwrap();
        if !scaler.state().skip() {
            model = optimizer.step(0.1, model, grads);
        }
        let skipped = events.contains(Event::SKIPPED | Event::BACKED_OFF);
        assert_eq!((report.overflow(), skipped), (overflow, overflow));
        assert_eq!(model.layers[0].weight.val().into_data() == before, overflow);
    }
    assert_eq!(scaler.loss_scale(), 32768.0);
}

#[test]
fn what_the_policy_judges_by_is_asked_for() {
    let scaler = Scaler::preset("fairseq").unwrap();
    let model = model(DType::F32);
    let (_, report) = backward(&scaler, loss(&model), &model, Want::NONE).unwrap();
    assert_eq!(report.norm(), Some(250f64.sqrt()));
}

#[test]
fn gradients_of_another_module_are_an_error() {
    let model = model(DType::F32);
    let mut grads = GradientsParams::from_grads(loss(&model).backward(), &model);
    let factor = Factor::new(2.0).unwrap();
    let head = &model.layers[1];
    let error = unscale(&factor, &mut grads, head, Want::NONE).unwrap_err();
    assert!(matches!(error, Error::NotInModule { count: 2 }), "{error}");
    assert_eq!(values(&grads, &head.bias), [8.0, 2.0]);
    // A parameter that a module has twice is one.
    let shared = vec![head.clone(), head.clone(), model.layers[0].clone()];
    let report = unscale(&factor, &mut grads, &shared, Want::NONE).unwrap();
    assert_eq!(report.elements(), 18);
    assert_eq!(values(&grads, &head.bias), [4.0, 1.0]);
}

#[test]
fn a_factor_that_cannot_divide_changes_nothing() {
    let model = model(DType::F32);
    let mut grads = GradientsParams::from_grads(loss(&model).backward(), &model);
    let mut scaler = Scaler::preset("torch").unwrap();
    scaler.set_scale(0.0).unwrap();
    let error = unscale(&scaler.factor(), &mut grads, &model, Want::NONE).unwrap_err();
    assert!(error.to_string().contains("factor"), "{error}");
    assert_eq!(values(&grads, &model.layers[0].bias), [2.0, 2.0]);
}

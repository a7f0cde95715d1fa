// SPDX-License-Identifier: MIT
//! Gradients of candle, unscaled together; steps that overflow are skipped.
#![allow(missing_docs, clippy::unwrap_used)]

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice::from_ref;

use candle_core::{DType, Device, Error, Result, Tensor, Var};
use candle_nn::ops::{layer_norm, layer_norm_slow};
use candle_nn::{Init, VarBuilder, VarMap};
use gradscaler::{Event, Evidence, Factor, Loss, Scaler, Want};
use gradscaler_candle::{backward_step, named_variables, unscale};

const CPU: &Device = &Device::Cpu;

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

fn preset(name: &str) -> Result<Scaler> {
    Scaler::preset(name).map_err(Error::wrap)
}

fn factor(scale: f64) -> Result<Factor> {
    Factor::new(scale).map_err(Error::wrap)
}

fn loss(variables: &[Var]) -> Result<Tensor> {
    let square = |v: &Var| v.to_dtype(DType::F32)?.sqr()?.sum_all();
    let squares = variables.iter().map(square);
    squares.reduce(|a, b| a? + b?).unwrap()
}

#[test]
fn every_gradient_is_divided_and_keeps_its_dtype() -> Result<()> {
    let dtypes = [DType::F16, DType::F32, DType::BF16, DType::F64];
    let values_in = |dtype| Tensor::new(&[[1f32, 2.0], [3.0, 0.5]], CPU)?.to_dtype(dtype);
    let variable = |dtype| Var::from_tensor(&values_in(dtype)?);
    let variables: Vec<Var> = dtypes.into_iter().map(variable).collect::<Result<_>>()?;
    let mut grads = (loss(&variables)? * 64.0)?.backward()?;
    let report = unscale(&factor(64.0)?, &mut grads, &variables, Want::NORM)?;
    for (variable, dtype) in variables.iter().zip(dtypes) {
        let grad = grads.get(variable).unwrap();
        assert_eq!((grad.dtype(), grad.dims()), (dtype, &[2, 2][..]));
        assert_eq!(values(grad)?, [2.0, 4.0, 6.0, 1.0]);
    }
    let measured = (report.norm(), report.elements());
    assert_eq!(measured, (Some(228f64.sqrt()), 16));
    Ok(())
}

#[test]
fn gradients_that_are_views_and_variables_without_gradient() -> Result<()> {
    let used = Var::ones((2, 3), DType::F32, CPU)?;
    let unused = Var::ones(5, DType::F32, CPU)?;
    let weights = Tensor::new(&[[1f32, 2.0], [3.0, 4.0], [5.0, f32::INFINITY]], CPU)?;
    let mut grads = (used.t()?.mul(&weights)?.sum_all()? * 2.0)?.backward()?;
    let variables = [unused.clone(), used.clone()];
    let report = unscale(&factor(2.0)?, &mut grads, &variables, Want::NONE)?;
    let unscaled = values(grads.get(&used).unwrap())?;
    assert_eq!(unscaled, [1.0, 3.0, 5.0, 2.0, 4.0, f64::INFINITY]);
    assert!(grads.get(&unused).is_none());
    assert_eq!(
        (report.first_overflow(), report.last_tensor()),
        (Some((1, 5)), Some(1))
    );
    Ok(())
}

#[test]
fn an_overflow_skips_the_step_and_lowers_the_scale() -> Result<()> {
    let variable = Var::new(&[1f32, 2.0], CPU)?;
    let mut scaler = preset("torch")?;
    let mut calls = 0;
    for (weight, overflow) in [(1.0, false), (1e38, true), (1.0, false)] {
        let loss = (loss(from_ref(&variable))? * weight)?;
        let step = backward_step(&mut scaler, &loss, from_ref(&variable), |grads| {
            calls += 1;
            assert_eq!(values(grads.get(&variable).unwrap())?, [2.0, 4.0]);
            Ok(())
        })?;
        let skipped = step.events.contains(Event::SKIPPED | Event::BACKED_OFF);
        assert_eq!((step.report.overflow(), skipped), (overflow, overflow));
    }
    assert_eq!((calls, scaler.loss_scale()), (2, 32768.0));
    Ok(())
}

#[test]
fn a_bad_loss_skips_the_step_and_leaves_the_scale() -> Result<()> {
    let variable = Var::new(&[1f32, 2.0], CPU)?;
    for (name, held) in [("recommended", true), ("torch", false)] {
        let mut scaler = preset(name)?;
        for dtype in [DType::F32, DType::BF16] {
            let bad = (loss(from_ref(&variable))? + f64::NAN)?.to_dtype(dtype)?;
            let mut calls = 0;
            let step = backward_step(&mut scaler, &bad, from_ref(&variable), |_| {
                calls += 1;
                Ok(())
            })?;
            assert_eq!(
                (step.report.loss(), step.report.overflow()),
                (Loss::NOT_FINITE, false)
            );
            let events = (step.events.contains(Event::BAD_LOSS), calls);
            assert_eq!(events, (held, i32::from(!held)));
        }
        let bad_losses_in_a_row = scaler.state().total_bad_losses();
        assert_eq!((bad_losses_in_a_row, scaler.loss_scale()), (2, 65536.0));
        let finite = loss(from_ref(&variable))?;
        let step = backward_step(&mut scaler, &finite, from_ref(&variable), |_| Ok(()))?;
        assert_eq!(
            (step.report.loss(), step.events),
            (Loss::FINITE, Event::NONE)
        );
    }
    Ok(())
}

#[test]
fn what_the_policy_judges_by_is_asked_for() -> Result<()> {
    let variables = [Var::new(&[3f32, 4.0], CPU)?];
    let loss = loss(&variables)?;
    let step = backward_step(&mut preset("fairseq")?, &loss, &variables, |_| Ok(()))?;
    assert_eq!(step.report.norm(), Some(10.0));
    Ok(())
}

#[test]
fn a_failed_step_leaves_the_scale() -> Result<()> {
    let mut scaler = preset("torch")?;
    let before = scaler.clone();
    let variable = Var::new(&[1f32], CPU)?;
    let loss = loss(from_ref(&variable))?;
    let step = backward_step(&mut scaler, &loss, from_ref(&variable), |_| {
        Err(Error::msg("disk full"))
    });
    assert!(step.unwrap_err().to_string().contains("disk full"));
    assert_eq!(scaler, before);
    let panics = AssertUnwindSafe(|| {
        backward_step(&mut scaler, &loss, from_ref(&variable), |_| panic!("a bug"))
    });
    assert!(catch_unwind(panics).is_err());
    assert_eq!(scaler, before);
    Ok(())
}

#[test]
fn a_variable_outside_of_the_list_is_an_error() -> Result<()> {
    let listed = Var::new(&[1f32, 2.0], CPU)?;
    let other = Var::new(&[[3f32, 4.0, 5.0]], CPU)?;
    let mut scaler = preset("torch")?;
    let before = scaler.clone();
    let both = loss(&[listed.clone(), other.clone()])?;
    let step = backward_step(&mut scaler, &both, from_ref(&listed), |_| panic!("no step"));
    let error = step.unwrap_err().to_string();
    assert!(error.contains("the shape [1, 3] and dtype F32"), "{error}");
    assert_eq!(scaler, before);
    // Constants, and variables that are detached, have no gradient that a step could use.
    let constant = (both.detach() + other.detach().sum_all()?)?;
    let fine = (loss(from_ref(&listed))? + constant)?;
    backward_step(&mut scaler, &fine, from_ref(&listed), |_| Ok(()))?;
    Ok(())
}

#[test]
fn variables_without_a_gradient_are_told() -> Result<()> {
    let [cut, alpha, beta, after] = [1f32, 2.0, 0.5, 3.0].map(|x| Var::new(&[x, x + 1.0], CPU));
    let variables = [cut?, alpha?, beta?, after?];
    let [cut, alpha, beta, after] = variables.each_ref();
    for (norm, missing) in [
        (
            layer_norm_slow as fn(&Tensor, &Tensor, &Tensor, f32) -> _,
            &[][..],
        ),
        (layer_norm, &[0, 1, 2]), // has no backward pass
    ] {
        let output: Tensor = norm(cut, alpha, beta, 1e-5)?;
        let loss = (output * after.as_tensor())?.sum_all()?;
        let mut scaler = preset("torch")?;
        let step = backward_step(&mut scaler, &loss, &variables, |_| Ok(()))?;
        assert_eq!(step.without_gradient, missing);
        assert_eq!(step.events, Event::NONE);
        let step = backward_step(&mut scaler, &loss.detach(), &variables, |_| Ok(()))?;
        assert_eq!(step.without_gradient, [0, 1, 2, 3]);
        assert_eq!(step.events, Event::EMPTY);
    }
    Ok(())
}

#[test]
fn variables_of_a_map_are_sorted_and_an_overflow_is_named() -> Result<()> {
    let sorted = ["h.2.b", "h.2.w", "h.10.w", "head.w"];
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, CPU);
    for name in ["head.w", "h.10.w", "h.2.w", "h.2.b"] {
        builder.get_with_hints(2, name, Init::Const(1.0))?;
    }
    let (names, variables) = named_variables(&map);
    assert_eq!(names, sorted);
    let bad = (variables[2].as_tensor() * f64::INFINITY)?.sum_all()?;
    let loss = (loss(&variables)? + bad)?;
    let mut scaler = preset("torch")?;
    let step = backward_step(&mut scaler, &loss, &variables, |_| Ok(()))?;
    let evidence = Evidence::of(&step.report).names(&names);
    let reason = scaler.state().reason(evidence).map_err(Error::wrap)?;
    let reason = reason.unwrap();
    assert_eq!(names[reason.tensor.unwrap()], "h.10.w");
    Ok(())
}

#[test]
fn bad_input_is_named_and_changes_nothing() -> Result<()> {
    let (float, integer) = (Var::new(&[1f32], CPU)?, Var::new(&[1u32], CPU)?);
    let mut grads = loss(from_ref(&float))?.backward()?;
    grads.insert(&integer, Tensor::new(&[7u32], CPU)?);
    let variables = [float.clone(), integer];
    let error = unscale(&factor(2.0)?, &mut grads, &variables, Want::NONE).unwrap_err();
    assert!(error.to_string().contains("variable 1 is U32"), "{error}");
    assert_eq!(values(grads.get(&float).unwrap())?, [2.0]);

    let mut scaler = preset("torch")?;
    scaler.set_scale(0.0).map_err(Error::wrap)?;
    let error = unscale(&scaler.factor(), &mut grads, from_ref(&float), Want::NONE).unwrap_err();
    assert!(error.to_string().contains("factor"), "{error}");
    assert_eq!(values(grads.get(&float).unwrap())?, [2.0]);
    Ok(())
}

// SPDX-License-Identifier: MIT
//! Gradients of candle, unscaled together; steps that overflow are skipped.
#![allow(missing_docs, clippy::unwrap_used)]

use std::slice::from_ref;

use candle_core::{DType, Device, Error, Result, Tensor, Var};
use gradscaler::{Event, Factor, Policy, Scaler, Want};
use gradscaler_candle::{backward_step, unscale};

const CPU: &Device = &Device::Cpu;

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor
        .flatten_all()
        .unwrap()
        .to_dtype(DType::F64)
        .unwrap()
        .to_vec1()
        .unwrap()
}

fn loss(variables: &[Var]) -> Result<Tensor> {
    let squares = variables
        .iter()
        .map(|v| v.to_dtype(DType::F32)?.sqr()?.sum_all());
    squares.reduce(|a, b| a? + b?).unwrap()
}

#[test]
fn every_gradient_is_divided_and_keeps_its_dtype() -> Result<()> {
    let dtypes = [DType::F16, DType::F32, DType::BF16, DType::F64];
    let variables: Vec<Var> = dtypes
        .iter()
        .map(|&dtype| {
            Var::from_tensor(&Tensor::new(&[[1f32, 2.0], [3.0, 0.5]], CPU)?.to_dtype(dtype)?)
        })
        .collect::<Result<_>>()?;
    let mut grads = (loss(&variables)? * 64.0)?.backward()?;
    let report = unscale(
        &Factor::new(64.0).unwrap(),
        &mut grads,
        &variables,
        Want::NORM,
    )?;
    for (variable, dtype) in variables.iter().zip(dtypes) {
        let grad = grads.get(variable).unwrap();
        assert_eq!((grad.dtype(), grad.dims()), (dtype, &[2, 2][..]));
        assert_eq!(values(grad), [2.0, 4.0, 6.0, 1.0]);
    }
    assert_eq!(
        (report.norm(), report.elements()),
        (Some(228f64.sqrt()), 16)
    );
    Ok(())
}

#[test]
fn gradients_that_are_views_and_variables_without_gradient() -> Result<()> {
    let (used, unused) = (
        Var::ones((2, 3), DType::F32, CPU)?,
        Var::ones(5, DType::F32, CPU)?,
    );
    let weights = Tensor::new(&[[1f32, 2.0], [3.0, 4.0], [5.0, f32::INFINITY]], CPU)?;
    let mut grads = (used.t()?.mul(&weights)?.sum_all()? * 2.0)?.backward()?;
    let factor = Factor::new(2.0).unwrap();
    let variables = [unused.clone(), used.clone()];
    let report = unscale(&factor, &mut grads, &variables, Want::NONE)?;
    assert_eq!(
        values(grads.get(&used).unwrap()),
        [1.0, 3.0, 5.0, 2.0, 4.0, f64::INFINITY]
    );
    assert!(grads.get(&unused).is_none());
    assert_eq!(report.first_overflow(), Some((1, 5)));
    Ok(())
}

#[test]
fn an_overflow_skips_the_step_and_lowers_the_scale() -> Result<()> {
    let variable = Var::new(&[1f32, 2.0], CPU)?;
    let mut scaler = Scaler::preset("torch").map_err(Error::wrap)?;
    let mut calls = 0;
    for (weight, overflow) in [(1.0, false), (1e38, true), (1.0, false)] {
        let loss = (loss(from_ref(&variable))? * weight)?;
        let step = backward_step(&mut scaler, &loss, from_ref(&variable), |grads| {
            calls += 1;
            assert_eq!(values(grads.get(&variable).unwrap()), [2.0, 4.0]);
            Ok(())
        })?;
        assert_eq!(step.report.overflow(), overflow);
        assert_eq!(
            step.events.contains(Event::SKIPPED | Event::BACKED_OFF),
            overflow
        );
    }
    assert_eq!((calls, scaler.loss_scale()), (2, 32768.0));
    Ok(())
}

#[test]
fn what_the_policy_judges_by_is_asked_for() -> Result<()> {
    let policy = Policy::preset("fairseq")
        .and_then(|policy| policy.build())
        .map_err(Error::wrap)?;
    let mut scaler = Scaler::new(policy).map_err(Error::wrap)?;
    let variable = Var::new(&[3f32, 4.0], CPU)?;
    let step = backward_step(
        &mut scaler,
        &loss(from_ref(&variable))?,
        from_ref(&variable),
        |_| Ok(()),
    )?;
    assert_eq!(step.report.norm(), Some(10.0));
    Ok(())
}

#[test]
fn a_failed_step_leaves_the_scale() -> Result<()> {
    let mut scaler = Scaler::preset("torch").map_err(Error::wrap)?;
    let before = scaler.clone();
    let variable = Var::new(&[1f32], CPU)?;
    let loss = loss(from_ref(&variable))?;
    let step = backward_step(&mut scaler, &loss, from_ref(&variable), |_| {
        Err(Error::msg("disk full"))
    });
    assert!(step.unwrap_err().to_string().contains("disk full"));
    assert_eq!(scaler, before);
    Ok(())
}

#[test]
fn bad_input_is_named_and_changes_nothing() -> Result<()> {
    let (float, integer) = (Var::new(&[1f32], CPU)?, Var::new(&[1u32], CPU)?);
    let mut grads = loss(from_ref(&float))?.backward()?;
    grads.insert(&integer, Tensor::new(&[7u32], CPU)?);
    let variables = [float.clone(), integer];
    let error = unscale(
        &Factor::new(2.0).unwrap(),
        &mut grads,
        &variables,
        Want::NONE,
    )
    .unwrap_err();
    assert!(error.to_string().contains("variable 1 is U32"), "{error}");
    assert_eq!(values(grads.get(&float).unwrap()), [2.0]);

    let mut scaler = Scaler::preset("torch").map_err(Error::wrap)?;
    for _ in 0..200 {
        let _ = scaler.update(&gradscaler::Report::of(true));
    }
    let error = unscale(&scaler.factor(), &mut grads, from_ref(&float), Want::NONE).unwrap_err();
    assert!(error.to_string().contains("factor"), "{error}");
    assert_eq!(values(grads.get(&float).unwrap()), [2.0]);
    Ok(())
}

// SPDX-License-Identifier: MIT
//! Resumes, logs, says why it skips, diagnoses, saves. Step 100 has a NaN in its data, step 200 wrong labels.
//!
//!     cargo run --example loop STEPS

use candle_core::{DType::F16, DType::F32, Device::Cpu, Result, Tensor};
use candle_nn::{linear, loss::mse, Linear, Optimizer, VarBuilder, VarMap, SGD};
use gradscaler::{History, Scaler};
use gradscaler_candle::{backward_step, named_variables};

/// Computes a layer in f16; its variables stay in f32.
fn half(layer: &Linear, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = (layer.weight().to_dtype(F16)?, layer.bias().expect("a bias"));
    x.matmul(&weight.t()?)?.broadcast_add(&bias.to_dtype(F16)?)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let steps: u64 = std::env::args().nth(1).unwrap_or_default().parse()?;
    let mut map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, F32, &Cpu);
    let first = linear(4, 16, builder.pp("first"))?;
    let second = linear(16, 1, builder.pp("second"))?;
    let (names, variables) = named_variables(&map);
    for variable in &variables {
        let waves = Tensor::arange(0f32, variable.elem_count() as f32, &Cpu)?.sin()?;
        variable.set(&(waves * 0.2)?.reshape(variable.shape())?)?; // the same in every process
    }
    let mut scaler = Scaler::preset("recommended")?;
    if let Ok(saved) = std::fs::read("run.scaler") {
        scaler = Scaler::load(&saved)?;
        map.load("run.safetensors")?;
    }
    let mut optimizer = SGD::new(variables.clone(), 0.1)?;
    let mut history = History::open("run.jsonl", "candle")?;
    let start = scaler.state().total_updates() + 1;
    history.start(&scaler, start)?;
    for step in start..start + steps {
        let x = Tensor::arange(0f32, 32.0, &Cpu)?.affine(1.0, step as f64)?;
        let x = (x.sin()?.reshape((8, 4))? * if step == 100 { f64::NAN } else { 0.5 })?;
        let y = (x.mean_keepdim(1)? * if step == 200 { 20.0 } else { 1.0 })?;
        let output = half(&second, &half(&first, &x.to_dtype(F16)?)?.tanh()?)?;
        let loss = mse(&output.to_dtype(F32)?, &y)?;
        let made = backward_step(&mut scaler, &loss, &variables, |grads| {
            optimizer.step(grads)
        })?;
        history.line(&scaler, step, made.evidence(&names))?;
        if let Some(reason) = scaler.state().reason(made.evidence(&names))? {
            println!("step {step} {reason}");
        }
    }
    map.save("run.safetensors")?;
    std::fs::write("run.scaler", scaler.save()?)?;
    println!("{scaler}");
    print!("{}", scaler.diagnose(None, &[], 0, 0)?);
    Ok(())
}

// SPDX-License-Identifier: MIT
//! The Rust client of tests/parity; the README there says what every client reads and prints.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::mem::size_of_val;
use std::process::{Child, Command, Stdio};
use std::slice;

use gradscaler::{
    Bf16, Dtype, Element, Histogram, Options, Result, Scaler, Tensor, TensorMut, Want, F16,
};
use gradscaler_clients::parse_policy;

// The fields that are hashed are those in front of the reserved words.
const REPORT_BYTES: usize = 112;
const STATE_BYTES: usize = 156;

/// The elements of a tensor, in their own dtype.
enum Elements {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<F16>),
    Bf16(Vec<Bf16>),
}

/// Applies an expression to the vector, whatever its elements are.
macro_rules! with {
    ($elements:expr, $vec:ident => $result:expr) => {
        match $elements {
            Elements::F32($vec) => $result,
            Elements::F64($vec) => $result,
            Elements::F16($vec) => $result,
            Elements::Bf16($vec) => $result,
        }
    };
}

impl Elements {
    fn zeros(dtype: Dtype, count: usize) -> std::result::Result<Self, Box<dyn Error>> {
        match dtype {
            Dtype::F32 => Ok(Self::F32(vec![0.0; count])),
            Dtype::F64 => Ok(Self::F64(vec![0.0; count])),
            Dtype::F16 => Ok(Self::F16(vec![F16(0); count])),
            Dtype::BF16 => Ok(Self::Bf16(vec![Bf16(0); count])),
            unknown => Err(format!("no such dtype: {unknown:?}").into()),
        }
    }

    fn len(&self) -> usize {
        with!(self, elements => elements.len())
    }

    fn view(&self) -> Tensor<'_> {
        with!(self, elements => Tensor::new(elements))
    }

    fn view_mut(&mut self) -> TensorMut<'_> {
        with!(self, elements => TensorMut::new(elements))
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        with!(self, elements => bytes_of_mut(elements))
    }
}

/// The memory of numbers, for a file and a digest that are little-endian as every target is.
fn bytes_of<T: Copy>(numbers: &[T]) -> &[u8] {
    // SAFETY: elements, and structs of the interface, are numbers without padding.
    unsafe { slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; every bit pattern is a number.
    unsafe { slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// The file, read from front to back.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> std::result::Result<&'a [u8], Box<dyn Error>> {
        if count > self.0.len() {
            return Err("the file ends too early".into());
        }
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> std::result::Result<u32, Box<dyn Error>> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }

    fn u64(&mut self) -> std::result::Result<u64, Box<dyn Error>> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into()?))
    }

    fn line(&mut self) -> std::result::Result<&'a str, Box<dyn Error>> {
        let length = self
            .0
            .iter()
            .position(|&byte| byte == b'\n')
            .ok_or("the file has no first line")?;
        Ok(std::str::from_utf8(&self.take(length + 1)?[..length])?)
    }
}

fn step(
    scaler: &mut Scaler,
    tensors: &[Elements],
    back: &mut Elements,
    digest: &mut Sha256,
) -> Result<()> {
    let inputs: Vec<Tensor> = tensors.iter().map(Elements::view).collect();
    let mut results: Vec<Vec<f32>> = tensors
        .iter()
        .map(|tensor| vec![0.0; tensor.len()])
        .collect();
    let mut out: Vec<TensorMut> = results
        .iter_mut()
        .map(|result| TensorMut::new(result))
        .collect();
    let mut histogram = Histogram::default();
    let options = Options::new(Want::ALL).histogram(&mut histogram);
    let report = scaler.unscale_into(&inputs, &mut out, options)?;
    let first = [Tensor::new(&results[0])];
    scaler.scale_into(&first, &mut [back.view_mut()], Want::NONE)?;
    scaler.update(&report)?;
    for result in &results {
        digest.add(bytes_of(result));
    }
    digest.add(back.bytes_mut());
    digest.add(&report.to_bytes()[..REPORT_BYTES]);
    for count in histogram.bins().iter().chain([&histogram.elements()]) {
        digest.add(&count.to_le_bytes());
    }
    digest.add(&scaler.state().to_bytes()[..STATE_BYTES]);
    for (name, value) in scaler.metrics(Some(&report))? {
        digest.add(name.as_bytes());
        digest.add(&value.number().unwrap_or(f64::NAN).to_le_bytes());
    }
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let file = fs::read(std::env::args().nth(1).ok_or("usage: parity FILE")?)?;
    let mut reader = Reader(&file);
    let (preset, settings) = reader
        .line()?
        .split_once(' ')
        .ok_or("the first line is PRESET SETTINGS")?;
    let mut scaler = Scaler::new(parse_policy(preset, settings)?)?;
    let (steps, count) = (reader.u32()?, reader.u32()?);
    let mut tensors = Vec::new();
    for _ in 0..count {
        let dtype = Dtype::from_raw(reader.u32()?);
        reader.u32()?;
        tensors.push(Elements::zeros(dtype, usize::try_from(reader.u64()?)?)?);
    }
    let first = tensors.first().ok_or("the file has no tensor")?.view();
    let mut back = Elements::zeros(first.dtype(), first.len())?;

    let mut digest = Sha256::new()?;
    for number in 0..steps {
        for tensor in &mut tensors {
            let bytes = tensor.bytes_mut();
            bytes.copy_from_slice(reader.take(bytes.len())?);
        }
        step(&mut scaler, &tensors, &mut back, &mut digest)?;
        if number + 1 == steps / 2 {
            scaler = Scaler::load(&scaler.save()?)?;
        }
    }
    let (skipped, scale) = (scaler.state().total_overflows(), scaler.loss_scale());
    println!("{} {skipped} {scale}", digest.finish()?);
    Ok(())
}

/// SHA-256 by the system's tool, so that a test needs no dependency.
struct Sha256(Child);

impl Sha256 {
    fn new() -> io::Result<Self> {
        let mut tool = Command::new("sha256sum");
        tool.stdin(Stdio::piped()).stdout(Stdio::piped());
        tool.spawn().map(Self)
    }

    fn add(&mut self, bytes: &[u8]) {
        let input = self.0.stdin.as_mut().expect("it is piped");
        input.write_all(bytes).expect("sha256sum reads");
    }

    fn finish(self) -> io::Result<String> {
        let answer = String::from_utf8_lossy(&self.0.wait_with_output()?.stdout).into_owned();
        Ok(answer.chars().take(64).collect())
    }
}

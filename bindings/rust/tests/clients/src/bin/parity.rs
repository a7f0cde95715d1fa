// SPDX-License-Identifier: MIT
//! The Rust client of tests/parity; the README there says what every client reads and prints.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, Read};
use std::mem::size_of_val;
use std::slice;

use gradscaler::{
    Bf16, Dtype, Element, Histogram, History, Options, Scaler, Tensor, TensorMut, Want, F16,
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

/// The next bytes of the file.
fn next<const N: usize>(file: &mut &[u8]) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The CRC-32 of zlib.
fn add(digest: &mut u32, bytes: &[u8]) {
    let mut crc = !*digest;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
        }
    }
    *digest = !crc;
}

fn step(
    scaler: &mut Scaler,
    number: u32,
    loss: f32,
    tensors: &[Elements],
    back: &mut Elements,
    digest: &mut u32,
) -> std::result::Result<(), Box<dyn Error>> {
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
    let loss = [loss];
    let options = Options::new(Want::ALL)
        .histogram(&mut histogram)
        .loss(Tensor::new(&loss));
    let report = scaler.unscale_into(&inputs, &mut out, options)?;
    let first = [Tensor::new(&results[0])];
    scaler.scale_into(&first, &mut [back.view_mut()], Want::NONE)?;
    scaler.update(&report)?;
    for result in &results {
        add(digest, bytes_of(result));
    }
    add(digest, back.bytes_mut());
    add(digest, &report.to_bytes()[..REPORT_BYTES]);
    for count in histogram.bins().iter().chain([&histogram.elements()]) {
        add(digest, &count.to_le_bytes());
    }
    add(digest, &scaler.state().to_bytes()[..STATE_BYTES]);
    for (name, value) in scaler.metrics(Some(&report))? {
        add(digest, name.as_bytes());
        add(digest, &value.number().unwrap_or(f64::NAN).to_le_bytes());
    }
    let mut line = Vec::new();
    history(&mut line).line(scaler, number.into(), &report)?;
    add(digest, &line);
    Ok(())
}

/// Writes the lines of a history without times.
fn history(to: &mut Vec<u8>) -> History<&mut Vec<u8>> {
    History::new(to, "parity").without_times()
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let file = fs::read(std::env::args().nth(1).ok_or("usage: parity FILE")?)?;
    let (mut file, mut line) = (file.as_slice(), String::new());
    file.read_line(&mut line)?;
    let (preset, settings) = line
        .trim_end()
        .split_once(' ')
        .ok_or("the first line is PRESET SETTINGS")?;
    let mut scaler = Scaler::new(parse_policy(preset, settings)?)?;
    let [steps, count] = [next(&mut file)?, next(&mut file)?].map(u32::from_le_bytes);
    let mut tensors = Vec::new();
    for _ in 0..count {
        let [dtype, _] = [next(&mut file)?, next(&mut file)?].map(u32::from_le_bytes);
        let elements = u64::from_le_bytes(next(&mut file)?);
        let elements = usize::try_from(elements)?;
        tensors.push(Elements::zeros(Dtype::from_raw(dtype), elements)?);
    }
    let first = tensors.first().ok_or("the file has no tensor")?.view();
    let mut back = Elements::zeros(first.dtype(), first.len())?;

    let mut digest = 0;
    for number in 0..steps {
        let loss = f32::from_le_bytes(next(&mut file)?);
        for tensor in &mut tensors {
            file.read_exact(tensor.bytes_mut())?;
        }
        step(
            &mut scaler,
            number + 1,
            loss,
            &tensors,
            &mut back,
            &mut digest,
        )?;
        if number + 1 == steps / 2 {
            scaler = Scaler::load(&scaler.save()?)?;
            let mut start = Vec::new();
            history(&mut start).start(&scaler, u64::from(number) + 2)?;
            add(&mut digest, &start);
        }
    }
    let state = scaler.state();
    let skipped = state.total_overflows() + state.total_bad_losses();
    let scale = scaler.loss_scale();
    println!("{digest:08x} {skipped} {scale}");
    Ok(())
}

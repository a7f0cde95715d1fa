// SPDX-License-Identifier: MIT
//! The Rust client of tests/parity, whose README says what every client reads and prints.

mod clients;

use std::error::Error;
use std::fs;

use clients::parse_policy;
use gradscaler::{
    Bf16, Dtype, Element, Report, Result, Scaler, State, Tensor, TensorMut, Want, F16,
};

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

/// The memory of elements, for a file and a digest that are little-endian as every target is.
fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: the elements are plain numbers without padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), std::mem::size_of_val(elements)) }
}

fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; every bit pattern is a number.
    unsafe {
        std::slice::from_raw_parts_mut(
            elements.as_mut_ptr().cast(),
            std::mem::size_of_val(elements),
        )
    }
}

fn report_bytes(report: &Report) -> [u8; 256] {
    // SAFETY: 256 bytes without padding, as the C interface defines them.
    unsafe { std::mem::transmute(*report.as_raw()) }
}

fn state_bytes(state: &State) -> [u8; 256] {
    // SAFETY: likewise.
    unsafe { std::mem::transmute(*state.as_raw()) }
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
    let report = scaler.unscale_into(&inputs, &mut out, Want::ALL)?;
    scaler.scale_into(&[Tensor::new(&results[0])], &mut [back.view_mut()])?;
    scaler.update(&report)?;
    for result in &results {
        digest.add(bytes_of(result));
    }
    digest.add(back.bytes_mut());
    digest.add(&report_bytes(&report));
    digest.add(&state_bytes(scaler.state()));
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

    let mut digest = Sha256::new();
    for number in 0..steps {
        for tensor in &mut tensors {
            let bytes = tensor.bytes_mut();
            bytes.copy_from_slice(reader.take(bytes.len())?);
        }
        step(&mut scaler, &tensors, &mut back, &mut digest)?;
        if number + 1 == steps / 2 {
            let saved = scaler.save()?;
            digest.add(&saved);
            scaler = Scaler::load(&saved)?;
        }
    }
    let hex: String = digest
        .finish()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    println!("{hex} {} {}", scaler.state().skipped(), scaler.loss_scale());
    Ok(())
}

/// SHA-256 (FIPS 180-4), here so that a test needs no dependency.
struct Sha256 {
    hash: [u32; 8],
    constants: [u32; 64],
    pending: Vec<u8>,
    length: u64,
}

impl Sha256 {
    /// The hash starts with the fractions of the square roots of the first primes, the constants of the rounds are
    /// those of the cube roots.
    fn new() -> Self {
        Self {
            hash: std::array::from_fn(|i| root_bits(f64::sqrt, i)),
            constants: std::array::from_fn(|i| root_bits(f64::cbrt, i)),
            pending: Vec::new(),
            length: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.pending.extend_from_slice(bytes);
        let whole = self.pending.len() / 64 * 64;
        for block in self.pending[..whole].chunks_exact(64) {
            compress(&mut self.hash, &self.constants, block);
        }
        self.pending.drain(..whole);
    }

    fn finish(mut self) -> Vec<u8> {
        let bits = self.length * 8;
        let zeros = (119 - self.pending.len()) % 64;
        self.add(&[&[0x80], &vec![0; zeros][..], &bits.to_be_bytes()].concat());
        self.hash
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect()
    }
}

/// The first 32 bits of the fraction of a root of prime number `index`.
fn root_bits(root: fn(f64) -> f64, index: usize) -> u32 {
    let is_prime = |&n: &u32| (2..n).all(|divisor| n % divisor != 0);
    let prime = (2u32..).filter(is_prime).nth(index).map_or(2.0, f64::from);
    (root(prime).fract() * 2f64.powi(32)) as u32
}

fn compress(hash: &mut [u32; 8], constants: &[u32; 64], block: &[u8]) {
    let mut w = [0u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for t in 16..64 {
        let (x, y) = (w[t - 15], w[t - 2]);
        let small0 = x.rotate_right(7) ^ x.rotate_right(18) ^ x >> 3;
        let small1 = y.rotate_right(17) ^ y.rotate_right(19) ^ y >> 10;
        w[t] = w[t - 16]
            .wrapping_add(small0)
            .wrapping_add(w[t - 7])
            .wrapping_add(small1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *hash;
    for (word, constant) in w.iter().zip(constants) {
        let big1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = e & f ^ !e & g;
        let t1 = [big1, choice, *constant, *word]
            .into_iter()
            .fold(h, u32::wrapping_add);
        let big0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let t2 = big0.wrapping_add(a & b ^ a & c ^ b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(t2));
    }
    for (sum, value) in hash.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *sum = sum.wrapping_add(value);
    }
}

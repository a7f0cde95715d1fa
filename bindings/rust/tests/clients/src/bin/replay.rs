// SPDX-License-Identifier: MIT
//! The Rust client of tests/replay/replay.py, which says what is read and written: one line per
//! recording.

use std::fmt::Write;
use std::io::BufRead;

use gradscaler::{Report, Result, Scaler};
use gradscaler_clients::{parse_number, parse_pairs, parse_policy};

/// A number that Python's float.fromhex reads back exactly.
fn hex(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    let (fraction, exponent) = (
        value.to_bits() & ((1 << 52) - 1),
        (value.to_bits() >> 52) as i32,
    );
    let (fraction, exponent) = if exponent == 0 {
        (fraction, 1)
    } else {
        (fraction | 1 << 52, exponent)
    };
    format!("0x{fraction:x}p{}", exponent - 1075)
}

fn report(step: &str) -> Report {
    let norm = step.strip_prefix('n').and_then(parse_number);
    Report::of(step == "1").with_norm(norm.unwrap_or(0.0))
}

fn replay(preset: &str, settings: &str, steps: &str, checkpoint: &str) -> Result<String> {
    let mut scaler = Scaler::new(parse_policy(preset, settings)?)?;
    if !checkpoint.is_empty() {
        scaler.import(preset, parse_pairs(checkpoint))?;
    }
    let mut answer = String::new();
    for step in steps.split(',') {
        let scale = scaler.loss_scale();
        let events = scaler.update(&report(step))?;
        let _ = write!(answer, "{}/{}", hex(scale), events.raw());
        if step.starts_with('n') {
            let state = scaler.state();
            for number in [
                state.multiplier(),
                state.guard_mean(),
                state.guard_variance(),
            ] {
                let _ = write!(answer, "/{}", hex(number));
            }
        }
        answer.push(' ');
    }
    Ok(answer + &hex(scaler.loss_scale()))
}

fn main() {
    for line in std::io::stdin()
        .lock()
        .lines()
        .map_while(std::result::Result::ok)
    {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.resize(words.len().max(4), "");
        let answer = replay(words[0], words[1], words[2], words[3]);
        println!(
            "{}",
            answer.unwrap_or_else(|error| format!("error {error}"))
        );
    }
}

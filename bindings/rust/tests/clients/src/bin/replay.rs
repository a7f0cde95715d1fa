// SPDX-License-Identifier: MIT
//! The Rust client of tests/replay/replay.py, which says what is read and written: one line per
//! recording.

use std::fmt::Write;
use std::io::BufRead;

use gradscaler::{Report, Result, Scaler};
use gradscaler_clients::{parse_pairs, parse_policy};

fn report(step: &str) -> Report {
    let norm = step.strip_prefix('n').and_then(|norm| norm.parse().ok());
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
        let _ = write!(answer, "{scale}/{}", events.raw());
        if step.starts_with('n') {
            let state = scaler.state();
            for number in [
                state.multiplier(),
                state.guard_mean(),
                state.guard_variance(),
            ] {
                let _ = write!(answer, "/{number}");
            }
        }
        answer.push(' ');
    }
    Ok(answer + &scaler.loss_scale().to_string())
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

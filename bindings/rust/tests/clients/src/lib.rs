// SPDX-License-Identifier: MIT
//! Shared by the programs that the repository's tests drive: policies and numbers as text.

use gradscaler::{Policy, Result, Value};

/// A number as C's %a and Python's float.hex() write it, or as decimals.
pub fn parse_number(text: &str) -> Option<f64> {
    if let Some(magnitude) = text.strip_prefix('-') {
        return parse_number(magnitude).map(|number| -number);
    }
    let digits = match text.strip_prefix("0x") {
        Some(digits) => digits,
        None => return text.parse().ok(),
    };
    let (mantissa, exponent) = digits.split_once('p').unwrap_or((digits, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let bits = u64::from_str_radix(&format!("{whole}{fraction}"), 16).ok()?;
    let exponent = exponent.parse::<i32>().ok()? - 4 * fraction.len() as i32;
    // Two exact steps: the smallest subnormal is 2^-1074, which powi reaches, its inverse not.
    let half = exponent / 2;
    Some(bits as f64 * 2f64.powi(half) * 2f64.powi(exponent - half))
}

/// `key=value,key=value,...`, or `-` for none, with numbers, `null` and texts as values.
pub fn parse_pairs(words: &str) -> impl Iterator<Item = (&str, Value)> {
    let items = words
        .split(',')
        .filter(|item| !item.is_empty() && *item != "-");
    items.map(|item| {
        let (key, text) = item.split_once('=').unwrap_or((item, ""));
        let value = match (text, parse_number(text)) {
            ("null", _) => Value::Empty,
            (_, Some(number)) => number.into(),
            _ => text.into(),
        };
        (key, value)
    })
}

/// The policy of a preset's name and the settings of its framework, as [`parse_pairs`] reads them.
pub fn parse_policy(preset: &str, settings: &str) -> Result<Policy> {
    Policy::from_settings(preset, parse_pairs(settings))?
        .0
        .build()
}

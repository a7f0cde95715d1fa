// SPDX-License-Identifier: MIT
//! What the programs that the repository's tests drive have in common: policies and numbers as text.

use gradscaler::{Policy, Result};

/// A number as C's %a and Python's float.hex() write it, or as decimals.
pub fn parse_number(text: &str) -> Option<f64> {
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

/// The policy of a preset's name and `field=value,field=value,...`, or `-` for none.
pub fn parse_policy(preset: &str, settings: &str) -> Result<Policy> {
    let mut builder = Policy::preset(preset)?;
    for setting in settings
        .split(',')
        .filter(|setting| !setting.is_empty() && *setting != "-")
    {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        builder = builder.set(name, parse_number(value).unwrap_or(f64::NAN))?;
    }
    builder.build()
}

// SPDX-License-Identifier: MIT
//! Shared by the programs that the repository's tests drive: policies as text.

use gradscaler::{Policy, Result, Value};

/// `key=value,key=value,...`, or `-` for none, with numbers, `null` and texts as values.
pub fn parse_pairs(words: &str) -> impl Iterator<Item = (&str, Value)> {
    let items = words
        .split(',')
        .filter(|item| !item.is_empty() && *item != "-");
    items.map(|item| {
        let (key, text) = item.split_once('=').unwrap_or((item, ""));
        let value = match (text, text.parse::<f64>()) {
            ("null", _) => Value::Empty,
            (_, Ok(number)) => number.into(),
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

// SPDX-License-Identifier: MIT
//! Policies and scalers through a format for people and one for machines.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{presets, OverflowReset, Policy, Report, Scaler};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Rules(#[serde(with = "gradscaler_serde::policy")] Policy);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Whole(#[serde(with = "gradscaler_serde::scaler")] Scaler);

fn read(text: &str) -> Result<Policy, String> {
    let rules = serde_json::from_str::<Rules>(text);
    rules.map(|it| it.0).map_err(|error| error.to_string())
}

#[test]
fn the_rules_of_every_preset_come_back() {
    for (name, _) in presets() {
        let policy = Policy::preset(name).unwrap().build().unwrap();
        let text = serde_json::to_string(&Rules(policy)).unwrap();
        assert_eq!(read(&text), Ok(policy), "{text}");
    }
}

#[test]
fn settings_say_what_differs_from_a_preset() {
    let text = r#"{"growth_interval": 100, "preset": "torch", "overflow_reset": "ON_GROWTH | ON_BACKOFF"}"#;
    let policy = Policy::preset("torch").unwrap().growth_interval(100);
    let policy = policy.overflow_reset(OverflowReset::ON_GROWTH | OverflowReset::ON_BACKOFF);
    assert_eq!(read(text), Ok(policy.build().unwrap()));
    let alone = read(r#"{"init_scale": 8, "growth_factor": 1.5}"#).unwrap();
    assert_eq!((alone.init_scale(), alone.growth_factor()), (8.0, 1.5));
}

#[test]
fn mistakes_in_settings_are_named() {
    let rules = "one of CLAMP, ENFORCE, REJECT, STOP, CLAMP_UNLESS_PAST";
    let unknown = "policy.growth_intervall is no field";
    let factor = r#"{"preset": "torch", "backoff_factor": 1.5}"#;
    for (text, expected) in [
        (r#"{"preset": "torhc"}"#, "torhc"),
        (r#"{"growth_intervall": 1}"#, unknown),
        (r#"{"growth_interval": -1}"#, "policy.growth_interval is -1"),
        (r#"{"growth_interval": 18446744073709551615}"#, "too large"),
        (r#"{"floor_rule": "HALT"}"#, rules),
        (factor, "policy.backoff_factor"),
        (r#"{"hysteresis": [1]}"#, "a number or the name of a rule"),
        ("7", "a preset and fields of a policy"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_scaler_goes_on_where_it_was() {
    let mut scaler = Scaler::preset("megatron").unwrap();
    for step in 0..700 {
        scaler.update(&Report::of(step % 97 == 3)).unwrap();
    }
    let text = serde_json::to_string(&Whole(scaler.clone())).unwrap();
    let bytes = bincode::serialize(&Whole(scaler.clone())).unwrap();
    let of_text: Whole = serde_json::from_str(&text).unwrap();
    let of_bytes: Whole = bincode::deserialize(&bytes).unwrap();
    assert_eq!((of_text.0, &of_bytes.0), (scaler.clone(), &scaler));
    assert_eq!(bytes.len(), scaler.save().unwrap().len() + 8);
}

#[test]
fn a_damaged_scaler_is_refused() {
    let whole = Whole(Scaler::preset("torch").unwrap());
    let mut damaged = serde_json::to_string(&whole).unwrap();
    let is_zero = damaged.as_bytes()[99] == b'0';
    damaged.replace_range(99..100, if is_zero { "1" } else { "0" });
    for (text, expected) in [
        (damaged.as_str(), "bytes"),
        (r#""xy""#, "hexadecimal"),
        (r#""abc""#, "hexadecimal"),
        (r#""ä""#, "hexadecimal"),
        ("7", "saved scaler"),
    ] {
        let error = serde_json::from_str::<Whole>(text).unwrap_err();
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
    let mut bytes = bincode::serialize(&whole).unwrap();
    bytes[60] ^= 1;
    assert!(bincode::deserialize::<Whole>(&bytes).is_err());
}

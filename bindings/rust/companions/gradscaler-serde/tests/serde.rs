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
fn a_whole_number_of_64_bits_comes_back_exactly() {
    for number in [(1 << 53) + 1, i64::MAX as u64, 1 << 63, u64::MAX] {
        let policy = Policy::preset("torch").unwrap().growth_interval(number);
        let policy = policy.max_failed_backoffs(number).build().unwrap();
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
        (
            r#"{"hysteresis": 18446744073709551615}"#,
            "policy.hysteresis is 18446744073709551615",
        ),
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

/// The preset `"recommended"` of 0.9.
const RULES_OF_0_9: &str = r#"{"arithmetic":"F64_TO_F32","init_scale":65536.0,"growth_factor":2.0,
    "backoff_factor":0.5,"growth_interval":2000,"growth_rule":"REACHED","growth_extra_steps":0,
    "max_scale":16777216.0,"min_scale":0.00006103515625,"ceiling_rule":"CLAMP_UNLESS_PAST",
    "floor_rule":"CLAMP_UNLESS_PAST","overflow_test":"ELEMENT","hysteresis":0,
    "overflow_reset":"ON_GROWTH | ON_BACKOFF","apply_delay":0,"overflow_tolerance":0.0,
    "max_failed_backoffs":10,"quirks":"NONE","target_amax":0.0,"log2_decay":0.0,"log2_slow_decay":0.0,
    "log2_margin_sigmas":0.0,"overflow_sample_log2":0.0,"guard_norm":0.0,"guard_ratio":0.0,
    "guard_sigmas":0.0,"guard_decay":0.0,"guard_init_mean":0.0,"guard_warmup":0,"guard_max_in_a_row":0,
    "guard_sample":"AS_IS","guard_flags":"NONE"}"#;

#[test]
fn what_0_9_saved_is_refused() {
    let sentence = concat!(
        "cannot be read by this version (",
        env!("CARGO_PKG_VERSION"),
        "): 0.9 or an earlier candidate saved this; start anew, and set the old scale"
    );
    let error = read(RULES_OF_0_9).unwrap_err();
    assert!(error.contains(sentence), "{error}");

    let digits = include_str!("../../../gradscaler/tests/saved_by_0_9/scaler.hex");
    let digits: String = digits.lines().collect();
    let error = serde_json::from_str::<Whole>(&format!("\"{digits}\"")).unwrap_err();
    assert!(error.to_string().contains(sentence), "{error}");

    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap());
    let mut saved = (digits.len() as u64 / 2).to_le_bytes().to_vec(); // as bincode begins
    saved.extend(bytes);
    let error = bincode::deserialize::<Whole>(&saved).unwrap_err();
    assert!(error.to_string().contains(sentence), "{error}");
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

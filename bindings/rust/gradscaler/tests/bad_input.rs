// SPDX-License-Identifier: MIT
//! Bad input gets an error that names what was wrong, and changes nothing.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt::Debug;

use gradscaler::{
    sys, Factor, Growth, Policy, PolicyBuilder, Report, Result, Scaler, Status, Tensor, TensorMut,
    Threads, Want,
};

#[track_caller]
fn refused<T: Debug>(result: Result<T>, status: Status, name: &str) {
    let error = result.unwrap_err();
    assert_eq!(
        (error.status, error.name.as_str()),
        (status, name),
        "{error}"
    );
    assert!(error.message.len() > 10, "{error}");
}

#[test]
fn an_error_reads_as_a_sentence() {
    let error = Policy::preset("torch")
        .unwrap()
        .growth_factor(0.5)
        .build()
        .unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("policy.growth_factor: "), "{text}");
    assert!(text.ends_with("(POLICY)"), "{text}");
    let error: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert_eq!(error.to_string(), text);
}

#[test]
fn presets_that_do_not_exist() {
    refused(Scaler::preset("tortch"), Status::PRESET, "name");
    refused(Policy::preset("tor\0ch"), Status::PRESET, "name");
    refused(Policy::preset(""), Status::PRESET, "name");
}

#[test]
fn fields_of_a_policy_out_of_range() {
    type Change = fn(PolicyBuilder) -> PolicyBuilder;
    let cases: [(&str, Change); 6] = [
        ("policy.init_scale", |policy| policy.init_scale(-1.0)),
        ("policy.growth_factor", |policy| {
            policy.growth_factor(f64::NAN)
        }),
        ("policy.backoff_factor", |policy| policy.backoff_factor(1.5)),
        ("policy.growth_rule", |policy| {
            policy.growth_rule(Growth::from_raw(9))
        }),
        ("policy.apply_delay", |policy| policy.apply_delay(2)),
        ("policy.overflow_tolerance", |policy| {
            policy.overflow_tolerance(2.0)
        }),
    ];
    for (name, change) in cases {
        refused(
            change(Policy::preset("torch").unwrap()).build(),
            Status::POLICY,
            name,
        );
    }
}

#[test]
fn fields_by_name_that_do_not_exist_or_fit() {
    let policy = Policy::preset("torch").unwrap();
    refused(
        policy.set("growth_intervall", 1.0),
        Status::POLICY,
        "policy.growth_intervall",
    );
    for value in [-1.0, 0.5, f64::NAN, f64::INFINITY, 1e30] {
        refused(
            policy.set("growth_interval", value),
            Status::POLICY,
            "policy.growth_interval",
        );
        refused(
            policy.set("hysteresis", value),
            Status::POLICY,
            "policy.hysteresis",
        );
    }
    for &field in PolicyBuilder::FIELDS {
        assert!(policy.set(field, 0.0).is_ok());
    }
}

#[test]
fn factors_that_cannot_multiply() {
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-310] {
        refused(Factor::new(scale), Status::VALUE, "scale");
        refused(Factor::ONE.multiply(scale), Status::VALUE, "by");
        let mut scaler = Scaler::preset("recommended").unwrap();
        let before = scaler.clone();
        refused(scaler.set_scale(scale), Status::VALUE, "scale");
        assert_eq!(scaler, before);
    }
}

#[test]
fn a_scale_that_reached_zero_is_refused_and_nothing_written() {
    let mut scaler = Scaler::preset("torch").unwrap();
    for _ in 0..200 {
        scaler.update(&Report::of(true)).unwrap();
    }
    let mut data = [1.0f32, 2.0];
    let result = scaler.unscale(&mut [TensorMut::new(&mut data)], Want::NONE);
    assert_eq!(result.unwrap_err().status, Status::FACTOR);
    assert_eq!(data, [1.0, 2.0]);
}

#[test]
fn lists_and_entries_of_different_lengths() {
    let (a, mut b) = ([0f32; 3], [0f32; 2]);
    let one = Factor::ONE;
    let result = one.scale_into(
        &[Tensor::new(&a), Tensor::new(&a)],
        &mut [TensorMut::new(&mut b)],
    );
    refused(result, Status::COUNT, "out");
    let result = one.unscale_into(&[], &mut [TensorMut::new(&mut b)], Want::NONE);
    refused(result, Status::COUNT, "out");

    let (full, mut other) = ([0f32; 3], [0f32; 3]);
    let (inputs, mut out) = (
        [Tensor::new(&full), Tensor::new(&a)],
        [TensorMut::new(&mut other), TensorMut::new(&mut b)],
    );
    let error = one.unscale_into(&inputs, &mut out, Want::NONE).unwrap_err();
    assert_eq!(
        (error.status, error.index, error.argument),
        (Status::COUNT, Some(1), Some(3))
    );
    assert_eq!(error.name, "out[1].count");
}

#[test]
fn limits_that_cannot_clamp_and_sums_of_another_kind() {
    for limit in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let result = Factor::ONE.clip_value(&mut [], limit, Want::NONE);
        refused(result, Status::VALUE, "limit");
    }
    let (grads, mut sums) = ([1f32; 2], [[1f32; 2]; 2]);
    let mut out = [TensorMut::new(&mut sums)];
    let result = Factor::ONE.accumulate(&[Tensor::new(&grads)], &mut out, Want::NONE);
    refused(result, Status::DTYPE, "out[0].dtype");
    assert_eq!(sums, [[1.0; 2]; 2]);
    let result = Factor::ONE.accumulate(&[Tensor::new(&grads)], &mut [], Want::NONE);
    refused(result, Status::COUNT, "out");
}

#[test]
fn no_threads() {
    refused(Threads::new(0), Status::VALUE, "threads");
}

#[test]
fn unknown_want_bits() {
    refused(
        Factor::ONE.check(&[], Want::from_raw(1 << 20)),
        Status::WANT,
        "want",
    );
    refused(
        Factor::ONE.unscale(&mut [], Want::from_raw(1 << 20)),
        Status::WANT,
        "want",
    );
}

#[test]
fn reports_that_lack_what_is_judged_by() {
    let mut scaler = Scaler::preset("openseq2seq_logmax").unwrap();
    let before = scaler.clone();
    assert_eq!(scaler.needs(), Want::AMAX);
    assert_eq!(
        scaler.update(&Report::of(false)).unwrap_err().status,
        Status::REPORT
    );
    assert_eq!(scaler, before);
    assert_eq!(
        Report::of(false).clip_factor(1.0).unwrap_err().status,
        Status::REPORT
    );
    let report = Report::of(false).with_norm(3.0);
    refused(report.clip_factor(0.0), Status::VALUE, "max_norm");
}

#[test]
fn reports_of_a_failed_rank() {
    let failed = sys::gsc_report {
        status: -16,
        ..Default::default()
    };
    let mut scaler = Scaler::preset("torch").unwrap();
    let merged = Report::default().merge(&Report::from_raw(failed)).unwrap();
    assert_eq!(scaler.update(&merged).unwrap_err().status, Status::REPORT);
}

#[test]
fn saved_bytes_that_are_damaged() {
    let saved = Scaler::preset("torch").unwrap().save().unwrap();
    assert_eq!(Scaler::load(&[]).unwrap_err().status, Status::CORRUPT);
    for length in 0..saved.len() {
        assert_eq!(
            Scaler::load(&saved[..length]).unwrap_err().status,
            Status::CORRUPT
        );
    }
    for position in 0..saved.len() {
        let mut damaged = saved.clone();
        damaged[position] ^= 0x10;
        let status = Scaler::load(&damaged).unwrap_err().status;
        assert!(
            [Status::CORRUPT, Status::VERSION].contains(&status),
            "byte {position}: {status:?}"
        );
    }
}

// SPDX-License-Identifier: MIT
//! Bad input gets an error that names what was wrong, and changes nothing.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt::Debug;

use gradscaler::{
    Counts, Device, Error, Factor, Growth, MergeKind, Options, OverflowTest, Policy, PolicyBuilder,
    Report, Result, Scaler, Status, Tensor, TensorMut, Threads, Value, Want,
};

#[track_caller]
fn refused<T: Debug>(result: Result<T>, status: Status, place: &str) -> Error {
    let error = result.unwrap_err();
    assert_eq!(
        (error.status(), error.place().as_str()),
        (status, place),
        "{error}"
    );
    let text = error.to_string();
    assert!(error.message().len() > 10, "{text}");
    assert!(
        text.starts_with(&format!("{place} ")) || text == error.message(),
        "{text}"
    );
    // The words are those of this crate, not of C.
    assert!(
        !text.to_lowercase().contains("gsc_") && !text.contains("NULL"),
        "{text}"
    );
    error
}

#[test]
fn an_error_reads_as_a_sentence() {
    let error = Policy::preset("torch")
        .unwrap()
        .growth_factor(0.5)
        .build()
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("policy.growth_factor is 0.5: it must be "),
        "{text}"
    );
    assert!(text.ends_with(error.message()), "{text}");
    assert_eq!(
        (error.name(), error.field(), error.index()),
        ("policy", "growth_factor", None)
    );
    assert_eq!((error.value(), error.limits().0), (Some(0.5), Some(1.0)));
    assert_eq!(format!("{error:?}"), format!("POLICY: {text}"));
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
    for (field, value) in [
        ("growth_interval", Value::Text("7".into())),
        ("growth_interval", Value::Integer(-1)),
        ("growth_rule", Value::Text("exact".into())),
        ("overflow_reset", Value::Text("ON_GROWTH | EXACT".into())),
        ("floor_rule", Value::Empty),
    ] {
        refused(
            policy.set(field, value),
            Status::POLICY,
            &format!("policy.{field}"),
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
    }
}

#[test]
fn scales_and_counts_that_no_scaler_has() {
    let mut scaler = Scaler::preset("recommended").unwrap();
    let before = scaler.clone();
    for scale in [-1.0, f64::NAN] {
        refused(scaler.set_scale(scale), Status::STATE, "scale");
    }
    for (counts, place) in [
        (
            Counts {
                good_steps: u64::MAX,
                ..Counts::default()
            },
            "counts.good_steps",
        ),
        (
            Counts {
                steps_since_change: 1 << 63,
                ..Counts::default()
            },
            "counts.steps_since_change",
        ),
        (
            Counts {
                overflows_since_reset: u64::MAX,
                ..Counts::default()
            },
            "counts.overflows_since_reset",
        ),
        (
            Counts {
                failed_backoffs: u64::MAX,
                ..Counts::default()
            },
            "counts.failed_backoffs",
        ),
    ] {
        refused(scaler.set_counts(1.0, counts), Status::STATE, place);
    }
    assert_eq!(scaler, before);
}

#[test]
fn a_scale_that_reached_zero_is_refused_and_nothing_written() {
    let mut scaler = Scaler::preset("torch").unwrap();
    for _ in 0..200 {
        scaler.update(&Report::of(true)).unwrap();
    }
    let mut data = [1.0f32, 2.0];
    let result = scaler.unscale(&mut [TensorMut::new(&mut data)], Want::NONE);
    assert_eq!(result.unwrap_err().status(), Status::FACTOR);
    assert_eq!(data, [1.0, 2.0]);
}

#[test]
fn lists_and_entries_of_different_lengths() {
    let (a, mut b) = ([0f32; 3], [0f32; 2]);
    let one = Factor::ONE;
    let result = one.scale_into(
        &[Tensor::new(&a), Tensor::new(&a)],
        &mut [TensorMut::new(&mut b)],
        Want::NONE,
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
        (error.status(), error.index(), error.name(), error.field()),
        (Status::COUNT, Some(1), "out", "count")
    );
    assert_eq!(error.place(), "out[1].count");
}

#[test]
fn limits_that_cannot_clamp_and_sums_of_another_kind() {
    for limit in [-1.0, f64::NAN, f64::INFINITY] {
        let result = Factor::ONE.unscale(&mut [], Options::default().clamp(limit));
        refused(result, Status::VALUE, "options.clamp");
    }
    let clamp = || Options::default().clamp(1.0);
    refused(
        Factor::ONE.measure(&[], clamp()),
        Status::VALUE,
        "options.clamp",
    );
    let result = Factor::ONE.unscale_accumulate(&[], &mut [], clamp());
    refused(result, Status::VALUE, "options.clamp");
    let (grads, mut sums) = ([1f32; 2], [[1f32; 2]; 2]);
    let mut out = [TensorMut::new(&mut sums)];
    let result = Factor::ONE.unscale_accumulate(&[Tensor::new(&grads)], &mut out, Want::NONE);
    refused(result, Status::DTYPE, "out[0].dtype");
    assert_eq!(sums, [[1.0; 2]; 2]);
    let result = Factor::ONE.unscale_accumulate(&[Tensor::new(&grads)], &mut [], Want::NONE);
    refused(result, Status::COUNT, "out");
}

#[test]
fn no_threads() {
    refused(Threads::new(0), Status::VALUE, "options.threads");
}

#[test]
fn unknown_want_bits() {
    let want = Want::from_raw(1 << 20);
    refused(
        Factor::ONE.measure(&[], want),
        Status::VALUE,
        "options.want",
    );
    refused(
        Factor::ONE.unscale(&mut [], want),
        Status::VALUE,
        "options.want",
    );
}

#[test]
fn a_failed_call_leaves_no_reports_of_tensors() {
    let (grads, mut reports) = ([1f32; 2], vec![Report::default(); 7]);
    let options = Options::new(Want::from_raw(1 << 20)).per_tensor(&mut reports);
    refused(
        Factor::ONE.measure(&[Tensor::new(&grads)], options),
        Status::VALUE,
        "options.want",
    );
    assert!(reports.is_empty());
}

#[test]
fn a_driver_that_is_not_there() {
    let device = Device::cuda(0);
    if gradscaler::info().unwrap().cuda == "available" {
        eprintln!("skipped: there is a driver");
        return;
    }
    let error = device.unwrap_err();
    assert_eq!(error.status(), Status::UNAVAILABLE);
    assert!(error.to_string().contains("driver"), "{error}");
}

#[test]
fn reports_that_lack_what_is_judged_by() {
    let mut scaler = Scaler::preset("openseq2seq_logmax").unwrap();
    let before = scaler.clone();
    assert!(scaler.measure(&[], None).unwrap().amax().is_some());
    let late = scaler.factor().measure(&[], None).unwrap();
    for report in [Report::of(false), late] {
        refused(scaler.update(&report), Status::REPORT, "report.amax");
    }
    assert_eq!(scaler, before);
    assert_eq!(
        Report::of(false).clip_factor(1.0).unwrap_err().status(),
        Status::REPORT
    );
    let report = Report::of(false).with_norm(3.0);
    refused(report.clip_factor(0.0), Status::VALUE, "max_norm");
}

#[test]
fn a_report_that_nobody_filled_in() {
    let mut scaler = Scaler::preset("torch").unwrap();
    let (before, nothing) = (scaler.clone(), Report::default());
    refused(scaler.update(&nothing), Status::REPORT, "report.kind");
    refused(scaler.set_rank(&nothing, 0), Status::REPORT, "report.kind");
    let merged = Report::merge(&[Report::of(false), nothing], MergeKind::SHARDS, None);
    refused(merged, Status::REPORT, "reports[1].kind");
    assert_eq!(scaler, before);
}

#[test]
fn reports_of_a_failed_rank() {
    let mut scaler = Scaler::preset("torch").unwrap();
    let before = scaler.clone();
    let ranks = [Report::of(false), Report::failed(Status::DEVICE)];
    let merged = Report::merge(&ranks, MergeKind::SHARDS, None).unwrap();
    assert_eq!((merged.status(), merged.overflow()), (Status::DEVICE, true));
    refused(scaler.update(&merged), Status::REPORT, "report.status");
    assert_eq!(scaler, before);
}

#[test]
fn merges_that_cannot_be_judged() {
    let policy = Policy::preset("torch")
        .unwrap()
        .overflow_test(OverflowTest::NORM)
        .build()
        .unwrap();
    let reports = [Report::of(false).with_norm(3.0); 2];
    let judged = |kind| Report::merge(&reports, kind, Some(&policy));
    assert!(!judged(MergeKind::SHARDS).unwrap().overflow());
    assert_eq!(
        judged(MergeKind::ADDENDS).unwrap_err().status(),
        Status::REPORT
    );
    refused(judged(MergeKind::from_raw(9)), Status::VALUE, "kind");
    let number = [Report::number(-3.0)];
    assert_eq!(
        (number[0].norm(), number[0].amax()),
        (Some(-3.0), Some(3.0))
    );
    let merged = Report::merge(&number, MergeKind::SHARDS, None);
    refused(merged, Status::REPORT, "reports[0].kind");
    // What overflowed needs no norm to be judged.
    let reports = [reports[0], Report::of(true)];
    assert!(Report::merge(&reports, MergeKind::ADDENDS, Some(&policy))
        .unwrap()
        .overflow());
}

#[test]
fn reports_from_bytes_that_no_rank_made() {
    let mut bytes = Report::of(false).to_bytes();
    bytes[Report::SIZE - 1] = 1;
    let report = Report::from_bytes(&bytes);
    let mut scaler = Scaler::preset("torch").unwrap();
    refused(scaler.update(&report), Status::REPORT, "report.reserved");
    let error = Report::merge(&[report], MergeKind::SHARDS, None).unwrap_err();
    assert_eq!((error.status(), error.index()), (Status::REPORT, Some(0)));
}

#[test]
fn saved_bytes_that_are_damaged() {
    let saved = Scaler::preset("torch").unwrap().save().unwrap();
    let error = refused(Scaler::load(&[]), Status::CORRUPT, "bytes.len");
    assert!(error.to_string().starts_with("bytes.len is 0: "), "{error}");
    for length in 0..saved.len() {
        assert_eq!(
            Scaler::load(&saved[..length]).unwrap_err().status(),
            Status::CORRUPT
        );
    }
    for position in 0..saved.len() {
        let mut damaged = saved.clone();
        damaged[position] ^= 0x10;
        let status = Scaler::load(&damaged).unwrap_err().status();
        assert!(
            [Status::CORRUPT, Status::VERSION].contains(&status),
            "byte {position}: {status:?}"
        );
    }
}

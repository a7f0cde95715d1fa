// SPDX-License-Identifier: MIT
//! Bad input gets an error that names what was wrong, and changes nothing.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use gradscaler::{
    BadLoss, Counts, Evidence, Factor, Growth, MergeKind, Options, Policy, PolicyBuilder, Report,
    Scaler, Tensor, TensorMut, Threads, Value, Want,
};

#[test]
fn every_refusal_names_its_place_in_the_words_of_this_crate() {
    let torch = Policy::preset("torch").unwrap();
    let unknown = Want::from_raw(1 << 20);
    let (one, flag) = (Factor::ONE, Report::of(false));
    let clamp = || Options::default().clamp(1.0);
    let mut damaged = Scaler::preset("torch").unwrap().save().unwrap();
    damaged[20] ^= 0x10;
    let (state, complex) = (*Scaler::preset("torch").unwrap().state(), [[1f32, 2.0]]);
    let by_complex = || Options::default().loss(Tensor::new(&complex));
    refused! {
        Scaler::preset("tortch") => PRESET "name";
        Policy::preset("tor\0ch") => PRESET "name";
        torch.growth_factor(f64::NAN).build() => POLICY "policy.growth_factor";
        torch.growth_rule(Growth::from_raw(9)).build() => POLICY "policy.growth_rule";
        torch.bad_loss_rule(BadLoss::HOLD).build() => POLICY "policy.max_failed_backoffs";
        torch.bad_loss_rule(BadLoss::from_raw(2)).build() => POLICY "policy.bad_loss_rule";
        torch.max_scale(8.0).build() => POLICY "policy.init_scale";
        torch.set("growth_intervall", 1.0) => POLICY "policy.growth_intervall";
        torch.set("target_amax", 0.0) => VERSION "policy.target_amax";
        torch.set("growth_interval", "7") => POLICY "policy.growth_interval";
        torch.set("growth_interval", -1) => POLICY "policy.growth_interval";
        torch.set("growth_rule", "exact") => POLICY "policy.growth_rule";
        torch.set("overflow_reset", "ON_GROWTH | EXACT") => POLICY "policy.overflow_reset";
        torch.set("floor_rule", Value::Empty) => POLICY "policy.floor_rule";
        Factor::new(0.0) => VALUE "scale";
        one.multiply(f64::INFINITY) => VALUE "by";
        one.unscale(&mut [], Options::default().clamp(-1.0)) => VALUE "options.clamp";
        one.measure(&[], clamp()) => VALUE "options.clamp";
        one.unscale_accumulate(&[], &mut [], clamp()) => VALUE "options.clamp";
        one.measure(&[], unknown) => VALUE "options.want";
        one.unscale(&mut [], unknown) => VALUE "options.want";
        one.measure(&[], by_complex()) => DTYPE "options.loss";
        one.unscale(&mut [], by_complex()) => DTYPE "options.loss";
        state.reason(Evidence::default().per_tensor(&[flag; 2]).names(&["weight"])) => COUNT "names";
        state.reason(Evidence::default().names(&["weight"]).order(&[0, 0])) => COUNT "order";
        state.reason(Evidence::default().order(&[0, 2])) => VALUE "order[1]";
        state.reason(Evidence::default().names(&["weight", "bi\0as"])) => VALUE "names[1]";
        state.reason(Evidence::default().losses(1, Some(1))) => VALUE "evidence.bad_loss";
        state.reason(&Report::default()) => REPORT "report.kind";
        state.reason(Evidence::default().per_tensor(&[flag, Report::default()])) => REPORT "per_tensor[1].kind";
        Threads::new(0) => VALUE "options.threads";
        flag.with_norm(3.0).clip_factor(0.0) => VALUE "max_norm";
        Report::merge(&[flag], MergeKind::from_raw(9), None) => VALUE "kind";
        Report::merge(&[flag, Report::default()], MergeKind::SHARDS, None) => REPORT "reports[1].kind";
        Scaler::load(&[]) => CORRUPT "bytes.len";
        Scaler::load(&damaged) => CORRUPT "bytes";
    }
    for value in [-1.0, 0.5, f64::NAN, f64::INFINITY, 2f64.powi(64)] {
        refused! {
            torch.set("growth_interval", value) => POLICY "policy.growth_interval";
            torch.set("hysteresis", value) => POLICY "policy.hysteresis";
        }
    }
    for &field in PolicyBuilder::FIELDS {
        assert!(torch.set(field, 0.0).is_ok());
    }
}

#[test]
fn lists_that_do_not_go_together_are_refused_and_nothing_is_written() {
    let (a, mut b, mut sums) = ([0f32; 3], [1f32; 2], [[1f32; 2]; 3]);
    let (list, one, none) = ([Tensor::new(&a); 2], Factor::ONE, Want::NONE);
    refused! {
        one.scale_into(&list, &mut [TensorMut::new(&mut b)], none) => COUNT "out";
        one.unscale_into(&[], &mut [TensorMut::new(&mut b)], none) => COUNT "out";
        one.unscale_accumulate(&list, &mut [], none) => COUNT "out";
        one.unscale_into(&list[..1], &mut [TensorMut::new(&mut b)], none) => COUNT "out[0].count";
        one.unscale_accumulate(&list[..1], &mut [TensorMut::new(&mut sums)], none) => DTYPE "out[0].dtype";
    }
    assert_eq!((b, sums), ([1.0; 2], [[1.0; 2]; 3]));
    let mut reports = vec![Report::default(); 7];
    let options = Options::new(Want::from_raw(1 << 20)).per_tensor(&mut reports);
    refused! { one.measure(&list, options) => VALUE "options.want"; }
    assert!(reports.is_empty());
}

#[test]
fn a_scaler_that_refuses_stays_as_it_was() {
    let mut scaler = Scaler::preset("guard").unwrap();
    let before = scaler.clone();
    // The scaler's methods measure what its policy judges by, a factor's methods do not.
    assert!(scaler.measure(&[], None).unwrap().norm().is_some());
    let late = scaler.factor().measure(&[], None).unwrap();
    let of = |change: fn(&mut Counts)| {
        let mut counts = Counts::default();
        change(&mut counts);
        counts
    };
    refused! {
        scaler.update(&Report::of(false)) => REPORT "report.sum_squares";
        scaler.update(&late) => REPORT "report.sum_squares";
        scaler.update(&Report::default()) => REPORT "report.kind";
        scaler.set_rank(&Report::default(), 0) => REPORT "report.kind";
        scaler.set_scale(-1.0) => STATE "scale";
        scaler.set_scale(f64::NAN) => STATE "scale";
        scaler.set_counts(1.0, of(|it| it.good_steps = u64::MAX)) => STATE "counts.good_steps";
        scaler.set_counts(1.0, of(|it| it.steps_since_change = 1 << 63)) => STATE "counts.steps_since_change";
        scaler.set_counts(1.0, of(|it| it.overflows_since_reset = u64::MAX)) => STATE "counts.overflows_since_reset";
        scaler.set_counts(1.0, of(|it| it.failed_backoffs = u64::MAX)) => STATE "counts.failed_backoffs";
        scaler.set_counts(1.0, of(|it| it.bad_losses_in_a_row = u64::MAX)) => STATE "counts.bad_losses_in_a_row";
    }
    assert_eq!(scaler, before);
}

#[test]
fn an_error_reads_as_a_sentence() {
    let torch = Policy::preset("torch").unwrap();
    let error = torch.growth_factor(0.5).build().unwrap_err();
    let text = error.to_string();
    let sentence = format!("policy.growth_factor {}", error.message());
    assert_eq!(text, sentence);
    let parts = (error.name(), error.field(), error.index());
    assert_eq!(parts, ("policy", "growth_factor", None));
    assert_eq!((error.value(), error.limits().0), (Some(0.5), Some(1.0)));
    assert_eq!(format!("{error:?}"), format!("POLICY: {text}"));
    let error: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert_eq!(error.to_string(), text);
}

#[test]
fn wording_of_an_error() {
    let torch = Policy::preset("torch").unwrap();
    let error = torch.growth_factor(0.5).build().unwrap_err();
    assert!(
        error.message().starts_with("is 0.5: it must be "),
        "{error}"
    );
}

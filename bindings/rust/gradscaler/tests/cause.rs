// SPDX-License-Identifier: MIT
//! Why a step is skipped: a loss that was bad before it was scaled, the tensor nearest to the cause, gradients that
//! are missing.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    metric_names, BadLoss, Bf16, Cause, Cb16, Dtype, Element, Event, Evidence, Factor, Loss,
    MergeKind, NoteKind, Options, Outcome, Policy, Report, Result, Scaler, Tensor, TensorMut,
    Trait, Value, Want, F16, F8E4M3FN, F8E5M2,
};

fn recommended() -> Scaler {
    Scaler::preset("recommended").unwrap()
}

/// One step by a gradient and a loss; also the report.
fn step(scaler: &mut Scaler, grad: f32, loss: f32) -> Result<(Report, Event)> {
    let mut grads = [grad * scaler.loss_scale() as f32];
    let options = Options::new(Want::NORM);
    let loss = [loss];
    let report = scaler.unscale(
        &mut [TensorMut::new(&mut grads)],
        options.loss(Tensor::new(&loss)),
    )?;
    let events = scaler.update(&report)?;
    Ok((report, events))
}

#[test]
fn bad_losses_hold_the_scale_until_they_stop_and_the_reason_says_so() -> Result<()> {
    let mut scaler = recommended();
    for in_a_row in 1..=10 {
        let (report, events) = step(&mut scaler, 1.0, f32::NAN)?;
        let held = Event::SKIPPED | Event::BAD_LOSS;
        let stopped = events == held | Event::STOPPED;
        assert!(stopped == (in_a_row == 10) && events.contains(held));
        assert_eq!((report.loss(), report.found_inf()), (Loss::NOT_FINITE, 1.0));
        let metrics: Vec<_> = scaler.metrics(Some(&report))?.collect();
        let bad = ("bad_loss".into(), Value::Boolean(true));
        let total = ("total_bad_losses".into(), Value::Integer(in_a_row));
        assert!(metrics.contains(&bad) && metrics.contains(&total));
    }
    let state = scaler.state();
    let reason = state.reason(None)?.unwrap();
    let cause = (reason.outcome, reason.cause, reason.in_a_row);
    assert_eq!(cause, (Outcome::STOPPED, Cause::BAD_LOSS, 10));
    assert_eq!(state.counts().bad_losses_in_a_row, 10);
    assert_eq!((scaler.loss_scale(), state.total_overflows()), (65536.0, 0));
    Ok(())
}

#[test]
fn the_policy_says_what_a_bad_loss_means() -> Result<()> {
    let holds = |name: &str| {
        let policy = Policy::preset(name)?.build()?;
        let traits = policy.traits().contains(Trait::HOLDS);
        assert_eq!(traits, policy.bad_loss_rule() == BadLoss::HOLD);
        Ok(traits)
    };
    assert!(holds("recommended")? && holds("guard")? && !holds("torch")? && !holds("none")?);
    // An ordinary overflow; and gradients that are finite are used.
    let mut torch = Scaler::preset("torch")?;
    let (report, events) = step(&mut torch, f32::NAN, f32::NAN)?;
    assert_eq!(events, Event::SKIPPED | Event::BACKED_OFF);
    let reason = torch.state().reason(&report)?.unwrap();
    assert_eq!((reason.cause, reason.nan_count), (Cause::BAD_LOSS, 1));
    let (report, events) = step(&mut torch, 1.0, f32::NAN)?;
    assert_eq!((report.found_inf(), events), (0.0, Event::NONE));
    let state = torch.state();
    assert_eq!((state.total_overflows(), state.total_bad_losses()), (1, 2));
    let none = Policy::preset("none")?.max_failed_backoffs(3);
    let mut held = Scaler::new(none.set("bad_loss_rule", "HOLD")?.build()?)?;
    assert!(step(&mut held, 1.0, f32::NAN)?.1.contains(Event::BAD_LOSS));
    Ok(())
}

#[test]
fn a_loss_has_any_real_dtype_and_any_number_of_elements() -> Result<()> {
    fn judged<T: Element>(loss: &[T]) -> Loss {
        let options = Options::default().loss(Tensor::new(loss));
        Factor::ONE.measure(&[], options).unwrap().loss()
    }
    fn check<T: Element>(finite: T, bad: T) {
        let losses = [[finite, finite], [finite, bad]].map(|loss| judged(&loss));
        assert_eq!(losses, [Loss::FINITE, Loss::NOT_FINITE]);
    }
    check(1f32, f32::NEG_INFINITY);
    check(f64::MAX, f64::NAN);
    check(F16(0x7bff), F16(0x7c00));
    check(Bf16(0xff7f), Bf16(0xff80));
    check(F8E4M3FN(0x7e), F8E4M3FN(0x7f));
    check(F8E5M2(0x7b), F8E5M2(0x7c));
    check(Cb16(0x7dff), Cb16(0x7fff));
    assert_eq!(judged::<f32>(&[]), Loss::UNKNOWN);
    assert_eq!(Factor::ONE.measure(&[], None)?.loss(), Loss::UNKNOWN);
    Ok(())
}

const NAMES: [&str; 3] = ["embedding", "attention", "head"];

/// A scaler after an overflow in the first two of three tensors, the report, and the reports of the tensors.
fn after_an_overflow() -> Result<(Scaler, Report, Vec<Report>)> {
    let mut scaler = recommended();
    let (mut a, mut b, mut c) = ([f32::NAN; 2], [f32::INFINITY, 1.0], [1f32]);
    let mut reports = Vec::new();
    let loss = [0.5f32];
    let list = &mut [&mut a[..], &mut b, &mut c].map(TensorMut::new);
    let options = Options::new(Want::NONE).per_tensor(&mut reports);
    let report = scaler.unscale(list, options.loss(Tensor::new(&loss)))?;
    scaler.update(&report)?;
    Ok((scaler, report, reports))
}

#[test]
fn a_reason_names_the_tensor_that_is_nearest_to_the_cause() -> Result<()> {
    let (mut scaler, report, reports) = after_an_overflow()?;
    assert_eq!(
        (report.first_overflow(), report.last_tensor()),
        (Some((0, 0)), Some(1))
    );
    assert!(reports.iter().all(|report| report.loss() == Loss::UNKNOWN));
    let reason = |report, reports: &[Report], names: &[&str]| {
        let evidence = Evidence::from(report).per_tensor(reports).names(names);
        scaler.state().reason(evidence).map(Option::unwrap)
    };
    let found = reason(Some(&report), &reports, &NAMES)?;
    let counts = (found.nan_count, found.inf_count, found.bad_tensors);
    assert_eq!((counts, found.multiplier), ((2, 1, 2), 0.0));
    assert_eq!(
        (found.outcome, found.cause),
        (Outcome::SKIPPED, Cause::OVERFLOW)
    );
    assert_eq!(
        (found.tensor, found.rank, found.value),
        (Some(1), None, None)
    );
    // Each part can be missing.
    for (report, reports, names, tensor, nans) in [
        (Some(&report), &[][..], &NAMES[..], Some(1), 2),
        (Some(&report), &[], &["embedding", "", "head"], Some(1), 2),
        (Some(&report), &[], &[], Some(1), 2),
        (None, &reports, &NAMES, Some(1), 2),
        (None, &[], &NAMES, None, 0),
    ] {
        let found = reason(report, reports, names)?;
        assert_eq!((found.tensor, found.nan_count), (tensor, nans), "{found}");
    }
    let merged = of_the_second_rank(&scaler, report)?;
    assert_eq!((merged.rank(), merged.last_rank()), (Some(1), Some(1)));
    assert_eq!(
        (merged.last_tensor(), merged.loss()),
        (Some(1), Loss::FINITE)
    );
    let found = reason(Some(&merged), &[], &NAMES)?;
    assert_eq!((found.tensor, found.rank), (Some(1), Some(1)));
    // A good step has no reason.
    scaler.update(&Report::of(false))?;
    assert_eq!(scaler.state().reason(None)?, None);
    Ok(())
}

#[test]
fn evidence_decides_the_cause() -> Result<()> {
    let (scaler, report, reports) = after_an_overflow()?;
    let known = Evidence::of(&report).per_tensor(&reports).names(&NAMES);
    let ordered = known.clone().order(&[2, 0, 1]);
    let float16 = ordered.clone().scaled_by(65536.0, Dtype::F16);
    let later = float16.clone().losses(2, Some(1));
    let parameter = later.clone().bad_parameters(1, Some(2));
    for (evidence, cause, tensor, before) in [
        (known.losses(1, None).ranks(2), Cause::OVERFLOW, 1, None),
        (ordered, Cause::OVERFLOW, 0, Some(2)),
        (float16, Cause::LOSS_DTYPE, 0, Some(2)),
        (later, Cause::BAD_LOSS, 0, Some(2)),
        (parameter, Cause::PARAMETER, 2, None),
    ] {
        let found = scaler.state().reason(evidence)?.unwrap();
        assert_eq!((found.cause, found.tensor), (cause, Some(tensor)));
        assert_eq!(found.tensor_before, before);
    }
    Ok(())
}

/// The reports of three ranks merged; the second has this report.
fn of_the_second_rank(scaler: &Scaler, report: Report) -> Result<Report> {
    let ranks = [Report::of(false), report, Report::of(false)];
    let ranked = ranks.iter().zip(0..);
    let ranked = ranked.map(|(report, rank)| scaler.set_rank(report, rank));
    Report::merge(
        &ranked.collect::<Result<Vec<_>>>()?,
        MergeKind::SHARDS,
        None,
    )
}

#[test]
fn wording_of_reasons() -> Result<()> {
    let (mut scaler, report, reports) = after_an_overflow()?;
    let merged = of_the_second_rank(&scaler, report)?;
    let unnamed = ["embedding", "", "head"];
    let nearest = "in 2 of 3 tensors; the last, nearest to the cause, is \"attention\"";
    for (report, reports, names, words) in [
        (Some(&report), &reports[..], &NAMES[..], nearest),
        (Some(&report), &[], &NAMES, "\"attention\""),
        (Some(&report), &[], &unnamed, "tensor 1"),
        (Some(&report), &[], &[], "tensor 1"),
        (None, &reports, &NAMES, "\"attention\""),
        (Some(&merged), &[], &NAMES, "\"attention\" on rank 1"),
    ] {
        let evidence = Evidence::from(report).per_tensor(reports).names(names);
        let reason = scaler.state().reason(evidence)?.unwrap();
        let text = reason.to_string();
        assert!(text.starts_with("skipped: 2 NaN and 1 Inf"), "{text}");
        assert!(
            text.contains(words) && !text.contains("embedding"),
            "{text}"
        );
    }
    let ordered = Evidence::from(&report).per_tensor(&reports).names(&NAMES);
    let reason = scaler.state().reason(ordered.order(&[2, 1, 0]))?.unwrap();
    let words = "made \"attention\" bad first; \"head\", made just before, is finite";
    assert!(reason.message.ends_with(words), "{reason}");
    let reason = |scaler: &Scaler| scaler.state().reason(Evidence::default().names(&NAMES));
    assert_eq!(reason(&scaler)?.unwrap().message, "skipped: overflow");
    for _ in 0..10 {
        let (_, _) = step(&mut scaler, 1.0, f32::NAN)?;
    }
    let text = reason(&scaler)?.unwrap().message;
    let words = "stopped: the loss was not finite before it was scaled, 10 in a row: look at";
    assert!(text.starts_with(words), "{text}");
    Ok(())
}

#[test]
fn the_last_bad_rank_is_told_from_the_first() -> Result<()> {
    let of = |list: [f32; 2], rank| {
        let tensors = [Tensor::new(&list[..1]), Tensor::new(&list[1..])];
        let report = Factor::ONE.measure(&tensors, None)?;
        recommended().set_rank(&report, rank)
    };
    let inf = f32::INFINITY;
    let ranks = [
        of([1.0, 1.0], 0)?,
        of([inf, inf], 1)?,
        of([inf, 1.0], 2)?,
        of([1.0, 1.0], 3)?,
    ];
    let merged = Report::merge(&ranks, MergeKind::ADDENDS, None)?;
    assert_eq!(
        (merged.rank(), merged.first_overflow()),
        (Some(1), Some((0, 0)))
    );
    assert_eq!(
        (merged.last_rank(), merged.last_tensor()),
        (Some(2), Some(0))
    );
    let shown = "rank: 1, last_rank: 2, elements: 8, first_overflow: (0, 0), last_tensor: 0,";
    assert!(format!("{merged:?}").contains(shown), "{merged:?}");
    Ok(())
}

#[test]
fn a_state_counts_what_a_diagnosis_asks_for() -> Result<()> {
    let policy = Policy::preset("recommended")?.growth_interval(2);
    let mut scaler = Scaler::new(policy.build()?)?;
    for grad in [f32::NAN, f32::NAN, 1.0, 1.0, f32::INFINITY, f32::NAN] {
        let (_, _) = step(&mut scaler, grad, 0.5)?;
    }
    let state = scaler.state();
    assert_eq!((state.total_updates(), state.nans_in_a_row()), (6, 1));
    assert_eq!(
        (state.updates_at_growth(), state.overflows_at_growth()),
        (4, 2)
    );
    let shown = "total_updates: 6, total_overflows: 4, total_bad_losses: 0,";
    assert!(format!("{state:?}").contains(shown), "{state:?}");
    scaler.update(&scaler.measure(&[], None)?)?;
    let empty = (scaler.events(), scaler.state().empty_in_a_row());
    assert_eq!(empty, (Event::EMPTY, 1));
    Ok(())
}

#[test]
fn a_finding_has_its_field_and_its_value() -> Result<()> {
    let mut scaler = recommended();
    scaler.set_scale(2f64.powi(30))?;
    let found = &scaler.diagnose(None, &[], 0, 0)?[0];
    let found = (found.kind, found.field.as_str(), found.value);
    assert_eq!(
        found,
        (NoteKind::OUTSIDE_LIMITS, "max_scale", 2f64.powi(30))
    );
    Ok(())
}

#[test]
fn every_metric_has_a_name() -> Result<()> {
    let names: Vec<String> = metric_names().collect();
    assert_eq!((names.len(), names[16].as_str()), (17, "total_bad_losses"));
    let mut at = 0;
    for (name, _) in recommended().metrics(None)? {
        at += names[at..].iter().position(|it| *it == name).unwrap();
    }
    Ok(())
}

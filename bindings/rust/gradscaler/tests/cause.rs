// SPDX-License-Identifier: MIT
//! Why a step is skipped: a loss that was bad before it was scaled, the tensor nearest to the cause, gradients that
//! are missing.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    metric_names, BadLoss, Bf16, Cause, Cb16, Element, Event, Factor, Loss, MergeKind, NoteKind,
    Options, Outcome, Policy, Report, Result, Scaler, Status, Tensor, TensorMut, Trait, Value,
    Want, F16, F8E4M3FN, F8E5M2,
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
fn a_bad_loss_holds_the_scale_and_skips_the_step() -> Result<()> {
    let mut scaler = recommended();
    let (_, _) = step(&mut scaler, 1.0, 0.5)?;
    let counts = scaler.state().counts();
    for (in_a_row, grad) in [(1, f32::NAN), (2, 1.0)] {
        let (report, events) = step(&mut scaler, grad, f32::INFINITY)?;
        assert_eq!(report.loss(), Loss::NOT_FINITE);
        assert_eq!((report.overflow(), report.found_inf()), (grad != 1.0, 1.0));
        assert_eq!(events, Event::SKIPPED | Event::BAD_LOSS);
        let state = scaler.state();
        assert_eq!((state.skip(), state.multiplier()), (true, 0.0));
        assert_eq!((scaler.loss_scale(), state.total_overflows()), (65536.0, 0));
        assert_eq!(
            (state.total_bad_losses(), state.total_updates()),
            (in_a_row, 1 + in_a_row)
        );
        let mut held = state.counts();
        assert_eq!(held.bad_losses_in_a_row, in_a_row);
        held.bad_losses_in_a_row = 0;
        assert_eq!(held, counts);
        let metrics: Vec<_> = scaler.metrics(Some(&report))?.collect();
        for (name, value) in [
            ("overflow", Value::Boolean(false)),
            ("bad_loss", Value::Boolean(true)),
            ("total_bad_losses", Value::Integer(in_a_row as i64)),
        ] {
            assert!(metrics.contains(&(name.into(), value)), "{metrics:?}");
        }
    }
    // An overflow of an unknown loss keeps the count, a step that is taken ends it.
    scaler.update(&Report::of(true))?;
    assert_eq!(scaler.state().counts().bad_losses_in_a_row, 2);
    assert_eq!(step(&mut scaler, 1.0, 0.5)?.1, Event::NONE);
    assert_eq!(scaler.state().counts().bad_losses_in_a_row, 0);
    Ok(())
}

#[test]
fn bad_losses_in_a_row_stop_and_the_reason_says_so() -> Result<()> {
    let mut scaler = recommended();
    let stopped = (1..=10).map(|_| {
        let (_, events) = step(&mut scaler, 1.0, f32::NAN)?;
        Ok(events.contains(Event::STOPPED))
    });
    let stopped: Vec<bool> = stopped.collect::<Result<_>>()?;
    assert_eq!(stopped, [[false; 9].as_slice(), &[true]].concat());
    let reason = scaler.state().reason(None, &[], &[])?.unwrap();
    let cause = (reason.outcome, reason.cause, reason.in_a_row);
    assert_eq!(cause, (Outcome::STOPPED, Cause::BAD_LOSS, 10));
    assert_eq!(
        (scaler.loss_scale(), scaler.state().total_overflows()),
        (65536.0, 0)
    );
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
    let reason = torch.state().reason(Some(&report), &[], &[])?.unwrap();
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

#[test]
fn a_merged_report_has_the_worst_loss_that_is_known() -> Result<()> {
    let of = |loss: Option<f32>| {
        let loss = loss.map(|loss| [loss]);
        let options = Options::default();
        let options = match &loss {
            Some(loss) => options.loss(Tensor::new(loss)),
            None => options,
        };
        let (grad, mut sum) = ([1f32], [0f32]);
        let out = &mut [TensorMut::new(&mut sum)];
        Factor::ONE.unscale_accumulate(&[Tensor::new(&grad)], out, options)
    };
    let scaler = recommended();
    for kind in [MergeKind::SHARDS, MergeKind::ADDENDS] {
        let merged = |reports: &[Report]| Report::merge(reports, kind, Some(scaler.policy()));
        let (unknown, finite, bad) = (of(None)?, of(Some(2.0))?, of(Some(f32::NAN))?);
        assert_eq!(merged(&[unknown, unknown])?.loss(), Loss::UNKNOWN);
        assert_eq!(merged(&[finite, unknown])?.loss(), Loss::FINITE);
        let report = merged(&[finite, bad, unknown])?;
        assert_eq!(report.loss(), Loss::NOT_FINITE);
        assert_eq!((report.overflow(), report.found_inf()), (false, 1.0));
        assert!(scaler.clone().update(&report)?.contains(Event::BAD_LOSS));
    }
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
        let reason = scaler.state().reason(report, reports, names);
        reason.map(Option::unwrap)
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
    assert_eq!(scaler.state().reason(None, &[], &[])?, None);
    Ok(())
}

/// The reports of three ranks merged; the second has this report.
fn of_the_second_rank(scaler: &Scaler, report: Report) -> Result<Report> {
    let ranks = [Report::of(false), report, Report::of(false)];
    let stamped = ranks.iter().zip(0..);
    let stamped = stamped.map(|(report, rank)| scaler.set_rank(report, rank));
    Report::merge(
        &stamped.collect::<Result<Vec<_>>>()?,
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
        let reason = scaler.state().reason(report, reports, names)?.unwrap();
        let text = reason.to_string();
        assert!(text.starts_with("skipped: 2 NaN and 1 Inf"), "{text}");
        assert!(
            text.contains(words) && !text.contains("embedding"),
            "{text}"
        );
    }
    let reason = |scaler: &Scaler| scaler.state().reason(None, &[], &NAMES);
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
fn a_report_without_elements_is_an_event_unless_it_is_of_a_flag() -> Result<()> {
    let mut scaler = recommended();
    let empty = scaler.measure(&[Tensor::new::<f32>(&[])], None)?;
    let flag = Report::of(false);
    let merge = |reports: &[Report]| Report::merge(reports, MergeKind::SHARDS, None);
    for (report, is_empty, in_a_row) in [
        (empty, true, 1),
        (merge(&[empty, empty])?, true, 2),
        (merge(&[empty, flag])?, false, 0),
        (flag, false, 0),
        (flag.with_norm(3.0).with_amax(3.0), false, 0),
        (Report::number(2.0), false, 0),
        (empty, true, 1),
    ] {
        let events = scaler.update(&report)?;
        let seen = (
            events.contains(Event::EMPTY),
            scaler.state().empty_in_a_row(),
        );
        assert_eq!(seen, (is_empty, in_a_row), "{report:?}");
        assert!(!scaler.state().skip());
    }
    assert_eq!(scaler.state().counts().good_steps, 7);
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
    Ok(())
}

#[test]
fn the_first_scale_has_limits_and_a_scale_from_elsewhere_a_note() -> Result<()> {
    let high = 2f64.powi(30);
    let policy = Policy::preset("recommended")?;
    let error = policy.init_scale(high).build().unwrap_err();
    assert_eq!(
        (error.status(), error.place().as_str()),
        (Status::POLICY, "policy.init_scale")
    );
    let enforced = policy.init_scale(high).set("ceiling_rule", "ENFORCE")?;
    assert_eq!(Scaler::new(enforced.build()?)?.loss_scale(), 2f64.powi(24));

    let mut scaler = recommended();
    scaler.set_scale(high)?;
    let diagnosis = scaler.diagnose(None, &[], 0, 0)?;
    let found = diagnosis
        .iter()
        .map(|note| (note.kind, note.field.as_str(), note.value));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [(NoteKind::OUTSIDE_LIMITS, "max_scale", high)]
    );
    let notes = scaler.import("torch", [("scale", 2f64.powi(-20))])?;
    assert_eq!(
        (notes[0].kind, notes[0].field.as_str()),
        (NoteKind::OUTSIDE_LIMITS, "min_scale")
    );
    assert_eq!(scaler.loss_scale(), 2f64.powi(-20));

    let (mut entries, _) = recommended().export("gradscaler")?;
    entries.retain(|(key, _)| key != "init_scale");
    entries.push(("init_scale".into(), high.into()));
    let notes = scaler.import("gradscaler", entries)?;
    let note = (notes[0].kind, notes[0].field.as_str(), notes[0].value);
    assert_eq!(note, (NoteKind::CHANGED, "init_scale", 2f64.powi(24)));
    assert_eq!(scaler.policy().init_scale(), 2f64.powi(24));
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

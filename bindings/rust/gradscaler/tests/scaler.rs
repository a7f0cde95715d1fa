// SPDX-License-Identifier: MIT
//! The scaler as a value: policies, events, checkpoints.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    info, presets, Arithmetic, Counts, Device, DeviceBuffer, Error, Event, Factor, Host, LimitRule,
    Memory, Options, OverflowReset, OverflowTest, Policy, PolicyBuilder, Report, Scaler, Tensor,
    TensorMut, Threads, Want,
};

fn torch(change: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> Scaler {
    Scaler::new(change(Policy::preset("torch").unwrap()).build().unwrap()).unwrap()
}

#[test]
fn every_preset_makes_a_scaler() {
    let names: Vec<_> = presets().map(|(name, _)| name).collect();
    assert!(names.len() >= 28, "{names:?}");
    for (name, summary) in presets() {
        let scaler = Scaler::preset(name).unwrap();
        assert!(scaler.loss_scale() > 0.0 && !summary.is_empty(), "{name}");
        assert_eq!(Scaler::load(&scaler.save().unwrap()).unwrap(), scaler);
    }
}

#[test]
fn the_crate_has_the_version_of_the_library() {
    let (major, minor, patch) = info().unwrap().version;
    assert_eq!(
        format!("{major}.{minor}.{patch}"),
        env!("CARGO_PKG_VERSION")
    );
    let info = info().unwrap();
    assert!(info.cpu_available.contains(&info.cpu), "{info:?}");
}

#[test]
fn fields_have_one_name_and_one_value_in_setters_getters_settings_and_debug() {
    let torch = Policy::preset("torch").unwrap();
    let policy = torch.growth_interval(7).floor_rule(LimitRule::STOP);
    let policy = policy.overflow_reset(OverflowReset::ON_GROWTH | OverflowReset::ON_BACKOFF);
    let policy = policy.arithmetic(Arithmetic::F64).build().unwrap();
    let seen = (policy.growth_interval(), policy.floor_rule());
    assert_eq!(seen, (7, LimitRule::STOP));
    assert_eq!(policy.to_builder().build().unwrap(), policy);
    let mut by_name = PolicyBuilder::default();
    for (name, value) in policy.fields() {
        by_name = by_name.set(name, value).unwrap();
    }
    assert_eq!(by_name.build().unwrap(), policy);
    let by_number = policy.to_builder().set("floor_rule", 3.0).unwrap();
    assert_eq!(by_number.build().unwrap(), policy);
    let text = format!("{policy:?}");
    let shown = |field: &&str| text.contains(&format!("{field}: "));
    assert!(PolicyBuilder::FIELDS.iter().all(shown), "{text}");
    assert!(text.contains("floor_rule: STOP"), "{text}");
}

#[test]
fn flags_are_sets_of_named_bits() {
    let all = Want::NORM | Want::AMAX | Want::UNDERFLOW;
    assert_eq!((Want::ALL, Want::default()), (all, Want::NONE));
    assert!(Want::NONE.is_empty() && !Want::NORM.is_empty());
    assert!(Want::ALL.contains(Want::AMAX) && !Want::NORM.contains(Want::AMAX));
    let (two, unnamed) = (Event::GREW | Event::AT_CEILING, Event::from_raw(1 << 30));
    let text = format!("{two:?} {:?} {unnamed:?}", Event::NONE);
    assert_eq!(text, "GREW | AT_CEILING NONE 0x40000000");
}

#[test]
fn an_update_tells_what_it_did() {
    let mut scaler = torch(|policy| policy.growth_interval(2));
    assert_eq!(
        scaler.update(&Report::of(true)).unwrap(),
        Event::BACKED_OFF | Event::SKIPPED
    );
    assert_eq!(scaler.update(&Report::of(false)).unwrap(), Event::NONE);
    assert_eq!(scaler.update(&Report::of(false)).unwrap(), Event::GREW);
    let state = scaler.state();
    assert_eq!(
        (
            state.total_overflows(),
            state.total_growths(),
            state.total_backoffs(),
            state.counts().good_steps
        ),
        (1, 1, 1, 0)
    );
    assert_eq!(scaler.loss_scale(), 65536.0);
}

#[test]
fn the_verdict_before_the_step_is_that_of_the_update() {
    let mut scaler = torch(|policy| policy.overflow_test(OverflowTest::NORM).init_scale(1.0));
    let grad = [3e38f64; 2]; // finite, but the sum of squares is above the largest f32
    let list = [Tensor::new(&grad)];
    let report = scaler.measure(&list, Want::NONE).unwrap();
    assert!(report.overflow() && report.first_overflow().is_none());
    assert!(scaler.update(&report).unwrap().contains(Event::SKIPPED));
    // One that is named comes before the scaler's own.
    let none = torch(|policy| policy.init_scale(1.0));
    assert!(!none.measure(&list, None).unwrap().overflow());
    let named = Options::default().policy(scaler.policy());
    assert!(none.measure(&list, named).unwrap().overflow());
    // Without the policy the same gradients are fine.
    assert!(!Factor::ONE.measure(&list, Want::NORM).unwrap().overflow());
}

#[test]
fn a_report_that_is_late_or_used_before_is_stale() {
    let mut scaler = torch(|policy| policy);
    let report = scaler.measure(&[], Want::NONE).unwrap();
    assert_eq!(report.generation(), scaler.factor().generation());
    assert_eq!(scaler.set_rank(&report, 3).unwrap().rank(), Some(3));
    assert!(!scaler.update(&report).unwrap().contains(Event::STALE));
    assert!(scaler.update(&report).unwrap().contains(Event::STALE));
    // A report of elsewhere is never stale, unless it says of which factor it is.
    let report = Report::of(false);
    assert!(!scaler.update(&report).unwrap().contains(Event::STALE));
    let report = report.with_factor(&scaler.factor());
    assert!(!scaler.update(&report).unwrap().contains(Event::STALE));
    assert!(scaler.update(&report).unwrap().contains(Event::STALE));
}

#[test]
fn a_scale_and_counts_of_another_framework_go_on_from_there() {
    let mut straight = torch(|policy| policy.growth_interval(5));
    for step in 0..8 {
        straight.update(&Report::of(step == 3)).unwrap();
    }
    let mut taken = torch(|policy| policy.growth_interval(5));
    let counts = straight.state().counts();
    assert_eq!(counts.good_steps, 4);
    taken.set_counts(straight.loss_scale(), counts).unwrap();
    assert_eq!(taken.update(&Report::of(false)).unwrap(), Event::GREW);
    straight.update(&Report::of(false)).unwrap();
    assert_eq!(taken.loss_scale(), straight.loss_scale());
    assert_eq!(taken.state().counts(), straight.state().counts());
    // Some frameworks sink to 0; what multiplies by that is refused.
    taken.set_counts(0.0, Counts::default()).unwrap();
    assert!(taken.loss_scale() == 0.0 && taken.measure(&[], None).is_err());
}

#[test]
fn a_state_tells_which_scale_is_next_whether_to_skip_and_why() {
    let mut scaler = torch(|policy| policy.apply_delay(1).guard_norm(2.5));
    for (number, next, skip, reason) in [
        (f64::NAN, 32768.0, true, Some("skipped: overflow")),
        (1.0, 32768.0, false, None),
        (
            3.0,
            32768.0,
            true,
            Some("skipped: the norm, 3, is above 2.5, 1 in a row"),
        ),
    ] {
        scaler.update(&Report::number(number)).unwrap();
        let state = scaler.state();
        assert_eq!(state.next_factor().loss_scale(), next);
        assert_eq!(
            (state.skip(), state.skip_f32()),
            (skip, f32::from(u8::from(skip)))
        );
        assert_eq!(state.multiplier(), f64::from(u8::from(!skip)));
        assert_eq!(state.reason().as_deref(), reason);
    }
    let generation = scaler.factor().generation();
    scaler.set_scale(8.0).unwrap();
    let state = scaler.state();
    assert_eq!(
        (scaler.loss_scale(), state.next_factor().loss_scale()),
        (8.0, 8.0)
    );
    assert_eq!((state.total_overflows(), state.counts().good_steps), (1, 1));
    assert!(scaler.factor().generation() > generation);
}

#[test]
fn values_can_move_between_threads() {
    fn is_send_and_sync<T: Send + Sync>() {}
    fn in_memory<M: Memory>()
    where
        Scaler<M>: Send + Sync,
        for<'a> (Tensor<'a, M>, TensorMut<'a, M>, Options<'a, M>): Send + Sync,
    {
    }
    in_memory::<Host>();
    in_memory::<Device>();
    is_send_and_sync::<(Report, Factor, Error, Threads, Device, DeviceBuffer<f32>)>();
}

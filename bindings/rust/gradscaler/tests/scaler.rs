// SPDX-License-Identifier: MIT
//! The scaler as a value: policies, events, counts.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    info, presets, Arithmetic, Cause, Counts, Device, DeviceBuffer, Error, Event, Factor, Host,
    LimitRule, Memory, Options, OverflowReset, OverflowTest, Policy, PolicyBuilder, Report, Scaler,
    Tensor, TensorMut, Threads, Want,
};

fn torch(change: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> Scaler {
    Scaler::new(change(Policy::preset("torch").unwrap()).build().unwrap()).unwrap()
}

#[test]
fn every_preset_makes_a_scaler() {
    assert!(presets().count() >= 28);
    for (name, summary) in presets() {
        let scale = Scaler::preset(name).unwrap().loss_scale();
        assert!(scale > 0.0 && !summary.is_empty(), "{name}");
    }
}

#[test]
fn the_crate_has_the_version_of_the_library() {
    let info = info().unwrap();
    let (major, minor, patch) = info.version;
    let version = format!("{major}.{minor}.{patch}");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
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
    let set = |builder: PolicyBuilder, (name, value)| builder.set(name, value).unwrap();
    let by_name = policy.fields().fold(PolicyBuilder::default(), set);
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
    let skipped = Event::BACKED_OFF | Event::SKIPPED;
    let events = [true, true, false, false].map(|overflow| {
        let events = scaler.update(&Report::of(overflow)).unwrap();
        assert_eq!((scaler.events(), scaler.state().events()), (events, events));
        events
    });
    assert_eq!(events, [skipped, skipped, Event::NONE, Event::GREW]);
    let state = scaler.state();
    let moves = (state.total_growths(), state.total_backoffs());
    assert_eq!((state.total_overflows(), moves), (2, (1, 2)));
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
fn late_gradients_keep_their_factor_and_a_report_that_is_late_or_used_before_is_stale() {
    let mut scaler = torch(|policy| policy);
    let late = scaler.factor();
    scaler.update(&Report::of(true)).unwrap();
    let generations = (late.generation(), scaler.factor().generation());
    assert_eq!((generations, Factor::ONE.generation()), ((1, 2), 0));
    let mut grads = [65536.0f64];
    let report = late.unscale(&mut [TensorMut::new(&mut grads)], None);
    assert_eq!((grads, report.unwrap().generation()), ([1.0], 1));
    assert_eq!(late.multiply(4.0).unwrap().inverse(), 0.25 / 65536.0);
    let report = scaler.measure(&[], Want::NONE).unwrap();
    assert_eq!(report.generation(), 2);
    assert_eq!(scaler.set_rank(&report, 3).unwrap().rank(), Some(3));
    let twice = |scaler: &mut Scaler, report| {
        [(); 2].map(|()| scaler.update(report).unwrap().contains(Event::STALE))
    };
    assert_eq!(twice(&mut scaler, &report), [false, true]);
    // A report of elsewhere is never stale, unless it names its factor.
    let report = Report::of(false);
    assert_eq!(twice(&mut scaler, &report), [false, false]);
    let report = report.with_factor(&scaler.factor());
    assert_eq!(twice(&mut scaler, &report), [false, true]);
}

#[test]
fn each_count_is_set_in_its_place() {
    let mut scaler = Scaler::preset("megatron").unwrap();
    let counts = Counts {
        good_steps: 1,
        steps_since_change: 2,
        overflows_since_reset: 3,
        failed_backoffs: 4,
        bad_losses_in_a_row: 5,
    };
    scaler.set_counts(4.0, counts).unwrap();
    let set = (scaler.loss_scale(), scaler.state().counts());
    assert_eq!(set, (4.0, counts));
    // Some frameworks sink to 0; what multiplies by that is refused.
    scaler.set_counts(0.0, counts).unwrap();
    assert!(scaler.loss_scale() == 0.0 && scaler.measure(&[], None).is_err());
}

#[test]
fn a_state_tells_which_scale_is_next_whether_to_skip_and_why() {
    let mut scaler = torch(|policy| policy.apply_delay(1).guard_norm(2.5));
    for (number, skip, reason) in [
        (f64::NAN, 1, Some((Cause::OVERFLOW, None, None, 0))),
        (1.0, 0, None),
        (3.0, 1, Some((Cause::OUTLIER, Some(3.0), Some(2.5), 1))),
    ] {
        scaler.update(&Report::number(number)).unwrap();
        let state = scaler.state();
        assert_eq!(state.next_factor().loss_scale(), 32768.0);
        assert_eq!((state.skip(), state.skip_f32()), (skip == 1, skip as f32));
        assert_eq!(state.multiplier(), f64::from(1 - skip));
        let found = state.reason(None).unwrap();
        let found = found.map(|it| (it.cause, it.value, it.threshold, it.in_a_row));
        assert_eq!(found, reason);
    }
    let generation = scaler.factor().generation();
    scaler.set_scale(8.0).unwrap();
    let state = scaler.state();
    let scales = (scaler.loss_scale(), state.next_factor().loss_scale());
    assert_eq!(scales, (8.0, 8.0));
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

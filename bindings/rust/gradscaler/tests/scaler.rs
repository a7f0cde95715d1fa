// SPDX-License-Identifier: MIT
//! The scaler as a value: policies, events, checkpoints.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    info, presets, Arithmetic, Counts, Event, Factor, Guard, LimitRule, Options, OverflowReset,
    OverflowTest, Policy, PolicyBuilder, Quirk, Report, Scaler, Tensor, Want,
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
fn setters_and_getters_have_the_same_fields() {
    let policy = torch(|policy| {
        policy
            .growth_interval(7)
            .arithmetic(Arithmetic::F64)
            .floor_rule(LimitRule::STOP)
            .min_scale(2.0)
            .quirks(Quirk::NONE)
    });
    let policy = policy.policy();
    assert_eq!(
        (policy.growth_interval(), policy.floor_rule()),
        (7, LimitRule::STOP)
    );
    assert_eq!(policy.to_builder().build().unwrap(), *policy);
    let by_name = Policy::preset("torch")
        .unwrap()
        .set("growth_interval", 7.0)
        .unwrap();
    let by_name = by_name
        .set("floor_rule", 3.0)
        .unwrap()
        .set("min_scale", 2.0)
        .unwrap();
    assert_eq!(
        by_name.arithmetic(Arithmetic::F64).build().unwrap(),
        *policy
    );
    // And all of them as values, rules by their names.
    let several = policy
        .to_builder()
        .overflow_reset(OverflowReset::ON_GROWTH | OverflowReset::ON_BACKOFF);
    let several = several.build().unwrap();
    let mut again = PolicyBuilder::default();
    for (name, value) in several.fields() {
        again = again.set(name, value).unwrap();
    }
    assert_eq!(again.build().unwrap(), several);
    let text = format!("{policy:?}");
    assert!(
        PolicyBuilder::FIELDS
            .iter()
            .all(|field| text.contains(&format!("{field}: "))),
        "{text}"
    );
    assert!(text.contains("floor_rule: STOP"), "{text}");
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
    assert_eq!(
        format!("{:?}", Event::GREW | Event::AT_CEILING),
        "GREW | AT_CEILING"
    );
    assert_eq!(
        format!("{:?} {:?}", Event::NONE, Event::from_raw(1 << 30)),
        "NONE 0x40000000"
    );
}

#[test]
fn a_delayed_scale_is_in_force_one_update_later() {
    let mut scaler = torch(|policy| policy.apply_delay(1));
    scaler.update(&Report::of(true)).unwrap();
    assert_eq!(scaler.loss_scale(), 65536.0);
    assert_eq!(scaler.state().next_factor().loss_scale(), 32768.0);
}

#[test]
fn the_methods_ask_for_what_the_policy_needs() {
    let mut scaler = torch(|policy| policy.overflow_test(OverflowTest::NORM));
    let report = scaler.measure(&[], Want::NONE).unwrap();
    assert_eq!((report.norm(), report.amax()), (Some(0.0), None));
    scaler.update(&report).unwrap();
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
fn a_scaler_resumes_where_it_was_saved() {
    let mut straight = torch(|policy| policy.growth_interval(3));
    let mut resumed = straight.clone();
    for step in 0..40 {
        let report = Report::of(step % 7 == 5);
        straight.update(&report).unwrap();
        resumed.update(&report).unwrap();
        resumed = Scaler::load(&resumed.save().unwrap()).unwrap();
        assert_eq!(resumed, straight);
    }
}

#[test]
fn another_scale_is_in_force_at_once_and_counts_and_totals_stay() {
    let mut scaler = torch(|policy| policy.apply_delay(1));
    let _ = scaler.update(&Report::of(true)).unwrap();
    let _ = scaler.update(&Report::of(false)).unwrap();
    let generation = scaler.factor().generation();
    scaler.set_scale(8.0).unwrap();
    let state = scaler.state();
    assert_eq!(
        (scaler.loss_scale(), state.next_factor().loss_scale()),
        (8.0, 8.0)
    );
    assert_eq!((state.total_overflows(), state.counts().good_steps), (1, 1));
    assert_eq!((state.events(), state.skip_f32()), (Event::NONE, 0.0));
    assert!(scaler.factor().generation() > generation);
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
fn an_optimizer_that_runs_after_the_update_reads_whether_to_skip() {
    let mut scaler = torch(|policy| policy);
    scaler.update(&Report::of(true)).unwrap();
    assert_eq!(
        (Report::of(true).found_inf(), scaler.state().skip_f32()),
        (1.0, 1.0)
    );
    scaler.update(&Report::of(false)).unwrap();
    assert_eq!(
        (Report::of(false).found_inf(), scaler.state().skip_f32()),
        (0.0, 0.0)
    );
}

#[test]
fn why_a_step_was_skipped_or_clipped_has_a_sentence() {
    let none = || Policy::preset("none").unwrap();
    let skips = none().guard_norm(2.5).guard_max_in_a_row(2);
    let clips = none().guard_norm(1e9).guard_flags(Guard::CLIP);
    for (policy, numbers, sentence) in [
        (skips, vec![], None),
        (skips, vec![2.5], None),
        (
            skips,
            vec![3.0],
            Some("skipped: the norm, 3, is above 2.5, 1 in a row"),
        ),
        (
            skips,
            vec![3.0, 3.0],
            Some("let through: the norm, 3, is above 2.5, 2 in a row"),
        ),
        (skips, vec![3.0, f64::NAN], Some("skipped: overflow")),
        (
            clips,
            vec![3e9],
            Some("clipped: multiplied by 0.333333: the norm, 3e+09, is above 1e+09, 1 in a row"),
        ),
    ] {
        let mut scaler = Scaler::new(policy.build().unwrap()).unwrap();
        for number in numbers {
            scaler.update(&Report::number(number)).unwrap();
        }
        let state = scaler.state();
        assert_eq!(state.reason().as_deref(), sentence);
        assert_eq!(
            state.skip(),
            sentence.map_or(false, |text| text.starts_with("skipped"))
        );

        let mut joined = Scaler::new(skips.build().unwrap()).unwrap();
        joined.update(&Report::number(0.0)).unwrap();
        joined.combine_decisions(state).unwrap();
        assert_eq!(joined.state().skip(), state.skip());
        if state.events().contains(Event::OUTLIER) {
            let (outcome, _) = sentence.unwrap().rsplit_once(": ").unwrap();
            let said = format!("{outcome}: so says a state that it was combined with");
            assert_eq!(joined.state().reason(), Some(said));
        }
    }
}

#[test]
fn values_can_move_between_threads() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Scaler>();
    is_send_and_sync::<Report>();
    is_send_and_sync::<gradscaler::Factor>();
    is_send_and_sync::<gradscaler::Error>();
    is_send_and_sync::<gradscaler::Tensor>();
    is_send_and_sync::<gradscaler::TensorMut>();
    is_send_and_sync::<gradscaler::Threads>();
    is_send_and_sync::<gradscaler::Options>();
    is_send_and_sync::<gradscaler::Device>();
    is_send_and_sync::<gradscaler::DeviceBuffer<f32>>();
    is_send_and_sync::<gradscaler::Tensor<gradscaler::Device>>();
    is_send_and_sync::<gradscaler::TensorMut<gradscaler::Device>>();
    is_send_and_sync::<gradscaler::Options<gradscaler::Device>>();
    is_send_and_sync::<Scaler<gradscaler::Device>>();
}

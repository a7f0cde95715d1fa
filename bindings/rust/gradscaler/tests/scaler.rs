// SPDX-License-Identifier: MIT
//! The scaler as a value: policies, events, checkpoints.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    info, presets, Arithmetic, Event, Limit, Overflow, Policy, PolicyBuilder, Quirk, Report,
    Scaler, Want,
};

fn torch(change: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> Scaler {
    Scaler::new(change(Policy::preset("torch").unwrap()).build().unwrap()).unwrap()
}

#[test]
fn every_preset_makes_a_scaler() {
    let names: Vec<_> = presets().map(|preset| preset.name).collect();
    assert!(names.len() >= 28, "{names:?}");
    for preset in presets() {
        let scaler = Scaler::preset(preset.name).unwrap();
        assert!(
            scaler.loss_scale() > 0.0 && !preset.summary.is_empty(),
            "{preset:?}"
        );
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
            .floor_rule(Limit::STOP)
            .min_scale(2.0)
            .quirks(Quirk::NONE)
    });
    let policy = policy.policy();
    assert_eq!(
        (policy.growth_interval(), policy.floor_rule()),
        (7, Limit::STOP)
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
            state.skipped(),
            state.growths(),
            state.backoffs(),
            state.good()
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
    let mut scaler = torch(|policy| policy.overflow_test(Overflow::NORM));
    assert_eq!(scaler.needs(), Want::NORM);
    let report = scaler.check(&[], Want::NONE).unwrap();
    assert_eq!(report.norm(), Some(0.0));
    scaler.update(&report).unwrap();
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
fn another_scale_is_in_force_at_once_and_the_totals_stay() {
    let mut scaler = torch(|policy| policy);
    scaler.update(&Report::of(true)).unwrap();
    scaler.set_scale(8.0).unwrap();
    assert_eq!(
        (
            scaler.loss_scale(),
            scaler.state().skipped(),
            scaler.state().good()
        ),
        (8.0, 1, 0)
    );
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
}

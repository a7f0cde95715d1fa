// SPDX-License-Identifier: MIT
//! Checkpoints and settings of frameworks, as pairs of keys and values.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{formats, Counts, Format, NoteKind, Policy, Report, Scaler, Status, Value};

const TORCH: [(&str, f64); 5] = [
    ("scale", 2048.0),
    ("growth_factor", 2.0),
    ("backoff_factor", 0.5),
    ("growth_interval", 100.0),
    ("_growth_tracker", 3.0),
];

/// A scaler of a preset after a few steps.
fn used(preset: &str) -> Scaler {
    let policy = Policy::preset(preset).unwrap().growth_interval(3);
    let mut scaler = Scaler::new(policy.build().unwrap()).unwrap();
    for overflow in [false, false, true, false] {
        scaler
            .update(&Report::of(overflow).with_norm(1.0).with_amax(1.0))
            .unwrap();
    }
    scaler
}

#[test]
fn a_checkpoint_changes_the_settings_that_are_in_it_and_no_others() {
    let mut scaler = Scaler::preset("recommended").unwrap();
    let notes = scaler.import(Format::RECOGNISED, TORCH).unwrap();
    let expected = Policy::preset("recommended").unwrap().growth_interval(100);
    assert_eq!(scaler.policy(), &expected.build().unwrap());
    assert_eq!(
        (scaler.loss_scale(), scaler.state().counts().good_steps),
        (2048.0, 3)
    );
    let read = notes
        .iter()
        .find(|note| note.kind == NoteKind::FORMAT)
        .unwrap();
    assert_eq!(read.field, "torch");
    assert!(read.to_string().contains("torch"));
}

#[test]
fn what_is_written_is_read_again() {
    for (format, _) in formats() {
        let known = gradscaler::presets().any(|(name, _)| name == format);
        let scaler = used(if known { format } else { "torch" });
        let (entries, _) = match scaler.export(format) {
            Ok(found) => found,
            Err(error) => {
                assert!(error.message().contains("saves no state"), "{error}");
                continue;
            }
        };
        let mut again = Scaler::new(*scaler.policy()).unwrap();
        again.import(format, entries).unwrap();
        assert_eq!(again.policy(), scaler.policy(), "{format}");
        assert_eq!(again.loss_scale(), scaler.loss_scale(), "{format}");
        if format == "gradscaler" {
            assert_eq!(again, scaler);
        }
    }
}

#[test]
fn numbers_have_the_types_that_loaders_expect() {
    let (entries, _) = Scaler::preset("paddle_dygraph")
        .unwrap()
        .export("paddle_dygraph")
        .unwrap();
    let of = |key| &entries.iter().find(|(name, _)| name == key).unwrap().1;
    assert_eq!(of("scale"), &Value::Number(65536.0));
    assert_eq!(of("incr_count"), &Value::Integer(0));
    assert_eq!(of("use_dynamic_loss_scaling"), &Value::Boolean(true));
}

#[test]
fn an_integer_above_2_to_the_53_stays_exact() {
    const GOOD: i64 = (1 << 53) + 1;
    let torch = Policy::preset("torch").unwrap();
    let policy = torch.set("growth_interval", GOOD + 2).unwrap();
    let mut scaler = Scaler::new(policy.build().unwrap()).unwrap();
    let good = GOOD as u64;
    let counts = Counts {
        good_steps: good,
        ..Counts::default()
    };
    scaler.set_counts(2.0, counts).unwrap();
    for (format, key) in [("gradscaler", "good_steps"), ("torch", "_growth_tracker")] {
        let (entries, _) = scaler.export(format).unwrap();
        assert!(entries.contains(&(key.into(), Value::Integer(GOOD))));
        let mut again = Scaler::preset("torch").unwrap();
        again.import(format, entries).unwrap();
        assert_eq!(again.state().counts().good_steps, good);
        assert_eq!(again.policy().growth_interval(), good + 2);
    }
    assert_eq!(Value::from(good), Value::Integer(GOOD));
    assert_eq!(Value::from(u64::MAX), Value::Number(2f64.powi(64)));
}

#[test]
fn one_of_several_scalers_is_named_by_its_prefix() {
    let apex = [
        ("loss_scaler0.loss_scale", 1.0),
        ("loss_scaler0.unskipped", 0.0),
        ("loss_scaler1.loss_scale", 4.0),
        ("loss_scaler1.unskipped", 2.0),
    ];
    let mut scaler = Scaler::preset("apex").unwrap();
    let error = scaler.import(Format::RECOGNISED, apex).unwrap_err();
    assert!(error.to_string().contains("several"), "{error}");
    scaler
        .import(Format::RECOGNISED.prefix("loss_scaler1"), apex)
        .unwrap();
    assert_eq!(
        (scaler.loss_scale(), scaler.state().counts().good_steps),
        (4.0, 2)
    );
    let (entries, _) = scaler.export(Format::named("apex").prefix("")).unwrap();
    assert_eq!(entries[0].0, "loss_scale");
}

#[test]
fn settings_of_a_framework_make_the_policy_that_it_follows() {
    let cerebras = [
        ("loss_scale", Value::from("dynamic")),
        ("steps_per_increase", 5.into()),
        ("max_gradient_norm", None::<f64>.into()),
    ];
    let (policy, _) = Policy::from_settings("cerebras", cerebras).unwrap();
    let expected = Policy::preset("cerebras").unwrap().growth_interval(5);
    assert_eq!(policy.build().unwrap(), expected.build().unwrap());

    let recommended = Policy::preset("recommended").unwrap();
    let (policy, notes) = recommended
        .settings("torch", [("growth_intervall", 5)])
        .unwrap();
    assert_eq!(policy, recommended);
    assert_eq!(notes[0].kind, NoteKind::IGNORED);
    assert_eq!(notes[0].key.as_deref(), Some("growth_intervall"));
}

#[test]
fn what_cannot_be_is_refused_by_its_key_and_changes_nothing() {
    let mut scaler = used("torch");
    let before = scaler.clone();
    let with = |key: &'static str, value: f64| {
        let mut entries = TORCH;
        entries.iter_mut().find(|entry| entry.0 == key).unwrap().1 = value;
        entries
    };
    for (key, value) in [
        ("scale", -1.0),
        ("scale", f64::NAN),
        ("growth_interval", 0.5),
    ] {
        let error = scaler.import("torch", with(key, value)).unwrap_err();
        assert_eq!(
            (error.status(), error.place().as_str()),
            (Status::VALUE, key)
        );
        assert!(
            error.to_string().starts_with(&format!("{key} is ")),
            "{error}"
        );
    }
    let many = (0..70000).map(|number| (number.to_string(), 1.0));
    let error = scaler.import("torch", many).unwrap_err();
    assert_eq!(
        error.to_string(),
        "entries_count is 70000: it must be at most 65536: hand over those of the scaler"
    );
    let nothing: [(&str, f64); 0] = [];
    for error in [
        scaler.import(Format::RECOGNISED, nothing).unwrap_err(),
        scaler.import("pytorch", TORCH).unwrap_err(),
        scaler.import("to\0rch", TORCH).unwrap_err(),
        scaler.export("oneflow").unwrap_err(),
    ] {
        assert_eq!(error.status(), Status::FORMAT, "{error}");
    }
    assert_eq!(scaler, before);
}

#[test]
fn a_key_of_a_scaler_that_is_too_long_is_refused_and_that_of_a_weight_passed_over() {
    let place = "p".repeat(150);
    let mut scaler = used("torch");
    let before = scaler.clone();
    // The scale still fits, its tracker does not.
    for (format, tracker) in [
        (Format::RECOGNISED, "._growth_tracker"),
        (Format::named("torch").prefix(&place), "._growth_tracker"),
        (Format::named("paddle"), "/num_good_steps_3"),
    ] {
        let mut entries = vec![(format!("{place}.scale"), 2048.0)];
        entries.push((place.clone() + tracker, 3.0));
        let error = scaler.import(format, entries).unwrap_err();
        assert_eq!(error.status(), Status::VALUE);
        let (key, size) = (place.clone() + tracker, 150 + tracker.len());
        let said = format!("{key} is a key of {size} bytes: at most 159 are read");
        assert!(error.to_string().starts_with(&said), "{error}");
        assert_eq!(scaler, before);
    }
    // A weight, and a scaler that is not the one that was named.
    let mut entries = TORCH
        .map(|(key, value)| (format!("scaler.{key}"), value))
        .to_vec();
    entries.push((place.clone() + ".attention.weight", 1.0));
    scaler.import(Format::RECOGNISED, entries.clone()).unwrap();
    entries.push((place.clone() + "._growth_tracker", 1.0));
    let named = Format::RECOGNISED.prefix("scaler");
    scaler.import(named, entries).unwrap();
    assert_eq!(scaler.state().counts().good_steps, 3);

    let long = "s".repeat(160);
    let error = Policy::from_settings("torch", [(long.as_str(), 1)]).unwrap_err();
    assert_eq!((error.status(), error.place()), (Status::VALUE, long));
    let deep = "model.".repeat(30) + "init_scale";
    assert!(Policy::from_settings("torch", [(deep.as_str(), 1)]).is_ok());
    let error = Policy::from_settings("torch", [("init_scale\0", 1)]).unwrap_err();
    assert!(error.to_string().ends_with(" holds a NUL"), "{error}");
}

#[test]
fn a_text_that_is_cut_means_nothing() {
    for (text, shown) in [
        ("dynamic\0ally".to_string(), "dynamic...".to_string()),
        ("x".repeat(56), "x".repeat(52) + "..."),
        ("\u{e9}".repeat(30), "\u{e9}".repeat(26) + "..."),
    ] {
        let read = |key| Policy::from_settings("cerebras", [(key, Value::from(text.as_str()))]);
        let error = read("loss_scale").unwrap_err();
        let said = format!("loss_scale is \"{shown}\": it must be a number or \"dynamic\"");
        assert_eq!(error.to_string(), said);
        let (_, notes) = read("color").unwrap();
        assert_eq!(notes[0].kind, NoteKind::IGNORED);
    }
}

#[test]
fn an_error_says_a_long_key_once() {
    let place = "p".to_string() + &"\u{e9}".repeat(45);
    let scale = [(format!("{place}.scale"), -1.0)];
    let error = Scaler::preset("torch")
        .unwrap()
        .import(Format::named("torch").prefix(&place), scale)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{place}.scale is -1: it must be a scale: 0 or above")
    );
}

#[test]
fn notes_name_rules_and_say_the_important_first() {
    let mut entries = TORCH.to_vec();
    entries.push(("color", 3.0));
    let mut scaler = Scaler::preset("recommended").unwrap();
    let notes = scaler.import(Format::RECOGNISED, entries).unwrap();
    let mut kinds: Vec<_> = notes.iter().map(|note| note.kind).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [NoteKind::FORMAT, NoteKind::IGNORED, NoteKind::MISSING]
    );
    let of = |field| notes.iter().find(|note| note.field == field).unwrap();
    assert!(of("ceiling_rule")
        .message
        .contains("it is CLAMP_UNLESS_PAST, as"));
    assert!(of("max_failed_backoffs").message.contains("it is 10, as"));
}

// SPDX-License-Identifier: MIT
//! Checkpoints and settings of frameworks, as pairs of keys and values. A test named `wording_` compares the
//! library's sentences; all others pass with any sentences.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    formats, Counts, Error, Format, Note, NoteKind, Policy, Report, Result, Scaler, Status, Value,
};

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
        let report = Report::of(overflow).with_norm(1.0).with_amax(1.0);
        scaler.update(&report).unwrap();
    }
    scaler
}

/// The scale and the good steps.
fn seen(scaler: &Scaler) -> (f64, u64) {
    (scaler.loss_scale(), scaler.state().counts().good_steps)
}

#[test]
fn what_is_written_is_read_again() -> Result<()> {
    for (format, _) in formats() {
        let known = gradscaler::presets().any(|(name, _)| name == format);
        let scaler = used(if known { format } else { "torch" });
        let (entries, _) = match scaler.export(format) {
            Ok(exported) => exported,
            Err(error) => {
                let refused = (error.status(), error.place());
                assert_eq!(refused, (Status::FORMAT, "format".into()), "{error}");
                continue;
            }
        };
        let mut again = Scaler::new(*scaler.policy())?;
        again.import(format, entries)?;
        assert_eq!(again.policy(), scaler.policy(), "{format}");
        assert_eq!(again.loss_scale(), scaler.loss_scale(), "{format}");
        assert!(format != "gradscaler" || again == scaler);
    }
    Ok(())
}

/// The errors of calls that read what 0.9 saved.
fn refusals_of_0_9() -> Vec<Error> {
    let digits: Vec<char> = include_str!("saved_by_0_9/scaler.hex")
        .chars()
        .filter(|digit| *digit != '\n')
        .collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    let mut errors = vec![Scaler::load(&bytes).unwrap_err()];

    let entries = [("scale", 32768.0), ("good_steps", 2.0), ("log2_mean", 0.0)];
    let mut scaler = used("torch");
    let before = scaler.clone();
    errors.push(scaler.import("gradscaler", entries).unwrap_err());
    assert_eq!(scaler, before);
    errors.push(Policy::from_settings("gradscaler", entries).unwrap_err());
    let rules = [("init_scale", 2.0), ("target_amax", 0.0)];
    errors.push(Policy::from_settings("gradscaler", rules).unwrap_err());
    let torch = Policy::preset("torch").unwrap();
    errors.push(torch.set("target_amax", 0.0).unwrap_err());
    errors
}

#[test]
fn what_0_9_saved_is_refused() {
    for error in refusals_of_0_9() {
        assert_eq!(error.status(), Status::VERSION, "{error}");
    }
}

#[test]
fn wording_of_what_0_9_saved() {
    let sentence = concat!(
        "cannot be read by this version (",
        env!("CARGO_PKG_VERSION"),
        "): 0.9 or an earlier candidate saved this; start anew, and set the old scale"
    );
    for error in refusals_of_0_9() {
        assert_eq!(error.message(), sentence);
    }
}

#[test]
fn numbers_have_the_types_that_loaders_expect_and_large_integers_stay_exact() -> Result<()> {
    for (good, interval) in [((1 << 53) + 1, (1 << 53) + 3), ((1 << 60) + 1, i64::MAX)] {
        let (torch, good_steps) = (Policy::preset("torch")?, good as u64);
        let mut scaler = Scaler::new(torch.set("growth_interval", interval)?.build()?)?;
        let counts = Counts {
            good_steps,
            ..Counts::default()
        };
        scaler.set_counts(2.0, counts)?;
        for (format, key) in [("gradscaler", "good_steps"), ("torch", "_growth_tracker")] {
            let (entries, _) = scaler.export(format)?;
            assert!(entries.contains(&(key.into(), Value::Integer(good))));
            assert!(entries.contains(&("scale".into(), Value::Number(2.0))));
            let mut again = Scaler::preset("torch")?;
            again.import(format, entries)?;
            assert_eq!(seen(&again), (2.0, good_steps));
            assert_eq!(again.policy().growth_interval(), interval as u64);
        }
    }
    let (entries, _) = Scaler::preset("paddle_dygraph")?.export("paddle_dygraph")?;
    let dynamic = ("use_dynamic_loss_scaling".into(), Value::Boolean(true));
    assert!(entries.contains(&dynamic), "{entries:?}");
    let endless = Policy::preset("torch")?.set("growth_interval", u64::MAX)?;
    let endless = Scaler::new(endless.build()?)?;
    let mut again = Scaler::preset("torch")?;
    again.import("torch", endless.export("torch")?.0)?;
    assert_eq!(again.policy().growth_interval(), u64::MAX);
    assert_eq!(Value::from(i64::MAX as u64), Value::Integer(i64::MAX));
    assert_eq!(Value::from(u64::MAX), Value::Unsigned(u64::MAX));
    Ok(())
}

#[test]
fn one_of_several_scalers_is_named_by_its_prefix() -> Result<()> {
    let keys = ["0.loss_scale", "0.unskipped", "1.loss_scale", "1.unskipped"];
    let apex = keys.into_iter().zip([1.0, 0.0, 4.0, 2.0]);
    let apex = apex.map(|(key, value)| (format!("loss_scaler{key}"), value));
    let mut scaler = Scaler::preset("apex")?;
    let error = scaler.import(Format::RECOGNISED, apex.clone()).unwrap_err();
    let refused = (error.status(), error.place());
    assert_eq!(refused, (Status::FORMAT, "entries".into()), "{error}");
    scaler.import(Format::RECOGNISED.prefix("loss_scaler1"), apex)?;
    assert_eq!(seen(&scaler), (4.0, 2));
    let (entries, _) = scaler.export(Format::named("apex").prefix(""))?;
    assert_eq!(entries[0].0, "loss_scale");
    Ok(())
}

#[test]
fn settings_of_a_framework_make_the_policy_that_it_follows() -> Result<()> {
    let cerebras = [
        ("loss_scale", Value::from("dynamic")),
        ("steps_per_increase", 5.into()),
        ("max_gradient_norm", None::<f64>.into()),
    ];
    let (policy, _) = Policy::from_settings("cerebras", cerebras)?;
    let expected = Policy::preset("cerebras")?.growth_interval(5);
    assert_eq!(policy.build()?, expected.build()?);

    let recommended = Policy::preset("recommended")?;
    let (policy, notes) = recommended.settings("torch", [("growth_intervall", 5)])?;
    assert_eq!(policy, recommended);
    let note = (notes[0].kind, notes[0].key.as_deref());
    assert_eq!(note, (NoteKind::IGNORED, Some("growth_intervall")));
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_by_its_key_and_changes_nothing() {
    let mut scaler = used("torch");
    let before = scaler.clone();
    for (key, value) in [
        ("scale", -1.0),
        ("scale", f64::NAN),
        ("growth_interval", 0.5),
    ] {
        let entries = TORCH.map(|it| if it.0 == key { (key, value) } else { it });
        let error = scaler.import("torch", entries).unwrap_err();
        let refused = (error.status(), error.place());
        assert_eq!(refused, (Status::VALUE, key.to_string()));
        assert_eq!(error.to_string(), format!("{key} {}", error.message()));
    }
    let many = (0..70000).map(|number| (format!("{number}.scale"), 1.0));
    let error = scaler.import("torch", many).unwrap_err();
    let refused = (error.place(), error.value(), error.limits().1);
    let expected = ("entries_count".to_string(), Some(70000.0), Some(65536.0));
    assert_eq!(refused, expected, "{error}");
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
fn a_key_of_a_scaler_that_is_too_long_is_refused_and_that_of_a_weight_passed_over() -> Result<()> {
    let place = "p".repeat(150);
    let mut scaler = used("torch");
    let before = scaler.clone();
    // The scale still fits, its tracker does not.
    for (format, tracker) in [
        (Format::RECOGNISED, "._growth_tracker"),
        (Format::named("torch").prefix(&place), "._growth_tracker"),
        (Format::named("paddle"), "/num_good_steps_3"),
    ] {
        let (scale, key) = (format!("{place}.scale"), format!("{place}{tracker}"));
        let size = key.len();
        let error = scaler.import(format, [(scale, 2048.0), (key.clone(), 3.0)]);
        let error = error.unwrap_err();
        assert_eq!(error.status(), Status::VALUE);
        let words = format!("{key} is a key of {size} bytes: at most 159 are read");
        assert!(error.to_string().starts_with(&words), "{error}");
        assert_eq!(scaler, before);
    }
    // A weight, and a scaler that is not the one that was named.
    let mut entries = TORCH
        .map(|(key, value)| (format!("scaler.{key}"), value))
        .to_vec();
    entries.push((place.clone() + ".attention.weight", 1.0));
    entries.push((place.clone() + "._growth_tracker3", 1.0)); // only Paddle's keys have numbers
    scaler.import(Format::RECOGNISED, entries.clone())?;
    entries.push((place.clone() + "._growth_tracker", 1.0));
    scaler.import(Format::RECOGNISED.prefix("scaler"), entries)?;
    assert_eq!(seen(&scaler), (2048.0, 3));

    let settings = |key: &str| Policy::from_settings("torch", [(key, 1)]);
    let long = "s".repeat(160);
    let error = settings(&long).unwrap_err();
    assert_eq!((error.status(), error.place()), (Status::VALUE, long));
    assert!(settings(&("model.".repeat(30) + "init_scale")).is_ok());
    let error = settings("init_scale\0").unwrap_err();
    assert!(error.to_string().ends_with(" holds a NUL"), "{error}");
    Ok(())
}

/// The settings of Cerebras with a text at a key.
fn with_text(key: &str, text: &str) -> Result<Vec<Note>> {
    Ok(Policy::from_settings("cerebras", [(key, text)])?.1)
}

/// Texts that are too long, each with the part that an error shows.
fn cut_texts() -> [(String, String); 3] {
    [
        ("dynamic\0ally".to_string(), "dynamic...".to_string()),
        ("x".repeat(56), "x".repeat(52) + "..."),
        ("\u{e9}".repeat(30), "\u{e9}".repeat(26) + "..."),
    ]
}

#[test]
fn a_text_that_is_cut_means_nothing() -> Result<()> {
    for (text, _) in cut_texts() {
        let error = with_text("loss_scale", &text).unwrap_err();
        let refused = (error.status(), error.place());
        assert_eq!(refused, (Status::VALUE, "loss_scale".into()), "{error}");
        assert_eq!(with_text("color", &text)?[0].kind, NoteKind::IGNORED);
    }
    Ok(())
}

#[test]
fn wording_of_a_text_that_is_cut() {
    for (text, shown) in cut_texts() {
        let words = format!("loss_scale is \"{shown}\": it must be a number or \"dynamic\"");
        let error = with_text("loss_scale", &text).unwrap_err();
        assert_eq!(error.to_string(), words);
    }
}

/// Names of scalers with characters of several bytes: the longest for these tests, and two that begin at other bytes.
fn long_names() -> [String; 3] {
    let name = |ascii: &str, character: &str, n| ascii.to_string() + &character.repeat(n);
    [
        name("", "\u{e9}", 72),
        name("p", "\u{e9}", 45),
        name("pp", "\u{6f22}", 45),
    ]
}

/// How often the last character of a name is in a text.
fn count(name: &str, text: &str) -> usize {
    text.matches(name.chars().last().unwrap()).count()
}

/// The error of a scale of -1 at the key of a scaler of this name.
fn refusal_below(name: &str) -> Error {
    let format = Format::named("torch").prefix(name);
    let entries = [(format!("{name}.scale"), -1.0)];
    used("torch").import(format, entries).unwrap_err()
}

#[test]
fn an_error_says_a_long_key_once_and_whole() {
    for name in long_names() {
        let error = refusal_below(&name);
        let (key, text) = (format!("{name}.scale"), error.to_string());
        assert_eq!(
            (error.status(), error.place()),
            (Status::VALUE, key.clone())
        );
        assert_eq!((error.index(), error.value()), (None, Some(-1.0)));
        assert_eq!(text, format!("{key} {}", error.message()));
        assert_eq!(count(&name, &text), count(&name, &name), "{text}");
    }
}

#[test]
fn wording_of_an_error_at_a_long_key() {
    for name in long_names() {
        let error = refusal_below(&name);
        assert_eq!(error.message(), "is -1: it must be a scale: 0 or above");
    }
}

/// A note on a setting without a value, below this name: the rules of the policy stay in force.
fn note_on_rules_below(name: &str) -> Note {
    let format = Format::named("gradscaler").prefix(name);
    let settings = [(format!("{name}.overflow_reset"), Value::Empty)];
    let recommended = Policy::preset("recommended").unwrap();
    let (_, notes) = recommended.settings(format, settings).unwrap();
    let mut notes = notes.into_iter();
    notes.find(|note| note.field == "overflow_reset").unwrap()
}

#[test]
fn a_note_has_the_names_of_this_crate_behind_a_long_key() {
    for name in long_names() {
        let note = note_on_rules_below(&name);
        let text = note.to_string();
        assert!(text.contains(" ON_GROWTH | ON_BACKOFF"), "{text}");
        assert_eq!(count(&name, &text), count(&name, &name), "{text}");
        assert_eq!(note.key, Some(name + ".overflow_reset"));
    }
}

#[test]
fn wording_of_notes_on_rules() -> Result<()> {
    for name in long_names() {
        let words = "overflow_reset stays ON_GROWTH | ON_BACKOFF, as in the policy";
        let sentence = format!("\"{name}.overflow_reset\" is empty: {words}");
        assert_eq!(note_on_rules_below(&name).message, sentence);
    }
    let (_, notes) = Scaler::preset("recommended")?.export("torch")?;
    let rules = "overflow_reset is ON_GROWTH | ON_BACKOFF, which the format torch cannot hold";
    assert!(notes.iter().any(|note| note.message == rules), "{notes:?}");
    Ok(())
}

#[test]
fn a_checkpoint_changes_the_settings_in_it_and_no_others_and_the_notes_say_so() -> Result<()> {
    let mut scaler = Scaler::preset("recommended")?;
    let entries = TORCH.into_iter().chain([("color", 3.0)]);
    let notes = scaler.import(Format::RECOGNISED, entries)?;
    let expected = Policy::preset("recommended")?.growth_interval(100);
    assert_eq!(scaler.policy(), &expected.build()?);
    assert_eq!(seen(&scaler), (2048.0, 3));
    for (kind, field) in [
        (NoteKind::FORMAT, "torch"),
        (NoteKind::MISSING, "ceiling_rule"),
        (NoteKind::MISSING, "max_failed_backoffs"),
    ] {
        let found = notes.iter().find(|note| note.field == field).unwrap();
        assert_eq!(found.kind, kind, "{found}");
        let is_rule = field == "ceiling_rule";
        assert_eq!(found.to_string().contains("CLAMP_UNLESS_PAST"), is_rule);
    }
    Ok(())
}

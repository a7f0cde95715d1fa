// SPDX-License-Identifier: MIT
//! The events of steps: levels, messages and fields, and nothing without a subscriber.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use gradscaler::{
    metric_names, Options, Policy, Report, Scaler, Status, Tensor, TensorMut, Value, Want,
};
use gradscaler_tracing::log_step;
use tracing::field::Field;
use tracing::{span, subscriber, Event, Level, Metadata, Subscriber};

/// The level of an event and its fields, as "name=value"; the message comes first.
type Logged = (Level, Vec<String>);

/// Keeps the events up to a level.
struct Log(Level, Arc<Mutex<Vec<Logged>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "gradscaler" && *metadata.level() <= self.0
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Vec::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            fields.push(format!("{field}={value:?}"));
        });
        let logged = (*event.metadata().level(), fields);
        self.1.lock().unwrap().push(logged);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        unreachable!("there are no spans")
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Returns what `run` logs up to a level.
fn logged(level: Level, run: impl FnOnce()) -> Vec<Logged> {
    let events = Arc::default();
    subscriber::with_default(Log(level, Arc::clone(&events)), run);
    let events = std::mem::take(&mut *events.lock().unwrap());
    events
}

/// A metric as a field, which has its name and its type.
fn field((name, value): (String, Value)) -> String {
    match value {
        Value::Number(number) => format!("{name}={number:?}"),
        Value::Integer(number) => format!("{name}={number}"),
        Value::Boolean(truth) => format!("{name}={truth}"),
        other => panic!("{name} is {other:?}"),
    }
}

/// Steps by gradients of these norms, and returns the metrics of each.
fn steps(scaler: &mut Scaler, norms: &[f32]) -> Vec<Vec<String>> {
    let (mut metrics, mut reports) = (Vec::new(), Vec::new());
    for norm in norms {
        let (mut grad, loss) = ([norm * scaler.loss_scale() as f32, 0.0], [0.5f32]);
        let grads = &mut [TensorMut::new(&mut grad)];
        let options = Options::new(Want::ALL).per_tensor(&mut reports);
        let report = scaler
            .unscale(grads, options.loss(Tensor::new(&loss)))
            .unwrap();
        scaler.update(&report).unwrap();
        log_step(scaler, &report, &reports, &["weight"]).unwrap();
        let of_step = scaler.metrics(Some(&report)).unwrap();
        metrics.push(of_step.map(field).collect());
    }
    metrics
}

fn guard() -> Scaler {
    let policy = Policy::preset("recommended").unwrap().guard_norm(100.0);
    Scaler::new(policy.build().unwrap()).unwrap()
}

#[test]
fn a_good_step_is_for_debugging_and_a_skipped_one_a_warning() {
    let mut metrics = Vec::new();
    let events = logged(Level::DEBUG, || {
        metrics = steps(&mut guard(), &[2.0, f32::INFINITY, 200.0]);
    });
    let outlier = "skipped: the norm, 200, is above 100";
    let texts = ["step", "skipped: 1 Inf in \"weight\"", outlier];
    let levels = [Level::DEBUG, Level::WARN, Level::WARN];
    assert_eq!(events.len(), 3);
    for (n, (level, fields)) in events.iter().enumerate() {
        assert_eq!(level, &levels[n]);
        let message = format!("message={}", texts[n]);
        assert!(fields[0].starts_with(&message), "{}", fields[0]);
        assert_eq!(fields[1..], metrics[n]);
    }
    // In the last step every metric that the library names is known.
    let names = metrics[2].iter().map(|it| it.split('=').next().unwrap());
    assert!(names.eq(metric_names()), "{:?}", metrics[2]);
    let known = ["norm=2.0", "total_overflows=1", "skip=true"];
    assert!(known
        .iter()
        .zip(&metrics)
        .all(|(it, all)| all.iter().any(|one| one == it)));
}

#[test]
fn a_step_without_gradients_is_a_warning_until_a_step_has_some() {
    let mut scaler = Scaler::preset("torch").unwrap();
    let empty = || Tensor::new::<f32>(&[]);
    let lists = [vec![Tensor::new(&[1f32])], vec![], vec![empty(), empty()]];
    let events = logged(Level::DEBUG, || {
        for tensors in &lists {
            let report = scaler.measure(tensors, Want::NONE).unwrap();
            scaler.update(&report).unwrap();
            log_step(&scaler, &report, &[], &[]).unwrap();
        }
    });
    let seen = events.iter().map(|(level, fields)| (*level, &*fields[0]));
    let (step, warning) = ((Level::DEBUG, "message=step"), events[1].1[0].clone());
    assert!(
        seen.eq([step, (Level::WARN, &*warning), step]),
        "{events:?}"
    );
    assert!(
        warning.starts_with("message=this step had no gradients"),
        "{warning}"
    );
}

#[test]
fn only_what_the_subscriber_wants_is_computed() {
    let empty = Report::default(); // which would be refused
    let events = logged(Level::WARN, || {
        let mut scaler = guard();
        steps(&mut scaler, &[2.0, f32::INFINITY, 2.0]);
        assert_eq!(log_step(&scaler, &empty, &[], &[]), Ok(()));
    });
    assert_eq!(events.len(), 1);
    assert_eq!(log_step(&guard(), &empty, &[], &[]), Ok(()));
    logged(Level::DEBUG, || {
        let error = log_step(&guard(), &empty, &[], &[]).unwrap_err();
        assert_eq!(error.status(), Status::REPORT);
    });
}

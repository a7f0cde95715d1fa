// SPDX-License-Identifier: MIT
//! The events of steps: levels, messages and fields, and nothing without a subscriber.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use gradscaler::{Policy, Report, Scaler, Status, TensorMut, Value, Want};
use gradscaler_tracing::log_step;
use tracing::field::{Field, Visit};
use tracing::{span, subscriber, Event, Level, Metadata, Subscriber};

/// Named values of an event; the message comes first.
#[derive(Debug, Default, PartialEq)]
struct Fields(Vec<(String, Value)>);

/// Keeps the events up to a level.
struct Log(Level, Arc<Mutex<Vec<(Level, Fields)>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "gradscaler" && *metadata.level() <= self.0
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
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

impl Fields {
    fn push(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.push((field.name().into(), value.into()));
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.push(field, format!("{value:?}").as_str());
    }
}

/// What `run` logs up to a level.
fn logged(level: Level, run: impl FnOnce()) -> Vec<(Level, Fields)> {
    let events = Arc::default();
    subscriber::with_default(Log(level, Arc::clone(&events)), run);
    let events = std::mem::take(&mut *events.lock().unwrap());
    events
}

/// Steps by gradients of these norms, and returns the metrics of each.
fn steps(scaler: &mut Scaler, norms: &[f32]) -> Vec<Vec<(String, Value)>> {
    let mut metrics = Vec::new();
    for norm in norms {
        let mut grad = [norm * scaler.loss_scale() as f32, 0.0];
        let grads = &mut [TensorMut::new(&mut grad)];
        let report = scaler.unscale(grads, Want::ALL).unwrap();
        scaler.update(&report).unwrap();
        log_step(scaler, &report).unwrap();
        metrics.push(scaler.metrics(Some(&report)).unwrap().collect());
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
    let outlier = "skipped: the norm, 200, is above 100, 1 in a row";
    let texts = ["step", "skipped: overflow", outlier];
    let levels = [Level::DEBUG, Level::WARN, Level::WARN];
    assert_eq!(events.len(), 3);
    for (n, (level, Fields(fields))) in events.iter().enumerate() {
        assert_eq!(level, &levels[n]);
        // Every metric is a field, with its name and its type.
        let message = ("message".into(), texts[n].into());
        assert_eq!(fields, &[vec![message], metrics[n].clone()].concat());
    }
    assert!(metrics[0].contains(&("norm".into(), Value::Number(2.0))));
    assert!(metrics[1].contains(&("total_overflows".into(), Value::Integer(1))));
    assert!(metrics[2].contains(&("skip".into(), Value::Boolean(true))));
}

#[test]
fn only_what_the_subscriber_wants_is_computed() {
    let empty = Report::default(); // which would be refused
    let events = logged(Level::WARN, || {
        let mut scaler = guard();
        steps(&mut scaler, &[2.0, f32::INFINITY, 2.0]);
        assert_eq!(log_step(&scaler, &empty), Ok(()));
    });
    assert_eq!(events.len(), 1);
    assert_eq!(log_step(&guard(), &empty), Ok(()));
    logged(Level::DEBUG, || {
        let error = log_step(&guard(), &empty).unwrap_err();
        assert_eq!(error.status(), Status::REPORT);
    });
}

// SPDX-License-Identifier: MIT
//! Logs what a scaler of [`gradscaler`] did, as events of [`tracing`]: [`log_step`] emits one event for
//! each step that an update judged.
//!
//! ```
//! use gradscaler::{Options, Scaler, TensorMut, Want};
//!
//! let mut scaler = Scaler::preset("recommended")?;
//! let (mut grad, mut reports) = (vec![f32::INFINITY; 4], Vec::new());
//! let options = Options::new(Want::NORM).per_tensor(&mut reports);
//! let report = scaler.unscale(&mut [TensorMut::new(&mut grad)], options)?;
//! scaler.update(&report)?;
//! gradscaler_tracing::log_step(&scaler, &report, &reports, &["head.weight"])?;
//! # Ok::<(), gradscaler::Error>(())
//! ```
//!
//! A subscriber that prints events shows
//!
//! ```text
//! WARN gradscaler: skipped: 4 Inf in "head.weight" ... loss_scale=32768.0 skip=true overflow=true ...
//! ```

use std::iter::once;
use std::sync::OnceLock;

use gradscaler::{metric_names, Event, Evidence, Report, Result, Scaler, Value};
use tracing::field::{display, Field, FieldSet};
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing::metadata::Kind;
use tracing::subscriber::Interest;
use tracing::{callsite, dispatcher, Level, Metadata};

/// Emits one event with the target `gradscaler` for the step that the last update judged: call it after
/// [`Scaler::update`] with the report of that update. `per_tensor` and `names` are as
/// [`Evidence`] takes them, and can be empty.
///
/// The level is `WARN` if the step is skipped, or if it is the first of some steps in a row without gradients, which
/// count as good steps ([`Event::EMPTY`]); else it is `DEBUG`. The message is the reason of the update: why
/// it skipped or clipped the step, or let an outlier through; without a reason it is `step`. The fields
/// are the [metrics](Scaler::metrics) under their names, all that the library knows; an unknown metric is not
/// recorded. If no subscriber wants the event, nothing is computed. Any number of threads may call it at
/// the same time.
///
/// If the scaler is on a device, pass copies: [`to_host`](Scaler::to_host) and
/// [`value`](gradscaler::DeviceBuffer::value), which wait.
///
/// # Errors
///
/// As [`State::reason`](gradscaler::State::reason). The report is only read if a subscriber wants the event.
pub fn log_step(
    scaler: &Scaler,
    report: &Report,
    per_tensor: &[Report],
    names: &[&str],
) -> Result<()> {
    let is_skipped = scaler.events().contains(Event::SKIPPED);
    let is_empty = scaler.state().empty_in_a_row() == 1;
    let event = if is_skipped || is_empty {
        &WARN
    } else {
        &DEBUG
    };
    if event.level > STATIC_MAX_LEVEL || event.level > LevelFilter::current() {
        return Ok(());
    }
    let metadata = event.known();
    if !dispatcher::get_default(|subscriber| subscriber.enabled(metadata)) {
        return Ok(());
    }
    let metrics: Vec<_> = scaler.metrics(Some(report))?.collect();
    let evidence = Evidence::of(report).per_tensor(per_tensor).names(names);
    let reason = scaler.state().reason(evidence)?;
    let otherwise = if is_empty { NO_GRADIENTS } else { "step" };
    let message = reason.as_ref().map_or(otherwise, |reason| &reason.message);
    emit(metadata, message, &metrics);
    Ok(())
}

const NO_GRADIENTS: &str = "this step had no gradients: the list has no tensors, or they are empty. It counts as a \
    good step, so the scale can grow. Check which tensors the call got, and that the loss depends on them";

/// The most fields of an event; the metrics after them are left out.
const MOST_FIELDS: usize = 32;

fn emit(metadata: &'static Metadata<'static>, message: &str, metrics: &[(String, Value)]) {
    let (fields, message) = (metadata.fields(), display(message));
    let message: &dyn tracing::Value = &message;
    let metrics = metrics
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), as_field(value)?)));
    let values: Vec<_> = once((MESSAGE, message))
        .chain(metrics)
        .filter_map(|(name, value)| Some((fields.field(name)?, value)))
        .collect();
    let Some((first, _)) = values.first() else {
        return;
    };
    let mut list: [(&Field, Option<&dyn tracing::Value>); MOST_FIELDS] =
        [(first, None); MOST_FIELDS];
    for (entry, (field, value)) in list.iter_mut().zip(&values) {
        *entry = (field, Some(*value));
    }
    tracing::Event::dispatch(metadata, &fields.value_set(&list));
}

fn as_field(value: &Value) -> Option<&dyn tracing::Value> {
    match value {
        Value::Number(number) => Some(number),
        Value::Integer(number) => Some(number),
        Value::Boolean(truth) => Some(truth),
        _ => None,
    }
}

const MESSAGE: &str = "message";

/// An event of tracing with the fields that the library names at run time; the macros of tracing need their names
/// when they are compiled.
struct StepEvent {
    level: Level,
    metadata: OnceLock<Metadata<'static>>,
}

static WARN: StepEvent = StepEvent::new(Level::WARN);
static DEBUG: StepEvent = StepEvent::new(Level::DEBUG);

impl StepEvent {
    const fn new(level: Level) -> Self {
        Self {
            level,
            metadata: OnceLock::new(),
        }
    }

    fn known(&'static self) -> &'static Metadata<'static> {
        self.metadata.get_or_init(|| {
            let names = metric_names().map(|name| &*Box::leak(name.into_boxed_str()));
            let names: Vec<&str> = once(MESSAGE).chain(names).collect();
            let fields = FieldSet::new(names.leak(), callsite::Identifier(self));
            let (name, target) = ("step", "gradscaler");
            let [file, module] = [file!(), module_path!()].map(Some);
            Metadata::new(
                name,
                target,
                self.level,
                file,
                None,
                module,
                fields,
                Kind::EVENT,
            )
        })
    }
}

impl callsite::Callsite for StepEvent {
    fn set_interest(&self, _: Interest) {} // each step asks whether it is wanted

    fn metadata(&self) -> &Metadata<'_> {
        self.metadata
            .get()
            .expect("it is known before the event is shown to anybody")
    }
}

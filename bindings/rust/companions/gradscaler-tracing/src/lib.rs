// SPDX-License-Identifier: MIT
//! Logs what a scaler of [`gradscaler`] did, as events of [`tracing`]: [`log_step`] emits one event for
//! each step that an update judged.
//!
//! ```
//! use gradscaler::{Scaler, TensorMut, Want};
//!
//! let mut scaler = Scaler::preset("recommended")?;
//! let mut grad = vec![f32::INFINITY; 4];
//! let report = scaler.unscale(&mut [TensorMut::new(&mut grad)], Want::NORM)?;
//! scaler.update(&report)?;
//! gradscaler_tracing::log_step(&scaler, &report)?;
//! # Ok::<(), gradscaler::Error>(())
//! ```
//!
//! A subscriber that prints events shows
//!
//! ```text
//! WARN gradscaler: skipped: overflow loss_scale=32768.0 skip=true overflow=true total_overflows=1 ...
//! ```

use gradscaler::{Event, Report, Result, Scaler, Value};
use tracing::{enabled, event, Level};

/// Emits one event with the target `gradscaler` for the step that the last update judged: call it after
/// [`Scaler::update`] with the report of that update.
///
/// The level is `WARN` if the step is skipped, else `DEBUG`. The message is the
/// [reason](gradscaler::State::reason) of the update: why it skipped or clipped the step, or let an
/// outlier through; without a reason it is `step`. The fields are the [metrics](Scaler::metrics) under
/// their names; an unknown metric is not recorded. If no subscriber wants the event, nothing is computed.
/// Any number of threads may call it at the same time.
///
/// If the scaler is on a device, pass copies: [`to_host`](Scaler::to_host) and
/// [`value`](gradscaler::DeviceBuffer::value), which wait.
///
/// # Errors
///
/// [`Status::REPORT`](gradscaler::Status::REPORT): nobody filled the report in, or it contradicts itself.
/// The report is only read if a subscriber wants the event.
pub fn log_step(scaler: &Scaler, report: &Report) -> Result<()> {
    // The fields of an event are static.
    macro_rules! emit {
        ($level:ident: $($name:ident: $kind:ident)*) => {
            if enabled!(target: "gradscaler", Level::$level) {
                let metrics: Vec<_> = scaler.metrics(Some(report))?.collect();
                let reason = scaler.state().reason();
                let message = reason.as_deref().unwrap_or("step");
                event!(
                    target: "gradscaler",
                    Level::$level,
                    $($name = $kind(&metrics, stringify!($name)),)*
                    "{message}"
                );
            }
        };
        ($level:ident) => {
            emit! {
                $level:
                loss_scale: number
                skip: boolean
                overflow: boolean
                norm: number
                amax: number
                zero_share: number
                total_overflows: integer
                total_guard_skips: integer
                total_growths: integer
                total_backoffs: integer
                steps_since_change: integer
                nan_count: integer
                inf_count: integer
                guard_threshold: number
                guard_multiplier: number
            }
        };
    }
    if scaler.events().contains(Event::SKIPPED) {
        emit!(WARN);
    } else {
        emit!(DEBUG);
    }
    Ok(())
}

type Metric = (String, Value);

fn value<'a>(metrics: &'a [Metric], name: &str) -> Option<&'a Value> {
    let (_, value) = metrics.iter().find(|(key, _)| key == name)?;
    Some(value)
}

fn number(metrics: &[Metric], name: &str) -> Option<f64> {
    value(metrics, name)?.number()
}

fn integer(metrics: &[Metric], name: &str) -> Option<i64> {
    match value(metrics, name)? {
        Value::Integer(number) => Some(*number),
        _ => None,
    }
}

fn boolean(metrics: &[Metric], name: &str) -> Option<bool> {
    match value(metrics, name)? {
        Value::Boolean(truth) => Some(*truth),
        _ => None,
    }
}

// SPDX-License-Identifier: MIT
//! The memories that a scaler and its tensors can be in.

use std::fmt::Debug;
use std::ptr;

use crate::error::{check, Result};
use crate::{sys, Event, Histogram, Options, Report, State, Tensor, Threads};

/// A memory that a [`Scaler`](crate::Scaler) and its tensors can be in: [`Host`] or
/// [`Device`](crate::Device). The trait is sealed.
///
/// On the host, a call returns its results as values. On a device, a call only enqueues and returns
/// buffers; [`DeviceBuffer::value`](crate::DeviceBuffer::value) waits and reads.
pub trait Memory: Calls {
    /// [`State`], on a device a buffer of one.
    type State;
    /// [`Report`], on a device a buffer of one.
    type Report;
    /// The type that [`Options::per_tensor`] fills: a `Vec` of reports, on a device a buffer of them.
    type Reports: 'static;
    /// The type that [`Options::histogram`] fills: [`Histogram`], on a device a buffer of one.
    type Histogram: 'static;
    /// The type that an update returns: [`Event`], on a device nothing.
    type Events;
}

/// The memory of the host: slices and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host;

/// The operations that calls on a memory need; not nameable outside of the crate.
pub trait Calls: Sized {
    /// Identifies a memory.
    type Id: Copy + Debug + Send + Sync;
    /// The members of a scaler: the memory, and the scaler's buffers in it.
    type Handle;

    fn exec(handle: &Self::Handle) -> sys::gsc_exec;

    /// Refuses a state of another memory.
    fn state(
        handle: &Self::Handle,
        name: &str,
        state: &Self::State,
    ) -> Result<*const sys::gsc_state>
    where
        Self: Memory;

    fn state_mut(state: &mut Self::State) -> *mut sys::gsc_state
    where
        Self: Memory;

    /// Refuses a report of another memory.
    fn report(handle: &Self::Handle, report: &Self::Report) -> Result<*const sys::gsc_report>
    where
        Self: Memory;

    fn events(state: &Self::State) -> Self::Events
    where
        Self: Memory;

    /// Keeps the factor of the gradients that the next update judges, if the memory has room for it.
    fn keep_factor(handle: &Self::Handle, state: &Self::State) -> Result<()>
    where
        Self: Memory;

    /// Makes a call on lists, with memory for the results that the options select.
    fn call(
        handle: &Self::Handle,
        tensors: &[Tensor<'_, Self>],
        out: &[Tensor<'_, Self>],
        options: Options<'_, Self>,
        call: impl FnOnce(&Arguments, *mut sys::gsc_error) -> sys::gsc_status,
    ) -> Result<Self::Report>
    where
        Self: Memory;
}

/// The arguments of a call on lists, except its factor: n tensors and n outputs.
pub struct Arguments {
    pub exec: sys::gsc_exec,
    pub tensors: *const sys::gsc_tensor,
    pub out: *const sys::gsc_tensor,
    pub n: u64,
    pub options: sys::gsc_tensor_options,
    pub report: *mut sys::gsc_report,
}

impl Memory for Host {
    type State = State;
    type Report = Report;
    type Reports = Vec<Report>;
    type Histogram = Histogram;
    type Events = Event;
}

impl Calls for Host {
    type Id = ();
    type Handle = Self;

    fn exec(_: &Self) -> sys::gsc_exec {
        sys::GSC_EXEC_INIT
    }

    fn state(_: &Self, _: &str, state: &State) -> Result<*const sys::gsc_state> {
        Ok(&state.0)
    }

    fn state_mut(state: &mut State) -> *mut sys::gsc_state {
        &mut state.0
    }

    fn report(_: &Self, report: &Report) -> Result<*const sys::gsc_report> {
        Ok(&report.0)
    }

    fn events(state: &State) -> Event {
        state.events()
    }

    fn keep_factor(_: &Self, _: &State) -> Result<()> {
        Ok(())
    }

    fn call(
        _: &Self,
        tensors: &[Tensor<'_>],
        out: &[Tensor<'_>],
        mut options: Options<'_>,
        call: impl FnOnce(&Arguments, *mut sys::gsc_error) -> sys::gsc_status,
    ) -> Result<Report> {
        let per_tensor = options.per_tensor.as_mut().map(|reports| {
            reports.clear();
            reports.resize(tensors.len(), Report::default());
            reports.as_mut_ptr().cast()
        });
        let histogram = options.histogram.as_mut().map(|bins| bins.0.as_mut_ptr());
        let mut report = Report::default();
        let arguments = Arguments {
            exec: sys::gsc_exec {
                context: options.threads.map_or(ptr::null_mut(), Threads::as_ptr),
                ..sys::GSC_EXEC_INIT
            },
            tensors: tensors.as_ptr().cast(), // a view is a gsc_tensor
            out: out.as_ptr().cast(),
            n: tensors.len() as u64,
            options: options.raw(per_tensor, histogram),
            report: &mut report.0,
        };
        let result = check(|err| call(&arguments, err));
        if let (Err(_), Some(reports)) = (&result, options.per_tensor) {
            reports.clear(); // a call that failed makes none
        }
        result.map(|()| report)
    }
}

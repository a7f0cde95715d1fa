// SPDX-License-Identifier: MIT
//! The calls on lists of tensors, which a factor and a scaler have.

use std::ptr;

use crate::error::{Error, Result};
use crate::memory::Arguments;
use crate::{sys, Memory, Options, Status, Tensor, TensorMut};

/// The type of the functions that write to tensors.
type WritingFunction = unsafe extern "C" fn(
    *const sys::gsc_exec,
    *const sys::gsc_factor,
    *const sys::gsc_tensor,
    *const sys::gsc_tensor,
    u64,
    *const sys::gsc_tensor_options,
    *mut sys::gsc_report,
    *mut sys::gsc_error,
) -> sys::gsc_status;

/// A function that writes to tensors; true if it makes a report.
pub(crate) struct Write(WritingFunction, bool);

pub(crate) const SCALE: Write = Write(sys::gsc_scale, false);
pub(crate) const UNSCALE: Write = Write(sys::gsc_unscale, true);
pub(crate) const UNSCALE_ONLY: Write = Write(sys::gsc_unscale, false);
pub(crate) const ACCUMULATE: Write = Write(sys::gsc_unscale_accumulate, true);

/// Refuses lists that differ in length.
fn check_lengths<M: Memory>(tensors: &[Tensor<'_, M>], out: &[TensorMut<'_, M>]) -> Result<()> {
    let (n, outputs) = (tensors.len(), out.len());
    if n == outputs {
        return Ok(());
    }
    let message = format!("has {outputs} entries, and tensors {n}: there must be as many");
    Err(Error::new(Status::COUNT, "out", message))
}

/// Copies tensors to `out` unless the state, which is in this memory, skips its step.
pub(crate) fn copy_unless_skipped<M: Memory>(
    handle: &M::Handle,
    state: *const sys::gsc_state,
    tensors: &[Tensor<'_, M>],
    out: &mut [TensorMut<'_, M>],
) -> Result<()> {
    check_lengths(tensors, out)?;
    let call = |a: &Arguments, err| {
        // SAFETY: a state, n tensors and n outputs. The outputs are borrowed mutably, so they overlap nothing else.
        unsafe { sys::gsc_copy_unless_skipped(&a.exec, state, a.tensors, a.out, a.n, err) }
    };
    let out = TensorMut::as_inputs(out);
    M::call(handle, tensors, out, Options::default(), call).map(drop)
}

/// A factor in a memory, for calls on tensors there.
pub(crate) struct FactorIn<'a, M: Memory> {
    handle: &'a M::Handle,
    factor: *const sys::gsc_factor,
}

impl<'a, M: Memory> FactorIn<'a, M> {
    /// # Safety
    ///
    /// The factor is in this memory and lives for 'a.
    pub(crate) unsafe fn new(handle: &'a M::Handle, factor: *const sys::gsc_factor) -> Self {
        Self { handle, factor }
    }

    pub(crate) fn in_place(
        self,
        write: Write,
        tensors: &mut [TensorMut<'_, M>],
        options: Options<'_, M>,
    ) -> Result<M::Report> {
        let list = TensorMut::as_inputs(tensors);
        self.write(write, list, list, options)
    }

    pub(crate) fn out_of_place(
        self,
        write: Write,
        tensors: &[Tensor<'_, M>],
        out: &mut [TensorMut<'_, M>],
        options: Options<'_, M>,
    ) -> Result<M::Report> {
        check_lengths(tensors, out)?;
        self.write(write, tensors, TensorMut::as_inputs(out), options)
    }

    /// Writes to memory that is borrowed mutably in `out`.
    fn write(
        self,
        Write(function, has_report): Write,
        tensors: &[Tensor<'_, M>],
        out: &[Tensor<'_, M>],
        options: Options<'_, M>,
    ) -> Result<M::Report> {
        let call = |a: &Arguments, err| {
            let report = if has_report {
                a.report
            } else {
                ptr::null_mut()
            };
            let (exec, factor, options) = (&a.exec, self.factor, &a.options);
            // SAFETY: n tensors and n outputs. The outputs are borrowed mutably, so they overlap nothing else.
            // The memory that the options point to is as large as n or its type requires.
            unsafe { function(exec, factor, a.tensors, a.out, a.n, options, report, err) }
        };
        M::call(self.handle, tensors, out, options, call)
    }

    pub(crate) fn measure(
        self,
        tensors: &[Tensor<'_, M>],
        options: Options<'_, M>,
    ) -> Result<M::Report> {
        let call = |a: &Arguments, err| {
            let (exec, factor, options) = (&a.exec, self.factor, &a.options);
            // SAFETY: n tensors, which are only read; the options as in `write`.
            unsafe { sys::gsc_measure(exec, factor, a.tensors, a.n, options, a.report, err) }
        };
        M::call(self.handle, tensors, tensors, options, call)
    }
}

/// The methods of a [`Factor`](crate::Factor) on the host, and of a [`Scaler`](crate::Scaler) in any memory. The type
/// has `calls`, and `judged` for the options of calls that report on gradients of one step.
macro_rules! operations {
    ($memory:ty, $report:ty) => {
        /// Multiplies tensors by the scale, in place.
        ///
        /// `options` is a [`Want`](crate::Want), or [`Options`]. It makes no report: unscaling finds the
        /// overflows of the gradients.
        ///
        /// # Errors
        ///
        /// [`Status::FACTOR`](crate::Status::FACTOR): the scale is 0, infinite or not a number;
        /// [`Status::VALUE`](crate::Status::VALUE): a field of the options is out of range.
        pub fn scale<'a>(
            &self,
            tensors: &mut [TensorMut<'_, $memory>],
            options: impl Into<Options<'a, $memory>>,
        ) -> Result<()> {
            let report = self.calls()?.in_place(SCALE, tensors, options.into());
            report.map(drop)
        }

        /// Multiplies tensors by the scale into other memory, which can have other dtypes.
        ///
        /// # Errors
        ///
        /// [`Status::COUNT`](crate::Status::COUNT): the lists or a pair of entries differ in length;
        /// otherwise as [`scale`](Self::scale).
        pub fn scale_into<'a>(
            &self,
            tensors: &[Tensor<'_, $memory>],
            out: &mut [TensorMut<'_, $memory>],
            options: impl Into<Options<'a, $memory>>,
        ) -> Result<()> {
            let calls = self.calls()?;
            let report = calls.out_of_place(SCALE, tensors, out, options.into());
            report.map(drop)
        }

        /// Divides gradients by the scale in place, checks them and reports, in one pass.
        ///
        /// All elements are written, also after an overflow. Unscale half-precision gradients
        /// [into](Self::unscale_into) f32, so that small values survive.
        ///
        /// `options` is a [`Want`](crate::Want), or [`Options`]. The policy of a scaler decides the overflow
        /// of the report.
        ///
        /// # Errors
        ///
        /// As [`scale`](Self::scale).
        pub fn unscale<'a>(
            &self,
            tensors: &mut [TensorMut<'_, $memory>],
            options: impl Into<Options<'a, $memory>>,
        ) -> Result<$report> {
            let options = self.judged(options.into());
            self.calls()?.in_place(UNSCALE, tensors, options)
        }

        /// Divides gradients by the scale into other memory, which can have other dtypes, checks them and
        /// reports, in one pass. With [`Factor::ONE`](crate::Factor::ONE) and [`Options::clamp`] it is a cast
        /// that saturates.
        ///
        /// # Errors
        ///
        /// [`Status::COUNT`](crate::Status::COUNT): the lists or a pair of entries differ in length;
        /// [`Status::DTYPE`](crate::Status::DTYPE): one entry of a pair is complex and the
        /// other is not; otherwise as
        /// [`unscale`](Self::unscale).
        pub fn unscale_into<'a>(
            &self,
            tensors: &[Tensor<'_, $memory>],
            out: &mut [TensorMut<'_, $memory>],
            options: impl Into<Options<'a, $memory>>,
        ) -> Result<$report> {
            let options = self.judged(options.into());
            self.calls()?.out_of_place(UNSCALE, tensors, out, options)
        }

        /// Adds gradients of a micro-batch, divided by the scale, to `out`, and reports on these gradients;
        /// [`Scaler`](crate::Scaler) has an example.
        ///
        /// If one of them is Inf or NaN, nothing is added; the other micro-batches still count. Sums are made
        /// in f32, or in f64 if the gradients or `out` are f64, then rounded. To check that the sums are
        /// finite, [`measure`](Self::measure) them by [`Factor::ONE`](crate::Factor::ONE). No policy judges a
        /// micro-batch. The gradients are read twice.
        ///
        /// # Errors
        ///
        /// [`Status::VALUE`](crate::Status::VALUE): the options clamp; otherwise as
        /// [`unscale_into`](Self::unscale_into).
        pub fn unscale_accumulate<'a>(
            &self,
            tensors: &[Tensor<'_, $memory>],
            out: &mut [TensorMut<'_, $memory>],
            options: impl Into<Options<'a, $memory>>,
        ) -> Result<$report> {
            let calls = self.calls()?;
            calls.out_of_place(ACCUMULATE, tensors, out, options.into())
        }

        /// Returns the report of [`unscale`](Self::unscale) in place, but writes nothing.
        ///
        /// # Errors
        ///
        /// [`Status::VALUE`](crate::Status::VALUE): the options clamp;
        /// [`Status::FACTOR`](crate::Status::FACTOR).
        pub fn measure<'a>(
            &self,
            tensors: &[Tensor<'_, $memory>],
            options: impl Into<Options<'a, $memory>>,
        ) -> Result<$report> {
            self.calls()?.measure(tensors, self.judged(options.into()))
        }
    };
}

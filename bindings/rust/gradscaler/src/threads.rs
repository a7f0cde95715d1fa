// SPDX-License-Identifier: MIT
//! Contexts of the library, and the threads that share the work of a call.

use std::ptr::{self, NonNull};

use crate::error::{check, Result};
use crate::sys;

/// A context, which is destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct Context(NonNull<sys::gsc_context>);

// SAFETY: any number of calls, on any threads, may use a context at the same time.
unsafe impl Send for Context {}
// SAFETY: likewise.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn cpu(threads: u32) -> Result<Self> {
        let options = sys::gsc_cpu_options {
            threads,
            ..Default::default()
        };
        // SAFETY: without a pool of the caller's; the output is a pointer.
        Self::create(|out, err| unsafe { sys::gsc_context_create_cpu(&options, out, err) })
    }

    pub(crate) fn cuda(device: i32) -> Result<Self> {
        let options = sys::gsc_cuda_options {
            device,
            ..Default::default()
        };
        // SAFETY: the output is a pointer.
        Self::create(|out, err| unsafe { sys::gsc_context_create_cuda(&options, out, err) })
    }

    fn create(
        call: impl FnOnce(*mut *mut sys::gsc_context, *mut sys::gsc_error) -> sys::gsc_status,
    ) -> Result<Self> {
        let mut out = ptr::null_mut();
        check(|err| call(&mut out, err))?;
        // SAFETY: a call that succeeds makes a context.
        Ok(Self(unsafe { NonNull::new_unchecked(out) }))
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::gsc_context {
        self.0.as_ptr()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: what uses the context borrows or shares it, so that nothing does any more.
        unsafe { sys::gsc_context_destroy(self.0.as_ptr()) }
    }
}

/// Threads of the library, which sleep between calls; [`Options::on`](crate::Options::on) makes a
/// call use them.
///
/// The result is bit-exact with the result of one thread. Lists below 4 MiB stay on the calling thread.
/// Several calls can share the threads: while one call has them, another call runs on its own thread.
/// Dropping `Threads` ends the threads; a forked process makes its own at its first call.
///
/// ```
/// use gradscaler::{Options, Scaler, TensorMut, Threads, Want};
///
/// let scaler = Scaler::preset("recommended")?;
/// let threads = Threads::new(4)?;
/// let mut grad = vec![65536f32; 2 << 20];
/// let options = Options::new(Want::NORM).on(&threads);
/// let report = scaler.unscale(&mut [TensorMut::new(&mut grad)], options)?;
/// assert_eq!(report.norm(), Some(2f64.powf(10.5)));
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Debug)]
pub struct Threads(Context);

impl Threads {
    /// Makes threads: `threads` is their number, including the calling thread.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`](crate::Status::VALUE): 0, or more than 1,024;
    /// [`Status::MEMORY`](crate::Status::MEMORY): the system has not so many.
    pub fn new(threads: u32) -> Result<Self> {
        Context::cpu(threads).map(Self)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::gsc_context {
        self.0.as_ptr()
    }
}

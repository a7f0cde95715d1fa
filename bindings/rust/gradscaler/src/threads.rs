// SPDX-License-Identifier: MIT
//! Threads that share the work of a call, and how a call is told to use them.

use std::ptr::{self, NonNull};

use crate::error::{check, Result};
use crate::{sys, Want};

/// Threads of the library, which sleep between calls; [`Want::on`] makes a call use them.
///
/// The results have the same bits as with one thread. Lists below 4 MiB stay on the calling thread,
/// as does a call while another one has the threads: any number of threads may share them. Dropping
/// them ends the threads; a forked process makes its own at its first call.
///
/// ```
/// use gradscaler::{Scaler, TensorMut, Threads, Want};
///
/// let scaler = Scaler::preset("recommended")?;
/// let threads = Threads::new(4)?;
/// let mut grad = vec![65536f32; 2 << 20];
/// let report = scaler.unscale(&mut [TensorMut::new(&mut grad)], Want::NORM.on(&threads))?;
/// assert_eq!(report.norm(), Some(2f64.powf(10.5)));
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Debug)]
pub struct Threads(NonNull<sys::gsc_context>);

// SAFETY: any number of calls, on any threads, may use a context at the same time.
unsafe impl Send for Threads {}
// SAFETY: likewise.
unsafe impl Sync for Threads {}

impl Threads {
    /// `count` threads, the one that calls included.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`](crate::Status::VALUE): `count` is 0;
    /// [`Status::MEMORY`](crate::Status::MEMORY): the system has not so many.
    pub fn new(count: u32) -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: without a pool of the caller's; the output is a pointer.
        check(|err| unsafe {
            sys::gsc_context_create_cpu(count, None, ptr::null_mut(), &mut out, err)
        })?;
        // SAFETY: a call that succeeds makes a context.
        Ok(Self(unsafe { NonNull::new_unchecked(out) }))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // SAFETY: calls borrow the context, so that none uses it any more.
        unsafe { sys::gsc_context_destroy(self.0.as_ptr()) }
    }
}

/// What a call reports, and which threads do it: a [`Want`] is the calling thread, [`Want::on`]
/// names others.
#[derive(Clone, Copy, Debug)]
pub struct How<'a> {
    pub(crate) want: Want,
    threads: Option<&'a Threads>,
}

impl How<'_> {
    /// Likewise, with more in the report.
    pub(crate) fn and(self, want: Want) -> Self {
        Self {
            want: self.want | want,
            ..self
        }
    }

    pub(crate) fn exec(&self) -> sys::gsc_exec {
        sys::gsc_exec {
            context: self
                .threads
                .map_or(ptr::null_mut(), |threads| threads.0.as_ptr()),
            ..sys::GSC_EXEC_INIT
        }
    }
}

impl From<Want> for How<'_> {
    fn from(want: Want) -> Self {
        Self {
            want,
            threads: None,
        }
    }
}

impl Want {
    /// The same, with the work shared among `threads`.
    pub fn on(self, threads: &Threads) -> How<'_> {
        How {
            want: self,
            threads: Some(threads),
        }
    }
}

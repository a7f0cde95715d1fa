// SPDX-License-Identifier: MIT
//! Facts about the library that runs here.

use crate::error::{check, static_str, Result};
use crate::sys;

/// Facts about the library that runs here; see [`info`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Version of the C library: major, minor, patch.
    pub version: (u32, u32, u32),
    /// Instruction set in use: `"scalar"`, `"avx2"`, `"avx512"` or `"neon"`; `GSC_CPU` in the
    /// environment chooses.
    pub cpu: &'static str,
    /// Instruction sets that this machine can run.
    pub cpu_available: Vec<&'static str>,
    /// The reason why `GSC_CPU` was ignored; empty if it was not.
    pub cpu_note: &'static str,
    /// `"available"`, or why CUDA is not: an error, or the log of the driver's compiler if it refused the
    /// kernels.
    pub cuda: String,
}

/// Returns the version of the library, the instruction set in use, and whether CUDA is available.
///
/// It starts the CUDA driver: processes that are forked afterwards cannot use CUDA.
///
/// ```
/// println!("{:?}", gradscaler::info()?);
/// # Ok::<(), gradscaler::Error>(())
/// ```
///
/// # Errors
///
/// [`Status::STRUCT_SIZE`](crate::Status::STRUCT_SIZE): the system's gradscaler is too old.
pub fn info() -> Result<Info> {
    let mut raw = sys::GSC_INFO_INIT;
    // SAFETY: the struct has its size set.
    check(|err| unsafe { sys::gsc_info_get(&mut raw, err) })?;
    // SAFETY: the call filled the strings, which live as long as the library.
    let [cpu, available, cpu_note] =
        [raw.cpu, raw.cpu_available, raw.cpu_note].map(|text| unsafe { static_str(text) });
    // SAFETY: no conditions.
    let started = check(|err| unsafe { sys::gsc_cuda_start(err) });
    // SAFETY: a string that lives as long as the library.
    let log = unsafe { static_str(sys::gsc_cuda_log()) };
    Ok(Info {
        version: (
            raw.version >> 16,
            raw.version >> 8 & 0xff,
            raw.version & 0xff,
        ),
        cpu,
        cpu_available: available.split(' ').collect(),
        cpu_note,
        cuda: match started {
            _ if !log.is_empty() => log.into(),
            Ok(()) => "available".into(),
            Err(error) => error.to_string(),
        },
    })
}

// SPDX-License-Identifier: MIT
//! The rules: presets, and policies made from them.

use std::ffi::CString;

use crate::error::{check, static_str, Error, Result};
use crate::{sys, Status};

/// The rules of one scaler: when the scale grows, when it backs off and where it stops.
///
/// Starts from a preset, of which fields are replaced, and is checked by
/// [`build`](PolicyBuilder::build):
///
/// ```
/// use gradscaler::{Limit, Policy};
///
/// let policy = Policy::preset("torch")?
///     .growth_interval(100)
///     .min_scale(1.0)
///     .floor_rule(Limit::STOP)
///     .build()?;
/// assert_eq!(policy.growth_interval(), 100);
///
/// let error = Policy::preset("torch")?.backoff_factor(1.5).build().unwrap_err();
/// assert_eq!(error.place(), "policy.backoff_factor");
/// # Ok::<(), gradscaler::Error>(())
/// ```
///
/// The getters have the names and units of the setters. Zero switches a field off.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub struct Policy(pub(crate) sys::gsc_policy);

/// A policy in the making; see [`Policy`]. The setters have no limits of their own: `build` checks.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PolicyBuilder(pub(crate) sys::gsc_policy);

impl Policy {
    /// Starts from a preset: `"recommended"` for new work, `"none"`, `"static"`, or the exact rules
    /// of a framework, such as `"torch"` or `"megatron"`; [`presets`] lists them.
    ///
    /// # Errors
    ///
    /// [`Status::PRESET`]: no preset has this name.
    pub fn preset(name: &str) -> Result<PolicyBuilder> {
        let c_name = CString::new(name).map_err(|_| {
            let message = format!("is {name:?}: no preset holds a NUL");
            Error::new(Status::PRESET, "name", message)
        })?;
        let mut raw = sys::GSC_POLICY_INIT;
        // SAFETY: the name is a C string, the policy has its size set.
        check(|err| unsafe { sys::gsc_policy_preset(c_name.as_ptr(), &mut raw, err) })?;
        Ok(PolicyBuilder(raw))
    }

    /// Starts from this policy.
    pub fn to_builder(self) -> PolicyBuilder {
        PolicyBuilder(self.0)
    }

    /// The struct of the C interface.
    pub fn as_raw(&self) -> &sys::gsc_policy {
        &self.0
    }
}

impl PolicyBuilder {
    /// Sets the field that is called `name`, of [`FIELDS`](Self::FIELDS): for settings from a file or
    /// a command line.
    ///
    /// # Errors
    ///
    /// [`Status::POLICY`]: no field has this name, or it cannot hold this number.
    pub fn set(mut self, name: &str, value: f64) -> Result<Self> {
        if self.set_by_name(name, value).is_some() {
            return Ok(self);
        }
        let message = if Self::FIELDS.contains(&name) {
            format!("is {value}: it must be a whole number that fits")
        } else {
            format!(
                "is no field of a policy; there are {}",
                Self::FIELDS.join(", ")
            )
        };
        Err(Error::new(Status::POLICY, "policy", message).at("policy", name))
    }

    /// The policy, if it can be used.
    ///
    /// # Errors
    ///
    /// [`Status::POLICY`]: a field is out of range; the error names it.
    pub fn build(self) -> Result<Policy> {
        // SAFETY: the policy has its size set.
        check(|err| unsafe { sys::gsc_policy_check(&self.0, err) })?;
        Ok(Policy(self.0))
    }
}

/// A number that a field can hold.
pub(crate) trait Number: Sized {
    /// This number, if it is one of these exactly.
    fn exactly(value: f64) -> Option<Self>;
}

impl Number for f64 {
    fn exactly(value: f64) -> Option<Self> {
        Some(value)
    }
}

impl Number for f32 {
    fn exactly(value: f64) -> Option<Self> {
        Some(value as f32)
    }
}

macro_rules! whole_numbers {
    ($($kind:ident)*) => {
        $(
            impl Number for $kind {
                fn exactly(value: f64) -> Option<Self> {
                    // The largest of 64 bits becomes, as f64, one that does not fit.
                    let fits = $kind::BITS < 64 || value < $kind::MAX as f64;
                    (fits && value as $kind as f64 == value).then_some(value as $kind)
                }
            }
        )*
    };
}

whole_numbers! { i8 i16 i32 i64 u8 u16 u32 u64 }

/// A named set of rules; see [`presets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preset {
    /// What [`Policy::preset`] takes.
    pub name: &'static str,
    /// What it does and where its rules come from, in a sentence.
    pub summary: &'static str,
}

/// All presets.
///
/// ```
/// for preset in gradscaler::presets() {
///     println!("{:<20} {}", preset.name, preset.summary);
/// }
/// assert!(gradscaler::presets().any(|preset| preset.name == "recommended"));
/// ```
pub fn presets() -> impl Iterator<Item = Preset> {
    // SAFETY: past the last there is NULL; before, there are strings that live as long as the library.
    let text =
        |string: *const sys::c_char| (!string.is_null()).then(|| unsafe { static_str(string) });
    (0..).map_while(move |index| {
        // SAFETY: no conditions.
        let (name, summary) =
            unsafe { (sys::gsc_preset_name(index), sys::gsc_preset_summary(index)) };
        Some(Preset {
            name: text(name)?,
            summary: text(summary)?,
        })
    })
}

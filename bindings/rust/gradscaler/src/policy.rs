// SPDX-License-Identifier: MIT
//! The rules: presets, and policies made from them.

use std::ffi::CString;

use crate::error::{check, listed, Error, Result};
use crate::macros::Raw;
use crate::{sys, Status, Trait, Value};

/// The rules of a scaler: when the scale grows, when it backs off, and its limits.
///
/// Take a preset, replace fields, and call [`build`](PolicyBuilder::build), which checks them:
///
/// ```
/// use gradscaler::{LimitRule, Policy};
///
/// let policy = Policy::preset("torch")?
///     .growth_interval(100)
///     .min_scale(1.0)
///     .floor_rule(LimitRule::STOP)
///     .build()?;
/// assert_eq!(policy.growth_interval(), 100);
///
/// let error = Policy::preset("torch")?.backoff_factor(1.5).build().unwrap_err();
/// assert_eq!(error.place(), "policy.backoff_factor");
/// # Ok::<(), gradscaler::Error>(())
/// ```
///
/// The getters have the names and units of the setters. 0 switches a field off.
#[derive(Clone, Copy, PartialEq)]
#[must_use]
#[repr(transparent)]
pub struct Policy(pub(crate) sys::gsc_policy);

/// A policy that is not checked yet; see [`Policy`]. `build` checks the values of all setters.
///
/// In the default, every field is off.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PolicyBuilder(pub(crate) sys::gsc_policy);

impl Policy {
    /// Returns a builder with the rules of a preset: `"recommended"` for new work, `"none"`, `"static"`, or the exact rules
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

    /// Returns what a caller has to prepare for, such as [`Trait::HOLDS`]: give calls on tensors the loss.
    ///
    /// ```
    /// use gradscaler::{Policy, Trait};
    ///
    /// assert!(Policy::preset("recommended")?.build()?.traits().contains(Trait::HOLDS));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    pub fn traits(&self) -> Trait {
        let mut traits = Trait::NONE.c();
        // SAFETY: a policy with its size set, no copy of it, and traits to write; a checked policy is not refused.
        let _ = check(|err| unsafe {
            sys::gsc_policy_resolve(&self.0, std::ptr::null_mut(), &mut traits, err)
        });
        Trait::of(traits)
    }

    /// Returns a builder with these rules.
    pub fn to_builder(self) -> PolicyBuilder {
        PolicyBuilder(self.0)
    }

    /// The name of a rule; `None` for a field that is a number.
    pub(crate) fn rule_named(field: &str, value: f64) -> Option<String> {
        let mut policy = PolicyBuilder::default();
        policy.set_by_name(field, &value.into())?;
        let fields = Self(policy.0);
        let value = fields.fields().find(|(name, _)| *name == field)?.1;
        match value {
            Value::Text(name) => Some(name),
            _ => None,
        }
    }
}

impl PolicyBuilder {
    /// Sets a field by its name, one of [`FIELDS`](Self::FIELDS), for settings from a file or a command
    /// line.
    ///
    /// ```
    /// use gradscaler::{LimitRule, Policy};
    ///
    /// let policy = Policy::preset("torch")?.set("growth_interval", 100)?.set("floor_rule", "STOP")?;
    /// assert_eq!(policy.build()?.floor_rule(), LimitRule::STOP);
    ///
    /// let error = Policy::preset("torch")?.set("floor_rule", "HALT").unwrap_err();
    /// assert!(error.to_string().contains("one of CLAMP, ENFORCE, REJECT, STOP, CLAMP_UNLESS_PAST"));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::POLICY`]: no field has this name, or it cannot have this value; [`Status::VERSION`]: a candidate
    /// before 0.10 saved these settings.
    pub fn set(mut self, name: &str, value: impl Into<Value>) -> Result<Self> {
        let value = value.into();
        if self.set_by_name(name, &value).is_some() {
            return Ok(self);
        }
        let value = match value {
            Value::Text(text) => format!("{text:?}"),
            Value::Empty => "empty".into(),
            Value::Integer(number) => number.to_string(),
            Value::Unsigned(number) => number.to_string(),
            number => number.number().unwrap_or(f64::NAN).to_string(),
        };
        let names = Self::names_of(name).join(", ");
        let message = if !Self::FIELDS.contains(&name) {
            refuse_candidate(name)?;
            let fields = Self::FIELDS.join(", ");
            format!("is no field of a policy; there are {fields}")
        } else if names.is_empty() {
            format!("is {value}: it must be a number that fits, whole where steps are counted")
        } else {
            format!("is {value}: it must be one of {names}, or its number")
        };
        Err(Error::new(Status::POLICY, "policy", message).at("policy", name))
    }

    /// Checks all fields and returns the policy.
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

impl Default for PolicyBuilder {
    fn default() -> Self {
        Self(sys::GSC_POLICY_INIT)
    }
}

/// Refuses a field that only a candidate had; the library knows it.
fn refuse_candidate(field: &str) -> Result<()> {
    match Policy::from_settings("gradscaler", [(field, Value::Empty)]) {
        Err(error) if error.status() == Status::VERSION => Err(error.at("policy", field)),
        _ => Ok(()),
    }
}

/// Returns the names of all presets, for [`Policy::preset`], each with a sentence on what it does and
/// where its rules come from.
///
/// ```
/// for (name, summary) in gradscaler::presets() {
///     println!("{name:<20} {summary}");
/// }
/// assert!(gradscaler::presets().any(|(name, _)| name == "recommended"));
/// ```
pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
    listed(sys::gsc_preset_name, sys::gsc_preset_summary)
}

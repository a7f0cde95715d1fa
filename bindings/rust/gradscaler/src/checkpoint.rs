// SPDX-License-Identifier: MIT
//! Checkpoints and settings of frameworks: keys with values, which the library reads and writes.

use std::ffi::CString;
use std::fmt;
use std::ptr;

use crate::error::{check, listed, text, Error, Result};
use crate::generated::KeyUse;
use crate::macros::Raw;
use crate::sys::c_char;
use crate::{sys, NoteKind, Policy, PolicyBuilder, Scaler, Status, Value};

/// Keys and values, as [`Scaler::export`] returns them. The parts of a nested key are joined by dots.
pub type Checkpoint = Vec<(String, Value)>;

/// The name of a format, and the prefix of its keys. A name alone converts into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format<'a> {
    name: Option<&'a str>,
    prefix: Option<&'a str>,
}

impl<'a> Format<'a> {
    /// The format is recognised by the keys of a checkpoint.
    pub const RECOGNISED: Self = Self {
        name: None,
        prefix: None,
    };

    /// Makes a format from a name, one of [`formats`].
    pub const fn named(name: &'a str) -> Self {
        Self {
            name: Some(name),
            prefix: None,
        }
    }

    /// Sets the prefix of the keys, up to a dot: in a checkpoint one of several scalers, such as
    /// `"loss_scaler1"`; in settings their section, such as `"fp16"`; `""` for no prefix. By default, a
    /// scaler is found at the top of a checkpoint or below one or two names, and saved with the
    /// framework's own prefix.
    #[must_use]
    pub const fn prefix(mut self, prefix: &'a str) -> Self {
        self.prefix = Some(prefix);
        self
    }
}

impl<'a> From<&'a str> for Format<'a> {
    fn from(name: &'a str) -> Self {
        Self::named(name)
    }
}

/// A note on a key of a checkpoint or settings that is missing, ignored or changed, or on a finding of a
/// diagnosis.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Note {
    /// The kind of note.
    pub kind: NoteKind,
    /// The key of the note, if it has one.
    pub key: Option<String>,
    /// The field of the policy or the state; with [`NoteKind::FORMAT`] the name of the format.
    pub field: String,
    /// The number in force.
    pub value: f64,
    /// The note as a sentence; its words can change in any version.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Returns the names of all formats of checkpoints and settings, each with a sentence on its framework.
///
/// ```
/// assert!(gradscaler::formats().any(|(name, _)| name == "deepspeed"));
/// ```
pub fn formats() -> impl Iterator<Item = (&'static str, &'static str)> {
    listed(sys::gsc_format_name, sys::gsc_format_summary)
}

impl Scaler {
    /// Loads the checkpoint of a framework: keys and values; the parts of a nested key are joined by dots.
    /// Changes only the settings that the checkpoint contains. Returns notes on keys that are missing, ignored
    /// or mean something else here, the most important first.
    ///
    /// ```
    /// use gradscaler::{Format, Scaler};
    ///
    /// let torch = [("scaler.scale", 2048.0), ("scaler.growth_interval", 100.0), ("scaler._growth_tracker", 3.0)];
    /// let mut scaler = Scaler::preset("torch")?;
    /// for note in scaler.import(Format::RECOGNISED, torch)? {
    ///     println!("{note}"); // what is missing, and what was ignored
    /// }
    /// assert_eq!((scaler.loss_scale(), scaler.state().counts().good_steps), (2048.0, 3));
    ///
    /// let error = scaler.import("torch", [("scale", -1.0)]).unwrap_err();
    /// assert_eq!(error.place(), "scale");
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::FORMAT`]: the keys fit no framework, or several, or the scale is missing;
    /// [`Status::VALUE`]: a value is not possible for its key, or a scaler's key has more than 159 bytes;
    /// [`Status::VERSION`]: a candidate before 0.10 saved it. An error changes nothing.
    pub fn import<'a, K: AsRef<str>, V: Into<Value>>(
        &mut self,
        format: impl Into<Format<'a>>,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Vec<Note>> {
        let format = format.into();
        let mut saved = None;
        let entries = Entries::of(entries, |parent, name| {
            let keys = saved.get_or_insert_with(saved_keys);
            format.prefix.unwrap_or(parent) == parent && keys.iter().any(|key| is_key(key, name))
        })?;
        let format = CFormat::of(format)?;
        let [name, prefix] = format.pointers();
        let (mut policy, mut state) = (self.policy().0, sys::gsc_state::default());
        let notes = entries.read(|list, n, notes, capacity, count, err| {
            let from: *const _ = &self.policy().0;
            // SAFETY: strings or NULL, as many entries and notes as are told, policies with their size
            // set, and a state.
            unsafe {
                sys::gsc_state_import(
                    name,
                    prefix,
                    list,
                    n,
                    from,
                    &mut policy,
                    &mut state,
                    notes,
                    capacity,
                    count,
                    err,
                )
            }
        })?;
        *self = Self::of(Policy(policy), crate::State(state));
        Ok(notes)
    }

    /// Returns the scaler in the keys of a framework, and notes on what these cannot hold. The framework's own
    /// scaler can continue from them. The format `"gradscaler"` holds everything.
    ///
    /// ```
    /// use gradscaler::Scaler;
    ///
    /// let (entries, _) = Scaler::preset("torch")?.export("torch")?;
    /// let scale = entries.iter().find(|(key, _)| key == "scale").unwrap();
    /// assert_eq!(scale.1.number(), Some(65536.0));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::FORMAT`]: no format has this name.
    pub fn export<'a>(&self, format: impl Into<Format<'a>>) -> Result<(Checkpoint, Vec<Note>)> {
        let format = CFormat::of(format.into())?;
        let [name, prefix] = format.pointers();
        let mut list = Vec::<sys::gsc_entry>::new();
        let notes = Entries::default().read(|_, _, notes, capacity, count, err| {
            let (policy, state) = (&self.policy().0, &self.state().0);
            let (entries, room, mut n) = match list.len() {
                0 => (ptr::null_mut(), 0, 0), // only counts
                room => (list.as_mut_ptr(), room as u64, 0),
            };
            // SAFETY: strings or NULL, a policy, a state, and as many entries and notes as are told.
            let status = unsafe {
                sys::gsc_state_export(
                    name, prefix, policy, state, entries, room, &mut n, notes, capacity, count, err,
                )
            };
            list.resize(n as usize, sys::gsc_entry::default());
            status
        })?;
        let entries = list
            .iter()
            .map(|entry| (text(&entry.key), value(entry)))
            .collect();
        Ok((entries, notes))
    }
}

impl Policy {
    /// Returns the rules of a framework's scaler with these settings: the arguments of its constructor or
    /// program, or its section of a configuration. Missing settings get the framework's defaults.
    ///
    /// ```
    /// use gradscaler::{Format, Policy};
    ///
    /// let config = [("train_batch_size", 8), ("fp16.initial_scale_power", 12), ("fp16.hysteresis", 3)];
    /// let (policy, _) = Policy::from_settings(Format::named("deepspeed").prefix("fp16"), config)?;
    /// let policy = policy.build()?;
    /// assert_eq!((policy.init_scale(), policy.hysteresis()), (4096.0, 3));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::FORMAT`]: no format has this name; [`Status::VALUE`]
    /// and [`Status::POLICY`]: a setting has an impossible value.
    pub fn from_settings<'a, K: AsRef<str>, V: Into<Value>>(
        format: impl Into<Format<'a>>,
        settings: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(PolicyBuilder, Vec<Note>)> {
        read_settings(ptr::null(), format.into(), settings)
    }
}

impl PolicyBuilder {
    /// Replaces the fields that a framework's settings contain; see [`Policy::from_settings`].
    pub fn settings<'a, K: AsRef<str>, V: Into<Value>>(
        self,
        format: impl Into<Format<'a>>,
        settings: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(Self, Vec<Note>)> {
        read_settings(&self.0, format.into(), settings)
    }
}

fn read_settings<K: AsRef<str>, V: Into<Value>>(
    from: *const sys::gsc_policy,
    format: Format<'_>,
    settings: impl IntoIterator<Item = (K, V)>,
) -> Result<(PolicyBuilder, Vec<Note>)> {
    let settings = Entries::of(settings, |parent, _| parent == format.prefix.unwrap_or(""))?;
    let (format, mut policy) = (CFormat::of(format)?, sys::GSC_POLICY_INIT);
    let [name, prefix] = format.pointers();
    let notes = settings.read(|list, n, notes, capacity, count, err| {
        // SAFETY: strings or NULL, as many entries and notes as are told, policies with their size set.
        unsafe {
            sys::gsc_policy_import(
                name,
                prefix,
                list,
                n,
                from,
                &mut policy,
                notes,
                capacity,
                count,
                err,
            )
        }
    })?;
    Ok((PolicyBuilder(policy), notes))
}

/// The name and the prefix of a format as C strings.
struct CFormat([Option<CString>; 2]);

impl CFormat {
    fn of(format: Format<'_>) -> Result<Self> {
        let string = |text: Option<&str>, name| {
            let string = text.map(CString::new).transpose();
            string.map_err(|_| Error::new(Status::FORMAT, name, "holds a NUL".into()))
        };
        Ok(Self([
            string(format.name, "format")?,
            string(format.prefix, "prefix")?,
        ]))
    }

    /// The name and the prefix, NULL for none.
    fn pointers(&self) -> [*const c_char; 2] {
        let pointer =
            |string: &Option<CString>| string.as_ref().map_or(ptr::null(), |it| it.as_ptr());
        [pointer(&self.0[0]), pointer(&self.0[1])]
    }
}

/// A list of entries for the library, and the caller's keys.
#[derive(Default)]
pub(crate) struct Entries {
    keys: Vec<String>,
    list: Vec<sys::gsc_entry>,
}

impl Entries {
    /// Makes entries; skips those with a key that is too long. If `is_needed` is true for the parent and the
    /// name in such a key, fails: the scaler would continue without this number.
    fn of<K: AsRef<str>, V: Into<Value>>(
        pairs: impl IntoIterator<Item = (K, V)>,
        mut is_needed: impl FnMut(&str, &str) -> bool,
    ) -> Result<Self> {
        let mut entries = Self::default();
        for (key, value) in pairs {
            let (key, mut entry) = (key.as_ref(), sys::gsc_entry::default());
            if key.contains('\0') {
                return Err(Error::new(Status::VALUE, key, "holds a NUL".into()));
            }
            if !put(&mut entry.key, key) {
                let at = key.rfind(&['.', '/'][..]);
                let (parent, name) = at.map_or(("", key), |at| (&key[..at], &key[at + 1..]));
                if !is_needed(parent, name) {
                    continue;
                }
                let message = format!(
                    "is a key of {} bytes: at most {} are read, so hand over what is below its place",
                    key.len(),
                    entry.key.len() - 1
                );
                return Err(Error::new(Status::VALUE, key, message));
            }
            let value = value.into();
            entry.value = value.number().unwrap_or(0.0);
            entry.kind = match value {
                Value::Number(_) => sys::GSC_ENTRY_NUMBER,
                Value::Unsigned(number) => {
                    entry.integer = number as i64;
                    sys::GSC_ENTRY_INTEGER
                }
                Value::Integer(number) => {
                    entry.integer = number;
                    sys::GSC_ENTRY_INTEGER
                }
                Value::Boolean(truth) => {
                    entry.integer = truth.into();
                    sys::GSC_ENTRY_BOOLEAN
                }
                Value::Text(text) => {
                    // A text that is too long has no meaning; its beginning is for messages.
                    if !put(&mut entry.text, &text) {
                        let text = text.split('\0').next().unwrap_or_default();
                        let mut end = text.len().min(entry.text.len() - 1 - ELLIPSIS.len());
                        while !text.is_char_boundary(end) {
                            end -= 1;
                        }
                        put(&mut entry.text, &(text[..end].to_string() + ELLIPSIS));
                    }
                    sys::GSC_ENTRY_TEXT
                }
                Value::Empty => sys::GSC_ENTRY_NULL,
            };
            entries.keys.push(key.into());
            entries.list.push(entry);
        }
        Ok(entries)
    }

    /// Makes a call with these entries twice: for the number of its notes, then for the notes.
    pub(crate) fn read(
        &self,
        mut call: impl FnMut(
            *const sys::gsc_entry,
            u64,
            *mut sys::gsc_note,
            u64,
            *mut u64,
            *mut sys::gsc_error,
        ) -> sys::gsc_status,
    ) -> Result<Vec<Note>> {
        let (list, n) = (self.list.as_ptr(), self.list.len() as u64);
        let (mut notes, mut count) = (Vec::<sys::gsc_note>::new(), 0);
        for _ in 0..2 {
            let (out, capacity) = (notes.as_mut_ptr(), notes.len() as u64);
            check(|err| call(list, n, out, capacity, &mut count, err)).map_err(|error| {
                match (
                    error.name(),
                    error.index().and_then(|index| self.keys.get(index)),
                ) {
                    ("entries", Some(key)) => error.of_key(key),
                    _ => error,
                }
            })?;
            notes.resize(count as usize, sys::gsc_note::default());
        }
        let from_c = |note: &sys::gsc_note| Note {
            kind: NoteKind::of(note.kind),
            key: usize::try_from(note.entry)
                .ok()
                .and_then(|index| self.keys.get(index))
                .cloned(),
            field: text(&note.field),
            value: note.value,
            message: with_name(note),
        };
        Ok(notes.iter().map(from_c).collect())
    }
}

/// Returns the sentence of a note, with a rule by its name in this crate.
fn with_name(note: &sys::gsc_note) -> String {
    let start = note.value_start as usize;
    let end = start + note.value_length as usize;
    match Policy::rule_named(&text(&note.field), note.value) {
        Some(name) if start < end => {
            text(&note.message[..start]) + &name + &text(&note.message[end..])
        }
        _ => text(&note.message),
    }
}

/// The end of a text that was cut.
const ELLIPSIS: &str = "...";

/// Returns the keys of checkpoints in all formats.
fn saved_keys() -> Vec<sys::gsc_format_key> {
    // SAFETY: no conditions.
    let names = (0..).map(|index| unsafe { sys::gsc_format_name(index) });
    let keys = |name| {
        let (mut keys, mut count) = (Vec::<sys::gsc_format_key>::new(), 0);
        for _ in 0..2 {
            let (out, capacity) = (keys.as_mut_ptr(), keys.len() as u64);
            // SAFETY: the name of a format, and as many keys as are told.
            check(|err| unsafe { sys::gsc_format_keys(name, out, capacity, &mut count, err) })
                .ok()?;
            keys.resize(count as usize, sys::gsc_format_key::default());
        }
        Some(keys)
    };
    names
        .take_while(|name| !name.is_null())
        .filter_map(keys)
        .flatten()
        .filter(|key| KeyUse::of(key.uses).contains(KeyUse::SAVED))
        .collect()
}

/// Returns true if a name is this key, or this key with another number at its end.
fn is_key(key: &sys::gsc_format_key, name: &str) -> bool {
    let (key, uses) = (text(&key.key), KeyUse::of(key.uses));
    let stem = |name| str::trim_end_matches(name, |last: char| last.is_ascii_digit());
    key == name || uses.contains(KeyUse::NUMBERED) && stem(&key) == stem(name)
}

/// Copies a text and a NUL, as much as fits. Returns true if all of it fits.
fn put(to: &mut [c_char], text: &str) -> bool {
    let length = text
        .bytes()
        .take(to.len() - 1)
        .take_while(|&byte| byte != 0)
        .count();
    for (to, from) in to.iter_mut().zip(text.bytes().take(length)) {
        *to = from as c_char;
    }
    length == text.len()
}

pub(crate) fn value(entry: &sys::gsc_entry) -> Value {
    match entry.kind {
        sys::GSC_ENTRY_TEXT => Value::Text(text(&entry.text)),
        sys::GSC_ENTRY_NULL => Value::Empty,
        sys::GSC_ENTRY_INTEGER if entry.value > 0.0 => (entry.integer as u64).into(),
        sys::GSC_ENTRY_INTEGER => Value::Integer(entry.integer),
        sys::GSC_ENTRY_BOOLEAN => Value::Boolean(entry.integer != 0),
        _ => Value::Number(entry.value),
    }
}

// SPDX-License-Identifier: MIT
//! Checkpoints and settings of frameworks: keys with values, which the library reads and writes.

use std::ffi::CString;
use std::fmt;
use std::ptr;

use crate::error::{check, listed, text, Error, Result};
use crate::macros::Raw;
use crate::sys::c_char;
use crate::{sys, NoteKind, Policy, PolicyBuilder, Scaler, Status};

/// The value at a key of a checkpoint or of settings: a number, which a boolean also is, a text such as
/// `"dynamic"`, or nothing, as Python's `None`.
///
/// Numbers, booleans, texts and options of them become one by themselves. An integer that no i64 holds becomes a
/// [`Number`](Self::Number), which rounds it; all others stay exact.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Any number.
    Number(f64),
    /// A number that the framework has as an integer.
    Integer(i64),
    /// A boolean.
    Boolean(bool),
    /// A text; all that mean something have less than 56 bytes.
    Text(String),
    /// Switched off.
    Empty,
}

impl Value {
    /// The number, rounded, if it is one; of booleans 0 or 1.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Integer(number) => Some(*number as f64),
            Self::Boolean(truth) => Some(f64::from(u8::from(*truth))),
            Self::Text(_) | Self::Empty => None,
        }
    }
}

macro_rules! integers {
    ($($kind:ty)*) => {
        $(
            impl From<$kind> for Value {
                fn from(number: $kind) -> Self {
                    i64::try_from(number).map_or(Self::Number(number as f64), Self::Integer)
                }
            }
        )*
    };
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 usize }

macro_rules! values {
    ($($kind:ty => $variant:ident;)*) => {
        $(
            impl From<$kind> for Value {
                fn from(value: $kind) -> Self {
                    Self::$variant(value.into())
                }
            }
        )*
    };
}

values! {
    f64 => Number;
    f32 => Number;
    bool => Boolean;
    &str => Text;
    String => Text;
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Empty, Into::into)
    }
}

/// Keys, nested ones joined by dots, with values: what [`Scaler::export`] writes.
pub type Checkpoint = Vec<(String, Value)>;

/// Whose keys they are, and what they begin with. A name alone becomes one by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format<'a> {
    name: Option<&'a str>,
    prefix: Option<&'a str>,
}

impl<'a> Format<'a> {
    /// The keys tell; for reading a checkpoint.
    pub const RECOGNISED: Self = Self {
        name: None,
        prefix: None,
    };

    /// One of [`formats`].
    pub const fn named(name: &'a str) -> Self {
        Self {
            name: Some(name),
            prefix: None,
        }
    }

    /// The beginning of the keys, up to a dot: in a checkpoint one of several scalers, such as
    /// `"loss_scaler1"`, in settings their section, such as `"fp16"`. Empty for nothing. Without it the
    /// scaler of a checkpoint is recognised at the top or below one or two names, and written with what
    /// the framework has.
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

/// A note on what a checkpoint or settings did not say, said in vain or say otherwise; its text is a sentence.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Note {
    /// Which of these.
    pub kind: NoteKind,
    /// The key that it is about.
    pub key: Option<String>,
    /// The field of the policy or the state; with [`NoteKind::FORMAT`] the name of the format.
    pub field: String,
    /// The number that counts from now on.
    pub value: f64,
    /// The sentence.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// All formats of checkpoints and settings: their names, each with a sentence on its framework.
///
/// ```
/// assert!(gradscaler::formats().any(|(name, _)| name == "deepspeed"));
/// ```
pub fn formats() -> impl Iterator<Item = (&'static str, &'static str)> {
    listed(sys::gsc_format_name, sys::gsc_format_summary)
}

impl Scaler {
    /// Goes on from the checkpoint of a framework: keys, nested ones joined by dots, with numbers. The policy
    /// takes the settings that are among them, and no others.
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
    /// [`Status::FORMAT`]: the keys belong to no framework, or to several, or the scale is missing;
    /// [`Status::VALUE`]: a value cannot be what its key says, or a key has the name of one of a scaler's and
    /// more than 159 bytes. Nothing is changed then.
    pub fn import<'a, K: AsRef<str>, V: Into<Value>>(
        &mut self,
        format: impl Into<Format<'a>>,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Vec<Note>> {
        let format = format.into();
        let mut saved = None;
        let entries = Entries::of(entries, |place, name| {
            let names = saved.get_or_insert_with(saved_names);
            format.prefix.unwrap_or(place) == place && names.iter().any(|saved| saved == stem(name))
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

    /// Returns the scaler in the keys of a framework, whose own scaler goes on from them, and notes on
    /// what they cannot hold. `"gradscaler"` holds all of it.
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
    /// The rules that a framework's scaler follows with these settings: the arguments of its
    /// constructor or program, or its part of a configuration. What they leave out is the framework's.
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
    /// and [`Status::POLICY`]: a setting cannot be.
    pub fn from_settings<'a, K: AsRef<str>, V: Into<Value>>(
        format: impl Into<Format<'a>>,
        settings: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(PolicyBuilder, Vec<Note>)> {
        read_settings(ptr::null(), format.into(), settings)
    }
}

impl PolicyBuilder {
    /// This policy with the settings of a framework, as [`Policy::from_settings`] reads them.
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
    let settings = Entries::of(settings, |place, _| place == format.prefix.unwrap_or(""))?;
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

/// A list as the library takes it, and the keys as the caller has them.
#[derive(Default)]
pub(crate) struct Entries {
    keys: Vec<String>,
    list: Vec<sys::gsc_entry>,
}

impl Entries {
    /// Returns the entries with a key that is not too long. An entry with a longer key that `counts` by its place and its name, is refused: the
    /// scaler would go on without it.
    fn of<K: AsRef<str>, V: Into<Value>>(
        pairs: impl IntoIterator<Item = (K, V)>,
        mut counts: impl FnMut(&str, &str) -> bool,
    ) -> Result<Self> {
        let mut entries = Self::default();
        for (key, value) in pairs {
            let (key, mut entry) = (key.as_ref(), sys::gsc_entry::default());
            if key.contains('\0') {
                return Err(Error::new(Status::VALUE, key, "holds a NUL".into()));
            }
            if !put(&mut entry.key, key) {
                let at = key.rfind(&['.', '/'][..]);
                let (place, name) = at.map_or(("", key), |at| (&key[..at], &key[at + 1..]));
                if !counts(place, name) {
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
                Value::Integer(number) => {
                    entry.integer = number;
                    sys::GSC_ENTRY_INTEGER
                }
                Value::Boolean(truth) => {
                    entry.integer = truth.into();
                    sys::GSC_ENTRY_BOOLEAN
                }
                Value::Text(text) => {
                    // One that does not fit means nothing, nor does what is left of it.
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

    /// Makes a call with these entries twice, for the number of its notes and with room for them.
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
            let (room, capacity) = (notes.as_mut_ptr(), notes.len() as u64);
            check(|err| call(list, n, room, capacity, &mut count, err)).map_err(|error| match (
                error.name(),
                error.index().and_then(|index| self.keys.get(index)),
            ) {
                ("entries", Some(key)) => error.of_key(key),
                _ => error,
            })?;
            notes.resize(count as usize, sys::gsc_note::default());
        }
        let of_c = |note: &sys::gsc_note| Note {
            kind: NoteKind::of(note.kind),
            key: usize::try_from(note.entry)
                .ok()
                .and_then(|index| self.keys.get(index))
                .cloned(),
            field: text(&note.field),
            value: note.value,
            message: with_name(note),
        };
        let mut notes: Vec<_> = notes.iter().map(of_c).collect();
        notes.sort_by_key(|note| {
            let at = IMPORTANCE.iter().position(|kind| *kind == note.kind);
            at.unwrap_or(0) // of a diagnosis, which is in order
        });
        Ok(notes)
    }
}

/// In this order notes are returned.
const IMPORTANCE: [NoteKind; 6] = [
    NoteKind::UNUSABLE,
    NoteKind::CHANGED,
    NoteKind::LOST,
    NoteKind::FORMAT,
    NoteKind::IGNORED,
    NoteKind::MISSING,
];

/// The sentence of a note with the name of a rule instead of its number.
fn with_name(note: &sys::gsc_note) -> String {
    let message = text(&note.message);
    match Policy::rule_named(&text(&note.field), note.value) {
        Some(name) => message.replace(&format!("is {},", note.value), &format!("is {name},")),
        None => message,
    }
}

/// The end of a text that was cut.
const ELLIPSIS: &str = "...";

/// Returns the names of numbers in checkpoints, in any format.
fn saved_names() -> Vec<String> {
    let scaler = Scaler::preset("torch").ok();
    formats()
        .filter_map(|(name, _)| scaler.as_ref()?.export(Format::named(name).prefix("")).ok())
        .flat_map(|(entries, _)| entries)
        .map(|(key, _)| stem(&key).to_string())
        .collect()
}

/// A name without the number that some programs of Paddle end it with.
fn stem(name: &str) -> &str {
    name.trim_end_matches(|last: char| last.is_ascii_digit())
}

/// Copies a text that a NUL ends, as much of it as there is room for; false if that is not all.
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
        sys::GSC_ENTRY_INTEGER => Value::Integer(entry.integer),
        sys::GSC_ENTRY_BOOLEAN => Value::Boolean(entry.integer != 0),
        _ => Value::Number(entry.value),
    }
}

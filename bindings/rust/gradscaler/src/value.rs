// SPDX-License-Identifier: MIT
//! A value of a key or a field: a number, a boolean, a text or nothing.

use std::fmt;

/// The value at a key of a checkpoint or of settings: a number, a boolean, a text such as `"dynamic"`, or
/// nothing, as Python's `None`.
///
/// Numbers, booleans, texts and options of them convert into it. Integers stay exact.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Any number.
    Number(f64),
    /// An integer.
    Integer(i64),
    /// An integer that does not fit into i64.
    Unsigned(u64),
    /// A boolean.
    Boolean(bool),
    /// A text; texts of 56 bytes or more have no meaning.
    Text(String),
    /// Nothing, such as Python's `None`.
    Empty,
}

impl Value {
    /// Returns the number as f64; 0 or 1 for a boolean; `None` for a text or nothing.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Integer(number) => Some(*number as f64),
            Self::Unsigned(number) => Some(*number as f64),
            Self::Boolean(truth) => Some(f64::from(u8::from(*truth))),
            Self::Text(_) | Self::Empty => None,
        }
    }
}

/// Displays the number, boolean or text alone; nothing as `none`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Unsigned(number) => number.fmt(f),
            Self::Boolean(truth) => truth.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Empty => f.write_str("none"),
        }
    }
}

macro_rules! integers {
    ($($kind:ty)*) => {
        $(
            impl From<$kind> for Value {
                fn from(number: $kind) -> Self {
                    i64::try_from(number).map_or(Self::Unsigned(number as u64), Self::Integer)
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

/// The type of a field: a number, or a rule that has a name.
pub(crate) trait Field: Sized {
    fn value(self) -> Value;

    /// This number, or the number of this name, if a field of this type holds it.
    fn from_value(value: &Value) -> Option<Self>;

    /// The names of all rules; none for a number.
    fn names() -> Vec<&'static str> {
        Vec::new()
    }
}

macro_rules! numbers {
    ($($kind:ident: $conversion:expr;)*) => {
        $(
            impl Field for $kind {
                fn value(self) -> Value {
                    self.into()
                }

                fn from_value(value: &Value) -> Option<Self> {
                    $conversion(value)
                }
            }
        )*
    };
}

numbers! {
    f64: Value::number;
    f32: |value: &Value| Some(value.number()? as f32);
}

macro_rules! whole_numbers {
    ($($kind:ident)*) => {
        numbers! {
            $($kind: |value: &Value| {
                let number = match value {
                    Value::Integer(number) => return Self::try_from(*number).ok(),
                    Value::Unsigned(number) => return Self::try_from(*number).ok(),
                    other => other.number()?,
                };
                // The largest of 64 bits becomes, as f64, one that does not fit.
                let fits = $kind::BITS < 64 || number < $kind::MAX as f64;
                (fits && number as $kind as f64 == number).then_some(number as $kind)
            };)*
        }
    };
}

whole_numbers! { i8 i16 i32 i64 u8 u16 u32 u64 }

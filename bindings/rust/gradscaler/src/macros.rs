// SPDX-License-Identifier: MIT
//! Macros that make a type of each list of constants in `generated.rs`. The types are no Rust enums,
//! because a newer library can return a value that this crate does not know.

/// Converts to and from a type of C. It is not `From`, because no type of `sys` is public.
pub(crate) trait Raw<C> {
    fn of(raw: C) -> Self;
    fn c(self) -> C;
}

impl<T> Raw<T> for T {
    fn of(raw: T) -> T {
        raw
    }

    fn c(self) -> T {
        self
    }
}

/// Makes the type of a group of constants, and the methods of choices and flags.
macro_rules! constants {
    ($(#[$doc:meta])* $name:ident: sys::$raw:ident($integer:ty) {
        $($(#[$value_doc:meta])* $value:ident = $number:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($integer);

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self($number.0);)*

            const NAMES: &'static [(&'static str, Self)] = &[$((stringify!($value), Self::$value)),*];

            /// Returns the number in C.
            pub const fn raw(self) -> $integer {
                self.0
            }

            /// Makes a value from the number in C; calls refuse a number without a meaning.
            pub const fn from_raw(raw: $integer) -> Self {
                Self(raw)
            }
        }

        impl crate::macros::Raw<sys::$raw> for $name {
            fn of(raw: sys::$raw) -> Self {
                Self(raw.0)
            }

            fn c(self) -> sys::$raw {
                sys::$raw(self.0)
            }
        }

        impl crate::value::Field for $name {
            fn value(self) -> crate::value::Value {
                crate::value::Value::Text(format!("{self:?}"))
            }

            fn from_value(value: &crate::value::Value) -> Option<Self> {
                match value {
                    crate::value::Value::Text(text) => Self::of_names(text),
                    number => crate::value::Field::from_value(number).map(Self),
                }
            }

            fn names() -> Vec<&'static str> {
                Self::NAMES.iter().map(|(name, _)| *name).collect()
            }
        }
    };
}

/// Makes the type of constants if a value is one of them.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident: $($rest:tt)*) => {
        constants! { $(#[$doc])* $name: $($rest)* }

        impl $name {
            fn of_names(text: &str) -> Option<Self> {
                let found = Self::NAMES.iter().find(|(name, _)| *name == text)?;
                Some(found.1)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match Self::NAMES.iter().find(|(_, value)| value == self) {
                    Some((name, _)) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({:?})"), self.0),
                }
            }
        }
    };
}

/// Makes the type of constants that are joined by `|`.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident: $($rest:tt)*) => {
        constants! { $(#[$doc])* $name: $($rest)* }

        impl $name {
            /// No bit.
            pub const NONE: Self = Self(0);

            /// Every bit that has a name.
            pub const ALL: Self = {
                let (mut all, mut i) = (0, 0);
                while i < Self::NAMES.len() {
                    all |= Self::NAMES[i].1 .0;
                    i += 1;
                }
                Self(all)
            };

            /// Returns whether all bits of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns whether no bit is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Returns the bits of both, also in a const, where `|` is not allowed.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            fn of_names(text: &str) -> Option<Self> {
                let mut bits = Self::NONE;
                for part in text.split('|').map(str::trim).filter(|part| *part != "NONE") {
                    bits |= Self::NAMES.iter().find(|(name, _)| *name == part)?.1;
                }
                Some(bits)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NONE
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut unnamed = self.0;
                let mut separator = "";
                for (name, value) in Self::NAMES.iter().filter(|(_, value)| self.contains(*value)) {
                    write!(f, "{separator}{name}")?;
                    separator = " | ";
                    unnamed &= !value.0;
                }
                match (unnamed, separator) {
                    (0, "") => f.write_str("NONE"),
                    (0, _) => Ok(()),
                    _ => write!(f, "{separator}{unnamed:#x}"),
                }
            }
        }
    };
}

/// Makes the setters of the builder, the getters of the policy, and both by name.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident: $kind:ident;)*) => {
        impl PolicyBuilder {
            $(
                $(#[$doc])*
                pub fn $field(mut self, value: $kind) -> Self {
                    self.0.$field = crate::macros::Raw::c(value);
                    self
                }
            )*

            /// The names of all fields, for [`PolicyBuilder::set`].
            pub const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Sets a field by name; `None`: no field has this name, or it cannot have this value.
            pub(crate) fn set_by_name(&mut self, name: &str, value: &crate::value::Value) -> Option<()> {
                match name {
                    $(stringify!($field) => {
                        self.0.$field = crate::macros::Raw::c(<$kind as crate::value::Field>::from_value(value)?)
                    })*
                    _ => return None,
                }
                Some(())
            }

            /// Returns the names of a field's values; none if the values are numbers.
            pub(crate) fn names_of(field: &str) -> Vec<&'static str> {
                match field {
                    $(stringify!($field) => <$kind as crate::value::Field>::names(),)*
                    _ => Vec::new(),
                }
            }
        }

        impl Policy {
            /// Returns the names and values of all fields, as [`PolicyBuilder::set`] takes them, for settings
            /// in a file. The value of a rule is its name.
            ///
            /// ```
            /// use gradscaler::{Policy, PolicyBuilder, Value};
            ///
            /// let policy = Policy::preset("torch")?.build()?;
            /// let fields: Vec<_> = policy.fields().collect();
            /// assert!(fields.contains(&("growth_interval", Value::Integer(2000))));
            /// assert!(fields.contains(&("growth_rule", Value::Text("EXACT".into()))));
            ///
            /// let mut builder = PolicyBuilder::default();
            /// for (name, value) in fields {
            ///     builder = builder.set(name, value)?;
            /// }
            /// assert_eq!(builder.build()?, policy);
            /// # Ok::<(), gradscaler::Error>(())
            /// ```
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, crate::value::Value)> {
                let fields = [$((stringify!($field), crate::value::Field::value(self.$field()))),*];
                fields.into_iter()
            }

            $(
                $(#[$doc])*
                pub fn $field(&self) -> $kind {
                    crate::macros::Raw::of(self.0.$field)
                }
            )*
        }

        impl std::fmt::Debug for Policy {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Policy")$(.field(stringify!($field), &self.$field()))*.finish()
            }
        }
    };
}

/// Makes getters of a C struct's numbers, with the names of the fields in C.
macro_rules! getters {
    ($struct:ident: $($(#[$doc:meta])* $field:ident: $number:ty;)*) => {
        impl $struct {
            $(
                $(#[$doc])*
                pub fn $field(&self) -> $number {
                    self.0.$field as $number
                }
            )*
        }
    };
}

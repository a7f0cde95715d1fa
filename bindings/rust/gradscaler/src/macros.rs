// SPDX-License-Identifier: MIT
//! Makes types of the lists in `generated.rs`: types that the compiler can tell apart, over the
//! integers of the C interface. No Rust enums: a newer library may answer with a value that this
//! crate does not know.

/// Converts to and from the C interface. It is no `From`, as no type of `sys` is public.
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

/// Methods of both kinds of constants.
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

            /// The number in the C interface.
            pub const fn raw(self) -> $integer {
                self.0
            }

            /// From the number in the C interface; the calls judge whether it is one.
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

        impl crate::policy::Field for $name {
            fn value(self) -> crate::Value {
                crate::Value::Text(format!("{self:?}"))
            }

            fn held(value: &crate::Value) -> Option<Self> {
                match value {
                    crate::Value::Text(text) => Self::of_names(text),
                    number => crate::policy::Field::held(number).map(Self),
                }
            }

            fn names() -> Vec<&'static str> {
                Self::NAMES.iter().map(|(name, _)| *name).collect()
            }
        }
    };
}

/// One of several.
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

/// Any of several, joined by `|`.
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

            /// The bits of both, where `|` is not const.
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

/// The fields of a policy: setters of the builder, getters of the policy, and both by name.
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

            /// Sets a field by name; `None` for a name or a value that it cannot have.
            pub(crate) fn set_by_name(&mut self, name: &str, value: &crate::Value) -> Option<()> {
                match name {
                    $(stringify!($field) => {
                        self.0.$field = crate::macros::Raw::c(<$kind as crate::policy::Field>::held(value)?)
                    })*
                    _ => return None,
                }
                Some(())
            }

            /// The names that the values of a field have; none for one that is a number.
            pub(crate) fn names_of(field: &str) -> Vec<&'static str> {
                match field {
                    $(stringify!($field) => <$kind as crate::policy::Field>::names(),)*
                    _ => Vec::new(),
                }
            }
        }

        impl Policy {
            /// All fields with their values, rules by their names: what [`PolicyBuilder::set`] takes, for
            /// settings in a file.
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
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, crate::Value)> {
                let fields = [$((stringify!($field), crate::policy::Field::value(self.$field()))),*];
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

/// Getters of numbers of a struct of the C interface, under their names there.
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

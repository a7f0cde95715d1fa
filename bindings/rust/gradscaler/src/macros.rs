// SPDX-License-Identifier: MIT
//! What becomes of the lists in `generated.rs`: types that the compiler can tell apart, over the
//! integers of the C interface. No Rust enums: a newer library may answer with a value that this
//! crate does not know.

/// What both kinds of constants have in common.
macro_rules! constants {
    ($(#[$doc:meta])* $name:ident: $raw:ty { $($(#[$value_doc:meta])* $value:ident = $number:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self($number);)*

            const NAMES: &'static [(&'static str, Self)] = &[$((stringify!($value), Self::$value)),*];

            /// The constant of the C interface.
            pub const fn raw(self) -> $raw {
                self.0
            }

            /// From the constant of the C interface; the calls judge whether it is one.
            pub const fn from_raw(raw: $raw) -> Self {
                Self(raw)
            }
        }
    };
}

/// One of several.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident: $($rest:tt)*) => {
        constants! { $(#[$doc])* $name: $($rest)* }

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

            /// Whether all bits of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether no bit is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The bits of both, where `|` is not const.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
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
                    self.0.$field = fields!(@raw $kind value);
                    self
                }
            )*

            /// The names of all fields, for [`PolicyBuilder::set`].
            pub const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Sets a field by name; `None` for a name or a value that it cannot have.
            pub(crate) fn set_by_name(&mut self, name: &str, value: f64) -> Option<()> {
                match name {
                    $(stringify!($field) => self.0.$field = crate::policy::Number::exactly(value)?,)*
                    _ => return None,
                }
                Some(())
            }
        }

        impl Policy {
            $(
                $(#[$doc])*
                pub fn $field(&self) -> $kind {
                    fields!(@kind $kind self.raw.$field)
                }
            )*
        }

        impl std::fmt::Debug for Policy {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Policy")$(.field(stringify!($field), &self.$field()))*.finish()
            }
        }
    };
    (@raw f64 $value:expr) => { $value };
    (@raw u32 $value:expr) => { $value };
    (@raw u64 $value:expr) => { $value };
    (@raw $kind:ident $value:expr) => { $value.raw() };
    (@kind f64 $value:expr) => { $value };
    (@kind u32 $value:expr) => { $value };
    (@kind u64 $value:expr) => { $value };
    (@kind $kind:ident $value:expr) => { $kind::from_raw($value) };
}

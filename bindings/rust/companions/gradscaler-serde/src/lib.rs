// SPDX-License-Identifier: MIT
//! Scalers of [`gradscaler`] in checkpoints, and their rules in settings, by [`serde`].
//!
//! ```
//! use gradscaler::{Policy, Scaler};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize)]
//! struct Settings {
//!     #[serde(with = "gradscaler_serde::policy")]
//!     loss_scale: Policy,
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Checkpoint {
//!     step: u64,
//!     #[serde(with = "gradscaler_serde::scaler")]
//!     scaler: Scaler,
//! }
//!
//! let settings = r#"{"loss_scale": {"preset": "torch", "growth_interval": 500, "floor_rule": "STOP"}}"#;
//! let settings: Settings = serde_json::from_str(settings)?;
//! let scaler = Scaler::new(settings.loss_scale)?;
//!
//! let text = serde_json::to_string(&Checkpoint { step: 7, scaler: scaler.clone() })?;
//! let restored: Checkpoint = serde_json::from_str(&text)?;
//! assert_eq!(restored.scaler, scaler);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// The rules, field by field, for people: `#[serde(with = "gradscaler_serde::policy")]`.
///
/// Rules are written as their names, other fields as numbers. It writes all fields. To read, `preset` can
/// come with the fields that change it; without `preset`, missing fields are off. Unknown keys and
/// impossible values are refused. A format without names of fields cannot be used. To read every number
/// exactly, `serde_json` needs its feature `float_roundtrip`.
pub mod policy {
    use std::fmt;

    use gradscaler::{Policy, PolicyBuilder, Value};
    use serde::de::{Error, MapAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes a policy.
    ///
    /// # Errors
    ///
    /// The errors of the format.
    pub fn serialize<S: Serializer>(policy: &Policy, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(policy.fields().map(|(name, value)| (name, Scalar(value))))
    }

    /// Reads a policy.
    ///
    /// # Errors
    ///
    /// The errors of the format, and of gradscaler: a wrong preset, field or value.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
        deserializer.deserialize_map(Fields)
    }

    struct Fields;

    impl<'de> Visitor<'de> for Fields {
        type Value = Policy;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a preset and fields of a policy")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Policy, M::Error> {
            let (mut preset, mut fields) = (None, Vec::new());
            while let Some(name) = map.next_key::<String>()? {
                if name == "preset" {
                    preset = Some(map.next_value::<String>()?);
                } else {
                    fields.push((name, map.next_value::<Scalar>()?.0));
                }
            }
            let start = match preset {
                Some(name) => Policy::preset(&name).map_err(M::Error::custom)?,
                None => PolicyBuilder::default(),
            };
            fields
                .into_iter()
                .try_fold(start, |builder, (name, value)| builder.set(&name, value))
                .and_then(PolicyBuilder::build)
                .map_err(M::Error::custom)
        }
    }

    /// A number or the name of a rule.
    struct Scalar(Value);

    impl serde::Serialize for Scalar {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match &self.0 {
                Value::Integer(number) => serializer.serialize_i64(*number),
                Value::Unsigned(number) => serializer.serialize_u64(*number),
                Value::Text(text) => serializer.serialize_str(text),
                other => serializer.serialize_f64(other.number().unwrap_or(f64::NAN)),
            }
        }
    }

    impl<'de> Deserialize<'de> for Scalar {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(Self(Value::Empty))
        }
    }

    impl<'de> Visitor<'de> for Scalar {
        type Value = Self;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number or the name of a rule")
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Self, E> {
            Ok(Self(Value::Integer(number)))
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Self, E> {
            Ok(Self(number.into()))
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<Self, E> {
            Ok(Self(number.into()))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self, E> {
            Ok(Self(text.into()))
        }
    }
}

/// A whole scaler, to go on with: `#[serde(with = "gradscaler_serde::scaler")]`.
///
/// It is what [`Scaler::save`](gradscaler::Scaler::save) writes, which every language reads, from 1.0 on every
/// later version, and which has a checksum: as bytes, in formats for people as their hexadecimal digits.
pub mod scaler {
    use std::fmt;

    use gradscaler::Scaler;
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{ser, Deserializer, Serializer};

    /// Writes a scaler.
    ///
    /// # Errors
    ///
    /// The errors of the format.
    pub fn serialize<S: Serializer>(scaler: &Scaler, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = scaler.save().map_err(ser::Error::custom)?;
        if serializer.is_human_readable() {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            serializer.serialize_str(&digits)
        } else {
            serializer.serialize_bytes(&bytes)
        }
    }

    /// Reads a scaler.
    ///
    /// # Errors
    ///
    /// The errors of the format, and of [`Scaler::load`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scaler, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(Saved)
        } else {
            deserializer.deserialize_bytes(Saved)
        }
    }

    struct Saved;

    impl<'de> Visitor<'de> for Saved {
        type Value = Scaler;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the bytes of a saved scaler, or their hexadecimal digits")
        }

        fn visit_str<E: Error>(self, digits: &str) -> Result<Scaler, E> {
            let pairs = digits.as_bytes().chunks(2);
            let byte = |pair: &[u8]| {
                let pair = std::str::from_utf8(pair)
                    .ok()
                    .filter(|pair| pair.len() == 2)?;
                u8::from_str_radix(pair, 16).ok()
            };
            let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
            let bytes =
                bytes.ok_or_else(|| E::custom("a saved scaler is pairs of hexadecimal digits"))?;
            self.visit_bytes(&bytes)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Scaler, E> {
            Scaler::load(bytes).map_err(E::custom)
        }

        // Formats without bytes have them as a list.
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Scaler, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = list.next_element()? {
                bytes.push(byte);
            }
            self.visit_bytes(&bytes)
        }
    }
}

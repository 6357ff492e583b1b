//! Durations and sizes that carry their unit in the text: `50ms`, `32MiB`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

/// A length of time, written with its unit: `50ms`, `2s`, `10m`. Derefs to [`Duration`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(pub Duration);

/// A number of bytes, written with its unit: `64KiB`, `32MiB`, `1GB`. Derefs to `u64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a text is no [`Period`] or no [`ByteSize`]: the text, what was expected and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A bare number: the reader would have to guess its unit.
    #[error("`{text}` has no unit")]
    NoUnit { text: String, kind: Quantity },
    /// The part after the number is no known unit.
    #[error("`{unit}` in `{text}` is no unit of {kind}")]
    UnknownUnit {
        text: String,
        unit: String,
        kind: Quantity,
    },
    /// The part before the unit is no plain decimal number.
    #[error("`{text}` is no {kind}")]
    NotANumber { text: String, kind: Quantity },
    /// More than the type holds (about 584 years, 16 EiB).
    #[error("`{text}` is too large for a {kind}")]
    TooLarge { text: String, kind: Quantity },
}

/// What a text with a unit measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// A [`Period`].
    Duration,
    /// A [`ByteSize`].
    Size,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Duration => "duration",
            Self::Size => "size",
        })
    }
}

impl Quantity {
    /// What a value of this kind looks like, for error messages.
    pub const fn expected(self) -> &'static str {
        match self {
            Self::Duration => "a duration with its unit (us, ms, s, m, h, d), such as 50ms, 2s or 10m",
            Self::Size => {
                "a size with its unit (B, KiB, MiB, GiB, TiB, or KB, MB, GB, TB), such as 64KiB or 32MiB"
            }
        }
    }

    /// Unit names with their size in the base unit (nanoseconds, bytes), smallest first.
    const fn units(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Duration => &[
                ("us", 1_000),
                ("ms", 1_000_000),
                ("s", 1_000_000_000),
                ("m", 60_000_000_000),
                ("h", 3_600_000_000_000),
                ("d", 86_400_000_000_000),
            ],
            Self::Size => &[
                ("B", 1),
                ("KB", 1_000),
                ("KiB", 1 << 10),
                ("MB", 1_000_000),
                ("MiB", 1 << 20),
                ("GB", 1_000_000_000),
                ("GiB", 1 << 30),
                ("TB", 1_000_000_000_000),
                ("TiB", 1 << 40),
            ],
        }
    }

    /// The written unit that was most likely meant by `unit`.
    fn nearest_unit(self, unit: &str) -> Option<&'static str> {
        let lower = unit.to_ascii_lowercase();
        let meant = match (self, lower.as_str()) {
            (Self::Duration, "sec" | "secs" | "second" | "seconds") => "s",
            (Self::Duration, "min" | "mins" | "minute" | "minutes") => "m",
            (Self::Duration, "hr" | "hrs" | "hour" | "hours") => "h",
            (Self::Duration, "day" | "days") => "d",
            (Self::Duration, "msec" | "msecs" | "millis" | "milliseconds") => "ms",
            (Self::Duration, "µs" | "μs" | "usec" | "micros") => "us",
            (Self::Size, "k" | "ki") => "KiB",
            (Self::Size, "m" | "mi") => "MiB",
            (Self::Size, "g" | "gi") => "GiB",
            (Self::Size, "t" | "ti") => "TiB",
            (Self::Size, "byte" | "bytes") => "B",
            _ => {
                return self
                    .units()
                    .iter()
                    .map(|(name, _)| *name)
                    .find(|name| name.eq_ignore_ascii_case(unit));
            }
        };
        Some(meant)
    }

    /// Reads `text` into base units: a decimal number, optional space, a unit.
    fn parse(self, text: &str) -> Result<u64, UnitError> {
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim_start());
        let own = || text.to_owned();
        let value: f64 = number.parse().map_err(|_| UnitError::NotANumber {
            text: own(),
            kind: self,
        })?;
        if unit.is_empty() {
            return Err(UnitError::NoUnit {
                text: own(),
                kind: self,
            });
        }
        let Some((_, scale)) = self.units().iter().find(|(name, _)| *name == unit) else {
            return Err(UnitError::UnknownUnit {
                text: own(),
                unit: unit.to_owned(),
                kind: self,
            });
        };
        // Whole numbers stay exact beyond 2^53; fractions (`1.5s`) do not need to.
        let base = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(*scale),
            Err(_) => Some(value * *scale as f64)
                .filter(|v| *v < u64::MAX as f64)
                .map(|v| v as u64),
        };
        base.ok_or_else(|| UnitError::TooLarge {
            text: own(),
            kind: self,
        })
    }

    /// Writes `base` with the largest unit that divides it.
    fn format(self, base: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zero_unit = if self == Self::Duration { "s" } else { "B" };
        if base == 0 {
            return write!(f, "0{zero_unit}");
        }
        let fits = |(_, scale): &&(&str, u64)| base.is_multiple_of(*scale);
        match self.units().iter().filter(fits).max_by_key(|(_, scale)| *scale) {
            Some((name, scale)) => write!(f, "{}{name}", base / scale),
            // Below one microsecond: no unit is that small, and none is needed.
            None => write!(f, "{}us", base as f64 / 1e3),
        }
    }
}

impl UnitError {
    /// What was expected in its place.
    pub const fn expected(&self) -> &'static str {
        match self {
            Self::NoUnit { kind, .. }
            | Self::UnknownUnit { kind, .. }
            | Self::NotANumber { kind, .. }
            | Self::TooLarge { kind, .. } => kind.expected(),
        }
    }

    /// What to write instead, where that can be told.
    pub fn fix(&self) -> Option<String> {
        match self {
            Self::NoUnit {
                text,
                kind: Quantity::Duration,
            } => Some(format!(
                "write `{0}s` for seconds or `{0}ms` for milliseconds",
                text.trim()
            )),
            Self::NoUnit {
                text,
                kind: Quantity::Size,
            } => Some(format!(
                "write `{0}B` for bytes or `{0}MiB` for mebibytes",
                text.trim()
            )),
            Self::UnknownUnit { text, unit, kind } => {
                let number = text.trim().strip_suffix(unit.as_str())?.trim_end();
                Some(format!("write `{number}{}`", kind.nearest_unit(unit)?))
            }
            Self::NotANumber { .. } | Self::TooLarge { .. } => None,
        }
    }
}

impl Period {
    /// A whole number of milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A whole number of seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }
}

impl ByteSize {
    /// A whole number of KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// A whole number of MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        Quantity::Duration
            .parse(text)
            .map(|nanos| Self(Duration::from_nanos(nanos)))
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        Quantity::Size.parse(text).map(Self)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Quantity::Duration.format(u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX), f)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Quantity::Size.format(self.0, f)
    }
}

impl Deref for Period {
    type Target = Duration;

    fn deref(&self) -> &Duration {
        &self.0
    }
}

impl Deref for ByteSize {
    type Target = u64;

    fn deref(&self) -> &u64 {
        &self.0
    }
}

/// Reads a string through [`FromStr`]; the error names what was expected.
fn from_text<'de, D: Deserializer<'de>, T: FromStr<Err = UnitError>>(deserializer: D) -> Result<T, D::Error> {
    let text = Cow::<str>::deserialize(deserializer)?;
    text.parse()
        .map_err(|error: UnitError| de::Error::custom(format!("{error}: expected {}", error.expected())))
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Period {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "homing-duration", "pattern": r"^\s*[0-9.]+\s*(us|ms|s|m|h|d)\s*$|\$\{" })
    }
}

impl JsonSchema for ByteSize {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "homing-size", "pattern": r"^\s*[0-9.]+\s*([KMGT]i?)?B\s*$|\$\{" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations_with_every_unit() {
        let nanos = |text: &str| text.parse::<Period>().unwrap().0.as_nanos();
        assert_eq!(nanos("250us"), 250_000);
        assert_eq!(nanos("50ms"), 50_000_000);
        assert_eq!(nanos("1.5s"), 1_500_000_000);
        assert_eq!(nanos("10 m"), 600_000_000_000);
        assert_eq!(nanos("2h"), 7_200_000_000_000);
        assert_eq!(nanos("1d"), 86_400_000_000_000);
    }

    #[test]
    fn reads_binary_and_decimal_sizes() {
        let bytes = |text: &str| text.parse::<ByteSize>().unwrap().0;
        assert_eq!(bytes("512B"), 512);
        assert_eq!(bytes("64KiB"), 65_536);
        assert_eq!(bytes("32MiB"), 33_554_432);
        assert_eq!(bytes("1GB"), 1_000_000_000);
        assert_eq!(bytes("0.5GiB"), 536_870_912);
    }

    #[test]
    fn says_what_is_wrong_and_what_to_write() {
        let error = "50".parse::<Period>().unwrap_err();
        assert_eq!(error.to_string(), "`50` has no unit");
        assert_eq!(
            error.fix().unwrap(),
            "write `50s` for seconds or `50ms` for milliseconds"
        );
        assert_eq!(
            "5 sec".parse::<Period>().unwrap_err().fix().unwrap(),
            "write `5s`"
        );
        assert_eq!(
            "32mb".parse::<ByteSize>().unwrap_err().fix().unwrap(),
            "write `32MB`"
        );
        assert_eq!(
            "32M".parse::<ByteSize>().unwrap_err().fix().unwrap(),
            "write `32MiB`"
        );
        assert!(matches!(
            "-1s".parse::<Period>(),
            Err(UnitError::NotANumber { .. })
        ));
        assert!(matches!(
            "soon".parse::<Period>(),
            Err(UnitError::NotANumber { .. })
        ));
        assert!(matches!(
            "1.2.3s".parse::<Period>(),
            Err(UnitError::NotANumber { .. })
        ));
        assert!(matches!(
            "99999999999TiB".parse::<ByteSize>(),
            Err(UnitError::TooLarge { .. })
        ));
    }

    #[test]
    fn text_survives_a_round_trip() {
        for text in ["0s", "50ms", "90s", "10m", "1h", "250us"] {
            assert_eq!(text.parse::<Period>().unwrap().to_string(), text);
        }
        for text in ["0B", "1000B", "64KiB", "32MiB", "1GiB", "3KB"] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size, "{text}");
        }
        assert_eq!(ByteSize::mib(64).to_string(), "64MiB");
    }
}

//! A borrowing MessagePack reader for untrusted bytes.
//!
//! Events are read straight into their own vectors, without a value tree in between: decoding keeps up with
//! applying. Lengths in the input are never trusted for allocation, and nesting is bounded.

/// The bytes are not MessagePack, or end too early, or nest too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the value ends early")]
    Truncated,
    #[error("byte 0xc1 starts no value")]
    Reserved,
    #[error("not a batch of events")]
    NotBatch,
    #[error("values nest deeper than {MAX_DEPTH}")]
    TooDeep,
}

/// Deepest nesting that [`Reader::skip`] follows; engine events use four levels.
const MAX_DEPTH: u32 = 32;

/// Bytes that an unsigned integer of at most 32 bits takes, by its first byte; 0 for everything else.
const U32_LEN: [u8; 256] = {
    let mut len = [0; 256];
    let mut small = 0;
    while small <= 0x7f {
        len[small] = 1;
        small += 1;
    }
    (len[0xcc], len[0xcd], len[0xce]) = (2, 3, 5);
    len
};

/// The start of a value: scalars whole, containers as the number of values that follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Head<'a> {
    Nil,
    Bool(bool),
    Uint(u64),
    /// Below zero.
    Int(i64),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Ext,
    Array(u32),
    /// Number of key-value pairs.
    Map(u32),
}

/// A position in a byte string.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many of `claimed` elements can be left at most: each takes a byte. Bounds an allocation.
    pub fn plausible(&self, claimed: u32) -> usize {
        (claimed as usize).min(self.rest.len())
    }

    /// Reads the next head.
    pub fn head(&mut self) -> Result<Head<'a>, Malformed> {
        let marker = self.array::<1>()?[0];
        Ok(match marker {
            0x00..=0x7f => Head::Uint(u64::from(marker)),
            0x80..=0x8f => Head::Map(u32::from(marker & 0x0f)),
            0x90..=0x9f => Head::Array(u32::from(marker & 0x0f)),
            0xa0..=0xbf => Head::Str(self.take(usize::from(marker & 0x1f))?),
            0xc0 => Head::Nil,
            0xc1 => return Err(Malformed::Reserved),
            0xc2 | 0xc3 => Head::Bool(marker == 0xc3),
            0xc4..=0xc6 => Head::Bin(self.sized(marker - 0xc4)?),
            0xc7..=0xc9 => self.ext(marker - 0xc7)?,
            0xca => Head::Float(f64::from(f32::from_be_bytes(self.array()?))),
            0xcb => Head::Float(f64::from_be_bytes(self.array()?)),
            0xcc..=0xcf => Head::Uint(self.uint(marker - 0xcc)?),
            0xd0..=0xd3 => self.int(marker - 0xd0)?,
            0xd4..=0xd8 => {
                self.take(1 + (1 << (marker - 0xd4)))?;
                Head::Ext
            }
            0xd9..=0xdb => Head::Str(self.sized(marker - 0xd9)?),
            0xdc => Head::Array(u32::from(u16::from_be_bytes(self.array()?))),
            0xdd => Head::Array(u32::from_be_bytes(self.array()?)),
            0xde => Head::Map(u32::from(u16::from_be_bytes(self.array()?))),
            0xdf => Head::Map(u32::from_be_bytes(self.array()?)),
            0xe0..=0xff => Head::Int(i64::from(marker as i8)),
        })
    }

    /// Reads as many unsigned integers of at most 32 bits as there are at the front, up to `out.len()`, and
    /// returns how many that were.
    ///
    /// Token ids are most of what engines send, in three widths that no branch predictor foresees: the width comes
    /// from a table and the value from a shift. The last few bytes of the input are left to [`Reader::head`].
    pub fn u32s(&mut self, out: &mut [u32]) -> usize {
        let mut read = 0;
        for slot in out {
            let Some(&[first, value @ ..]) = self.rest.first_chunk::<5>() else {
                break;
            };
            let len = U32_LEN[usize::from(first)];
            if len == 0 {
                break;
            }
            let wide = u32::from_be_bytes(value).wrapping_shr(8 * (5 - u32::from(len)));
            *slot = if len == 1 { u32::from(first) } else { wide };
            self.rest = &self.rest[usize::from(len)..];
            read += 1;
        }
        read
    }

    /// Passes over one whole value and returns its bytes.
    pub fn skip(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.rest;
        let head = self.head()?;
        self.skip_rest_of(head)?;
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// Passes over what a head that was just read still has to come.
    pub fn skip_rest_of(&mut self, head: Head<'a>) -> Result<(), Malformed> {
        // How many values are left on each open level: no recursion on the input's behalf.
        let mut open = [0u64; MAX_DEPTH as usize];
        let mut depth = 0;
        let mut next = Some(head);
        loop {
            let values = match next.take() {
                Some(Head::Array(len)) => u64::from(len),
                Some(Head::Map(len)) => 2 * u64::from(len),
                _ => 0,
            };
            if values > 0 {
                *open.get_mut(depth).ok_or(Malformed::TooDeep)? = values;
                depth += 1;
            }
            while depth > 0 && open[depth - 1] == 0 {
                depth -= 1;
            }
            if depth == 0 {
                return Ok(());
            }
            open[depth - 1] -= 1;
            next = Some(self.head()?);
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// An unsigned integer of 1, 2, 4 or 8 bytes for `width` 0 to 3.
    fn uint(&mut self, width: u8) -> Result<u64, Malformed> {
        Ok(match width {
            0 => u64::from(self.array::<1>()?[0]),
            1 => u64::from(u16::from_be_bytes(self.array()?)),
            2 => u64::from(u32::from_be_bytes(self.array()?)),
            _ => u64::from_be_bytes(self.array()?),
        })
    }

    fn int(&mut self, width: u8) -> Result<Head<'a>, Malformed> {
        let value = match width {
            0 => i64::from(i8::from_be_bytes(self.array()?)),
            1 => i64::from(i16::from_be_bytes(self.array()?)),
            2 => i64::from(i32::from_be_bytes(self.array()?)),
            _ => i64::from_be_bytes(self.array()?),
        };
        Ok(u64::try_from(value).map_or(Head::Int(value), Head::Uint))
    }

    /// Bytes after a length of 1, 2 or 4 bytes for `width` 0 to 2.
    fn sized(&mut self, width: u8) -> Result<&'a [u8], Malformed> {
        let len = self.uint(width)?;
        self.take(usize::try_from(len).map_err(|_| Malformed::Truncated)?)
    }

    fn ext(&mut self, width: u8) -> Result<Head<'a>, Malformed> {
        let len = self.uint(width)?;
        let with_type = usize::try_from(len).ok().and_then(|len| len.checked_add(1));
        self.take(with_type.ok_or(Malformed::Truncated)?)?;
        Ok(Head::Ext)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rmpv::Value;

    fn leaf() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<f32>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Binary),
            (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(t, d)| Value::Ext(t, d)),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        leaf().prop_recursive(4, 64, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..20).prop_map(Value::Map),
            ]
        })
    }

    /// Rebuilds the value from heads, to compare with what another implementation encoded.
    fn rebuild(reader: &mut Reader<'_>) -> Value {
        match reader.head().unwrap() {
            Head::Nil => Value::Nil,
            Head::Bool(b) => b.into(),
            Head::Uint(n) => n.into(),
            Head::Int(n) => n.into(),
            Head::Float(x) => x.into(),
            Head::Str(s) => std::str::from_utf8(s).unwrap().into(),
            Head::Bin(b) => Value::Binary(b.to_vec()),
            Head::Ext => Value::Ext(0, vec![]),
            Head::Array(n) => Value::Array((0..n).map(|_| rebuild(reader)).collect()),
            Head::Map(n) => Value::Map((0..n).map(|_| (rebuild(reader), rebuild(reader))).collect()),
        }
    }

    fn plain(value: Value) -> Value {
        match value {
            Value::F32(x) => f64::from(x).into(),
            Value::Ext(..) => Value::Ext(0, vec![]),
            Value::Array(items) => Value::Array(items.into_iter().map(plain).collect()),
            Value::Map(items) => Value::Map(items.into_iter().map(|(k, v)| (plain(k), plain(v))).collect()),
            other => other,
        }
    }

    proptest! {
        #[test]
        fn reads_what_another_encoder_wrote(value in value()) {
            let mut bytes = Vec::new();
            rmpv::encode::write_value(&mut bytes, &value).unwrap();
            prop_assert_eq!(Reader::new(&bytes).skip().unwrap(), &bytes[..]);
            let read = rebuild(&mut Reader::new(&bytes));
            // NaN is unequal to itself: compare the text.
            prop_assert_eq!(format!("{read:?}"), format!("{:?}", plain(value)));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Reader::new(&bytes[..cut]).skip(), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Reader::new(&bytes).skip();
        }
    }

    #[test]
    fn runs_of_integers() {
        let values = [0, 1, 127, 128, 255, 256, 65_535, 65_536, u32::MAX];
        let mut bytes = Vec::new();
        for value in values {
            rmpv::encode::write_value(&mut bytes, &Value::from(value)).unwrap();
        }
        // What follows decides where the run ends: something else, or too few bytes to look ahead.
        bytes.extend([0xc0, 1, 2, 3, 4]);
        let (mut reader, mut out) = (Reader::new(&bytes), [7; 12]);
        assert_eq!(reader.u32s(&mut out), values.len());
        assert_eq!(out[..values.len()], values);
        assert_eq!(reader.head(), Ok(Head::Nil));
        assert_eq!(reader.u32s(&mut out), 0);
        assert_eq!(reader.head(), Ok(Head::Uint(1)));
        assert_eq!(Reader::new(&bytes).u32s(&mut out[..3]), 3);
    }

    #[test]
    fn hostile_shapes() {
        assert_eq!(Reader::new(&[0x91; 1000]).skip(), Err(Malformed::TooDeep));
        assert_eq!(
            Reader::new(&[0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0]).skip(),
            Err(Malformed::Truncated)
        );
        assert_eq!(
            Reader::new(&[0xc6, 0xff, 0xff, 0xff, 0xff]).skip(),
            Err(Malformed::Truncated)
        );
        assert_eq!(Reader::new(&[0xc1]).skip(), Err(Malformed::Reserved));
    }
}

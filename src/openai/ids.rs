//! Lists of token ids.

use super::json::Elements;

/// An element of a list of token ids.
pub(super) enum TokenId<'a> {
    /// An id as it is written everywhere: digits alone, below 2^31.
    Plain(u32),
    /// Anything else (negative, fractional, huge, no number at all), as it stands in the body.
    Odd(&'a [u8]),
}

/// The elements of an array that [`super::json::Cursor::value`] accepted, read as token ids.
pub(super) struct TokenIds<'a> {
    elements: Elements<'a>,
}

impl<'a> TokenIds<'a> {
    pub(super) fn of(array: &'a [u8]) -> Self {
        Self {
            elements: Elements::of(array),
        }
    }
}

impl<'a> Iterator for TokenIds<'a> {
    type Item = TokenId<'a>;

    #[inline]
    fn next(&mut self) -> Option<TokenId<'a>> {
        let rest = self.elements.rest();
        let Some((id, length)) = plain_id(rest) else {
            return self.elements.next().map(TokenId::Odd);
        };
        self.elements.resume(rest.get(length..).unwrap_or_default());
        Some(TokenId::Plain(id))
    }
}

/// The plain id that `rest` starts with, and its length in bytes.
#[inline]
fn plain_id(rest: &[u8]) -> Option<(u32, usize)> {
    let (id, length) = match rest.first_chunk().map(short_number) {
        Some((id, length @ 1..8)) => (id, length),
        _ => long_number(rest),
    };
    let whole = matches!(rest.get(length), Some(b',' | b']' | b' ' | b'\n' | b'\r' | b'\t'));
    let plain = length > 0 && (length == 1 || rest[0] != b'0') && id < 1 << 31;
    (whole && plain).then_some((id as u32, length))
}

/// The number of up to seven digits that eight bytes start with, and how many digits it has; no sense with eight.
///
/// All eight bytes at once, as in Lemire's "Quickly parsing eight digits": digits are brought to the end of the word,
/// then summed as pairs, fours and eight by one multiplication each.
#[inline]
fn short_number(bytes: &[u8; 8]) -> (u64, usize) {
    const EACH: u64 = u64::MAX / 0xFF;
    let digits = u64::from_le_bytes(*bytes) ^ (EACH * 0x30);
    // A byte above 9 gets its highest bit set; what it carries over only reaches bytes behind it.
    let others = (digits.wrapping_add(EACH * 0x76) | digits) & (EACH << 7);
    let length = others.trailing_zeros() as usize / 8;
    if !(1..8).contains(&length) {
        return (0, length);
    }
    let eight = digits << (64 - 8 * length);
    let pairs = (eight.wrapping_mul((10 << 8) | 1) >> 8) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs.wrapping_mul((100 << 16) | 1) >> 16) & 0x0000_FFFF_0000_FFFF;
    (fours.wrapping_mul((10_000 << 32) | 1) >> 32, length)
}

/// The number that `rest` starts with and how many digits it has; any number above 2^31 with too many digits.
fn long_number(rest: &[u8]) -> (u64, usize) {
    let digits = rest
        .iter()
        .map(|byte| byte.wrapping_sub(b'0'))
        .take_while(|&digit| digit < 10);
    digits.fold((0, 0), |(id, length), digit| {
        (id.saturating_mul(10).saturating_add(u64::from(digit)), length + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::{TokenId, TokenIds};

    #[test]
    fn every_length_of_number_reads_as_itself() {
        let numbers = (0..10).flat_map(|power| {
            let ten = 10_u64.pow(power);
            [ten - 1, ten, ten + 7, ten * 2, ten * 987_654_321 % (1 << 31)]
        });
        for number in numbers
            .chain([0, (1 << 31) - 1])
            .filter(|&number| number < 1 << 31)
        {
            for list in [
                format!("[{number}]"),
                format!("[{number},1,2,3]"),
                format!("[ {number} , 1]"),
            ] {
                let first = TokenIds::of(list.as_bytes()).next();
                assert!(
                    matches!(first, Some(TokenId::Plain(id)) if u64::from(id) == number),
                    "{list}"
                );
            }
        }
    }

    #[test]
    fn other_elements_stay_as_they_are() {
        for element in [
            "2147483648",
            "99999999999999999999999",
            "-1",
            "1.0",
            "1e3",
            "01x",
            "null",
            "\"1\"",
            "[1]",
            "12345678x",
        ] {
            for list in [format!("[{element}]"), format!("[{element},12345678]")] {
                let first = TokenIds::of(list.as_bytes()).next();
                assert!(
                    matches!(first, Some(TokenId::Odd(odd)) if odd == element.as_bytes()),
                    "{list}"
                );
            }
        }
    }
}

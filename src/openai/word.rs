//! Eight bytes of a text looked at in one register.
//!
//! Keys and most values are shorter than what a vector search takes to begin.

/// The first place of `a` or `b` among eight bytes.
#[inline]
pub(super) const fn first_of(bytes: [u8; 8], a: u8, b: u8) -> Option<usize> {
    let word = u64::from_le_bytes(bytes);
    let hits = zero_bytes(word ^ repeat(a)) | zero_bytes(word ^ repeat(b));
    if hits == 0 {
        None
    } else {
        Some(hits.trailing_zeros() as usize / 8)
    }
}

/// Whether a control character is among eight bytes.
#[inline]
pub(super) const fn any_below_space(bytes: [u8; 8]) -> bool {
    let word = u64::from_le_bytes(bytes);
    // A borrow may make the byte above one that is below look so too, which changes nothing.
    word.wrapping_sub(repeat(b' ')) & !word & repeat(0x80) != 0
}

const fn repeat(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// The top bit of each byte that is 0, up to the first one; above that there may be false ones.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeat(1)) & !word & repeat(0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_control_characters_wherever_they_stand() {
        for byte in 0..=u8::MAX {
            for at in 0..8 {
                for other in [b' ', b'~', 0x7F, 0x80, 0xA0, 0xFF] {
                    let mut bytes = [other; 8];
                    bytes[at] = byte;
                    assert_eq!(any_below_space(bytes), byte < b' ', "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn finds_the_first_of_two_letters() {
        for (text, place) in [
            (b"........", None),
            (b"\".......", Some(0)),
            (b".......\"", Some(7)),
            (b"..\\.\"...", Some(2)),
            (b"..\".\\...", Some(2)),
            // Next to a hit, and with the top bit set, a byte may look like one.
            (b".\"#]\x22...", Some(1)),
            (b"\xa2\xdc\x80\xff#]..", None),
        ] {
            assert_eq!(first_of(*text, b'"', b'\\'), place, "{text:?}");
        }
    }
}

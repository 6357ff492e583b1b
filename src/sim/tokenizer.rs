//! A deterministic stand-in for a model's tokenizer.
//!
//! Text is cut into words of at most six letters, groups of at most three digits, single punctuation
//! marks and runs of white space; a single space belongs to what follows it. That gives English prose
//! 4 to 5 bytes per token, and the prefix property: a text cut before a space, or before any mark, gives a
//! prefix of the whole text's tokens. Ids are hashes of the pieces, so there is no table to load.

/// Token ids are below this: the vocabulary size of Llama 3.
pub const VOCABULARY: u32 = 128_256;
/// Starts a chat message (`<|im_start|>`).
pub const MESSAGE_START: u32 = 1;
/// Ends a chat message (`<|im_end|>`).
pub const MESSAGE_END: u32 = 2;

/// Ids from here on are single bytes, then come the hashed pieces.
const FIRST_BYTE: u32 = 16;
const FIRST_PIECE: u32 = FIRST_BYTE + 256;
const MAX_LETTERS: usize = 6;
const MAX_DIGITS: usize = 3;
const MAX_SPACES: usize = 16;

/// Appends the token ids of `text`.
pub fn tokenize(text: &str, ids: &mut Vec<u32>) {
    ids.extend(pieces(text).map(|piece| id_of(piece.as_bytes())));
}

/// The pieces of `text` in order; together they are the text.
pub fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(piece_len(rest));
        rest = after;
        Some(piece)
    })
}

/// Id of one piece.
pub fn id_of(piece: &[u8]) -> u32 {
    if let [byte] = piece {
        return FIRST_BYTE + u32::from(*byte);
    }
    let hash = piece.chunks(8).fold(piece.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let mixed = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    });
    let hash = hash.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32;
    // A multiply-shift instead of a division: uniform over the pieces' ids.
    FIRST_PIECE + ((hash * u64::from(VOCABULARY - FIRST_PIECE)) >> 32) as u32
}

/// The byte that a single-byte token stands for.
pub fn byte_of(id: u32) -> Option<u8> {
    id.checked_sub(FIRST_BYTE)
        .and_then(|byte| u8::try_from(byte).ok())
}

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Letter,
    Digit,
    Space,
    Mark,
}

fn class(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Digit,
        ' ' => Class::Space,
        // Latin letters with accents join words; other scripts give a token per character.
        '\u{c0}'..='\u{24f}' if c.is_alphabetic() => Class::Letter,
        _ => Class::Mark,
    }
}

/// Length in bytes of the first piece of a text that is not empty.
fn piece_len(text: &str) -> usize {
    let spaces = run_len(text, Class::Space, MAX_SPACES);
    if spaces > 1 {
        // The last space of a run belongs to the word after it.
        return if spaces == text.len() || spaces == MAX_SPACES {
            spaces
        } else {
            spaces - 1
        };
    }
    let body = &text[spaces..];
    let Some(first) = body.chars().next() else {
        return spaces;
    };
    let len = match class(first) {
        Class::Letter => run_len(body, Class::Letter, MAX_LETTERS),
        Class::Digit => run_len(body, Class::Digit, MAX_DIGITS),
        _ if first.is_whitespace() && spaces > 0 => 0,
        _ => first.len_utf8(),
    };
    spaces + len
}

/// Bytes of the characters of one class that start `text`, at most `max` of them.
fn run_len(text: &str, wanted: Class, max: usize) -> usize {
    text.chars()
        .take(max)
        .take_while(|&c| class(c) == wanted)
        .map(char::len_utf8)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        tokenize(text, &mut ids);
        ids
    }

    #[test]
    fn a_typical_prompt_has_a_typical_length() {
        for topic in [1, 7, 30] {
            let text = format!("Write one sentence about topic number {topic} in cloud computing.");
            assert_eq!(ids(&text).len(), 13, "{:?}", pieces(&text).collect::<Vec<_>>());
        }
    }

    #[test]
    fn pieces_are_bounded_words_digits_and_marks() {
        let cut = |text| pieces(text).collect::<Vec<_>>().join("|");
        assert_eq!(
            cut("Hello world, internationally  1234567!"),
            "Hello| world|,| intern|ationa|lly| | 123|456|7|!"
        );
        assert_eq!(cut("a\n\n  b\t c "), "a|\n|\n| | b|\t| c| ");
        assert_eq!(cut("caf\u{e9} \u{4f60}\u{597d}"), "caf\u{e9}| \u{4f60}|\u{597d}");
    }

    #[test]
    fn ids_stay_inside_the_vocabulary_and_spread() {
        let distinct: std::collections::HashSet<u32> =
            (0..2000).map(|i| id_of(format!(" {i:05}").as_bytes())).collect();
        assert!(distinct.iter().all(|&id| (FIRST_PIECE..VOCABULARY).contains(&id)));
        assert!(distinct.len() > 1950, "{} distinct ids of 2000", distinct.len());
        assert_eq!(byte_of(id_of(b"x")), Some(b'x'));
    }

    proptest! {
        #[test]
        fn pieces_make_up_the_text(text in "\\PC{0,60}|[ a-z0-9\n]{0,60}") {
            prop_assert_eq!(pieces(&text).collect::<String>(), text);
        }

        #[test]
        fn a_text_cut_at_a_word_boundary_gives_a_prefix(words in proptest::collection::vec("[a-zA-Z]{1,12}|[0-9]{1,7}|[.,;!]", 2..20), at in 1usize..19) {
            let at = at.min(words.len() - 1);
            let (whole, prefix) = (ids(&words.join(" ")), ids(&words[..at].join(" ")));
            prop_assert_eq!(&whole[..prefix.len()], &prefix[..]);
        }
    }
}

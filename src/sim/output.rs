//! What a simulated model says: sentences of common words, determined by the prompt.

use super::tokenizer::{byte_of, id_of};
use std::collections::HashMap;
use std::sync::LazyLock;

const WORDS: &str = "about above access across action actual adding agent agree allow almost along also always \
    amount answer around asked away batch became before began being better beyond block both bound bring build \
    buffer cache called came carry change choice clear client close cloud common copy could count course \
    cover create data decide degree depend design detail direct done down draft driver during each early easy edge \
    effort either engine enough even event every exact expect extra fact fair fall fast field figure final first \
    fleet focus follow form found free from full future gain gather give global going good graph great group grow \
    half hand happen have head heavy help here high hold host hour idea image impact inner inside issue item join \
    just keep kernel kind know large last later layer learn least leave left length less letter level light like \
    limit line link list little load local logic long look made main make many mark match matter mean memory merge \
    method might mind model modern moment more most move much must name near need never next node note number \
    object often once only open option order other over owner page pair part past path people phase place \
    plain point policy prefix price proof public queue quick quite range rather reach read ready reason record \
    region reply rest result return right round route rule sample scale score search second sense server \
    share shift short side signal simple single small some source space speed stable stage start state step \
    still store stream strong such system table take target task team term test text their then there thing think \
    time token toward trace track trade train true turn under unit until update usage useful value vary very view \
    wait want water weight well were what when where which while whole wide window with within word work world \
    would write year yield";

/// Words of a sentence before its full stop.
const SENTENCE_WORDS: u32 = 11;

struct Word {
    /// " word", " Word" and "Word".
    texts: [String; 3],
    ids: [u32; 3],
}

static VOCABULARY: LazyLock<Vec<Word>> = LazyLock::new(|| WORDS.split_whitespace().map(Word::new).collect());

static TEXT_BY_ID: LazyLock<HashMap<u32, &'static str>> = LazyLock::new(|| {
    let words = VOCABULARY.iter();
    words
        .flat_map(|word| {
            word.ids
                .iter()
                .zip(&word.texts)
                .map(|(&id, text)| (id, text.as_str()))
        })
        .collect()
});

impl Word {
    fn new(word: &str) -> Self {
        let capital = word[..1].to_uppercase() + &word[1..];
        let texts = [format!(" {word}"), format!(" {capital}"), capital];
        Self {
            ids: [0, 1, 2].map(|i| id_of(texts[i].as_bytes())),
            texts,
        }
    }
}

/// The text of a token that [`Output`] can contain.
pub fn text_of(id: u32) -> Option<&'static str> {
    if id == id_of(b".") {
        Some(".")
    } else {
        TEXT_BY_ID.get(&id).copied()
    }
}

/// The texts of `ids`. Those of other tokens than single bytes and [`Output`]'s are U+FFFD, because ids are hashes.
pub fn detokenize(ids: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(ids.len() * 5);
    for &id in ids {
        match (text_of(id), byte_of(id)) {
            (Some(text), _) => bytes.extend_from_slice(text.as_bytes()),
            (None, Some(byte)) => bytes.push(byte),
            (None, None) => bytes.extend_from_slice("\u{fffd}".as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Tokens of words with their texts, over and over, beginning with one that depends on `start`.
pub fn words_from(start: u32) -> impl Iterator<Item = (u32, &'static str)> {
    let words = VOCABULARY.iter().cycle().skip(start as usize % VOCABULARY.len());
    words.map(|word| (word.ids[0], word.texts[0].as_str()))
}

/// A whole output, known before its first token.
#[derive(Clone, Debug, Default)]
pub struct Output {
    pub text: String,
    /// Token ids; tokenizing `text` gives the same.
    pub ids: Vec<u32>,
    /// End of each token's text in `text`; never beyond what a stop string leaves.
    ends: Vec<u32>,
    /// The stop string that ended it.
    pub stop: Option<String>,
}

impl Output {
    /// `tokens` tokens that depend on `seed` alone. With `continues_text` the first word brings its own
    /// leading space; otherwise it starts a message.
    pub fn generate(seed: u64, tokens: u32, continues_text: bool) -> Self {
        let mut output = Self {
            text: String::with_capacity(tokens as usize * 5),
            ..Self::default()
        };
        output.ids.reserve(tokens as usize);
        output.ends.reserve(tokens as usize);
        let mut state = seed;
        for index in 0..tokens {
            output.push(index, &mut state, continues_text);
        }
        output
    }

    fn push(&mut self, index: u32, state: &mut u64, continues_text: bool) {
        let place = index % (SENTENCE_WORDS + 1);
        let (text, id) = if place == SENTENCE_WORDS {
            (".", id_of(b"."))
        } else {
            let form = match (place, index) {
                (0, 0) if !continues_text => 2,
                (0, _) => 1,
                _ => 0,
            };
            let words = &*VOCABULARY;
            let word = &words[((u128::from(next(state)) * words.len() as u128) >> 64) as usize];
            (word.texts[form].as_str(), word.ids[form])
        };
        self.text.push_str(text);
        self.ids.push(id);
        self.ends.push(self.text.len() as u32);
    }

    /// Cuts the output before the first of the stop strings after its first `min_tokens` tokens. The token that
    /// completes the stop string still counts, as in vLLM.
    pub fn stop_at(&mut self, stops: &[String], min_tokens: u32) {
        let from = self.slice(0, min_tokens.min(self.tokens())).len();
        let found = stops.iter().filter(|s| !s.is_empty());
        let found = found
            .filter_map(|s| self.text[from..].find(s.as_str()).map(|at| (from + at, s)))
            .min();
        let Some((at, stop)) = found else { return };
        let last = self.ends.partition_point(|&end| (end as usize) < at + stop.len());
        self.ids.truncate(last + 1);
        self.ends.truncate(last + 1);
        self.ends.iter_mut().for_each(|end| *end = (*end).min(at as u32));
        self.text.truncate(at);
        self.stop = Some(stop.clone());
    }

    /// Number of tokens.
    pub fn tokens(&self) -> u32 {
        self.ids.len() as u32
    }

    /// Text of the tokens `from..to`.
    pub fn slice(&self, from: u32, to: u32) -> &str {
        let end = |tokens: u32| {
            tokens
                .checked_sub(1)
                .map_or(0, |i| self.ends.get(i as usize).copied().unwrap_or(0))
        };
        self.text
            .get(end(from) as usize..end(to) as usize)
            .unwrap_or_default()
    }
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::tokenize;
    use super::*;

    #[test]
    fn every_word_is_one_token_with_an_id_of_its_own() {
        assert!(VOCABULARY.len() > 256, "{} words", VOCABULARY.len());
        assert_eq!(TEXT_BY_ID.len(), 3 * VOCABULARY.len());
    }

    #[test]
    fn output_is_deterministic_and_tokenizes_to_itself() {
        for continues_text in [false, true] {
            let output = Output::generate(42, 100, continues_text);
            let mut ids = Vec::new();
            tokenize(&output.text, &mut ids);
            assert_eq!((&ids, ids.len()), (&output.ids, 100));
            assert_eq!(output.text, Output::generate(42, 100, continues_text).text);
            assert_ne!(output.text, Output::generate(43, 100, continues_text).text);
            assert_eq!(output.text.starts_with(' '), continues_text);
            assert_eq!(
                (0..100).map(|i| output.slice(i, i + 1)).collect::<String>(),
                output.text
            );
            assert!(output.ids.iter().all(|&id| text_of(id).is_some()));
        }
    }

    #[test]
    fn a_stop_string_ends_the_output_inside_a_token() {
        let whole = Output::generate(1, 50, false);
        let mut output = whole.clone();
        output.stop_at(&["never there".into(), ".".into()], 0);
        assert_eq!((output.tokens(), output.stop.as_deref()), (12, Some(".")));
        assert_eq!(output.text, whole.text.split('.').next().unwrap());
        let pieces: Vec<_> = (0..12).map(|i| output.slice(i, i + 1)).collect();
        assert_eq!((pieces.concat(), pieces[11]), (output.text.clone(), ""));
        for (min_tokens, tokens) in [(11, 12), (12, 24), (49, 50), (50, 50), (999, 50)] {
            let mut output = whole.clone();
            output.stop_at(&[".".into()], min_tokens);
            assert_eq!(output.tokens(), tokens, "at least {min_tokens}");
        }
    }
}

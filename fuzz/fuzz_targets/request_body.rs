//! Any bytes as a request body: the first one picks the API, the rest is the body.
#![no_main]

use homing::openai::{Fed, PathKind, Peek, PromptSink};
use libfuzzer_sys::fuzz_target;

const KINDS: [PathKind; 6] = [
    PathKind::Completions,
    PathKind::Chat,
    PathKind::Responses,
    PathKind::Messages,
    PathKind::Embeddings,
    PathKind::Tokenize,
];

#[derive(Default, PartialEq, Eq, Debug)]
struct Chains(Vec<Vec<u8>>);

impl PromptSink for Chains {
    fn write(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(chain) => chain.extend_from_slice(bytes),
            None => self.0.push(bytes.to_vec()),
        }
    }

    fn next_prompt(&mut self) {
        self.0.push(vec![]);
    }
}

fn feed(kind: PathKind, peek: &Peek<'_>) -> (Chains, Fed) {
    let mut chains = Chains::default();
    let fed = peek.feed(kind, &mut chains);
    (chains, fed)
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, body)) = data.split_first() else { return };
    let kind = KINDS[usize::from(kind) % KINDS.len()];
    let Ok(peek) = Peek::parse(body) else {
        // What serde_json reads as an object is never refused, but for a byte order mark.
        assert!(serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(body).is_err());
        return;
    };
    let (chains, fed) = feed(kind, &peek);
    assert_eq!(chains.0.iter().map(Vec::len).sum::<usize>() as u64, fed.bytes);
    assert!(chains.0.len() <= fed.prompts as usize);
    let _ = (peek.model(), peek.cache_salt(), peek.max_output_tokens(), peek.session());

    // Whitespace around the body is no content.
    let spaced = [b" \n", body, b"\t "].concat();
    let peek = Peek::parse(&spaced).expect("still JSON");
    assert_eq!(feed(kind, &peek), (chains, fed));
});

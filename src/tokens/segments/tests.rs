use super::*;
use proptest::prelude::*;
use tokenizers::AddedToken;

fn tiny_model() -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_file("tests/fixtures/tiny-model/tokenizer.json").unwrap()
}

/// A tokenizer in which everything that can depend on the neighbourhood does: a word-start marker at the
/// text's start only, tokens that swallow white space, whole-word tokens, overlapping tokens.
fn awkward_model(prepend_scheme: &str) -> tokenizers::Tokenizer {
    let letters = "abcdefghijklmnopqrstuvwxyz<>|\u{2581} \n.";
    let mut vocab: serde_json::Map<_, _> = letters
        .chars()
        .zip(0..)
        .map(|(letter, id)| (letter.to_string(), serde_json::json!(id)))
        .collect();
    vocab.insert("<unk>".to_owned(), 100.into());
    for (id, merged) in (101..).zip(["\u{2581}a", "ab", "\u{2581}ab"]) {
        vocab.insert(merged.to_owned(), id.into());
    }
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "decoder": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": prepend_scheme, "split": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [200], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": [["\u{2581}", "a"], ["a", "b"], ["\u{2581}a", "b"]]},
    });
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap();
    let special = |content: &str| AddedToken::from(content, true).normalized(false);
    tokenizer
        .add_special_tokens([
            special("<s>"),
            special("<|e|>"),
            special("<|e|>\n"),
            special("<l>").lstrip(true),
            special("<r>").rstrip(true),
            special("word").single_word(true),
            special("\n.").normalized(true),
        ])
        .unwrap();
    tokenizer
}

fn same(segments: &Segments, text: &str) {
    for special_tokens in [false, true] {
        let expected = encode(&segments.tokenizer, text, special_tokens).unwrap();
        // Twice: the second time from memory.
        for _ in 0..2 {
            assert_eq!(
                segments.encode(text, special_tokens).unwrap(),
                expected,
                "{text:?}"
            );
        }
    }
}

#[test]
fn whitespace_and_words_at_cuts() {
    for scheme in ["first", "always", "never"] {
        let segments = Segments::new(awkward_model(scheme), 1 << 20);
        assert!(segments.finder.is_some() && segments.around.is_some());
        for text in [
            "",
            "ab ab",
            "<|e|>ab",
            " <|e|> ab <|e|>",
            "ab<|e|>\nab<|e|>ab",
            "x<r>  <|e|>  <l>ab",
            "<|e|>  <l>",
            "<|e|>word",
            "word<|e|>wordword <|e|> word",
            "a<|e|><|e|><|e|>\n\n.",
            "<|e|>\n.ab",
        ] {
            same(&segments, text);
        }
    }
}

#[test]
fn a_longer_conversation_takes_its_start_from_memory() {
    let segments = Segments::new(tiny_model(), 1 << 20);
    let turn = |n: usize| {
        format!(
            "<|im_start|>user\nturn {n}: {}<|im_end|>\n",
            "some words to read ".repeat(10)
        )
    };
    let mut text = String::new();
    for n in 0..20 {
        text += &turn(n);
        same(&segments, &text);
    }
    let fifth = turn(5);
    let inner = fifth.trim_end().strip_prefix("<|im_start|>").unwrap();
    assert!(segments.memory.lock().get(&Key::new(Some(1), inner)).is_some());
}

proptest! {
    #[test]
    fn segments_give_what_the_whole_gives(pieces in prop::collection::vec(piece(), 0..40), scheme in 0..3_usize) {
        let text: String = pieces.concat();
        same(&Segments::new(awkward_model(["first", "always", "never"][scheme]), 1 << 20), &text);
    }

    #[test]
    fn segments_of_a_byte_level_model(pieces in prop::collection::vec(tiny_piece(), 0..30)) {
        thread_local! {
            static SEGMENTS: Segments = Segments::new(tiny_model(), 1 << 16);
        }
        SEGMENTS.with(|segments| same(segments, &pieces.concat()));
    }
}

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(vec!["<s>", "<|e|>", "<|e|>\n", "<l>", "<r>", "word", "\n.", "<|", "e|>"]).prop_map(str::to_owned),
        2 => "[ab \n.]{0,4}",
        1 => "[a-z \n]{0,100}",
    ]
}

fn tiny_piece() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["<|im_start|>", "<|im_end|>", "<|endoftext|>", "\n", " "])
            .prop_map(str::to_owned),
        any::<String>(),
        "[a-z ,.]{0,120}",
    ]
}

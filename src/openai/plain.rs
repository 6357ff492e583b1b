//! Prompts as the client wrote them, of the APIs that take a prompt as it is.

use super::ids::{TokenId, TokenIds};
use super::json::{Elements, Shape, shape, string_inside};
use super::path::PathKind;
use super::peek::{Field, Peek};
use super::text::to_text;
use std::borrow::Cow;

/// One prompt of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlainPrompt<'a> {
    Text(Cow<'a, str>),
    Ids(Vec<u32>),
}

/// Fields that make more or less of a prompt than stands there.
const CHANGES: [Field; 5] = [
    Field::PromptEmbeds,
    Field::MmPayload,
    Field::Suffix,
    Field::TruncatePromptTokens,
    Field::Messages,
];

impl<'a> Peek<'a> {
    /// The prompts of a completion, an embedding or a tokenization, in their order. `None` for a request
    /// whose prompt is rendered, or is anything but texts and lists of token ids.
    pub fn plain_prompts(&self, kind: PathKind) -> Option<Vec<PlainPrompt<'a>>> {
        let prompt = match kind {
            PathKind::Completions | PathKind::Tokenize => self.value(Field::Prompt),
            PathKind::Embeddings => self.value(Field::Input),
            _ => return None,
        };
        if CHANGES.iter().any(|&field| !self.value(field).is_empty()) {
            return None;
        }
        let is_list = matches!(
            Elements::of(prompt).next().map(shape),
            Some(Shape::Array | Shape::String)
        );
        if shape(prompt) == Shape::Array && is_list {
            Elements::of(prompt).map(one).collect()
        } else {
            Some(vec![one(prompt)?])
        }
    }

    /// Whether the tokenizer is to add its special tokens, if the request says so.
    pub fn add_special_tokens(&self) -> Option<bool> {
        match self.value(Field::AddSpecialTokens) {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }
}

fn one(prompt: &[u8]) -> Option<PlainPrompt<'_>> {
    if let Some(inside) = string_inside(prompt) {
        return Some(PlainPrompt::Text(to_text(inside)));
    }
    if shape(prompt) != Shape::Array || Elements::is_empty_array(prompt) {
        return None;
    }
    let ids = TokenIds::of(prompt).map(|id| match id {
        TokenId::Plain(id) => Some(id),
        TokenId::Odd(_) => None,
    });
    Some(PlainPrompt::Ids(ids.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(kind: PathKind, body: &str) -> Option<Vec<String>> {
        let peek = Peek::parse(body.as_bytes()).unwrap();
        let prompts = peek.plain_prompts(kind)?;
        Some(prompts.iter().map(|prompt| format!("{prompt:?}")).collect())
    }

    #[test]
    fn texts_and_ids_alone_and_in_lists() {
        let completion = |prompt| prompts(PathKind::Completions, &format!("{{\"prompt\": {prompt}}}"));
        let some = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
        assert_eq!(completion(r#""a\u00e9\n""#), some(&["Text(\"aé\\n\")"]));
        assert_eq!(completion("[1, 22,333]"), some(&["Ids([1, 22, 333])"]));
        assert_eq!(completion("[[1],[2,3]]"), some(&["Ids([1])", "Ids([2, 3])"]));
        assert_eq!(completion(r#"["x",[7]]"#), some(&["Text(\"x\")", "Ids([7])"]));
        for odd in ["[]", "[[]]", "[1,-2]", "[1.5]", "{}", "7", "null", r#"["x",{}]"#] {
            assert_eq!(completion(odd), None, "{odd}");
        }
        assert_eq!(
            prompts(PathKind::Embeddings, r#"{"input":[5]}"#),
            some(&["Ids([5])"])
        );
    }

    #[test]
    fn what_is_rendered_or_changed_is_not_plain() {
        for body in [
            r#"{"prompt":"x","truncate_prompt_tokens":5}"#,
            r#"{"prompt":"x","prompt_embeds":"AA"}"#,
            r#"{"messages":[],"prompt":"x"}"#,
        ] {
            assert_eq!(prompts(PathKind::Completions, body), None, "{body}");
        }
        assert_eq!(prompts(PathKind::Chat, r#"{"prompt":"x"}"#), None);
    }
}

//! Probabilities of tokens. The model is sure of itself: what comes has half of the probability, and each other
//! candidate half of what is left.

use super::*;
use crate::sim::output::{detokenize, text_of, words_from};
use crate::sim::tokenizer::pieces;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// A token with its text.
type Token<'a> = (u32, Cow<'a, str>);

/// Natural logarithm of the probability of the candidate at `rank`, counted from 0.
fn logprob(rank: usize) -> f64 {
    -std::f64::consts::LN_2 * (rank + 1) as f64
}

/// `count` tokens that could have come, the one that came first.
fn candidates(token: &Token, count: u32) -> Vec<(usize, u32, String)> {
    let came = std::iter::once((token.0, token.1.as_ref().to_owned()));
    let others = words_from(token.0).filter(|&(id, _)| id != token.0);
    let all = came.chain(others.map(|(id, text)| (id, text.to_owned())));
    let numbered = all.enumerate().map(|(rank, (id, text))| (rank, id, text));
    numbered.take(count as usize).collect()
}

fn output_tokens<'a>(part: &Part, from: u32, to: u32) -> impl Iterator<Item = Token<'a>> {
    let ids = part
        .output
        .ids
        .get(from as usize..to as usize)
        .unwrap_or_default();
    ids.iter().map(|&id| (id, text_of(id).unwrap_or_default().into()))
}

/// The text that `echo` repeats.
pub(super) fn echoed<'a>(job: &'a Job, part: &Part) -> Cow<'a, str> {
    let prompt = &job.request.prompts[part.prompt];
    match prompt.text.is_empty() {
        true => detokenize(&prompt.tokens).into(),
        false => prompt.text.as_str().into(),
    }
}

fn prompt_tokens<'a>(job: &'a Job, part: &Part) -> Vec<Token<'a>> {
    let prompt = &job.request.prompts[part.prompt];
    let ids = prompt.tokens.iter().copied();
    match prompt.text.is_empty() {
        true => ids.map(|id| (id, detokenize(&[id]).into())).collect(),
        false => ids.zip(pieces(&prompt.text).map(Cow::from)).collect(),
    }
}

/// `logprobs` of a completion's tokens `from..to`, and of its prompt's if that is repeated.
pub(super) fn of_completion(job: &Job, part: &Part, from: u32, to: u32) -> Value {
    let Some(count) = job.request.logprobs else {
        return Value::Null;
    };
    let (mut offset, mut tokens) = (part.output.slice(0, from).chars().count(), Vec::new());
    if job.request.echo {
        tokens = prompt_tokens(job, part);
        if from > 0 {
            offset += tokens
                .drain(..)
                .map(|(_, text)| text.chars().count())
                .sum::<usize>();
        }
    }
    // Nothing comes before the first token of a prompt that could tell how likely it is.
    let unknown = usize::from(!tokens.is_empty());
    tokens.extend(output_tokens(part, from, to));
    let known = |token: &Token| logprob_by_text(token, count.max(1));
    let offsets = tokens.iter().map(|(_, text)| {
        let start = offset;
        offset += text.chars().count();
        start
    });
    let offsets: Vec<usize> = offsets.collect();
    json!({
        "text_offset": offsets,
        "token_logprobs": with_unknown(unknown, &tokens, |_| logprob(0).into()),
        "tokens": tokens.iter().map(|(_, text)| text.as_ref()).collect::<Vec<_>>(),
        "top_logprobs": with_unknown(unknown, &tokens, known),
    })
}

/// `null` for the first `unknown` tokens, then what `value` says.
fn with_unknown(unknown: usize, tokens: &[Token], value: impl Fn(&Token) -> Value) -> Value {
    let known = tokens.iter().skip(unknown).map(value);
    std::iter::repeat_n(Value::Null, unknown).chain(known).collect()
}

fn logprob_by_text(token: &Token, count: u32) -> Value {
    let entries = candidates(token, count).into_iter();
    let entries = entries.map(|(rank, _, text)| (text, logprob(rank).into()));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// `prompt_logprobs` of a completion that repeats its prompt.
pub(super) fn of_prompt(job: &Job, part: &Part) -> Value {
    let Some(count) = job.request.logprobs.filter(|_| job.request.echo) else {
        return Value::Null;
    };
    let by_id = |token: &Token| {
        let entries = candidates(token, count.max(1)).into_iter();
        let entries = entries.map(|(rank, id, text)| {
            let entry = json!({"logprob": logprob(rank), "rank": rank + 1, "decoded_token": text});
            (id.to_string(), entry)
        });
        Value::Object(entries.collect::<Map<_, _>>())
    };
    with_unknown(1, &prompt_tokens(job, part), by_id)
}

/// `logprobs` of a chat's tokens `from..to`.
pub(super) fn of_chat(job: &Job, part: &Part, from: u32, to: u32) -> Value {
    let Some(count) = job.request.logprobs else {
        return Value::Null;
    };
    let entry =
        |rank: usize, text: &str| json!({"token": text, "logprob": logprob(rank), "bytes": text.as_bytes()});
    let content = output_tokens(part, from, to).map(|token| {
        let mut content = entry(0, &token.1);
        let top = candidates(&token, count).into_iter();
        content["top_logprobs"] = top.map(|(rank, _, text)| entry(rank, &text)).collect();
        content
    });
    json!({"content": content.collect::<Value>()})
}

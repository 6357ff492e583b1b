//! Generated request bodies, and the many ways to spell one.

use crate::openai::PathKind;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::{Map, Value, json};

const KINDS: [PathKind; 6] = [
    PathKind::Completions,
    PathKind::Chat,
    PathKind::Responses,
    PathKind::Messages,
    PathKind::Embeddings,
    PathKind::Tokenize,
];

const TEXTS: [&str; 12] = [
    "",
    "a",
    "hello world",
    "say \"hi\"",
    "back\\slash",
    "line\nbreak\ttab\r",
    "/",
    "é€😀",
    "\0\u{1f}\u{7f}",
    "{\"a\": [1]}",
    "\u{feff}",
    "a long text that has nothing to escape and fills more than one vector register of the scanner",
];

const KEYS: [&str; 14] = [
    "type",
    "text",
    "content",
    "name",
    "image_url",
    "source",
    "cache_control",
    "annotations",
    "tool_calls",
    "output",
    "id",
    "",
    "k\"ey\n",
    "é",
];

const TYPES: [&str; 12] = [
    "text",
    "input_text",
    "output_text",
    "image_url",
    "input_audio",
    "file",
    "tool_result",
    "tool_use",
    "thinking",
    "message",
    "function_call_output",
    "new",
];

/// Fields of every API, known and unknown, that are not the prompt itself.
const FIELDS: [&str; 14] = [
    "model",
    "temperature",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "prompt_embeds",
    "mm_payload",
    "truncate_prompt_tokens",
    "suffix",
    "previous_response_id",
];

/// Makes bodies from a seed.
pub(super) struct Bodies {
    rng: Pcg64Mcg,
}

impl Bodies {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Pcg64Mcg::seed_from_u64(seed),
        }
    }

    pub(super) fn kind(&mut self) -> PathKind {
        self.pick(&KINDS)
    }

    /// A body with prompts of every shape, good and bad.
    pub(super) fn body(&mut self) -> Map<String, Value> {
        let mut members = vec![];
        for name in ["messages", "input"] {
            if self.chance(0.6) {
                let messages = if self.chance(0.9) {
                    self.list(4, Self::message)
                } else {
                    self.value(2)
                };
                members.push((name.to_owned(), messages));
            }
        }
        for name in ["prompt", "input"] {
            if self.chance(0.6) {
                members.push((name.to_owned(), self.prompt()));
            }
        }
        for name in ["system", "instructions"] {
            if self.chance(0.4) {
                members.push((name.to_owned(), self.content()));
            }
        }
        if self.chance(0.3) {
            members.push(("tools".to_owned(), self.list(2, |bodies| bodies.value(3))));
        }
        for _ in 0..self.below(4) {
            members.push((self.pick(&FIELDS).to_owned(), self.value(2)));
        }
        self.shuffle(&mut members);
        Map::from_iter(members)
    }

    pub(super) fn message(&mut self) -> Value {
        if self.chance(0.03) {
            return self.value(1);
        }
        let mut members = vec![];
        if self.chance(0.95) {
            let role = self.pick(&["system", "user", "assistant", "tool"]);
            members.push((
                "role".to_owned(),
                if self.chance(0.95) {
                    json!(role)
                } else {
                    self.value(1)
                },
            ));
        }
        if self.chance(0.9) {
            members.push(("content".to_owned(), self.content()));
        }
        for _ in 0..self.below(3) {
            members.push((self.key(), self.value(2)));
        }
        if self.chance(0.1) {
            members.push(("output".to_owned(), self.content()));
        }
        self.shuffle(&mut members);
        Value::Object(Map::from_iter(members))
    }

    fn content(&mut self) -> Value {
        match self.below(10) {
            0 => Value::Null,
            1 => self.value(1),
            2..6 => Value::from(self.text()),
            _ => self.list(3, |bodies| bodies.part(1)),
        }
    }

    fn part(&mut self, nesting: u8) -> Value {
        match self.below(10) {
            0 => self.value(2),
            1 => Value::from(self.text()),
            2..6 => json!({"type": self.pick(&TYPES[..3]), "text": self.text()}),
            _ => {
                let mut members = vec![("type".to_owned(), json!(self.pick(&TYPES)))];
                for _ in 0..self.below(3) {
                    members.push((self.key(), self.value(2)));
                }
                if nesting < 4 && self.chance(0.4) {
                    members.push((
                        "content".to_owned(),
                        self.list(3, |bodies| bodies.part(nesting + 1)),
                    ));
                }
                self.shuffle(&mut members);
                Value::Object(Map::from_iter(members))
            }
        }
    }

    fn prompt(&mut self) -> Value {
        match self.below(6) {
            0 => self.value(2),
            1 => self.list(4, |bodies| Value::from(bodies.text())),
            2 => self.ids(),
            3 => self.list(3, Self::ids),
            _ => Value::from(self.text()),
        }
    }

    fn ids(&mut self) -> Value {
        self.list(6, |bodies| {
            if bodies.chance(0.9) {
                json!(bodies.below(1 << 17))
            } else {
                bodies.value(1)
            }
        })
    }

    fn value(&mut self, depth: u32) -> Value {
        match self.below(if depth == 0 { 7 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.chance(0.5)),
            2 => self.pick(&[
                json!(0),
                json!(-1),
                json!(4096),
                json!(1_u64 << 31),
                json!(1_u64 << 63),
                json!(0.5),
            ]),
            3..7 => Value::from(self.text()),
            7 => self.list(3, |bodies| bodies.value(depth - 1)),
            _ => {
                let members = (0..self.below(4)).map(|_| (self.key(), self.value(depth - 1)));
                Value::Object(members.collect())
            }
        }
    }

    fn key(&mut self) -> String {
        self.pick(&KEYS).to_owned()
    }

    pub(super) fn text(&mut self) -> String {
        (0..self.below(3)).map(|_| self.pick(&TEXTS)).collect()
    }

    fn list(&mut self, longest: u64, element: impl Fn(&mut Self) -> Value) -> Value {
        (0..self.below(longest + 1)).map(|_| element(self)).collect()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from.choose(&mut self.rng).expect("not empty").clone()
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let other = self.below(at as u64 + 1);
            list.swap(at, other as usize);
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.random_range(0..bound)
    }

    /// One of the many texts of a value: random whitespace and escapes, and top-level keys given twice.
    pub(super) fn spell(&mut self, body: &Map<String, Value>) -> String {
        let mut out = self.space();
        out.push('{');
        for (index, (key, value)) in body.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            if self.chance(0.1) {
                let decoy = self.value(2);
                self.spell_member(key, &decoy, &mut out);
                out.push(',');
            }
            self.spell_member(key, value, &mut out);
        }
        out + "}" + &self.space()
    }

    fn spell_member(&mut self, key: &str, value: &Value, out: &mut String) {
        *out += &self.space();
        self.spell_string(key, out);
        *out += &self.space();
        out.push(':');
        self.spell_value(value, out);
    }

    fn spell_value(&mut self, value: &Value, out: &mut String) {
        *out += &self.space();
        match value {
            Value::String(text) => self.spell_string(text, out),
            Value::Array(list) => {
                out.push('[');
                for (index, element) in list.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    self.spell_value(element, out);
                }
                *out += &self.space();
                out.push(']');
            }
            Value::Object(object) => {
                out.push('{');
                for (index, (key, value)) in object.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    self.spell_member(key, value, out);
                }
                *out += &self.space();
                out.push('}');
            }
            other => *out += &other.to_string(),
        }
        *out += &self.space();
    }

    fn spell_string(&mut self, text: &str, out: &mut String) {
        let escaping = self.pick(&[0.0, 0.02, 1.0]);
        out.push('"');
        for letter in text.chars() {
            let short = match letter {
                '\n' => "\\n",
                '\t' => "\\t",
                '\r' => "\\r",
                '\\' => "\\\\",
                '"' => "\\\"",
                '/' => "\\/",
                _ => "",
            };
            let must = matches!(letter, '"' | '\\' | '\0'..' ');
            match (short, must || self.chance(escaping)) {
                (_, false) => out.push(letter),
                ("", true) => self.spell_units(letter, out),
                (short, true) => *out += short,
            }
        }
        out.push('"');
    }

    fn spell_units(&mut self, letter: char, out: &mut String) {
        for unit in letter.encode_utf16(&mut [0; 2]) {
            *out += &if self.chance(0.5) {
                format!("\\u{unit:04x}")
            } else {
                format!("\\u{unit:04X}")
            };
        }
    }

    fn space(&mut self) -> String {
        self.pick(&["", "", "", " ", "\n", "\r\n\t "]).to_owned()
    }
}

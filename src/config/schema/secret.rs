//! Words that are never shown.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

/// A word that is never shown: neither in logs nor by `homing check`. It is given as it is, by a reference to the
/// environment, or as `{ file: PATH }`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    word: String,
    file: Option<PathBuf>,
}

impl Secret {
    /// The word itself; empty when it stands in a file that has not been read.
    pub fn expose(&self) -> &str {
        &self.word
    }

    /// The file that it stands in.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the file, if it stands in one. White space at the end, such as an editor's line feed, is no part of it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&mut self) -> std::io::Result<()> {
        if let Some(file) = &self.file {
            self.word = std::fs::read_to_string(file)?.trim_end().to_owned();
        }
        Ok(())
    }
}

/// The written forms.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    File(InFile),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InFile {
    /// File that holds the secret and nothing else. Read again on reload.
    file: PathBuf,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = match &self.file {
            Some(file) => Written::File(InFile { file: file.clone() }),
            None => Written::Word("(hidden)".to_owned()),
        };
        shown.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Written::deserialize(deserializer)? {
            Written::Word(word) => Self { word, file: None },
            Written::File(InFile { file }) => Self {
                word: String::new(),
                file: Some(file),
            },
        })
    }
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let file = InFile::json_schema(generator);
        json_schema!({ "anyOf": [{ "type": "string", "writeOnly": true }, file] })
    }
}

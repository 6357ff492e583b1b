//! The files of a model that tokenizing needs, as `transformers` looks for them.

use super::template::{ChatTemplates, TemplateError};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why a model's files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not valid: {reason}")]
    Invalid { path: PathBuf, reason: String },
    #[error("{path}: {source}")]
    Template { path: PathBuf, source: TemplateError },
}

pub(super) struct ModelFiles {
    pub(super) tokenizer: tokenizers::Tokenizer,
    pub(super) templates: ChatTemplates,
}

/// The part of `tokenizer_config.json` that templates see.
#[derive(Default, Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    chat_template: Option<TemplateField>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TemplateField {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl ModelFiles {
    pub(super) fn read(path: &Path, chat_template: Option<&Path>) -> Result<Self, LoadError> {
        let file = if path.is_dir() {
            path.join("tokenizer.json")
        } else {
            path.to_owned()
        };
        let folder = file.parent().unwrap_or(Path::new(".")).to_owned();
        let config: TokenizerConfig = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let special_map: Map<String, Value> =
            read_json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let special = special_tokens(special_map.iter().chain(&config.rest));
        let mut sources = named_templates(config.chat_template);
        let origin = match chat_template {
            Some(path) => {
                sources = BTreeMap::from([("default".to_owned(), read(path)?)]);
                path.to_owned()
            }
            None => add_template_files(&folder, &mut sources)?,
        };
        let templates = ChatTemplates::new(sources, special)
            .map_err(|source| LoadError::Template { path: origin, source })?;
        Ok(Self {
            tokenizer: read_tokenizer(&file)?,
            templates,
        })
    }
}

fn read_tokenizer(file: &Path) -> Result<tokenizers::Tokenizer, LoadError> {
    let bytes = std::fs::read(file).map_err(|source| LoadError::Read {
        path: file.to_owned(),
        source,
    })?;
    let invalid = |error: tokenizers::Error| LoadError::Invalid {
        path: file.to_owned(),
        reason: error.to_string(),
    };
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(invalid)?;
    // vLLM cuts and pads by its own rules, not by what the file was saved with.
    tokenizer.with_truncation(None).map_err(invalid)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn named_templates(field: Option<TemplateField>) -> BTreeMap<String, String> {
    match field {
        None => BTreeMap::new(),
        Some(TemplateField::One(template)) => BTreeMap::from([("default".to_owned(), template)]),
        Some(TemplateField::Named(list)) => list
            .into_iter()
            .map(|named| (named.name, named.template))
            .collect(),
    }
}

/// Template files win over the config's field. Returns where the default template came from.
fn add_template_files(folder: &Path, sources: &mut BTreeMap<String, String>) -> Result<PathBuf, LoadError> {
    let single = folder.join("chat_template.jinja");
    let from_file = single.exists();
    if from_file {
        sources.insert("default".to_owned(), read(&single)?);
    }
    let additional = std::fs::read_dir(folder.join("additional_chat_templates"));
    for path in additional
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
    {
        if let Some(name) = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".jinja"))
        {
            sources.insert(name.to_owned(), read(&path)?);
        }
    }
    Ok(if from_file {
        single
    } else {
        folder.join("tokenizer_config.json")
    })
}

/// `bos_token` and the like: texts, or objects with the text as `content`. Later ones win.
fn special_tokens<'a>(fields: impl Iterator<Item = (&'a String, &'a Value)>) -> BTreeMap<String, Value> {
    let is_token = |name: &str| name.ends_with("_token") || name == "additional_special_tokens";
    let text = |value: &Value| match value {
        Value::Object(token) => token.get("content").cloned(),
        Value::String(_) => Some(value.clone()),
        _ => None,
    };
    fields
        .filter(|(name, _)| is_token(name))
        .filter_map(|(name, value)| match value {
            Value::Array(tokens) => Some((name.clone(), tokens.iter().filter_map(text).collect())),
            other => text(other).map(|text| (name.clone(), text)),
        })
        .collect()
}

fn read(path: &Path) -> Result<String, LoadError> {
    std::fs::read_to_string(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, LoadError> {
    if !path.exists() {
        return Ok(None);
    }
    let parsed = serde_json::from_str(&read(path)?);
    parsed.map(Some).map_err(|error| LoadError::Invalid {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

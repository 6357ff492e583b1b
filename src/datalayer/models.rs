//! What an engine serves, from its `/v1/models`.

use serde::Deserialize;
use std::collections::BTreeSet;

/// The list that `/v1/models` answers with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Models {
    data: Vec<Model>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Model {
    id: Box<str>,
    /// The base model of an adapter.
    #[serde(default)]
    parent: Option<Box<str>>,
}

impl Models {
    /// Reads the answer.
    ///
    /// # Errors
    /// When it is no list of models.
    pub fn parse(body: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }

    /// Names of LoRA adapters: models that have a parent.
    pub fn adapters(self) -> BTreeSet<Box<str>> {
        let adapters = self.data.into_iter().filter(|model| model.parent.is_some());
        adapters.map(|model| model.id).collect()
    }

    /// Names of base models, the first one being the default.
    pub fn bases(&self) -> impl Iterator<Item = &str> {
        let bases = self.data.iter().filter(|model| model.parent.is_none());
        bases.map(|model| &*model.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As vLLM 0.32 answers, shortened.
    const ANSWER: &str = r#"{"object":"list","data":[
        {"id":"qwen","object":"model","root":"/models/qwen","parent":null,"max_model_len":4096},
        {"id":"sql","object":"model","root":"/adapters/sql","parent":"qwen","max_model_len":null}]}"#;

    #[test]
    fn adapters_are_models_with_a_parent() {
        let models = Models::parse(ANSWER.as_bytes()).unwrap();
        assert_eq!(models.bases().collect::<Vec<_>>(), ["qwen"]);
        assert_eq!(models.adapters(), BTreeSet::from(["sql".into()]));
        assert!(Models::parse(b"{}").is_err());
    }
}

//! What an llm-d `EndpointPickerConfig` says, in Homing's words.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashMap;
use thiserror::Error;

/// The API groups under which the kind has been published.
const API_VERSIONS: [&str; 2] = ["inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1"];

/// Why a file cannot be imported.
#[derive(Debug, Error)]
pub enum ImportError {
    /// No YAML, or not of the kind's shape.
    #[error("not readable as an EndpointPickerConfig: {0}")]
    Syntax(String),
    /// Another kind of object.
    #[error("kind is `{0}`, expected EndpointPickerConfig")]
    Kind(String),
    /// Another version of the API.
    #[error("apiVersion is `{0}`, expected {list}", list = API_VERSIONS.join(" or "))]
    Version(String),
    /// `--profile` names none of the file's profiles.
    #[error("no profile is named `{name}`; the file has {have}")]
    NoProfile { name: String, have: String },
}

/// A Homing configuration, and what could not be carried over.
#[derive(Debug)]
pub struct Imported {
    pub yaml: String,
    pub notes: Vec<String>,
}

/// The parts of an `EndpointPickerConfig` that have a counterpart; the others are named in notes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointPickerConfig {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    plugins: Vec<PluginSpec>,
    #[serde(default)]
    scheduling_profiles: Vec<Profile>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct PluginSpec {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    plugins: Vec<Reference>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    plugin_ref: String,
    #[serde(default)]
    weight: Option<f64>,
}

/// What does a plugin's work here.
struct Known {
    /// llm-d's `type`.
    theirs: &'static str,
    fate: Fate,
    /// Parameters: llm-d's name and ours.
    parameters: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy)]
enum Fate {
    /// This plugin does the same.
    Same(&'static str),
    /// This plugin comes near; the text says how it differs.
    Near(&'static str, &'static str),
    /// Homing does this without being told; the text says why.
    BuiltIn(&'static str),
}

const fn same(name: &'static str, parameters: &'static [(&'static str, &'static str)]) -> Known {
    Known {
        theirs: name,
        fate: Fate::Same(name),
        parameters,
    }
}

const fn near(theirs: &'static str, ours: &'static str, how: &'static str) -> Known {
    Known {
        theirs,
        fate: Fate::Near(ours, how),
        parameters: &[],
    }
}

const fn built_in(theirs: &'static str, why: &'static str) -> Known {
    Known {
        theirs,
        fate: Fate::BuiltIn(why),
        parameters: &[],
    }
}

const KNOWN: &[Known] = &[
    same("prefix-cache-scorer", &[]),
    same("queue-scorer", &[]),
    same("kv-cache-utilization-scorer", &[]),
    same("no-hit-lru-scorer", &[]),
    same("running-requests-size-scorer", &[]),
    same("active-request-scorer", &[]),
    same(
        "token-load-scorer",
        &[("queueThresholdTokens", "threshold_tokens")],
    ),
    same("session-affinity-scorer", &[]),
    same("lora-affinity-scorer", &[]),
    same(
        "prefix-cache-affinity-filter",
        &[
            ("affinityThreshold", "min_match_ratio"),
            ("maxTTFTPenaltyMs", "max_extra_wait"),
            ("peakPrefillThroughput", "prefill_tokens_per_s"),
        ],
    ),
    same("max-score-picker", &[]),
    same("weighted-random-picker", &[]),
    same("random-picker", &[]),
    near(
        "precise-prefix-cache-scorer",
        "prefix-cache-scorer",
        "prefixes are inferred from traffic",
    ),
    near(
        "load-aware-scorer",
        "queue-scorer",
        "queues are compared with each other, not with a threshold",
    ),
    near(
        "kv-cache-scorer",
        "kv-cache-utilization-scorer",
        "the same under its later name",
    ),
    built_in("single-profile-handler", "a Homing pool has one profile"),
    built_in("decode-filter", "list the decode endpoints only"),
    built_in("metrics-data-source", "Homing reads vLLM's metrics itself"),
    built_in("core-metrics-extractor", "Homing reads vLLM's metrics itself"),
    built_in(
        "endpoint-notification-source",
        "the configuration lists the endpoints",
    ),
    built_in(
        "approx-prefix-cache-producer",
        "Homing keeps its own prefix index",
    ),
    built_in(
        "inflight-load-producer",
        "Homing counts its own requests in flight",
    ),
    built_in(
        "session-id-producer",
        "the session-affinity-scorer reads the header itself",
    ),
];

/// Converts `text`, taking the profile named `wanted` or the first one.
pub fn import(text: &str, wanted: Option<&str>) -> Result<Imported, ImportError> {
    let file: EndpointPickerConfig = serde_saphyr::from_str(text)
        .map_err(|error| ImportError::Syntax(error.without_snippet().to_string()))?;
    if file.kind != "EndpointPickerConfig" {
        return Err(ImportError::Kind(file.kind));
    }
    if !API_VERSIONS.contains(&file.api_version.as_str()) {
        return Err(ImportError::Version(file.api_version));
    }
    let mut import = Import::default();
    for key in file.rest.keys().filter(|key| *key != "metadata") {
        import.notes.push(format!("`{key}` has no counterpart"));
    }
    let references = choose_profile(&file, wanted, &mut import.notes)?;
    import.plugins(&file.plugins, &references);
    Ok(import.finish())
}

/// The plugins that take part, in the profile's order. A file without profiles uses all of its plugins.
fn choose_profile(
    file: &EndpointPickerConfig,
    wanted: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<Vec<(String, Option<f64>)>, ImportError> {
    let names: Vec<&str> = file.scheduling_profiles.iter().map(|p| p.name.as_str()).collect();
    let profile = match wanted {
        Some(name) => {
            let found = file.scheduling_profiles.iter().find(|p| p.name == name);
            Some(found.ok_or_else(|| ImportError::NoProfile {
                name: name.to_owned(),
                have: names.join(", "),
            })?)
        }
        None => file.scheduling_profiles.first(),
    };
    let Some(profile) = profile else {
        return Ok(file
            .plugins
            .iter()
            .map(|p| (p.reference().to_owned(), None))
            .collect());
    };
    for other in names.iter().filter(|name| **name != profile.name) {
        notes.push(format!(
            "profile `{other}` is left out: a Homing pool has one (disaggregated prefill and decode have no counterpart)"
        ));
    }
    Ok(profile
        .plugins
        .iter()
        .map(|r| (r.plugin_ref.clone(), r.weight))
        .collect())
}

impl PluginSpec {
    /// The name that profiles refer to: its own, or its type.
    fn reference(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.kind)
    }
}

#[derive(Default)]
struct Import {
    /// Lines of `plugins:`, without their indentation.
    lines: Vec<String>,
    has_picker: bool,
    has_scorer: bool,
    notes: Vec<String>,
}

impl Import {
    fn plugins(&mut self, specs: &[PluginSpec], references: &[(String, Option<f64>)]) {
        let by_name: HashMap<&str, &PluginSpec> = specs.iter().map(|s| (s.reference(), s)).collect();
        for (name, weight) in references {
            match by_name.get(name.as_str()) {
                Some(spec) => self.plugin(spec, Some(weight.unwrap_or(1.0))),
                None => self.notes.push(format!(
                    "the profile refers to `{name}`, which the file does not define"
                )),
            }
        }
        for spec in specs
            .iter()
            .filter(|s| !references.iter().any(|(name, _)| name == s.reference()))
        {
            self.plugin(spec, None);
        }
    }

    /// Takes one plugin over. Without a weight it is not part of the profile: only told of when Homing has
    /// no such thing.
    fn plugin(&mut self, spec: &PluginSpec, weight: Option<f64>) {
        let theirs = &spec.kind;
        let Some(known) = KNOWN.iter().find(|k| k.theirs == theirs) else {
            return self.notes.push(format!("`{theirs}` has no counterpart"));
        };
        let ours = match known.fate {
            Fate::BuiltIn(why) => return self.notes.push(format!("`{theirs}` is not needed: {why}")),
            Fate::Same(ours) => ours,
            Fate::Near(ours, how) => {
                self.notes.push(format!("`{theirs}` becomes `{ours}`: {how}"));
                ours
            }
        };
        let Some(weight) = weight else { return };
        if ours.ends_with("-picker") && std::mem::replace(&mut self.has_picker, true) {
            return self
                .notes
                .push(format!("`{theirs}` is left out: a Homing pool has one picker"));
        }
        let mut line = format!("- {{ type: {ours}");
        if ours.ends_with("-scorer") {
            self.has_scorer = true;
            line.push_str(&format!(", weight: {weight}"));
        }
        let parameters = self.parameters(spec, known);
        if !parameters.is_empty() {
            line.push_str(&format!(", parameters: {{ {} }}", parameters.join(", ")));
        }
        self.lines.push(format!("{line} }}"));
    }

    /// The parameters that have a counterpart, as `key: value`.
    fn parameters(&mut self, spec: &PluginSpec, known: &Known) -> Vec<String> {
        let mut pairs = Vec::new();
        for (key, value) in spec.parameters.iter().flatten() {
            match known.parameters.iter().find(|(theirs, _)| theirs == key) {
                Some((_, ours)) => pairs.push(format!("{ours}: {}", value_text(ours, value))),
                None => self
                    .notes
                    .push(format!("parameter `{key}` of `{}` has no counterpart", spec.kind)),
            }
        }
        pairs
    }

    fn finish(mut self) -> Imported {
        if !self.has_picker {
            self.notes
                .push("the file names no picker: max-score-picker, as llm-d does".to_owned());
            self.lines.push("- { type: max-score-picker }".to_owned());
        }
        let mut yaml = "# Imported from an llm-d EndpointPickerConfig.\n".to_owned();
        for note in &self.notes {
            yaml.push_str(&format!("# - {note}\n"));
        }
        yaml.push_str("pools:\n  - name: default\n    endpoints:\n");
        yaml.push_str("      # llm-d finds these through the InferencePool: put the real ones here.\n");
        yaml.push_str("      - url: http://127.0.0.1:8000\n    scheduling:\n");
        if self.has_scorer {
            yaml.push_str("      plugins:\n");
            for line in &self.lines {
                yaml.push_str(&format!("        {line}\n"));
            }
        } else {
            self.notes
                .push("no scorer is left: the default preset decides".to_owned());
            yaml.push_str("      # No scorer is left: the preset decides.\n");
            yaml.push_str(&format!(
                "      preset: {}\n",
                crate::config::schema::DEFAULT_PRESET.as_str()
            ));
        }
        Imported {
            yaml,
            notes: self.notes,
        }
    }
}

/// A parameter's value as YAML; milliseconds get their unit.
fn value_text(ours: &str, value: &Value) -> String {
    match (ours, value) {
        ("max_extra_wait", Value::Number(millis)) => format!("{millis}ms"),
        // JSON's strings are YAML's double-quoted strings.
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests;

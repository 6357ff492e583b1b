//! How an endpoint is chosen: a preset's name, or the plugins themselves.

use super::super::units::Period;
use crate::scheduling::Constants;
use crate::scheduling::scorers::TOKEN_LOAD_THRESHOLD;
use crate::scheduling::sticky::Affinity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::time::Duration;

/// The preset of a pool that names neither preset nor plugins.
pub const DEFAULT_PRESET: Preset = Preset::LeastCost;

/// How an endpoint is chosen: a preset, or plugins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scheduling {
    /// A named rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = DEFAULT_PRESET.as_str()))]
    pub preset: Option<Preset>,
    /// Instead of a preset: filters, weighted scorers and one picker.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<Plugin>,
    /// What is believed of the endpoints until their own times have taught better. Only `least-cost` asks.
    pub start: Start,
}

/// What `least-cost` starts from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// Kind of server that the endpoints resemble most.
    pub fleet: Fleet,
    /// Prompt tokens that an endpoint prefills per second, instead of what is usual for that kind.
    #[schemars(range(min = 10, max = 10000000), example = 25000)]
    pub prefill_tokens_per_s: Option<f64>,
}

impl Start {
    /// In seconds per token, pair, step and request.
    pub fn constants(&self) -> Constants {
        let usual = match self.fleet {
            Fleet::Qwen3On2H100 => Constants::QWEN3_32B_2XH100,
            Fleet::Llama31On1H100 => Constants::LLAMA_3_1_8B_1XH100,
        };
        self.prefill_tokens_per_s.map_or(usual, |rate| Constants {
            prefill_s_per_token: 1.0 / rate,
            // Attention is as much slower or faster as the rest.
            attention_s_per_pair: usual.attention_s_per_pair / usual.prefill_s_per_token / rate,
            ..usual
        })
    }
}

/// A kind of server whose times are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Fleet {
    /// A model of some 32 billion parameters on two H100.
    #[default]
    #[serde(rename = "qwen3-32b-2xh100")]
    Qwen3On2H100,
    /// A model of some 8 billion parameters on one H100.
    #[serde(rename = "llama3.1-8b-1xh100")]
    Llama31On1H100,
}

/// What [`Scheduling`] comes down to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice<'a> {
    /// A named rule.
    Preset(Preset),
    /// Filters, weighted scorers and a picker, in the file's order.
    Plugins(&'a [Plugin]),
}

impl Scheduling {
    /// The plugins where they are given, else the preset or the default one.
    pub fn choice(&self) -> Choice<'_> {
        match self.plugins.as_slice() {
            [] => Choice::Preset(self.preset.unwrap_or(DEFAULT_PRESET)),
            plugins => Choice::Plugins(plugins),
        }
    }
}

/// A named scheduling rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The endpoint where the request costs the least, in seconds.
    LeastCost,
    /// Prefix match 3, queue 2, KV utilisation 2, cold spread 2; highest sum wins.
    OptimizedBaseline,
    /// Stays with the best prefix match until that endpoint is saturated.
    Sticky,
    /// One after another.
    RoundRobin,
    /// Any.
    Random,
    /// The fewest requests in flight.
    LeastRequest,
}

impl Preset {
    /// Every preset, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::LeastCost,
        Self::OptimizedBaseline,
        Self::Sticky,
        Self::RoundRobin,
        Self::Random,
        Self::LeastRequest,
    ];

    /// The word in configuration files, metrics and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeastCost => "least-cost",
            Self::OptimizedBaseline => "optimized-baseline",
            Self::Sticky => "sticky",
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::LeastRequest => "least-request",
        }
    }
}

/// What a plugin does in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginRole {
    /// Removes candidates.
    Filter,
    /// Gives each candidate a score from 0 to 1, multiplied by the plugin's weight.
    Scorer,
    /// Turns the sums into one choice.
    Picker,
}

/// One plugin with its weight and parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Plugin {
    /// Which plugin, with its parameters.
    pub kind: PluginKind,
    /// Factor on a scorer's score. 1 when the file names none; always 1 for filters and pickers.
    pub weight: f64,
}

/// A plugin with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum PluginKind {
    PrefixCacheScorer,
    QueueScorer,
    KvCacheUtilizationScorer,
    NoHitLruScorer,
    RunningRequestsSizeScorer,
    ActiveRequestScorer,
    TokenLoadScorer(TokenLoad),
    SessionAffinityScorer,
    LoraAffinityScorer,
    PrefixCacheAffinityFilter(AffinityFilter),
    MaxScorePicker,
    WeightedRandomPicker,
    RandomPicker,
}

/// Name of a plugin, the value of `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PluginType {
    PrefixCacheScorer,
    QueueScorer,
    KvCacheUtilizationScorer,
    NoHitLruScorer,
    RunningRequestsSizeScorer,
    ActiveRequestScorer,
    TokenLoadScorer,
    SessionAffinityScorer,
    LoraAffinityScorer,
    PrefixCacheAffinityFilter,
    MaxScorePicker,
    WeightedRandomPicker,
    RandomPicker,
}

/// Parameters of `token-load-scorer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenLoad {
    /// Uncached tokens in flight at which the score reaches 0.
    #[schemars(range(min = 1))]
    pub threshold_tokens: u64,
}

impl Default for TokenLoad {
    fn default() -> Self {
        Self {
            threshold_tokens: TOKEN_LOAD_THRESHOLD as u64,
        }
    }
}

/// Parameters of `prefix-cache-affinity-filter`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AffinityFilter {
    /// Endpoints that hold at least this share of the prompt are kept, above 0 and at most 1.
    #[schemars(range(min = 0, max = 1))]
    pub min_match_ratio: f64,
    /// Unless the best of them would start later than the best other by more than this.
    pub max_extra_wait: Period,
    /// Prefill speed of one endpoint in tokens per second, to turn waiting tokens into time.
    #[schemars(range(min = 1))]
    pub prefill_tokens_per_s: f64,
}

impl Default for AffinityFilter {
    fn default() -> Self {
        let default = Affinity::default();
        Self {
            min_match_ratio: default.min_match_ratio,
            max_extra_wait: Period(Duration::from_secs_f64(default.max_extra_wait_s)),
            prefill_tokens_per_s: default.prefill_tokens_per_s,
        }
    }
}

impl PluginType {
    /// Every plugin, in the order of the documentation.
    pub const ALL: [Self; 13] = [
        Self::PrefixCacheScorer,
        Self::QueueScorer,
        Self::KvCacheUtilizationScorer,
        Self::NoHitLruScorer,
        Self::RunningRequestsSizeScorer,
        Self::ActiveRequestScorer,
        Self::TokenLoadScorer,
        Self::SessionAffinityScorer,
        Self::LoraAffinityScorer,
        Self::PrefixCacheAffinityFilter,
        Self::MaxScorePicker,
        Self::WeightedRandomPicker,
        Self::RandomPicker,
    ];

    /// The word in configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PrefixCacheScorer => "prefix-cache-scorer",
            Self::QueueScorer => "queue-scorer",
            Self::KvCacheUtilizationScorer => "kv-cache-utilization-scorer",
            Self::NoHitLruScorer => "no-hit-lru-scorer",
            Self::RunningRequestsSizeScorer => "running-requests-size-scorer",
            Self::ActiveRequestScorer => "active-request-scorer",
            Self::TokenLoadScorer => "token-load-scorer",
            Self::SessionAffinityScorer => "session-affinity-scorer",
            Self::LoraAffinityScorer => "lora-affinity-scorer",
            Self::PrefixCacheAffinityFilter => "prefix-cache-affinity-filter",
            Self::MaxScorePicker => "max-score-picker",
            Self::WeightedRandomPicker => "weighted-random-picker",
            Self::RandomPicker => "random-picker",
        }
    }

    /// One line for the schema.
    const fn description(self) -> &'static str {
        match self {
            Self::PrefixCacheScorer => "Share of the prompt's blocks that the endpoint holds.",
            Self::QueueScorer => "Fewer waiting requests score higher.",
            Self::KvCacheUtilizationScorer => "1 - KV cache utilisation.",
            Self::NoHitLruScorer => "Spreads cold requests: least recently used for a cold request first.",
            Self::RunningRequestsSizeScorer => "Fewer running requests score higher.",
            Self::ActiveRequestScorer => "Fewer of the gateway's own requests in flight score higher.",
            Self::TokenLoadScorer => "Fewer uncached tokens in flight score higher.",
            Self::SessionAffinityScorer => {
                "1 for the endpoint that the session (header `x-session-id`) hashes to, else 0."
            }
            Self::LoraAffinityScorer => {
                "Where the LoRA adapter runs 1, with a free slot 0.8, where it waits 0.6, else 0."
            }
            Self::PrefixCacheAffinityFilter => "Keeps the endpoints that hold most of the prompt.",
            Self::MaxScorePicker => "The highest sum; ties are broken fairly.",
            Self::WeightedRandomPicker => "At random, in proportion to the sums.",
            Self::RandomPicker => "Any of the candidates.",
        }
    }

    /// What the plugin does in a decision.
    pub const fn role(self) -> PluginRole {
        match self {
            Self::PrefixCacheAffinityFilter => PluginRole::Filter,
            Self::MaxScorePicker | Self::WeightedRandomPicker | Self::RandomPicker => PluginRole::Picker,
            _ => PluginRole::Scorer,
        }
    }

    /// Schema of the plugin's parameters; `None` when it has none.
    fn parameters(self, generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(match self {
            Self::TokenLoadScorer => generator.subschema_for::<TokenLoad>(),
            Self::PrefixCacheAffinityFilter => generator.subschema_for::<AffinityFilter>(),
            _ => return None,
        })
    }

    /// Schema of one use of this plugin.
    fn use_schema(self, generator: &mut SchemaGenerator) -> Schema {
        let mut properties = serde_json::Map::new();
        properties.insert("type".into(), serde_json::json!({ "const": self.as_str() }));
        if self.role() == PluginRole::Scorer {
            properties.insert(
                "weight".into(),
                serde_json::json!({
                    "description": "Factor on the score.", "type": "number", "minimum": 0, "default": 1.0
                }),
            );
        }
        if let Some(parameters) = self.parameters(generator) {
            properties.insert("parameters".into(), parameters.into());
        }
        json_schema!({
            "description": self.description(),
            "type": "object",
            "properties": properties,
            "required": ["type"],
            "additionalProperties": false,
        })
    }
}

impl PluginKind {
    /// The plugin without its parameters.
    pub const fn plugin_type(&self) -> PluginType {
        match self {
            Self::PrefixCacheScorer => PluginType::PrefixCacheScorer,
            Self::QueueScorer => PluginType::QueueScorer,
            Self::KvCacheUtilizationScorer => PluginType::KvCacheUtilizationScorer,
            Self::NoHitLruScorer => PluginType::NoHitLruScorer,
            Self::RunningRequestsSizeScorer => PluginType::RunningRequestsSizeScorer,
            Self::ActiveRequestScorer => PluginType::ActiveRequestScorer,
            Self::TokenLoadScorer(_) => PluginType::TokenLoadScorer,
            Self::SessionAffinityScorer => PluginType::SessionAffinityScorer,
            Self::LoraAffinityScorer => PluginType::LoraAffinityScorer,
            Self::PrefixCacheAffinityFilter(_) => PluginType::PrefixCacheAffinityFilter,
            Self::MaxScorePicker => PluginType::MaxScorePicker,
            Self::WeightedRandomPicker => PluginType::WeightedRandomPicker,
            Self::RandomPicker => PluginType::RandomPicker,
        }
    }

    /// Reads the parameters of `plugin`; missing ones take their defaults.
    fn read(plugin: PluginType, parameters: Option<serde_json::Value>) -> Result<Self, serde_json::Error> {
        let given = parameters.is_some();
        let read = parameters.unwrap_or_else(|| serde_json::Value::Object(serde_json::Map::new()));
        let kind = match plugin {
            PluginType::TokenLoadScorer => return serde_json::from_value(read).map(Self::TokenLoadScorer),
            PluginType::PrefixCacheAffinityFilter => {
                return serde_json::from_value(read).map(Self::PrefixCacheAffinityFilter);
            }
            PluginType::PrefixCacheScorer => Self::PrefixCacheScorer,
            PluginType::QueueScorer => Self::QueueScorer,
            PluginType::KvCacheUtilizationScorer => Self::KvCacheUtilizationScorer,
            PluginType::NoHitLruScorer => Self::NoHitLruScorer,
            PluginType::RunningRequestsSizeScorer => Self::RunningRequestsSizeScorer,
            PluginType::ActiveRequestScorer => Self::ActiveRequestScorer,
            PluginType::SessionAffinityScorer => Self::SessionAffinityScorer,
            PluginType::LoraAffinityScorer => Self::LoraAffinityScorer,
            PluginType::MaxScorePicker => Self::MaxScorePicker,
            PluginType::WeightedRandomPicker => Self::WeightedRandomPicker,
            PluginType::RandomPicker => Self::RandomPicker,
        };
        if given {
            return Err(de::Error::custom(format!(
                "`{}` takes no parameters",
                plugin.as_str()
            )));
        }
        Ok(kind)
    }

    /// The parameters as they are written, if the plugin has any.
    fn parameters(&self) -> Option<Result<serde_json::Value, serde_json::Error>> {
        match self {
            Self::TokenLoadScorer(p) => Some(serde_json::to_value(p)),
            Self::PrefixCacheAffinityFilter(p) => Some(serde_json::to_value(p)),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Plugin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            #[serde(rename = "type")]
            plugin: PluginType,
            weight: Option<f64>,
            parameters: Option<serde_json::Value>,
        }
        let written = Written::deserialize(deserializer)?;
        if written.weight.is_some() && written.plugin.role() != PluginRole::Scorer {
            return Err(de::Error::custom(format!(
                "`{}` takes no weight",
                written.plugin.as_str()
            )));
        }
        let kind = PluginKind::read(written.plugin, written.parameters).map_err(de::Error::custom)?;
        Ok(Self {
            kind,
            weight: written.weight.unwrap_or(1.0),
        })
    }
}

impl Serialize for Plugin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let plugin = self.kind.plugin_type();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &plugin)?;
        if plugin.role() == PluginRole::Scorer {
            map.serialize_entry("weight", &self.weight)?;
        }
        if let Some(parameters) = self.kind.parameters() {
            map.serialize_entry("parameters", &parameters.map_err(serde::ser::Error::custom)?)?;
        }
        map.end()
    }
}

impl JsonSchema for Plugin {
    fn schema_name() -> Cow<'static, str> {
        "Plugin".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let uses: Vec<Schema> = PluginType::ALL.iter().map(|p| p.use_schema(generator)).collect();
        json_schema!({ "description": "One filter, scorer or picker.", "oneOf": uses })
    }
}

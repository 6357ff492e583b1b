//! `homing check --probe`: asks each endpoint what the gateway will depend on, and names the flag that is missing.

mod ask;

use crate::config::Config;
use crate::config::schema::{Endpoint, Pool, PrefixSource};
use crate::datalayer::models::Models;
use crate::datalayer::vllm::EngineMetrics;
use crate::discovery;
use crate::kv_events::ownership::{BlockSink, Limits};
use crate::kv_events::subscriber::{Source, Status, Subscription};
use crate::prefix::BlockHash;
use crate::tokens::Tokenizer;
use anyhow::Context as _;
use ask::{Asking, Engine};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Longest wait for an event stream to connect and to tell something.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes that a tokenizer splits in many ways.
const PROBE_TEXT: &str =
    "Homing probe: 3.14159 tabs\tand\n\nlines, «Gänsefüßchen», 你好 and 🦀 — don't   repeat.";
/// Words of the probe's prompt: several blocks of any usual size.
const PROMPT_WORDS: usize = 400;

/// How good an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    Good,
    /// It works, and less well than it could.
    Poor,
    /// What the configuration asks for is not there.
    Bad,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub grade: Grade,
    pub text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// What one endpoint said.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub pool: String,
    pub endpoint: String,
    pub url: String,
    pub findings: Vec<Finding>,
}

impl Finding {
    fn good(what: &'static str, text: impl Into<String>) -> Self {
        Self::new(what, Grade::Good, text)
    }

    fn new(what: &'static str, grade: Grade, text: impl Into<String>) -> Self {
        Self {
            what,
            grade,
            text: text.into(),
            fix: None,
        }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl Report {
    /// Whether something that the configuration asks for is not there.
    pub fn is_bad(&self) -> bool {
        self.findings.iter().any(|finding| finding.grade == Grade::Bad)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}/{} {}", self.pool, self.endpoint, self.url)?;
        for finding in &self.findings {
            let mark = match finding.grade {
                Grade::Good => "  ",
                Grade::Poor => "- ",
                Grade::Bad => "! ",
            };
            writeln!(f, "  {mark}{:<16}{}", finding.what, finding.text)?;
            if let Some(fix) = &finding.fix {
                writeln!(f, "    {:<16}{fix}", "fix:")?;
            }
        }
        Ok(())
    }
}

/// Asks every endpoint of the configuration, one after the other.
///
/// # Errors
/// When the client cannot be set up or a tokenizer cannot be loaded.
pub fn run(config: &Config) -> anyhow::Result<Vec<Report>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let config = discovery::first_look(config)?.merge(config).config;
    runtime.block_on(async {
        let asking = Asking::new(&config);
        let mut reports = Vec::new();
        for pool in &config.pools {
            let tokenizer = local_tokenizer(pool)?;
            for endpoint in &pool.endpoints {
                reports.push(probe(&asking, pool, endpoint, tokenizer.as_ref()).await);
            }
        }
        Ok(reports)
    })
}

fn local_tokenizer(pool: &Pool) -> anyhow::Result<Option<Tokenizer>> {
    let Some(of) = &pool.tokenizer else {
        return Ok(None);
    };
    let Some(path) = &of.path else { return Ok(None) };
    let loaded = Tokenizer::load(path, of.chat_template.as_deref(), 0);
    let context = || format!("pool {}: tokenizer", pool.name);
    loaded.with_context(context).map(Some)
}

async fn probe(asking: &Asking, pool: &Pool, endpoint: &Endpoint, tokenizer: Option<&Tokenizer>) -> Report {
    let key = pool.api_key.as_ref().map(|key| key.expose());
    let mut report = Report {
        pool: pool.name.clone(),
        endpoint: endpoint.name.clone(),
        url: endpoint.url.to_string(),
        findings: Vec::new(),
    };
    let found = async {
        let engine = Engine::new(asking, &endpoint.url, key, pool.tls.as_ref()).await?;
        let models = engine.get("/v1/models").await?;
        anyhow::Ok((engine, Models::parse(&models).unwrap_or_default()))
    };
    let (engine, models) = match found.await {
        Ok(found) => found,
        Err(why) => {
            let silent = Finding::new("models", Grade::Bad, format!("no answer: {why:#}"));
            report
                .findings
                .push(silent.fix("is it running, and is the url right?"));
            return report;
        }
    };
    let model = models.bases().next().unwrap_or_default().to_owned();
    report.findings.push(served(&engine, &model, models).await);
    report.findings.extend(cache(&engine, &pool.metrics.path).await);
    let stream = events(pool, endpoint).await;
    report.findings.push(usage(&engine, &model).await);
    report.findings.push(told(pool, stream, &engine).await);
    report
        .findings
        .push(tokens(pool, tokenizer, &engine, &model).await);
    report
}

async fn served(engine: &Engine<'_>, model: &str, models: Models) -> Finding {
    let version = engine.get("/version").await.ok();
    let version = version.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
    let version = version.as_ref().and_then(|body| body["version"].as_str());
    let mut text = format!("{model}, vLLM {}", version.unwrap_or("of unknown version"));
    let adapters = models.adapters();
    if !adapters.is_empty() {
        let names: Vec<_> = adapters.iter().map(|name| &**name).collect();
        text += &format!(", adapters {}", names.join(", "));
    }
    Finding::good("model", text)
}

async fn cache(engine: &Engine<'_>, metrics_path: &str) -> Vec<Finding> {
    let page = engine.get(metrics_path).await.map_err(|why| why.to_string());
    let metrics = page.and_then(|page| EngineMetrics::parse(&page).map_err(|why| why.to_string()));
    let metrics = match metrics {
        Ok(metrics) => metrics,
        Err(why) => {
            let text = format!("{metrics_path}: {why}");
            return vec![
                Finding::new("metrics", Grade::Bad, text)
                    .fix("the engine must not run with --disable-log-stats"),
            ];
        }
    };
    let blocks = match (metrics.block_size, metrics.num_gpu_blocks) {
        (Some(size), Some(blocks)) => Finding::good("blocks", format!("{blocks} of {size} tokens")),
        (Some(size), None) => Finding::good("blocks", format!("{size} tokens each")),
        _ => Finding::new("blocks", Grade::Poor, "size unknown: no vllm:cache_config_info")
            .fix("give `prefix_cache: { block_size, capacity }`"),
    };
    let caching = match metrics.prefix_caching {
        Some(true) => Finding::good("prefix caching", "on"),
        Some(false) => Finding::new("prefix caching", Grade::Bad, "off: nothing is ever reused")
            .fix("start the engine with --enable-prefix-caching"),
        None => Finding::new("prefix caching", Grade::Poor, "not told"),
    };
    vec![blocks, caching]
}

/// Runs a small prompt, which also makes the engine publish something.
async fn usage(engine: &Engine<'_>, model: &str) -> Finding {
    let prompt = format!("{} {}", std::process::id(), "homing ".repeat(PROMPT_WORDS));
    let body = json!({ "model": model, "prompt": prompt, "max_tokens": 1 });
    match engine.post("/v1/completions", &body).await {
        Err(why) => Finding::new(
            "usage details",
            Grade::Bad,
            format!("the probe's prompt failed: {why}"),
        ),
        Ok(answer) if answer["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64() => Finding::good(
            "usage details",
            "on: predictions are compared with the engine's own count",
        ),
        Ok(_) => Finding::new(
            "usage details",
            Grade::Poor,
            "off: predictions cannot be compared",
        )
        .fix("start the engine with --enable-prompt-tokens-details"),
    }
}

/// Blocks go nowhere.
struct Nowhere;

impl BlockSink for Nowhere {
    fn insert(&mut self, _: BlockHash) {}
    fn remove(&mut self, _: BlockHash) {}
    fn clear(&mut self) {}
}

/// The event streams of the endpoint, connected if that is possible; none in a pool that does not listen.
async fn events(pool: &Pool, endpoint: &Endpoint) -> Vec<(Source, Subscription)> {
    if pool.prefix_cache.source == PrefixSource::Traffic {
        return Vec::new();
    }
    let sources = pool.kv_events.clone().unwrap_or_default().sources(endpoint);
    let mut streams = Vec::new();
    for source in sources.unwrap_or_default() {
        let subscription = Subscription::spawn(source.clone(), Limits::default(), Nowhere);
        wait_for(&subscription, |status| status.connected).await;
        streams.push((source, subscription));
    }
    streams
}

async fn wait_for(subscription: &Subscription, is: impl Fn(&Status) -> bool) -> Status {
    let started = tokio::time::Instant::now();
    loop {
        let status = subscription.status();
        if is(&status) || started.elapsed() > EVENTS_TIMEOUT {
            return status;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What the event streams said.
async fn told(pool: &Pool, streams: Vec<(Source, Subscription)>, engine: &Engine<'_>) -> Finding {
    const WHAT: &str = "KV events";
    if pool.prefix_cache.source == PrefixSource::Traffic {
        let text = if engine.publishes().await {
            "published, but the pool goes by its traffic"
        } else {
            "not used: the pool goes by its traffic"
        };
        return Finding::new(WHAT, Grade::Poor, text).fix("write `prefix_cache: { source: kv-events }`");
    }
    let mut texts = Vec::new();
    for (source, subscription) in &streams {
        let status = wait_for(subscription, |status| status.last_sequence.is_some()).await;
        match (status.connected, status.last_sequence, &status.error) {
            (true, Some(last), _) => texts.push(format!("{}: last sequence {last}", source.events)),
            (true, None, _) => {
                let text = format!(
                    "{}: connected, but the probe's prompt showed no event",
                    source.events
                );
                return Finding::new(WHAT, Grade::Bad, text).fix(enable_events(source));
            }
            (false, _, error) => {
                let why = error.as_deref().unwrap_or("no connection in time");
                let text = format!("{}: {why}", source.events);
                return Finding::new(WHAT, Grade::Bad, text).fix(enable_events(source));
            }
        }
    }
    let all = Finding::good(WHAT, texts.join("; "));
    if streams.iter().all(|(source, _)| source.replay.is_some()) {
        return all;
    }
    Finding {
        grade: Grade::Poor,
        text: all.text + ", without replay: after a gap the cache is learnt anew",
        ..all
    }
    .fix("add `replay_endpoint` to the engine's --kv-events-config, and `kv_events: { replay }` here")
}

fn enable_events(source: &Source) -> String {
    let mut config = json!({
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": format!("tcp://*:{}", source.events.port),
        "topic": source.topic,
    });
    if let Some(replay) = &source.replay {
        config["replay_endpoint"] = json!(format!("tcp://*:{}", replay.port));
    }
    format!("start the engine with --kv-events-config '{config}'")
}

async fn tokens(pool: &Pool, tokenizer: Option<&Tokenizer>, engine: &Engine<'_>, model: &str) -> Finding {
    const WHAT: &str = "tokenizer";
    let body = json!({ "model": model, "prompt": PROBE_TEXT, "add_special_tokens": true });
    let theirs = engine.post("/tokenize", &body).await;
    let theirs = theirs.map(|answer| serde_json::from_value::<Vec<u32>>(answer["tokens"].clone()));
    let (theirs, tokenizer) = match (theirs, tokenizer, &pool.tokenizer) {
        (_, None, None) => {
            let text = "none: text is keyed by its bytes";
            let grade = match pool.prefix_cache.source {
                PrefixSource::KvEvents => Grade::Poor,
                PrefixSource::Traffic => Grade::Good,
            };
            return Finding::new(WHAT, grade, text).fix(
                "write `tokenizer: { path: DIR }` or `tokenizer: { engine: true }` for exact matches of text",
            );
        }
        (Ok(Ok(theirs)), None, Some(_)) => {
            return Finding::good(
                WHAT,
                format!("the engine's own: {} tokens for the probe's text", theirs.len()),
            );
        }
        (Ok(Ok(theirs)), Some(tokenizer), _) => (theirs, tokenizer),
        (Ok(Err(_)), ..) => return Finding::new(WHAT, Grade::Bad, "/tokenize answers without tokens"),
        (Err(why), ..) => return Finding::new(WHAT, Grade::Bad, format!("/tokenize: {why}")),
    };
    match tokenizer.encode(PROBE_TEXT, true) {
        Ok(ours) if ours == theirs => Finding::good(WHAT, format!("agrees on {} tokens", ours.len())),
        Ok(ours) => {
            let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            let text = format!("differs from the engine's at token {at}");
            Finding::new(WHAT, Grade::Bad, text)
                .fix("give `tokenizer.path` the files of the model that the engine serves")
        }
        Err(why) => Finding::new(WHAT, Grade::Bad, why.to_string()),
    }
}

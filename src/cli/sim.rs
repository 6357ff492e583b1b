//! `homing sim`: simulated vLLM servers in the foreground.

use super::{Exit, Misuse, positive};
use crate::sim::engine::{EngineSpec, FleetPreset};
use crate::sim::kv_publisher::{EventFormat, KvPublisher, KvPublisherOptions};
use crate::sim::server::{QueueLimits, SimOptions, SimServer};
use anyhow::Context;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;

/// Run one or more simulated vLLM servers: real HTTP, real /metrics, a block-accurate prefix cache.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Address to listen on; repeat it for several servers in one process
    #[arg(long, value_name = "ADDR", required = true)]
    pub listen: Vec<SocketAddr>,
    /// Name of each server, in the order of --listen [default: pod-1, pod-2, ..]
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,
    /// Name of the served model; repeat it for aliases
    #[arg(
        long,
        visible_alias = "served-model-name",
        value_name = "NAME",
        default_value = "sim"
    )]
    pub model: Vec<String>,
    /// Name of a LoRA adapter; repeatable
    #[arg(long, value_name = "NAME")]
    pub lora_module: Vec<String>,
    /// Kind of server: timing and cache size
    #[arg(long, value_enum, default_value = "llama3.1-8b-1xh100")]
    pub preset: FleetPreset,
    /// No simulated time at all: every step is over at once
    #[arg(long)]
    pub instant: bool,
    /// Run this many times as fast
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    pub speed: f64,
    /// Publish KV events over ZeroMQ on this address, such as tcp://127.0.0.1:5557; one per --listen, in its order
    #[arg(long, value_name = "ADDR")]
    pub kv_events: Vec<String>,
    /// Replay missed KV events on this address; one per --kv-events, in its order
    #[arg(long, value_name = "ADDR")]
    pub kv_replay: Vec<String>,
    /// Layout of KV events: a map as vLLM since 0.24, or an array as before
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "map")]
    pub kv_events_format: EventFormat,
    /// Tokens per KV block
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub block_size: u32,
    /// Size of the KV cache in tokens [default: that of the preset]
    #[arg(long, value_name = "N")]
    pub kv_tokens: Option<u32>,
    /// Requests in one batch
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_seqs: u32,
    /// Tokens in one step
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_batched_tokens: u32,
    /// Longest prompt and output together, in tokens [default: the KV cache, at most 131072]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub max_model_len: Option<u32>,
    /// Refuse requests beyond this many in flight with status 503
    #[arg(long, value_name = "N")]
    pub max_num_queued_reqs: Option<u32>,
    /// Refuse requests while this many prompt tokens wait for their first token with status 503
    #[arg(long, value_name = "N")]
    pub max_num_queued_tokens: Option<u64>,
    /// Report cached tokens in usage
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true")]
    pub enable_prompt_tokens_details: bool,
    /// Refuse images, audio and video, as a text-only model does
    #[arg(long)]
    pub text_only: bool,
    /// Close idle connections after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = positive)]
    pub keep_alive: f64,
    /// Answer /health with 503 from the start
    #[arg(long)]
    pub fail_health: bool,
    /// Seconds before the sockets open, as if the model were loading
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub start_delay: f64,
    /// Seconds that SIGTERM leaves to requests in flight; with 0 they end at once with finish_reason "abort"
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub shutdown_timeout: f64,
}

impl Args {
    /// Options of the server with this index among the listed ones.
    fn options(&self, index: usize) -> SimOptions {
        let preset = if self.instant {
            FleetPreset::Instant
        } else {
            self.preset
        };
        let defaults = SimOptions::new(preset, self.block_size);
        let kv_tokens = match self.kv_tokens {
            Some(tokens) => tokens,
            None => self.preset.kv_tokens().try_into().unwrap_or(u32::MAX),
        };
        let num_blocks = kv_tokens / self.block_size;
        let capacity = num_blocks.saturating_mul(self.block_size);
        SimOptions {
            name: self
                .name
                .get(index)
                .cloned()
                .unwrap_or_else(|| format!("pod-{}", index + 1)),
            models: self.model.clone(),
            lora_modules: self.lora_module.clone(),
            engine: EngineSpec {
                num_blocks,
                max_num_seqs: self.max_num_seqs,
                max_num_batched_tokens: self.max_num_batched_tokens,
                ..defaults.engine
            },
            max_model_len: self.max_model_len.unwrap_or(131_072).min(capacity),
            speed: self.speed,
            queue_limits: QueueLimits {
                requests: self.max_num_queued_reqs,
                tokens: self.max_num_queued_tokens,
            },
            enable_prompt_tokens_details: self.enable_prompt_tokens_details,
            multimodal: !self.text_only,
            keep_alive: Duration::from_secs_f64(self.keep_alive),
            ..defaults
        }
    }

    fn check(&self) -> Result<(), Misuse> {
        let kv_tokens = self.kv_tokens.unwrap_or(u32::MAX);
        let fault = if self.name.len() > self.listen.len() {
            let (names, servers) = (self.name.len(), self.listen.len());
            format!("{names} names for {servers} servers: give --name once per --listen")
        } else if self.kv_events.len() > self.listen.len() || self.kv_replay.len() > self.kv_events.len() {
            "give --kv-events at most once per --listen, and --kv-replay at most once per --kv-events".into()
        } else if kv_tokens < 2 * self.block_size {
            let block_size = self.block_size;
            format!("--kv-tokens {kv_tokens} holds less than two blocks of {block_size} tokens")
        } else {
            return Ok(());
        };
        Err(Misuse(fault))
    }

    /// The publisher of the server with this index, if it was given an address.
    async fn kv_publisher(&self, index: usize) -> anyhow::Result<Option<KvPublisher>> {
        let Some(events) = self.kv_events.get(index) else {
            return Ok(None);
        };
        // Names of blocks differ from process to process, as with vLLM's default seed.
        let seed = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos() as u64;
        let options = KvPublisherOptions {
            replay: self.kv_replay.get(index).cloned(),
            format: self.kv_events_format,
            ..KvPublisherOptions::new(events, self.block_size, seed)
        };
        let publisher = KvPublisher::bind(options).await;
        publisher
            .map(Some)
            .with_context(|| format!("cannot publish KV events on {events}"))
    }

    async fn start(&self) -> anyhow::Result<Vec<SimServer>> {
        let mut servers = Vec::with_capacity(self.listen.len());
        for (index, &addr) in self.listen.iter().enumerate() {
            let listener = TcpListener::bind(addr)
                .await
                .with_context(|| format!("cannot listen on {addr}"))?;
            let mut options = self.options(index);
            if let Some(publisher) = self.kv_publisher(index).await? {
                options.kv_event_sources = vec![publisher.source()];
                options.block_events = Some(Arc::new(publisher));
            }
            let name = options.name.clone();
            let server = SimServer::start(listener, options)?;
            server.set_healthy(!self.fail_health);
            tracing::info!(%name, addr = %server.addr(), "simulated vLLM server ready");
            servers.push(server);
        }
        Ok(servers)
    }
}

/// Runs until SIGTERM or SIGINT, then ends as vLLM does.
///
/// # Errors
/// When the arguments contradict each other or a socket cannot be opened.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    args.check()?;
    super::logging::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))?;
    Ok(Exit::Fine)
}

async fn serve(args: &Args) -> anyhow::Result<()> {
    tokio::time::sleep(Duration::from_secs_f64(args.start_delay.max(0.0))).await;
    let servers = args.start().await?;
    termination().await?;
    let timeout = Duration::from_secs_f64(args.shutdown_timeout.max(0.0));
    let ends = servers.into_iter().map(|server| async move {
        if timeout.is_zero() {
            server.shutdown().await
        } else {
            server.drain(timeout).await
        }
    });
    futures_util::future::join_all(ends).await;
    Ok(())
}

async fn termination() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sim: Args,
    }

    fn parse(args: &str) -> Result<Args, clap::Error> {
        Cli::try_parse_from(std::iter::once("sim").chain(args.split_whitespace())).map(|cli| cli.sim)
    }

    #[test]
    fn names_follow_the_order_of_listen() {
        let args =
            parse("--listen 127.0.0.1:1 --name a --listen 127.0.0.1:2 --kv-tokens 1000 --block-size 128")
                .unwrap();
        assert!(args.check().is_ok());
        assert_eq!(
            (args.options(0).name, args.options(1).name),
            ("a".to_owned(), "pod-2".to_owned())
        );
        assert_eq!(
            (args.options(0).engine.num_blocks, args.options(0).max_model_len),
            (7, 896)
        );
    }

    #[test]
    fn presets_give_their_cache_and_instant_keeps_it() {
        let args = parse("--listen 127.0.0.1:1 --preset qwen3-32b-2xh100 --instant").unwrap();
        assert_eq!(args.options(0).engine.num_blocks, 307_328 / 16);
        assert_eq!(args.options(0).engine.timing, FleetPreset::Instant.timing());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse("").is_err());
        for times in ["--speed 0", "--speed NaN", "--speed 1e-300", "--keep-alive 1e300"] {
            assert!(
                parse(&format!("--listen 127.0.0.1:1 {times}")).is_err(),
                "{times}"
            );
        }
        assert!(
            parse("--listen 127.0.0.1:1 --name a --name b")
                .unwrap()
                .check()
                .is_err()
        );
        assert!(
            parse("--listen 127.0.0.1:1 --kv-tokens 20")
                .unwrap()
                .check()
                .is_err()
        );
    }
}

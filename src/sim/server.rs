//! A simulated vLLM server over real HTTP/1.1, with the paths, fields, errors and metrics of vLLM 0.32.

mod body;
mod chat;
mod driver;
mod error;
mod generation;
mod http;
mod info;
mod metrics;
mod reply;
mod request;
mod service;

pub use driver::{BlockEventSink, QueueLimits};

use super::engine::{EngineCounters, EngineSpec, FleetPreset, Histogram};
use driver::Driver;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use xxhash_rust::xxh3::xxh3_64;

/// One simulated server.
#[derive(Clone)]
pub struct SimOptions {
    /// Name in logs; also makes `system_fingerprint` differ between servers.
    pub name: String,
    /// Names of the served model, the first one being its own; at least one.
    pub models: Vec<String>,
    /// Names of LoRA adapters. Their blocks are apart from the model's.
    pub lora_modules: Vec<String>,
    /// Dimensions and timing of the engine. `/metrics` tells one block more, which vLLM keeps back for itself: usage
    /// is 143/255 where 143 blocks of 256 are in use.
    pub engine: EngineSpec,
    /// Tokens of prompt and output together.
    pub max_model_len: u32,
    /// Simulated seconds per second.
    pub speed: f64,
    pub queue_limits: QueueLimits,
    /// Report `usage.prompt_tokens_details.cached_tokens`. Off by default in vLLM, on here.
    pub enable_prompt_tokens_details: bool,
    /// Serve `/v1/completions/render` and `/v1/chat/completions/render`.
    pub enable_scale_out: bool,
    /// Accept `tool_choice: "auto"`.
    pub enable_auto_tool_choice: bool,
    /// Accept images, audio and video; each is a fixed number of tokens that depend on its content.
    pub multimodal: bool,
    /// Idle connections are closed after this time, as uvicorn does after 5 s.
    pub keep_alive: Duration,
    /// Receives block events, with token ids.
    pub block_events: Option<Arc<dyn BlockEventSink>>,
    /// What `/kv_event_sources` says of each data-parallel rank, in their order; JSON objects.
    pub kv_event_sources: Vec<serde_json::Value>,
}

impl SimOptions {
    /// A server of the given kind with blocks of `block_size` tokens, serving model `sim`.
    pub fn new(preset: FleetPreset, block_size: u32) -> Self {
        let engine = preset.spec(block_size);
        let capacity = engine.block_size.saturating_mul(engine.num_blocks);
        Self {
            name: "sim".to_owned(),
            models: vec!["sim".to_owned()],
            lora_modules: Vec::new(),
            engine,
            max_model_len: capacity.min(131_072),
            speed: 1.0,
            queue_limits: QueueLimits::default(),
            enable_prompt_tokens_details: true,
            enable_scale_out: true,
            enable_auto_tool_choice: true,
            multimodal: true,
            keep_alive: Duration::from_secs(5),
            block_events: None,
            kv_event_sources: Vec::new(),
        }
    }

    fn model(&self) -> &str {
        self.models.first().map_or("sim", String::as_str)
    }
}

/// State shared by all connections.
struct Inner {
    options: SimOptions,
    driver: Arc<Driver>,
    healthy: AtomicBool,
    ids: AtomicU64,
    /// JSON string of `system_fingerprint`.
    fingerprint: String,
    /// Unix time, seconds.
    started_unix: f64,
    params_n: Mutex<Histogram>,
}

/// Bucket bounds of `vllm:request_params_n`.
const PARAMS_N: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

impl Inner {
    fn new(options: SimOptions) -> Self {
        let sink = options.block_events.clone();
        let driver = Driver::new(options.engine, options.speed, options.queue_limits, sink);
        let started = unix_now();
        let seed = xxh3_64(options.name.as_bytes()) ^ started.as_nanos() as u64;
        Self {
            driver: Arc::new(driver),
            healthy: AtomicBool::new(true),
            ids: AtomicU64::new(seed),
            fingerprint: format!("\"vllm-0.32.0-{:08x}\"", xxh3_64(options.name.as_bytes()) as u32),
            started_unix: started.as_secs_f64(),
            params_n: Mutex::new(Histogram::new(PARAMS_N)),
            options,
        }
    }

    /// An id of sixteen hexadecimal digits, unique in this server.
    fn next_id(&self) -> String {
        let next = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", xxh3_64(&next.to_le_bytes()))
    }

    /// Unix time, whole seconds.
    fn created(&self) -> u64 {
        unix_now().as_secs()
    }

    fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    fn kv_event_sources(&self) -> String {
        let ranks = self.options.kv_event_sources.iter().enumerate();
        let by_rank = ranks.map(|(rank, source)| (rank.to_string(), source.clone()));
        serde_json::Value::from_iter(by_rank).to_string()
    }
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A running simulated server. Dropping it stops the server as [`SimServer::kill`] does.
pub struct SimServer {
    inner: Arc<Inner>,
    addr: SocketAddr,
    /// No new connections, and none that goes on after its current request.
    closing: CancellationToken,
    killed: CancellationToken,
    /// Accepting, and each connection.
    tasks: TaskTracker,
}

/// Time for answers under way to be written when a server ends.
const FLUSH: Duration = Duration::from_secs(2);

impl SimServer {
    /// Serves `options` on `listener`, from tasks of the current tokio runtime.
    ///
    /// # Errors
    /// When the listener has no local address.
    pub fn start(listener: TcpListener, options: SimOptions) -> std::io::Result<Self> {
        let addr = listener.local_addr()?;
        let server = Self {
            inner: Arc::new(Inner::new(options)),
            addr,
            closing: CancellationToken::new(),
            killed: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let (driver, killed) = (server.inner.driver.clone(), server.killed.clone());
        tokio::spawn(async move { killed.run_until_cancelled(driver.run()).await });
        let accept = Accept {
            inner: server.inner.clone(),
            closing: server.closing.clone(),
            killed: server.killed.clone(),
            tasks: server.tasks.clone(),
        };
        let closing = server.closing.clone();
        server
            .tasks
            .spawn(async move { closing.run_until_cancelled(accept.run(listener)).await });
        Ok(server)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What its engine reported at the end of its last step.
    pub fn counters(&self) -> EngineCounters {
        self.inner.driver.counters()
    }

    /// Requests in flight now, unlike the counters without the delay of a step.
    pub fn in_flight(&self) -> usize {
        self.inner.driver.in_flight()
    }

    /// Lets `/health` answer 200 or 503.
    pub fn set_healthy(&self, healthy: bool) {
        self.inner.healthy.store(healthy, Ordering::Release);
    }

    /// Stops or continues the engine, while HTTP goes on: how a hung engine looks.
    pub fn set_paused(&self, paused: bool) {
        self.inner.driver.set_paused(paused);
    }

    /// Ends like vLLM on SIGTERM with its default timeout of zero: what is in flight ends early with
    /// `finish_reason: "abort"` and status 200, then all connections close.
    pub async fn shutdown(self) {
        self.inner.driver.refuse_new();
        self.inner.driver.abort_in_flight();
        self.finish().await;
    }

    /// Ends like vLLM on SIGTERM with a shutdown timeout: what is in flight may finish within `timeout`;
    /// meanwhile `/health` stays 200, and new requests get status 500.
    pub async fn drain(self, timeout: Duration) {
        self.inner.driver.refuse_new();
        let idle = async {
            while self.in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(timeout, idle).await.is_err() {
            self.inner.driver.abort_in_flight();
        }
        self.finish().await;
    }

    /// Closes the socket and cuts all connections at once.
    pub fn kill(&self) {
        self.closing.cancel();
        self.killed.cancel();
    }

    /// Lets answers under way be written, for a bounded time, then closes everything.
    async fn finish(self) {
        self.closing.cancel();
        self.tasks.close();
        if tokio::time::timeout(FLUSH, self.tasks.wait()).await.is_err() {
            tracing::warn!(name = %self.inner.options.name, "connections cut that did not end by themselves");
        }
        self.killed.cancel();
    }
}

impl Drop for SimServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Takes connections until closed.
struct Accept {
    inner: Arc<Inner>,
    closing: CancellationToken,
    killed: CancellationToken,
    tasks: TaskTracker,
}

impl Accept {
    async fn run(self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.connection(stream),
                Err(error) => {
                    // Out of file descriptors, most likely; try again when some may be free.
                    tracing::warn!(name = %self.inner.options.name, %error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn connection(&self, stream: TcpStream) {
        // Small writes must not wait for the peer's acknowledgement; a failure only costs time.
        let _ = stream.set_nodelay(true);
        let inner = self.inner.clone();
        let keep_alive = inner.options.keep_alive;
        let service = hyper::service::service_fn(move |request| service::serve(inner.clone(), request));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(keep_alive)
            .max_buf_size(1 << 20);
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let (closing, killed) = (self.closing.clone(), self.killed.clone());
        self.tasks.spawn(async move {
            tokio::pin!(connection);
            tokio::select! {
                // An error here is the client's doing, or the idle timeout: nothing to report.
                _ = connection.as_mut() => return,
                () = killed.cancelled() => return,
                () = closing.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            let _ = killed.run_until_cancelled(connection).await;
        });
    }
}

//! A model server over a raw socket: well for `/health` and `/metrics`, scripted for everything else.

use super::script::{Script, Step};
use super::{DEADLINE, free_address};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// Which connection brought it, from 0.
    pub connection: u64,
    /// Request line and headers, byte for byte.
    pub head: String,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl Received {
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    /// The request target, byte for byte.
    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// All values of a header.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        super::client::header_values(&self.head, name)
    }
}

/// What a test can see of the server.
#[derive(Debug, Default)]
pub struct State {
    /// Requests whose body arrived whole, checks and scrapes left out.
    pub requests: Vec<Received>,
    /// When peers went away while a request of theirs was open.
    pub gone: Vec<Instant>,
    /// Connections accepted.
    pub connections: u64,
    /// When scripts passed a [`Step::Stamp`].
    pub stamps: Vec<Instant>,
    /// Bytes of incomplete requests at the end of their connections.
    pub fragments: Vec<Vec<u8>>,
}

type Behaviour = dyn Fn(&Received, usize) -> Script + Send + Sync;

struct Shared {
    behaviour: Box<Behaviour>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    health: AtomicU16,
    metrics: Mutex<String>,
    idle_close_ms: AtomicU64,
    /// Calls of [`Upstream::release`].
    releases: watch::Sender<u64>,
    forgetful: bool,
}

/// A running server; stops when dropped.
pub struct Upstream {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Upstream {
    /// A server that does with the n-th request what `behaviour(request, n)` says, n from 0.
    pub async fn start(behaviour: impl Fn(&Received, usize) -> Script + Send + Sync + 'static) -> Self {
        Self::start_at(SocketAddr::new(free_address().ip(), 0), behaviour).await
    }

    /// The same at an address of the test's choice.
    pub async fn start_at(
        address: SocketAddr,
        behaviour: impl Fn(&Received, usize) -> Script + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(address, Box::new(behaviour), false).await
    }

    /// As [`Upstream::start`], for so many requests that they cannot all be kept: only the newest are.
    pub async fn start_forgetful(
        behaviour: impl Fn(&Received, usize) -> Script + Send + Sync + 'static,
    ) -> Self {
        let address = SocketAddr::new(free_address().ip(), 0);
        Self::start_with(address, Box::new(behaviour), true).await
    }

    async fn start_with(address: SocketAddr, behaviour: Box<Behaviour>, forgetful: bool) -> Self {
        let listener = TcpListener::bind(address)
            .await
            .expect("the server's port is free");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(Shared {
            behaviour,
            forgetful,
            state: Mutex::default(),
            changed: watch::channel(0).0,
            health: AtomicU16::new(200),
            metrics: Mutex::new(engine_metrics(0, 0)),
            idle_close_ms: AtomicU64::new(u64::MAX),
            releases: watch::channel(0).0,
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            accepting,
        }
    }

    /// A server that echoes lengths.
    pub async fn echo() -> Self {
        Self::start(|request, _| Script::echo(request)).await
    }

    /// Status of `/health` from now on.
    pub fn set_health(&self, status: u16) {
        self.shared.health.store(status, Ordering::Relaxed);
    }

    /// The metrics page from now on.
    pub fn set_metrics(&self, page: impl Into<String>) {
        *self.shared.metrics.lock().unwrap() = page.into();
    }

    /// Closes connections that were idle for so long, as uvicorn does after 5 s.
    pub fn close_idle_after(&self, time: Duration) {
        let millis = time.as_millis() as u64;
        self.shared.idle_close_ms.store(millis, Ordering::Relaxed);
    }

    /// Lets the script of each request that has arrived pass one [`Step::Await`] more, whether it has come there or not.
    pub fn release(&self) {
        self.shared.releases.send_modify(|count| *count += 1);
    }

    /// Looks at the state.
    pub fn see<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.shared.state.lock().unwrap())
    }

    /// Requests executed so far.
    pub fn executions(&self) -> usize {
        self.see(|state| state.requests.len())
    }

    /// Waits until the state is as wanted.
    pub async fn wait(&self, what: &str, mut holds: impl FnMut(&State) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let until = async {
            while !self.see(&mut holds) {
                changed.changed().await.expect("the server runs");
            }
        };
        if tokio::time::timeout(DEADLINE, until).await.is_err() {
            panic!("not within {DEADLINE:?}: {what}");
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A page as vLLM writes it, with the values that tests change.
pub fn engine_metrics(prompt_tokens: u64, generation_tokens: u64) -> String {
    format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 0.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} 0.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.0\n\
         vllm:prompt_tokens_total{{engine=\"0\",model_name=\"m\"}} {prompt_tokens}\n\
         vllm:generation_tokens_total{{engine=\"0\",model_name=\"m\"}} {generation_tokens}\n\
         vllm:cache_config_info{{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"10000\"}} 1.0\n"
    )
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with the task: all connections end with the server.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let id = shared.change(|state| {
            state.connections += 1;
            state.connections - 1
        });
        connections.spawn(
            Connection {
                stream,
                id,
                buffer: Vec::new(),
                shared: shared.clone(),
                released: 0,
            }
            .run(),
        );
        while connections.try_join_next().is_some() {}
    }
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.send_modify(|version| *version += 1);
        result
    }
}

struct Connection {
    stream: TcpStream,
    id: u64,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    /// Releases that the running script has used up, those before it included.
    released: u64,
}

impl Connection {
    async fn run(mut self) {
        let mut served = false;
        while let Some(request) = self.request(served).await {
            served = true;
            self.released = *self.shared.releases.borrow();
            let script = match request.path() {
                "/health" => Script::answer(self.shared.health.load(Ordering::Relaxed), "", ""),
                "/metrics" => {
                    let page = self.shared.metrics.lock().unwrap().clone();
                    Script::answer(200, "content-type: text/plain; version=1.0.0\r\n", &page)
                }
                _ => {
                    let n = self.shared.change(|state| {
                        state.requests.push(request.clone());
                        state.requests.len() - 1
                    });
                    if self.shared.forgetful && n >= 1000 {
                        self.shared.change(|state| *state = State::default());
                    }
                    (self.shared.behaviour)(&request, n)
                }
            };
            if !self.play(script).await {
                return;
            }
        }
        let fragment = std::mem::take(&mut self.buffer);
        if !fragment.is_empty() {
            self.shared.change(|state| state.fragments.push(fragment));
        }
    }

    /// True when the connection can take another request.
    async fn play(&mut self, script: Script) -> bool {
        for step in script.0 {
            let kept = match step {
                Step::Write(bytes) => self.stream.write_all(&bytes).await.is_ok(),
                Step::Trickle(bytes) => self.trickle(&bytes).await,
                Step::Stamp => {
                    self.shared.state.lock().unwrap().stamps.push(Instant::now());
                    true
                }
                Step::Pause(time) => self.unless_gone(tokio::time::sleep(time)).await,
                Step::Hang => self.unless_gone(std::future::pending()).await,
                Step::Await => self.released().await,
                Step::Close => return false,
                Step::Reset => {
                    let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
                    return false;
                }
            };
            if !kept {
                self.shared.change(|state| state.gone.push(Instant::now()));
                return false;
            }
        }
        true
    }

    async fn released(&mut self) -> bool {
        self.released += 1;
        let (mut releases, enough) = (self.shared.releases.subscribe(), self.released);
        let until = async {
            // The sender lives as long as this connection.
            let _ = releases.wait_for(|count| *count >= enough).await;
        };
        self.unless_gone(until).await
    }

    async fn trickle(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            if self.stream.write_all(&[*byte]).await.is_err() {
                return false;
            }
            tokio::task::yield_now().await;
        }
        true
    }

    /// False when the peer closed before `until`.
    async fn unless_gone(&mut self, until: impl Future<Output = ()>) -> bool {
        let mut byte = [0; 1];
        tokio::select! {
            () = until => true,
            // Nothing is pipelined: whatever comes is the end.
            read = self.stream.peek(&mut byte) => matches!(read, Ok(n) if n > 0),
        }
    }

    /// The next request; `None` when the peer has no more.
    ///
    /// As in uvicorn, the idle time-out runs only between two requests: a new connection may take its time.
    async fn request(&mut self, served: bool) -> Option<Received> {
        let idle = Duration::from_millis(self.shared.idle_close_ms.load(Ordering::Relaxed));
        let started = self.buffer.is_empty();
        let head_end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            let first = served && started && self.buffer.is_empty();
            let wait = if first {
                idle.min(Duration::from_secs(3600))
            } else {
                DEADLINE
            };
            tokio::time::timeout(wait, self.more()).await.ok()??;
        };
        let head = String::from_utf8_lossy(&self.buffer[..head_end]).into_owned();
        self.buffer.drain(..head_end);
        let mut request = Received {
            connection: self.id,
            head,
            body: Vec::new(),
        };
        if request
            .headers("transfer-encoding")
            .iter()
            .any(|value| value.contains("chunked"))
        {
            request.body = self.chunks().await?;
        } else if let Some(length) = request
            .headers("content-length")
            .first()
            .and_then(|l| l.parse().ok())
        {
            request.body = self.take(length).await?;
        }
        Some(request)
    }

    async fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let size = line.split(';').next()?.trim();
            let size = usize::from_str_radix(size, 16).ok()?;
            if size == 0 {
                while !self.line().await?.is_empty() {}
                return Some(body);
            }
            body.extend(self.take(size).await?);
            self.take(2).await?;
        }
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..at]).into_owned();
                self.buffer.drain(..at + 2);
                return Some(line);
            }
            self.more().await?;
        }
    }

    async fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            self.more().await?;
        }
        let rest = self.buffer.split_off(length);
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    async fn more(&mut self) -> Option<()> {
        let read = self.stream.read_buf(&mut self.buffer).await.ok()?;
        (read > 0).then_some(())
    }
}

pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

//! The gateway's process, with a generated configuration.

use super::client::Client;
use super::metrics::Samples;
use super::{DEADLINE, eventually, free_address};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

/// What a test wants of the gateway.
#[derive(Clone, Default)]
pub struct Setup {
    endpoints: Vec<String>,
    top: String,
    pool: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    listens: Vec<SocketAddr>,
}

/// A running gateway; killed when dropped.
pub struct Gateway {
    child: Child,
    pub data: SocketAddr,
    pub admin: SocketAddr,
    pub config: PathBuf,
    _folder: tempfile::TempDir,
    log: PathBuf,
}

impl Setup {
    /// A pool of these endpoints, named `e0`, `e1` and so on.
    pub fn of(endpoints: impl IntoIterator<Item = SocketAddr>) -> Self {
        endpoints.into_iter().fold(Self::default(), |setup, address| {
            let n = setup.endpoints.len();
            setup.endpoint(&format!("{{ name: e{n}, url: 'http://{address}' }}"))
        })
    }

    /// One more endpoint, as it stands in the file.
    pub fn endpoint(mut self, yaml: &str) -> Self {
        self.endpoints.push(yaml.to_owned());
        self
    }

    /// Keys at the top of the file.
    pub fn top(mut self, yaml: &str) -> Self {
        self.top += yaml;
        self.top.push('\n');
        self
    }

    /// Keys of the pool, each on a line of its own.
    pub fn pool(mut self, yaml: &str) -> Self {
        for line in yaml.lines() {
            let _ = writeln!(self.pool, "    {line}");
        }
        self
    }

    /// Words after `homing run --config FILE`.
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// A variable of the process's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Ports of an earlier gateway instead of new ones: data first, then admin.
    pub fn ports_of(mut self, other: &Gateway) -> Self {
        self.listens = vec![other.data, other.admin];
        self
    }

    /// The configuration file's text.
    pub fn yaml(&self, data: SocketAddr, admin: SocketAddr) -> String {
        let mut yaml = format!("listen: {data}\nadmin: {{ listen: '{admin}' }}\nthreads: 2\n");
        if !self.top.contains("access_log:") {
            yaml += "access_log: { to: 'off' }\n";
        }
        yaml += &self.top;
        yaml += "pools:\n  - name: default\n";
        if !self.endpoints.is_empty() {
            yaml += "    endpoints:\n";
        }
        for endpoint in &self.endpoints {
            let _ = writeln!(yaml, "      - {endpoint}");
        }
        if !self.pool.contains("health:") {
            yaml += "    health: { interval: 100ms, timeout: 1s }\n";
        }
        yaml + &self.pool
    }

    /// Starts the gateway and waits until it is ready.
    pub async fn start(self) -> Gateway {
        let gateway = self.spawn();
        gateway.ready().await;
        gateway.all_checked().await;
        gateway
    }

    /// Starts the gateway without waiting.
    pub fn spawn(self) -> Gateway {
        let (data, admin) = match self.listens[..] {
            [data, admin] => (data, admin),
            _ => (free_address(), free_address()),
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (config, log) = (folder.path().join("homing.yaml"), folder.path().join("log"));
        std::fs::write(&config, self.yaml(data, admin)).expect("the configuration is written");
        let sink = std::fs::File::create(&log).expect("the log is created");
        let child = Command::new(env!("CARGO_BIN_EXE_homing"))
            .arg("run")
            .arg("--config")
            .arg(&config)
            .args(&self.args)
            .env("HOMING_LOG", "info")
            .envs(self.env)
            .stdin(Stdio::null())
            .stdout(sink.try_clone().expect("a second handle"))
            .stderr(sink)
            .spawn()
            .expect("the gateway starts");
        Gateway {
            child,
            data,
            admin,
            config,
            log,
            _folder: folder,
        }
    }
}

impl Gateway {
    /// Waits until `/readyz` says 200.
    pub async fn ready(&self) {
        eventually("the gateway is ready", async || {
            self.try_admin("GET", "/readyz")
                .await
                .is_some_and(|(status, _)| status == 200)
        })
        .await;
    }

    /// Waits until the health of every endpoint was looked at: the gateway takes requests as soon as one is ready.
    async fn all_checked(&self) {
        eventually("all endpoints are checked", async || {
            let all: Vec<Value> =
                serde_json::from_slice(&self.admin("GET", "/endpoints").await).expect("a JSON list");
            all.iter().all(|endpoint| endpoint["reason"] != "not checked yet")
        })
        .await;
    }

    /// A new connection to the data port.
    pub async fn client(&self) -> Client {
        Client::connect(self.data).await
    }

    /// Asks the admin port; `None` when nobody answers.
    pub async fn try_admin(&self, method: &str, path: &str) -> Option<(u16, Vec<u8>)> {
        let mut client = Client::try_connect(self.admin).await?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.admin
        );
        client.try_send(request.as_bytes()).await?;
        let response = client.try_response().await?;
        Some((response.status, response.body))
    }

    /// Asks the admin port for a page that must be there.
    pub async fn admin(&self, method: &str, path: &str) -> Vec<u8> {
        let (status, body) = self
            .try_admin(method, path)
            .await
            .expect("the admin port answers");
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        body
    }

    /// The gateway's metrics now.
    pub async fn metrics(&self) -> Samples {
        Samples::parse(&self.admin("GET", "/metrics").await)
    }

    /// What `/endpoints` says of an endpoint.
    pub async fn endpoint(&self, name: &str) -> Value {
        let all: Vec<Value> =
            serde_json::from_slice(&self.admin("GET", "/endpoints").await).expect("a JSON list");
        all.into_iter()
            .find(|endpoint| endpoint["name"] == name)
            .unwrap_or_else(|| panic!("no endpoint {name}"))
    }

    /// Waits until an endpoint is in `state`.
    pub async fn endpoint_is(&self, name: &str, state: &str) {
        eventually(&format!("{name} is {state}"), async || {
            self.endpoint(name).await["state"] == state
        })
        .await;
    }

    /// Waits until nothing is in flight: no request anywhere, no reserved token.
    pub async fn at_rest(&self) {
        eventually("nothing is in flight", async || {
            let samples = self.metrics().await;
            samples
                .all("homing_endpoint_inflight_requests")
                .all(|value| value == 0.0)
                && samples
                    .all("homing_endpoint_pending_prefill_tokens")
                    .all(|value| value == 0.0)
        })
        .await;
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.child.id().to_string())
            .status()
            .expect("kill runs");
        assert!(sent.success());
    }

    /// Waits for the process to end by itself.
    pub async fn exit(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(started.elapsed() < DEADLINE, "the gateway did not exit");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// A line of `/proc/PID/status` in KiB, such as `VmRSS`.
    pub fn memory_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .expect("a known line");
        line.trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number of KiB")
    }

    /// File descriptors that the process has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .expect("it runs")
            .count()
    }

    /// Process id, for /proc.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that the gateway printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let status = match self.child.try_wait() {
            Ok(Some(status)) => Some(status),
            _ => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                None
            }
        };
        let crashed = status.is_some_and(|status| status.signal().is_some());
        if std::thread::panicking() || crashed {
            eprintln!("--- the gateway's log\n{}---", self.log());
        }
    }
}

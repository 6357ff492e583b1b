//! The demo's processes: one with three simulated pods, one with the gateway.

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// Names of the pods.
pub const PODS: [&str; 3] = ["pod-a", "pod-b", "pod-c"];
/// Tokens per KV block: as on a CPU pod of vLLM, and as in the experiments that the demo repeats.
pub const BLOCK_TOKENS: u32 = 128;
/// Model that the pods serve.
const MODEL: &str = "demo";
/// Longest wait for the fleet to answer.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A running fleet; its processes end with it.
pub struct Fleet {
    pub http: reqwest::Client,
    /// Base URL of the gateway's data port.
    pub gateway: String,
    /// Base URL of its admin port.
    pub admin: String,
    /// Base URLs of the pods, in the order of [`PODS`].
    pub pods: Vec<String>,
    processes: Vec<Child>,
    /// Holds the gateway's configuration.
    folder: tempfile::TempDir,
}

/// One answer of the gateway.
pub struct Answer {
    pub status: u16,
    /// The pod that served it, by the gateway's header.
    pub pod: String,
    /// Matched and total blocks, by the gateway's header.
    pub prefix_match: String,
}

/// What one pod has counted since it started, by its own metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    pub prompt_tokens: u64,
    pub hit_tokens: u64,
}

impl Fleet {
    /// Starts the pods and the gateway, and waits until every pod is ready.
    pub async fn start() -> anyhow::Result<Self> {
        let ports = free_ports::<5>()?;
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let mut fleet = Self {
            // What runs on this machine is reached without the proxy that the environment may name.
            http: reqwest::Client::builder().no_proxy().build()?,
            gateway: url(ports[0]),
            admin: url(ports[1]),
            pods: ports[2..].iter().copied().map(url).collect(),
            processes: Vec::new(),
            folder,
        };
        fleet.start_pods(&ports[2..])?;
        fleet.start_gateway(ports[0], ports[1])?;
        fleet.wait_until_ready().await?;
        Ok(fleet)
    }

    fn start_pods(&mut self, ports: &[u16]) -> anyhow::Result<()> {
        let mut command = homing()?;
        command.args(["sim", "--model", MODEL, "--block-size", &BLOCK_TOKENS.to_string()]);
        for (name, port) in PODS.iter().zip(ports) {
            command.args(["--listen", &format!("127.0.0.1:{port}"), "--name", name]);
        }
        self.processes
            .push(command.spawn().context("cannot start the pods")?);
        Ok(())
    }

    fn start_gateway(&mut self, data: u16, admin: u16) -> anyhow::Result<()> {
        let path = self.folder.path().join("homing.yaml");
        std::fs::write(&path, configuration(data, admin, &self.pods))
            .context("cannot write the configuration")?;
        let mut command = homing()?;
        command.arg("run").arg("--config").arg(path);
        self.processes
            .push(command.spawn().context("cannot start the gateway")?);
        Ok(())
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while self.ready_pods().await != PODS.len() {
            if let Some(process) = self
                .processes
                .iter_mut()
                .find_map(|p| p.try_wait().ok().flatten())
            {
                bail!("a process of the demo ended at once: {process}");
            }
            if Instant::now() > deadline {
                bail!("the fleet was not ready within {} s", START_LIMIT.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn ready_pods(&self) -> usize {
        let Ok(answer) = self.http.get(format!("{}/endpoints", self.admin)).send().await else {
            return 0;
        };
        let endpoints: Vec<Value> = answer.json().await.unwrap_or_default();
        endpoints
            .iter()
            .filter(|endpoint| endpoint["state"] == "ready")
            .count()
    }

    /// Sends one completion request through the gateway.
    pub async fn complete(&self, prompt: &str) -> anyhow::Result<Answer> {
        let body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 8 });
        let url = format!("{}/v1/completions", self.gateway);
        let answer = self
            .http
            .post(url)
            .json(&body)
            .send()
            .await
            .context("the gateway did not answer")?;
        let header = |name| {
            answer
                .headers()
                .get(name)
                .and_then(|v| v.to_str().ok())
                .unwrap_or("-")
                .to_owned()
        };
        let (pod, prefix_match) = (header("x-homing-endpoint"), header("x-homing-prefix-match"));
        let status = answer.status().as_u16();
        answer.bytes().await.context("the answer broke off")?;
        Ok(Answer {
            status,
            pod,
            prefix_match,
        })
    }

    /// How many tokens a pod makes of `text`.
    pub async fn count_tokens(&self, text: &str) -> anyhow::Result<u64> {
        let body = json!({ "model": MODEL, "prompt": text });
        let answer = self
            .http
            .post(format!("{}/tokenize", self.pods[0]))
            .json(&body)
            .send()
            .await?;
        let value: Value = answer.json().await?;
        value["count"].as_u64().context("/tokenize gave no count")
    }

    /// What each pod has counted.
    pub async fn counts(&self) -> anyhow::Result<Vec<PodCounts>> {
        let mut counts = Vec::with_capacity(self.pods.len());
        for pod in &self.pods {
            let page = self
                .http
                .get(format!("{pod}/metrics"))
                .send()
                .await?
                .bytes()
                .await?;
            let metrics = crate::datalayer::vllm::EngineMetrics::parse(&page).context("no metrics")?;
            counts.push(PodCounts {
                prompt_tokens: metrics.prompt_tokens.unwrap_or_default() as u64,
                hit_tokens: metrics.prefix_cache_hits_tokens.unwrap_or_default() as u64,
            });
        }
        Ok(counts)
    }

    /// Ends all processes.
    pub async fn stop(mut self) {
        for process in &mut self.processes {
            // One that has ended already needs no end.
            let _ = process.kill().await;
        }
    }
}

/// This very binary.
fn homing() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find the own binary")?);
    command
        .kill_on_drop(true)
        .env("HOMING_LOG", "error")
        .stdin(std::process::Stdio::null());
    Ok(command)
}

fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    // All are held until all are known, so that no port comes twice.
    let held: Vec<TcpListener> = (0..N)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

/// The gateway's configuration: the default preset, and what the demo wants to show.
fn configuration(data: u16, admin: u16, pods: &[String]) -> String {
    let endpoints: String = PODS
        .iter()
        .zip(pods)
        .map(|(name, url)| format!("      - {{ name: {name}, url: \"{url}\" }}\n"))
        .collect();
    format!(
        "listen: 127.0.0.1:{data}\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\nresponse_headers: always\n\
         access_log: {{ to: off }}\npools:\n  - name: demo\n    endpoints:\n{endpoints}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_configuration_is_valid() {
        let pods = [1, 2, 3].map(|port| format!("http://127.0.0.1:{port}"));
        let text = configuration(8080, 9901, &pods);
        crate::config::Config::parse(&text, "demo").unwrap();
    }
}

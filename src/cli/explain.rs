//! `homing explain`: asks the running gateway where a request would go, and why.

use super::Exit;
use crate::config::Config;
use anyhow::Context as _;
use serde_json::Value;
use std::io::{self, Write, stdout};
use std::path::PathBuf;

/// Ask the running gateway which endpoint it would pick for a request, and why. Sends nothing upstream.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The running gateway's configuration file, which names its admin port.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// File with the request's body; `-` reads standard input.
    #[arg(long, value_name = "BODY.json")]
    request: PathBuf,
    /// Path that the request would be sent to.
    #[arg(long, default_value = "/v1/chat/completions")]
    path: String,
    /// How to print the decision.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// How a decision is printed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Prints the decision.
///
/// # Errors
/// When the body cannot be read or the gateway does not answer.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let config = Config::load(&args.config)?;
    let body = read(&args.request)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let decision = runtime.block_on(ask(&config, &args.path, body))?;
    match args.format {
        Format::Json => writeln!(stdout(), "{decision:#}")?,
        Format::Text => print(&mut stdout(), &decision)?,
    }
    let placed = decision["chosen"].is_string();
    Ok(if placed { Exit::Fine } else { Exit::Failure })
}

fn read(path: &PathBuf) -> anyhow::Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        let mut body = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut body)?;
        return Ok(body);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

async fn ask(config: &Config, path: &str, body: Vec<u8>) -> anyhow::Result<Value> {
    let url = format!("http://{}/explain?path={path}", config.admin.listen);
    let client = reqwest::Client::builder().no_proxy().build()?;
    let answer = client
        .post(&url)
        .body(body)
        .send()
        .await
        .with_context(|| format!("no gateway answers at {url}; is it running?"))?;
    let status = answer.status();
    let value: Value = answer.json().await.context("the answer is no JSON")?;
    if !status.is_success() {
        anyhow::bail!("{}", value["error"]["message"].as_str().unwrap_or("refused"));
    }
    Ok(value)
}

fn print(out: &mut impl Write, decision: &Value) -> io::Result<()> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    writeln!(out, "{}: {}", text(&decision["policy"]), text(&decision["why"]))?;
    let empty = Vec::new();
    for candidate in decision["candidates"].as_array().unwrap_or(&empty) {
        let terms = candidate["terms"].as_object().into_iter().flatten();
        let terms: Vec<_> = terms
            .map(|(name, value)| format!("{name} {:.4}", value.as_f64().unwrap_or(0.0)))
            .collect();
        writeln!(
            out,
            "{:>3}. {:<20} {:>10.4}  matched {:>6} tokens  {}",
            text(&candidate["rank"]),
            text(&candidate["endpoint"]),
            candidate["total"].as_f64().unwrap_or(0.0),
            text(&candidate["matched_tokens"]),
            terms.join("  "),
        )?;
    }
    for filtered in decision["filtered"].as_array().unwrap_or(&empty) {
        writeln!(
            out,
            "  -  {:<20} not considered: {}",
            text(&filtered["endpoint"]),
            text(&filtered["reason"])
        )?;
    }
    Ok(())
}

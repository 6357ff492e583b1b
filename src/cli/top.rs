//! `homing top`: the fleet at a glance in a terminal, polled from the admin port.

mod rates;
mod view;

use super::Exit;
use crate::admin::stats::Stats;
use crate::config::Config;
use anyhow::Context as _;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rates::Window;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use view::View;

/// Decisions shown at most.
const DECISIONS: usize = 20;
/// Longest wait for the admin port's answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Size of the picture that `--once` prints.
const PRINTED: (u16, u16) = (120, 40);

/// The running fleet at a glance: endpoints, rates, hit rates and the newest decisions. `q` ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The gateway's admin port.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9901")]
    admin: String,
    /// The running gateway's configuration file, which names its admin port.
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Print one picture and end: for scripts and reports.
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=60.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("between 0.1 and 60".to_owned())
    }
}

/// Shows the fleet until the operator ends it.
///
/// # Errors
/// When the configuration is faulty, the terminal cannot be used, or with `--once` the gateway does not answer.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let admin = match &args.config {
        Some(file) => format!("http://{}", Config::load(file)?.admin.listen),
        None => args.admin.trim_end_matches('/').to_owned(),
    };
    let mut top = Top::new(admin)?;
    let interval = Duration::from_secs_f64(args.interval);
    if args.once {
        top.print_once(interval)?;
    } else {
        let mut terminal = ratatui::try_init().context("this is no terminal; try --once")?;
        let ended = top.watch(&mut terminal, interval);
        ratatui::restore();
        ended?;
    }
    Ok(Exit::Fine)
}

/// The newest decisions, as far as they are shown.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Decision {
    pool: String,
    kind: String,
    model: String,
    endpoint: Option<String>,
    status: u16,
    why: String,
    ttfb_ms: Option<f64>,
}

/// What is polled and how it is shown.
struct Top {
    admin: String,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    window: Window,
    decisions: Vec<Decision>,
    fault: Option<String>,
    view: View,
}

impl Top {
    fn new(admin: String) -> anyhow::Result<Self> {
        Ok(Self {
            admin,
            client: reqwest::Client::builder().timeout(TIMEOUT).no_proxy().build()?,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
            window: Window::default(),
            decisions: Vec::new(),
            fault: None,
            view: View::default(),
        })
    }

    fn print_once(&mut self, interval: Duration) -> anyhow::Result<()> {
        self.poll();
        // Rates need two looks.
        std::thread::sleep(interval);
        self.poll();
        if let Some(fault) = &self.fault {
            anyhow::bail!("{fault}");
        }
        let mut terminal = Terminal::new(TestBackend::new(PRINTED.0, PRINTED.1))?;
        self.draw(&mut terminal)?;
        write!(stdout(), "{}", view::as_text(terminal.backend().buffer()))?;
        Ok(())
    }

    fn watch(&mut self, terminal: &mut ratatui::DefaultTerminal, interval: Duration) -> anyhow::Result<()> {
        loop {
            self.poll();
            let next = Instant::now() + interval;
            self.draw(terminal)?;
            while let Some(left) = next.checked_duration_since(Instant::now()) {
                if !event::poll(left)? {
                    break;
                }
                if self.is_end(&event::read()?) {
                    return Ok(());
                }
                self.draw(terminal)?;
            }
        }
    }

    fn draw<B: ratatui::backend::Backend>(&mut self, terminal: &mut Terminal<B>) -> anyhow::Result<()>
    where
        B::Error: Send + Sync + 'static,
    {
        let scene = view::Scene {
            window: &self.window,
            decisions: &self.decisions,
            fault: self.fault.as_deref(),
        };
        terminal.draw(|frame| self.view.draw(frame, &scene))?;
        Ok(())
    }

    /// Reads the admin port; a fault is shown and does not end the view: the gateway may be restarting.
    fn poll(&mut self) {
        match self.runtime.block_on(self.fetch()) {
            Ok((stats, decisions)) => {
                self.window.push(stats);
                self.decisions = decisions;
                self.fault = None;
            }
            Err(fault) => self.fault = Some(format!("no answer from {}: {fault:#}", self.admin)),
        }
    }

    async fn fetch(&self) -> anyhow::Result<(Stats, Vec<Decision>)> {
        let decisions = format!("{}/decisions?limit={DECISIONS}&candidates=1", self.admin);
        let stats = format!("{}/stats", self.admin);
        let stats = self.client.get(stats).send().await?.error_for_status()?;
        let decisions = self.client.get(decisions).send().await?.error_for_status()?;
        Ok((stats.json().await?, decisions.json().await?))
    }

    /// Takes an event; true when it ends the view.
    fn is_end(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return false };
        if key.kind != KeyEventKind::Press {
            return false;
        }
        let interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        let ended = interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
        if !ended {
            self.view.key(key.code);
        }
        ended
    }
}

#[cfg(test)]
mod tests;

//! `homing replay`: a workload against modelled endpoints in virtual time, one row per policy.

use super::{Exit, Misuse, positive};
use crate::config::units::Period;
use crate::scheduling::{LeastCostParameters, Policy};
use crate::sim::engine::FleetPreset;
use crate::sim::replay::generate::{self, FleetShape, Scenario};
use crate::sim::replay::report::{self, Row};
use crate::sim::replay::trace::{self, TraceOptions};
use crate::sim::replay::{self, Change, ChangeKind, FleetSpec, Outcome, plot};
use anyhow::{Context, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tuning::{Tuning, overload, tuning};

mod tuning;

/// Replay a trace or a generated workload and compare policies.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Recorded traffic: Mooncake JSONL, sessions JSONL, or an Azure LLM inference CSV
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "generate",
        conflicts_with = "generate"
    )]
    trace: Option<PathBuf>,
    /// A generated workload: shared-prefix, agentic, tool-agent, conversation, cold-burst, lock-in, one-shot or
    /// flooded-tenant
    #[arg(long, value_name = "NAME")]
    generate: Option<String>,
    /// Setting of the generator, such as rps=9; may be repeated
    #[arg(long = "set", value_name = "NAME=NUMBER", value_parser = setting, requires = "generate")]
    settings: Vec<(String, f64)>,
    /// Policies to compare: presets, rivals, or `all`
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "least-cost,optimized-baseline"
    )]
    policy: Vec<String>,
    /// Number of endpoints; default: what the workload is meant for, else 8
    #[arg(long, value_name = "N")]
    endpoints: Option<usize>,
    /// How many times as fast requests (or sessions) come as recorded or generated
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    rate: f64,
    /// Kind of server that the endpoints are; default: what the workload is meant for, else qwen3-32b-2xh100
    #[arg(long, value_name = "PRESET")]
    fleet: Option<FleetPreset>,
    /// KV cache per endpoint in tokens; default: the preset's
    #[arg(long, value_name = "TOKENS")]
    kv_tokens: Option<u64>,
    /// Requests that an endpoint runs at a time; default: what the workload is meant for, else 256
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<u32>,
    /// Relative speed of each endpoint, such as 1,1,0.5; 1 for those not named
    #[arg(long, value_name = "FACTOR,...", value_delimiter = ',', value_parser = positive)]
    speeds: Vec<f64>,
    /// How wrong the gateway is about the size of the engines' caches: 0.5 takes them for half as large
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    index_ratio: f64,
    /// How often the engines' gauges are sampled
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = period)]
    scrape_interval: Period,
    /// Endpoint that joins late, such as 1@300s; may be repeated, as the next two may
    #[arg(long, value_name = "N@TIME", value_parser = at)]
    join: Vec<(usize, f64)>,
    /// Endpoint that leaves: it gets no more requests
    #[arg(long, value_name = "N@TIME", value_parser = at)]
    leave: Vec<(usize, f64)>,
    /// Endpoint whose engine restarts: its cache and its running requests are lost
    #[arg(long, value_name = "N@TIME", value_parser = at)]
    restart: Vec<(usize, f64)>,
    /// Seeds of jitter, generators and policies: one row per policy and seed
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// Spread arrivals of a trace over this time at random; default: 3s for timestamps rounded to that, else none
    #[arg(long, value_name = "TIME", value_parser = period)]
    jitter: Option<Period>,
    /// Tokens per block of the trace's hash ids; default: 512, or what the trace's lengths say
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    trace_block_size: Option<u32>,
    /// How many times the sessions of a trace are played, each time as different users
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: u32,
    /// Share of the requests, the earliest, that is left out of the measures
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    warmup: f64,
    /// Let requests wait in the router while every endpoint has enough to prefill, and pick when their turn comes
    #[arg(long)]
    queue: bool,
    /// As --queue, and let new conversations wait while the running ones fill the caches
    #[arg(long)]
    gate: bool,
    /// A value of the queue or the gate other than its default, such as overtake=30 or fraction=0.8
    #[arg(long = "overload", value_name = "NAME=NUMBER", value_parser = tuning)]
    tunings: Vec<Tuning>,
    /// Keep the constants of least-cost and others as they start instead of learning them
    #[arg(long, conflicts_with = "told")]
    no_learning: bool,
    /// Tell these policies the endpoints' true constants instead of letting them learn
    #[arg(long)]
    told: bool,
    /// Draw TTFT distribution and load balance of the first seed
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Form of the result
    #[arg(long, value_name = "FORM", default_value = "table")]
    format: Format,
}

/// How often the progress bar is drawn anew.
const REDRAW_AFTER: Duration = Duration::from_millis(100);

/// Form of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// A list of objects.
    Json,
}

/// Runs the replay and prints its result.
///
/// # Errors
/// A trace that cannot be read, an unknown policy or generator, or a picture that cannot be written.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let parameters = LeastCostParameters {
        learn: !args.no_learning,
        ..LeastCostParameters::default()
    };
    let policies = policies(args, &parameters)?;
    let scenarios = scenarios(args)?;
    let cells: Vec<(usize, usize)> = (0..scenarios.len())
        .flat_map(|seed| (0..policies.len()).map(move |policy| (seed, policy)))
        .collect();
    let requests = |seed: usize| scenarios[seed].0.workload.requests() as u64;
    let progress = Progress {
        total: cells.iter().map(|&(seed, _)| requests(seed)).sum(),
        ended: AtomicU64::new(0),
    };
    let outcomes = in_parallel(&cells, &progress, |&(seed, policy)| {
        let (scenario, fleet) = &scenarios[seed];
        replay::run_with(
            &scenario.workload,
            fleet,
            policies[policy].1.clone(),
            overload(args.queue, args.gate, &args.tunings),
            args.seed[seed],
            &progress.ended,
        )
    });
    let row = |(&(seed, policy), outcome): (&(usize, usize), &Outcome)| {
        let fleet = &scenarios[seed].1;
        let joins: Vec<_> = fleet
            .changes
            .iter()
            .filter(|c| c.kind == ChangeKind::Join)
            .collect();
        let joins: Vec<_> = joins
            .iter()
            .map(|change| (change.endpoint, change.at_s))
            .collect();
        report::summarise(
            &policies[policy].0,
            args.seed[seed],
            outcome,
            fleet.endpoints,
            &joins,
            args.warmup,
        )
    };
    let rows: Vec<Row> = cells.iter().zip(&outcomes).map(row).collect();
    match args.format {
        Format::Table => write!(stdout(), "{}", report::table(&rows))?,
        Format::Json => writeln!(stdout(), "{}", serde_json::to_string_pretty(&rows)?)?,
    }
    if let Some(path) = &args.plot {
        let names = policies.iter().map(|(name, _)| name.clone());
        let first_seed: Vec<_> = names.zip(&outcomes).collect();
        plot::draw(path, &first_seed, scenarios[0].1.endpoints)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Exit::Fine)
}

fn policies(args: &Args, parameters: &LeastCostParameters) -> anyhow::Result<Vec<(String, Policy)>> {
    let names: Vec<&str> = if args.policy.iter().any(|name| name == "all") {
        Policy::names().collect()
    } else {
        args.policy.iter().map(String::as_str).collect()
    };
    let known = || Policy::names().collect::<Vec<_>>().join(", ");
    let policy = |name: &str| {
        let policy = Policy::named(name, parameters);
        policy
            .map(|policy| (name.to_owned(), policy))
            .ok_or_else(|| Misuse(format!("no policy `{name}`; there are {}", known())).into())
    };
    names.into_iter().map(policy).collect()
}

/// One workload and fleet per seed.
fn scenarios(args: &Args) -> anyhow::Result<Vec<(Scenario, FleetSpec)>> {
    let text = match &args.trace {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Some(text.with_context(|| format!("cannot read {}", path.display()))?)
        }
        None => None,
    };
    let scenario = |seed: &u64| {
        let mut rng = Pcg64Mcg::seed_from_u64(*seed);
        let mut scenario = match (&text, &args.generate) {
            (Some(text), _) => Scenario {
                workload: trace::read(text, &trace_options(args), &mut rng)?,
                fleet: FleetShape::default(),
            },
            (None, Some(name)) => {
                generate::generate(name, &args.settings.iter().cloned().collect(), &mut rng)?
            }
            (None, None) => bail!("needs --trace or --generate"),
        };
        scenario.workload.speed_up(args.rate);
        let fleet = fleet(args, &scenario);
        Ok((scenario, fleet))
    };
    args.seed.iter().map(scenario).collect()
}

fn trace_options(args: &Args) -> TraceOptions {
    TraceOptions {
        block_size: args.trace_block_size,
        jitter_s: args.jitter.map(|jitter| jitter.as_secs_f64()),
        repeat: args.repeat,
    }
}

fn fleet(args: &Args, scenario: &Scenario) -> FleetSpec {
    let shape = &scenario.fleet;
    let block_size = scenario.workload.block_size.max(1);
    let preset = args.fleet.or(shape.preset).unwrap_or(FleetPreset::Qwen3On2H100);
    let mut engine = preset.spec(block_size);
    if let Some(tokens) = args.kv_tokens {
        engine.num_blocks = u32::try_from(tokens / u64::from(block_size)).unwrap_or(u32::MAX);
    }
    if let Some(seats) = args.max_num_seqs.or(shape.max_num_seqs) {
        engine.max_num_seqs = seats;
    }
    let joins = if args.join.is_empty() {
        &shape.joins
    } else {
        &args.join
    };
    let of = |list: &[(usize, f64)], kind| {
        list.iter()
            .map(|&(endpoint, at_s)| Change { at_s, endpoint, kind })
            .collect::<Vec<_>>()
    };
    let mut changes = of(joins, ChangeKind::Join);
    changes.extend(of(&args.leave, ChangeKind::Leave));
    changes.extend(of(&args.restart, ChangeKind::Restart));
    FleetSpec {
        engine,
        endpoints: args.endpoints.or(shape.endpoints).unwrap_or(8).max(1),
        speeds: args.speeds.clone(),
        index_ratio: args.index_ratio,
        scrape_interval_s: args.scrape_interval.as_secs_f64(),
        changes,
        told: args.told,
    }
}

/// Requests over all replays.
struct Progress {
    total: u64,
    ended: AtomicU64,
}

impl Progress {
    /// Draws a bar, where a person watches, until `done`.
    fn show(&self, done: &AtomicBool) {
        let bar = ProgressBar::new(self.total);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent} %, {eta} left") {
            bar.set_style(style);
        }
        while !done.load(Ordering::Relaxed) {
            bar.set_position(self.ended.load(Ordering::Relaxed));
            std::thread::park_timeout(REDRAW_AFTER);
        }
        bar.finish_and_clear();
    }
}

/// Works through `items` on all cores.
fn in_parallel<T: Sync, R: Send>(items: &[T], progress: &Progress, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let all_done = AtomicBool::new(false);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let worker = || {
        while let Some((index, item)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            items.get(index).map(|item| (index, item))
        } {
            let result = work(item);
            if let Ok(mut done) = done.lock() {
                done.push((index, result));
            }
        }
    };
    let workers = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(items.len().max(1));
    std::thread::scope(|scope| {
        let bar = scope.spawn(|| progress.show(&all_done));
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        all_done.store(true, Ordering::Relaxed);
        bar.thread().unpark();
        if let Some(Err(panic)) = ends.into_iter().find(Result::is_err) {
            std::panic::resume_unwind(panic);
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn period(text: &str) -> Result<Period, String> {
    Period::from_str(text).map_err(|error| error.to_string())
}

fn setting(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=NUMBER")?;
    Ok((name.trim().to_owned(), positive(value.trim())?))
}

fn at(text: &str) -> Result<(usize, f64), String> {
    let (endpoint, time) = text.split_once('@').ok_or("must be N@TIME, such as 1@300s")?;
    let endpoint = endpoint
        .parse()
        .map_err(|_| "N is the endpoint's number, from 0".to_owned())?;
    Ok((endpoint, period(time)?.as_secs_f64()))
}

#[cfg(test)]
mod tests;

//! Seeded workloads of known shapes, for those who have no trace.

use super::trace::exponential;
use super::workload::{Session, Turn, Workload, mix};
use crate::sim::engine::FleetPreset;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use thiserror::Error;

mod flooded;

/// Settings of a generator by name.
pub type Parameters = BTreeMap<String, f64>;

/// A workload, and the fleet that it is meant for where that matters.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    pub workload: Workload,
    pub fleet: FleetShape,
}

/// What a scenario prescribes of the fleet; `None` leaves it to the command line.
#[derive(Clone, Debug, Default)]
pub struct FleetShape {
    pub endpoints: Option<usize>,
    /// Kind of server.
    pub preset: Option<FleetPreset>,
    /// Running requests per endpoint.
    pub max_num_seqs: Option<u32>,
    /// Endpoint and second at which it joins.
    pub joins: Vec<(usize, f64)>,
}

/// Why a workload cannot be generated.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GenerateError {
    /// No generator has this name.
    #[error("no generator `{0}`; there are {names}", names = NAMES.join(", "))]
    UnknownName(String),
    /// The generator has no such setting.
    #[error("generator `{generator}` has no setting `{setting}`; it has {known}")]
    UnknownSetting {
        /// The generator.
        generator: String,
        /// What it was given.
        setting: String,
        /// What it takes.
        known: String,
    },
    /// A setting's value makes no sense.
    #[error("setting `{0}` must be a finite number above 0")]
    BadValue(String),
}

/// Every generator.
pub const NAMES: &[&str] = &[
    "shared-prefix",
    "agentic",
    "tool-agent",
    "conversation",
    "cold-burst",
    "lock-in",
    "one-shot",
    "flooded-tenant",
];

/// Generates a workload. Equal names, settings and generators of random numbers give equal workloads.
///
/// # Errors
/// An unknown name or setting, or a value out of range.
pub fn generate(name: &str, parameters: &Parameters, rng: &mut Pcg64Mcg) -> Result<Scenario, GenerateError> {
    let mut settings = Settings {
        given: parameters,
        known: Vec::new(),
        bad: None,
    };
    let make = match name {
        "shared-prefix" => shared_prefix,
        "agentic" => agentic,
        "tool-agent" => tool_agent,
        "conversation" => conversation,
        "cold-burst" => cold_burst,
        "lock-in" => lock_in,
        "one-shot" => one_shot,
        "flooded-tenant" => flooded::flooded_tenant,
        _ => return Err(GenerateError::UnknownName(name.to_owned())),
    };
    let plan = make(&mut settings);
    settings.finish(name)?;
    let mut scenario = plan(rng);
    scenario.workload.sort();
    Ok(scenario)
}

/// Builds the scenario once its settings are known to be good.
type Plan = Box<dyn FnOnce(&mut Pcg64Mcg) -> Scenario>;

/// Settings as they are asked for, with the check that nothing else was given.
struct Settings<'a> {
    given: &'a Parameters,
    known: Vec<&'static str>,
    bad: Option<&'static str>,
}

impl Settings<'_> {
    fn get(&mut self, name: &'static str, default: f64) -> f64 {
        self.known.push(name);
        let value = self.given.get(name).copied().unwrap_or(default);
        if !(value.is_finite() && value > 0.0) {
            self.bad = Some(name);
        }
        value
    }

    fn count(&mut self, name: &'static str, default: u32) -> u32 {
        self.get(name, f64::from(default)) as u32
    }

    fn finish(self, generator: &str) -> Result<(), GenerateError> {
        if let Some(setting) = self
            .given
            .keys()
            .find(|name| !self.known.contains(&name.as_str()))
        {
            return Err(GenerateError::UnknownSetting {
                generator: generator.to_owned(),
                setting: setting.clone(),
                known: self.known.join(", "),
            });
        }
        self.bad
            .map_or(Ok(()), |name| Err(GenerateError::BadValue(name.to_owned())))
    }
}

/// Content as a list of parts: each a namespace and its tokens; blocks that lie in the same parts from
/// the start on are equal.
fn turn(parts: &[(u64, u32)], output_tokens: u32, block_size: u32) -> Turn {
    let prompt_tokens = parts.iter().map(|(_, tokens)| tokens).sum::<u32>().max(1);
    let (mut chain, mut ids) = (0, Vec::with_capacity((prompt_tokens / block_size) as usize + 1));
    let (mut part, mut part_end) = (0, parts.first().map_or(0, |(_, tokens)| *tokens));
    for end in (1..=prompt_tokens.div_ceil(block_size)).map(|n| (n * block_size).min(prompt_tokens)) {
        while part_end < end {
            chain = mix(chain, parts[part].0);
            part += 1;
            part_end += parts[part].1;
        }
        chain = mix(chain, parts[part].0 ^ u64::from(end) << 40);
        ids.push(chain);
    }
    Turn::from_ids(prompt_tokens, output_tokens.max(1), block_size, ids, 0)
}

/// A length around `mean` with the long tail of real prompts: log-normal with this sigma, same mean.
fn around(rng: &mut Pcg64Mcg, mean: f64, sigma: f64) -> u32 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    (mean * (sigma * normal - sigma * sigma / 2.0).exp())
        .round()
        .max(1.0) as u32
}

/// Picks 0..count, low numbers more often: probability in proportion to 1 / (rank + 1).
fn zipf(rng: &mut Pcg64Mcg, count: u32) -> u64 {
    let total: f64 = (1..=count).map(|rank| 1.0 / f64::from(rank)).sum();
    let mut draw = rng.random::<f64>() * total;
    for rank in 1..=count {
        draw -= 1.0 / f64::from(rank);
        if draw <= 0.0 {
            return u64::from(rank - 1);
        }
    }
    u64::from(count - 1)
}

/// Groups that share a long system prompt, a few questions each, asked again and again at a rate that climbs.
fn shared_prefix(settings: &mut Settings) -> Plan {
    let groups = settings.count("groups", 150);
    let users = settings.count("users", 5);
    let system_tokens = settings.count("system_tokens", 6000);
    let question_tokens = settings.count("question_tokens", 1200);
    let output_tokens = settings.count("output_tokens", 1000);
    let (from_rps, to_rps) = (settings.get("from_rps", 3.0), settings.get("to_rps", 60.0));
    let duration_s = settings.get("duration_s", 480.0);
    let block_size = settings.count("block_size", 64);
    Box::new(move |rng| {
        let mut prompts: Vec<_> = (0..groups)
            .flat_map(|group| (0..users).map(move |user| (group, user)))
            .collect();
        let (mut now_s, mut sessions) = (0.0, Vec::new());
        while now_s < duration_s {
            let next = sessions.len() % prompts.len();
            if next == 0 {
                (1..prompts.len())
                    .rev()
                    .for_each(|i| prompts.swap(i, rng.random_range(0..=i)));
            }
            let (group, user) = prompts[next];
            let question = 1 << 32 | u64::from(group) << 16 | u64::from(user);
            let parts = [(u64::from(group), system_tokens), (question, question_tokens)];
            sessions.push(Session::single(now_s, turn(&parts, output_tokens, block_size)));
            now_s += exponential(rng, from_rps + (to_rps - from_rps) * now_s / duration_s);
        }
        let fleet = FleetShape {
            endpoints: Some(8),
            ..FleetShape::default()
        };
        Scenario {
            workload: Workload { block_size, sessions },
            fleet,
        }
    })
}

/// Coding sessions whose context grows turn by turn, behind one of a few common system prompts (closed loop).
fn agentic(settings: &mut Settings) -> Plan {
    let sessions = settings.count("sessions", 200);
    let starts_per_s = settings.get("starts_per_s", 0.1);
    let system_tokens = settings.count("system_tokens", 12_000);
    let first_tokens = settings.get("first_tokens", 12_000.0);
    let growth_tokens = settings.get("growth_tokens", 1500.0);
    let turns = settings.get("turns", 25.0);
    let think_s = settings.get("think_s", 12.0);
    let output_tokens = settings.get("output_tokens", 300.0);
    let block_size = settings.count("block_size", 512);
    Box::new(move |rng| {
        let (mut start_s, mut all) = (0.0, Vec::new());
        for session in 0..u64::from(sessions) {
            let mut parts = vec![(zipf(rng, 4), system_tokens)];
            let mut list = Vec::new();
            for number in 0..around(rng, turns, 0.6) {
                let mean = if number == 0 { first_tokens } else { growth_tokens };
                let part = (session + 1) << 20 | u64::from(number);
                parts.push((part, around(rng, mean, 1.0)));
                let think_s = if number == 0 {
                    0.0
                } else {
                    exponential(rng, 1.0 / think_s)
                };
                let output = around(rng, output_tokens, 0.8);
                list.push(Turn {
                    think_s,
                    ..turn(&parts, output, block_size)
                });
                // The answer becomes part of the next prompt.
                parts.push((part | 1 << 19, output));
            }
            all.push(Session {
                start_s,
                tenant: 0,
                turns: list,
            });
            start_s += exponential(rng, starts_per_s);
        }
        Scenario {
            workload: Workload {
                block_size,
                sessions: all,
            },
            fleet: FleetShape::default(),
        }
    })
}

/// Open-loop tool calls: many short-lived tasks, each a handful of growing prompts behind a shared tool description.
fn tool_agent(settings: &mut Settings) -> Plan {
    let requests = settings.count("requests", 23_608);
    let rps = settings.get("rps", 6.5);
    let tools = settings.count("tools", 60);
    let tool_tokens = settings.get("tool_tokens", 2900.0);
    let task_tokens = settings.get("task_tokens", 4400.0);
    let growth_tokens = settings.get("growth_tokens", 900.0);
    let calls = settings.get("calls", 1.4);
    let gap_s = settings.get("gap_s", 8.0);
    let output_tokens = settings.get("output_tokens", 185.0);
    let block_size = settings.count("block_size", 512);
    Box::new(move |rng| {
        let lengths: Vec<u32> = (0..tools).map(|_| around(rng, tool_tokens, 0.6)).collect();
        let (mut start_s, mut sessions, mut task) = (0.0, Vec::new(), 0);
        while sessions.len() < requests as usize {
            task += 1;
            let tool = zipf(rng, tools);
            let mut parts = vec![(tool, lengths[tool as usize])];
            let mut at_s = start_s;
            let count = around(rng, calls, 0.8);
            for call in 0..count {
                let mean = if call == 0 { task_tokens } else { growth_tokens };
                parts.push(((task + 1) << 20 | u64::from(call), around(rng, mean, 0.9)));
                let output = around(rng, output_tokens, 0.8);
                sessions.push(Session::single(at_s, turn(&parts, output, block_size)));
                at_s += exponential(rng, 1.0 / gap_s);
            }
            start_s += exponential(rng, rps / f64::from(count));
        }
        Scenario {
            workload: Workload { block_size, sessions },
            fleet: FleetShape::default(),
        }
    })
}

/// Chat: conversations that come back after a while with everything said so far (open loop), amid many that do not.
fn conversation(settings: &mut Settings) -> Plan {
    let requests = settings.count("requests", 12_000);
    let rps = settings.get("rps", 3.4);
    let system_tokens = settings.count("system_tokens", 512);
    let first_tokens = settings.get("first_tokens", 9400.0);
    let growth_tokens = settings.get("growth_tokens", 2600.0);
    let turns = settings.get("turns", 1.15);
    let gap_s = settings.get("gap_s", 60.0);
    let output_tokens = settings.get("output_tokens", 343.0);
    let block_size = settings.count("block_size", 512);
    Box::new(move |rng| {
        let (mut start_s, mut sessions, mut talk) = (0.0, Vec::new(), 0);
        while sessions.len() < requests as usize {
            talk += 1;
            let mut parts = vec![(0, system_tokens)];
            let mut at_s = start_s;
            let count = around(rng, turns, 0.9);
            for number in 0..count {
                let mean = if number == 0 { first_tokens } else { growth_tokens };
                let part = (talk + 1) << 20 | u64::from(number);
                parts.push((part, around(rng, mean, 1.1).min(100_000)));
                let output = around(rng, output_tokens, 0.7);
                sessions.push(Session::single(at_s, turn(&parts, output, block_size)));
                parts.push((part | 1 << 19, output));
                at_s += exponential(rng, 1.0 / gap_s);
            }
            start_s += exponential(rng, rps / f64::from(count));
        }
        Scenario {
            workload: Workload { block_size, sessions },
            fleet: FleetShape::default(),
        }
    })
}

/// Distinct prompts, all at the same moment.
fn cold_burst(settings: &mut Settings) -> Plan {
    let requests = settings.count("requests", 64);
    let prompt_tokens = settings.count("prompt_tokens", 4000);
    let output_tokens = settings.count("output_tokens", 200);
    let block_size = settings.count("block_size", 512);
    Box::new(move |_| {
        let single = |n: u32| {
            Session::single(
                0.0,
                turn(&[(u64::from(n), prompt_tokens)], output_tokens, block_size),
            )
        };
        let workload = Workload {
            block_size,
            sessions: (0..requests).map(single).collect(),
        };
        Scenario {
            workload,
            fleet: FleetShape {
                endpoints: Some(4),
                ..FleetShape::default()
            },
        }
    })
}

/// One endpoint holds every common prefix and is near its limit when a second one joins.
fn lock_in(settings: &mut Settings) -> Plan {
    let rps = settings.get("rps", 9.0);
    let duration_s = settings.get("duration_s", 900.0);
    let joins_at_s = settings.get("joins_at_s", 300.0);
    let groups = settings.count("groups", 32);
    let prefix_tokens = settings.count("prefix_tokens", 750);
    let own_tokens = settings.count("own_tokens", 250);
    let output_tokens = settings.count("output_tokens", 500);
    let max_num_seqs = settings.count("max_num_seqs", 32);
    let block_size = settings.count("block_size", 16);
    Box::new(move |rng| {
        let (mut now_s, mut sessions) = (0.0, Vec::new());
        while now_s < duration_s {
            let group = rng.random_range(0..groups);
            let own = 1 << 40 | sessions.len() as u64;
            let parts = [(u64::from(group), prefix_tokens), (own, own_tokens)];
            sessions.push(Session::single(now_s, turn(&parts, output_tokens, block_size)));
            now_s += exponential(rng, rps);
        }
        let fleet = FleetShape {
            endpoints: Some(2),
            preset: Some(FleetPreset::Llama31On1H100),
            max_num_seqs: Some(max_num_seqs),
            joins: vec![(1, joins_at_s)],
        };
        Scenario {
            workload: Workload { block_size, sessions },
            fleet,
        }
    })
}

/// Prompts that nobody sends twice.
fn one_shot(settings: &mut Settings) -> Plan {
    let requests = settings.count("requests", 10_000);
    let rps = settings.get("rps", 10.0);
    let prompt_tokens = settings.get("prompt_tokens", 4000.0);
    let output_tokens = settings.get("output_tokens", 200.0);
    let block_size = settings.count("block_size", 512);
    Box::new(move |rng| {
        let (mut now_s, mut sessions) = (0.0, Vec::new());
        for request in 0..u64::from(requests) {
            let parts = [(request, around(rng, prompt_tokens, 1.0).min(100_000))];
            sessions.push(Session::single(
                now_s,
                turn(&parts, around(rng, output_tokens, 0.8), block_size),
            ));
            now_s += exponential(rng, rps);
        }
        Scenario {
            workload: Workload { block_size, sessions },
            fleet: FleetShape::default(),
        }
    })
}

#[cfg(test)]
mod tests;

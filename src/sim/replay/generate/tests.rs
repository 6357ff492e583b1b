use super::*;
use rand::SeedableRng;

fn make(name: &str, settings: &[(&str, f64)], seed: u64) -> Scenario {
    let parameters = settings
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    generate(name, &parameters, &mut Pcg64Mcg::seed_from_u64(seed)).unwrap()
}

fn turns(scenario: &Scenario) -> impl Iterator<Item = &Turn> {
    scenario
        .workload
        .sessions
        .iter()
        .flat_map(|session| &session.turns)
}

fn mean_prompt(scenario: &Scenario) -> f64 {
    turns(scenario)
        .map(|turn| f64::from(turn.prompt_tokens))
        .sum::<f64>()
        / scenario.workload.requests() as f64
}

/// A small workload of each kind.
const SMALL: &[(&str, &str, f64)] = &[
    ("shared-prefix", "duration_s", 60.0),
    ("agentic", "sessions", 10.0),
    ("tool-agent", "requests", 300.0),
    ("conversation", "requests", 300.0),
    ("cold-burst", "requests", 64.0),
    ("lock-in", "duration_s", 60.0),
    ("one-shot", "requests", 300.0),
    ("flooded-tenant", "duration_s", 10.0),
];

#[test]
fn a_seed_decides_everything() {
    for (name, setting, value) in SMALL {
        let starts = |seed| {
            let scenario = make(name, &[(*setting, *value)], seed);
            let first = turns(&scenario)
                .map(|turn| (turn.prompt_tokens, turn.blocks.clone()))
                .collect::<Vec<_>>();
            (
                scenario
                    .workload
                    .sessions
                    .iter()
                    .map(|s| s.start_s)
                    .collect::<Vec<_>>(),
                first,
            )
        };
        assert_eq!(starts(1), starts(1), "{name}");
        if *name != "cold-burst" {
            assert_ne!(starts(1).0, starts(2).0, "{name}");
        }
    }
}

#[test]
fn blocks_cover_the_prompt_and_sessions_are_in_order() {
    assert_eq!(SMALL.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), NAMES);
    for (name, setting, value) in SMALL {
        let scenario = make(name, &[(*setting, *value)], 3);
        let workload = &scenario.workload;
        assert!(
            workload
                .sessions
                .windows(2)
                .all(|pair| pair[0].start_s <= pair[1].start_s),
            "{name}"
        );
        for turn in turns(&scenario) {
            assert_eq!(
                turn.blocks.len(),
                (turn.prompt_tokens / workload.block_size) as usize,
                "{name}"
            );
            assert_eq!(
                turn.tail.is_some(),
                turn.prompt_tokens % workload.block_size > 0,
                "{name}"
            );
        }
    }
}

#[test]
fn tool_agent_resembles_the_published_trace() {
    // Mooncake tool-agent trace: 23,608 requests, mean input 8,472, reusable share 0.605.
    let scenario = make("tool-agent", &[], 1);
    assert!((23_608..23_700).contains(&scenario.workload.requests()));
    let (mean, hit) = (mean_prompt(&scenario), scenario.workload.endless_cache_hit_rate());
    assert!((mean / 8472.0 - 1.0).abs() < 0.1, "{mean}");
    assert!((hit - 0.605).abs() < 0.05, "{hit}");
}

#[test]
fn conversation_resembles_the_published_trace() {
    // Mooncake conversation trace: 12,031 requests, mean input 12,035, reusable share 0.374.
    let scenario = make("conversation", &[], 1);
    let (mean, hit) = (mean_prompt(&scenario), scenario.workload.endless_cache_hit_rate());
    assert!((mean / 12_035.0 - 1.0).abs() < 0.1, "{mean}");
    assert!((hit - 0.374).abs() < 0.05, "{hit}");
}

#[test]
fn shared_prefix_asks_every_question_again_and_again() {
    let scenario = make(
        "shared-prefix",
        &[("from_rps", 20.0), ("to_rps", 20.0), ("duration_s", 120.0)],
        1,
    );
    let mut distinct = std::collections::HashSet::new();
    distinct.extend(turns(&scenario).map(|turn| turn.blocks.last().copied()));
    assert_eq!(distinct.len(), 750);
    assert!((2200..2600).contains(&scenario.workload.requests()));
    assert!(turns(&scenario).all(|turn| turn.prompt_tokens == 7200));
}

#[test]
fn agentic_sessions_only_grow() {
    let scenario = make("agentic", &[], 1);
    for session in &scenario.workload.sessions {
        for pair in session.turns.windows(2) {
            assert!(pair[0].prompt_tokens < pair[1].prompt_tokens);
            let common = pair[0].blocks.len();
            assert_eq!(
                pair[0].blocks[..],
                pair[1].blocks[..common],
                "nothing is taken back"
            );
        }
    }
}

#[test]
fn one_shot_and_cold_burst_share_nothing() {
    for name in ["one-shot", "cold-burst"] {
        assert_eq!(
            make(name, &[], 1).workload.endless_cache_hit_rate(),
            0.0,
            "{name}"
        );
    }
    assert!(
        make("cold-burst", &[], 1)
            .workload
            .sessions
            .iter()
            .all(|session| session.start_s == 0.0)
    );
}

#[test]
fn settings_are_checked() {
    let error = |name: &str, setting: &str, value| {
        let parameters = [(setting.to_owned(), value)].into();
        generate(name, &parameters, &mut Pcg64Mcg::seed_from_u64(1)).unwrap_err()
    };
    assert_eq!(
        error("cold", "rps", 1.0),
        GenerateError::UnknownName("cold".into())
    );
    assert_eq!(
        error("lock-in", "rps", -1.0),
        GenerateError::BadValue("rps".into())
    );
    let unknown = error("one-shot", "rsp", 1.0).to_string();
    assert!(
        unknown.contains("no setting `rsp`") && unknown.contains("rps"),
        "{unknown}"
    );
}

#[test]
fn what_the_quiet_tenant_sends_does_not_depend_on_the_flood() {
    let of = |rps: f64, tenant: u64| {
        let scenario = make("flooded-tenant", &[("rps", rps), ("duration_s", 100.0)], 1);
        let sessions = scenario.workload.sessions.into_iter();
        let own = sessions.filter(|session| session.tenant == tenant);
        own.map(|session| (session.start_s, session.turns[0].blocks.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(1e-6, 0), of(50.0, 0));
    let (quiet, flood) = (of(50.0, 0).len() as f64, of(50.0, 1).len() as f64);
    // Poisson: 300 and 5000 in the mean, within four standard deviations.
    assert!(
        (quiet - 300.0).abs() < 70.0 && (flood - 5000.0).abs() < 290.0,
        "{quiet} {flood}"
    );
    // The flood's one request at the start, and no other.
    assert_eq!(of(1e-6, 1).len(), 1);
}

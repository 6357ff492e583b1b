use super::*;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

fn rng() -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(1)
}

fn read_with(text: &str, options: &TraceOptions) -> Workload {
    read(text, options, &mut rng()).unwrap()
}

const MOONCAKE: &str = r#"{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 500, "input_length": 1024, "output_length": 0, "hash_ids": [0, 3]}

{"timestamp": 2750, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}
"#;

#[test]
fn mooncake_ids_become_whole_blocks_and_a_tail() {
    let workload = read_with(MOONCAKE, &TraceOptions::default());
    let starts: Vec<_> = workload.sessions.iter().map(|session| session.start_s).collect();
    assert_eq!(starts, [0.0, 0.5, 2.25], "in order, from the first");
    let turns: Vec<_> = workload
        .sessions
        .iter()
        .map(|session| &session.turns[0])
        .collect();
    assert_eq!(
        (turns[0].prompt_tokens, turns[0].output_tokens),
        (1024, 1),
        "an answer has a token"
    );
    assert_eq!((turns[0].blocks.len(), turns[0].tail), (2, None));
    assert_eq!(turns[1].blocks.len(), 2);
    assert!(turns[1].tail.is_some());
    assert_eq!(turns[0].blocks[0], turns[1].blocks[0]);
    assert_ne!(turns[0].blocks[1], turns[1].blocks[1]);
    assert_eq!(turns[2].tail, Some(turns[1].blocks[1]), "one id, one hash");
}

#[test]
fn ids_of_other_blocks_are_seen_by_their_number() {
    let line = |tokens: u32, ids: u32| {
        let ids: Vec<_> = (0..ids).collect();
        format!(
            "{{\"timestamp\": 1, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": {ids:?}}}\n"
        )
    };
    let block_size = |text: &str| read_with(text, &TraceOptions::default()).block_size;
    // 2,048 bytes per id at 3.5 bytes per token: 585 tokens.
    let prompts = [3000_u32, 14_000, 700, 41_000, 9000];
    let recorded: String = prompts
        .iter()
        .map(|tokens| line(*tokens, (tokens * 7 / 2).div_ceil(2048)))
        .collect();
    assert!(
        block_size(&recorded).abs_diff(585) <= 12,
        "{}",
        block_size(&recorded)
    );
    let exact: String = prompts
        .iter()
        .map(|tokens| line(*tokens, tokens.div_ceil(512)))
        .collect();
    assert_eq!(block_size(&exact), 512);
    let fine: String = prompts
        .iter()
        .map(|tokens| line(*tokens, tokens.div_ceil(64)))
        .collect();
    assert_eq!(block_size(&fine), 64);
}

#[test]
fn rounded_timestamps_are_spread() {
    let line = |ms: u32| {
        format!("{{\"timestamp\": {ms}, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [{ms}]}}\n")
    };
    let text: String = (0..100).map(|n| line(n / 20 * 3000)).collect();
    let starts = |options: &TraceOptions| -> Vec<f64> {
        read_with(&text, options)
            .sessions
            .iter()
            .map(|session| session.start_s)
            .collect()
    };
    let spread = starts(&TraceOptions::default());
    assert!(spread.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(*spread.last().unwrap() < 15.0);
    let exact = starts(&TraceOptions {
        jitter_s: Some(0.0),
        ..TraceOptions::default()
    });
    assert_eq!(exact[19..21], [0.0, 3.0]);
}

const SESSIONS: &str = r#"{"session":7,"turn":0,"delay_ms":0,"input_length":1100,"output_length":9,"keep":0,"new":[0,1,2]}
{"session":8,"turn":0,"delay_ms":0,"input_length":1024,"output_length":9,"keep":0,"new":[0,9]}
{"session":7,"turn":1,"delay_ms":1500,"input_length":1600,"output_length":9,"keep":2,"new":[3,4]}
"#;

#[test]
fn sessions_keep_and_append() {
    let workload = read_with(SESSIONS, &TraceOptions::default());
    let session = workload
        .sessions
        .iter()
        .find(|session| session.turns.len() == 2)
        .unwrap();
    let [first, second] = &session.turns[..] else {
        panic!("two turns")
    };
    assert_eq!(second.think_s, 1.5);
    assert_eq!(first.blocks.len(), 2);
    assert_eq!(second.blocks.len(), 3);
    assert_eq!(first.blocks[..], second.blocks[..2]);
    assert_ne!(first.tail, Some(second.blocks[2]));
}

#[test]
fn repeated_sessions_share_only_what_several_sessions_shared() {
    let workload = read_with(
        SESSIONS,
        &TraceOptions {
            repeat: 2,
            ..TraceOptions::default()
        },
    );
    let twins: Vec<_> = workload
        .sessions
        .iter()
        .filter(|session| session.turns.len() == 2)
        .collect();
    assert_eq!(twins.len(), 2);
    assert_eq!(
        twins[0].turns[0].blocks[0], twins[1].turns[0].blocks[0],
        "id 0 is everybody's"
    );
    assert_ne!(twins[0].turns[0].blocks[1], twins[1].turns[0].blocks[1]);
}

#[test]
fn azure_gives_arrivals_and_lengths_without_shared_prefixes() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n\
                2023-11-16 18:17:04.0319600,4808,8\n";
    let workload = read_with(text, &TraceOptions::default());
    assert!((workload.sessions[1].start_s - 0.052).abs() < 1e-6);
    let turn = |n: usize| &workload.sessions[n].turns[0];
    assert_eq!(
        (turn(0).prompt_tokens, turn(0).output_tokens, turn(0).blocks.len()),
        (4808, 10, 9)
    );
    assert_ne!(turn(0).blocks[0], turn(1).blocks[0]);
}

#[test]
fn faults_say_the_line() {
    let bad = |text: &str| {
        read(text, &TraceOptions::default(), &mut rng())
            .unwrap_err()
            .to_string()
    };
    assert!(bad("hello\n").starts_with("not a trace"));
    assert!(bad(&format!("{MOONCAKE}{{\"timestamp\": 1}}\n")).starts_with("line 5: missing field"));
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    assert_eq!(
        bad(&format!("{azure}yesterday,1,2\n")),
        "line 2: the timestamp is no date and time"
    );
    assert_eq!(
        bad(&format!("{azure}2023-11-16 18:17:03,1\n")),
        "line 2: needs three fields"
    );
}

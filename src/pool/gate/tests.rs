use super::*;
use crate::pool::testing::{pool, settings};
use crate::pool::{CHUNK_BYTES, Keys, Settings};
use crate::prefix::{ChainHasher, Chunking};

/// A prompt of ten chunks, 64 tokens each.
fn prompt() -> Prompt {
    let chunking = Chunking {
        chunk_bytes: CHUNK_BYTES,
        max_blocks: 100,
    };
    let mut hasher = ChainHasher::new(7, chunking);
    hasher.write(&[b'a'; 10 * CHUNK_BYTES]);
    Prompt {
        tokens: 640,
        fills_cache: true,
        keys: Some(Keys::Chunks(hasher.finish())),
        ..Prompt::unkeyed("")
    }
}

#[test]
fn each_endpoint_is_asked_for_room_for_what_it_does_not_hold() {
    let gate = GateSettings {
        working_set: WorkingSetSettings {
            spare: 0.0,
            ..WorkingSetSettings::default()
        },
        session_headers: Vec::new(),
        timeout: Duration::from_secs(10),
    };
    let pool = pool(
        &["pod-a", "pod-b"],
        Settings {
            capacity_tokens: Some(1000),
            gate: Some(gate),
            ..settings()
        },
    );
    let now = Mono::from_secs_f64(1.0);
    let prompt = prompt();
    let (a, b) = (EndpointId(0), EndpointId(1));
    pool.index.insert(a, &prompt.whole_blocks()[..8]);
    {
        let set = &mut pool.gate.as_ref().unwrap().lock(now).set;
        let known = Visit {
            session: Some(1),
            prompt_tokens: 100_000,
            best_match_tokens: 100_000,
            ..Visit::default()
        };
        set.dispatched(now, &known, EndpointId(9), 0);
        assert!(
            set.is_closing(),
            "all of it was known and had to be computed anew"
        );
        for (session, endpoint) in [(2, a), (3, b)] {
            let fresh = Visit {
                session: Some(session),
                prompt_tokens: 500,
                ..Visit::default()
            };
            set.dispatched(now, &fresh, endpoint, 0);
        }
    }
    let outlook = pool.gate_outlook(&prompt, now).unwrap();
    assert_eq!(outlook.kind, Kind::Fresh, "8 of 10 chunks are less than `known`");
    // 90 % of 1000 are 900: on pod-a 500 + 640 - 512, on pod-b 500 + 640.
    let admits: Vec<bool> = outlook.endpoints.iter().map(|(.., admits)| *admits).collect();
    assert_eq!(admits, [true, false]);
}

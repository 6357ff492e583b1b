use super::*;
use proptest::prelude::*;

const DIGEST: u64 = 0x1819_1a1b_1c1d_1e1f;

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn stored(hashes: &[u64], tokens: &[u32]) -> Stored<'static> {
    Stored {
        hashes: SmallVec::from_slice(hashes),
        token_ids: tokens.to_vec(),
        block_size: 4,
        ..Stored::default()
    }
}

/// What the case means, without the fields that came later than `version`.
fn expected(case: &str, version: &str) -> Vec<Event<'static>> {
    let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
    let group = (minor >= 20).then_some(0);
    let lora_name = (minor >= 16).then_some("sql-lora");
    let keys = |keys: &'static [u8]| if minor >= 20 { vec![Some(keys)] } else { vec![] };
    let (a, b) = (0x1122_3344_5566_7788, 0xfedc_ba98_7654_3210);
    let removed = |hash| {
        Event::Removed(Removed {
            hashes: SmallVec::from_slice(&[hash]),
            medium: Medium::Gpu,
            group,
        })
    };
    let event = match case {
        "stored_int_root" => stored(&[a, b], &[1, 2, 3, 4, 300, 70_000, 6, 7]),
        "stored_int_child" => Stored {
            parent: Some(a),
            ..stored(&[b], &[5, 6, 7, 8])
        },
        "stored_bytes" => stored(
            &[DIGEST, DIGEST + 0x2020_2020_2020_2020],
            &[1, 2, 3, 4, 5, 6, 7, 8],
        ),
        "stored_lora" => Stored {
            lora_id: Some(1),
            lora_name,
            extra_keys: keys(b"\x91\xa8sql-lora"),
            ..stored(&[a], &[1, 2, 3, 4])
        },
        "stored_salt" => Stored {
            extra_keys: keys(b"\x91\xa8tenant-a"),
            ..stored(&[a], &[1, 2, 3, 4])
        },
        "removed" => return vec![removed(a)],
        "cleared" => return vec![Event::Cleared],
        "mixed" => {
            let last = Stored {
                group,
                ..stored(&[a], &[1, 2, 3, 4])
            };
            return vec![Event::Cleared, removed(b), Event::Stored(last)];
        }
        other => panic!("{other}"),
    };
    vec![Event::Stored(Stored { group, ..event })]
}

#[test]
fn every_version_of_the_event_classes() {
    let mut seen = 0;
    for line in include_str!("../../../tests/fixtures/vllm/kvevents/encodings.txt")
        .lines()
        .skip(1)
    {
        let [case, versions, payload] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let payload = unhex(payload);
        let batch = decode(&payload).unwrap();
        for version in versions.split(',') {
            assert_eq!(batch.events, expected(case, version), "{case} of {version}");
            seen += 1;
        }
        assert_eq!((batch.timestamp_s, batch.rank), (1_700_000_000.25, Some(0)));
        assert_eq!((batch.unknown_events, batch.malformed_events), (0, 0));
    }
    assert_eq!(seen, 8 * 8);
}

fn encode(value: &serde_json::Value) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

#[test]
fn a_batch_may_be_a_map_in_any_order_with_more_fields() {
    let payload = encode(&serde_json::json!({
        "later": {"a": [1, {"b": 2}]},
        "data_parallel_rank": 3,
        "events": [{"new_field": [[]], "block_hashes": [7], "type": "BlockRemoved", "medium": "CPU_PINNED"}],
        "ts": 12,
    }));
    let batch = decode(&payload).unwrap();
    let removed = Removed {
        hashes: SmallVec::from_slice(&[7]),
        medium: Medium::Cpu,
        group: None,
    };
    assert_eq!(batch.events, [Event::Removed(removed)]);
    assert_eq!((batch.timestamp_s, batch.rank), (12.0, Some(3)));
}

#[test]
fn what_is_not_understood_is_counted() {
    let payload = encode(&serde_json::json!([1.5, [
        {"type": "BlockMoved", "block_hashes": "?"},
        ["BlockPinned", 1, 2],
        17,
        "AllBlocksCleared",
        {"type": "BlockRemoved", "block_hashes": 5},
        {"type": "BlockRemoved", "block_hashes": [null]},
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [-1], "block_size": 1},
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [1_u64 << 40], "block_size": 1},
        {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": {}, "token_ids": [1], "block_size": 1},
    ]]));
    let batch = decode(&payload).unwrap();
    assert_eq!(batch.events, [Event::Cleared]);
    assert_eq!(
        (batch.unknown_events, batch.malformed_events, batch.rank),
        (3, 5, None)
    );
}

#[test]
fn kinds_of_attention() {
    let of = |kind: serde_json::Value| {
        let payload = encode(
            &serde_json::json!([0, [{"type": "BlockStored", "block_hashes": [], "token_ids": [],
            "block_size": 1, "kv_cache_spec_kind": kind}]]),
        );
        match decode(&payload).unwrap().events.first() {
            Some(Event::Stored(stored)) => stored.attention,
            other => panic!("{other:?}"),
        }
    };
    for full in ["full_attention", "mla_attention", "sink_full_attention"] {
        assert_eq!(of(full.into()), Attention::Full);
    }
    for partial in [
        "sliding_window",
        "sliding_window_mla",
        "chunked_local_attention",
        "mamba",
    ] {
        assert_eq!(of(partial.into()), Attention::Partial);
    }
    assert_eq!(of(serde_json::Value::Null), Attention::Full);
}

#[test]
fn other_payloads_are_errors() {
    for payload in [&b""[..], b"\xc0", b"\x93", b"\x93\x01\xc0\xc0", b"{\"ts\": 1}"] {
        assert!(decode(payload).is_err(), "{payload:?}");
    }
}

proptest! {
    #[test]
    fn no_damage_to_a_message_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        for line in include_str!("../../../tests/fixtures/vllm/kvevents/encodings.txt").lines().skip(1) {
            let mut payload = unhex(line.rsplit(' ').next().unwrap());
            let at = at.index(payload.len());
            payload[at] = byte;
            let _ = decode(&payload);
            let _ = decode(&payload[..cut.index(payload.len())]);
        }
    }
}

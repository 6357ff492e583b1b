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

/// vLLM's `sha256_cbor` and `xxhash_cbor` are of the canonical CBOR of a block's parent, tokens and extra keys.
fn cbor(parent: &[u8], tokens: &[u32], salt: Option<&str>) -> Vec<u8> {
    let head = |kind: u8, count: usize| match count {
        0..24 => vec![kind << 5 | count as u8],
        24..256 => vec![kind << 5 | 24, count as u8],
        _ => [&[kind << 5 | 25], &(count as u16).to_be_bytes()[..]].concat(),
    };
    let (bytes, text, array) = (2, 3, 4);
    let mut out = [
        head(array, 3),
        head(bytes, parent.len()),
        parent.to_vec(),
        head(array, tokens.len()),
    ]
    .concat();
    tokens
        .iter()
        .for_each(|&token| out.extend(head(0, token as usize)));
    match salt {
        None => out.push(0xF6),
        Some(salt) => {
            let key = "cache_salt";
            out.extend([head(array, 1), head(array, 2), head(text, key.len()), key.into()].concat());
            out.extend([head(text, salt.len()), salt.into()].concat());
        }
    }
    out
}

/// vLLM's `sha256` is of the same in pickle's protocol 5. Tuples, bytes and texts are remembered, numbers are not.
fn pickle(parent: &[u8], tokens: &[u32], salt: Option<&str>) -> Vec<u8> {
    const REMEMBER: u8 = 0x94;
    let mut body = vec![b'C', parent.len() as u8];
    body.extend(parent);
    body.extend([REMEMBER, b'(']);
    for &token in tokens {
        body.push(b'M');
        body.extend((token as u16).to_le_bytes());
    }
    body.extend([b't', REMEMBER]);
    match salt {
        None => body.push(b'N'),
        Some(salt) => {
            for text in ["cache_salt", salt] {
                body.extend([0x8C, text.len() as u8]);
                body.extend([text.as_bytes(), &[REMEMBER]].concat());
            }
            // A tuple of two in a tuple of one.
            body.extend([0x86, REMEMBER, 0x85, REMEMBER]);
        }
    }
    body.extend([0x87, REMEMBER, b'.']);
    [&[0x80, 5, 0x95], &(body.len() as u64).to_le_bytes()[..], &body].concat()
}

/// The engine's hashes, made here from the definition, come as bytes or as integers and are the same names.
#[test]
fn hashes_of_the_engine_are_names_in_both_forms() {
    use sha2::{Digest, Sha256};
    use xxhash_rust::xxh3::xxh3_128;
    let vectors = include_str!("../../../tests/fixtures/vllm/kvevents/hash_vectors.txt");
    let mut blocks = 0;
    for line in vectors.lines().filter(|line| !line.starts_with('#')) {
        let [algorithm, none_hash, block_size, range, digests, integers, salted] =
            line.split(' ').collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        let digest = |parent: &[u8], tokens: &[u32], salt| match algorithm {
            "sha256" => Sha256::digest(pickle(parent, tokens, salt)).to_vec(),
            "sha256_cbor" => Sha256::digest(cbor(parent, tokens, salt)).to_vec(),
            "xxhash_cbor" => xxh3_128(&cbor(parent, tokens, salt)).to_be_bytes().to_vec(),
            other => panic!("{other}"),
        };
        let (first, last) = range.split_once("..").unwrap();
        let tokens: Vec<u32> = (first.parse().unwrap()..=last.parse().unwrap()).collect();
        let block_size: usize = block_size.parse().unwrap();
        let mut parent = unhex(none_hash);
        assert_eq!(
            digest(&parent, &tokens[..block_size], Some("tenant-a")),
            unhex(salted),
            "{line}"
        );
        for ((block, hex), integer) in tokens
            .chunks(block_size)
            .zip(digests.split(','))
            .zip(integers.split(','))
        {
            parent = digest(&parent, block, None);
            assert_eq!(parent, unhex(hex), "{line}");
            let name = |hash: rmpv::Value| {
                let event = [
                    ("type", "BlockRemoved".into()),
                    ("block_hashes", rmpv::Value::Array(vec![hash])),
                ];
                let event = event.map(|(key, value): (&str, rmpv::Value)| (key.into(), value));
                let batch = rmpv::Value::Array(vec![
                    0.0.into(),
                    rmpv::Value::Array(vec![rmpv::Value::Map(event.into())]),
                ]);
                let mut payload = Vec::new();
                rmpv::encode::write_value(&mut payload, &batch).unwrap();
                match &decode(&payload).unwrap().events[..] {
                    [Event::Removed(removed)] => removed.hashes[0],
                    other => panic!("{other:?}"),
                }
            };
            let integer: u64 = integer.parse().unwrap();
            assert_eq!(name(rmpv::Value::Binary(parent.clone())), integer);
            assert_eq!(name(integer.into()), integer);
            blocks += 1;
        }
    }
    assert_eq!(blocks, 5 * 4);
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

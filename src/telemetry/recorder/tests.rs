use super::*;
use crate::kv_events::chain::Root;
use crate::pool::{BlockKeys, CHUNK_BYTES};
use crate::prefix::{ChainHasher, Chunking, seed};
use serde_json::{Value, json};

fn keys(text: &[u8]) -> Keys {
    let chunking = Chunking {
        chunk_bytes: CHUNK_BYTES,
        max_blocks: 1000,
    };
    let mut hasher = ChainHasher::new(seed("m", None, "p"), chunking);
    hasher.write(text);
    Keys::Chunks(hasher.finish())
}

fn line(recorder: &Recorder, keys: Keys, prompt_tokens: u64) -> Value {
    let prompt = Prompt {
        keys: Some(keys),
        ..Prompt::unkeyed("m")
    };
    let request = Recorded {
        arrived: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        prompt: &prompt,
        engine_block_tokens: 16,
        prompt_tokens,
        output_tokens: 7,
    };
    let mut line = Vec::new();
    recorder.line(&request, prompt.keys.as_ref().unwrap(), &mut line);
    assert_eq!(line.pop(), Some(b'\n'));
    serde_json::from_slice(&line).unwrap()
}

fn ids(line: &Value) -> Vec<u64> {
    let ids = line["hash_ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap()).collect()
}

fn recorder(secret: u64) -> Recorder {
    Recorder {
        secret,
        block_tokens: 512,
        ..Recorder::off()
    }
}

#[test]
fn a_prompt_known_by_its_bytes_has_an_id_per_2048_of_them() {
    let recorder = recorder(1);
    let text: Vec<u8> = (0..5000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let first = line(&recorder, keys(&text[..5000]), 1200);
    assert_eq!(first["timestamp"], json!(1_700_000_000_123_u64));
    assert_eq!(
        (&first["input_length"], &first["output_length"]),
        (&json!(1200), &json!(7))
    );
    // 5000 bytes: two whole blocks and a part.
    let first = ids(&first);
    assert_eq!(first.len(), 3);
    let longer = ids(&line(&recorder, keys(&text[..20_000]), 4800));
    assert_eq!(longer.len(), 10);
    assert_eq!(first[..2], longer[..2], "the same beginning");
    assert_ne!(first[2], longer[2]);
}

#[test]
fn a_prompt_known_by_its_tokens_has_an_id_per_512_of_them() {
    let recorder = recorder(1);
    let prompts = |tokens: u32| [(0..tokens).collect::<Vec<u32>>()];
    let cut = |tokens| Keys::Blocks(BlockKeys::new(&prompts(tokens), Root::default(), &[16]));
    let (short, long) = (
        ids(&line(&recorder, cut(1100), 1100)),
        ids(&line(&recorder, cut(2048), 2048)),
    );
    assert_eq!((short.len(), long.len()), (3, 4));
    assert_eq!(short[..2], long[..2]);
}

#[test]
fn ids_tell_nothing_to_who_does_not_know_the_secret_and_fit_every_reader() {
    let text = vec![b'a'; 8192];
    let [one, other] = [1, 2].map(|secret| ids(&line(&recorder(secret), keys(&text), 2048)));
    assert!(one.iter().all(|id| !other.contains(id)));
    assert!(one.iter().chain(&other).all(|id| *id < 1 << ID_BITS));
}

#[test]
fn writes_lines_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let bounds = Bounds {
        file_bytes: 1 << 20,
        files: 2,
    };
    let recorder = Recorder::file(&path, bounds, 512).unwrap();
    let prompt = Prompt {
        keys: Some(keys(b"a prompt")),
        ..Prompt::unkeyed("m")
    };
    let unkeyed = Prompt::unkeyed("m");
    for prompt in [&prompt, &unkeyed, &prompt] {
        recorder.write(&Recorded {
            arrived: SystemTime::now(),
            prompt,
            engine_block_tokens: 16,
            prompt_tokens: 2,
            output_tokens: 1,
        });
    }
    recorder.flush();
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
    assert_eq!(recorder.dropped(), 0);
}

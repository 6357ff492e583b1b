//! Any bytes as a `/metrics` page.
#![no_main]

use homing::datalayer::exposition::Samples;
use homing::datalayer::load_header;
use homing::datalayer::vllm::EngineMetrics;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    if let Ok(text) = std::str::from_utf8(body) {
        let _ = load_header::parse(text);
    }
    let Ok(mut samples) = Samples::new(body) else {
        assert!(EngineMetrics::parse(body).is_err());
        return;
    };
    let mut read = 0;
    for sample in samples.by_ref() {
        assert!(!sample.name.is_empty());
        for label in sample.labels() {
            assert!(label.is(&label.value()));
        }
        read += 1;
    }
    let lines = body.split(|byte| *byte == b'\n').count() as u64;
    assert!(read + samples.malformed() <= lines);
    let metrics = EngineMetrics::parse(body).expect("the same page");
    let known = [metrics.waiting, metrics.running, metrics.kv_usage, metrics.prompt_tokens];
    assert!(known.iter().flatten().all(|value| *value >= 0.0));
});

//! Reading one scrape of the size a vLLM server answers with (about 600 lines, 50 kB).

use divan::{Bencher, black_box, counter::BytesCount};
use homing::datalayer::{exposition::Samples, vllm::EngineMetrics};

fn main() {
    divan::main();
}

/// A captured page, filled up with the histograms that were trimmed from it.
fn page() -> String {
    let mut page = include_str!("../tests/fixtures/vllm/metrics/underload_small_waiting.txt").to_owned();
    for family in 0..20 {
        for bucket in 0..25 {
            page += &format!(
                "vllm:request_histogram_{family}_bucket{{engine=\"0\",le=\"{bucket}.0\",model_name=\"tiny\"}} {bucket}.0\n"
            );
        }
    }
    page
}

#[divan::bench]
fn fold_vllm(bencher: Bencher) {
    let page = page();
    bencher
        .counter(BytesCount::of_str(&page))
        .bench(|| EngineMetrics::parse(black_box(page.as_bytes())).map(|m| m.waiting));
}

#[divan::bench]
fn every_sample_and_label(bencher: Bencher) {
    let page = page();
    bencher.counter(BytesCount::of_str(&page)).bench(|| {
        let samples = Samples::new(black_box(page.as_bytes()));
        samples.map(|s| s.map(|sample| sample.labels().count()).sum::<usize>())
    });
}

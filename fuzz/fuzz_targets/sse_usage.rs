//! Any bytes as a response body: the first one says whether it is a stream, the second one where it is cut.
#![no_main]

use homing::openai::{ResponseFacts, UsageScanner};
use libfuzzer_sys::fuzz_target;

fn scan<'c>(sse: bool, chunks: impl Iterator<Item = &'c [u8]>) -> ResponseFacts {
    let mut scanner = UsageScanner::new(sse);
    chunks.for_each(|chunk| scanner.push(chunk));
    scanner.finish()
}

fuzz_target!(|data: &[u8]| {
    let [sse, chunk_bytes, body @ ..] = data else { return };
    let sse = sse % 2 == 0;
    let whole = scan(sse, std::iter::once(body));
    assert_eq!(scan(sse, body.chunks(1)), whole);
    assert_eq!(scan(sse, body.chunks(usize::from(*chunk_bytes).max(1))), whole);
});

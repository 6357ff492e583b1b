//! What the tests of the running gateway share: the process itself, scripted model servers and raw clients, all over
//! real sockets.
//!
//! Nothing here sleeps to let something happen: tests wait for conditions, each with a deadline. Delays occur only
//! inside scripts, where they are the fault under test.

pub mod certs;
pub mod client;
pub mod dns;
pub mod gateway;
pub mod h2c;
pub mod metrics;
pub mod prompts;
pub mod script;
pub mod upstream;

pub use client::{Client, Response};
pub use gateway::{Gateway, Setup};
pub use script::{Script, Step};
pub use upstream::{Received, Upstream};

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longest wait for any condition; a test that needs longer says so itself.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A free port of a loopback address that no other test uses: no client's own port can be in its way.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    let ip = Ipv4Addr::new(
        127,
        (10 + process % 200) as u8,
        (process / 200 % 250) as u8,
        (1 + n % 250) as u8,
    );
    let probe = TcpListener::bind((ip, 0)).expect("a loopback address can be bound");
    SocketAddr::new(IpAddr::V4(ip), probe.local_addr().expect("bound").port())
}

/// Free ports in a row, of a loopback address that no other test uses.
pub fn free_ports_in_a_row(count: u16) -> Vec<SocketAddr> {
    let first = loop {
        let first = free_address();
        let free = |port| TcpListener::bind((first.ip(), port)).is_ok();
        if first.port().checked_add(count).is_some() && (1..count).all(|n| free(first.port() + n)) {
            break first;
        }
    };
    (0..count)
        .map(|n| SocketAddr::new(first.ip(), first.port() + n))
        .collect()
}

/// Waits until `holds` says true, looking every 5 ms.
///
/// # Panics
/// When it does not within the deadline.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = tokio::time::Instant::now();
    while !holds().await {
        assert!(started.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A chat request that asks for a stream or not; `text` is its prompt.
pub fn chat(text: &str, stream: bool) -> String {
    serde_json::json!({
        "model": "m",
        "messages": [{ "role": "user", "content": text }],
        "stream": stream,
    })
    .to_string()
}

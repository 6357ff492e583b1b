//! What the process tells its supervisor: systemd's notification protocol, `Type=notify`.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent.

use super::Readiness;
use sd_notify::NotifyState;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;

/// Time between two looks at a listener that is not open yet.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The readiness task that ends when the listeners serve.
const LISTENERS: &str = "listeners";

/// Marks the listeners as awaited, until [`ready_when_listening`] has seen them.
pub fn await_listeners(readiness: &Readiness) {
    readiness.pend(LISTENERS, "not open yet");
}

/// Says that the gateway serves once each of `addresses` takes connections. Pingora opens its listeners on its own
/// time and tells nobody, so a connection is the proof.
pub async fn ready_when_listening(addresses: &[SocketAddr], readiness: &Readiness) {
    for &address in addresses {
        while TcpStream::connect(reachable(address)).await.is_err() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    readiness.done(LISTENERS);
    tell(&[NotifyState::Ready]);
}

/// Says that the configuration is being read again; [`reloaded`] must follow.
pub fn reloading() {
    // systemd orders the messages by this time stamp; without it a reload is not seen to begin.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// Says that the reload is over, well or not.
pub fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// Says that no new requests are taken.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState]) {
    if let Err(fault) = sd_notify::notify(states) {
        tracing::warn!(%fault, "cannot tell the supervisor");
    }
}

/// Where this host reaches a listener that is bound to all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(host, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_reached_at_home() {
        let reach = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(reach("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reach("[::]:80"), "[::1]:80");
        assert_eq!(reach("10.0.0.7:80"), "10.0.0.7:80");
    }

    #[tokio::test]
    async fn ready_when_every_listener_takes_connections() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let readiness = Readiness::default();
        await_listeners(&readiness);
        assert_eq!(readiness.pending().len(), 1);
        ready_when_listening(&[listener.local_addr().unwrap()], &readiness).await;
        assert!(readiness.pending().is_empty());
    }
}

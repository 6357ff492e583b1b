//! Keeps the address of an endpoint that is given by its host name.

use super::dns::DnsError;
use crate::pool::{Endpoint, Pool};
use crate::proxy::Gateway;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Least and longest time between two questions, whatever the records' time to live: a name with a short one is not
/// asked for all the time, and a move behind a long one is seen while it matters.
const AT_LEAST: Duration = Duration::from_secs(1);
const AT_MOST: Duration = Duration::from_secs(30);
/// How soon a question is repeated that had no answer.
const AGAIN: Duration = Duration::from_secs(2);

/// Follows the endpoint's name until the task is dropped; ends at once when its host is an IP literal.
pub async fn follow(gateway: &Gateway, pool: &Pool, endpoint: &Endpoint) {
    if endpoint.url.host().parse::<IpAddr>().is_ok() {
        return;
    }
    let mut lost = false;
    loop {
        let dns = gateway.dns.load_full();
        let rest = match dns.addresses(endpoint.url.host()).await {
            Ok(answer) => {
                take(pool, endpoint, &answer.records);
                lost = false;
                answer.ttl.clamp(AT_LEAST, AT_MOST)
            }
            Err(why) => {
                if !std::mem::replace(&mut lost, true) {
                    warn(endpoint, &why);
                }
                AGAIN
            }
        };
        tokio::time::sleep(rest).await;
    }
}

/// Goes to the first of `found`, unless the present address is among them: the order of answers means nothing.
fn take(pool: &Pool, endpoint: &Endpoint, found: &[IpAddr]) {
    let now = endpoint.address();
    if now.is_some_and(|now| found.contains(&now.ip())) {
        return;
    }
    let Some(&ip) = found.first() else { return };
    let address = SocketAddr::new(ip, endpoint.url.port());
    if endpoint.set_address(address) {
        tracing::info!(endpoint = %endpoint.name, %address, "the name has a new address");
        // Another engine answers there: it holds nothing of what this one held.
        pool.index.clear(endpoint.id);
        pool.cache_lost(endpoint.id);
        endpoint.trust.forget();
        if let Some(feed) = &endpoint.feed {
            feed.reset();
        }
    }
}

fn warn(endpoint: &Endpoint, why: &DnsError) {
    let name = endpoint.url.host();
    match endpoint.address() {
        Some(kept) => {
            tracing::warn!(endpoint = %endpoint.name, name, %why, %kept, "the name is not found; its last address is kept");
        }
        None => tracing::warn!(endpoint = %endpoint.name, name, %why, "the name is not found"),
    }
}

//! Endpoints behind a DNS name.

use crate::config::address::EndpointUrl;
use crate::config::schema::{DnsDiscovery, Endpoint};
use crate::datalayer::dns::{Dns, DnsError, Service};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A name that is looked up again and again.
pub(super) struct DnsSource {
    of: DnsDiscovery,
}

impl DnsSource {
    pub(super) const fn new(of: DnsDiscovery) -> Self {
        Self { of }
    }

    pub(super) const fn interval(&self) -> Duration {
        self.of.interval.0
    }

    /// One endpoint for each address or service behind the name, in order. An answer without any is an error: whether
    /// servers that are still known are alive is for health checks to say.
    pub(super) async fn look(&self, dns: &Dns) -> Result<Vec<Endpoint>, DnsError> {
        let mut endpoints = match self.of.port {
            Some(port) => {
                let addresses = one_family(dns.addresses(&self.of.name).await?.records);
                let endpoint = |ip| self.endpoint(None, SocketAddr::new(ip, port.get()));
                addresses.into_iter().map(endpoint).collect()
            }
            None => self.services(dns).await?,
        };
        if endpoints.is_empty() {
            return Err(DnsError::NoRecords);
        }
        endpoints.sort_by(|a, b| a.name.cmp(&b.name));
        endpoints.dedup_by(|a, b| a.name == b.name);
        Ok(endpoints)
    }

    /// The endpoints that SRV records tell of, named after their hosts.
    async fn services(&self, dns: &Dns) -> Result<Vec<Endpoint>, DnsError> {
        let mut addresses: BTreeMap<String, Option<IpAddr>> = BTreeMap::new();
        let mut endpoints = Vec::new();
        for Service { host, port, .. } in dns.services(&self.of.name).await?.records {
            let ip = match addresses.get(&host) {
                Some(&known) => known,
                None => match dns.addresses(&host).await {
                    // One host is one server, whichever of its addresses is used: always the same.
                    Ok(found) => one_family(found.records).into_iter().min(),
                    Err(DnsError::NoRecords) => None,
                    Err(fault) => return Err(fault),
                },
            };
            addresses.insert(host.clone(), ip);
            endpoints.extend(ip.map(|ip| self.endpoint(Some(&host), SocketAddr::new(ip, port))));
        }
        Ok(endpoints)
    }

    fn endpoint(&self, host: Option<&str>, address: SocketAddr) -> Endpoint {
        let url = EndpointUrl::of(address, self.of.tls);
        Endpoint {
            name: host.map_or_else(|| url.authority(), |host| format!("{host}:{}", address.port())),
            url,
            labels: BTreeMap::new(),
            kv_events: None,
            kv_replay: None,
            max_inflight: None,
        }
    }

    /// What a failed look says to the operator.
    pub(super) fn told(&self, fault: &DnsError) -> String {
        let records = if self.of.port.is_some() {
            "A and AAAA"
        } else {
            "SRV, as no `port` is given"
        };
        format!("`{}` ({records}): {fault}", self.of.name)
    }
}

/// The IPv4 addresses, or, where there are none, the IPv6 ones: a server with both is one server.
fn one_family(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    if addresses.iter().any(IpAddr::is_ipv4) {
        addresses.retain(IpAddr::is_ipv4);
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_both_kinds_of_addresses_is_one() {
        let ips = |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|ip| ip.parse().unwrap()).collect() };
        assert_eq!(one_family(ips(&["10.0.0.1", "fd00::1"])), ips(&["10.0.0.1"]));
        assert_eq!(
            one_family(ips(&["fd00::1", "fd00::2"])),
            ips(&["fd00::1", "fd00::2"])
        );
    }

    #[test]
    fn endpoints_are_known_by_address_and_named_by_host() {
        let of = |tls| DnsDiscovery {
            name: "vllm".to_owned(),
            port: None,
            tls,
            interval: crate::config::units::Period::from_secs(5),
        };
        let (plain, tls) = (DnsSource::new(of(false)), DnsSource::new(of(true)));
        let v6 = plain.endpoint(None, "[fd00::1]:8000".parse().unwrap());
        assert_eq!(
            (v6.name.as_str(), v6.url.to_string().as_str()),
            ("[fd00::1]:8000", "http://[fd00::1]:8000")
        );
        let named = tls.endpoint(Some("vllm-0.vllm"), "10.0.0.1:8000".parse().unwrap());
        assert_eq!(
            (named.name.as_str(), named.url.to_string().as_str()),
            ("vllm-0.vllm:8000", "https://10.0.0.1:8000")
        );
    }
}

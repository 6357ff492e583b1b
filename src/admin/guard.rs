//! Who may ask the admin port: no page of another site, and no name that leads here by a trick.
//!
//! The port asks for no password. A browser on the operator's machine can reach it, so a page that the operator visits
//! could drain endpoints (cross-site request) or, by DNS rebinding, read what the port shows. Browsers tell both by
//! `Host`, `Origin` and `Sec-Fetch-Site`.

use http::HeaderMap;
use http::header::{HOST, ORIGIN};
use std::net::{IpAddr, SocketAddr};

/// Which hosts the port answers to.
#[derive(Clone, Debug)]
pub struct Guard {
    pub listen: SocketAddr,
    /// Host names beside `localhost` and addresses; `*`: all.
    pub allowed_hosts: Vec<String>,
}

impl Guard {
    /// Why a request is refused, if it is.
    pub fn refusal(&self, headers: &HeaderMap) -> Option<&'static str> {
        let text = |name| {
            headers
                .get(name)
                .map(|value: &http::HeaderValue| value.to_str().unwrap_or("?"))
        };
        // Only HTTP/1.0 comes without: no browser speaks it.
        let host = text(HOST.as_str());
        if host.is_some_and(|host| !self.answers_to(host)) {
            return Some("this host name is not among admin.allowed_hosts");
        }
        let site = text("sec-fetch-site");
        let other_site = site.is_some_and(|site| !matches!(site, "same-origin" | "none"));
        let origin =
            text(ORIGIN.as_str()).map(|origin| origin.split_once("://").map_or(origin, |(_, host)| host));
        if other_site || (origin.is_some() && origin != host) {
            return Some("pages of other sites may not ask the admin port");
        }
        None
    }

    fn answers_to(&self, authority: &str) -> bool {
        let name = host_of(authority);
        let address = name.parse::<IpAddr>();
        let own = match address {
            // An address cannot be rebound; on loopback, none but loopback leads here honestly.
            Ok(ip) => ip.is_loopback() || !self.listen.ip().is_loopback(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        };
        own || self
            .allowed_hosts
            .iter()
            .any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(name))
    }
}

/// The host of `host:port`, IPv6 without brackets.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(listen: &str, allowed: &[&str], headers: &[(&'static str, &'static str)]) -> bool {
        let guard = Guard {
            listen: listen.parse().unwrap(),
            allowed_hosts: allowed.iter().map(|&name| name.to_owned()).collect(),
        };
        let headers = headers
            .iter()
            .map(|&(name, value)| (name.parse().unwrap(), http::HeaderValue::from_static(value)));
        guard.refusal(&HeaderMap::from_iter(headers)).is_some()
    }

    #[test]
    fn host_names() {
        let loopback = "127.0.0.1:9901";
        for (host, refuse) in [
            ("127.0.0.1:9901", false),
            ("localhost:9901", false),
            ("[::1]:9901", false),
            ("evil.example:9901", true),
            ("evil.example", true),
            ("10.0.0.1:9901", true),
            ("localhost.evil.example:9901", true),
        ] {
            assert_eq!(refused(loopback, &[], &[("host", host)]), refuse, "{host}");
        }
        assert!(!refused(loopback, &[], &[]));
        assert!(!refused("0.0.0.0:9901", &[], &[("host", "10.0.0.1:9901")]));
        assert!(refused("0.0.0.0:9901", &[], &[("host", "homing.svc:9901")]));
        assert!(!refused(
            "0.0.0.0:9901",
            &["homing.svc"],
            &[("host", "homing.svc:9901")]
        ));
        assert!(!refused("0.0.0.0:9901", &["*"], &[("host", "any.thing")]));
    }

    #[test]
    fn other_sites() {
        let with = |name, value| {
            refused(
                "127.0.0.1:9901",
                &[],
                &[("host", "localhost:9901"), (name, value)],
            )
        };
        assert!(with("origin", "https://evil.example"));
        assert!(with("origin", "http://localhost:8080"));
        assert!(with("origin", "null"));
        assert!(!with("origin", "http://localhost:9901"));
        assert!(with("sec-fetch-site", "cross-site"));
        assert!(with("sec-fetch-site", "same-site"));
        assert!(!with("sec-fetch-site", "same-origin"));
        assert!(!with("sec-fetch-site", "none"));
    }
}

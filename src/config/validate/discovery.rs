//! Discovery: names that can be looked up, files that can be read.

use super::super::diagnostic::{Diagnostic, Severity};
use super::super::endpoints_file;
use super::super::schema::{DnsDiscovery, Pool};
use super::Check;

/// Longest name and longest label of one (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

impl Check<'_> {
    pub(super) fn discovery(&mut self, pool: &Pool, path: &str) {
        let path = format!("{path}.discovery");
        if let Some(dns) = &pool.discovery.dns {
            self.dns(dns, &format!("{path}.dns"));
            let named = pool
                .tls
                .as_ref()
                .is_some_and(|tls| tls.server_name.is_some() || tls.insecure_skip_verify);
            if dns.tls && !named {
                let fault =
                    Diagnostic::warning("the endpoints' certificates would have to be of their IP addresses");
                self.report(
                    &format!("{path}.dns.tls"),
                    fault.fix("add `tls: { server_name: NAME }` to the pool, with the name that they are of"),
                );
            }
        }
        let Some(file) = &pool.discovery.file else { return };
        let Err(faults) = endpoints_file::load(file) else {
            return;
        };
        for fault in faults.items().iter().filter(|f| f.severity == Severity::Error) {
            let at = fault
                .place
                .map_or_else(String::new, |place| format!(":{}:{}", place.line, place.column));
            let told = Diagnostic {
                message: format!("{}{at}: {}", file.display(), fault.message),
                ..fault.clone()
            };
            self.report(&format!("{path}.file"), told);
        }
    }

    fn dns(&mut self, dns: &DnsDiscovery, path: &str) {
        self.positive(&format!("{path}.interval"), dns.interval, "it would never rest");
        if self.damaged(&format!("{path}.name")) || is_dns_name(&dns.name) {
            return;
        }
        let host = dns
            .name
            .split_once("://")
            .map_or(dns.name.as_str(), |(_, rest)| rest);
        let (host, port) = host.split_once([':', '/']).unwrap_or((host, ""));
        let fix = match port.parse::<u16>() {
            _ if !is_dns_name(host) => None,
            Ok(port) => Some(format!("write `name: {host}` and `port: {port}`")),
            Err(_) => Some(format!("write `name: {host}`, and the port as `port`")),
        };
        let fault = Diagnostic::error(format!("`{}` is no name to look up", dns.name))
            .expected("a DNS name, such as vllm.default.svc.cluster.local");
        self.report(&format!("{path}.name"), fault.maybe_fix(fix));
    }
}

fn is_dns_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= MAX_NAME && name.split('.').all(label)
}

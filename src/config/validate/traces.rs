//! Traces: a collector that can be asked.

use super::super::diagnostic::Diagnostic;
use super::super::schema::Config;
use super::Check;
use http::{HeaderName, HeaderValue, Uri};

impl Check<'_> {
    pub(super) fn traces(&mut self, config: &Config) {
        let traces = &config.traces;
        if let Some(endpoint) = &traces.endpoint {
            self.collector(endpoint);
        }
        for (name, value) in &traces.headers {
            let good = HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value.expose()).is_ok();
            if !good {
                let fault = Diagnostic::error(format!("`{name}` and its value cannot stand in a header"));
                self.report(
                    &format!("traces.headers.{name}"),
                    fault.expected("a name such as x-api-key, and printable characters on one line"),
                );
            }
        }
    }

    fn collector(&mut self, endpoint: &str) {
        let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
        let has_host = endpoint
            .parse::<Uri>()
            .is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let fix = match scheme {
            "http" if has_host => return,
            "https" => Some(format!(
                "write `http://{rest}`; where TLS is needed, send to a collector on this host"
            )),
            "" => Some(format!("write `http://{rest}`")),
            "grpc" => Some("OTLP over HTTP is spoken, usually on port 4318".to_owned()),
            _ => None,
        };
        let fault = Diagnostic::error(format!("`{endpoint}` is no collector's URL"))
            .expected("http://host:port, such as http://127.0.0.1:4318");
        self.report("traces.endpoint", fault.maybe_fix(fix));
    }
}

//! Does the configuration make sense? Every fault of meaning at once, each at its value's place.

mod discovery;
mod front;
mod kv_events;
mod overload;
mod pools;
mod scheduling;
mod tls;
mod traces;

use super::diagnostic::{Diagnostic, nearest};
use super::schema::{AccessLogTarget, Config, Endpoint};
use super::tree::Node;
use super::units::{ByteSize, Period};
use crate::telemetry::recorder::CHUNK_TOKENS;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Names every fault of meaning in `config`, which was read from `tree`. `damaged` are the paths of values
/// that were faulty already: nothing is said about what their absence causes.
pub(super) fn validate(config: &Config, tree: &Node, damaged: &[String]) -> Vec<Diagnostic> {
    let mut check = Check {
        tree,
        damaged,
        faults: Vec::new(),
    };
    check.listeners(config);
    check.limits(config);
    check.front(config);
    check.tls(config);
    check.access_log(config);
    check.traces(config);
    check.record(config);
    check.pools(config);
    check.faults
}

/// Names every fault of meaning in a file of endpoints, as [`validate`] does.
pub(super) fn validate_endpoints(endpoints: &[Endpoint], tree: &Node, damaged: &[String]) -> Vec<Diagnostic> {
    let mut check = Check {
        tree,
        damaged,
        faults: Vec::new(),
    };
    check.endpoint_list("", endpoints, "endpoints", &mut HashMap::new());
    check.faults
}

struct Check<'a> {
    tree: &'a Node,
    damaged: &'a [String],
    faults: Vec<Diagnostic>,
}

impl Check<'_> {
    /// Records `fault` at `path`. Values that the file does not give are pointed at by their parent's key.
    fn report(&mut self, path: &str, fault: Diagnostic) {
        let (_, place) = self.tree.find(path);
        self.faults.push(fault.at(self.tree.written_path(path), place));
    }

    /// True when `path`, something below it or something above it was faulty before.
    fn damaged(&self, path: &str) -> bool {
        let path = self.tree.written_path(path);
        let within = |outer: &str, inner: &str| {
            let rest = inner.strip_prefix(outer);
            outer.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.damaged.iter().any(|d| within(&path, d) || within(d, &path))
    }

    /// Line of the value at `path`, to name it in a message about another one.
    fn line(&self, path: &str) -> usize {
        self.tree.find(path).1.map_or(1, |place| place.line)
    }

    /// A duration that must not be zero.
    fn positive(&mut self, path: &str, value: Period, why: &str) {
        if value.is_zero() {
            let fault = Diagnostic::error(format!("`{path}` is zero: {why}", path = last(path)));
            self.report(path, fault.expected("a duration above zero, such as 1s"));
        }
    }

    fn listeners(&mut self, config: &Config) {
        let addresses = ports(config);
        for (i, (path, address)) in addresses.iter().enumerate() {
            if let Some((_, other)) = addresses[..i].iter().find(|(_, other)| collide(address, other)) {
                let fault = Diagnostic::error(format!(
                    "{address} and {other} are the same port of the same interface"
                ));
                self.report(path, fault.fix("remove one of the two"));
            }
            if collide(address, &config.admin.listen) {
                let fault = Diagnostic::error(format!(
                    "the data port {address} and the admin port {} are the same port",
                    config.admin.listen
                ));
                self.report(
                    "admin.listen",
                    fault.fix("give the admin port a port of its own, such as 127.0.0.1:9901"),
                );
            }
        }
        let admin = config.admin.listen;
        if !admin.ip().is_loopback() {
            let fault = Diagnostic::warning(format!(
                "the admin port {admin} can be reached from other machines: it can drain endpoints and asks for no password"
            ));
            self.report(
                "admin.listen",
                fault.fix(format!(
                    "write `127.0.0.1:{}`, or keep others out by a firewall",
                    admin.port()
                )),
            );
        }
    }

    fn limits(&mut self, config: &Config) {
        let limits = &config.limits;
        self.positive(
            "limits.headers_timeout",
            limits.headers_timeout,
            "every request would be refused",
        );
        self.positive(
            "limits.body_timeout",
            limits.body_timeout,
            "every request would be refused",
        );
        self.positive(
            "limits.send_timeout",
            limits.send_timeout,
            "every response would be cut",
        );
        self.at_least("limits.request_body", limits.request_body, ByteSize(1));
        self.at_least("limits.request_headers", limits.request_headers, ByteSize::kib(1));
        self.at_least(
            "prefix_index.memory",
            config.prefix_index.memory,
            ByteSize::mib(1),
        );
        if limits.buffered_bodies < limits.request_body {
            let path = if self.tree.find("limits.buffered_bodies").0.is_some() {
                "limits.buffered_bodies"
            } else {
                "limits.request_body"
            };
            let fault = Diagnostic::error(format!(
                "`buffered_bodies` ({}) is smaller than `request_body` ({}): the largest allowed body would never fit",
                limits.buffered_bodies, limits.request_body
            ));
            self.report(path, fault.fix("raise `buffered_bodies` or lower `request_body`"));
        }
    }

    /// A size with a lower bound.
    fn at_least(&mut self, path: &str, value: ByteSize, least: ByteSize) {
        if value < least {
            let fault = Diagnostic::error(format!("`{}` is {value}", last(path)));
            self.report(path, fault.expected(format!("at least {least}")));
        }
    }

    fn record(&mut self, config: &Config) {
        if let Some(file) = &config.record {
            self.has_folder("record", file);
        }
        let recording = &config.recording;
        self.at_least("recording.file_size", recording.file_size, ByteSize::mib(1));
        if !recording.block_tokens.get().is_multiple_of(CHUNK_TOKENS) {
            let fault = Diagnostic::error(format!("`block_tokens` is {}", recording.block_tokens));
            self.report(
                "recording.block_tokens",
                fault.expected(format!("a multiple of {CHUNK_TOKENS}")),
            );
        }
    }

    /// The folder that `file` is to be written to is there.
    fn has_folder(&mut self, path: &str, file: &Path) {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let fault = Diagnostic::error(format!("the folder {} does not exist", folder.display()));
            self.report(
                path,
                fault.fix(format!("create it: mkdir -p {}", folder.display())),
            );
        }
    }

    fn access_log(&mut self, config: &Config) {
        let AccessLogTarget::File(file) = &config.access_log.to else {
            return;
        };
        let text = file.to_string_lossy();
        if text.contains('/') {
            self.has_folder("access_log.to", file);
        } else if let Some(word) = nearest(&text, ["off", "stderr", "stdout"]) {
            let fault = Diagnostic::warning(format!("the access log goes to a file named `{text}`"));
            self.report(
                "access_log.to",
                fault.fix(format!("did you mean `{word}`? If not, write `./{text}`")),
            );
        }
    }
}

/// Every address of the data port, with its place in the file.
fn ports(config: &Config) -> Vec<(String, SocketAddr)> {
    let tls = config.tls.as_ref().map(|tls| ("tls.listen", &tls.listen.0));
    let lists = std::iter::once(("listen", &config.listen.0)).chain(tls);
    let each = lists.flat_map(|(path, list)| {
        list.iter()
            .enumerate()
            .map(move |(i, &address)| match list.len() {
                1 => (path.to_owned(), address),
                _ => (format!("{path}[{i}]"), address),
            })
    });
    each.collect()
}

/// Last key of a path.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// True when the two cannot be listened on together: the same port of the same or of every interface.
/// Port 0 means "any free port" and never collides.
fn collide(a: &SocketAddr, b: &SocketAddr) -> bool {
    let any = |ip: IpAddr| ip.is_unspecified();
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || any(a.ip()) || any(b.ip()))
}

//! The data port's front: who may ask, from which pages, and what endpoints are told of clients.

use super::super::address::ListenAddresses;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Data port with TLS 1.2 and 1.3; HTTP/2 and HTTP/1.1 are agreed on by ALPN. The files are read at start and at each
/// reload; with `reload_on_change` also when they change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Where clients connect by `https://`. One address or a list.
    #[serde(default = "tls_listen")]
    pub listen: ListenAddresses,
    /// PEM file of the server's certificate, followed by those that lead to its authority.
    #[schemars(example = "/etc/homing/tls.crt")]
    pub certificate: PathBuf,
    /// PEM file of the certificate's private key.
    #[schemars(example = "/etc/homing/tls.key")]
    pub key: PathBuf,
}

fn tls_listen() -> ListenAddresses {
    ListenAddresses(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8443))])
}

/// API keys of clients, sent as `Authorization: Bearer KEY` or `x-api-key: KEY`. Without keys everybody may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// SHA-256 of each key in hexadecimal: `printf %s KEY | sha256sum`. Keys must be long and random.
    pub keys: Vec<String>,
    /// File with more of them, one per line; what follows a `#` is a comment. Read again on reload.
    #[schemars(example = "/etc/homing/keys")]
    pub file: Option<PathBuf>,
}

/// Pages of other sites that may ask from a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cors {
    /// Origins such as `https://chat.example`, or `*` for all: the gateway then answers preflight requests itself,
    /// without an API key. Empty: CORS is left to the endpoints.
    pub allow_origins: Vec<String>,
}

/// What endpoints are told of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Forwarded {
    /// `x-forwarded-for`: the client's address.
    pub r#for: ForwardedFor,
    /// Set `x-forwarded-proto` to http or https.
    pub proto: bool,
    /// Add the gateway to `via`, in requests and responses.
    pub via: bool,
}

/// What happens to `x-forwarded-for`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedFor {
    /// It passes as it came.
    #[default]
    Pass,
    /// The client's address is added to it.
    Append,
    /// It is the client's address alone: whatever the client sent is dropped.
    Replace,
}

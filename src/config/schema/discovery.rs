//! Where endpoints come from beside the list in the file.

use super::super::units::Period;
use super::Endpoint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU16;
use std::path::PathBuf;

/// Endpoints that come and go, beside those listed in `endpoints`. What stays keeps its index, health and load; a
/// lookup that fails or finds nothing changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Discovery {
    /// One endpoint for each address behind a DNS name.
    pub dns: Option<DnsDiscovery>,
    /// File with a list of `endpoints`, read again when it changes. A file with a fault is not used: the last good one
    /// is.
    #[schemars(example = "/etc/homing/endpoints.yaml")]
    pub file: Option<PathBuf>,
}

impl Discovery {
    /// Whether nothing is to be discovered.
    pub const fn is_off(&self) -> bool {
        self.dns.is_none() && self.file.is_none()
    }
}

/// One endpoint for each address behind a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DnsDiscovery {
    /// Name to look up, such as that of a headless Service in Kubernetes.
    #[schemars(example = "vllm.default.svc.cluster.local")]
    pub name: String,
    /// Port of every address (A records; AAAA where there are none). Without it, SRV records are looked up, which name
    /// ports themselves; their priorities and weights are not heeded.
    #[serde(default)]
    #[schemars(example = 8000)]
    pub port: Option<NonZeroU16>,
    /// Speak TLS to the endpoints. They are known by address: name what their certificates are of as the pool's
    /// `tls.server_name`.
    #[serde(default)]
    pub tls: bool,
    /// Time between two lookups.
    #[serde(default = "interval")]
    pub interval: Period,
}

const fn interval() -> Period {
    Period::from_secs(5)
}

/// The file that `discovery.file` names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointsFile {
    /// The model servers.
    pub endpoints: Vec<Endpoint>,
}

//! TLS towards endpoints.

use super::{Credentials, TlsError, read_authorities};
use crate::config::address::EndpointUrl;
use crate::config::schema::EndpointTls;
use pingora_core::protocols::tls::CaType;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};
use std::net::SocketAddr;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// What a pool's endpoints must show, and what they are shown.
pub struct ClientTls {
    authorities: Option<Arc<CaType>>,
    identity: Option<Arc<CertKey>>,
    server_name: Option<String>,
    verify: bool,
    /// Differs when anything above does: connections made under other terms are not shared.
    fingerprint: u64,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls")
            .field("server_name", &self.server_name)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Reads the files that `of` names.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn read(of: &EndpointTls) -> Result<Self, TlsError> {
        let mut hash = Xxh3::new();
        let authorities = of.ca.as_deref().map(read_authorities).transpose()?;
        let identity = match (&of.certificate, &of.key) {
            (Some(certificate), Some(key)) => Some(Credentials::read(certificate, key)?),
            _ => None,
        };
        for certificate in authorities.iter().flatten() {
            hash.update(certificate);
        }
        for certificate in identity.iter().flat_map(|identity| &identity.chain) {
            hash.update(b"own");
            hash.update(certificate);
        }
        hash.update(of.server_name.as_deref().unwrap_or_default().as_bytes());
        hash.update(&[u8::from(of.insecure_skip_verify)]);
        Ok(Self {
            authorities: authorities.map(|all| {
                let all = all.iter().map(|one| WrappedX509::new(one.to_vec(), parse_x509));
                all.collect::<Arc<CaType>>()
            }),
            identity: identity.map(|of| {
                let chain = of.chain.iter().map(|one| one.to_vec()).collect();
                Arc::new(CertKey::new(chain, of.key.secret_der().to_vec()))
            }),
            server_name: of.server_name.clone(),
            verify: !of.insecure_skip_verify,
            fingerprint: hash.digest(),
        })
    }

    fn apply(&self, peer: &mut HttpPeer) {
        if let Some(name) = &self.server_name {
            peer.sni.clone_from(name);
        }
        peer.options.ca.clone_from(&self.authorities);
        peer.client_cert_key.clone_from(&self.identity);
        peer.options.verify_cert = self.verify;
        peer.options.verify_hostname = self.verify;
        peer.group_key = self.fingerprint;
    }
}

/// How to connect to the server of `url` at `address`: for `https://`, its certificate must be of the host of the URL and
/// signed by one of the system's authorities, unless `tls` says otherwise.
pub fn peer(url: &EndpointUrl, address: SocketAddr, tls: Option<&ClientTls>) -> HttpPeer {
    if !url.is_tls() {
        return HttpPeer::new(address, false, String::new());
    }
    // Never empty: Pingora verifies nothing then.
    let mut peer = HttpPeer::new(address, true, url.host().to_owned());
    if let Some(tls) = tls {
        tls.apply(&mut peer);
    }
    peer
}

//! TLS on the data port.

use super::Credentials;
use arc_swap::ArcSwap;
use pingora_core::listeners::tls::Acceptor;
use pingora_core::protocols::l4::stream::Stream as TcpStream;
use pingora_core::protocols::{GetSocketDigest, Stream};
use pingora_core::tls::sign::CertifiedKey;
use pingora_core::tls::{ClientHello, ResolvesServerCert, ServerConfig, version};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Protocols that clients are offered, the preferred one first (RFC 7301).
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificate that is shown to clients; it can change while connections stand.
#[derive(Debug)]
pub struct Certificate(ArcSwap<CertifiedKey>);

impl Certificate {
    /// Shows `identity`.
    pub fn new(identity: &Credentials) -> Self {
        Self(ArcSwap::new(identity.signing.clone()))
    }

    /// Shows `identity` from the next handshake on.
    pub fn replace(&self, identity: &Credentials) {
        self.0.store(identity.signing.clone());
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Which of the gateway's ports speak TLS, and how.
pub struct TlsPorts {
    addresses: Vec<SocketAddr>,
    acceptor: Acceptor,
    /// For the whole handshake.
    timeout: Duration,
}

impl TlsPorts {
    /// Connections to `addresses` begin with a handshake that shows `certificate`.
    pub fn new(addresses: Vec<SocketAddr>, certificate: Arc<Certificate>, timeout: Duration) -> Self {
        let config = ServerConfig::builder_with_protocol_versions(&[&version::TLS12, &version::TLS13]);
        let mut config = config.with_no_client_auth().with_cert_resolver(certificate);
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
        Self {
            addresses,
            acceptor: Acceptor::from_server_config(Arc::new(config)),
            timeout,
        }
    }

    /// The connection to go on with: after a handshake, when it came to a TLS port. `None` when that failed.
    ///
    /// Pingora would make the handshake itself, with a fixed deadline of a minute and a line in the error log for each
    /// client that gives up.
    pub async fn shake_hands(&self, stream: Stream) -> Option<Stream> {
        let tcp = match stream.into_any().downcast::<TcpStream>() {
            Ok(tcp) if !self.covers(&tcp) => return Some(tcp),
            Ok(tcp) => *tcp,
            Err(_) => return None,
        };
        match tokio::time::timeout(self.timeout, self.acceptor.tls_handshake(tcp)).await {
            Ok(Ok(stream)) => Some(Box::new(stream)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a client's TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!("a client's TLS handshake took too long");
                None
            }
        }
    }

    fn covers(&self, stream: &TcpStream) -> bool {
        let digest = stream.get_socket_digest();
        let local = digest.and_then(|digest| digest.local_addr().and_then(|local| local.as_inet().copied()));
        local.is_some_and(|local| self.addresses.iter().any(|tls| reached_by(tls, &local)))
    }
}

/// Whether a connection whose own end is `local` was taken by a listener at `listener`.
fn reached_by(listener: &SocketAddr, local: &SocketAddr) -> bool {
    let (bound, ip) = (listener.ip().to_canonical(), local.ip().to_canonical());
    listener.port() == local.port() && (bound.is_unspecified() || bound == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_belong_to_their_listener() {
        let reached =
            |listener: &str, local: &str| reached_by(&listener.parse().unwrap(), &local.parse().unwrap());
        assert!(reached("0.0.0.0:8443", "10.0.0.7:8443"));
        assert!(reached("[::]:8443", "[::ffff:10.0.0.7]:8443"));
        assert!(reached("127.0.0.1:8443", "127.0.0.1:8443"));
        assert!(!reached("127.0.0.1:8443", "127.0.0.1:8080"));
        assert!(!reached("127.0.0.1:8443", "127.0.0.2:8443"));
    }
}

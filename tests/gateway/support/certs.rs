//! Certificates made for the test, and TLS around plain sockets: a front before a scripted server, and a tunnel for
//! clients that speak plain text.

use super::free_address;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// An authority, and the folder of the files that it made.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
    made: AtomicUsize,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Pair {
    /// Puts the contents of `other` into these files.
    pub fn overwrite(&self, other: &Self) {
        std::fs::copy(&other.key, &self.key).expect("the key is copied");
        std::fs::copy(&other.certificate, &self.certificate).expect("the certificate is copied");
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        let found = CertificateDer::pem_file_iter(&self.certificate).expect("PEM");
        found.map(|one| one.expect("a certificate")).collect()
    }

    fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key).expect("a key")
    }

    /// The certificate itself.
    pub fn der(&self) -> Vec<u8> {
        self.chain()[0].to_vec()
    }
}

impl Authority {
    pub fn new(name: &str) -> Self {
        install();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("written");
        Self {
            issuer,
            folder,
            made: AtomicUsize::new(0),
        }
    }

    /// The authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for host names and IP addresses.
    pub fn issue(&self, names: &[&str]) -> Pair {
        self.issue_until(names, 2099)
    }

    /// One that expired at the beginning of `year`.
    pub fn issue_until(&self, names: &[&str], year: i32) -> Pair {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let n = self.made.fetch_add(1, Ordering::Relaxed);
        let file = |kind| self.folder.path().join(format!("{n}.{kind}"));
        let pair = Pair {
            certificate: file("crt"),
            key: file("key"),
        };
        std::fs::write(&pair.certificate, certificate.pem()).expect("written");
        std::fs::write(&pair.key, key.serialize_pem()).expect("written");
        pair
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots
            .add(self.issuer.der().clone())
            .expect("an authority's certificate");
        roots
    }

    /// A client that trusts this authority and speaks `protocols`.
    pub fn client(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let config = ClientConfig::builder().with_root_certificates(self.roots());
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|one| one.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// A server that shows `pair`, and asks clients for a certificate of `clients` if there is one.
    pub fn server(pair: &Pair, clients: Option<&Self>) -> Arc<ServerConfig> {
        let builder = ServerConfig::builder();
        let builder = match clients {
            Some(authority) => {
                let verifier = WebPkiClientVerifier::builder(authority.roots().into()).build();
                builder.with_client_cert_verifier(verifier.expect("a verifier"))
            }
            None => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(pair.chain(), pair.private());
        Arc::new(config.expect("a certificate and its key"))
    }
}

fn install() {
    let ring = tokio_rustls::rustls::crypto::ring::default_provider();
    let _ = ring.install_default();
}

/// Writes a path as YAML.
pub fn yaml(path: &Path) -> String {
    format!("'{}'", path.display())
}

/// TLS before a plain server; ends when dropped.
pub struct Front {
    pub address: SocketAddr,
    /// Names that clients asked for (SNI), in the order of their handshakes.
    pub names: Arc<std::sync::Mutex<Vec<Option<String>>>>,
    accepting: JoinHandle<()>,
}

impl Front {
    /// Takes TLS at a port of its own and passes the contents on to `to`.
    pub async fn start(config: Arc<ServerConfig>, to: SocketAddr) -> Self {
        Self::start_at(free_address(), config, to).await
    }

    /// The same at an address of the test's choice.
    pub async fn start_at(address: SocketAddr, config: Arc<ServerConfig>, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let names = Arc::<std::sync::Mutex<Vec<_>>>::default();
        let (acceptor, seen) = (TlsAcceptor::from(config), names.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, seen) = (acceptor.clone(), seen.clone());
                tokio::spawn(async move {
                    let mut tls = acceptor.accept(stream).await.ok()?;
                    let name = tls.get_ref().1.server_name().map(str::to_owned);
                    seen.lock().unwrap().push(name);
                    let mut plain = TcpStream::connect(to).await.ok()?;
                    tokio::io::copy_bidirectional(&mut tls, &mut plain).await.ok()
                });
            }
        });
        Self {
            address,
            names,
            accepting,
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A port whose connections go on through TLS to `to`, as to the server `name`; ends with the test.
pub async fn tunnel(config: Arc<ClientConfig>, name: &str, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(free_address()).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let name = ServerName::try_from(name.to_owned()).expect("a server's name");
    tokio::spawn(async move {
        while let Ok((mut plain, _)) = listener.accept().await {
            let (config, name) = (config.clone(), name.clone());
            tokio::spawn(async move {
                let tcp = TcpStream::connect(to).await.ok()?;
                let mut tls = TlsConnector::from(config).connect(name, tcp).await.ok()?;
                tokio::io::copy_bidirectional(&mut plain, &mut tls).await.ok()
            });
        }
    });
    address
}

/// What a handshake agrees on: the server's certificate and the protocol.
///
/// # Errors
/// When it fails.
pub async fn handshake(
    config: Arc<ClientConfig>,
    name: &str,
    to: SocketAddr,
) -> std::io::Result<(Vec<u8>, Option<String>)> {
    let name = ServerName::try_from(name.to_owned()).expect("a server's name");
    let tcp = TcpStream::connect(to).await?;
    let tls = TlsConnector::from(config).connect(name, tcp).await?;
    let session = tls.get_ref().1;
    let shown = session.peer_certificates().expect("certificates")[0].to_vec();
    let protocol = session.alpn_protocol();
    Ok((
        shown,
        protocol.map(|name| String::from_utf8_lossy(name).into_owned()),
    ))
}

//! Certificates and keys in PEM files: read, matched, and looked at for their dates.
//!
//! `server` is the data port's side, `client` the side towards endpoints. Every fault is found here, before anything
//! listens: what these functions let pass, the handshakes can use.

pub mod client;
pub mod server;

use pingora_core::tls::sign::CertifiedKey;
use pingora_core::tls::{CryptoProvider, RootCertStore, RusTlsError, install_default_crypto_provider};
use rustls_pki_types::pem::{Error as PemError, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

/// Why certificates or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is no proper PEM file: {error}", path.display())]
    Pem { path: PathBuf, error: String },
    #[error("{} holds no certificate", .0.display())]
    NoCertificate(PathBuf),
    #[error("{} holds no private key", .0.display())]
    NoKey(PathBuf),
    #[error("a certificate in {} cannot be used: {error}", path.display())]
    Certificate { path: PathBuf, error: String },
    #[error("the key in {} cannot be used: {error}", path.display())]
    Key { path: PathBuf, error: String },
    #[error("the key in {} is not that of the certificate in {}", key.display(), certificate.display())]
    Mismatch { certificate: PathBuf, key: PathBuf },
}

impl TlsError {
    /// Whether the fault lies with the key's file.
    pub const fn is_of_key(&self) -> bool {
        matches!(self, Self::NoKey(_) | Self::Key { .. } | Self::Mismatch { .. })
    }
}

/// A certificate chain, the server's or client's own first, and its key.
pub struct Credentials {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    signing: Arc<CertifiedKey>,
}

/// What is wrong with a certificate's dates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dates {
    Expired(String),
    NotYetValid(String),
}

impl Credentials {
    /// Reads a chain and its key.
    ///
    /// # Errors
    /// When a file cannot be read or used, or the key is not the certificate's.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = read_certificates(certificate)?;
        let private = read_key(key)?;
        install_default_crypto_provider();
        let fault = |error: String| TlsError::Key {
            path: key.to_owned(),
            error,
        };
        let provider =
            CryptoProvider::get_default().ok_or_else(|| fault("no cryptography is installed".into()))?;
        let signing = CertifiedKey::from_der(chain.clone(), private.clone_key(), provider);
        let signing = signing.map_err(|error| match error {
            RusTlsError::InconsistentKeys(_) => TlsError::Mismatch {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
            },
            RusTlsError::InvalidCertificate(error) => TlsError::Certificate {
                path: certificate.to_owned(),
                error: error.to_string(),
            },
            error => fault(error.to_string()),
        })?;
        Ok(Self {
            chain,
            key: private,
            signing: Arc::new(signing),
        })
    }
}

/// Reads all certificates of a file, at least one.
///
/// # Errors
/// When it cannot be read, or one of them is none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(|found| found.collect());
    let certificates = certificates.map_err(|error| pem_fault(path, error, TlsError::NoCertificate))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate(path.to_owned()));
    }
    // Pingora parses client certificates by the same code, and panics at those that it refuses.
    for certificate in &certificates {
        parse_x509_certificate(certificate).map_err(|error| TlsError::Certificate {
            path: path.to_owned(),
            error: error.to_string(),
        })?;
    }
    Ok(certificates)
}

/// Reads the certificates of authorities, at least one.
///
/// # Errors
/// When the file cannot be read, or one of them cannot sign for others.
pub fn read_authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = read_certificates(path)?;
    let mut store = RootCertStore::empty();
    for certificate in &certificates {
        store
            .add(certificate.clone())
            .map_err(|error| TlsError::Certificate {
                path: path.to_owned(),
                error: error.to_string(),
            })?;
    }
    Ok(certificates)
}

/// Reads a private key, which may stand among other things.
///
/// # Errors
/// When the file cannot be read, or holds none that can be used.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let key = PrivateKeyDer::from_pem_file(path);
    let key = key.map_err(|error| pem_fault(path, error, TlsError::NoKey))?;
    // Pingora tells the kind of a client's key from its bytes, and panics when it cannot.
    match PrivateKeyDer::try_from(key.secret_der()) {
        Ok(_) => Ok(key),
        Err(error) => Err(TlsError::Key {
            path: path.to_owned(),
            error: error.to_owned(),
        }),
    }
}

fn pem_fault(path: &Path, error: PemError, none: impl Fn(PathBuf) -> TlsError) -> TlsError {
    let path = path.to_owned();
    match error {
        PemError::Io(error) => TlsError::Read { path, error },
        PemError::NoItemsFound => none(path),
        error => TlsError::Pem {
            path,
            error: error.to_string(),
        },
    }
}

/// What is wrong with the dates of the first certificate of a chain at `now_s`, in seconds since 1970.
pub fn dates(chain: &[CertificateDer<'_>], now_s: i64) -> Option<Dates> {
    let (_, first) = parse_x509_certificate(chain.first()?).ok()?;
    let now = ASN1Time::from_timestamp(now_s).ok()?;
    let validity = first.validity();
    if now > validity.not_after {
        Some(Dates::Expired(validity.not_after.to_string()))
    } else if now < validity.not_before {
        Some(Dates::NotYetValid(validity.not_before.to_string()))
    } else {
        None
    }
}

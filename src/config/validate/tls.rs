//! Certificates and keys: the files are read, so that what can fail at a handshake is named before.

use super::super::diagnostic::Diagnostic;
use super::super::schema::{Config, EndpointTls, Pool};
use super::Check;
use crate::tls::{Credentials, Dates, TlsError, dates, read_authorities, read_key};
use rustls_pki_types::{CertificateDer, ServerName};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

impl Check<'_> {
    /// The data port's own certificate.
    pub(super) fn tls(&mut self, config: &Config) {
        let Some(tls) = &config.tls else { return };
        if tls.listen.0.is_empty() {
            let fault = Diagnostic::error("`tls.listen` names no address");
            self.report("tls.listen", fault.fix("name one, or remove `tls`"));
        }
        self.credentials(&tls.certificate, &tls.key, "tls");
    }

    /// How a pool's endpoints are spoken to.
    pub(super) fn endpoint_tls(&mut self, pool: &Pool, path: &str) {
        let Some(tls) = &pool.tls else { return };
        let at = format!("{path}.tls");
        let listed = !pool.endpoints.is_empty() && pool.discovery.is_off();
        if listed && !pool.endpoints.iter().any(|endpoint| endpoint.url.is_tls()) {
            let fault = Diagnostic::warning("no endpoint of the pool has an https:// URL");
            self.report(&at, fault.fix("write `https://` in their URLs, or remove `tls`"));
        }
        if let Some(ca) = &tls.ca {
            match read_authorities(ca) {
                Ok(chain) => self.dates(&chain, ca, &format!("{at}.ca")),
                Err(error) => self.unusable(&error, &format!("{at}.ca")),
            }
        }
        self.own_certificate(tls, &at);
        if let Some(name) = &tls.server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            let fault = Diagnostic::error(format!("`{name}` is no name of a server"));
            self.report(
                &format!("{at}.server_name"),
                fault.expected("a host name or an IP address"),
            );
        }
        if tls.insecure_skip_verify {
            let fault = Diagnostic::warning(
                "whoever answers at an endpoint's address is believed to be it, and is sent the pool's `api_key`",
            );
            let fault = fault.fix("name the authority that signed the endpoints' certificates: `ca: FILE`");
            self.report(&format!("{at}.insecure_skip_verify"), fault);
        }
    }

    fn own_certificate(&mut self, tls: &EndpointTls, at: &str) {
        match (&tls.certificate, &tls.key) {
            (Some(certificate), Some(key)) => self.credentials(certificate, key, at),
            (Some(_), None) => {
                let fault = Diagnostic::error("a certificate without its key");
                self.report(&format!("{at}.certificate"), fault.fix("add `key: FILE`"));
            }
            (None, Some(_)) => {
                let fault = Diagnostic::error("a key without its certificate");
                self.report(&format!("{at}.key"), fault.fix("add `certificate: FILE`"));
            }
            (None, None) => {}
        }
    }

    fn credentials(&mut self, certificate: &Path, key: &Path, at: &str) {
        match Credentials::read(certificate, key) {
            Ok(identity) => self.dates(&identity.chain, certificate, &format!("{at}.certificate")),
            Err(error) => {
                let key_alone = read_key(key).err();
                let is_of_key =
                    error.is_of_key() || matches!(&error, TlsError::Read { path, .. } if path == key);
                if !is_of_key {
                    self.unusable(&error, &format!("{at}.certificate"));
                }
                if let Some(error) = key_alone.or(is_of_key.then_some(error)) {
                    self.unusable(&error, &format!("{at}.key"));
                }
            }
        }
    }

    fn unusable(&mut self, error: &TlsError, path: &str) {
        let fault = Diagnostic::error(error.to_string());
        self.report(
            path,
            match error {
                TlsError::NoCertificate(_) => fault.expected("PEM: `-----BEGIN CERTIFICATE-----`"),
                TlsError::NoKey(_) => fault.expected("PEM without a password: `-----BEGIN PRIVATE KEY-----`"),
                TlsError::Mismatch { .. } => {
                    fault.expected("the key of the first certificate in the file, the server's own")
                }
                _ => fault,
            },
        );
    }

    fn dates(&mut self, chain: &[CertificateDer<'_>], file: &Path, path: &str) {
        // Certificates are dated by the calendar: this is no measure of time.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let file = file.display();
        let message = match dates(chain, i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
            Some(Dates::Expired(at)) => format!("the certificate in {file} has expired on {at}"),
            Some(Dates::NotYetValid(at)) => format!("the certificate in {file} is not valid before {at}"),
            None => return,
        };
        self.report(path, Diagnostic::warning(message).fix("renew it"));
    }
}

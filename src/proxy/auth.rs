//! API keys of clients: known by their hashes only, compared in constant time, never logged.

use http::{HeaderMap, HeaderName, header};
use pingora_http::RequestHeader;
use sha2::{Digest, Sha256};
use std::path::Path;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// SHA-256 of a key.
type KeyDigest = [u8; 32];

/// The keys that may ask.
#[derive(Clone, Default)]
pub struct ApiKeys {
    digests: Vec<KeyDigest>,
    /// Whether keys are asked for at all.
    required: bool,
}

/// Why the keys cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("line {0} is no SHA-256 of a key: 64 hexadecimal digits")]
    Line(usize),
}

impl ApiKeys {
    /// The keys of the configuration; with none given, everybody may ask.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn new(keys: &[String], file: Option<&Path>) -> Result<Self, KeyError> {
        // Each was checked with the configuration.
        let mut digests: Vec<KeyDigest> = keys.iter().filter_map(|key| parse_digest(key)).collect();
        if let Some(file) = file {
            digests.extend(read_file(file)?);
        }
        // An empty file of keys lets nobody in rather than everybody.
        let required = !digests.is_empty() || file.is_some();
        Ok(Self { digests, required })
    }

    /// Whether requests must carry a key.
    pub const fn are_required(&self) -> bool {
        self.required
    }

    /// Whether a request with these headers may pass.
    pub fn allow(&self, headers: &HeaderMap) -> bool {
        !self.required || presented(headers).is_some_and(|key| self.knows(key))
    }

    fn knows(&self, key: &[u8]) -> bool {
        let digest: KeyDigest = Sha256::digest(key).into();
        // Every key is compared to its end: the time tells neither which one matched nor how far.
        let matches = self.digests.iter().map(|known| same(known, &digest));
        matches.fold(false, |found, same| found | same)
    }
}

/// Takes the client's key out of a request that goes to an endpoint.
pub fn strip(request: &mut RequestHeader) {
    request.remove_header(&header::AUTHORIZATION);
    request.remove_header(&X_API_KEY);
}

/// The key that a request carries.
pub fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        return scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii());
    }
    headers.get(X_API_KEY).map(|value| value.as_bytes())
}

fn same(a: &KeyDigest, b: &KeyDigest) -> bool {
    let difference = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
    std::hint::black_box(difference) == 0
}

/// Reads 64 hexadecimal digits.
pub fn parse_digest(text: &str) -> Option<KeyDigest> {
    let digits = text.trim().as_bytes();
    let mut digest = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(pair[0])? * 16 + value(pair[1])?) as u8;
    }
    Some(digest)
}

/// Reads a file of digests, one per line.
///
/// # Errors
/// When it cannot be read, or a line is something else.
pub fn read_file(path: &Path) -> Result<Vec<KeyDigest>, KeyError> {
    let text = std::fs::read_to_string(path)?;
    let mut digests = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            digests.push(parse_digest(line).ok_or(KeyError::Line(at + 1))?);
        }
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    /// `printf %s secret | sha256sum`
    const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    fn headers(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn knows_a_key_by_its_hash() {
        let keys = ApiKeys::new(&[SECRET.to_owned()], None).unwrap();
        for (name, value, allowed) in [
            (header::AUTHORIZATION, "Bearer secret", true),
            (header::AUTHORIZATION, "bearer secret", true),
            (header::AUTHORIZATION, "Bearer secret2", false),
            (header::AUTHORIZATION, "Bearer", false),
            (header::AUTHORIZATION, "Basic secret", false),
            (header::AUTHORIZATION, SECRET, false),
            (X_API_KEY, "secret", true),
            (X_API_KEY, "", false),
        ] {
            assert_eq!(keys.allow(&headers(name, value)), allowed, "{value}");
        }
        assert!(!keys.allow(&HeaderMap::new()));
        assert!(ApiKeys::default().allow(&HeaderMap::new()));
    }

    #[test]
    fn an_empty_file_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        std::fs::write(&path, format!("# team a\n{SECRET}  # since May\n\n")).unwrap();
        let keys = ApiKeys::new(&[], Some(&path)).unwrap();
        assert!(keys.allow(&headers(X_API_KEY, "secret")));
        std::fs::write(&path, "# none\n").unwrap();
        let keys = ApiKeys::new(&[], Some(&path)).unwrap();
        assert!(!keys.allow(&headers(X_API_KEY, "secret")) && !keys.allow(&HeaderMap::new()));
        std::fs::write(&path, "secret\n").unwrap();
        assert!(matches!(ApiKeys::new(&[], Some(&path)), Err(KeyError::Line(1))));
    }
}

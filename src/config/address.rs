//! Addresses in the configuration: what Homing listens on and where endpoints are.

use http::uri::{Authority, Uri};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// What a listen address looks like, for error messages.
pub const LISTEN_EXPECTED: &str =
    "an IP address and a port, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080";

/// What an endpoint's URL looks like, for error messages.
pub const URL_EXPECTED: &str = "http://host:port without a path, such as http://10.0.0.7:8000";

/// The data port's addresses: one, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddresses(pub Vec<SocketAddr>);

/// Base URL of one endpoint: scheme, host and port, nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointUrl {
    tls: bool,
    host: String,
    port: u16,
}

/// Why a text is no endpoint URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not `http://` or `https://`.
    #[error("`{0}` has no scheme")]
    NoScheme(String),
    /// A scheme that no vLLM server speaks.
    #[error("`{0}` is no scheme of an endpoint")]
    Scheme(String),
    /// A path, a query or a fragment: Homing forwards the client's own path.
    #[error("an endpoint URL ends after the port, but here follows `{0}`")]
    Tail(String),
    /// `user:password@`.
    #[error("credentials in an endpoint URL are not sent")]
    Credentials,
    /// Port 0, or none of 1 to 65535.
    #[error("`{0}` is no port")]
    Port(String),
    /// Anything else the URL grammar refuses.
    #[error("`{text}` is no URL: {reason}")]
    Syntax { text: String, reason: String },
}

impl UrlError {
    /// What to write instead, where that can be told.
    pub fn fix(&self, text: &str) -> Option<String> {
        match self {
            Self::NoScheme(_) => Some(format!("write `http://{text}`")),
            Self::Tail(tail) => Some(format!("write `{}`", text.strip_suffix(tail.as_str())?)),
            Self::Scheme(scheme) => Some(format!("write `http{}`", text.strip_prefix(scheme.as_str())?)),
            Self::Credentials => Some("remove everything up to the `@`".to_owned()),
            Self::Port(_) => Some("write a port from 1 to 65535".to_owned()),
            Self::Syntax { .. } => None,
        }
    }
}

impl EndpointUrl {
    /// True for `https://`.
    pub const fn is_tls(&self) -> bool {
        self.tls
    }

    /// Host name or IP address; IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port, 80 or 443 when the URL names none.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `http://` or, with `tls`, `https://` and the address.
    pub fn of(address: SocketAddr, tls: bool) -> Self {
        Self {
            tls,
            host: address.ip().to_string(),
            port: address.port(),
        }
    }

    /// True when it leads back to the listener at `address`.
    pub fn leads_to(&self, address: &SocketAddr) -> bool {
        let own = address.ip();
        let leads = match self.host.parse::<IpAddr>() {
            // 127.0.0.2 is loopback too, but no way to a listener at 127.0.0.1.
            Ok(ip) => ip == own || ip.is_loopback() && own.is_unspecified(),
            Err(_) => self.host == "localhost" && (own.is_loopback() || own.is_unspecified()),
        };
        leads && self.port == address.port()
    }

    /// `host:port`, IPv6 in brackets: the form of a `Host` header and the endpoint's default name.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for EndpointUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(UrlError::NoScheme(text.to_owned()));
        };
        let tls = match scheme {
            "http" => false,
            "https" => true,
            other => return Err(UrlError::Scheme(other.to_owned())),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        // One slash is how browsers and copy-and-paste end a bare URL: it says nothing, so let it be.
        if !matches!(&rest[end..], "" | "/") {
            return Err(UrlError::Tail(rest[end..].to_owned()));
        }
        let authority = parse_authority(text, &rest[..end])?;
        let port = match authority.port_u16() {
            Some(0) => return Err(UrlError::Port("0".to_owned())),
            Some(port) => port,
            None if tls => 443,
            None => 80,
        };
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_ascii_lowercase();
        Ok(Self { tls, host, port })
    }
}

/// The `host[:port]` part, with a word about what the URL grammar alone would accept or call "invalid".
fn parse_authority(text: &str, authority: &str) -> Result<Authority, UrlError> {
    if authority.contains('@') {
        return Err(UrlError::Credentials);
    }
    let syntax = |reason: String| UrlError::Syntax {
        text: text.to_owned(),
        reason,
    };
    if let Some((host, port)) = authority.rsplit_once(':')
        && !port.ends_with(']')
        && port.parse::<u16>().is_err()
        && (!host.contains(':') || host.ends_with(']'))
    {
        return Err(UrlError::Port(port.to_owned()));
    }
    let uri: Uri = format!("http://{authority}")
        .parse()
        .map_err(|e| syntax(format!("{e}")))?;
    let authority = uri.authority().cloned().filter(|a| !a.host().is_empty());
    authority.ok_or_else(|| syntax("it names no host".to_owned()))
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}",
            if self.tls { "https" } else { "http" },
            self.authority()
        )
    }
}

impl<'de> Deserialize<'de> for EndpointUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse()
            .map_err(|error: UrlError| de::Error::custom(format!("{error}: expected {URL_EXPECTED}")))
    }
}

impl Serialize for EndpointUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for EndpointUrl {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "EndpointUrl".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "homing-url", "pattern": r"^https?://[^/?#]+/?$|\$\{" })
    }
}

/// The written forms of [`ListenAddresses`].
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(SocketAddr),
    Many(Vec<SocketAddr>),
}

impl<'de> Deserialize<'de> for ListenAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match OneOrMany::deserialize(deserializer)? {
            OneOrMany::One(address) => vec![address],
            OneOrMany::Many(addresses) => addresses,
        }))
    }
}

impl Serialize for ListenAddresses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

/// Schema of one listen address.
pub(super) fn listen_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "homing-listen", "pattern": r":[0-9]+$|\$\{" })
}

/// Schema of a list of IP addresses with ports.
pub(super) fn addresses_schema(generator: &mut SchemaGenerator) -> Schema {
    let one = listen_schema(generator);
    json_schema!({ "type": "array", "items": one })
}

impl JsonSchema for ListenAddresses {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ListenAddresses".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = listen_schema(generator);
        json_schema!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<EndpointUrl, UrlError> {
        text.parse()
    }

    #[test]
    fn takes_host_and_port_apart() {
        let plain = url("http://127.0.0.1:8001").unwrap();
        assert_eq!(
            (plain.host(), plain.port(), plain.is_tls()),
            ("127.0.0.1", 8001, false)
        );
        let named = url("https://Pod-A.vllm.svc/").unwrap();
        assert_eq!(
            (named.host(), named.port(), named.is_tls()),
            ("pod-a.vllm.svc", 443, true)
        );
        let v6 = url("http://[fd00::7]:8000").unwrap();
        assert_eq!((v6.host(), v6.port()), ("fd00::7", 8000));
        assert_eq!(v6.authority(), "[fd00::7]:8000");
        assert_eq!(v6.to_string(), "http://[fd00::7]:8000");
    }

    #[test]
    fn names_the_fault_of_a_bad_url() {
        assert_eq!(
            url("10.0.0.7:8000"),
            Err(UrlError::NoScheme("10.0.0.7:8000".into()))
        );
        assert_eq!(url("tcp://10.0.0.7:8000"), Err(UrlError::Scheme("tcp".into())));
        assert_eq!(url("http://a:8000/v1"), Err(UrlError::Tail("/v1".into())));
        assert_eq!(url("http://a:8000?x=1"), Err(UrlError::Tail("?x=1".into())));
        assert_eq!(url("http://me:pw@a:8000"), Err(UrlError::Credentials));
        assert_eq!(url("http://a:80000"), Err(UrlError::Port("80000".into())));
        assert_eq!(url("http://a:0"), Err(UrlError::Port("0".into())));
        assert!(matches!(url("http://"), Err(UrlError::Syntax { .. })));
        assert!(matches!(url("http://a b:80"), Err(UrlError::Syntax { .. })));
        assert!(matches!(
            url("http://fd00::7:8000"),
            Err(UrlError::Syntax { .. } | UrlError::Port(_))
        ));
    }
}

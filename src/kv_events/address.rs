//! ZeroMQ addresses of publishers and replay sockets.

use std::fmt;
use std::str::FromStr;

/// `tcp://HOST:PORT`. Host names are looked up anew with every connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an IP address, IPv6 without brackets.
    pub host: String,
    pub port: u16,
}

/// Why a text is no address to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("must start with tcp://")]
    Scheme,
    #[error("needs a host to connect to, not a wildcard")]
    Host,
    #[error("needs a port of 1 to 65535")]
    Port,
}

impl Address {
    /// Reads `template`, in which `{host}` stands for `host` (IPv6 without brackets).
    ///
    /// # Errors
    /// When the result is no address to connect to.
    pub fn of_host(template: &str, host: &str) -> Result<Self, AddressError> {
        let bracketed = format!("[{host}]");
        let host = if host.contains(':') { &bracketed } else { host };
        template.replace("{host}", host).parse()
    }

    /// The address of data-parallel rank `rank`: vLLM counts ports up. `None` past the last port.
    pub fn for_rank(&self, rank: u16) -> Option<Self> {
        let port = self.port.checked_add(rank)?;
        Some(Self {
            host: self.host.clone(),
            port,
        })
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix("tcp://").ok_or(AddressError::Scheme)?;
        let (host, port) = rest.rsplit_once(':').ok_or(AddressError::Port)?;
        let port = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or(AddressError::Port)?;
        let host = match host.strip_prefix('[') {
            Some(inside) => inside.strip_suffix(']').ok_or(AddressError::Host)?,
            None if host.contains(':') => return Err(AddressError::Host),
            None => host,
        };
        let is_wildcard = host == "*" || host == "0.0.0.0" || host == "::";
        let fits = !host.is_empty() && !host.contains(['/', ' ', '{', '}', '[', ']']);
        if is_wildcard || !fits {
            return Err(AddressError::Host);
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "tcp://[{host}]:{port}")
        } else {
            write!(f, "tcp://{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_and_print() {
        for (text, host, port) in [
            ("tcp://pod-a:5557", "pod-a", 5557),
            ("tcp://10.0.0.7:1", "10.0.0.7", 1),
            ("tcp://[::1]:65535", "::1", 65535),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port));
            assert_eq!(address.to_string(), text);
        }
        for (host, address) in [("pod-a", "tcp://pod-a:5557"), ("::1", "tcp://[::1]:5557")] {
            assert_eq!(
                Address::of_host("tcp://{host}:5557", host).unwrap().to_string(),
                address
            );
        }
        let second = "tcp://a:5557".parse::<Address>().unwrap().for_rank(1).unwrap();
        assert_eq!(second.to_string(), "tcp://a:5558");
        assert_eq!("tcp://a:65535".parse::<Address>().unwrap().for_rank(1), None);
    }

    #[test]
    fn what_cannot_be_connected_to() {
        let parse = |text: &str| text.parse::<Address>().unwrap_err();
        assert_eq!(parse("ipc:///tmp/kv"), AddressError::Scheme);
        assert_eq!(parse("a:5557"), AddressError::Scheme);
        for text in ["tcp://a", "tcp://a:", "tcp://a:0", "tcp://a:65536", "tcp://a:x"] {
            assert_eq!(parse(text), AddressError::Port, "{text}");
        }
        for text in [
            "tcp://*:5557",
            "tcp://:5557",
            "tcp://::1:5557",
            "tcp://{host}:5557",
            "tcp://0.0.0.0:1",
        ] {
            assert_eq!(parse(text), AddressError::Host, "{text}");
        }
    }
}

//! The configuration with what was discovered.

use super::{Found, Origin};
use crate::config::Config;
use crate::config::schema::{Endpoint, Pool};
use crate::prefix::MAX_ENDPOINTS;
use std::collections::BTreeMap;

/// What each source said last.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    found: BTreeMap<(String, Origin), Vec<Endpoint>>,
}

/// A configuration whose pools list what was discovered as well.
#[derive(Clone, Debug)]
pub struct Merged {
    pub config: Config,
    /// Endpoints that were left out, and why.
    pub left_out: Vec<String>,
}

impl Discovered {
    /// Takes what a source holds now; true when that is new.
    pub fn set(&mut self, found: Found) -> bool {
        let Found {
            pool,
            origin,
            endpoints,
        } = found;
        let before = self.found.insert((pool, origin), endpoints.clone());
        before.is_none_or(|before| before != endpoints)
    }

    /// Forgets what sources said that `config` does not have.
    pub fn retain(&mut self, config: &Config) {
        self.found.retain(|(name, origin), _| {
            let pool = config.pools.iter().find(|pool| pool.name == *name);
            pool.is_some_and(|pool| match origin {
                Origin::Dns => pool.discovery.dns.is_some(),
                Origin::File => pool.discovery.file.is_some(),
            })
        });
    }

    /// `written` with the discovered endpoints after those that it lists. What it lists comes first: a discovered
    /// endpoint with the name or URL of another is left out, and so is the gateway itself.
    pub fn merge(&self, written: &Config) -> Merged {
        let mut merged = Merged {
            config: written.clone(),
            left_out: Vec::new(),
        };
        let mut room =
            MAX_ENDPOINTS.saturating_sub(written.pools.iter().map(|pool| pool.endpoints.len()).sum());
        for pool in &mut merged.config.pools {
            for origin in Origin::ALL {
                let found = self.found.get(&(pool.name.clone(), origin));
                for endpoint in found.into_iter().flatten() {
                    match obstacle(written, pool, endpoint) {
                        None if room > 0 => {
                            room -= 1;
                            pool.endpoints.push(endpoint.clone());
                        }
                        None => merged.left_out.push(format!(
                            "{}: there are {MAX_ENDPOINTS} endpoints already",
                            endpoint.name
                        )),
                        Some(why) => merged.left_out.push(format!("{}: {why}", endpoint.name)),
                    }
                }
            }
        }
        merged
    }
}

/// Why `endpoint` cannot be one of `pool`.
fn obstacle(written: &Config, pool: &Pool, endpoint: &Endpoint) -> Option<&'static str> {
    let mut own = written.listen.0.iter().chain([&written.admin.listen]);
    if own.any(|address| endpoint.url.leads_to(address)) {
        return Some("this is Homing's own port");
    }
    pool.endpoints.iter().find_map(|other| {
        if other.url == endpoint.url {
            Some("its URL is in the pool already")
        } else {
            (other.name == endpoint.name).then_some("its name is in the pool already")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(name: &str, url: &str) -> Endpoint {
        let text = format!("endpoints: [{{ name: '{name}', url: '{url}' }}]");
        crate::config::endpoints_file::parse(&text, "test")
            .unwrap()
            .remove(0)
    }

    fn written() -> Config {
        let text = "pools:\n  - name: p\n    endpoints: [{ name: a, url: 'http://10.0.0.1:8000' }]\n    discovery: { dns: { name: x, port: 8000 } }";
        Config::parse(text, "test").unwrap()
    }

    fn found(endpoints: &[(&str, &str)]) -> Found {
        Found {
            pool: "p".to_owned(),
            origin: Origin::Dns,
            endpoints: endpoints.iter().map(|(name, url)| endpoint(name, url)).collect(),
        }
    }

    fn names(merged: &Merged) -> Vec<&str> {
        let endpoints = merged.config.pools[0].endpoints.iter();
        endpoints.map(|endpoint| endpoint.name.as_str()).collect()
    }

    #[test]
    fn discovered_endpoints_come_after_the_listed_ones() {
        let mut discovered = Discovered::default();
        let two = found(&[("b", "http://10.0.0.2:8000"), ("c", "http://10.0.0.3:8000")]);
        assert!(discovered.set(two.clone()));
        assert!(!discovered.set(two), "the same again");
        assert_eq!(names(&discovered.merge(&written())), ["a", "b", "c"]);
        assert!(discovered.set(found(&[("c", "http://10.0.0.3:8000")])));
        assert_eq!(names(&discovered.merge(&written())), ["a", "c"]);
    }

    #[test]
    fn what_cannot_be_an_endpoint_is_left_out_in_so_many_words() {
        let mut discovered = Discovered::default();
        discovered.set(found(&[
            ("other", "http://10.0.0.1:8000"),
            ("a", "http://10.0.0.2:8000"),
            ("me", "http://127.0.0.1:8080"),
            ("d", "http://10.0.0.4:8000"),
        ]));
        let merged = discovered.merge(&written());
        assert_eq!(names(&merged), ["a", "d"]);
        let why = [
            "other: its URL is in the pool already",
            "a: its name is in the pool already",
            "me: this is Homing's own port",
        ];
        assert_eq!(merged.left_out, why);
    }

    #[test]
    fn a_source_that_is_gone_is_forgotten() {
        let mut discovered = Discovered::default();
        discovered.set(found(&[("b", "http://10.0.0.2:8000")]));
        let mut config = written();
        discovered.retain(&config);
        assert_eq!(names(&discovered.merge(&config)), ["a", "b"]);
        config.pools[0].discovery.dns = None;
        discovered.retain(&config);
        assert_eq!(names(&discovered.merge(&config)), ["a"]);
    }
}

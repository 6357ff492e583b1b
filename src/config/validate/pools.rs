//! Pools, endpoints and how they are watched.

use super::super::diagnostic::Diagnostic;
use super::super::schema::{Config, Endpoint, Pool};
use super::Check;
use crate::prefix::MAX_ENDPOINTS;
use std::collections::HashMap;

/// The pool that lists a URL, and where.
pub(super) type Urls<'c> = HashMap<String, (&'c str, String)>;

impl Check<'_> {
    pub(super) fn pools(&mut self, config: &Config) {
        if config.pools.is_empty() && !self.damaged("pools") {
            let fault = Diagnostic::error("the file names no pool: there is nothing to route to");
            self.report(
                "pools",
                fault.fix("add `pools: [{ endpoints: [{ url: http://127.0.0.1:8000 }] }]`"),
            );
        }
        self.pool_names(config);
        self.models(config);
        let endpoints: usize = config.pools.iter().map(|pool| pool.endpoints.len()).sum();
        if endpoints > MAX_ENDPOINTS {
            let fault = Diagnostic::error(format!("the file lists {endpoints} endpoints"));
            self.report(
                "pools",
                fault.expected(format!("at most {MAX_ENDPOINTS} over all pools")),
            );
        }
        let mut urls = HashMap::new();
        for (i, pool) in config.pools.iter().enumerate() {
            let path = format!("pools[{i}]");
            self.endpoints(pool, &path, &mut urls);
            self.discovery(pool, &path);
            self.api_key(pool, &path);
            self.endpoint_tls(pool, &path);
            self.loops(config, pool, &path);
            self.watching(pool, &path);
            self.prefix_cache(pool, &path);
            self.kv_events(pool, &path);
            self.overload(config, pool, &path);
            self.scheduling(&pool.scheduling, &format!("{path}.scheduling"));
        }
    }

    fn pool_names(&mut self, config: &Config) {
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (i, pool) in config.pools.iter().enumerate() {
            let path = format!("pools[{i}].name");
            if self.damaged(&path) {
                continue;
            }
            self.name(&pool.name, "pool", &path);
            if let Some(first) = seen.insert(&pool.name, i) {
                let line = self.line(&format!("pools[{first}].name"));
                let fault = Diagnostic::error(format!("two pools are named `{}`", pool.name))
                    .expected(format!("a name of its own; the pool on line {line} has this one"))
                    .fix(format!("name this one `{}-2`, or join the two", pool.name));
                self.report(&path, fault);
            }
        }
    }

    /// A name that stands in URLs of the admin API and in metric labels.
    fn name(&mut self, name: &str, what: &str, path: &str) {
        let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '#' | '%' | '"');
        if name.is_empty() {
            self.report(
                path,
                Diagnostic::error(format!("the {what} has an empty name")).expected("a name, such as pod-a"),
            );
        } else if let Some(c) = name.chars().find(|c| bad(*c)) {
            let fixed: String = name.chars().map(|c| if bad(c) { '-' } else { c }).collect();
            let fault = Diagnostic::error(format!(
                "names of {what}s cannot contain `{}`",
                c.escape_default()
            ))
            .expected("letters, digits and marks that a URL path can carry")
            .fix(format!("write `{fixed}`"));
            self.report(path, fault);
        }
    }

    /// Each model has one pool, and one pool at most takes the rest.
    fn models(&mut self, config: &Config) {
        let mut served: HashMap<&str, (usize, usize)> = HashMap::new();
        let mut catch_all: Option<usize> = None;
        for (i, pool) in config.pools.iter().enumerate() {
            if pool.models.is_empty() && !self.damaged(&format!("pools[{i}].models")) {
                if let Some(first) = catch_all {
                    let fault = Diagnostic::error(format!(
                        "the pools `{}` and `{}` both serve every model: no request would tell them apart",
                        config.pools[first].name, pool.name
                    ));
                    self.report(
                        &format!("pools[{i}]"),
                        fault.fix("name the models of at least one of them: `models: [...]`"),
                    );
                } else {
                    catch_all = Some(i);
                }
            }
            for (j, model) in pool.models.iter().enumerate() {
                let path = format!("pools[{i}].models[{j}]");
                if model.trim().is_empty() {
                    self.report(
                        &path,
                        Diagnostic::error("a model without a name").fix("remove it"),
                    );
                } else if let Some((first, k)) = served.get(model.as_str()).copied() {
                    let line = self.line(&format!("pools[{first}].models[{k}]"));
                    let message = if first == i {
                        "is named twice".to_owned()
                    } else {
                        format!("is served by pool `{}` already", config.pools[first].name)
                    };
                    let fault = Diagnostic::error(format!("the model `{model}` {message}"))
                        .expected(format!("each model in one pool; line {line} has it"))
                        .fix("remove one of the two");
                    self.report(&path, fault);
                } else {
                    served.insert(model, (i, j));
                }
            }
        }
    }

    fn endpoints<'c>(&mut self, pool: &'c Pool, path: &str, urls: &mut Urls<'c>) {
        let damaged = self.damaged(&format!("{path}.discovery"));
        let path = format!("{path}.endpoints");
        let none = pool.endpoints.is_empty() && pool.discovery.is_off();
        if none && !damaged && !self.damaged(&path) {
            let fault = Diagnostic::error(format!("the pool `{}` has no endpoints", pool.name));
            self.report(
                &path,
                fault
                    .expected("at least one, or `discovery`")
                    .fix("add `endpoints: [{ url: http://127.0.0.1:8000 }]`"),
            );
        }
        self.endpoint_list(&pool.name, &pool.endpoints, &path, urls);
    }

    /// The endpoints listed at `path`, of the pool named `pool`.
    pub(super) fn endpoint_list<'c>(
        &mut self,
        pool: &'c str,
        endpoints: &'c [Endpoint],
        path: &str,
        urls: &mut Urls<'c>,
    ) {
        let mut names: HashMap<&str, usize> = HashMap::new();
        for (j, endpoint) in endpoints.iter().enumerate() {
            let at = format!("{path}[{j}]");
            self.name(&endpoint.name, "endpoint", &format!("{at}.name"));
            let doubled = self.doubled_url(pool, endpoint, &at, urls);
            // Two unnamed endpoints of one url share their default name: the url is the fault.
            if let Some(first) = names.insert(&endpoint.name, j)
                && !doubled
            {
                let line = self.line(&format!("{path}[{first}].name"));
                let fault = Diagnostic::error(format!(
                    "two endpoints of this pool are named `{}`",
                    endpoint.name
                ))
                .expected(format!(
                    "a name of its own; the endpoint on line {line} has this one"
                ));
                self.report(&format!("{at}.name"), fault);
            }
        }
    }

    /// One server, one endpoint: in the same pool a second entry would count its load twice. In two pools it
    /// may be meant (two LoRA families on one engine), but each pool sees only its own share of the load.
    fn doubled_url<'c>(&mut self, pool: &'c str, endpoint: &Endpoint, at: &str, urls: &mut Urls<'c>) -> bool {
        let path = format!("{at}.url");
        let Some((other_pool, first)) = urls.get(&endpoint.url.to_string()).cloned() else {
            urls.insert(endpoint.url.to_string(), (pool, path));
            return false;
        };
        let line = self.line(&first);
        if other_pool == pool {
            let fault = Diagnostic::error(format!("`{}` is listed twice in this pool", endpoint.url))
                .expected(format!("each server once; line {line} has it"))
                .fix("remove one of the two, or correct its port");
            self.report(&path, fault);
            return true;
        }
        let fault = Diagnostic::warning(format!(
            "`{}` is in pool `{other_pool}` too (line {line}): neither pool sees the other's requests in flight",
            endpoint.url
        ));
        self.report(&path, fault.fix("serve both models from one pool"));
        false
    }

    /// An endpoint that is the gateway itself.
    fn loops(&mut self, config: &Config, pool: &Pool, path: &str) {
        for (j, endpoint) in pool.endpoints.iter().enumerate() {
            let own = config
                .listen
                .0
                .iter()
                .chain([&config.admin.listen])
                .find(|own| endpoint.url.leads_to(own));
            if let Some(own) = own {
                let fault = Diagnostic::error(format!(
                    "`{}` is Homing's own port {own}: requests would go round in circles",
                    endpoint.url
                ));
                self.report(
                    &format!("{path}.endpoints[{j}].url"),
                    fault.fix("write the model server's port, or move `listen`"),
                );
            }
        }
    }

    /// Metrics, health and timeouts.
    fn watching(&mut self, pool: &Pool, path: &str) {
        let busy = "it would never rest";
        let failing = "every attempt would fail";
        self.positive(&format!("{path}.metrics.interval"), pool.metrics.interval, busy);
        self.positive(&format!("{path}.metrics.timeout"), pool.metrics.timeout, failing);
        self.positive(
            &format!("{path}.metrics.stale_after"),
            pool.metrics.stale_after,
            "every value would count as unknown",
        );
        self.positive(&format!("{path}.health.interval"), pool.health.interval, busy);
        self.positive(&format!("{path}.health.timeout"), pool.health.timeout, failing);
        self.positive(
            &format!("{path}.timeouts.connect"),
            pool.timeouts.connect,
            failing,
        );
        self.positive(
            &format!("{path}.timeouts.first_byte"),
            pool.timeouts.first_byte,
            failing,
        );
        self.positive(&format!("{path}.timeouts.idle"), pool.timeouts.idle, failing);
        self.failing(pool, path);
        self.url_path(&pool.metrics.path, &format!("{path}.metrics.path"));
        self.url_path(&pool.health.path, &format!("{path}.health.path"));
        let (interval, stale) = (pool.metrics.interval, pool.metrics.stale_after);
        if stale <= interval && !stale.is_zero() {
            let written = format!("{path}.metrics.stale_after");
            let at = if self.tree.find(&written).0.is_some() {
                written
            } else {
                format!("{path}.metrics.interval")
            };
            let fault = Diagnostic::warning(format!(
                "metrics are read every {interval} but count as unknown after {stale}: between two reads nothing is known"
            ));
            self.report(
                &at,
                fault.fix(format!("write `stale_after: {}`", super::Period(*interval * 3))),
            );
        }
    }

    fn api_key(&mut self, pool: &Pool, path: &str) {
        let Some(key) = &pool.api_key else { return };
        let word = key.expose();
        // What is wrong with its file has been told.
        if key.file().is_none() && word.is_empty() || http::HeaderValue::try_from(word).is_err() {
            let fault = Diagnostic::error("this API key cannot stand in a header");
            self.report(
                &format!("{path}.api_key"),
                fault.expected("printable characters on one line"),
            );
        }
    }

    /// Retries and ejection.
    fn failing(&mut self, pool: &Pool, path: &str) {
        for (i, status) in pool.retry_on.iter().enumerate() {
            if !(500..=599).contains(status) {
                let fault = Diagnostic::error(format!("`{status}` is no failure of an endpoint"))
                    .expected("statuses from 500 to 599")
                    .fix("remove it: other statuses pass to the client as they are");
                self.report(&format!("{path}.retry_on[{i}]"), fault);
            }
        }
        let ejection = &pool.ejection;
        let at = |key: &str| format!("{path}.ejection.{key}");
        self.positive(&at("window"), ejection.window, "nothing would be counted");
        let at_once = "endpoints would be set aside and tried without end";
        self.positive(&at("first_time"), ejection.first_time, at_once);
        self.positive(
            &at("hung_after"),
            ejection.hung_after,
            "every engine would count as hung",
        );
        if ejection.longest_time < ejection.first_time {
            let fault = Diagnostic::error(format!(
                "`longest_time` ({}) is shorter than `first_time` ({})",
                ejection.longest_time, ejection.first_time
            ));
            self.report(
                &at("longest_time"),
                fault.fix("raise `longest_time` or lower `first_time`"),
            );
        }
    }

    /// The path of a URL.
    fn url_path(&mut self, text: &str, path: &str) {
        let fix = if text.contains("://") {
            "write the path only: it is asked of each endpoint".to_owned()
        } else if !text.starts_with('/') {
            format!("write `/{text}`")
        } else if text.parse::<http::uri::PathAndQuery>().is_err() || text.contains(' ') {
            "encode spaces and special characters: `%20`".to_owned()
        } else {
            return;
        };
        let fault = Diagnostic::error(format!("`{text}` is no path")).expected("a path that starts with `/`");
        self.report(path, fault.fix(fix));
    }

    fn prefix_cache(&mut self, pool: &Pool, path: &str) {
        let cache = &pool.prefix_cache;
        if let (Some(block), Some(capacity)) = (cache.block_size.value(), cache.capacity.value())
            && capacity < block
        {
            let fault = Diagnostic::error(format!(
                "a capacity of {capacity} tokens does not hold one block of {block}"
            ));
            self.report(
                &format!("{path}.prefix_cache.capacity"),
                fault
                    .expected("tokens of the whole KV cache, num_gpu_blocks x block_size")
                    .fix("write `auto`"),
            );
        }
    }
}

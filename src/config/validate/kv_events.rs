//! Exact ownership: event addresses and tokenizers.

use super::super::diagnostic::Diagnostic;
use super::super::schema::{Pool, PrefixSource};
use super::Check;

impl Check<'_> {
    pub(super) fn kv_events(&mut self, pool: &Pool, path: &str) {
        if pool.prefix_cache.source == PrefixSource::KvEvents {
            self.event_addresses(pool, path);
        } else {
            self.unused_events(pool, path);
        }
        self.tokenizer(pool, path);
    }

    fn event_addresses(&mut self, pool: &Pool, path: &str) {
        let events = pool.kv_events.clone().unwrap_or_default();
        if !(1..=64).contains(&events.ranks) {
            let fault = Diagnostic::error(format!("`ranks: {}` is out of range", events.ranks));
            self.report(&format!("{path}.kv_events.ranks"), fault.expected("1 to 64"));
            return;
        }
        for (j, endpoint) in pool.endpoints.iter().enumerate() {
            let Err((address, why)) = events.sources(endpoint) else {
                continue;
            };
            let at = |own: &Option<String>, key: &str, shared: &str| {
                if own.as_deref() == Some(&*address) {
                    format!("{path}.endpoints[{j}].{key}")
                } else {
                    format!("{path}.kv_events.{shared}")
                }
            };
            let is_replay =
                [endpoint.kv_replay.as_deref(), events.replay.as_deref()].contains(&Some(&*address));
            let place = if is_replay {
                at(&endpoint.kv_replay, "kv_replay", "replay")
            } else {
                at(&endpoint.kv_events, "kv_events", "endpoint")
            };
            let fault = Diagnostic::error(format!("`{address}` cannot be connected to: it {why}"));
            self.report(&place, fault.expected("an address such as tcp://{host}:5557"));
        }
    }

    fn unused_events(&mut self, pool: &Pool, path: &str) {
        let unused = if pool.kv_events.is_some() {
            Some(format!("{path}.kv_events"))
        } else {
            let first = pool
                .endpoints
                .iter()
                .position(|endpoint| endpoint.kv_events.is_some() || endpoint.kv_replay.is_some());
            first.map(|j| format!("{path}.endpoints[{j}]"))
        };
        if let Some(at) = unused {
            let fault =
                Diagnostic::warning("KV events are not listened to: the pool's `source` is `traffic`");
            self.report(&at, fault.fix("write `prefix_cache: { source: kv-events }`"));
        }
    }

    fn tokenizer(&mut self, pool: &Pool, path: &str) {
        let Some(tokenizer) = &pool.tokenizer else { return };
        let at = format!("{path}.tokenizer");
        let fault = match (&tokenizer.path, tokenizer.engine) {
            (Some(_), true) => Diagnostic::error("`path` and `engine: true` are both given")
                .fix("remove one of the two: files are faster, the engines need none"),
            (None, false) => Diagnostic::error("the tokenizer has no source")
                .fix("write `path: /models/NAME`, or `engine: true` to ask the endpoints"),
            (None, true) if tokenizer.chat_template.is_some() => {
                Diagnostic::error("`chat_template` is given, but the engines render chats with their own")
                    .fix("remove `chat_template`, or give `path`")
            }
            _ => return,
        };
        self.report(&at, fault);
    }
}

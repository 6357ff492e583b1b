//! The queue in front of a pool.

use super::super::diagnostic::Diagnostic;
use super::super::schema::{Config, Pool};
use super::super::units::ByteSize;
use super::Check;
use http::HeaderName;

impl Check<'_> {
    pub(super) fn overload(&mut self, config: &Config, pool: &Pool, path: &str) {
        self.working_set(pool, &format!("{path}.overload.working_set"));
        let queue = &pool.overload.queue;
        let path = format!("{path}.overload.queue");
        self.positive(
            &format!("{path}.timeout"),
            queue.timeout,
            "every waiting request would be refused",
        );
        self.positive(
            &format!("{path}.hold_above"),
            queue.hold_above,
            "an endpoint would get one request at a time",
        );
        self.at_least(&format!("{path}.max_bytes"), queue.max_bytes, ByteSize(1));
        if queue.max_bytes > config.limits.buffered_bodies {
            let fault = Diagnostic::warning(format!(
                "`max_bytes` ({}) is larger than `limits.buffered_bodies` ({}), which all bodies share",
                queue.max_bytes, config.limits.buffered_bodies
            ));
            self.report(
                &format!("{path}.max_bytes"),
                fault.fix("lower it, or raise `limits.buffered_bodies`"),
            );
        }
        self.header_name(queue.tenant_header.as_deref(), &format!("{path}.tenant_header"));
        self.header_name(
            queue.priority_header.as_deref(),
            &format!("{path}.priority_header"),
        );
        for (tenant, weight) in &queue.weights {
            if !(weight.is_finite() && *weight > 0.0) {
                let fault = Diagnostic::error(format!("the weight of `{tenant}` is {weight}"));
                self.report(
                    &format!("{path}.weights.{tenant}"),
                    fault.expected("a number above 0, such as 2"),
                );
            }
        }
        if !queue.weights.is_empty() && queue.tenant_header.is_none() {
            let fault = Diagnostic::error("`weights` name tenants, and no `tenant_header` does");
            self.report(
                &format!("{path}.weights"),
                fault.fix("add `tenant_header: x-tenant`"),
            );
        }
    }

    fn working_set(&mut self, pool: &Pool, path: &str) {
        let of = &pool.overload.working_set;
        if of.enabled && !pool.overload.queue.enabled {
            let fault = Diagnostic::error("new conversations wait in the queue, and it is off");
            self.report(
                &format!("{path}.enabled"),
                fault.fix("set `overload.queue.enabled: true`"),
            );
        }
        let vain = "no new conversation would ever wait";
        self.positive(&format!("{path}.idle"), of.idle, vain);
        self.positive(
            &format!("{path}.tenure"),
            of.tenure,
            "every turn would count as a new conversation",
        );
        self.positive(&format!("{path}.timeout"), of.timeout, vain);
        if !(of.fraction > 0.0 && of.fraction <= 1.0) {
            let fault = Diagnostic::error(format!("`fraction` is {}", of.fraction));
            self.report(
                &format!("{path}.fraction"),
                fault.expected("a number above 0 and at most 1, such as 0.9"),
            );
        }
        if !(0.0..=1.0).contains(&of.regret) {
            let fault = Diagnostic::error(format!("`regret` is {}", of.regret));
            self.report(
                &format!("{path}.regret"),
                fault.expected("a number from 0 to 1, such as 0.2"),
            );
        }
        if !(of.spare >= 0.0 && of.spare.is_finite()) {
            let fault = Diagnostic::error(format!("`spare` is {}", of.spare));
            self.report(
                &format!("{path}.spare"),
                fault.expected("a number from 0, such as 1"),
            );
        }
        if of.enabled && of.return_wait >= pool.overload.queue.timeout {
            let fault =
                Diagnostic::error("running conversations would be refused before `return_wait` is over");
            self.report(
                &format!("{path}.return_wait"),
                fault.fix("make it shorter than `overload.queue.timeout`"),
            );
        }
        for (at, name) in of.session_headers.iter().enumerate() {
            self.header_name(Some(name), &format!("{path}.session_headers[{at}]"));
        }
    }

    fn header_name(&mut self, name: Option<&str>, path: &str) {
        if let Some(name) = name.filter(|name| HeaderName::try_from(*name).is_err()) {
            let fault = Diagnostic::error(format!("`{name}` is no header name"));
            self.report(path, fault.expected("a name such as x-tenant"));
        }
    }
}

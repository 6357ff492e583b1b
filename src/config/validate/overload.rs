//! The queue in front of a pool.

use super::super::diagnostic::Diagnostic;
use super::super::schema::{Config, Pool};
use super::super::units::ByteSize;
use super::Check;
use http::HeaderName;

impl Check<'_> {
    pub(super) fn overload(&mut self, config: &Config, pool: &Pool, path: &str) {
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

    fn header_name(&mut self, name: Option<&str>, path: &str) {
        if let Some(name) = name.filter(|name| HeaderName::try_from(*name).is_err()) {
            let fault = Diagnostic::error(format!("`{name}` is no header name"));
            self.report(path, fault.expected("a name such as x-tenant"));
        }
    }
}

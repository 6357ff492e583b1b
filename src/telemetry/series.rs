//! The series of endpoints: all of them go when an endpoint does.

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use std::collections::HashMap;

/// A family with series per endpoint.
pub(super) trait Forget: Send + Sync {
    /// Removes every series of the endpoint, whatever its other labels are.
    fn forget(&self, pool: &str, endpoint: &str);
}

impl<T: MetricVecBuilder> Forget for MetricVec<T>
where
    Self: Collector,
{
    fn forget(&self, pool: &str, endpoint: &str) {
        let families = self.collect();
        for metric in families.iter().flat_map(|family| family.get_metric()) {
            let labels: HashMap<&str, &str> = metric
                .get_label()
                .iter()
                .map(|label| (label.name(), label.value()))
                .collect();
            if labels.get("pool") == Some(&pool) && labels.get("endpoint") == Some(&endpoint) {
                // It fails when the series is gone already.
                let _ = self.remove(&labels);
            }
        }
    }
}

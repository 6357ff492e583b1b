//! `vllm:lora_requests_info`: which LoRA adapters an engine is serving.

use crate::datalayer::exposition::Sample;

/// The adapters of the newest `vllm:lora_requests_info` series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoraRequests {
    /// How many adapters one batch may mix.
    pub max_adapters: Option<u32>,
    /// Adapters with requests in the batch.
    pub running: Vec<String>,
    /// Adapters with requests in the queue.
    pub waiting: Vec<String>,
}

impl LoraRequests {
    pub(super) fn of(sample: &Sample<'_>) -> Self {
        let mut lora = Self::default();
        for label in sample.labels() {
            match label.name {
                "max_lora" => lora.max_adapters = label.value().parse().ok(),
                "running_lora_adapters" => lora.running = names(&label.value()),
                "waiting_lora_adapters" => lora.waiting = names(&label.value()),
                _ => {}
            }
        }
        lora
    }
}

fn names(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

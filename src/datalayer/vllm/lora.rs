//! `vllm:lora_requests_info`: which LoRA adapters an engine is serving.

use crate::datalayer::exposition::Sample;
use crate::scheduling::AdapterStanding;

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

    /// How the engine stands to the adapter `name`. An adapter that both runs and waits takes one slot.
    pub fn standing(&self, name: &str) -> AdapterStanding {
        let has = |list: &[String], name: &str| list.iter().any(|known| known == name);
        let only_waiting = self.waiting.iter().filter(|name| !has(&self.running, name));
        let taken = self.running.len() + only_waiting.count();
        if has(&self.running, name) {
            AdapterStanding::Running
        } else if self.max_adapters.is_some_and(|slots| taken < slots as usize) {
            AdapterStanding::FreeSlot
        } else if has(&self.waiting, name) {
            AdapterStanding::Waiting
        } else {
            AdapterStanding::NoSlot
        }
    }
}

fn names(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

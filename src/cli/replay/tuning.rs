//! Queue and gate of a replay, and values of theirs that are to be tried.

use crate::overload::queue::QueueSettings;
use crate::overload::working_set::WorkingSetSettings;
use crate::sim::replay::Overload;
use std::time::Duration;

/// Every value that can be changed.
const NAMES: &[&str] = &[
    "hold_above",
    "hold_flood_above",
    "flood_kv_share",
    "long_miss",
    "overtake",
    "look_ahead",
    "fraction",
    "idle",
    "tenure",
    "regret",
    "known",
    "reuse",
    "spare",
    "return_wait",
];

/// A value other than its default. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tuning {
    name: &'static str,
    value: f64,
}

/// Parses `NAME=NUMBER`.
pub(super) fn tuning(text: &str) -> Result<Tuning, String> {
    let (given, value) = text.split_once('=').ok_or("must be NAME=NUMBER")?;
    let name = NAMES.iter().find(|name| **name == given.trim());
    let name = name.ok_or_else(|| format!("no such value; there are {}", NAMES.join(", ")))?;
    match value.trim().parse::<f64>() {
        Ok(value) if (0.0..1e9).contains(&value) => Ok(Tuning { name, value }),
        _ => Err("must be a number from 0".to_owned()),
    }
}

/// Nothing is turned away, so that rows with and without queue compare.
pub(super) fn overload(queue: bool, gate: bool, tunings: &[Tuning]) -> Overload {
    let mut of_queue = QueueSettings {
        max_requests: usize::MAX,
        max_bytes: u64::MAX,
        ..QueueSettings::default()
    };
    let mut of_gate = WorkingSetSettings::default();
    for tuning in tunings {
        tuning.apply(&mut of_queue, &mut of_gate);
    }
    Overload {
        queue: (queue || gate).then_some(of_queue),
        working_set: gate.then_some(of_gate),
    }
}

impl Tuning {
    fn apply(&self, queue: &mut QueueSettings, gate: &mut WorkingSetSettings) {
        let time = Duration::from_secs_f64(self.value);
        match self.name {
            "hold_above" => queue.hold_above_s = self.value,
            "hold_flood_above" => queue.hold_flood_above_s = self.value,
            "flood_kv_share" => queue.flood_kv_share = self.value,
            "long_miss" => queue.long_miss = self.value,
            "overtake" => queue.overtake = time,
            "look_ahead" => queue.look_ahead = self.value as usize,
            "fraction" => gate.fraction = self.value,
            "idle" => gate.idle = time,
            "tenure" => gate.tenure = time,
            "regret" => gate.regret = self.value,
            "known" => gate.known = self.value,
            "reuse" => gate.reuse = self.value,
            "spare" => gate.spare = self.value,
            "return_wait" => gate.return_wait = time,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_named_and_bounded() {
        let tuned = ["fraction=0.8", "overtake=30"].map(|text| tuning(text).unwrap());
        let overload = overload(false, true, &tuned);
        assert_eq!(overload.working_set.unwrap().fraction, 0.8);
        assert_eq!(overload.queue.unwrap().overtake, Duration::from_secs(30));
        for text in ["fraction", "fraction=x", "fraction=-1", "idle=1e300", "phi=1"] {
            assert!(tuning(text).is_err(), "{text}");
        }
    }
}

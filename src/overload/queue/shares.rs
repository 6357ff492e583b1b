//! Who has had how much lately: what tells a flood from those who live beside it.
//!
//! By max-min fairness a flow whose demand is met has less than those whose demand is not, and those have alike. So a
//! flow *floods* that has had at least half of what the one has had that has had most, each for its weight, while
//! another has had less than that. Equal floods do not restrain each other, and neither does a flow by itself.

use super::FlowId;
use crate::overload::kept;
use crate::time::Mono;
use std::collections::HashMap;
use std::time::Duration;

/// Half-life of what a flow has had, in seconds: long against one prompt, short against a change of traffic.
const HALF_LIFE_S: f64 = 20.0;

/// A flow of which nothing came for this long is no longer there.
const MEMORY: Duration = Duration::from_secs(60);

/// Share of what the flow has had that has had most, from which on others flood like it.
const FLOOD: f64 = 0.5;

/// What the flows have had of the fleet lately, in the queue's unit of work.
#[derive(Debug, Default)]
pub(super) struct Shares {
    recent: HashMap<FlowId, Recent>,
}

#[derive(Debug)]
struct Recent {
    weight: f64,
    work: f64,
    settled: Mono,
    seen: Mono,
}

impl Recent {
    fn level(&self, now: Mono) -> f64 {
        self.work * kept(now.since(self.settled), HALF_LIFE_S) / self.weight
    }
}

impl Shares {
    /// Flows that were there lately.
    pub fn len(&self) -> usize {
        self.recent.len()
    }

    pub fn contains(&self, flow: FlowId) -> bool {
        self.recent.contains_key(&flow)
    }

    /// A request of the flow came.
    pub fn came(&mut self, now: Mono, flow: FlowId, weight: f64) {
        let recent = self.recent.entry(flow).or_insert(Recent {
            weight,
            work: 0.0,
            settled: now,
            seen: now,
        });
        recent.weight = weight;
        recent.seen = recent.seen.max(now);
    }

    /// A request of the flow went to an endpoint.
    pub fn went(&mut self, now: Mono, flow: FlowId, work: f64) {
        if let Some(recent) = self.recent.get_mut(&flow) {
            recent.work = recent.level(now) * recent.weight + work;
            recent.settled = recent.settled.max(now);
            recent.seen = recent.seen.max(now);
        }
    }

    /// Forgets those that are no longer there.
    pub fn pass(&mut self, now: Mono) {
        self.recent.retain(|_, recent| now.since(recent.seen) < MEMORY);
    }

    /// Level from which on a flow floods: others have had less. `None` while all have had alike, or there is but one.
    pub fn flood_from(&self, now: Mono) -> Option<f64> {
        let levels = || self.recent.values().map(|recent| recent.level(now));
        let from = FLOOD * levels().fold(0.0, f64::max);
        levels().any(|level| level < from).then_some(from)
    }

    /// What the flow has had lately, for its weight.
    pub fn level(&self, now: Mono, flow: FlowId) -> f64 {
        self.recent.get(&flow).map_or(0.0, |recent| recent.level(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: FlowId = FlowId(1);
    const B: FlowId = FlowId(2);
    const C: FlowId = FlowId(3);

    fn at(seconds: f64) -> Mono {
        Mono::from_secs_f64(seconds)
    }

    fn had(work: &[(FlowId, f64, f64)]) -> Shares {
        let mut shares = Shares::default();
        for (flow, weight, work) in work {
            shares.came(at(0.0), *flow, *weight);
            shares.went(at(0.0), *flow, *work);
        }
        shares
    }

    #[test]
    fn a_flow_floods_while_another_has_less_than_half() {
        assert_eq!(Shares::default().flood_from(at(0.0)), None);
        assert_eq!(had(&[(A, 1.0, 900.0)]).flood_from(at(0.0)), None, "by itself");
        assert_eq!(had(&[(A, 1.0, 900.0), (B, 1.0, 451.0)]).flood_from(at(0.0)), None);
        assert_eq!(
            had(&[(A, 1.0, 900.0), (B, 1.0, 449.0)]).flood_from(at(0.0)),
            Some(450.0)
        );
        let two_floods = had(&[(A, 1.0, 900.0), (B, 1.0, 800.0), (C, 1.0, 0.0)]);
        let from = two_floods.flood_from(at(0.0)).unwrap();
        let floods = [A, B, C].map(|flow| two_floods.level(at(0.0), flow) >= from);
        assert_eq!(floods, [true, true, false]);
    }

    #[test]
    fn weights_make_fair_what_is_not_equal() {
        assert_eq!(had(&[(A, 8.0, 800.0), (B, 1.0, 100.0)]).flood_from(at(0.0)), None);
        let shares = had(&[(A, 8.0, 160.0), (B, 1.0, 100.0)]);
        assert_eq!(shares.flood_from(at(0.0)), Some(50.0), "100 against 20");
    }

    #[test]
    fn what_was_had_fades_and_who_does_not_come_back_is_forgotten() {
        let mut shares = had(&[(A, 1.0, 400.0), (B, 1.0, 0.0)]);
        assert_eq!(shares.level(at(20.0), A), 200.0);
        shares.went(at(20.0), A, 100.0);
        assert_eq!(shares.level(at(20.0), A), 300.0);
        assert_eq!(shares.level(at(40.0), A), 150.0);
        shares.pass(at(59.9));
        assert_eq!(shares.len(), 2);
        // A was given something at 20 s, of B nothing was seen for a minute: the flood is by itself.
        shares.pass(at(60.0));
        assert!(shares.contains(A) && !shares.contains(B));
        assert_eq!(shares.flood_from(at(60.0)), None);
    }
}

//! Who was picked last: the state behind fair rotation and cold placement.

use crate::prefix::EndpointId;

/// When an endpoint was last used, as a sequence number; 0 = never.
type Seq = u64;

/// Last use per endpoint. Both columns move at pick time, so the next decision sees them before the request
/// has been sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Recency {
    last: Seq,
    uses: Vec<Use>,
}

/// Sequence numbers of an endpoint's latest picks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Any pick.
    pub picked: Seq,
    /// A pick for a prompt that nobody held.
    pub cold: Seq,
}

impl Recency {
    pub fn of(&self, id: EndpointId) -> Use {
        self.uses.get(usize::from(id.0)).copied().unwrap_or_default()
    }

    /// Records a pick and returns what stood there before, for [`Recency::revert`].
    pub fn record(&mut self, id: EndpointId, cold: bool) -> (Use, Use) {
        self.last += 1;
        let last = self.last;
        let slot = self.slot(id);
        let before = *slot;
        slot.picked = last;
        if cold {
            slot.cold = last;
        }
        (before, *slot)
    }

    /// Takes a pick back, unless a later one has overwritten it.
    pub fn revert(&mut self, id: EndpointId, before: Use, recorded: Use) {
        let slot = self.slot(id);
        if slot.picked == recorded.picked {
            slot.picked = before.picked;
        }
        if slot.cold == recorded.cold {
            slot.cold = before.cold;
        }
    }

    /// The id was released: its next owner starts as never used.
    pub fn forget(&mut self, id: EndpointId) {
        if let Some(slot) = self.uses.get_mut(usize::from(id.0)) {
            *slot = Use::default();
        }
    }

    fn slot(&mut self, id: EndpointId) -> &mut Use {
        let index = usize::from(id.0);
        if index >= self.uses.len() {
            self.uses.resize(index + 1, Use::default());
        }
        &mut self.uses[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reverted_pick_leaves_no_trace() {
        let mut recency = Recency::default();
        recency.record(EndpointId(3), true);
        let before = recency.of(EndpointId(3));
        let (was, recorded) = recency.record(EndpointId(3), true);
        recency.revert(EndpointId(3), was, recorded);
        assert_eq!(recency.of(EndpointId(3)), before);
    }

    #[test]
    fn reverting_keeps_a_later_pick() {
        let mut recency = Recency::default();
        let (was, recorded) = recency.record(EndpointId(0), true);
        let (_, later) = recency.record(EndpointId(0), false);
        recency.revert(EndpointId(0), was, recorded);
        assert_eq!(
            recency.of(EndpointId(0)),
            Use {
                picked: later.picked,
                cold: 0
            }
        );
    }
}

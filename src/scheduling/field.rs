//! The candidates of one decision, and how a ranking is made of them.

use super::recency::Recency;
use super::view::{Decision, DecisionKind, EndpointView, RequestView, Scored};
use super::warmth;
use crate::prefix::EndpointId;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::sync::Arc;

/// Candidates up to this many are held on the stack.
const INLINE: usize = 64;

/// Reason given for an endpoint that the request must not go to.
pub(super) const EXCLUDED: &str = "excluded";

/// What every policy is given: the request, the candidates that are left, and the state behind fair ties.
pub(super) struct Field<'a> {
    pub req: &'a RequestView<'a>,
    pub kind: DecisionKind,
    /// E[output tokens] of the request.
    pub output_tokens: f64,
    /// Candidates in preference, then the ones that a preference set aside.
    views: SmallVec<[&'a EndpointView<'a>; INLINE]>,
    kept: usize,
    filtered: Vec<(EndpointId, &'static str)>,
    pub recency: &'a Recency,
    /// Fresh randomness of this decision: breaks the ties that recency leaves.
    salt: u64,
}

impl<'a> Field<'a> {
    pub fn new(
        req: &'a RequestView<'a>,
        output_tokens: f64,
        candidates: &'a [EndpointView<'a>],
        recency: &'a Recency,
        salt: u64,
    ) -> Self {
        let kind = warmth::kind(req, candidates);
        let mut views = SmallVec::with_capacity(candidates.len());
        let mut filtered = Vec::new();
        for view in candidates {
            if req.exclude.contains(&view.id) {
                filtered.push((view.id, EXCLUDED));
            } else {
                views.push(view);
            }
        }
        Self {
            req,
            kind,
            output_tokens,
            kept: views.len(),
            views,
            filtered,
            recency,
            salt,
        }
    }

    /// The candidates that are still preferred.
    pub fn kept(&self) -> &[&'a EndpointView<'a>] {
        &self.views[..self.kept]
    }

    /// Keeps what `prefer` accepts in front and sets the others aside; does nothing when nobody would be left.
    pub fn set_aside(&mut self, reason: &'static str, prefer: impl Fn(&EndpointView) -> bool) {
        if !self.kept().iter().any(|view| prefer(view)) {
            return;
        }
        let mut kept = 0;
        for index in 0..self.kept {
            if prefer(self.views[index]) {
                self.views.swap(index, kept);
                kept += 1;
            }
        }
        let aside = &self.views[kept..self.kept];
        self.filtered.extend(aside.iter().map(|view| (view.id, reason)));
        self.kept = kept;
    }

    /// A total order among equals that favours nobody over time: least recently used first, then random.
    pub fn fair_order(&self, a: EndpointId, b: EndpointId) -> Ordering {
        self.last_use(a)
            .cmp(&self.last_use(b))
            .then_with(|| self.shuffled(a).cmp(&self.shuffled(b)))
            .then_with(|| a.cmp(&b))
    }

    /// Cold prompts rotate among themselves: warm traffic in between must not skew their spread.
    fn last_use(&self, id: EndpointId) -> u64 {
        let used = self.recency.of(id);
        if self.kind == DecisionKind::Cold {
            used.cold
        } else {
            used.picked
        }
    }

    /// This decision's random position of `id`.
    pub fn shuffled(&self, id: EndpointId) -> u64 {
        // A finaliser of the murmur family: one multiplication per candidate instead of one draw.
        let mixed = (self.salt ^ u64::from(id.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    /// Ranks by what `value` says of each candidate; `index` counts the kept ones first.
    pub fn rank(
        self,
        policy: &'static str,
        term_names: &Arc<[&'static str]>,
        order: Order,
        mut value: impl FnMut(usize, &EndpointView) -> (f64, SmallVec<[f64; 6]>),
    ) -> Decision {
        let mut scored: SmallVec<[Scored; INLINE]> = SmallVec::with_capacity(self.views.len());
        for (index, view) in self.views.iter().enumerate() {
            let (total, terms) = value(index, view);
            let total = if total.is_finite() { total } else { order.worst() };
            scored.push(Scored {
                id: view.id,
                total,
                terms,
                match_tokens: view.match_tokens,
            });
        }
        let (kept, aside) = scored.split_at_mut(self.kept);
        let mut ranked = Vec::with_capacity(self.views.len());
        self.move_sorted(kept, order, &mut ranked);
        self.move_sorted(aside, order, &mut ranked);
        Decision {
            kind: self.kind,
            policy,
            lower_is_better: order != Order::HighestFirst,
            term_names: Arc::clone(term_names),
            ranked,
            filtered: self.filtered,
        }
    }

    /// Moves the candidates to `ranked`, the best first: what is sorted are their places, one word each.
    fn move_sorted(&self, scored: &mut [Scored], order: Order, ranked: &mut Vec<Scored>) {
        let place = |(at, one): (usize, &Scored)| Place::new(order.key(one.total), at);
        let mut places: SmallVec<[Place; INLINE]> = scored.iter().enumerate().map(place).collect();
        places.sort_unstable();
        for equals in equals(&mut places) {
            self.sort_fairly(scored, equals);
        }
        if let Order::LowestWithin(resolution) = order {
            self.rotate_near_equals(scored, &mut places, resolution);
        }
        ranked.extend(places.iter().map(|place| {
            let one = &mut scored[place.at()];
            Scored {
                terms: std::mem::take(&mut one.terms),
                ..*one
            }
        }));
    }

    /// Brings candidates of one total into the fair order.
    fn sort_fairly(&self, scored: &[Scored], places: &mut [Place]) {
        let id = |place: &Place| scored[place.at()].id;
        sort_by(places, |place| self.last_use(id(place)) << Place::BITS);
        for equals in equals(places) {
            sort_by(equals, |place| self.shuffled(id(place)));
        }
    }

    /// Among the candidates whose cost the model cannot tell from the lowest, the fair order chooses. Saved work
    /// is no noise, however little: who holds less of the prompt is no equal.
    fn rotate_near_equals(&self, scored: &[Scored], places: &mut [Place], resolution: f64) {
        let at = |place: Place| &scored[place.at()];
        let Some(lowest) = places.first().map(|&place| at(place)) else {
            return;
        };
        let limit = lowest.total + resolution;
        let near = places.partition_point(|&place| at(place).total <= limit);
        let equals = (0..near).filter(|&index| at(places[index]).match_tokens >= lowest.match_tokens);
        let fairest = equals.min_by(|&a, &b| self.fair_order(at(places[a]).id, at(places[b]).id));
        if let Some(fairest) = fairest {
            places[..=fairest].rotate_right(1);
        }
    }
}

/// What a candidate is sorted by, without its lowest bits, and there where it stood before: the standard library sorts
/// single words several times as fast as what has to be compared in parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place(u64);

impl Place {
    /// Bits of where it stood, enough for [`crate::prefix::MAX_ENDPOINTS`]. A total has 36 bits after its first one
    /// without them: totals that differ by less than one part in 10^10 are equal.
    const BITS: u32 = 16;

    fn new(key: u64, at: usize) -> Self {
        Self(key >> Self::BITS << Self::BITS | at as u64)
    }

    const fn at(self) -> usize {
        (self.0 & ((1 << Self::BITS) - 1)) as usize
    }

    const fn key(self) -> u64 {
        self.0 >> Self::BITS
    }
}

fn sort_by(places: &mut [Place], key: impl Fn(&Place) -> u64) {
    for place in &mut *places {
        *place = Place::new(key(place), place.at());
    }
    places.sort_unstable();
}

/// Runs of several places that are sorted by the same.
fn equals(places: &mut [Place]) -> impl Iterator<Item = &mut [Place]> {
    places
        .chunk_by_mut(|a, b| a.key() == b.key())
        .filter(|run| run.len() > 1)
}

/// Which end of the totals is best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    HighestFirst,
    LowestFirst,
    /// Lowest first, where totals this close to the lowest count as equal.
    LowestWithin(f64),
}

impl Order {
    /// Ascends from the best total to the worst.
    fn key(self, total: f64) -> u64 {
        // The order of `f64::total_cmp`, as an unsigned number.
        let bits = total.to_bits();
        let ascending = bits ^ if bits >> 63 == 1 { u64::MAX } else { 1 << 63 };
        if self == Self::HighestFirst {
            !ascending
        } else {
            ascending
        }
    }

    /// Stands in for a total that is not a number: last, never first.
    fn worst(self) -> f64 {
        if self == Self::HighestFirst {
            f64::MIN
        } else {
            f64::MAX
        }
    }
}

#[cfg(test)]
mod tests;

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
        let mut views = SmallVec::new();
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
        let mut ranked: Vec<Scored> = Vec::with_capacity(self.views.len());
        for (index, view) in self.views.iter().enumerate() {
            let (total, terms) = value(index, view);
            let total = if total.is_finite() { total } else { order.worst() };
            ranked.push(Scored {
                id: view.id,
                total,
                terms,
                match_tokens: view.match_tokens,
            });
        }
        let (kept, aside) = ranked.split_at_mut(self.kept);
        self.sort(kept, order);
        self.sort(aside, order);
        Decision {
            kind: self.kind,
            policy,
            lower_is_better: order != Order::HighestFirst,
            term_names: Arc::clone(term_names),
            ranked,
            filtered: self.filtered,
        }
    }

    /// Sorts places, which are a fifth of what they stand for, and moves each candidate once.
    fn sort(&self, scored: &mut [Scored], order: Order) {
        let place = |(at, one): (usize, &Scored)| (order.key(one.total), at as u16);
        let mut places: SmallVec<[Place; INLINE]> = scored.iter().enumerate().map(place).collect();
        let fair_order =
            |a: u16, b: u16| self.fair_order(scored[usize::from(a)].id, scored[usize::from(b)].id);
        places.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| fair_order(a.1, b.1)));
        if let Order::LowestWithin(resolution) = order {
            self.rotate_near_equals(scored, &mut places, resolution);
        }
        arrange(scored, &mut places);
    }

    /// Among the candidates whose cost the model cannot tell from the lowest, the fair order chooses. Saved work
    /// is no noise, however little: who holds less of the prompt is no equal.
    fn rotate_near_equals(&self, scored: &[Scored], places: &mut [Place], resolution: f64) {
        let at = |place: Place| &scored[usize::from(place.1)];
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

/// What a candidate is sorted by, and where it stood before.
type Place = (u64, u16);

/// Brings `scored` into the order of `places`, one cycle of the permutation after the other.
fn arrange(scored: &mut [Scored], places: &mut [Place]) {
    for start in 0..places.len() {
        let mut at = start;
        loop {
            let from = usize::from(std::mem::replace(&mut places[at].1, at as u16));
            if from == start {
                break;
            }
            scored.swap(at, from);
            at = from;
        }
    }
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

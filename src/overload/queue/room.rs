//! Who gives way when the queue is full.

use super::flow::Flow;
use super::{Arrival, Queue, QueueSettings, Ticket};

impl<T> Queue<T> {
    /// Room for `arrival`: those who gave way, or `None` when there is none to be had.
    pub(super) fn make_room(&mut self, arrival: &Arrival) -> Option<Vec<T>> {
        let QueueSettings {
            max_requests,
            max_bytes,
            ..
        } = self.settings;
        let fits = |len: usize, bytes: u64| len < max_requests && bytes + arrival.bytes <= max_bytes;
        if !fits(0, 0) {
            return None;
        }
        let (mut len, mut bytes, mut places) = (self.len, self.bytes, Vec::new());
        let largest = self.flows.iter().map(|(id, flow)| (*id, self.share(flow)));
        let largest = largest.max_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        if let Some((id, _)) = largest
            && let Some(flow) = self.flows.get(&id)
        {
            let own = self.flows.get(&arrival.flow).map_or(0.0, |flow| self.share(flow));
            let own = own + self.share_of(1, arrival.bytes, arrival.weight);
            for (place, waiting) in flow.newest_first() {
                if fits(len, bytes) {
                    break;
                }
                let left = flow.bytes() - (self.bytes - bytes);
                if id == arrival.flow || self.share_of(flow.len() - places.len(), left, flow.weight) <= own {
                    return None;
                }
                places.push(Ticket {
                    flow: id,
                    place: *place,
                });
                (len, bytes) = (len - 1, bytes - waiting.arrival.bytes);
            }
        }
        let gave_way = |queue: &mut Self, ticket| Some(queue.take(ticket)?.payload);
        fits(len, bytes).then(|| {
            places
                .into_iter()
                .filter_map(|ticket| gave_way(self, ticket))
                .collect()
        })
    }

    /// What a flow holds of the queue, for its weight.
    fn share(&self, flow: &Flow<T>) -> f64 {
        self.share_of(flow.len(), flow.bytes(), flow.weight)
    }

    fn share_of(&self, requests: usize, bytes: u64, weight: f64) -> f64 {
        let of_requests = requests as f64 / self.settings.max_requests.max(1) as f64;
        let of_bytes = bytes as f64 / self.settings.max_bytes.max(1) as f64;
        of_requests.max(of_bytes) / weight
    }
}

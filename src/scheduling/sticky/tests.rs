use super::super::testing::{endpoint, prompt, rng};
use super::super::view::EndpointView;
use super::super::{Policy, Scheduler};
use crate::prefix::EndpointId;
use crate::time::Mono;

fn chosen(views: &[EndpointView]) -> (u16, usize) {
    let scheduler = Scheduler::new(Policy::preset("sticky").unwrap());
    let decision = scheduler.evaluate(Mono::ZERO, &prompt(1000), views, &mut rng(1));
    assert_eq!(decision.ranked.len(), views.len(), "a retry can reach everybody");
    (decision.chosen().unwrap().id.0, decision.filtered.len())
}

fn loaded(id: u16, match_tokens: u32, pending_prefill_tokens: u64) -> EndpointView<'static> {
    EndpointView {
        match_tokens,
        pending_prefill_tokens,
        ..endpoint(id)
    }
}

#[test]
fn home_wins_until_it_is_eighteen_seconds_behind() {
    // 18 s at 15,928 tokens/s are 286,704 pending tokens.
    assert_eq!(chosen(&[loaded(0, 0, 0), loaded(1, 800, 286_704)]), (1, 1));
    assert_eq!(chosen(&[loaded(0, 0, 0), loaded(1, 800, 286_705)]), (0, 0));
}

#[test]
fn the_least_work_wins_among_holders_and_when_nobody_holds_enough() {
    assert_eq!(
        chosen(&[loaded(0, 900, 500), loaded(1, 800, 300), loaded(2, 0, 0)]),
        (1, 1)
    );
    // 500 + 1000, 0 + 1000 - 799.
    assert_eq!(chosen(&[loaded(0, 0, 500), loaded(1, 799, 0)]), (1, 0));
}

#[test]
fn the_aside_rank_behind_the_holders() {
    let views = [loaded(0, 0, 0), loaded(1, 900, 5000), loaded(2, 0, 10)];
    let scheduler = Scheduler::new(Policy::preset("sticky").unwrap());
    let decision = scheduler.evaluate(Mono::ZERO, &prompt(1000), &views, &mut rng(1));
    let order: Vec<_> = decision.ranked.iter().map(|scored| scored.id).collect();
    assert_eq!(order, [EndpointId(1), EndpointId(0), EndpointId(2)]);
}

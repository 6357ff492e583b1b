//! Whether a request is worth pulling home.

use super::view::{DecisionKind, EndpointView, RequestView};

/// Share of the prompt that the best match has to save before the request counts as warm.
///
/// One half is the one threshold with both properties: repeating any prompt that has a reusable block
/// is warm (k reusable blocks in a prompt of at most k + 1 save at least half), while a system prompt that everybody
/// shares in front of a longer part of one's own does not switch the spreading of new prompts off.
pub const WARM_SHARE: f64 = 0.5;

/// Judges warmth by what the best match saves, in tokens that the engine can really reuse.
///
/// A partial tail block does not count: it may pull a short prompt home, but the engine recomputes it.
pub fn kind(req: &RequestView, candidates: &[EndpointView]) -> DecisionKind {
    if !req.keyed {
        return DecisionKind::Unkeyed;
    }
    let best = candidates.iter().map(|e| e.match_tokens).max().unwrap_or(0);
    let warm = best > 0 && f64::from(best) >= WARM_SHARE * f64::from(req.prompt_tokens);
    if warm {
        DecisionKind::Warm
    } else {
        DecisionKind::Cold
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{endpoint, prompt};
    use super::*;

    fn kind_of(prompt_tokens: u32, match_tokens: u32) -> DecisionKind {
        let holder = EndpointView {
            match_tokens,
            ..endpoint(1)
        };
        kind(&prompt(prompt_tokens), &[endpoint(0), holder])
    }

    #[test]
    fn a_repeat_with_one_block_cached_is_warm() {
        assert_eq!(kind_of(207, 128), DecisionKind::Warm);
        assert_eq!(
            kind_of(256, 128),
            DecisionKind::Warm,
            "exactly two blocks: the last is recomputed"
        );
    }

    #[test]
    fn a_shared_system_prompt_before_a_longer_own_part_is_cold() {
        assert_eq!(kind_of(700, 128), DecisionKind::Cold);
        assert_eq!(kind_of(700, 256), DecisionKind::Cold);
    }

    #[test]
    fn nothing_cached_is_cold_and_no_prompt_is_unkeyed() {
        assert_eq!(kind_of(13, 0), DecisionKind::Cold);
        assert_eq!(kind_of(0, 0), DecisionKind::Cold);
        assert_eq!(
            kind(&RequestView::default(), &[endpoint(0)]),
            DecisionKind::Unkeyed
        );
    }
}

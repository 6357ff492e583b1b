//! A pool's waiting room with a clock of its own.

use super::*;
use crate::pool::Settings;
use crate::pool::testing::{pool, settings};
use futures_util::FutureExt;

const LONGEST_WAIT: Duration = Duration::from_secs(10);

fn at(seconds: f64) -> Mono {
    Mono::from_secs_f64(seconds)
}

fn admit(pool: &Arc<Pool>, tokens: u32, now: Mono) -> Admission {
    let prompt = Prompt {
        tokens,
        stream: true,
        ..Prompt::unkeyed("")
    };
    let claim = Claim {
        flow: FlowId(0),
        weight: 1.0,
        bytes: 100,
    };
    pool.admit(prompt, claim, "", now)
}

#[test]
fn the_longest_wait_ends_however_often_something_frees() {
    let waiting = WaitingSettings {
        queue: QueueSettings::default(),
        sharing: Sharing::default(),
        timeout: LONGEST_WAIT,
    };
    let pool = pool(
        &["pod-a"],
        Settings {
            waiting: Some(waiting),
            ..settings()
        },
    );
    // Minutes of prefill, so that nobody else gets a turn.
    let Admission::Placed(_first) = admit(&pool, 10_000_000, at(0.0)) else {
        panic!("nobody waits yet");
    };
    let Admission::Waits(mut waiting) = admit(&pool, 1_000, at(0.0)) else {
        panic!("the endpoint is busy");
    };
    for tenths in 1..=LONGEST_WAIT.as_secs() * 10 + 5 {
        let now = at(tenths as f64 / 10.0);
        pool.freed(now);
        waiting.tick(now);
    }
    let turn = waiting.turn().now_or_never().expect("the wait is over");
    assert_eq!(turn.unwrap_err().why, Turned::TimedOut);
}

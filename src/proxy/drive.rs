//! Runs a connection's future until it has to wait.
//!
//! Pingora's two halves of an exchange hand each other every piece through a channel, and so wake the very task they
//! run in: a request three times, a stream for every four events. A woken task goes to the end of its thread's queue,
//! and another thread is woken to take it. Here the future is polled again at once instead; and when nothing is left to
//! do, what was written meanwhile is sent.

use super::cork::Corks;
use futures_util::task::AtomicWaker;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::task::coop::has_budget_remaining;

/// Polls at a stretch, before other connections get their turn.
const MAX_POLLS: u32 = 32;

/// Runs `future`. Whenever it waits, none of `corks`' sockets is corked.
pub async fn drive<F: Future>(future: F, corks: &Corks) -> F::Output {
    let mut future = pin!(future);
    let relay = Arc::new(Relay::default());
    let waker = Waker::from(relay.clone());
    poll_fn(|cx| {
        relay.task.register(cx.waker());
        let mut rests = false;
        for _ in 0..MAX_POLLS {
            relay.state.swap(POLLED, Ordering::SeqCst);
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            if polled.is_ready() {
                return polled;
            }
            // Not later: the endpoint can work while this connection goes on.
            corks.uncork_endpoint();
            rests = relay.rests();
            if rests || !has_budget_remaining() {
                break;
            }
        }
        corks.uncork_client();
        if !rests {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

/// Nothing has happened since the future was last polled.
const RESTING: u8 = 0;
/// The future is being polled.
const POLLED: u8 = 1;
/// The future wants to be polled again.
const WOKEN: u8 = 2;

/// Wakes the task, unless the future is just being polled.
#[derive(Default)]
struct Relay {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Relay {
    /// Whether the future, which has just been polled, waits for something to happen. From then on that wakes the task.
    fn rests(&self) -> bool {
        let rest = self
            .state
            .compare_exchange(POLLED, RESTING, Ordering::SeqCst, Ordering::SeqCst);
        rest != Err(WOKEN)
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::SeqCst) == RESTING {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests;

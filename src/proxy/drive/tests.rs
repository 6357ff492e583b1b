use super::{MAX_POLLS, drive};
use crate::proxy::cork::Corks;
use std::cell::Cell;
use std::future::poll_fn;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::sync::mpsc;

/// Counts its wakes.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Polls what must wait, as a task whose wakes are counted.
fn poll_to_wait(driven: Pin<&mut impl Future<Output = ()>>, count: &Arc<Count>) {
    let waker = Waker::from(count.clone());
    assert!(driven.poll(&mut Context::from_waker(&waker)).is_pending());
}

fn sockets() -> (TcpStream, Corks) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let corks = Corks::new(socket.as_raw_fd());
    (socket, corks)
}

#[cfg(target_os = "linux")]
fn is_corked(socket: &TcpStream) -> bool {
    socket2::SockRef::from(socket).tcp_cork().unwrap()
}

#[test]
fn what_wakes_itself_is_polled_again_at_once_and_wakes_nobody() {
    let (_socket, corks) = sockets();
    let (count, polls) = (Arc::new(Count::default()), Cell::new(0));
    let mut driven = pin!(drive(
        poll_fn(|cx| {
            polls.set(polls.get() + 1);
            if polls.get() < 5 {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        }),
        &corks,
    ));
    poll_to_wait(driven.as_mut(), &count);
    assert_eq!((polls.get(), count.wakes()), (5, 0));
}

#[test]
fn what_wakes_itself_for_ever_lets_others_have_their_turn() {
    let (_socket, corks) = sockets();
    let (count, polls) = (Arc::new(Count::default()), Cell::new(0));
    let mut driven = pin!(drive(
        poll_fn(|cx| {
            polls.set(polls.get() + 1);
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }),
        &corks,
    ));
    for turn in 1..=3 {
        poll_to_wait(driven.as_mut(), &count);
        assert_eq!(polls.get(), turn * MAX_POLLS);
        assert_eq!(count.wakes() as u32, turn);
    }
}

#[test]
fn a_wake_while_it_waits_wakes_the_newest_task_once() {
    let (_socket, corks) = sockets();
    let inner = std::cell::RefCell::new(None);
    let mut driven = pin!(drive(
        poll_fn(|cx| {
            *inner.borrow_mut() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }),
        &corks,
    ));
    let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
    for count in &counts {
        poll_to_wait(driven.as_mut(), count);
    }
    let waker = inner.borrow_mut().take().unwrap();
    waker.wake_by_ref();
    waker.wake();
    let woken = counts.map(|count| count.wakes());
    assert_eq!(woken, [0, 1]);
}

#[cfg(target_os = "linux")]
#[test]
fn while_it_waits_nothing_is_corked() {
    let (socket, corks) = sockets();
    let (engine, _) = sockets();
    let polls = Cell::new(0);
    let mut driven = pin!(drive(
        poll_fn(|cx| {
            polls.set(polls.get() + 1);
            match polls.get() {
                1 => {
                    corks.cork_client();
                    corks.cork_endpoint(engine.as_raw_fd());
                    cx.waker().wake_by_ref();
                }
                2 => {
                    assert!(is_corked(&socket), "it has not waited yet");
                    assert!(!is_corked(&engine), "the endpoint waits for no second poll");
                }
                _ => return Poll::Ready(()),
            }
            Poll::Pending
        }),
        &corks,
    ));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(driven.as_mut().poll(&mut cx).is_pending());
    assert!(!is_corked(&socket));
    assert!(driven.as_mut().poll(&mut cx).is_ready());
}

/// A thousand wakes from other threads, of which none may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_is_lost() {
    let (_socket, corks) = sockets();
    let (sender, mut receiver) = mpsc::channel(1);
    let (back, mut echoes) = mpsc::channel(1);
    tokio::spawn(async move {
        for n in 0..10_000 {
            sender.send(n).await.unwrap();
            assert_eq!(echoes.recv().await, Some(n));
        }
    });
    let echo = async {
        while let Some(n) = receiver.recv().await {
            back.send(n).await.unwrap();
        }
    };
    let driven = drive(echo, &corks);
    tokio::time::timeout(std::time::Duration::from_secs(20), driven)
        .await
        .unwrap();
}

/// A task that has used up its turn learns nothing by being polled again before its next one.
#[tokio::test]
async fn a_turn_ends_with_its_budget() {
    let (_socket, corks) = sockets();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    for n in 0..1000 {
        sender.send(n).unwrap();
    }
    drop(sender);
    let polls = Cell::new(0);
    let mut all = pin!(async { while receiver.recv().await.is_some() {} });
    let counted = poll_fn(|cx| {
        polls.set(polls.get() + 1);
        all.as_mut().poll(cx)
    });
    drive(counted, &corks).await;
    assert!((2..=20).contains(&polls.get()), "{} polls", polls.get());
}

//! The subscriber against another implementation of ZeroMQ, over real sockets.

use bytes::Bytes;
use homing::kv_events::address::Address;
use homing::kv_events::ownership::{BlockSink, Limits};
use homing::kv_events::subscriber::{Source, Status, Subscription};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

#[derive(Clone, Default)]
struct Index(Arc<Mutex<HashSet<u64>>>);

impl BlockSink for Index {
    fn insert(&mut self, block: u64) {
        self.0.lock().insert(block);
    }

    fn remove(&mut self, block: u64) {
        self.0.lock().remove(&block);
    }

    fn clear(&mut self) {
        self.0.lock().clear();
    }
}

/// A message that stores one block of one token, named `block`, which starts a prompt.
fn stored(block: u32) -> Bytes {
    let event =
        json!({"type": "BlockStored", "block_hashes": [block], "token_ids": [block], "block_size": 1});
    rmp_serde::to_vec(&json!([f64::from(block), [event], 0]))
        .unwrap()
        .into()
}

fn message(frames: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames).unwrap()
}

fn numbered(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}

async fn publish(socket: &mut PubSocket, sequence: u64, payload: Bytes) {
    socket
        .send(message(vec!["kv@pod@m".into(), numbered(sequence), payload]))
        .await
        .unwrap();
}

async fn bind<S: Socket>() -> (S, Address) {
    let mut socket = S::new();
    let bound = socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    (socket, bound.parse().unwrap())
}

fn source(events: &Address, replay: Option<&Address>) -> Source {
    Source {
        events: events.clone(),
        replay: replay.cloned(),
        topic: "kv@".to_owned(),
    }
}

/// Waits until the status is as wanted; panics with it when that takes too long.
async fn until(subscription: &Subscription, wanted: impl Fn(&Status) -> bool) -> Status {
    for _ in 0..1000 {
        let status = subscription.status();
        if wanted(&status) {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", subscription.status());
}

/// A publisher knows its subscribers only some time after they connect: publishes until one has heard.
async fn publish_until_heard(socket: &mut PubSocket, subscription: &Subscription, mut sequence: u64) -> u64 {
    loop {
        publish(socket, sequence, stored(sequence as u32)).await;
        sequence += 1;
        if subscription.status().last_sequence.is_some() {
            return sequence;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn live_events_reach_the_index_and_a_gap_without_replay_empties_it() {
    let (mut publisher, address) = bind::<PubSocket>().await;
    let index = Index::default();
    let subscription = Subscription::spawn(source(&address, None), Limits::default(), index.clone());
    let next = publish_until_heard(&mut publisher, &subscription, 0).await;
    publish(&mut publisher, next, stored(1_000_000)).await;
    let status = until(&subscription, |status| status.last_sequence == Some(next)).await;
    assert_eq!(status.owned_blocks, index.0.lock().len());
    assert!(status.owned_blocks >= 2);
    assert_eq!(status.block_size, Some(1));

    publish(&mut publisher, next + 5, stored(1_000_001)).await;
    let status = until(&subscription, |status| status.last_sequence == Some(next + 5)).await;
    assert_eq!(
        (
            status.stream.gaps,
            status.stream.lost_messages,
            status.owned_blocks
        ),
        (1, 4, 1)
    );
    // Other shapes of message are passed over.
    publisher
        .send(message(vec!["kv@".into(), "x".into()]))
        .await
        .unwrap();
    until(&subscription, |status| status.foreign_messages == 1).await;
    subscription.reset();
    until(&subscription, |status| status.stream.restarts == 1).await;
    assert!(index.0.lock().is_empty());
}

/// Answers one replay request with messages `0..count`, in the old or the new form.
async fn answer_replay(router: &mut RouterSocket, count: u64, with_topic: bool) -> u64 {
    let request = router.recv().await.unwrap().into_vec();
    let [identity, empty, from] = &request[..] else {
        panic!("{request:?}")
    };
    assert!(empty.is_empty());
    let from = u64::from_be_bytes(from[..].try_into().unwrap());
    let topic = || with_topic.then(|| Bytes::from("kv@pod@m"));
    let mut reply = async |sequence, payload, topic: Option<Bytes>| {
        let head = [identity.clone(), Bytes::new()];
        let frames = head.into_iter().chain(topic).chain([sequence, payload]).collect();
        router.send(message(frames)).await.unwrap();
    };
    for sequence in from..count {
        reply(numbered(sequence), stored(sequence as u32), topic()).await;
    }
    reply(
        Bytes::from_static(&[0xff; 8]),
        Bytes::new(),
        with_topic.then(Bytes::new),
    )
    .await;
    from
}

#[tokio::test]
async fn what_was_missed_is_replayed_in_both_forms() {
    for with_topic in [false, true] {
        let (mut publisher, events) = bind::<PubSocket>().await;
        let (mut router, replay) = bind::<RouterSocket>().await;
        let subscription = Subscription::spawn(
            source(&events, Some(&replay)),
            Limits::default(),
            Index::default(),
        );
        // On connecting everything that is still there is fetched.
        assert_eq!(answer_replay(&mut router, 7, with_topic).await, 0);
        let status = until(&subscription, |status| status.replays == 1).await;
        assert_eq!((status.last_sequence, status.owned_blocks), (Some(6), 7));
        // The subscription may not have arrived yet: live messages are lost until it has, and replayed.
        let mut next = 10;
        let from = loop {
            publish(&mut publisher, next, stored(next as u32)).await;
            let answer = answer_replay(&mut router, next, with_topic);
            match tokio::time::timeout(Duration::from_millis(50), answer).await {
                Ok(from) => break from,
                Err(_) => next += 1,
            }
        };
        assert_eq!(from, 7);
        let status = until(&subscription, |status| {
            status.last_sequence.is_some_and(|last| last >= next)
        })
        .await;
        assert_eq!((status.stream.gaps, status.failed_replays), (0, 0));
        assert_eq!(status.owned_blocks as u64, status.last_sequence.unwrap() + 1);
    }
}

#[tokio::test]
async fn a_restarted_engine_is_connected_to_again_and_its_old_blocks_are_dropped() {
    let (mut publisher, address) = bind::<PubSocket>().await;
    let index = Index::default();
    let subscription = Subscription::spawn(source(&address, None), Limits::default(), index.clone());
    let mut next = publish_until_heard(&mut publisher, &subscription, 0).await;
    for _ in 0..200 {
        publish(&mut publisher, next, stored(next as u32)).await;
        next += 1;
    }
    until(&subscription, |status| status.last_sequence == Some(next - 1)).await;
    publisher.close().await;
    until(&subscription, |status| {
        !status.connected && status.error.is_some()
    })
    .await;

    let mut restarted = PubSocket::new();
    while restarted.bind(&address.to_string()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(&subscription, |status| {
        status.connected && status.connections == 2
    })
    .await;
    let mut sequence = 0;
    while subscription.status().stream.restarts == 0 {
        assert!(sequence < next, "no restart seen");
        publish(&mut restarted, sequence, stored(1_000_000 + sequence as u32)).await;
        sequence += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = until(&subscription, |status| status.owned_blocks > 0).await;
    assert!(status.owned_blocks as u64 <= sequence && (index.0.lock().len() as u64) <= sequence);
}

/// Accepts one connection, sends `bytes`, and waits for the other side to hang up.
async fn hostile(bytes: Vec<u8>) -> (Address, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut sink = Vec::new();
        let _ = stream.read_to_end(&mut sink).await;
    });
    (address, task)
}

fn greeting_and_ready() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
    bytes[65] = (bytes.len() - 66) as u8;
    bytes
}

#[tokio::test]
async fn hostile_publishers_are_cut_off() {
    let huge = [
        greeting_and_ready(),
        b"\x02\x00\x00\x40\x00\x00\x00\x00\x00abc".to_vec(),
    ]
    .concat();
    let endless = [greeting_and_ready(), b"\x01\x01x".repeat(100)].concat();
    let web = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".to_vec();
    let refused = [&greeting_and_ready()[..64], b"\x04\x0b\x05ERROR\x04nope"].concat();
    for (bytes, error) in [
        (huge, "message over"),
        (endless, "message over"),
        (web, "does not speak ZMTP"),
        (refused, "refused by the peer: nope"),
    ] {
        let (address, task) = hostile(bytes).await;
        let subscription = Subscription::spawn(source(&address, None), Limits::default(), Index::default());
        let told = |status: &Status| status.error.as_ref().is_some_and(|text| text.contains(error));
        until(&subscription, told).await;
        task.await.unwrap();
    }
}

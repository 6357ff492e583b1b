//! Exact ownership: vLLM's KV events, from the wire to the prefix index.
//!
//! [`codec`] turns one message into events, [`tracker`] watches the sequence numbers and keeps an
//! [`ownership`] map from the engine's block hashes to our own [`chain`] hashes. All of these are pure;
//! [`subscriber`] holds the socket, [`feed`] all subscriptions of an endpoint. The engine's hash algorithm and seed never matter: our hashes are
//! computed from the token ids in the events.

pub mod address;
pub mod chain;
pub mod codec;
pub mod feed;
pub mod msgpack;
pub mod ownership;
pub mod sink;
pub mod subscriber;
pub mod tracker;
pub mod zmtp;

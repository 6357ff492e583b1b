//! The client side of ZMTP 3, the wire protocol of ZeroMQ: as much as a subscriber needs.
//!
//! The `zeromq` crate reserves whatever length a peer's frame header claims, so that one bad header from an
//! engine's port aborts the gateway, and it hides reconnects, after which the peer may be another process. Here
//! a message is bounded and a connection is a value. See <https://rfc.zeromq.org/spec/23/>.

use super::address::Address;
use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest message, all frames together: 2 million tokens at 4 bytes. A peer that sends more is cut off.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Most frames in one message; KV events have three, replays four.
const MAX_FRAMES: usize = 16;

/// Silence after which the peer's machine is asked whether it is still there.
const PROBE_AFTER: Duration = Duration::from_secs(30);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a connection could not be made or go on.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("closed by the peer")]
    Closed,
    #[error("the peer does not speak ZMTP 3 with the NULL mechanism")]
    NotZmtp,
    #[error("refused by the peer: {0}")]
    Refused(String),
    #[error("message over {MAX_MESSAGE_BYTES} bytes or {MAX_FRAMES} frames")]
    TooLong,
}

/// The kind of socket this end claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sub,
    Dealer,
}

/// The frames of one message.
pub type Message = SmallVec<[Bytes; 4]>;

/// One connection to a ZeroMQ socket.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: BytesMut,
    /// Frames of the message that is coming in.
    frames: Message,
    frames_bytes: usize,
}

enum Frame {
    Message { body: Bytes, more: bool },
    Command(Bytes),
}

impl Connection {
    /// Connects and shakes hands. Takes as long as the peer lets it: the caller bounds the time.
    pub async fn connect(address: &Address, kind: Kind) -> Result<Self, ZmtpError> {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        stream.set_nodelay(true)?;
        // An idle engine publishes nothing for hours: only the kernel can tell that its machine is gone.
        let probe = TcpKeepalive::new()
            .with_time(PROBE_AFTER)
            .with_interval(PROBE_AFTER / 3);
        SockRef::from(&stream).set_tcp_keepalive(&probe)?;
        let mut connection = Self {
            stream,
            received: BytesMut::new(),
            frames: Message::new(),
            frames_bytes: 0,
        };
        connection.greet().await?;
        connection.ready(kind).await?;
        Ok(connection)
    }

    /// Asks a publisher for the topics that start with `topic`.
    pub async fn subscribe(&mut self, topic: &str) -> Result<(), ZmtpError> {
        let mut frame = vec![1];
        frame.extend_from_slice(topic.as_bytes());
        self.send(&[&frame]).await
    }

    /// Sends one message.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), ZmtpError> {
        let mut bytes = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            let more = if index + 1 < frames.len() { MORE } else { 0 };
            put_frame(&mut bytes, more, frame);
        }
        Ok(self.stream.write_all(&bytes).await?)
    }

    /// The next message. Nothing is lost when the future is dropped before it completes.
    pub async fn receive(&mut self) -> Result<Message, ZmtpError> {
        loop {
            match self.frame().await? {
                Frame::Command(body) => self.answer(&body).await?,
                Frame::Message { body, more } => {
                    self.frames_bytes += body.len();
                    self.frames.push(body);
                    if self.frames.len() > MAX_FRAMES {
                        return Err(ZmtpError::TooLong);
                    }
                    if !more {
                        self.frames_bytes = 0;
                        return Ok(std::mem::take(&mut self.frames));
                    }
                }
            }
        }
    }

    async fn greet(&mut self) -> Result<(), ZmtpError> {
        let mut greeting = [0; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        self.stream.write_all(&greeting).await?;
        // A peer of another protocol is told apart by its first bytes: it may never send 64.
        self.fill(10).await?;
        if self.received[0] != 0xff || self.received[9] & 1 == 0 {
            return Err(ZmtpError::NotZmtp);
        }
        self.fill(64).await?;
        let theirs = self.received.split_to(64);
        if theirs[10] < 3 || &theirs[12..17] != b"NULL\0" {
            return Err(ZmtpError::NotZmtp);
        }
        Ok(())
    }

    async fn ready(&mut self, kind: Kind) -> Result<(), ZmtpError> {
        let ready: &[u8] = match kind {
            Kind::Sub => b"\x05READY\x0bSocket-Type\0\0\0\x03SUB",
            Kind::Dealer => b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0",
        };
        self.command(ready).await?;
        match self.frame().await? {
            Frame::Command(body) if body.starts_with(b"\x05READY") => Ok(()),
            Frame::Command(body) if body.starts_with(b"\x05ERROR") => Err(ZmtpError::Refused(
                String::from_utf8_lossy(body.get(7..).unwrap_or_default()).into_owned(),
            )),
            _ => Err(ZmtpError::NotZmtp),
        }
    }

    async fn answer(&mut self, command: &[u8]) -> Result<(), ZmtpError> {
        // PING (ZMTP 3.1): two bytes of time to live, then a context that the answer repeats.
        if let Some(context) = command.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) {
            let pong = [b"\x04PONG", &context[..context.len().min(16)]].concat();
            self.command(&pong).await?;
        }
        Ok(())
    }

    async fn command(&mut self, body: &[u8]) -> Result<(), ZmtpError> {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, COMMAND, body);
        Ok(self.stream.write_all(&bytes).await?)
    }

    async fn frame(&mut self) -> Result<Frame, ZmtpError> {
        self.fill(2).await?;
        let flags = self.received[0];
        let (header, len) = if flags & LONG == 0 {
            (2, u64::from(self.received[1]))
        } else {
            self.fill(9).await?;
            (9, (&self.received[1..9]).get_u64())
        };
        let room = (MAX_MESSAGE_BYTES - self.frames_bytes) as u64;
        if len > room {
            return Err(ZmtpError::TooLong);
        }
        self.fill(header + len as usize).await?;
        self.received.advance(header);
        let body = self.received.split_to(len as usize).freeze();
        Ok(match flags & COMMAND {
            0 => Frame::Message {
                body,
                more: flags & MORE != 0,
            },
            _ => Frame::Command(body),
        })
    }

    /// Reads until `len` bytes are there. Memory grows with what arrives, not with what is announced.
    async fn fill(&mut self, len: usize) -> Result<(), ZmtpError> {
        const CHUNK: usize = 64 << 10;
        while self.received.len() < len {
            self.received.reserve((len - self.received.len()).min(CHUNK));
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(ZmtpError::Closed);
            }
        }
        Ok(())
    }
}

fn put_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(len) => bytes.extend_from_slice(&[flags, len]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}

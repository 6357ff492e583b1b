//! What a scripted model server does with a request: a list of steps.

use super::upstream::Received;
use std::time::Duration;

/// One thing that a server does.
#[derive(Clone, Debug)]
pub enum Step {
    /// Writes these bytes at once.
    Write(Vec<u8>),
    /// Writes these bytes one by one, each in a packet of its own.
    Trickle(Vec<u8>),
    /// Does nothing for a while; the fault under test, never a means of synchronisation.
    Pause(Duration),
    /// Notes the time in `State::stamps`.
    Stamp,
    /// Reads nothing and writes nothing until the peer goes away.
    Hang,
    /// Waits until the test calls `Upstream::release`.
    Await,
    /// Closes the connection properly.
    Close,
    /// Resets the connection: the peer gets ECONNRESET.
    Reset,
}

/// What a server does with one request. The connection is kept for the next one unless a step ends it.
#[derive(Clone, Debug, Default)]
pub struct Script(pub Vec<Step>);

impl Script {
    /// Status, headers and a body with its length.
    pub fn answer(status: u16, headers: &str, body: &str) -> Self {
        Self::default().write(format!(
            "HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// 200 with JSON.
    pub fn json(body: &str) -> Self {
        Self::answer(200, "content-type: application/json\r\n", body)
    }

    /// 200 with the length of the body that arrived; the body itself is kept in the server's state.
    pub fn echo(request: &Received) -> Self {
        Self::json(&format!("{{\"received_bytes\":{}}}", request.body.len()))
    }

    /// The head of a response whose body has no length.
    pub fn chunked(content_type: &str) -> Self {
        Self::default().write(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        ))
    }

    /// A whole stream of `events` data events, `gap` apart, with the final `[DONE]`.
    pub fn stream(events: usize, gap: Duration) -> Self {
        let mut script = Self::chunked("text/event-stream");
        for n in 0..events {
            script = script.event(&format!("{{\"choices\":[{{\"index\":0,\"text\":\"t{n} \"}}]}}"));
            if !gap.is_zero() {
                script = script.pause(gap);
            }
        }
        script.event("[DONE]").last_chunk()
    }

    /// One server-sent event in a chunk.
    pub fn event(self, data: &str) -> Self {
        self.chunk(&format!("data: {data}\n\n"))
    }

    /// One chunk.
    pub fn chunk(self, data: &str) -> Self {
        self.write(format!("{:x}\r\n{data}\r\n", data.len()))
    }

    /// The end of a chunked body.
    pub fn last_chunk(self) -> Self {
        self.write("0\r\n\r\n")
    }

    pub fn write(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.then(Step::Write(bytes.into()))
    }

    pub fn pause(self, time: Duration) -> Self {
        self.then(Step::Pause(time))
    }

    pub fn then(mut self, step: Step) -> Self {
        self.0.push(step);
        self
    }

    /// The same bytes, one by one.
    pub fn trickled(self) -> Self {
        let steps = self.0.into_iter().map(|step| match step {
            Step::Write(bytes) => Step::Trickle(bytes),
            other => other,
        });
        Self(steps.collect())
    }

    pub fn hang() -> Self {
        Self::default().then(Step::Hang)
    }

    pub fn reset() -> Self {
        Self::default().then(Step::Reset)
    }

    pub fn close() -> Self {
        Self::default().then(Step::Close)
    }
}

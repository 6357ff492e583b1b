//! A server-sent-event body that follows its requests through the engine.

use super::{Delta, Events, Job, StreamFormat, stream_format};
use crate::sim::server::generation::Generation;
use hyper::body::{Body, Bytes, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// One event per token, as the engine's steps end. Dropping it aborts what has not ended.
pub(in crate::sim::server) struct SseBody {
    generation: Generation,
    job: Job,
    format: Box<dyn StreamFormat>,
    /// Per choice: tokens told so far, and whether its end was told.
    told: Vec<(u32, bool)>,
    opened: bool,
    closed: bool,
    ready: Events,
}

impl SseBody {
    pub(in crate::sim::server) fn new(generation: Generation, job: Job) -> Self {
        Self {
            format: stream_format(&job),
            told: vec![(0, false); generation.parts.len()],
            generation,
            job,
            opened: false,
            closed: false,
            ready: Events::new(),
        }
    }

    /// Turns what is new in the engine into events.
    fn collect(&mut self) {
        for index in 0..self.told.len() {
            let (from, end_told) = self.told[index];
            let (upto, ended) = self.generation.parts[index].visible();
            if end_told || (from == upto && ended.is_none()) {
                continue;
            }
            if !self.opened {
                self.opened = true;
                self.format.open(&self.job, &self.generation, &mut self.ready);
            }
            let last = upto.saturating_sub(1).max(from);
            for token in from..last {
                self.tell(Delta {
                    index,
                    from: token,
                    to: token + 1,
                    ended: None,
                });
            }
            self.tell(Delta {
                index,
                from: last,
                to: upto,
                ended,
            });
            self.told[index] = (upto, ended.is_some());
        }
        if !self.closed && self.told.iter().all(|&(_, ended)| ended) {
            self.closed = true;
            self.format.close(&self.job, &self.generation, &mut self.ready);
        }
    }

    fn tell(&mut self, delta: Delta) {
        self.format
            .delta(&self.job, &self.generation, &delta, &mut self.ready);
    }
}

impl Body for SseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ready.is_empty() && !self.closed {
            // Registered before looking, so that no change between the two is lost.
            self.generation.register(cx);
            self.collect();
        }
        match self.ready.pop_front() {
            Some(event) => Poll::Ready(Some(Ok(Frame::data(event)))),
            None if self.closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

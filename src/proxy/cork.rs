//! Sockets that wait for more before they send.
//!
//! Pingora writes a request's head and its body separately, and of a burst of stream events four at a time. Each
//! write becomes a segment of its own, and a segment costs more than all else that Pingora does for it: here, on the
//! network, and where it wakes its receiver. A corked socket (`TCP_CORK`) sends full segments only, until it is
//! uncorked. So sockets are corked while more is known to come, and never for longer than the connection's future
//! runs at a stretch: [`drive`](super::drive::drive) uncorks what is corked before it waits for anything.

use parking_lot::Mutex;
use socket2::SockRef;
use std::os::fd::{BorrowedFd, RawFd};

/// The sockets of one client connection that may be corked: its own, and that of the endpoint its request goes to.
pub struct Corks {
    client: RawFd,
    corked: Mutex<Corked>,
}

#[derive(Default)]
struct Corked {
    client: bool,
    endpoint: Option<RawFd>,
}

impl Corks {
    /// Of a connection that has the socket `client`; nothing is corked.
    pub fn new(client: RawFd) -> Self {
        Self {
            client,
            corked: Mutex::default(),
        }
    }

    /// Keeps what is written to the client until [`Self::uncork_client`], which must come before the socket is closed.
    pub fn cork_client(&self) {
        let mut corked = self.corked.lock();
        if !corked.client {
            corked.client = set(self.client, true);
        }
    }

    /// Sends what was kept for the client.
    pub fn uncork_client(&self) {
        if std::mem::take(&mut self.corked.lock().client) {
            set(self.client, false);
        }
    }

    /// Keeps what is written to `endpoint` until [`Self::uncork_endpoint`] or [`Self::forget_endpoint`], one of which
    /// must come before the socket is closed or somebody else's.
    pub fn cork_endpoint(&self, endpoint: RawFd) {
        let mut corked = self.corked.lock();
        if set(endpoint, true) {
            corked.endpoint = Some(endpoint);
        }
    }

    /// Sends what was kept for the endpoint.
    pub fn uncork_endpoint(&self) {
        if let Some(endpoint) = self.corked.lock().endpoint.take() {
            set(endpoint, false);
        }
    }

    /// The endpoint's socket has been closed.
    pub fn forget_endpoint(&self) {
        self.corked.lock().endpoint = None;
    }
}

/// Corks or uncorks; true when that was done. Where it cannot be done, nothing is kept back.
#[expect(
    unsafe_code,
    reason = "Pingora tells a connection's socket by its number only"
)]
fn set(socket: RawFd, corked: bool) -> bool {
    // SAFETY: the descriptor is open during the call. That of the client is owned by the session that the corking
    // session wraps, which uncorks when it is dropped. That of an endpoint comes from Pingora's hooks between connection
    // and request head, which hold it, and is given up when the connection's future waits, when the response begins
    // and when the exchange breaks: until then Pingora's exchange, which is part of that future, holds the connection.
    // Were either wrong, some other socket would send a part of its data earlier, or the call would fail.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    #[cfg(target_os = "linux")]
    return SockRef::from(&socket).set_tcp_cork(corked).is_ok();
    #[cfg(not(target_os = "linux"))]
    return {
        let _ = (SockRef::from(&socket), corked);
        false
    };
}

#[cfg(test)]
mod tests;

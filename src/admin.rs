//! The admin port: health, metrics, endpoints, decisions, explain and the dashboard.

mod explain;
pub mod guard;
mod page;
mod routes;
pub mod stats;
mod views;

use crate::lifecycle::Readiness;
use crate::proxy::Gateway;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Connections waiting to be accepted at most.
const BACKLOG: i32 = 1024;
/// Longest wait for a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the admin port shows and changes.
#[derive(Clone)]
pub struct Admin {
    pub gateway: Arc<Gateway>,
    pub readiness: Readiness,
    pub guard: guard::Guard,
    /// Largest body of an explain request.
    pub max_body_bytes: usize,
}

/// Binds the admin port. Several processes may hold it, so that an upgraded one can start beside the old one.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl Admin {
    /// Serves until the task is dropped: also while the gateway drains, so that its end can be watched.
    pub async fn serve(self, listener: TcpListener) {
        let admin = Arc::new(self);
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of file descriptors, most likely: others must close some first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let admin = admin.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| admin.clone().answer(request));
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service);
                // A client that breaks off is its own affair.
                let _ = connection.await;
            });
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        if let Some(why) = self.guard.refusal(request.headers()) {
            return Ok(routes::error(403, why));
        }
        let (head, body) = request.into_parts();
        let body = match Limited::new(body, self.max_body_bytes).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => return Ok(routes::error(413, "the body is too large or broke off")),
        };
        Ok(self.route(&head, &body).await)
    }
}

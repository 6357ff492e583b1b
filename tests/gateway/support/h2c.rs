//! An HTTP/2 client on a cleartext connection.

use super::DEADLINE;
use super::client::Response;
use bytes::Bytes;
use h2::client::SendRequest;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// One HTTP/2 connection.
pub struct H2c {
    send: SendRequest<Bytes>,
    authority: SocketAddr,
}

impl H2c {
    pub async fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to)
            .await
            .expect("the gateway accepts connections");
        stream.set_nodelay(true).expect("a TCP socket");
        let (send, connection) = h2::client::handshake(stream)
            .await
            .expect("the gateway speaks HTTP/2");
        tokio::spawn(connection);
        Self { send, authority: to }
    }

    /// Posts a body, with its length announced or not; the response's head has no status line.
    pub async fn post(&mut self, path: &str, body: Bytes, announce: bool) -> Result<Response, h2::Error> {
        let mut request = http::Request::post(format!("http://{}{path}", self.authority))
            .version(http::Version::HTTP_2)
            .header("content-type", "application/json");
        if announce {
            request = request.header("content-length", body.len());
        }
        let request = request.body(()).expect("a valid request");
        let exchange = async {
            let mut ready = self.send.clone().ready().await?;
            let (response, mut stream) = ready.send_request(request, false)?;
            send(&mut stream, body, None).await?;
            read(response.await?).await
        };
        tokio::time::timeout(DEADLINE, exchange)
            .await
            .expect("an answer in time")
    }

    /// Asks for a tunnel to `authority`.
    pub async fn connect_to(&mut self, authority: &str) -> Result<Response, h2::Error> {
        let request = http::Request::connect(authority)
            .version(http::Version::HTTP_2)
            .body(())
            .expect("a valid request");
        let exchange = async {
            let mut ready = self.send.clone().ready().await?;
            let (response, _stream) = ready.send_request(request, true)?;
            read(response.await?).await
        };
        tokio::time::timeout(DEADLINE, exchange)
            .await
            .expect("an answer in time")
    }

    /// Posts a body; the response's body, a piece per frame.
    pub async fn post_for_frames(&mut self, path: &str, body: Bytes) -> Result<Vec<Bytes>, h2::Error> {
        let request = http::Request::post(format!("http://{}{path}", self.authority));
        let request = request.version(http::Version::HTTP_2).body(());
        let exchange = async {
            let mut ready = self.send.clone().ready().await?;
            let (response, mut stream) = ready.send_request(request.expect("a valid request"), false)?;
            send(&mut stream, body, None).await?;
            frames(response.await?.body_mut()).await
        };
        tokio::time::timeout(DEADLINE, exchange)
            .await
            .expect("an answer in time")
    }

    /// Posts a body whose stream ends with a trailer.
    pub async fn post_with_trailer(&mut self, path: &str, body: Bytes) -> Result<Response, h2::Error> {
        let request = http::Request::post(format!("http://{}{path}", self.authority));
        let request = request.version(http::Version::HTTP_2).body(());
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("1"));
        let exchange = async {
            let mut ready = self.send.clone().ready().await?;
            let (response, mut stream) = ready.send_request(request.expect("a valid request"), false)?;
            send(&mut stream, body, Some(trailers)).await?;
            read(response.await?).await
        };
        tokio::time::timeout(DEADLINE, exchange)
            .await
            .expect("an answer in time")
    }
}

async fn send(
    stream: &mut h2::SendStream<Bytes>,
    mut body: Bytes,
    trailers: Option<http::HeaderMap>,
) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(capacity) = std::future::poll_fn(|context| stream.poll_capacity(context)).await else {
            return Ok(());
        };
        let piece = body.split_to(capacity?.min(body.len()));
        stream.send_data(piece, false)?;
    }
    match trailers {
        Some(trailers) => stream.send_trailers(trailers),
        None => stream.send_data(Bytes::new(), true),
    }
}

async fn read(response: http::Response<h2::RecvStream>) -> Result<Response, h2::Error> {
    let (head, mut stream) = response.into_parts();
    let mut text = String::from("\r\n");
    for (name, value) in &head.headers {
        text += &format!("{name}: {}\r\n", value.to_str().unwrap_or_default());
    }
    Ok(Response {
        status: head.status.as_u16(),
        head: text,
        body: frames(&mut stream).await?.concat(),
        complete: true,
    })
}

async fn frames(stream: &mut h2::RecvStream) -> Result<Vec<Bytes>, h2::Error> {
    let mut frames = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        let _ = stream.flow_control().release_capacity(data.len());
        frames.push(data);
    }
    Ok(frames)
}

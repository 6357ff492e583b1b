//! A client that writes whatever bytes it is told to.

use super::DEADLINE;
use super::upstream::find;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One HTTP/1 connection.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    host: SocketAddr,
}

/// One response as it arrived.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Status line and headers, byte for byte.
    pub head: String,
    /// The body without its framing, as far as it came.
    pub body: Vec<u8>,
    /// Whether the body ended as its framing says.
    pub complete: bool,
}

impl Response {
    /// The only value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let values = header_values(&self.head, name);
        assert!(values.len() < 2, "{name} is given twice: {}", self.head);
        values.first().copied()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Asserts that it is the gateway's own error, in the API's shape.
    #[track_caller]
    pub fn assert_error(&self, status: u16, reason: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("x-homing-error"), Some(reason), "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        let error = &self.json()["error"];
        assert_eq!(error["code"], status);
        assert!(
            error["message"].is_string() && error["type"].is_string(),
            "{error}"
        );
        if matches!(status, 429 | 503) {
            let after = self.header("retry-after").expect("retry-after");
            assert!(after.parse::<u32>().is_ok_and(|seconds| seconds > 0), "{after}");
        }
    }
}

/// All values of a header in a raw head.
pub fn header_values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let lines = head.split("\r\n").skip(1);
    lines
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
        .collect()
}

impl Client {
    pub async fn connect(to: SocketAddr) -> Self {
        Self::try_connect(to)
            .await
            .expect("the gateway accepts connections")
    }

    pub async fn try_connect(to: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(to).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self {
            stream,
            buffer: Vec::new(),
            host: to,
        })
    }

    /// The head of a POST up to its framing headers.
    pub fn post_head(&self, path: &str) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n",
            self.host
        )
    }

    /// Sends a POST with content-length.
    pub async fn post(&mut self, path: &str, body: impl AsRef<[u8]>) {
        self.post_with(path, "", body).await;
    }

    /// The same with further header lines, each ended by CRLF.
    pub async fn post_with(&mut self, path: &str, headers: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let head = format!(
            "{}{headers}content-length: {}\r\n\r\n",
            self.post_head(path),
            body.len()
        );
        self.send(&[head.as_bytes(), body].concat()).await;
    }

    /// Sends a POST in chunks of `size` bytes.
    pub async fn post_chunked(&mut self, path: &str, body: &[u8], size: usize) {
        let mut bytes = format!("{}transfer-encoding: chunked\r\n\r\n", self.post_head(path)).into_bytes();
        for chunk in body.chunks(size) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
            bytes.extend(chunk);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\n\r\n");
        self.send(&bytes).await;
    }

    /// Sends a request without a body.
    pub async fn request(&mut self, method: &str, path: &str, headers: &str) {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", self.host);
        self.send(head.as_bytes()).await;
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).await.expect("the gateway takes the request");
    }

    pub async fn try_send(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).await.ok()
    }

    /// Reads one response to its end or to the connection's.
    pub async fn response(&mut self) -> Response {
        self.try_response()
            .await
            .expect("a response before the end of the connection")
    }

    /// `None` when the connection ended without a head.
    pub async fn try_response(&mut self) -> Option<Response> {
        let mut response = self.head().await?;
        self.body(&mut response).await;
        Some(response)
    }

    /// Reads a response's head; its body follows by [`Client::body`].
    pub async fn head(&mut self) -> Option<Response> {
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.more().await?;
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).expect("an ASCII head");
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Response {
            status,
            head,
            body: Vec::new(),
            complete: false,
        })
    }

    /// Reads what is left of a response's body.
    pub async fn body(&mut self, response: &mut Response) {
        let bodyless = response.status < 200 || matches!(response.status, 204 | 304);
        let chunked = header_values(&response.head, "transfer-encoding").contains(&"chunked");
        let length = header_values(&response.head, "content-length")
            .first()
            .map(|l| l.parse().unwrap());
        let end = match (bodyless, chunked, length) {
            (true, ..) => Some(()),
            (_, true, _) => self.chunks(&mut response.body).await,
            (_, _, Some(length)) => self.exactly(length, &mut response.body).await,
            _ => {
                while self.more().await.is_some() {}
                response.body.append(&mut self.buffer);
                Some(())
            }
        };
        response.complete = end.is_some();
    }

    /// Reads until the response's body holds `text`.
    pub async fn body_until(&mut self, response: &mut Response, text: &str) {
        while find(&response.body, text.as_bytes()).is_none() {
            let chunk = self.chunk(&mut response.body).await;
            assert_eq!(chunk, Some(true), "the body ended before {text:?}");
        }
    }

    /// Waits until the gateway closes the connection; true when it did so without another byte.
    pub async fn closed(&mut self) -> bool {
        let mut silent = self.buffer.is_empty();
        while self.more().await.is_some() {
            silent = false;
        }
        silent
    }

    /// The connection as one half that reads answers and one that writes.
    pub fn split(self) -> (Self, TcpStream) {
        let stream = self.stream.into_std().expect("a socket");
        let other = stream.try_clone().expect("a second handle");
        let [stream, other] = [stream, other].map(|half| TcpStream::from_std(half).expect("not blocking"));
        (Self { stream, ..self }, other)
    }

    /// Breaks the connection off with a reset.
    pub fn reset(self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    async fn chunks(&mut self, body: &mut Vec<u8>) -> Option<()> {
        while self.chunk(body).await? {}
        Some(())
    }

    /// One chunk; false for the last one.
    async fn chunk(&mut self, body: &mut Vec<u8>) -> Option<bool> {
        let line_end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                break at;
            }
            self.more().await?;
        };
        let line = String::from_utf8(self.buffer.drain(..line_end + 2).collect()).ok()?;
        let size = usize::from_str_radix(line.trim_end().split(';').next()?, 16).ok()?;
        self.exactly(size, body).await?;
        self.exactly(2, &mut Vec::new()).await?;
        Some(size > 0)
    }

    async fn exactly(&mut self, length: usize, into: &mut Vec<u8>) -> Option<()> {
        let mut missing = length;
        loop {
            let here = missing.min(self.buffer.len());
            into.extend(self.buffer.drain(..here));
            missing -= here;
            if missing == 0 {
                return Some(());
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Option<()> {
        let read = tokio::time::timeout(DEADLINE, self.stream.read_buf(&mut self.buffer)).await;
        let read = read.unwrap_or_else(|_| panic!("the gateway sent nothing for {DEADLINE:?}"));
        read.is_ok_and(|n| n > 0).then_some(())
    }
}

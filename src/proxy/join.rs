//! Pieces of a response that come at once, as one.
//!
//! An HTTP/2 connection writes a frame for each piece of a stream, and each frame that is longer than 256 bytes by a
//! system call of its own, which is a segment of its own: for events that come faster than that, it is most of the work.

use bytes::{Bytes, BytesMut};
use pingora_core::protocols::http::HttpTask;

/// Pieces that are longer together are not worth copying.
const MOST_BYTES: usize = 8 * 1024;

/// Joins pieces of the body that follow each other, if they are short. Where one of them ends the response, the whole does.
pub fn joined(tasks: Vec<HttpTask>) -> Vec<HttpTask> {
    let (pieces, bytes) = tasks
        .iter()
        .filter_map(piece)
        .fold((0, 0), |(pieces, bytes), piece| (pieces + 1, bytes + piece.len()));
    if pieces < 2 || bytes > MOST_BYTES {
        return tasks;
    }
    let mut joined = Vec::with_capacity(tasks.len());
    let mut whole = BytesMut::with_capacity(bytes);
    for task in tasks {
        match task {
            HttpTask::Body(Some(piece), false) => whole.extend_from_slice(&piece),
            HttpTask::Body(Some(piece), true) => {
                whole.extend_from_slice(&piece);
                joined.push(HttpTask::Body(Some(whole.split().freeze()), true));
            }
            other => {
                joined.extend(rest(&mut whole));
                joined.push(other);
            }
        }
    }
    joined.extend(rest(&mut whole));
    joined
}

fn piece(task: &HttpTask) -> Option<&Bytes> {
    match task {
        HttpTask::Body(piece, _) => piece.as_ref(),
        _ => None,
    }
}

fn rest(whole: &mut BytesMut) -> Option<HttpTask> {
    (!whole.is_empty()).then(|| HttpTask::Body(Some(whole.split().freeze()), false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use pingora_http::ResponseHeader;

    fn body(text: &str, end: bool) -> HttpTask {
        HttpTask::Body(Some(Bytes::copy_from_slice(text.as_bytes())), end)
    }

    fn header() -> HttpTask {
        HttpTask::Header(
            Box::new(ResponseHeader::build(StatusCode::OK, None).unwrap()),
            false,
        )
    }

    /// Each task by a word, bodies by their text, with `!` where the response ends.
    fn shown(tasks: Vec<HttpTask>) -> Vec<String> {
        let word = |task: &HttpTask| match task {
            HttpTask::Header(..) => "header".to_owned(),
            HttpTask::Body(data, _) => {
                String::from_utf8_lossy(data.as_deref().unwrap_or_default()).into_owned()
            }
            HttpTask::Done => "done".to_owned(),
            _ => "failed".to_owned(),
        };
        let end = |task: &HttpTask| if task.is_end() { "!" } else { "" };
        let joined = joined(tasks);
        joined.iter().map(|task| word(task) + end(task)).collect()
    }

    #[test]
    fn short_pieces_that_follow_each_other_become_one() {
        assert_eq!(
            shown(vec![
                header(),
                body("a", false),
                body("b", false),
                body("c", true)
            ]),
            ["header", "abc!"]
        );
        assert_eq!(
            shown(vec![body("a", false), body("b", false), HttpTask::Done]),
            ["ab", "done!"]
        );
        let failed = HttpTask::Failed(pingora_core::Error::new(pingora_core::ErrorType::ReadError));
        assert_eq!(
            shown(vec![body("a", false), body("b", false), failed]),
            ["ab", "failed!"]
        );
    }

    #[test]
    fn a_lone_piece_and_long_ones_stay_as_they_are() {
        let piece = Bytes::from(vec![b'x'; MOST_BYTES]);
        let lone = joined(vec![HttpTask::Body(Some(piece.clone()), false), HttpTask::Done]);
        assert!(matches!(&lone[0], HttpTask::Body(Some(data), false) if data.as_ptr() == piece.as_ptr()));
        let long = joined(vec![HttpTask::Body(Some(piece.clone()), false), body("y", false)]);
        assert!(matches!(&long[0], HttpTask::Body(Some(data), false) if data.as_ptr() == piece.as_ptr()));
        assert_eq!(long.len(), 2);
    }
}

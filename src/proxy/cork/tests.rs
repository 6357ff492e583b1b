use super::Corks;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A socket that sends at once, and its other end, whose reads wait for less than the kernel's patience with corks.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    here.set_nodelay(true).unwrap();
    let there = listener.accept().unwrap().0;
    there.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    (here, there)
}

/// What arrives by one read; empty when nothing does.
fn arrived(there: &mut TcpStream) -> String {
    let mut buffer = [0; 64];
    match there.read(&mut buffer) {
        Ok(n) => String::from_utf8(buffer[..n].to_vec()).unwrap(),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => String::new(),
        Err(error) => panic!("{error}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn head_and_body_arrive_together() {
    let ((client, _), (mut endpoint, mut engine)) = (pair(), pair());
    let corks = Corks::new(client.as_raw_fd());
    corks.cork_endpoint(endpoint.as_raw_fd());
    endpoint.write_all(b"head ").unwrap();
    assert_eq!(arrived(&mut engine), "");
    endpoint.write_all(b"body").unwrap();
    corks.uncork_endpoint();
    assert_eq!(arrived(&mut engine), "head body");
    endpoint.write_all(b"next").unwrap();
    assert_eq!(arrived(&mut engine), "next", "it stayed corked");
}

#[cfg(target_os = "linux")]
#[test]
fn a_client_s_pieces_arrive_together_however_often_it_is_corked() {
    let (mut here, mut client) = pair();
    let corks = Corks::new(here.as_raw_fd());
    for piece in ["a", "b", "c"] {
        corks.cork_client();
        here.write_all(piece.as_bytes()).unwrap();
    }
    assert_eq!(arrived(&mut client), "");
    corks.uncork_client();
    assert_eq!(arrived(&mut client), "abc");
    corks.uncork_client();
    here.write_all(b"d").unwrap();
    assert_eq!(arrived(&mut client), "d", "it stayed corked");
}

#[test]
fn what_cannot_be_corked_is_sent_at_once() {
    let (mut here, mut there) = pair();
    let not_a_socket = std::fs::File::open("/dev/null").unwrap();
    let corks = Corks::new(not_a_socket.as_raw_fd());
    corks.cork_client();
    corks.cork_endpoint(not_a_socket.as_raw_fd());
    corks.uncork_client();
    corks.uncork_endpoint();
    here.write_all(b"x").unwrap();
    assert_eq!(arrived(&mut there), "x");
}

#[cfg(target_os = "linux")]
#[test]
fn a_forgotten_socket_is_left_alone() {
    let (mut endpoint, mut engine) = pair();
    let corks = Corks::new(endpoint.as_raw_fd());
    corks.cork_endpoint(endpoint.as_raw_fd());
    corks.forget_endpoint();
    endpoint.write_all(b"x").unwrap();
    corks.uncork_endpoint();
    assert_eq!(arrived(&mut engine), "");
}

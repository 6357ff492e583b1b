//! The process as a supervisor sees it: ready only when it serves, and a word before it ends.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command};
use std::time::Duration;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn next_message(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer).expect("a message within the limit");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn says_ready_when_the_listener_serves_and_stopping_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (data, admin, engine) = (free_port(), free_port(), free_port());
    let config = folder.path().join("homing.yaml");
    let text = format!(
        "listen: 127.0.0.1:{data}\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\n\
         pools:\n  - endpoints: [{{ name: a, url: \"http://127.0.0.1:{engine}\" }}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_homing"))
        .args(["run", "--config"])
        .arg(&config)
        .env("NOTIFY_SOCKET", folder.path().join("notify"))
        .spawn()
        .unwrap();
    let mut running = Running(child);
    assert_eq!(next_message(&socket).trim(), "READY=1");
    TcpStream::connect(("127.0.0.1", data)).expect("a ready gateway takes connections");
    let id = running.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(next_message(&socket).trim(), "STOPPING=1");
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

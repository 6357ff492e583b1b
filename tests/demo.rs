//! `homing demo` end to end: processes, sockets, both promises.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn the_demo_keeps_both_promises() {
    let output = Command::new(env!("CARGO_BIN_EXE_homing"))
        .arg("demo")
        .env("HTTP_PROXY", "http://127.0.0.1:9")
        .env("http_proxy", "http://127.0.0.1:9")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let faults = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{faults}");
    assert_eq!(
        text.lines().filter(|line| line.starts_with("HOLDS")).count(),
        4,
        "{text}"
    );
    // The experiment's own arithmetic: 5 repeats of one whole block of 128 tokens.
    assert!(text.contains("0 -> 640 (+640)"), "{text}");
}

/// A demo whose output is read as it comes.
struct Watched {
    demo: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Watched {
    fn start(args: &[&str]) -> Self {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_homing"))
            .arg("demo")
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(demo.stdout.take().unwrap()).lines();
        Self { demo, lines }
    }

    /// The address in the next line that has `word` and one.
    fn address(&mut self, word: &str) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        let line = lines
            .find(|line| line.contains(word) && line.contains("http://"))
            .unwrap();
        let address = line.split("http://").nth(1).unwrap();
        address[..address.find(['/', ' ']).unwrap()].to_owned()
    }

    fn signal(&self, name: &str) {
        let id = self.demo.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &id])
                .status()
                .unwrap()
                .success()
        );
    }
}

/// Waits until nobody listens there: who is killed need not be gone yet.
fn assert_gone(address: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "{address} still answers");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_demo_that_is_ended_takes_its_fleet_along() {
    // Side by side, which none may mind.
    let demos = ["INT", "TERM", "HUP"].map(|name| (name, Watched::start(&["--keep"])));
    for (name, mut watched) in demos {
        let addresses = ["gateway", "dashboard", "pod-a"].map(|word| watched.address(word));
        watched.signal(name);
        assert_eq!(watched.demo.wait().unwrap().code(), Some(0), "{name}");
        addresses.iter().for_each(|address| assert_gone(address));
    }
}

#[test]
fn a_demo_that_is_ended_early_takes_its_fleet_along() {
    let mut watched = Watched::start(&[]);
    let gateway = watched.address("Every request goes to");
    watched.signal("TERM");
    assert_eq!(watched.demo.wait().unwrap().code(), Some(1));
    assert_gone(&gateway);
}

#[test]
fn a_reader_that_leaves_ends_the_demo_and_its_fleet() {
    let mut watched = Watched::start(&[]);
    let gateway = watched.address("Every request goes to");
    drop(watched.lines);
    assert_eq!(watched.demo.wait().unwrap().code(), Some(0));
    assert_gone(&gateway);
}

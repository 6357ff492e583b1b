//! `homing demo` end to end: processes, sockets, both promises.

use std::process::Command;

#[test]
fn the_demo_keeps_both_promises() {
    let output = Command::new(env!("CARGO_BIN_EXE_homing"))
        .arg("demo")
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

//! The command line as a user meets it: output and exit codes of the real binary.

use std::path::PathBuf;
use std::process::{Command, Output};

fn homing(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("HOMING_CONFIG");
    command.output().expect("the binary starts")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ended by itself")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

const BROKEN: &str = "tests/fixtures/config/broken/typo-keys.yaml";
const WARNED: &str = "tests/fixtures/config/broken/stale-metrics.yaml";

#[test]
fn help_and_version_exit_0_and_wrong_usage_64() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["check", "--help"],
        &["help", "import"],
    ] {
        assert_eq!(code(&homing(args)), 0, "{args:?}");
    }
    for args in [
        &[][..],
        &["nonsense"],
        &["check"],
        &["check", "--config"],
        &["check", "--confg", "x"],
        &["completions", "dos"],
    ] {
        let output = homing(args);
        assert_eq!(code(&output), 64, "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}: errors belong to stderr");
    }
}

#[test]
fn check_tells_what_is_fine() {
    let output = homing(&["check", "--config", "conf/homing.yaml"]);
    assert_eq!(code(&output), 0);
    assert_eq!(stdout(&output), "conf/homing.yaml: fine: 1 pool, 3 endpoints\n");
}

#[test]
fn check_exits_78_with_every_fault() {
    let output = homing(&["check", "--config", BROKEN]);
    assert_eq!(code(&output), 78);
    let told = stdout(&output);
    assert!(
        told.contains("--> tests/fixtures/config/broken/typo-keys.yaml:7:7\n"),
        "{told}"
    );
    assert!(told.ends_with("typo-keys.yaml: 5 errors, 0 warnings\n"), "{told}");
    assert_eq!(code(&homing(&["check", "--config", "no/such/file.yaml"])), 78);
}

#[test]
fn run_refuses_a_faulty_file_before_it_listens() {
    let output = homing(&["run", "--config", BROKEN]);
    assert_eq!(code(&output), 78);
    assert!(
        stderr(&output).ends_with("typo-keys.yaml: 5 errors, 0 warnings\n"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn check_speaks_json() {
    let output = homing(&["check", "--format", "json", "--config", BROKEN]);
    assert_eq!(code(&output), 78);
    let told: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(told["errors"], 5);
    let first = &told["diagnostics"][0];
    assert_eq!(first["path"], "lisen");
    assert_eq!(
        (&first["line"], &first["column"], &first["width"]),
        (&1.into(), &1.into(), &5.into())
    );
    assert_eq!(first["fix"], "did you mean `listen`?");
}

#[test]
fn warnings_fail_only_when_denied() {
    assert_eq!(code(&homing(&["check", "--config", WARNED])), 0);
    assert_eq!(
        code(&homing(&["check", "--deny-warnings", "--config", WARNED])),
        78
    );
}

#[test]
fn check_prints_the_effective_configuration() {
    let output = homing(&["check", "--print", "--config", "conf/homing.yaml"]);
    assert_eq!(code(&output), 0);
    let text = stdout(&output);
    assert!(
        text.starts_with("listen: 127.0.0.1:8080\nadmin:\n  listen: 127.0.0.1:9901\n"),
        "{text}"
    );
    assert!(text.contains("      interval: 50ms  # default\n"), "{text}");
}

#[test]
fn generated_texts_come_from_the_definition() {
    let schema: serde_json::Value = serde_json::from_str(&stdout(&homing(&["schema"]))).expect("JSON");
    assert_eq!(schema["title"], "Config");
    assert!(stdout(&homing(&["completions", "bash"])).contains("--deny-warnings"));
    let man = stdout(&homing(&["man"]));
    assert!(
        man.starts_with(".ie") || man.contains(".TH homing"),
        "{}",
        &man[..200]
    );
    assert!(
        man.contains("HOMING CHECK") && man.contains("deny\\-warnings"),
        "{man}"
    );
}

#[test]
fn import_writes_a_file_that_checks() {
    let folder = tempfile::tempdir().expect("a folder");
    let target: PathBuf = folder.path().join("homing.yaml");
    let output = homing(&["import", "tests/fixtures/config/llm-d/optimized-baseline.yaml"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("note: `single-profile-handler` is not needed"),
        "{}",
        stderr(&output)
    );
    std::fs::write(&target, &output.stdout).expect("a writable file");
    let target = target.to_string_lossy().into_owned();
    assert_eq!(
        code(&homing(&["check", "--deny-warnings", "--config", &target])),
        0
    );
    let wrong = homing(&["import", "conf/homing.yaml"]);
    assert_eq!(code(&wrong), 1);
    assert!(
        stderr(&wrong).starts_with("homing: conf/homing.yaml: kind is"),
        "{}",
        stderr(&wrong)
    );
}

//! What the documentation names exists: commands and their options, files, headings; and the files under deploy/ say what the
//! binary does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

mod blocks;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()))
}

/// The pages held to this: the README, what stands beside it, and docs/.
fn pages() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("docs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<_> = names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"))
        .collect();
    pages.extend(["README.md", "ARCHITECTURE.md", "loadtest/README.md"].map(str::to_owned));
    pages.sort();
    pages
}

fn homing(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_homing"))
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Every `homing ...` in code, blocks and spans, as words.
fn commands(page: &str) -> BTreeSet<Vec<String>> {
    let code = page.split('`').skip(1).step_by(2).flat_map(str::lines);
    let block_lines = page.lines().filter(|line| line.starts_with("homing "));
    code.chain(block_lines)
        .filter_map(|line| line.trim().strip_prefix("homing "))
        .map(|rest| rest.split_whitespace().map(str::to_owned).collect())
        .collect()
}

#[test]
fn commands_and_their_options_exist() {
    let mut seen = 0;
    for page in pages() {
        for words in commands(&read(&page)) {
            let (known, help) = homing(&[&words[0], "--help"]);
            assert!(known, "{page}: homing {}", words.join(" "));
            for option in words.iter().filter(|word| word.starts_with("--")) {
                assert!(
                    help.contains(option.as_str()),
                    "{page}: homing {}",
                    words.join(" ")
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 8, "only {seen} commands found");
}

#[test]
fn scripts_that_are_named_exist() {
    for page in pages() {
        let text = read(&page);
        let words = text.split(|c: char| c.is_whitespace() || c == '`');
        for script in words.filter(|word| word.starts_with("scripts/")) {
            assert!(root().join(script).exists(), "{page} names {script}");
        }
    }
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let text = read(&page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() {
                root().join(&page)
            } else {
                root().join(&page).with_file_name(file)
            };
            assert!(path.exists(), "{page} links to {target}");
            if !anchor.is_empty() {
                assert!(anchors(&read(path)).contains(anchor), "{page} links to {target}");
            }
        }
    }
}

#[test]
fn runbooks_of_alerts_exist() {
    let alerts = read("deploy/prometheus/alerts.yaml");
    let known = anchors(&read("docs/operations.md"));
    let named: Vec<_> = alerts
        .split("docs/operations.md#")
        .skip(1)
        .map(|rest| rest.lines().next().unwrap_or(""))
        .collect();
    assert!(!named.is_empty());
    for anchor in named {
        assert!(known.contains(anchor), "no heading for #{anchor}");
    }
}

/// Anchors of a page's headings, as code hosts make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        kept.chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn the_kubernetes_configuration_passes_the_check() {
    let map = read("deploy/kubernetes/configmap.yaml");
    let (_, embedded) = map.split_once("homing.yaml: |\n").unwrap();
    let config: String = embedded
        .lines()
        .map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n")
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("homing.yaml");
    std::fs::write(&file, config).unwrap();
    let (fine, said) = homing(&["check", "--config", file.to_str().unwrap()]);
    assert!(fine, "{said}");
}

#[test]
fn resources_of_the_kustomization_exist() {
    let list = read("deploy/kubernetes/kustomization.yaml");
    let named: Vec<_> = list
        .lines()
        .filter_map(|line| line.trim_start_matches("# ").trim().strip_prefix("- "))
        .collect();
    assert_eq!(named.len(), 5);
    for name in named {
        assert!(root().join("deploy/kubernetes").join(name).exists(), "{name}");
    }
}

#[test]
fn the_unit_checks_before_it_starts_and_does_not_restart_what_cannot_work() {
    let unit = read("deploy/systemd/homing.service");
    for line in [
        "Type=notify",
        "ExecStartPre=/usr/bin/homing check --config /etc/homing/homing.yaml",
        "ExecStart=/usr/bin/homing run --config /etc/homing/homing.yaml",
        "RestartPreventExitStatus=64 78",
    ] {
        assert!(unit.lines().any(|of| of == line), "{line}");
    }
    let wrong = Command::new(env!("CARGO_BIN_EXE_homing"))
        .arg("--no-such-option")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(64));
    let faulty = Command::new(env!("CARGO_BIN_EXE_homing"))
        .args(["run", "--config"])
        .arg(root().join("Cargo.toml"))
        .output()
        .unwrap();
    assert_eq!(faulty.status.code(), Some(78));
}

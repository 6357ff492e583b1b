//! Blocks of code on the pages: command lines are parsed as the binary parses them, configurations are validated.

use super::{pages, read, root};
use homing::config::{Config, Inspection};
use std::path::Path;

/// A fenced block of a page.
struct Block {
    /// Page and line, for messages.
    place: String,
    language: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let text = read(page);
    let mut lines = text.lines().enumerate();
    let mut found = Vec::new();
    while let Some((at, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            continue;
        };
        let inside = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| *line != "```");
        found.push(Block {
            place: format!("{page}:{}", at + 1),
            language: language.to_owned(),
            text: inside.map(|line| line.to_owned() + "\n").collect(),
        });
    }
    found
}

fn blocks_in(language: &str) -> Vec<Block> {
    let mut all: Vec<_> = pages().iter().flat_map(|page| blocks(page)).collect();
    all.retain(|block| block.language == language);
    all
}

/// Lines of a shell block, those that end in a backslash joined with the next.
fn shell_lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    joined.lines().map(|line| line.trim().to_owned()).collect()
}

/// The words of `homing ...` in a shell line, without what the shell does with them.
fn homing_words(line: &str) -> Option<Vec<String>> {
    let (_, command) = line
        .split_once("homing ")
        .filter(|(before, _)| before.is_empty() || before.ends_with("target/release/"))
        .or_else(|| line.split_once("cargo run -- "))?;
    let end = [" #", " >", " |", " &"]
        .iter()
        .filter_map(|of| command.find(of))
        .min();
    let command = command[..end.unwrap_or(command.len())].replace(['[', ']'], "");
    let word = |word: &str| match word {
        // Placeholders of what the parser takes for more than text.
        "NAME" => "agentic".to_owned(),
        "fraction=F" => "fraction=0.8".to_owned(),
        _ => word.to_owned(),
    };
    Some(command.split_whitespace().map(word).collect())
}

#[test]
fn command_lines_are_parsed() {
    let mut seen = 0;
    for block in blocks_in("sh") {
        for words in shell_lines(&block.text)
            .iter()
            .filter_map(|line| homing_words(line))
        {
            let all = ["homing".to_owned()].into_iter().chain(words);
            if let Err(fault) = homing::cli::definition().try_get_matches_from(all) {
                panic!("{}: {fault}", block.place);
            }
            seen += 1;
        }
    }
    assert!(seen >= 15, "only {seen} command lines found");
}

#[test]
fn scripts_and_targets_of_command_lines_exist() {
    let makefile = read("Makefile");
    for block in blocks_in("sh") {
        for line in shell_lines(&block.text) {
            let mut words = line.split_whitespace();
            let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            if ["scripts/", "loadtest/", "tests/", "bench-core/"]
                .iter()
                .any(|at| first.starts_with(at))
            {
                assert!(root().join(first).is_file(), "{}: {first}", block.place);
            }
            if first == "make" {
                assert!(
                    makefile.contains(&format!("\n{second}:")),
                    "{}: {line}",
                    block.place
                );
            }
        }
    }
}

/// Certificates and a key, where the pages have them under /etc/homing.
fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for name in ["tls.crt", "endpoints-ca.crt", "ca.crt", "client.crt"] {
        std::fs::write(folder.path().join(name), made.cert.pem()).unwrap();
    }
    for name in ["tls.key", "client.key"] {
        std::fs::write(folder.path().join(name), made.signing_key.serialize_pem()).unwrap();
    }
    folder
}

/// A block as a whole file: with a pool where it has none, and with files that are here.
fn completed(block: &str, folder: &Path) -> String {
    let of_repository = |path: &str| root().join(path).display().to_string();
    let folder = format!("{}/", folder.display());
    let endpoints = of_repository("conf/examples/endpoints/endpoints.yaml");
    let mut text = block.to_owned();
    for (shown, here) in [
        ("/etc/homing/tls/", &folder),
        ("/etc/homing/", &folder),
        ("/var/lib/homing/", &folder),
        ("/var/log/homing/", &folder),
        ("/models/qwen", &of_repository("tests/fixtures/tiny-model")),
        (
            "file: conf/examples/endpoints/endpoints.yaml",
            &format!("file: {endpoints}"),
        ),
        ("file: endpoints.yaml", &format!("file: {endpoints}")),
    ] {
        text = text.replace(shown, here);
    }
    if !text.lines().any(|line| line.starts_with("pools:")) {
        text.push_str("pools: [{ endpoints: [{ url: \"http://127.0.0.1:8001\" }] }]\n");
    }
    text
}

#[test]
fn configurations_are_without_fault() {
    let folder = certificates();
    let mut seen = 0;
    for block in blocks_in("yaml") {
        if block.text.contains("scrape_configs:") {
            continue; // Prometheus' own
        }
        let text = completed(&block.text, folder.path());
        let inspection = Inspection::of(&text, &block.place, &|_| None);
        assert!(
            inspection.diagnostics.is_empty(),
            "{}\n{text}",
            inspection.diagnostics
        );
        seen += 1;
    }
    assert!(seen >= 12, "only {seen} configurations found");
}

/// A block that begins with `# conf/FILE` shows that file.
#[test]
fn files_that_are_shown_are_the_files() {
    let mut seen = 0;
    for block in blocks_in("yaml") {
        let Some(name) = block
            .text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("# conf/"))
        else {
            continue;
        };
        let path = root().join("conf").join(name);
        let file = Config::load(&path).unwrap();
        let shown = Config::parse(&block.text, &block.place).unwrap();
        assert_eq!(format!("{shown:?}"), format!("{file:?}"), "{}", block.place);
        seen += 1;
    }
    assert!(seen >= 1);
}

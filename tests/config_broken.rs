//! Broken configurations and what is said about them: each `broken/NAME.yaml` has its `NAME.txt`.
//! `HOMING_BLESS=1` writes the texts anew; read the difference before committing it.

use homing::config::Inspection;
use std::fs;
use std::path::PathBuf;

fn environment(name: &str) -> Option<String> {
    match name {
        "POD_HOST" => Some("10.0.0.7".to_owned()),
        "WORD" => Some("several".to_owned()),
        _ => None,
    }
}

fn fixtures() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config/broken");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the fixtures are there")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_broken_file_is_explained() {
    let files = fixtures();
    assert!(files.len() >= 25, "only {} fixtures", files.len());
    let mut differing = Vec::new();
    for file in files {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).expect("a readable fixture");
        let inspection = Inspection::of(&text, &name, &environment);
        assert!(!inspection.diagnostics.is_empty(), "{name}: no fault found");
        assert_eq!(
            inspection.config.is_none(),
            inspection.diagnostics.has_errors(),
            "{name}: usable exactly when nothing is an error"
        );
        let told = inspection.diagnostics.to_string();
        let golden = file.with_extension("txt");
        if std::env::var_os("HOMING_BLESS").is_some() {
            fs::write(&golden, &told).expect("a writable fixture");
        } else if fs::read_to_string(&golden).unwrap_or_default() != told {
            differing.push(format!("--- {name} now says:\n{told}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// A fault marked `# <-- here` must be told on that very line, whatever the golden text says.
#[test]
fn faults_are_told_on_the_marked_lines() {
    let mut differing = Vec::new();
    for file in fixtures() {
        let text = fs::read_to_string(&file).expect("a readable fixture");
        let marked: Vec<usize> = text
            .lines()
            .enumerate()
            .filter(|(_, l)| l.contains("# <-- here"))
            .map(|(i, _)| i + 1)
            .collect();
        let found = Inspection::of(&text, "x", &environment).diagnostics;
        let mut lines: Vec<usize> = found
            .items()
            .iter()
            .filter_map(|d| d.place)
            .map(|p| p.line)
            .collect();
        lines.dedup();
        if lines != marked {
            differing.push(format!(
                "{}: marked {marked:?}, told {lines:?}:\n{found}",
                file.display()
            ));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

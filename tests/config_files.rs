//! The configuration files of the repository: each is read without a fault, and what is generated is fresh.

use homing::config::{self, Config, Inspection};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

fn conf(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf").join(name)
}

/// Every YAML file under conf/.
fn files() -> Vec<PathBuf> {
    let folders = [conf(""), conf("examples")];
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("the folder is there"));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable entry").path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "yaml"));
    files.sort();
    files
}

fn inspect(path: &Path) -> (String, Inspection) {
    let text = fs::read_to_string(path).expect("a readable file");
    let tls = |name: &str| (name == "HOMING_TLS").then(|| certificates().display().to_string());
    let inspection = Inspection::of(&text, &path.display().to_string(), &tls);
    (text, inspection)
}

/// A folder with the certificates and keys that the files name.
fn certificates() -> &'static Path {
    static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).expect("written");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        write("tls.crt", made.cert.pem());
        write("tls.key", made.signing_key.serialize_pem());
        write("endpoints-ca.crt", made.cert.pem());
        folder
    });
    FOLDER.path()
}

#[test]
fn every_file_is_without_fault_and_makes_a_policy() {
    let files = files();
    assert!(files.len() >= 5, "{files:?}");
    for path in files {
        let (_, inspection) = inspect(&path);
        assert!(inspection.diagnostics.is_empty(), "{}", inspection.diagnostics);
        for pool in inspection.config.expect("no fault, so a configuration").pools {
            assert!(
                pool.scheduling.policy().is_ok(),
                "{}: {}",
                path.display(),
                pool.name
            );
        }
    }
}

/// Editors find the schema by the first line, relative to the file.
#[test]
fn every_file_names_the_schema() {
    for path in files() {
        let text = fs::read_to_string(&path).expect("a readable file");
        let line = text.lines().next().unwrap_or_default();
        let schema = line
            .strip_prefix("# yaml-language-server: $schema=")
            .unwrap_or_else(|| panic!("{}: {line}", path.display()));
        let target = path.parent().expect("a folder").join(schema);
        assert!(
            target.is_file(),
            "{}: {} is not there",
            path.display(),
            target.display()
        );
    }
}

#[test]
fn small_file_stays_small() {
    let text = fs::read_to_string(conf("homing.yaml")).expect("a readable file");
    let keys = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .count();
    assert!(keys <= 10, "{keys} lines");
}

/// What the effective configuration prints is the same configuration.
#[test]
fn effective_configuration_of_every_file_reads_back() {
    for path in files() {
        let (_, inspection) = inspect(&path);
        let text = inspection.effective().expect("no fault");
        let mut again = Config::parse(&text, "effective").unwrap_or_else(|faults| panic!("{faults}\n{text}"));
        let mut config = inspection.config.expect("no fault");
        // The default preset is spelled out.
        for pool in config
            .pools
            .iter_mut()
            .chain(&mut again.pools)
            .filter(|p| p.scheduling.plugins.is_empty())
        {
            pool.scheduling
                .preset
                .get_or_insert(config::schema::DEFAULT_PRESET);
        }
        assert_eq!(again, config, "{}:\n{text}", path.display());
    }
}

/// A generated file is what the code generates; `HOMING_BLESS=1` writes it anew.
fn assert_fresh(name: &str, generated: &str) {
    if std::env::var_os("HOMING_BLESS").is_some() {
        fs::write(conf(name), generated).expect("a writable file");
    }
    let committed = fs::read_to_string(conf(name)).unwrap_or_default();
    assert!(
        committed == generated,
        "conf/{name} is stale: run `HOMING_BLESS=1 cargo test --test config_files`"
    );
}

#[test]
fn schema_is_fresh() {
    assert_fresh("homing.schema.json", &format!("{:#}\n", config::json_schema()));
}

#[test]
fn reference_is_fresh() {
    assert_fresh("homing.reference.yaml", &config::reference());
}

/// The YAML blocks of the documentation are whole files and without fault.
#[test]
fn documentation_shows_files_that_work() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = fs::read_to_string(path).expect("a readable file");
    let blocks: Vec<&str> = text
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(blocks.len() >= 4, "{} blocks", blocks.len());
    for block in blocks {
        let block = block.replace("/etc/homing/tls", &certificates().display().to_string());
        let found = Inspection::of(&block, "docs/configuration.md", &|_| None).diagnostics;
        assert!(found.is_empty(), "{found}");
    }
}

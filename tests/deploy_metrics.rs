//! What dashboards, alerts and documentation say of the metrics is what the gateway exposes.
//! `HOMING_BLESS=1` writes docs/metrics.md anew.

use homing::discovery::Origin;
use homing::overload::working_set::Held;
use homing::pool::State;
use homing::proxy::error::Reason;
use homing::scheduling::DecisionKind;
use homing::telemetry::Metrics;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|fault| panic!("{path}: {fault}"))
}

/// A metric family as the exposition shows it.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Every family with one series each.
fn families() -> BTreeMap<String, Family> {
    let metrics = Metrics::new().unwrap();
    let endpoint = metrics.endpoint("p", "e");
    endpoint.count_request(200, "chat");
    endpoint.count_decision(DecisionKind::Warm);
    endpoint.count_retry("connect-failed");
    endpoint.count_scrape("success");
    endpoint.show_state(State::Ready);
    endpoint.kv.count_prediction(1, 1);
    endpoint.model("m").unwrap();
    metrics.count_discovery("p", Origin::Dns, true);
    endpoint.cost.compare(1.0, 1.0);
    metrics.decision_duration("p");
    metrics.queue("p");
    let gate = metrics.working_set("p");
    gate.show_endpoint("e", &Held::default(), Some(1));
    metrics.count_tokenization("p", "success");
    metrics.count_error(Reason::NoEndpoint);
    metrics.config_reloads.with_label_values(&["success"]).inc();
    let text = String::from_utf8(metrics.encode().unwrap()).unwrap();
    let mut families = BTreeMap::<String, Family>::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            current = name.to_owned();
            families.entry(current.clone()).or_default().help = help.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            families.get_mut(&current).unwrap().kind = rest.split(' ').nth(1).unwrap().to_owned();
        } else if let Some((_, labels)) = line.split_once('{') {
            let names = labels
                .split(',')
                .filter_map(|pair| Some(pair.split_once("=\"")?.0.to_owned()));
            families
                .get_mut(&current)
                .unwrap()
                .labels
                .extend(names.filter(|name| name != "le"));
        }
    }
    families
}

/// Names of all families as the source lists them.
fn named() -> BTreeSet<String> {
    let source = read("src/telemetry/names.rs");
    let names = source.split('"').filter(|text| text.starts_with("homing_"));
    names.map(str::to_owned).collect()
}

/// Names of our metrics in a text, without the suffixes of a histogram's series.
fn mentioned(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text
        .split(|c| !is_part(c))
        .filter(|word| word.strip_prefix("homing_").is_some_and(|rest| !rest.is_empty()));
    let base = |word: &str| {
        let series = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| word.strip_suffix(suffix));
        series.unwrap_or(word).to_owned()
    };
    words.map(base).collect()
}

#[test]
fn every_named_family_is_exposed() {
    assert_eq!(families().into_keys().collect::<BTreeSet<_>>(), named());
}

#[test]
fn dashboards_and_alerts_name_only_metrics_that_exist() {
    let known = named();
    for path in [
        "deploy/grafana/homing.json",
        "deploy/prometheus/alerts.yaml",
        "docs/operations.md",
    ] {
        let names = mentioned(&read(path));
        assert!(!names.is_empty(), "{path} names no metric");
        let unknown: Vec<_> = names.difference(&known).collect();
        assert!(unknown.is_empty(), "{path} names {unknown:?}");
    }
}

#[test]
fn the_grafana_dashboard_shows_every_family_but_the_build() {
    let shown = mentioned(&read("deploy/grafana/homing.json"));
    let missing: Vec<_> = named().difference(&shown).cloned().collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn the_reference_is_what_the_code_exposes() {
    let text = reference(&families());
    let path = file("docs/metrics.md");
    if std::env::var_os("HOMING_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/metrics.md is stale: run `HOMING_BLESS=1 cargo test --test deploy_metrics`"
    );
}

fn reference(families: &BTreeMap<String, Family>) -> String {
    let mut text = read("tests/fixtures/metrics_head.md");
    text += "\n| name | type | labels | what |\n|---|---|---|---|\n";
    for (name, family) in families {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        writeln!(
            text,
            "| `{name}` | {} | {labels} | {} |",
            family.kind, family.help
        )
        .unwrap();
    }
    text += &read("tests/fixtures/metrics_tail.md");
    text
}

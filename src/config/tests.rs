use super::schema::{Auto, Choice, DEFAULT_PRESET, PluginKind, Preset};
use super::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::time::Duration;

const SMALL: &str = "
pools:
  - endpoints:
      - url: http://127.0.0.1:8001
      - { name: pod-b, url: 'http://127.0.0.1:8002', max_inflight: 8 }
    scheduling:
      plugins:
        - { type: prefix-cache-scorer, weight: 3 }
        - { type: token-load-scorer, parameters: { threshold_tokens: 1000 } }
        - { type: max-score-picker }
";

#[test]
fn small_file_takes_defaults_for_the_rest() {
    let config = Config::parse(SMALL, "small.yaml").unwrap();
    assert_eq!(config.listen.0, ["127.0.0.1:8080".parse().unwrap()]);
    assert_eq!(config.admin.listen, "127.0.0.1:9901".parse().unwrap());
    assert_eq!(*config.limits.request_body, 33_554_432);
    assert_eq!(*config.limits.request_headers, 65_536);
    let pool = &config.pools[0];
    assert_eq!(pool.name, "default");
    assert_eq!(pool.endpoints[0].name, "127.0.0.1:8001");
    assert_eq!(pool.endpoints[1].name, "pod-b");
    assert_eq!(*pool.metrics.interval, Duration::from_millis(50));
    assert_eq!(*pool.timeouts.first_byte, Duration::from_secs(600));
    assert_eq!(pool.prefix_cache.block_size, Auto::Auto);
    assert_eq!(pool.retries, 2);
    let Choice::Plugins(plugins) = pool.scheduling.choice() else {
        panic!("plugins are given")
    };
    assert_eq!(plugins[0].kind, PluginKind::PrefixCacheScorer);
    assert_eq!(plugins[0].weight, 3.0);
    assert!(matches!(&plugins[1].kind, PluginKind::TokenLoadScorer(p) if p.threshold_tokens == 1000));
}

#[test]
fn preset_defaults_and_words_agree_with_serde() {
    let config = Config::parse("pools: [{ endpoints: [{ url: 'http://a:1' }] }]", "x").unwrap();
    assert_eq!(
        config.pools[0].scheduling.choice(),
        Choice::Preset(DEFAULT_PRESET)
    );
    for preset in [
        Preset::LeastCost,
        Preset::OptimizedBaseline,
        Preset::Sticky,
        Preset::RoundRobin,
    ] {
        assert_eq!(serde_json::to_value(preset).unwrap(), preset.as_str());
    }
    for plugin in schema::PluginType::ALL {
        assert_eq!(serde_json::to_value(plugin).unwrap(), plugin.as_str());
    }
}

#[test]
fn effective_configuration_marks_defaults_and_reads_back() {
    let inspection = Inspection::of(SMALL, "small.yaml", &|_| None);
    let text = inspection.effective().unwrap();
    assert!(text.starts_with("listen: 127.0.0.1:8080  # default\n"), "{text}");
    assert!(
        text.contains("\n      - name: 127.0.0.1:8001  # default\n        url: http://127.0.0.1:8001\n"),
        "{text}"
    );
    assert!(text.contains("\n        max_inflight: 8\n"), "{text}");
    assert!(
        text.contains("- type: token-load-scorer\n          weight: 1.0  # default\n"),
        "{text}"
    );
    assert_eq!(
        Config::parse(&text, "effective.yaml").unwrap(),
        inspection.config.unwrap()
    );
}

#[test]
fn reference_shows_the_defaults() {
    let text = reference();
    let config = Config::parse(&text, "reference.yaml").unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    let mut pool = schema::Pool {
        endpoints: config.pools[0].endpoints.clone(),
        ..Default::default()
    };
    pool.scheduling.preset = Some(DEFAULT_PRESET);
    let expected = Config {
        pools: vec![pool],
        ..Default::default()
    };
    assert_eq!(config, expected);
    assert_eq!(
        config.pools[0].endpoints[0].url.to_string(),
        "http://127.0.0.1:8000"
    );
}

/// The keys that the reference comments out are spelled right too: with their `#` removed, nothing is wrong
/// but what cannot go together.
#[test]
fn reference_has_no_wrong_key_even_uncommented() {
    let uncomment = |line: &str| {
        let body = line.trim_start();
        let key = body
            .strip_prefix('#')
            .filter(|rest| !rest.starts_with(' ') || rest.starts_with("  "));
        key.map_or(line.to_owned(), |key| {
            format!("{}{key}", &line[..line.len() - body.len()])
        })
    };
    let text: Vec<String> = reference().lines().map(uncomment).collect();
    let found = Inspection::of(&text.join("\n"), "reference.yaml", &|_| None).diagnostics;
    let known = [
        "No such file",
        "the folder /var/lib/homing does not exist",
        "the environment variable",
        "no endpoint of the pool has an https:// URL",
        "KV events are not listened to",
        "has an https:// URL",
        "both given",
        "a second picker",
        "the scorers have no effect",
    ];
    for item in found.items() {
        assert!(known.iter().any(|part| item.message.contains(part)), "{found}");
    }
    assert!(
        found.items().iter().any(|item| item.path == "pools[0].kv_events"),
        "{found}"
    );
}

/// Whatever the text, reading it ends with a configuration or with faults, never with a panic, and each
/// fault can be shown.
#[test]
fn mutilated_files_are_explained() {
    let reference = reference();
    let pieces = [
        "\t",
        "- ",
        ": ",
        "[",
        "}",
        "'",
        "\"",
        "${",
        "*a",
        "&a ",
        "<<: ",
        "\u{e4}",
        "\u{1f511}",
        "\r\n",
        "#",
        "~",
        ".nan",
        "!!x ",
    ];
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    for _ in 0..200 {
        let mut text = reference.clone();
        for _ in 0..rng.random_range(1..6) {
            let mut at = rng.random_range(0..text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            match rng.random_range(0..3) {
                0 => text.truncate(at.max(1)),
                1 => drop(text.remove(at)),
                _ => text.insert_str(at, pieces[rng.random_range(0..pieces.len())]),
            }
        }
        let inspection = Inspection::of(&text, "mutilated.yaml", &|_| None);
        assert_eq!(
            inspection.config.is_none(),
            inspection.diagnostics.has_errors(),
            "{text}"
        );
        assert!(!inspection.diagnostics.to_string().is_empty());
        let lines = text.lines().count();
        assert!(
            inspection
                .diagnostics
                .items()
                .iter()
                .filter_map(|d| d.place)
                .all(|p| p.line <= lines + 1)
        );
    }
}

/// A secret that is written in a wrong way is one all the same.
#[test]
fn secrets_of_faulty_files_are_not_shown() {
    let pool = "pools:\n  - name: a\n    endpoints: [{ url: 'http://10.0.0.1:8000' }]\n";
    for (faulty, told) in [
        ("    api_key: sk-one\n    api_key: sk-two\n", "given twice"),
        ("    api_key: [sk-one]\n", "is a list"),
        ("    api_key: { value: sk-one }\n", "unknown key `value`"),
        ("    api_key: sk-one: x\n", "mapping values"),
        ("traces:\n  headers:\n    x-key: [sk-one]\n", "is a list"),
        ("traces:\n  headers:\n    x-key: sk-one: x\n", "mapping values"),
    ] {
        let inspection = Inspection::of(&format!("{pool}{faulty}"), "secrets.yaml", &|_| None);
        let said = inspection.diagnostics.to_string();
        assert!(said.contains(told) && said.contains("**"), "{said}");
        assert!(!said.contains("sk-"), "{said}");
    }
}

/// Secrets are read from wherever they stand, and nothing that is shown has them.
#[test]
fn secrets_are_read_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "sk-from-file\n").unwrap();
    let text = format!(
        "traces: {{ endpoint: 'http://127.0.0.1:4318', headers: {{ x-key: sk-of-collector }} }}\n\
         pools:\n\
         \x20 - {{ name: a, models: [a], endpoints: [{{ url: 'http://10.0.0.1:8000' }}], api_key: sk-as-it-is }}\n\
         \x20 - {{ name: b, models: [b], endpoints: [{{ url: 'http://10.0.0.2:8000' }}], api_key: '${{KEY}}' }}\n\
         \x20 - {{ name: c, models: [c], endpoints: [{{ url: 'http://10.0.0.3:8000' }}], api_key: {{ file: {} }} }}\n",
        file.display()
    );
    let env = |name: &str| (name == "KEY").then(|| "sk-from-environment".to_owned());
    let inspection = Inspection::of(&text, "secrets.yaml", &env);
    let config = inspection.config.clone().unwrap();
    let keys = config
        .pools
        .iter()
        .map(|pool| pool.api_key.as_ref().unwrap().expose());
    assert_eq!(
        keys.collect::<Vec<_>>(),
        ["sk-as-it-is", "sk-from-environment", "sk-from-file"]
    );
    let shown = inspection.effective().unwrap();
    assert!(shown.contains("api_key: \"(hidden)\"\n"), "{shown}");
    assert!(
        shown.contains(&format!("api_key:\n      file: {}\n", file.display())),
        "{shown}"
    );
    assert!(shown.contains("\n  sample: 1.0  # default\n"), "{shown}");
    let faulty = text.replace("name: a,", "name: a, nmae: x,");
    let faults = Inspection::of(&faulty, "secrets.yaml", &env).diagnostics;
    assert!(faults.to_string().contains("did you mean `name`?"), "{faults}");
    for said in [
        shown,
        format!("{config:?}"),
        faults.to_string(),
        faults.to_json().to_string(),
    ] {
        assert!(!said.contains("sk-"), "{said}");
    }
    // A changed file is a changed configuration, so that a reload takes it into use.
    std::fs::write(&file, "sk-new").unwrap();
    assert_ne!(Inspection::of(&text, "secrets.yaml", &env).config, Some(config));
}

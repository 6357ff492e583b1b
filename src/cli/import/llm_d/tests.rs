use super::*;
use crate::config::Config;
use crate::config::schema::{Choice, PluginKind};

const GUIDE: &str = "
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: single-profile-handler
- type: prefix-cache-scorer
  name: prefix
  parameters: { blockSize: 64, lruCapacityPerServer: 31250 }
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: no-hit-lru-scorer
- type: latency-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - { pluginRef: prefix, weight: 3 }
  - { pluginRef: queue-scorer, weight: 2 }
  - { pluginRef: kv-cache-utilization-scorer, weight: 2 }
  - { pluginRef: no-hit-lru-scorer, weight: 2 }
  - { pluginRef: latency-scorer }
  - { pluginRef: max-score-picker }
- name: prefill
";

#[test]
fn guide_becomes_the_same_weights() {
    let imported = import(GUIDE, None).unwrap();
    let config = Config::parse(&imported.yaml, "imported").unwrap();
    let Choice::Plugins(plugins) = config.pools[0].scheduling.choice() else {
        panic!("plugins are given")
    };
    let weights: Vec<(&str, f64)> = plugins
        .iter()
        .map(|p| (p.kind.plugin_type().as_str(), p.weight))
        .collect();
    let expected = [
        ("prefix-cache-scorer", 3.0),
        ("queue-scorer", 2.0),
        ("kv-cache-utilization-scorer", 2.0),
        ("no-hit-lru-scorer", 2.0),
        ("max-score-picker", 1.0),
    ];
    assert_eq!(weights, expected);
    let said = |part: &str| imported.notes.iter().any(|n| n.contains(part));
    for part in [
        "`featureGates`",
        "`latency-scorer` has no",
        "profile `prefill`",
        "`blockSize`",
        "single-profile",
    ] {
        assert!(said(part), "{part}: {:?}", imported.notes);
    }
}

#[test]
fn parameters_are_carried_over_with_units() {
    let text = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefix-cache-affinity-filter
  parameters: { affinityThreshold: 0.7, maxTTFTPenaltyMs: 5000, peakPrefillThroughput: 9000 }
- type: token-load-scorer
  parameters: { queueThresholdTokens: 1000 }
- type: session-affinity-scorer
  parameters: { headerName: x-user }
";
    let imported = import(text, None).unwrap();
    let config =
        Config::parse(&imported.yaml, "imported").unwrap_or_else(|f| panic!("{f}\n{}", imported.yaml));
    let plugins = &config.pools[0].scheduling.plugins;
    assert!(
        matches!(&plugins[0].kind, PluginKind::PrefixCacheAffinityFilter(f)
        if f.min_match_ratio == 0.7 && f.max_extra_wait.as_secs() == 5 && f.prefill_tokens_per_s == 9000.0)
    );
    assert!(matches!(&plugins[1].kind, PluginKind::TokenLoadScorer(t) if t.threshold_tokens == 1000));
    assert_eq!(plugins[2].kind, PluginKind::SessionAffinityScorer);
    assert_eq!(plugins[3].kind, PluginKind::MaxScorePicker);
}

#[test]
fn other_files_are_refused_in_words() {
    let kind = import("apiVersion: v1\nkind: ConfigMap\n", None).unwrap_err();
    assert_eq!(
        kind.to_string(),
        "kind is `ConfigMap`, expected EndpointPickerConfig"
    );
    assert!(matches!(import("a: [", None), Err(ImportError::Syntax(_))));
    assert!(matches!(
        import(GUIDE, Some("nope")),
        Err(ImportError::NoProfile { .. })
    ));
}

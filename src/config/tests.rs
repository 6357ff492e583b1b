use super::schema::{Auto, Choice, DEFAULT_PRESET, PluginKind, Preset};
use super::*;
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

//! Any text as a configuration file.
#![no_main]

use homing::config::schema::DEFAULT_PRESET;
use homing::config::{Config, Inspection};
use libfuzzer_sys::fuzz_target;

fn environment(name: &str) -> Option<String> {
    (name == "POD_HOST").then(|| "10.0.0.7".to_owned())
}

/// With the default preset spelled out, as the effective configuration does it.
fn spelled_out(mut config: Config) -> Config {
    for pool in config.pools.iter_mut().filter(|pool| pool.scheduling.plugins.is_empty()) {
        pool.scheduling.preset.get_or_insert(DEFAULT_PRESET);
    }
    config
}

fuzz_target!(|text: &str| {
    let inspection = Inspection::of(text, "fuzz", &environment);
    let faults = &inspection.diagnostics;
    assert_eq!(inspection.config.is_none(), faults.has_errors());
    assert!(faults.to_string().len() >= faults.items().len());
    // A carriage return alone ends a line too (YAML 1.2, section 5.4).
    let lines = 1 + text.chars().filter(|end| matches!(end, '\n' | '\r')).count();
    for place in faults.items().iter().filter_map(|fault| fault.place) {
        assert!((1..=lines + 1).contains(&place.line) && place.column >= 1 && place.width >= 1, "{place:?}");
    }

    // A file without an error says the same as what it is told to mean.
    let Some(effective) = inspection.effective() else { return };
    let again = Inspection::of(&effective, "effective", &|_| None);
    let again = again.config.unwrap_or_else(|| panic!("{}\n{effective}", again.diagnostics));
    let config = inspection.config.expect("it is in effect");
    for pool in &config.pools {
        let _ = pool.scheduling.policy();
    }
    assert_eq!(spelled_out(again), spelled_out(config), "{effective}");
});

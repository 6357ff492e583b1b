//! The gateway's own log, on standard error.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// What is logged unless `HOMING_LOG` says otherwise: Pingora repeats at error level what the access log tells.
const DEFAULT_FILTER: &str = "info,pingora_core=warn,pingora_proxy=error,pingora_load_balancing=error";

/// Starts logging to standard error; a second call does nothing.
pub fn start() {
    let filter = EnvFilter::try_from_env("HOMING_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}

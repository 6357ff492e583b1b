//! The configuration file: its shape, reading it, and telling every fault of it at once.

pub mod address;
pub mod diagnostic;
pub mod schema;
pub mod units;

pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use schema::Config;

use diagnostic::Place;
use std::path::Path;

impl Config {
    /// Reads and checks the file at `path`.
    pub fn load(path: &Path) -> Result<Self, Diagnostics> {
        let origin = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &origin),
            Err(error) => {
                let mut faults = Diagnostics::new(origin, "");
                faults.extend([Diagnostic::error(format!("cannot read the file: {error}"))]);
                Err(faults)
            }
        }
    }

    /// Reads and checks `text`; `origin` is the file's name in messages.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Diagnostics> {
        let mut config: Self = serde_saphyr::from_str(text).map_err(|error| {
            let place = error.location().map(|at| Place {
                line: usize::try_from(at.line()).unwrap_or(1),
                column: usize::try_from(at.column()).unwrap_or(1),
                width: 1,
            });
            let mut faults = Diagnostics::new(origin, text);
            faults.extend([Diagnostic::error(error.without_snippet().to_string()).at("", place)]);
            faults
        })?;
        config.name_endpoints();
        Ok(config)
    }

    /// Endpoints without a name take host:port of their url.
    fn name_endpoints(&mut self) {
        for endpoint in self.pools.iter_mut().flat_map(|pool| &mut pool.endpoints) {
            if endpoint.name.is_empty() {
                endpoint.name = endpoint.url.authority();
            }
        }
    }
}

#[cfg(test)]
mod tests;

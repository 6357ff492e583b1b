//! The configuration file: its shape, reading it, and telling every fault of it at once.
//!
//! One file goes through three passes, and each goes on after a fault so that the reader sees all of them
//! in one run: `tree` (YAML with places), `shape` (against the JSON Schema of [`schema::Config`]: keys,
//! types, units, environment references) and `validate` (what the values mean together).

pub mod address;
pub mod diagnostic;
mod effective;
pub mod endpoints_file;
pub mod environment;
mod policy;
mod reference;
pub mod schema;
mod secrets;
mod shape;
mod tree;
pub mod units;
mod validate;
mod yaml;

pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use schema::Config;

use environment::Lookup;
use schema::Endpoint;
use serde::de::DeserializeOwned;
use std::path::Path;
use tree::Node;

/// What is known of a file after reading it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The configuration, when the file has no error.
    pub config: Option<Config>,
    /// Every fault; warnings only when there is a configuration.
    pub diagnostics: Diagnostics,
    /// The file's values with their places.
    tree: Option<Node>,
}

impl Inspection {
    /// Reads and checks `text`; `origin` is the file's name in messages, `env` answers `${NAME}`.
    pub fn of(text: &str, origin: &str, env: &Lookup<'_>) -> Self {
        let mut diagnostics = Diagnostics::new(origin, text);
        let (mut config, mut written) = (None, None);
        match Node::parse(text) {
            Ok(mut tree) => {
                let schema = json_schema();
                // As written: what stands for a variable's value gives nothing away.
                diagnostics.hide(&secrets::words(&tree, text));
                let found = shape::check(&mut tree, &schema, env);
                diagnostics.extend(found.faults);
                match typed::<Config>(&tree) {
                    Ok(mut read) => {
                        read.name_endpoints();
                        diagnostics.extend(secrets::read(&mut read, &tree));
                        diagnostics.extend(validate::validate(&read, &tree, &found.damaged));
                        config = Some(read);
                    }
                    Err(fault) => diagnostics.extend([*fault]),
                }
                written = Some(tree);
            }
            Err(fault) => {
                diagnostics.hide(&secrets::words_of_unreadable(text));
                diagnostics.extend([*fault]);
            }
        }
        Self {
            config: config.filter(|_| !diagnostics.has_errors()),
            diagnostics,
            tree: written,
        }
    }

    /// Reads and checks the file at `path`, with the process's environment.
    pub fn of_file(path: &Path) -> Self {
        let origin = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::of(&text, &origin, &process_environment),
            Err(error) => {
                let mut diagnostics = Diagnostics::new(origin, "");
                diagnostics.extend([Diagnostic::error(format!("the file cannot be read: {error}"))]);
                Self {
                    config: None,
                    diagnostics,
                    tree: None,
                }
            }
        }
    }

    /// The effective configuration as YAML, defaults marked; `None` when the file has an error.
    pub fn effective(&self) -> Option<String> {
        effective::write(self.config.as_ref()?, self.tree.as_ref()?).ok()
    }

    /// The configuration, or all that is wrong with it. Warnings are dropped.
    pub fn into_result(self) -> Result<Config, Diagnostics> {
        self.config.ok_or(self.diagnostics)
    }
}

impl Config {
    /// Reads and checks the file at `path`, with the process's environment.
    pub fn load(path: &Path) -> Result<Self, Diagnostics> {
        Inspection::of_file(path).into_result()
    }

    /// Reads and checks `text`, with the process's environment; `origin` is the file's name in messages.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Diagnostics> {
        Inspection::of(text, origin, &process_environment).into_result()
    }

    /// Endpoints without a name take host:port of their url.
    fn name_endpoints(&mut self) {
        for pool in &mut self.pools {
            pool.endpoints.iter_mut().for_each(Endpoint::take_name);
        }
    }
}

/// The JSON Schema of the configuration file.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}

/// The reference file: every key with its comment and default.
pub fn reference() -> String {
    reference::write(&json_schema())
}

fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The typed configuration of a tree that has the schema's shape. A fault here means that schema and types
/// disagree; it is still told with its place.
fn typed<T: DeserializeOwned>(tree: &Node) -> Result<T, Box<Diagnostic>> {
    serde_path_to_error::deserialize(tree.to_json()).map_err(|error| {
        let path = error.path().to_string();
        let (_, place) = tree.find(&path);
        Box::new(Diagnostic::error(error.inner().to_string()).at(tree.written_path(&path), place))
    })
}

#[cfg(test)]
mod tests;

//! The file of endpoints that `discovery.file` names, read and checked as the configuration is.

use super::diagnostic::{Diagnostic, Diagnostics};
use super::schema::{Endpoint, EndpointsFile};
use super::tree::Node;
use super::{process_environment, shape, typed, validate};
use std::path::Path;

/// The endpoints that the file at `path` lists, each with a name.
///
/// # Errors
/// Every fault of the file.
pub fn load(path: &Path) -> Result<Vec<Endpoint>, Diagnostics> {
    let origin = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, &origin),
        Err(error) => {
            let mut faults = Diagnostics::new(origin, "");
            faults.extend([Diagnostic::error(format!("the file cannot be read: {error}"))]);
            Err(faults)
        }
    }
}

/// The endpoints that `text` lists; `origin` is the file's name in messages.
///
/// # Errors
/// Every fault of the text.
pub fn parse(text: &str, origin: &str) -> Result<Vec<Endpoint>, Diagnostics> {
    let mut faults = Diagnostics::new(origin, text);
    match read(text, &mut faults) {
        Ok(endpoints) if !faults.has_errors() => return Ok(endpoints),
        Ok(_) => {}
        Err(fault) => faults.extend([*fault]),
    }
    Err(faults)
}

fn read(text: &str, faults: &mut Diagnostics) -> Result<Vec<Endpoint>, Box<Diagnostic>> {
    let mut tree = Node::parse(text)?;
    let schema = schemars::schema_for!(EndpointsFile).to_value();
    let found = shape::check(&mut tree, &schema, &process_environment);
    let broken = !found.faults.is_empty();
    faults.extend(found.faults);
    let mut endpoints = match typed::<EndpointsFile>(&tree) {
        Ok(file) => file.endpoints,
        // What the shape lacks has been told.
        Err(_) if broken => return Ok(Vec::new()),
        Err(fault) => return Err(fault),
    };
    endpoints.iter_mut().for_each(Endpoint::take_name);
    faults.extend(validate::validate_endpoints(&endpoints, &tree, &found.damaged));
    Ok(endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_endpoints_by_name() {
        let text = "endpoints:\n  - url: http://10.0.0.1:8000\n  - { name: b, url: 'http://10.0.0.2:8000', max_inflight: 8 }\n";
        let endpoints = parse(text, "endpoints.yaml").unwrap();
        let names: Vec<_> = endpoints.iter().map(|endpoint| endpoint.name.as_str()).collect();
        assert_eq!(names, ["10.0.0.1:8000", "b"]);
        assert!(parse("endpoints: []", "endpoints.yaml").unwrap().is_empty());
    }

    #[test]
    fn tells_every_fault_with_its_place() {
        let text = "endpoints:\n  - { url: 'http://a:1', nmae: x }\n  - { url: 'a:2' }\n  - { name: y, url: 'http://a:3' }\n  - { name: y, url: 'http://a:4' }\n";
        let told = parse(text, "endpoints.yaml").unwrap_err().to_string();
        for words in [
            "endpoints.yaml:2:",
            "did you mean `name`",
            "endpoints.yaml:3:",
            "write `http://a:2`",
            "two endpoints of this pool are named `y`",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        // A file that is being written is empty for a moment: that is no list without endpoints.
        assert!(parse("", "endpoints.yaml").is_err());
    }
}

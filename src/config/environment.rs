//! `${NAME}` and `${NAME:-default}` in string values.

/// Looks an environment variable up.
pub type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Why a reference cannot be replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The variable is not set and the reference has no default.
    #[error("the environment variable `{0}` is not set")]
    Unset(String),
    /// `${` without `}`.
    #[error("`${{` without its `}}`")]
    Open,
    /// What stands between the braces is no name of a variable.
    #[error("`{0}` is no name of an environment variable")]
    BadName(String),
}

impl ReferenceError {
    /// What to do about it.
    pub fn fix(&self) -> String {
        match self {
            Self::Unset(name) => format!("set {name}, or give a default: ${{{name}:-value}}"),
            Self::Open => "close the reference with `}`, or write `$${` for a plain `${`".to_owned(),
            Self::BadName(_) => {
                "a name has letters, digits and `_` only; for a plain `${` write `$${`".to_owned()
            }
        }
    }
}

/// `text` with its references replaced; `None` when it has none. As in a shell, the default also stands in
/// for a variable that is set but empty.
pub fn expand(text: &str, lookup: &Lookup<'_>) -> Result<Option<String>, ReferenceError> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if let Some(escaped) = rest[..start].strip_suffix('$') {
            expanded.push_str(escaped);
            expanded.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        expanded.push_str(&rest[..start]);
        let body = &rest[start + 2..];
        let end = body.find('}').ok_or(ReferenceError::Open)?;
        expanded.push_str(&value_of(&body[..end], lookup)?);
        rest = &body[end + 1..];
    }
    expanded.push_str(rest);
    Ok(Some(expanded))
}

/// Value of `NAME` or `NAME:-default`.
fn value_of(reference: &str, lookup: &Lookup<'_>) -> Result<String, ReferenceError> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let good = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !good {
        return Err(ReferenceError::BadName(name.to_owned()));
    }
    match (lookup(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(ReferenceError::Unset(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<Option<String>, ReferenceError> {
        expand(text, &|name| match name {
            "HOST" => Some("10.0.0.7".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn replaces_references() {
        assert_eq!(expanded("plain {host} $5"), Ok(None));
        assert_eq!(
            expanded("http://${HOST}:${PORT:-8000}/"),
            Ok(Some("http://10.0.0.7:8000/".into()))
        );
        assert_eq!(expanded("[${EMPTY}]"), Ok(Some("[]".into())));
        assert_eq!(expanded("${EMPTY:-x}"), Ok(Some("x".into())));
        assert_eq!(expanded("a$${HOST}b"), Ok(Some("a${HOST}b".into())));
    }

    #[test]
    fn names_what_is_wrong_with_a_reference() {
        assert_eq!(expanded("${NOPE}"), Err(ReferenceError::Unset("NOPE".into())));
        assert_eq!(expanded("${HOST"), Err(ReferenceError::Open));
        assert_eq!(expanded("${}"), Err(ReferenceError::BadName(String::new())));
        assert_eq!(expanded("${A B}"), Err(ReferenceError::BadName("A B".into())));
    }
}

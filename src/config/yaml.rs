//! Writing YAML by hand where comments must stand between the keys.

use serde_json::Value as Json;

/// A scalar, or a list or mapping on one line.
pub(super) fn inline(value: &Json) -> String {
    match value {
        Json::String(text) if is_plain(text) => text.clone(),
        Json::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Json::Object(map) if map.is_empty() => "{}".to_owned(),
        Json::Object(map) => {
            let pairs: Vec<String> = map
                .iter()
                .map(|(key, v)| format!("{key}: {}", inline(v)))
                .collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        // JSON's strings and numbers are YAML's double-quoted strings and numbers.
        other => other.to_string(),
    }
}

/// True when `text` means itself without quotes, inside `[]` and `{}` too.
fn is_plain(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '+' | '=');
    let reserved = ["true", "false", "null", "yes", "no", "on", "y", "n"];
    !text.is_empty()
        && text.chars().all(word)
        && !text.starts_with(['-', ':', '='])
        && !text.ends_with(':')
        && text.parse::<f64>().is_err()
        && !text.starts_with("0x")
        && !text.starts_with("0o")
        && !reserved.contains(&text.to_ascii_lowercase().as_str())
}

/// `text` in lines of at most `width` characters.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quotes_what_would_read_as_something_else() {
        for text in [
            "", "true", "null", "12", "1e3", "0x10", "a b", "- a", "a: b", "*x", "#x", "[::]:80", "{host}",
            "no",
        ] {
            let value = json!(text);
            assert_eq!(inline(&value), format!("\"{text}\""));
            let back: String = serde_saphyr::from_str(&inline(&value)).unwrap();
            assert_eq!(back, text);
        }
        for text in ["off", "127.0.0.1:8080", "http://a:1", "50ms", "/metrics", "pod-a"] {
            assert_eq!(inline(&json!(text)), text);
        }
        assert_eq!(inline(&json!({ "a": [1, "x"], "b": {} })), "{ a: [1, x], b: {} }");
    }

    #[test]
    fn text_wraps_at_the_width() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable x", 3), ["unbreakable", "x"]);
        assert!(wrap(" ", 3).is_empty());
    }
}

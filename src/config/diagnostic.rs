//! Faults of a configuration file, told so that the reader can mend them: where, what, and how.

use serde::Serialize;
use std::fmt::{self, Write};

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but probably does not do what was meant.
    Warning,
}

/// A range of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// In characters; at least 1.
    pub width: usize,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Keys down to the value, such as `pools[0].endpoints[1].url`; empty for the whole file.
    pub path: String,
    /// Where in the file; `None` when the fault is of the file as a whole.
    #[serde(flatten)]
    pub place: Option<Place>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Diagnostic {
    /// An error with its message; place and advice follow by the builder methods.
    pub fn error(message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            path: String::new(),
            place: None,
            message: message.into(),
            expected: None,
            fix: None,
        }
    }

    /// A warning with its message.
    pub fn warning(message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(message)
        }
    }

    /// Says where: the path of keys and the place in the file.
    #[must_use]
    pub fn at(mut self, path: impl Into<String>, place: Option<Place>) -> Self {
        self.path = path.into();
        self.place = place;
        self
    }

    /// Says what would be right.
    #[must_use]
    pub fn expected(mut self, text: impl Into<String>) -> Self {
        self.expected = Some(text.into());
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn fix(mut self, text: impl Into<String>) -> Self {
        self.fix = Some(text.into());
        self
    }

    /// Says what to do, if that is known.
    #[must_use]
    pub fn maybe_fix(mut self, text: Option<String>) -> Self {
        self.fix = text.or(self.fix);
        self
    }
}

/// All faults of one file, in the file's order. Displays as text with excerpts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    /// The file's name as the operator gave it.
    origin: String,
    source: String,
    items: Vec<Diagnostic>,
}

impl Diagnostics {
    /// No faults yet of the file `origin` with the text `source`.
    pub fn new(origin: impl Into<String>, source: impl Into<String>) -> Self {
        Self {
            origin: origin.into(),
            source: source.into(),
            items: Vec::new(),
        }
    }

    /// Shows stars in the place of `words` wherever the file's text is shown.
    pub fn hide(&mut self, words: &[String]) {
        for word in words {
            self.source = self.source.replace(word, &"*".repeat(word.chars().count()));
        }
    }

    /// Takes `items` in, keeping the file's order.
    pub fn extend(&mut self, items: impl IntoIterator<Item = Diagnostic>) {
        self.items.extend(items);
        self.items.sort_by_key(|item| {
            item.place.unwrap_or(Place {
                line: 0,
                column: 0,
                width: 0,
            })
        });
    }

    /// The faults, in the file's order.
    pub fn items(&self) -> &[Diagnostic] {
        &self.items
    }

    /// True when there is no fault at all.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many faults of this severity there are.
    pub fn count(&self, severity: Severity) -> usize {
        self.items.iter().filter(|item| item.severity == severity).count()
    }

    /// True when the file cannot be used.
    pub fn has_errors(&self) -> bool {
        self.count(Severity::Error) > 0
    }

    /// The faults as a JSON value: `file`, `errors`, `warnings` (counts) and `diagnostics`.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "file": self.origin,
            "errors": self.count(Severity::Error),
            "warnings": self.count(Severity::Warning),
            "diagnostics": self.items,
        })
    }

    /// One fault with its excerpt.
    fn render(&self, item: &Diagnostic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if item.severity == Severity::Error {
            "error"
        } else {
            "warning"
        };
        writeln!(f, "{severity}: {}", item.message)?;
        let gutter = item.place.map_or(1, |place| place.line.to_string().len());
        match item.place {
            Some(place) => {
                writeln!(
                    f,
                    "{:gutter$}--> {}:{}:{}",
                    "", self.origin, place.line, place.column
                )?;
                self.excerpt(place, gutter, f)?;
            }
            None => writeln!(f, "{:gutter$}--> {}", "", self.origin)?,
        }
        if let Some(expected) = &item.expected {
            writeln!(f, "{:gutter$} = expected: {expected}", "")?;
        }
        if let Some(fix) = &item.fix {
            writeln!(f, "{:gutter$} = fix: {fix}", "")?;
        }
        Ok(())
    }

    /// The line of `place` with a caret under it.
    fn excerpt(&self, place: Place, gutter: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(line) = self.source.lines().nth(place.line.saturating_sub(1)) else {
            return Ok(());
        };
        // The same white space under the line as in it keeps the caret in its column whatever a tab's width.
        let lead: String = line
            .chars()
            .take(place.column.saturating_sub(1))
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let room = line.chars().count().saturating_sub(lead.chars().count()).max(1);
        let mut carets = String::new();
        for _ in 0..place.width.clamp(1, room) {
            carets.write_char('^')?;
        }
        writeln!(f, "{:gutter$} |", "")?;
        writeln!(f, "{:gutter$} | {line}", place.line)?;
        writeln!(f, "{:gutter$} | {lead}{carets}", "")
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            self.render(item, f)?;
            writeln!(f)?;
        }
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        writeln!(
            f,
            "{}: {}, {}",
            self.origin,
            plural(errors, "error"),
            plural(warnings, "warning")
        )
    }
}

impl std::error::Error for Diagnostics {}

/// The word of `known` that was most likely meant by `word`, if one is near enough to be worth naming.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', ' ', '.'], "-");
    let wanted = plain(word);
    known
        .into_iter()
        .map(|candidate| {
            (
                strsim::normalized_damerau_levenshtein(&wanted, &plain(candidate)),
                candidate,
            )
        })
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caret_stands_under_the_place() {
        let mut faults = Diagnostics::new("homing.yaml", "threads: 2\npools:\n\t- nome: ä\n");
        let place = Place {
            line: 3,
            column: 4,
            width: 4,
        };
        faults.extend([Diagnostic::error("unknown key `nome`")
            .at("pools[0].nome", Some(place))
            .expected("one of name, url")
            .fix("did you mean `name`?")]);
        let expected = "error: unknown key `nome`\n --> homing.yaml:3:4\n  |\n3 | \t- nome: ä\n  | \t  ^^^^\n  \
                        = expected: one of name, url\n  = fix: did you mean `name`?\n\nhoming.yaml: 1 error, 0 warnings\n";
        assert_eq!(faults.to_string(), expected);
    }

    #[test]
    fn nearest_word_is_named_only_when_near() {
        assert_eq!(nearest("intervall", ["interval", "timeout"]), Some("interval"));
        assert_eq!(
            nearest("round_robin", ["round-robin", "random"]),
            Some("round-robin")
        );
        assert_eq!(
            nearest("Least-Request", ["least-cost", "least-request"]),
            Some("least-request")
        );
        assert_eq!(nearest("zzz", ["interval", "timeout"]), None);
    }
}

//! The gateway's own metrics page, read naively: a second opinion beside the library's parser.

/// One sample per line: name with labels, and value.
pub struct Samples(Vec<(String, f64)>);

impl Samples {
    /// Reads a page.
    pub fn parse(page: &[u8]) -> Self {
        let text = String::from_utf8(page.to_vec()).expect("UTF-8");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(
            lines
                .filter_map(|line| {
                    let (series, value) = line.rsplit_once(' ')?;
                    Some((series.to_owned(), value.parse().ok()?))
                })
                .collect(),
        )
    }

    /// Values of all series of a family.
    pub fn all<'a>(&'a self, family: &'a str) -> impl Iterator<Item = f64> + 'a {
        self.with(family, "")
    }

    /// Values of a family's series whose labels contain `label`, such as `code="200"`.
    pub fn with<'a>(&'a self, family: &'a str, label: &'a str) -> impl Iterator<Item = f64> + 'a {
        self.0.iter().filter_map(move |(series, value)| {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            (name == family && labels.contains(label)).then_some(*value)
        })
    }

    /// Sum of [`Samples::with`].
    pub fn sum(&self, family: &str, label: &str) -> f64 {
        self.with(family, label).sum()
    }
}

//! Endpoints in a watched file.

use crate::config::Diagnostics;
use crate::config::endpoints_file;
use crate::config::schema::Endpoint;
use crate::lifecycle::stamp::Stamp;
use std::path::PathBuf;
use std::time::Duration;

/// How often the file is looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file that is read again when it changes.
pub(super) struct FileSource {
    path: PathBuf,
    seen: Option<Stamp>,
    /// What it said when it was last read.
    said: Result<Vec<Endpoint>, Diagnostics>,
}

impl FileSource {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self {
            path,
            seen: None,
            said: Ok(Vec::new()),
        }
    }

    /// What the file lists.
    pub(super) fn look(&mut self) -> Result<Vec<Endpoint>, Diagnostics> {
        let stamp = Stamp::of(&self.path);
        if stamp.is_none() || stamp != self.seen {
            self.seen = stamp;
            self.said = endpoints_file::load(&self.path);
        }
        self.said.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("endpoints.yaml");
        let mut source = FileSource::new(path.clone());
        let told = source.look().unwrap_err().to_string();
        assert!(told.contains("cannot be read"), "{told}");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("endpoints: [{ url: 'http://10.0.0.1:8000' }]");
        assert_eq!(source.look().unwrap().len(), 1);
        assert_eq!(source.look().unwrap().len(), 1);
        write("endpoints: [{ url: 'http://10.0.0.1:8000' }, { url: 'http://10.0.0.2:8000' }]");
        assert_eq!(source.look().unwrap().len(), 2);
        write("endpoints: [{ ulr: 'http://10.0.0.1:8000' }]");
        assert!(source.look().is_err());
        assert!(source.look().is_err(), "a fault lasts until the file changes");
        std::fs::remove_file(&path).unwrap();
        assert!(source.look().is_err());
    }
}

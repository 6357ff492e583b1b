//! A file that begins anew when it has grown, with a bounded number of older ones beside it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What the files may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of one file.
    pub file_bytes: u64,
    /// Files kept, the newest included.
    pub files: u32,
}

/// Takes whole lines; a line is never split over two files.
#[derive(Debug)]
pub(super) struct Rotating {
    path: PathBuf,
    bounds: Bounds,
    file: BufWriter<File>,
    bytes: u64,
}

impl Rotating {
    /// Begins a new file at `path`; what is there becomes `path.1`.
    pub fn new(path: &Path, bounds: Bounds) -> io::Result<Self> {
        if fs::metadata(path).is_ok_and(|found| found.len() > 0) {
            shift(path, bounds.files)?;
        }
        Ok(Self {
            path: path.to_owned(),
            bounds,
            file: BufWriter::new(File::create(path)?),
            bytes: 0,
        })
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        shift(&self.path, self.bounds.files)?;
        self.file = BufWriter::new(File::create(&self.path)?);
        self.bytes = 0;
        Ok(())
    }
}

impl Write for Rotating {
    /// Takes `text` up to the end of its last line that fits without an error.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if self.bytes > 0 && self.bytes + line.len() as u64 > self.bounds.file_bytes {
                self.rotate()?;
            }
            self.file.write_all(line)?;
            self.bytes += line.len() as u64;
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// `path` becomes `path.1`, that `path.2` and so on; the oldest of `files` goes. Files may be missing: an operator may
/// have taken them.
fn shift(path: &Path, files: u32) -> io::Result<()> {
    let numbered = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        if n > 0 {
            name.push(format!(".{n}"));
        }
        PathBuf::from(name)
    };
    let last = files.max(1) - 1;
    if last == 0 {
        return unless_missing(fs::remove_file(path));
    }
    for n in (0..last).rev() {
        unless_missing(fs::rename(numbered(n), numbered(n + 1)))?;
    }
    Ok(())
}

fn unless_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn of(files: u32) -> Bounds {
        Bounds { file_bytes: 8, files }
    }

    fn listing(folder: &Path) -> Vec<(String, String)> {
        let mut found: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        found.sort();
        found
    }

    fn named(found: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        found.iter().map(owned).collect()
    }

    #[test]
    fn grows_to_its_bound_and_keeps_as_many_as_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let mut file = Rotating::new(&path, of(3)).unwrap();
        file.write_all(b"aaa\nbbb\nccc\nddd\neee\n").unwrap();
        file.flush().unwrap();
        let whole = [("t", "eee\n"), ("t.1", "ccc\nddd\n"), ("t.2", "aaa\nbbb\n")];
        assert_eq!(listing(folder.path()), named(&whole));
        file.write_all(b"fff\nggg\n").unwrap();
        file.flush().unwrap();
        let whole = [("t", "ggg\n"), ("t.1", "eee\nfff\n"), ("t.2", "ccc\nddd\n")];
        assert_eq!(listing(folder.path()), named(&whole));
    }

    #[test]
    fn a_new_start_begins_a_new_file_and_a_long_line_has_one_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        fs::write(&path, "old\n").unwrap();
        let mut file = Rotating::new(&path, of(2)).unwrap();
        file.write_all(b"longer than a file\nnew\n").unwrap();
        file.flush().unwrap();
        let whole = [("t", "new\n"), ("t.1", "longer than a file\n")];
        assert_eq!(listing(folder.path()), named(&whole));
    }

    #[test]
    fn one_file_is_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        fs::write(&path, "old\n").unwrap();
        let mut file = Rotating::new(&path, of(1)).unwrap();
        file.write_all(b"aaaa\nbbbb\n").unwrap();
        file.flush().unwrap();
        assert_eq!(listing(folder.path()), named(&[("t", "bbbb\n")]));
    }

    #[test]
    fn a_file_that_was_taken_away_stops_nothing() {
        for files in [1, 2] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("t");
            let mut file = Rotating::new(&path, of(files)).unwrap();
            file.write_all(b"aaaa\n").unwrap();
            fs::remove_file(&path).unwrap();
            file.write_all(b"bbbb\n").unwrap();
            file.flush().unwrap();
            assert_eq!(listing(folder.path()), named(&[("t", "bbbb\n")]), "{files}");
        }
    }
}

//! Temporary file for texts of rows that don't fit in memory.

use crate::config::{files, printable_path};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Unnamed temporary file, created when it is first needed and deleted when dropped.
#[derive(Debug)]
pub(super) struct Spill {
    folder: PathBuf,
    file: Option<Mutex<File>>,
    end: u64,
    failed: bool,
}

impl Default for Spill {
    /// Uses the user's cache folder, since the system's temporary folder may be in memory.
    fn default() -> Self {
        Self::in_folder(files::cache_folder().unwrap_or_else(std::env::temp_dir))
    }
}

impl Spill {
    pub(super) fn in_folder(folder: PathBuf) -> Self {
        Self { folder, file: None, end: 0, failed: false }
    }

    /// Writes texts. Returns their offset; `None` if writing failed. After a failure, which a warning reports, nothing more is written: it
    /// would use up the last space on a full disk.
    pub(super) fn write(&mut self, texts: &[u8]) -> Option<u64> {
        if self.failed {
            return None;
        }
        let begin = self.end;
        match self.append(texts) {
            Ok(()) => Some(begin),
            Err(error) => {
                self.failed = true;
                if let Some(file) = &mut self.file {
                    let _ = file.get_mut().unwrap_or_else(PoisonError::into_inner).set_len(begin);
                }
                let folder = printable_path(&self.folder);
                tracing::warn!("rows stay in memory, since a temporary file in {folder} can't be written: {error}");
                None
            }
        }
    }

    fn append(&mut self, texts: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            fs::create_dir_all(&self.folder)?;
            self.file = Some(Mutex::new(tempfile::tempfile_in(&self.folder)?));
        }
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let file = file.get_mut().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.end))?;
        file.write_all(texts)?;
        self.end += texts.len() as u64;
        Ok(())
    }

    /// Reads `length` bytes at this offset.
    pub(super) fn read(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = vec![0; length];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_and_a_folder_that_can_not_be_written_is_tried_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::in_folder(folder.path().join("new"));
        assert_eq!((spill.write(b"one"), spill.write(b""), spill.write(b"two!")), (Some(0), Some(3), Some(3)));
        assert_eq!((spill.read(3, 4).unwrap(), spill.read(1, 2).unwrap()), (b"two!".to_vec(), b"ne".to_vec()));
        assert!(spill.read(5, 4).is_err());
        // The file has no name.
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);

        let taken = folder.path().join("file");
        fs::write(&taken, b"").unwrap();
        let mut spill = Spill::in_folder(taken.clone());
        assert_eq!(spill.write(b"one"), None);
        fs::remove_file(&taken).unwrap();
        assert_eq!(spill.write(b"one"), None);
        assert!(spill.read(0, 1).is_err());
    }
}

//! An instance's open files.

use super::super::folders::Folders;
use super::super::limits::MOST_HANDLES;
use std::sync::Arc;
use wasmtime::{Result, bail};

/// The target of a handle.
#[derive(Clone, Copy)]
pub(super) enum FileHandle {
    /// A file or folder.
    Node(usize),
    /// A file, with the offset of the next read.
    Reader { node: usize, at: u64 },
    /// A folder, with the index of its next entry to list.
    Entries { node: usize, at: usize },
}

/// An instance's open files.
#[derive(Default)]
pub(super) struct OpenFiles {
    pub(super) folders: Option<Arc<Folders>>,
    /// Handles by their number less one; number 0 is for resources without an effect.
    handles: Vec<Option<FileHandle>>,
    /// Indices of handles that are free again.
    free: Vec<usize>,
}

impl OpenFiles {
    pub(super) fn with_folders(folders: Arc<Folders>) -> Self {
        Self { folders: Some(folders), ..Self::default() }
    }

    pub(super) fn open(&mut self, handle: FileHandle) -> Result<u32> {
        let place = self.free.pop().unwrap_or(self.handles.len());
        if place >= MOST_HANDLES {
            bail!("it has more than {MOST_HANDLES} files open");
        }
        if place == self.handles.len() {
            self.handles.push(None);
        }
        self.handles[place] = Some(handle);
        Ok(place as u32 + 1)
    }

    pub(super) fn handle(&mut self, number: u32) -> Option<&mut FileHandle> {
        self.handles.get_mut((number as usize).checked_sub(1)?)?.as_mut()
    }

    /// Removes a handle that the instance has dropped.
    pub(super) fn close(&mut self, number: u32) {
        let Some(at) = (number as usize).checked_sub(1) else { return };
        if self.handles.get_mut(at).and_then(Option::take).is_some() {
            self.free.push(at);
        }
    }
}

//! What was opened of a run's model.

use super::super::Error;
use super::super::Result;
use super::super::journal::put;
use crate::config::files;
use crate::data::{Tokenizer, TokenizerOverrides};
use crate::model::{LoraSettings, ModelFolder};
use crate::run::RunFiles;
use std::path::Path;
use std::path::PathBuf;

/// A model's files, opened.
pub(super) struct OpenedModel {
    pub source: ModelFolder,
    /// A model that the run will store, but has not stored yet.
    pub(super) unstored: Option<UnstoredModel>,
    pub lora: Option<LoraSettings>,
    /// The reference model's folder, if not `source`.
    pub reference: Option<ModelFolder>,
    /// The teacher's folder, if there is one.
    pub teacher: Option<ModelFolder>,
    pub tokenizer: Tokenizer,
    pub(super) wording: TokenizerOverrides,
}

impl OpenedModel {
    /// Returns the model's context length.
    pub(super) fn context(&self) -> usize {
        self.source.architecture().max_positions
    }

    /// Stores a model that the run keeps in the run's folder, if the run `writes` one, and returns the model in its final place.
    pub(super) fn keep(self, folder: &Path, writes: bool) -> Result<ModelFolder> {
        let changed = self.tokenizer.changed_files(&self.wording, &self.source.architecture().eos_token_ids)?;
        let source = match &self.unstored {
            Some(made) if writes => keep_model(made.path(), &RunFiles(folder).made_model())?,
            _ => self.source,
        };
        Ok(source.with_replaced_files(changed))
    }
}

/// Bytes of a file of a model that a run keeps; the built-in one has 14 million.
const LARGEST_KEPT: u64 = 256 << 20;

/// A model that a run will store in its own folder.
pub(super) enum UnstoredModel {
    BuiltIn(tempfile::TempDir),
    /// A fork's model, in the folder of its parent.
    Parents(PathBuf),
}

impl UnstoredModel {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::BuiltIn(temporary) => temporary.path(),
            Self::Parents(path) => path,
        }
    }
}

fn keep_model(from: &Path, to: &Path) -> Result<ModelFolder> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        |source| Error::Write { path, source }
    };
    files::create_folder(to).map_err(fail(to))?;
    for entry in std::fs::read_dir(from).map_err(fail(from))?.filter_map(std::result::Result::ok) {
        let bytes = files::read(&entry.path(), LARGEST_KEPT).map_err(fail(&entry.path()))?;
        put(&to.join(entry.file_name()), &bytes)?;
    }
    Ok(ModelFolder::open(to)?.with_companions()?)
}

//! The opened files of a run's model.

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
    /// A model that the run will store in its folder.
    pub(super) unstored: Option<UnstoredModel>,
    pub lora: Option<LoraSettings>,
    /// Folder of the reference model, if it is not `source`.
    pub reference: Option<ModelFolder>,
    /// Folder of the teacher, if there is one.
    pub teacher: Option<ModelFolder>,
    pub tokenizer: Tokenizer,
    pub(super) wording: TokenizerOverrides,
}

impl OpenedModel {
    /// Returns the model's context length.
    pub(super) fn context(&self) -> usize {
        self.source.architecture().max_positions
    }

    /// Stores the model in the run's folder if it is to be kept there and the run `writes`. Returns the model at its final path.
    pub(super) fn keep(self, folder: &Path, writes: bool) -> Result<ModelFolder> {
        let changed = self.tokenizer.changed_files(&self.wording, &self.source.architecture().eos_token_ids)?;
        let source = match &self.unstored {
            Some(made) if writes => keep_model(made.path(), &RunFiles(folder).made_model())?,
            _ => self.source,
        };
        Ok(source.with_replaced_files(changed))
    }
}

/// Maximum size of a model's file that a run stores, in bytes; the built-in model has 14 million.
const LARGEST_KEPT: u64 = 256 << 20;

/// A model that a run will store in its own folder.
pub(super) enum UnstoredModel {
    BuiltIn(tempfile::TempDir),
    /// The model of a fork, in the folder of its parent.
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

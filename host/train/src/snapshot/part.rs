//! The part of a joint checkpoint that one rank writes.

use crate::checkpoint::{JointSave, PartsTimeout, collect_parts};
use crate::learner::RankShard;
use crate::model::{self, ModelFolder, Weights};
use crate::run::CheckpointFiles;
use candle_core::Tensor;
use std::fs;
use std::path::{Path, PathBuf};

/// Part of a rank in a joint checkpoint.
pub(crate) struct CheckpointPart {
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    pub shard: RankShard,
}

/// The first rank's role in a joint checkpoint.
pub(super) struct JointCheckpoint {
    pub save: JointSave,
    pub own: CheckpointPart,
    /// Folder of the run, into which the other ranks write their parts.
    pub run: PathBuf,
    /// Timeout for the other parts.
    pub timeout: PartsTimeout,
}

impl CheckpointPart {
    /// Writes the files to the folder of a checkpoint, or of a part of one.
    pub(crate) fn write(self, to: &Path) -> Result<(), String> {
        let Self { rank, ranks, shard: RankShard { model, value_model, moments } } = self;
        let files = CheckpointFiles::new(to);
        let text = |e: std::io::Error| e.to_string();
        let name = |name: &str| model::shard_name(name, rank, ranks);
        let shard = |tensors: Vec<(String, Tensor)>, folder: &Path| {
            fs::create_dir_all(folder).map_err(text)?;
            model::write_shard(tensors, &folder.join(name("model.safetensors"))).map_err(|e| e.to_string())
        };
        shard(model, to)?;
        if !value_model.is_empty() {
            shard(value_model, &files.value_model())?;
        }
        // At least one file shows that a checkpoint has moments: some optimizers have none.
        if let Some(moments) = moments.filter(|moments| rank == 0 || !moments.is_empty()) {
            fs::create_dir_all(files.folder()).map_err(text)?;
            let file = files.folder().join(name("optimizer.safetensors"));
            model::write_tensors(moments.into_iter().collect(), None, &file).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl JointCheckpoint {
    /// Writes the first rank's own part, and joins it with the others' once they are complete.
    pub(super) fn write(self, to: &Path) -> Result<(), String> {
        let Self { save, own, run, timeout } = self;
        let ranks = own.ranks;
        own.write(to)?;
        collect_parts(&run, save, 1..ranks, to, &timeout)?;
        let folders = [to.to_owned(), CheckpointFiles::new(to).value_model()];
        for folder in folders.iter().filter(|folder| folder.is_dir()) {
            // An adapter's file has another name.
            let has_shards = !model::shards_in(folder, "model").map_err(|e| e.to_string())?.is_empty();
            if has_shards && !folder.join("model.safetensors").exists() {
                model::write_index(folder).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }
}

/// Writes a model to a folder, without its weights if these are in the ranks' parts of a joint checkpoint. An adapter is written here.
pub(super) fn write_model(weights: &Weights, source: &ModelFolder, to: &Path, is_joint: bool) -> Result<(), String> {
    let written = match is_joint && weights.lora.is_none() {
        true => model::describe(weights, source, to),
        false => model::save(weights, source, to),
    };
    written.map_err(|e| e.to_string())
}

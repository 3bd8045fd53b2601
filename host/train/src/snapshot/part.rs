//! What one rank writes of a checkpoint that all ranks write.

use crate::checkpoint::{JointSave, PartsTimeout, collect_parts};
use crate::learner::RankShard;
use crate::model::{self, ModelFolder, Weights};
use crate::run::CheckpointFiles;
use candle_core::Tensor;
use std::fs;
use std::path::{Path, PathBuf};

/// A rank's part.
pub(crate) struct CheckpointPart {
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    pub shard: RankShard,
}

/// What the first rank does for a checkpoint that all ranks write.
pub(super) struct JointCheckpoint {
    pub save: JointSave,
    pub own: CheckpointPart,
    /// The run's folder, where the other ranks leave their parts.
    pub run: PathBuf,
    /// How long to wait for them.
    pub timeout: PartsTimeout,
}

impl CheckpointPart {
    /// Writes the files into the folder of a checkpoint, or of a part of one.
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
        // One file at least, by which a checkpoint is known to have them: some optimizers have none.
        if let Some(moments) = moments.filter(|moments| rank == 0 || !moments.is_empty()) {
            fs::create_dir_all(files.folder()).map_err(text)?;
            let file = files.folder().join(name("optimizer.safetensors"));
            model::write_tensors(moments.into_iter().collect(), None, &file).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl JointCheckpoint {
    /// Writes the first rank's own part, and joins it with the others' as soon as they are there.
    pub(super) fn write(self, to: &Path) -> Result<(), String> {
        let Self { save, own, run, timeout } = self;
        let ranks = own.ranks;
        own.write(to)?;
        collect_parts(&run, save, 1..ranks, to, &timeout)?;
        let folders = [to.to_owned(), CheckpointFiles::new(to).value_model()];
        for folder in folders.iter().filter(|folder| folder.is_dir()) {
            // An adapter is in a file of another name.
            let has_shards = !model::shards_in(folder, "model").map_err(|e| e.to_string())?.is_empty();
            if has_shards && !folder.join("model.safetensors").exists() {
                model::write_index(folder).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }
}

/// Writes a model into a folder: without its weights, if ranks write these as parts of theirs.
pub(super) fn write_model(weights: &Weights, source: &ModelFolder, to: &Path, is_joint: bool) -> Result<(), String> {
    let written = match is_joint && weights.lora.is_none() {
        true => model::describe(weights, source, to),
        false => model::save(weights, source, to),
    };
    written.map_err(|e| e.to_string())
}

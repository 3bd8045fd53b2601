//! Names and paths of a checkpoint's files other than those of its model.

use super::RunFiles;
use std::path::{Path, PathBuf};

/// The location of the files in a checkpoint that don't belong to its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointLayout {
    /// In a separate folder, so that the checkpoint itself is a model's folder and nothing else.
    Apart,
    /// Among the model's files, as older versions wrote them.
    Flat,
}

/// The files of a checkpoint other than those of its model.
///
/// Programs that load models read every `*.safetensors` in a folder as weights, so the run's files are in [`Self::TRAINER`].
#[derive(Clone, Copy, Debug)]
pub struct CheckpointFiles<'a> {
    checkpoint: &'a Path,
    layout: CheckpointLayout,
}

impl<'a> CheckpointFiles<'a> {
    /// Folder, in a checkpoint, of everything that does not belong to its model.
    const TRAINER: &'static str = "trainer";

    const MANIFEST: &'static str = "manifest.json";
    const SUMMARY: &'static str = "trainer_state.json";
    /// Name of the file with the counters.
    pub const SNAPSHOT: &'static str = "snapshot.json";
    /// Name of the file with the rollouts' numbers.
    pub const ROLLOUTS: &'static str = "rollouts.safetensors";
    const OPTIMIZER: &'static str = "optimizer.safetensors";
    const REFERENCE: &'static str = "reference.safetensors";
    const TEACHER: &'static str = "teacher.safetensors";
    const CRITIC: &'static str = "critic.safetensors";
    const VALUE_MODEL: &'static str = "value_model";
    const REPLACED: &'static str = "replaced";

    /// Tensor files among the model's that don't belong to the model, in checkpoints of older versions.
    pub const NOT_OF_MODEL: [&'static str; 2] = [Self::OPTIMIZER, Self::REFERENCE];

    /// Returns the files of a checkpoint that is being written.
    pub fn new(checkpoint: &'a Path) -> Self {
        Self { checkpoint, layout: CheckpointLayout::Apart }
    }

    /// Returns the files of an existing checkpoint, or of a model's folder that may have some, in the layout of the version that wrote
    /// them.
    pub fn find(checkpoint: &'a Path) -> Self {
        let apart = Self::new(checkpoint);
        let flat = Self { layout: CheckpointLayout::Flat, ..apart };
        let is_flat = !apart.manifest().exists() && (flat.manifest().exists() || !apart.folder().is_dir());
        if is_flat { flat } else { apart }
    }

    /// Returns the folder that holds the files.
    pub fn folder(self) -> PathBuf {
        match self.layout {
            CheckpointLayout::Apart => self.checkpoint.join(Self::TRAINER),
            CheckpointLayout::Flat => self.checkpoint.to_owned(),
        }
    }

    /// Returns the relative path of a file in the checkpoint, with `/` between names, as in the manifest.
    fn inside(self, name: &str) -> String {
        match self.layout {
            CheckpointLayout::Apart => format!("{}/{name}", Self::TRAINER),
            CheckpointLayout::Flat => name.to_owned(),
        }
    }

    /// Returns the manifest's relative path in the checkpoint.
    pub fn name_of_manifest(self) -> String {
        self.inside(Self::MANIFEST)
    }

    /// Returns the configuration's relative path in the checkpoint.
    pub fn name_of_config(self) -> String {
        self.inside(RunFiles::CONFIG)
    }

    /// Returns the relative paths of the files that every checkpoint has in addition to its model.
    pub fn required(self) -> [String; 2] {
        [RunFiles::CONFIG, Self::SUMMARY].map(|name| self.inside(name))
    }

    /// Returns the relative paths of the files that a run needs to resume.
    pub fn for_resuming(self) -> [String; 2] {
        [Self::SNAPSHOT, Self::OPTIMIZER].map(|name| self.inside(name))
    }

    /// Returns the relative path of the optimizer's moments, if they are in one file.
    pub fn name_of_optimizer(self) -> String {
        self.inside(Self::OPTIMIZER)
    }

    /// Returns whether a relative path is that of one of several files with the optimizer's moments.
    pub fn is_part_of_optimizer(self, name: &str) -> bool {
        name.starts_with(&self.inside("optimizer-")) && name.ends_with(".safetensors")
    }

    /// Returns whether the checkpoint has an optimizer's moments.
    pub fn has_optimizer(self) -> bool {
        let of_optimizer = |entry: std::fs::DirEntry| {
            let name = self.inside(&entry.file_name().to_string_lossy());
            name == self.name_of_optimizer() || self.is_part_of_optimizer(&name)
        };
        std::fs::read_dir(self.folder()).into_iter().flatten().filter_map(Result::ok).any(of_optimizer)
    }

    /// Returns the prefix of the relative paths of a value model's files.
    pub fn prefix_of_value_model(self) -> String {
        self.inside(&format!("{}/", Self::VALUE_MODEL))
    }

    /// Returns the path of the list of files with their checksums.
    pub fn manifest(self) -> PathBuf {
        self.folder().join(Self::MANIFEST)
    }

    /// Returns the path of the configuration that the checkpoint was written with.
    pub fn config(self) -> PathBuf {
        self.folder().join(RunFiles::CONFIG)
    }

    /// Returns the path of the checkpoint's summary, under the name that transformers uses.
    pub fn summary(self) -> PathBuf {
        self.folder().join(Self::SUMMARY)
    }

    /// Returns the path of the counters and the manifest of the rollouts.
    pub fn rest(self) -> PathBuf {
        self.folder().join(Self::SNAPSHOT)
    }

    /// Returns the path of the numbers of the rollouts that wait to be trained on, if there are any.
    pub fn rollouts(self) -> PathBuf {
        self.folder().join(Self::ROLLOUTS)
    }

    /// Returns the path of the optimizer's moments.
    pub fn optimizer(self) -> PathBuf {
        self.folder().join(Self::OPTIMIZER)
    }

    /// Returns the path of the reference model, if it has changed since the start of the run.
    pub fn reference(self) -> PathBuf {
        self.folder().join(Self::REFERENCE)
    }

    /// Returns the path of what a teacher that averages the policy has otherwise than the model that the run starts with.
    pub fn teacher(self) -> PathBuf {
        self.folder().join(Self::TEACHER)
    }

    /// Returns the path of a critic's head on the policy.
    pub fn critic(self) -> PathBuf {
        self.folder().join(Self::CRITIC)
    }

    /// Returns the folder of a value model.
    pub fn value_model(self) -> PathBuf {
        self.folder().join(Self::VALUE_MODEL)
    }

    /// Returns the folder of the plugins in use.
    pub fn plugins(self) -> PathBuf {
        self.folder().join(RunFiles::PLUGINS)
    }

    /// Returns the path of a plugin in use.
    pub fn plugin(self, name: &str) -> PathBuf {
        self.plugins().join(format!("{name}.wasm"))
    }

    /// Returns the path of a plugin's state.
    pub fn plugin_state(self, name: &str) -> PathBuf {
        self.plugins().join(format!("{name}.state"))
    }

    /// Returns the folder of replaced plugins.
    pub fn replaced(self) -> PathBuf {
        self.folder().join(Self::REPLACED)
    }

    /// Returns the paths of a replaced plugin and of its state.
    pub fn replaced_plugin(self, name: &str) -> [PathBuf; 2] {
        ["wasm", "state"].map(|kind| self.replaced().join(format!("{name}.{kind}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_are_found_where_the_version_that_wrote_them_put_them() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let optimizer = || CheckpointFiles::find(place.path()).optimizer();
        assert_eq!(CheckpointFiles::new(place.path()).optimizer(), at("trainer/optimizer.safetensors"));
        assert_eq!(CheckpointFiles::new(place.path()).required()[0], "trainer/config.toml");
        // An empty folder, or one without a manifest.
        assert_eq!(optimizer(), at("optimizer.safetensors"));
        fs::create_dir(at("trainer")).unwrap();
        assert_eq!(optimizer(), at("trainer/optimizer.safetensors"));
        // A folder of an older version, to which somebody added a folder.
        fs::write(at("manifest.json"), "").unwrap();
        assert_eq!(optimizer(), at("optimizer.safetensors"));
        assert_eq!(CheckpointFiles::find(place.path()).for_resuming(), ["snapshot.json", "optimizer.safetensors"]);
        // A folder of this version, to which somebody added a file.
        fs::write(at("trainer/manifest.json"), "").unwrap();
        assert_eq!(optimizer(), at("trainer/optimizer.safetensors"));
    }
}

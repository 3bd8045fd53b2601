//! Checks for the files without which a checkpoint can't be used, so that a checkpoint whose manifest omits them does not count as intact.

use super::{Error, Manifest};
use crate::config::{self, files};
use crate::run::CheckpointFiles;
use std::collections::BTreeSet;
use std::path::Path;

/// Maximum size of the list of weight files, in bytes.
const LARGEST_INDEX: u64 = 64 << 20;

/// List of the weight files, if there are several.
const INDEX: &str = "model.safetensors.index.json";

impl Manifest {
    /// Checks that the manifest lists what every checkpoint has: its configuration and summary, a model or an adapter, and the files needed
    /// to resume unless the run saves only models.
    ///
    /// # Errors
    /// Names the first file that is not listed.
    pub fn check_complete(&self, checkpoint: &Path) -> Result<(), Error> {
        let lists = |name: &str| self.files.contains_key(name);
        let own = CheckpointFiles::find(checkpoint);
        let of_value_model = Some(own.prefix_of_value_model());
        let of_value_model = of_value_model.filter(|folder| self.files.keys().any(|name| name.starts_with(folder)));
        let models = [String::new()].into_iter().chain(of_value_model);
        let models = models.flat_map(|folder| {
            let [config, weights] = match ["adapter_config.json", "adapter_model.safetensors"] {
                adapter if adapter.iter().any(|name| lists(&format!("{folder}{name}"))) => adapter,
                _ if lists(&format!("{folder}{INDEX}")) => ["config.json", INDEX],
                _ => ["config.json", "model.safetensors"],
            };
            let shards = if weights == INDEX { shards(&checkpoint.join(&folder)) } else { Vec::new() };
            let all = [config.to_owned(), weights.to_owned()].into_iter().chain(shards);
            all.map(|name| format!("{folder}{name}")).collect::<Vec<_>>()
        });
        let missing = own.required().into_iter().chain(models).find(|name| !lists(name));
        let for_resuming = || {
            let is_divided = self.files.keys().any(|name| own.is_part_of_optimizer(name));
            let all = own.for_resuming().into_iter().filter(|name| !is_divided || *name != own.name_of_optimizer());
            let missing = all.into_iter().find(|name| !lists(name))?;
            (!saves_only_model(checkpoint)).then_some(missing)
        };
        match missing.or_else(for_resuming) {
            None => Ok(()),
            Some(missing) => {
                let detail = format!("its manifest lists no {missing}, which a checkpoint must have");
                Err(Error::Damaged { path: checkpoint.to_owned(), detail })
            }
        }
    }
}

/// Returns the names of the weight files listed in a folder's index.
fn shards(folder: &Path) -> Vec<String> {
    let text = files::read(&folder.join(INDEX), LARGEST_INDEX).unwrap_or_default();
    let index: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let names = index["weight_map"].as_object().into_iter().flatten().filter_map(|(_, file)| file.as_str());
    names.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns whether the run that wrote a checkpoint saves only models, judging by the checkpoint's configuration.
fn saves_only_model(checkpoint: &Path) -> bool {
    let config = files::read(&CheckpointFiles::find(checkpoint).config(), config::LARGEST).unwrap_or_default();
    let config = String::from_utf8_lossy(&config).parse::<toml::Table>().unwrap_or_default();
    config.get("save_only_model").and_then(toml::Value::as_bool).unwrap_or_default()
}

/// Writes the minimal contents of a checkpoint into the folder `to`, for tests.
#[cfg(test)]
pub(super) fn write_least(to: &Path) {
    let no_tensors = b"\x02\0\0\0\0\0\0\0{}".as_slice();
    let own = CheckpointFiles::new(to);
    std::fs::create_dir(own.folder()).unwrap();
    let model = ["config.json", "model.safetensors"].map(str::to_owned);
    for name in own.required().into_iter().chain(own.for_resuming()).chain(model) {
        let of_tensors = name.ends_with(".safetensors");
        std::fs::write(to.join(name), if of_tensors { no_tensors } else { b"" }).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{save, verify};
    use super::*;
    use std::fs;

    /// Returns the error for a checkpoint whose folder was changed before it was sealed; empty if it is intact.
    fn said(change: impl Fn(&Path)) -> String {
        let run = tempfile::tempdir().unwrap();
        let fill = |to: &Path| {
            write_least(to);
            change(to);
            Ok(())
        };
        let path = save(run.path(), 1, fill).unwrap();
        verify(&path).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_checkpoint_without_a_file_that_it_needs_is_not_intact() {
        assert_eq!(said(|_| ()), "");
        let own =
            ["config.toml", "trainer_state.json", "snapshot.json", "optimizer.safetensors"].map(|name| format!("trainer/{name}"));
        let required = own.iter().map(String::as_str).chain(["config.json", "model.safetensors"]);
        for name in required {
            let said = said(|to| fs::remove_file(to.join(name)).unwrap());
            assert!(said.contains(&format!("lists no {name}")), "{name}: {said}");
        }
        // Only the model, and only an adapter.
        let only_model = |to: &Path| {
            fs::write(to.join("trainer/config.toml"), "save_only_model = true\n").unwrap();
            let for_resuming = ["trainer/snapshot.json", "trainer/optimizer.safetensors"];
            for_resuming.iter().for_each(|name| fs::remove_file(to.join(name)).unwrap());
        };
        assert_eq!(said(only_model), "");
        let adapter = |to: &Path| {
            fs::write(to.join("adapter_config.json"), "{}").unwrap();
            fs::rename(to.join("model.safetensors"), to.join("adapter_model.safetensors")).unwrap();
        };
        assert_eq!(said(adapter), "");
        let half = |to: &Path| {
            adapter(to);
            fs::remove_file(to.join("adapter_model.safetensors")).unwrap();
        };
        assert!(said(half).contains("lists no adapter_model.safetensors"));
        let critic = |to: &Path| {
            fs::create_dir(to.join("trainer/value_model")).unwrap();
            fs::write(to.join("trainer/value_model/config.json"), "{}").unwrap();
        };
        assert!(said(critic).contains("lists no trainer/value_model/model.safetensors"));
    }
}

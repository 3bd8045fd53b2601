//! Resolves names in a configuration: paths, and names on the Hugging Face hub.

use super::Result;
use crate::config::{Config, printable_path};
use crate::data::Dataset;
use crate::hub;
use std::path::{Path, PathBuf};

/// Returns the folder of a model, downloaded if it is a hub name, and a name that stays valid wherever and whenever a run
/// resumes: the absolute path, or the hub name with its commit.
///
/// # Errors
/// If it is a hub name and can't be downloaded.
pub fn model_of(given: &str) -> Result<(PathBuf, String)> {
    if hub::looks_like_name(given) {
        let model = hub::model(given)?;
        return Ok((model.folder, model.name));
    }
    let path = absolute(given);
    Ok((PathBuf::from(&path), path))
}

/// Returns the file or folder with a chat template, in the same way; of a hub name, only the files that may hold one are downloaded.
///
/// # Errors
/// If it is a hub name and can't be downloaded.
pub(super) fn template_of(given: &str) -> Result<(PathBuf, String)> {
    if hub::looks_like_name(given) {
        let template = hub::template(given)?;
        return Ok((template.folder, template.name));
    }
    let path = absolute(given);
    Ok((PathBuf::from(&path), path))
}

/// Returns whether a dataset may have a split of this name: any on the hub, or a folder that is laid out like one there.
pub fn has_split(given: &str, split: &str) -> bool {
    hub::looks_like_name(given) || matches!(hub::local_split(Path::new(given), split, true), Ok(Some(_)))
}

/// Returns the configuration's dataset, if any, in the same way.
///
/// # Errors
/// If it is a hub name and can't be downloaded.
pub fn dataset_of(config: &Config) -> Result<Option<(Dataset, String)>> {
    let given = config.dataset.as_deref();
    given.map(|given| dataset(given, (&config.dataset_train_split, "train"), config)).transpose()
}

/// Returns the evaluation dataset, if any, in the same way.
///
/// # Errors
/// If it is a hub name and can't be downloaded.
pub(super) fn held_out(config: &Config) -> Result<Option<(Dataset, String)>> {
    let given = config.eval_dataset.as_deref();
    given.map(|given| dataset(given, (&config.dataset_test_split, "test"), config)).transpose()
}

/// Returns the files of a local dataset: itself, or a split's if it is a folder laid out like a dataset on the hub.
fn local(path: &Path, split: &str, by_default: &str) -> Result<Vec<PathBuf>> {
    let chosen = split != by_default;
    let split_of = |folder: &Path| hub::local_split(folder, split, chosen);
    let files = if path.is_dir() && !path.join("config.json").exists() { split_of(path)? } else { None };
    if chosen && files.is_none() {
        tracing::warn!(
            "{}: read whole: it has no split {split:?}, since its files are those of one dataset",
            printable_path(path)
        );
    }
    Ok(files.unwrap_or_else(|| vec![path.to_owned()]))
}

fn dataset(given: &str, (split, by_default): (&str, &str), config: &Config) -> Result<(Dataset, String)> {
    let (files, name) = if hub::looks_like_name(given) {
        let dataset = hub::dataset(given, split)?;
        (dataset.files, dataset.name)
    } else {
        let path = absolute(given);
        (local(Path::new(&path), split, by_default)?, path)
    };
    Ok((Dataset { files, columns: config.columns() }, name))
}

/// Returns the absolute path of a file or folder.
pub(super) fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |whole| whole.display().to_string())
}

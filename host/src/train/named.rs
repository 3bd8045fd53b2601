//! Resolves names in a configuration: paths, and names on the Hugging Face hub.

use super::Result;
use crate::config::Config;
use crate::data::Dataset;
use crate::hub;
use std::path::PathBuf;

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

/// Returns the configuration's dataset, if any, in the same way.
///
/// # Errors
/// If it is a hub name and can't be downloaded.
pub fn dataset_of(config: &Config) -> Result<Option<(Dataset, String)>> {
    let given = config.dataset.as_deref();
    given.map(|given| dataset(given, &config.dataset_train_split, config)).transpose()
}

/// Returns the evaluation dataset, if any, in the same way.
///
/// # Errors
/// If it is a hub name and can't be downloaded.
pub(super) fn held_out(config: &Config) -> Result<Option<(Dataset, String)>> {
    let given = config.eval_dataset.as_deref();
    given.map(|given| dataset(given, &config.dataset_test_split, config)).transpose()
}

fn dataset(given: &str, split: &str, config: &Config) -> Result<(Dataset, String)> {
    let (files, name) = if hub::looks_like_name(given) {
        let dataset = hub::dataset(given, split)?;
        (dataset.files, dataset.name)
    } else {
        let path = absolute(given);
        (vec![PathBuf::from(&path)], path)
    };
    Ok((Dataset { files, columns: config.columns() }, name))
}

/// Returns the absolute path of a file or folder.
pub(super) fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |whole| whole.display().to_string())
}

//! What a configuration names: paths, and names on the Hugging Face hub.

use super::Result;
use crate::config::Config;
use crate::data::Dataset;
use crate::hub;
use std::path::PathBuf;

/// The folder of a model, fetched if it is named by its name on the hub; and the name that means
/// the same wherever and whenever a run is resumed: the whole path, or the name with its commit.
///
/// # Errors
/// If it is a name on the hub and can't be had from there.
pub fn model_of(given: &str) -> Result<(PathBuf, String)> {
    if hub::looks_like_name(given) {
        let model = hub::model(given)?;
        return Ok((model.folder, model.name));
    }
    let path = absolute(given);
    Ok((PathBuf::from(&path), path))
}

/// The dataset that a configuration names, if it names one, in the same way.
///
/// # Errors
/// If it is a name on the hub and can't be had from there.
pub fn dataset_of(config: &Config) -> Result<Option<(Dataset, String)>> {
    let given = config.dataset.as_deref();
    given.map(|given| dataset(given, &config.dataset_train_split, config)).transpose()
}

/// The same for the dataset of evaluations.
///
/// # Errors
/// If it is a name on the hub and can't be had from there.
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

fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |whole| whole.display().to_string())
}

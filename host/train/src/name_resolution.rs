//! Resolves names in a configuration: paths, and names on the Hugging Face hub.

use super::{Error, Result};
use crate::checkpoint;
use crate::config::{RunConfig, printable_path};
use crate::data::{Dataset, FilePart, SplitPart};
use crate::hub;
use crate::run::RunFiles;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Returns the folder of a model, downloaded if it is a hub name, and a name that stays valid wherever and whenever a run resumes: the
/// absolute path, or the hub name with its commit. A run's folder stands for its newest intact checkpoint.
///
/// # Errors
/// If it is a hub name and can't be downloaded, a URL, a file, or a run without a checkpoint.
pub fn model_of(given: &str) -> Result<(PathBuf, String)> {
    if hub::looks_like_name(given) {
        let model = hub::model(given)?;
        return Ok((model.folder, model.name));
    }
    refuse_url(given, "model")?;
    let path = absolute(given);
    let folder = PathBuf::from(&path);
    if folder.is_file() {
        let advice = match folder.parent().filter(|parent| parent.join("config.json").exists()) {
            _ if given.ends_with(".wasm") => "; for a plugin, use --plugin".to_owned(),
            Some(parent) => format!("; name {}", printable_path(parent)),
            None => String::new(),
        };
        return Err(Error::unusable(&folder, format!("is a file, and a model is a folder with config.json{advice}")));
    }
    let model = model_in(&folder)?;
    let name = if model == folder { path } else { model.display().to_string() };
    Ok((model, name))
}

/// Returns the folder itself or, for a run's folder, its newest intact checkpoint.
///
/// # Errors
/// If a run has no intact checkpoint.
pub fn model_in(folder: &Path) -> Result<PathBuf> {
    let is_model = ["config.json", "adapter_config.json"].iter().any(|name| folder.join(name).exists());
    if is_model || !RunFiles(folder).events().exists() {
        return Ok(folder.to_owned());
    }
    let (_, newest, passed_over) = checkpoint::newest(folder)?;
    for damaged in passed_over {
        tracing::warn!("{damaged}; skipping it");
    }
    tracing::info!("{}: using its newest checkpoint, {}", printable_path(folder), printable_path(&newest));
    Ok(newest)
}

/// Refuses a URL, which would otherwise be taken for a path.
fn refuse_url(given: &str, what: &str) -> Result<()> {
    let scheme = given.split_once("://").map(|(scheme, _)| scheme).unwrap_or_default();
    if scheme.is_empty() || !scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) || Path::new(given).exists() {
        return Ok(());
    }
    let advice = format!("download it and give its path, or name a {what} on the hub as OWNER/NAME");
    Err(Error::unusable(Path::new(given), format!("is a URL, and URLs are not read; {advice}")))
}

/// Returns the file or folder with a chat template, and a name that stays valid as in [`model_of`]. For a hub name, only files that may
/// hold a template are downloaded.
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

/// Returns whether a dataset may have a split of this name: any dataset on the hub, or a folder with the layout of one.
pub fn has_split(given: &str, split: &str) -> bool {
    let Ok(parts) = SplitPart::parse(split) else { return false };
    let (folder, subset) = match hub::local_subset(given) {
        Some((folder, subset)) => (folder, Some(subset)),
        None if hub::looks_like_name(given) => return true,
        None => (PathBuf::from(given), None),
    };
    parts.iter().all(|part| matches!(hub::local_split(&folder, subset.as_deref(), (&part.split, true), is_output), Ok(Some(_))))
}

/// Returns a local dataset: a file, or the training split of a folder.
///
/// # Errors
/// If the folder has no such split.
pub fn local_dataset(path: &Path) -> Result<Dataset> {
    Ok(Dataset { files: local(path, None, ("train", "train"))?, ..Dataset::default() })
}

/// Returns the configuration's dataset, if any, and a name that stays valid wherever the run resumes.
///
/// # Errors
/// If it is a hub name and can't be downloaded.
pub fn dataset_of(config: &RunConfig) -> Result<Option<(Dataset, String)>> {
    let given = config.dataset.as_deref();
    given.map(|given| dataset(given, (&config.dataset_train_split, "train"), config)).transpose()
}

/// Returns the evaluation dataset, if any, and a name that stays valid wherever the run resumes.
///
/// # Errors
/// If it is a hub name and can't be downloaded.
pub(super) fn eval_dataset_of(config: &RunConfig) -> Result<Option<(Dataset, String)>> {
    let given = config.eval_dataset.as_deref();
    given.map(|given| dataset(given, (&config.dataset_test_split, "test"), config)).transpose()
}

/// Returns whether a folder belongs to a run or a model. Such folders inside a dataset's folder are not part of the dataset.
fn is_output(folder: &Path) -> bool {
    let run = RunFiles(folder);
    folder.join("config.json").is_file() || run.config().is_file() && run.events().is_file()
}

/// Returns the files of a local dataset: the file itself or, for a folder, those of a split.
fn local(path: &Path, subset: Option<&str>, (split, by_default): (&str, &str)) -> Result<Vec<PathBuf>> {
    let chosen = split != by_default;
    let is_dataset = path.is_dir() && !path.join("config.json").exists();
    let found = if is_dataset { hub::local_split(path, subset, (split, chosen), is_output)? } else { None };
    let place = printable_path(path);
    let Some(found) = found else {
        if chosen {
            tracing::warn!("{place}: read whole: it has no split {split:?}, since its files are those of one dataset");
        }
        return Ok(vec![path.to_owned()]);
    };
    tracing::info!("{place}: {}", found.summary);
    if let Some(ignored) = found.ignored {
        tracing::warn!("{place}: not read, since the split {} does not have them: {ignored}", found.name);
    }
    if let Some(unused) = found.unused {
        tracing::warn!("{place}: {unused}");
    }
    Ok(found.files)
}

fn dataset(given: &str, (split, by_default): (&str, &str), config: &RunConfig) -> Result<(Dataset, String)> {
    let parts = SplitPart::parse(split).map_err(|detail| {
        Error::setting(if by_default == "train" { "dataset_train_split" } else { "dataset_test_split" }, detail)
    })?;
    let (mut files, mut name, mut read, mut known) = (Vec::new(), String::new(), Vec::new(), Vec::<(String, _)>::new());
    for SplitPart { split, slice } in parts {
        if let Some((_, range)) = known.iter().find(|(other, _)| *other == split) {
            read.push(FilePart { files: Range::clone(range), slice });
            continue;
        }
        // All splits of a hub dataset are from the same commit.
        let place = if name.is_empty() { given } else { &name };
        let (own, of) = files_of_split(place, &split, by_default)?;
        let range = files.len()..files.len() + own.len();
        files.extend(own);
        name = of;
        known.push((split, range.clone()));
        read.push(FilePart { files: range, slice });
    }
    // Without slices, all files are read in sequence anyway.
    if read.len() == known.len() && read.iter().all(|part| part.slice.is_none()) {
        read.clear();
    }
    Ok((Dataset { files, parts: read, columns: config.columns() }, name))
}

/// Returns the files of a dataset's split, and the dataset's name.
fn files_of_split(given: &str, split: &str, by_default: &str) -> Result<(Vec<PathBuf>, String)> {
    if let Some((folder, subset)) = hub::local_subset(given) {
        let folder = PathBuf::from(absolute(&folder.to_string_lossy()));
        return Ok((local(&folder, Some(&subset), (split, by_default))?, absolute(given)));
    }
    if hub::looks_like_name(given) {
        let dataset = hub::dataset(given, split)?;
        return Ok((dataset.files, dataset.name));
    }
    refuse_url(given, "dataset")?;
    let path = absolute(given);
    Ok((local(Path::new(&path), None, (split, by_default))?, path))
}

/// Returns the absolute path of a file or folder.
pub(super) fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |whole| whole.display().to_string())
}

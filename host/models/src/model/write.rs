//! Writes weights and configurations.

use super::weights::of_critic;
use super::{Error, Result, Weights};
use crate::ops;
use candle_core::Tensor;
use safetensors::SafeTensorError;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

pub(super) fn unwritten(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    |source| Error::Write { path: path.to_owned(), source }
}

/// Writes a critic's head, if the model has one, into a file of its own.
///
/// # Errors
/// If it can't be written.
pub fn write_critic(weights: &Weights, file: &Path) -> Result<()> {
    let tensors: Vec<(String, Tensor)> =
        weights.named().into_iter().filter(|(name, _)| of_critic(name)).map(|(n, t)| (n, t.clone())).collect();
    if tensors.is_empty() {
        return Ok(());
    }
    write_tensors(tensors, None, file)
}

/// Writes one safetensors file, without a critic's head or an adapter.
pub fn write_weights(weights: &Weights, file: &Path) -> Result<()> {
    let tensors = weights.in_files()?.into_iter().filter(|(name, _)| !of_critic(name)).collect();
    // transformers refuses a file that does not say whose tensors it holds.
    write_tensors(tensors, of_torch(), file)
}

/// Returns the metadata that transformers and peft expect in a file of tensors.
pub(super) fn of_torch() -> Option<HashMap<String, String>> {
    Some(HashMap::from([("format".to_owned(), "pt".to_owned())]))
}

/// Writes a safetensors file with the permissions of any new file.
///
/// # Errors
/// If it can't be written.
pub fn write_tensors(tensors: Vec<(String, Tensor)>, metadata: Option<HashMap<String, String>>, file: &Path) -> Result<()> {
    let on_host = |(name, t): (String, Tensor)| Ok((name, if t.device().is_cpu() { t } else { ops::on_host(&t)? }));
    let tensors: Vec<(String, Tensor)> = tensors.into_iter().map(on_host).collect::<Result<_>>()?;
    // The library's own file is for its owner alone.
    let rights = File::create(file).and_then(|file| file.metadata()).map_err(unwritten(file))?.permissions();
    safetensors::serialize_to_file(tensors, metadata, file).map_err(|e| match e {
        SafeTensorError::IoError(source) => Error::Write { path: file.to_owned(), source },
        other => Error::Weights { path: file.to_owned(), detail: format!("can't write: {other}") },
    })?;
    // Some filesystems refuse any change of permissions; the file is written all the same.
    drop(std::fs::set_permissions(file, rights));
    Ok(())
}

//! Reads weights of the model and of its adapters while the server runs.

use crate::model::{Architecture, Decoder, Error, FrozenModel, IncrementalDecoder, ModelFolder, Result, WeightStorage, Weights};
use crate::ops;
use rlhost_config::RolloutDtype;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Number of values that are hashed at a time.
const HASHED_AT_ONCE: usize = 16 << 10;

/// Loader of a model's weights.
pub struct WeightLoader {
    /// Folder that is served.
    folder: ModelFolder,
    dtype: RolloutDtype,
    models: Mutex<ServedDecoders>,
}

/// Served weights, which share memory where they can.
struct ServedDecoders {
    /// Decoder without an adapter.
    plain: Decoder,
    /// Decoder with the served folder's adapter, if the folder is an adapter's.
    served: Decoder,
}

impl ServedDecoders {
    fn read(folder: &ModelFolder) -> Result<Self> {
        let plain = match folder.lora() {
            Some(_) => ModelFolder::open(folder.base())?.with_weight_storage(folder.weight_storage()).decoder()?,
            None => folder.decoder()?,
        };
        Ok(Self { served: folder.decoder_over(plain.clone())?, plain })
    }
}

impl WeightLoader {
    /// Reads the weights of a folder; also returns them for generation.
    ///
    /// # Errors
    /// If the weights can't be read.
    pub fn open(folder: ModelFolder, dtype: RolloutDtype) -> Result<(Self, IncrementalDecoder)> {
        let models = ServedDecoders::read(&folder)?;
        let decoding = FrozenModel::new(models.served.clone()).decoding_with(dtype)?;
        Ok((Self { folder, dtype, models: Mutex::new(models) }, decoding))
    }

    fn models(&self) -> std::sync::MutexGuard<'_, ServedDecoders> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads an adapter on the model.
    ///
    /// # Errors
    /// If the folder has no adapter, or it does not fit the model.
    pub fn adapter(&self, path: &Path) -> Result<IncrementalDecoder> {
        let plain = self.models().plain.clone();
        let decoder = self.folder.with_adapter_in(path)?.decoder_over(plain)?;
        FrozenModel::new(decoder).decoding_with(self.dtype)
    }

    /// Reads the model's weights again, from another folder if a path is given. On an error, the served weights stay unchanged.
    ///
    /// # Errors
    /// If the weights can't be read, or belong to a model of other sizes.
    pub(crate) fn reload(&self, path: Option<&Path>) -> Result<IncrementalDecoder> {
        let folder = match path {
            Some(path) => ModelFolder::open(path)?.with_weight_storage(self.folder.weight_storage()),
            None => self.folder.clone(),
        };
        let (own, new) = (self.folder.architecture(), folder.architecture());
        if !same_sizes(own, new) {
            let detail = "the model has another architecture than the one that is served".into();
            return Err(Error::Config { path: folder.path().to_owned(), detail });
        }
        let models = ServedDecoders::read(&folder)?;
        let decoding = FrozenModel::new(models.served.clone()).decoding_with(self.dtype)?;
        *self.models() = models;
        Ok(decoding)
    }

    /// Returns the checksum of each tensor of the served model, without an adapter.
    ///
    /// # Errors
    /// If weights are quantized, and so differ from those of the files.
    pub(crate) fn checksums(&self) -> std::result::Result<BTreeMap<String, String>, String> {
        if self.folder.weight_storage() != WeightStorage::AS_STORED {
            return Err("the weights are quantized, so they can't be compared with those of a file".into());
        }
        let served = FrozenModel::new(self.models().plain.clone());
        checksums(&served).map_err(|e| e.to_string())
    }
}

/// Returns the checksums that a server reports of a model's weights, if it serves this folder.
///
/// # Errors
/// If the weights can't be read.
pub fn folder_checksums(folder: &ModelFolder) -> Result<BTreeMap<String, String>> {
    Ok(checksums(&FrozenModel::new(folder.decoder()?))?)
}

/// Returns the SHA-256 of each tensor: of its values as little-endian f32.
fn checksums(model: &FrozenModel) -> ops::Result<BTreeMap<String, String>> {
    let sum = |(name, tensor): (String, &_)| {
        let mut hash = Sha256::new();
        for part in ops::to_vec(tensor)?.chunks(HASHED_AT_ONCE) {
            hash.update(part.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        }
        let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((name, digits))
    };
    let weights: &Weights = model.weights();
    weights.named().into_iter().map(sum).collect()
}

/// Returns whether weights of one model can replace those of another. End tokens don't matter.
fn same_sizes(a: &Architecture, b: &Architecture) -> bool {
    Architecture { eos_token_ids: a.eos_token_ids.clone(), ..b.clone() } == *a
}

//! Writes a model's configuration.

use super::companions::CompanionFiles;
use super::dtype::WeightDtype;
use super::write::unwritten;
use super::{Error, ModelFolder, Result};
use crate::config::json;
use std::path::Path;

/// Writes the source's `config.json` with another dtype and the changes of `edit`.
pub(super) fn write_config(
    source: &ModelFolder,
    companions: &CompanionFiles,
    to: &Path,
    dtype: WeightDtype,
    edit: impl FnOnce(&mut serde_json::Value),
) -> Result<()> {
    let fail = |detail: String| Error::Config { path: source.base().join("config.json"), detail };
    let mut config = json::value(&companions.config).map_err(|e| fail(e.to_string()))?;
    if let (true, Some(whole)) = (source.architecture().text_part, config.as_object()) {
        let text = super::text_part::config(whole.iter().map(|(key, value)| (key.as_str(), value)));
        config = text.map_err(fail)?.into();
    }
    for key in ["dtype", "torch_dtype"] {
        if let Some(value) = config.get_mut(key) {
            *value = dtype.name().into();
        }
    }
    // Packed weights are written unpacked.
    config.as_object_mut().and_then(|config| config.remove("quantization_config"));
    edit(&mut config);
    let to = to.join("config.json");
    std::fs::write(&to, format!("{config:#}\n")).map_err(unwritten(&to))
}

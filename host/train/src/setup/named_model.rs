//! Opens an additional model that a key names, and compares it with the policy.

use super::opened_model::OpenedModel;
use crate::model::ModelFolder;
use crate::name_resolution::model_of;
use crate::{Error, Result};

/// Opens a folder, and returns it with a name that stays valid.
///
/// # Errors
/// The reason, if it can't be opened.
pub(super) fn open_named(given: &str) -> std::result::Result<(ModelFolder, String), String> {
    let (folder, name) = model_of(given).map_err(|e| e.to_string())?;
    Ok((ModelFolder::open(folder).map_err(|e| e.to_string())?, name))
}

/// Refuses a model named by this key if it has fewer than `tokens` tokens, or a shorter context than the policy.
pub(super) fn check_sizes(key: &'static str, folder: &ModelFolder, opened: &OpenedModel, tokens: usize) -> Result<()> {
    let unfit = |detail: String| Err(Error::setting(key, format!("{} {detail}", folder.path().display())));
    let (own, policy) = (folder.architecture(), opened.source.architecture());
    if own.vocab_size < tokens {
        let own = own.vocab_size;
        return unfit(format!("reads {own} tokens and the policy writes {tokens}; it must have the same tokenizer"));
    }
    if own.max_positions < policy.max_positions {
        let (own, policy) = (own.max_positions, policy.max_positions);
        return unfit(format!("has a context of {own} tokens and the policy one of {policy}; it must not be shorter"));
    }
    Ok(())
}

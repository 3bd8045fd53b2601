//! Direct Preference Optimization (Rafailov et al. 2023) and its successors, with f-divergences and LD-DPO. Names, defaults and
//! metrics are TRL's; [`settings::DpoLossType`] lists the losses.
//!
//! Differences from TRL:
//! - `sft` is a mean over the chosen tokens of the complete optimizer step, not of a micro-batch.
//! - `sft` alone needs no reference model and then reports no `rewards/*`.
//! - `aot` and `aot_unpaired` sort the pairs of one micro-batch, as in TRL, so for these two the micro-batch size affects the
//!   loss.

mod loss;
pub mod settings;
#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::Error;
use rlhost_plugin_sdk::preference::{Needs, Preference, PreferenceGradient, PreferencePairs};
pub use settings::{DpoLossType, DpoLossTypes, DpoSettings, FDivergence};

/// The algorithm with its settings.
pub struct Dpo {
    settings: DpoSettings,
}

impl Preference for Dpo {
    type Config = DpoSettings;
    const DESCRIPTION: &'static str = "Direct Preference Optimization, with fifteen losses";

    fn needs(config: &DpoSettings) -> Needs {
        let mut needs = Needs::MEAN_LOGITS;
        if config.has_reference() {
            needs |= Needs::REF_LOGP;
        }
        if config.use_weighting {
            needs |= Needs::LOG_SUM_SQUARES;
        }
        needs
    }

    fn new(settings: DpoSettings) -> Result<Self, Error> {
        settings.check()?;
        Ok(Self { settings })
    }

    fn loss(&mut self, pairs: &PreferencePairs) -> Result<PreferenceGradient, Error> {
        loss::loss(&self.settings, pairs)
    }
}

rlhost_plugin_sdk::preference_plugin!(Dpo);

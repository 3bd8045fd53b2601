//! Plugins for labelled completions: compute a loss over completions that are desirable or not, with its derivatives.

use super::adapters::labelled;
use super::asked;
use super::columns;
use super::engine::Engine;
use super::instance::Plugin;
use super::loaded::Call;
use super::old::Gradient;
use super::policy::Check;
use super::sandbox::Sandbox;
use super::world::Role;
use super::{Result, Source};
use crate::config::Limits;
use serde_json::{Map, Value};
use std::ops::{Deref, DerefMut};
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

pub use super::adapters::labelled::{Examples, Mismatched};

/// A loaded algorithm for labelled completions.
pub struct LabelledPlugin {
    plugin: Plugin,
}

impl Deref for LabelledPlugin {
    type Target = Plugin;

    fn deref(&self) -> &Plugin {
        &self.plugin
    }
}

impl DerefMut for LabelledPlugin {
    fn deref_mut(&mut self) -> &mut Plugin {
        &mut self.plugin
    }
}

impl LabelledPlugin {
    /// Loads and configures a plugin; `seed` is the run's.
    pub fn load(engine: &Engine, source: &Source, config: &Map<String, Value>, limits: &Limits, seed: u64) -> Result<Self> {
        let plugin = Plugin::load(engine, source, Role::Labelled, config, limits, seed)?;
        Ok(Self { plugin })
    }

    /// Returns one micro-batch's part of the loss. Sends only the columns that the plugin asks for.
    pub fn loss(&mut self, examples: &Examples) -> Result<Gradient> {
        let examples = &*asked::examples(examples, &self.info().needs, self.info().needs.has(columns::MISMATCHED_LOGP));
        let at = Call::at("loss", examples.step);
        let loaded = self.plugin.shared();
        let loss = |store: &mut Store<Sandbox>, linked: &Linked| loaded.exports.old()?.call_labelled(store, linked, examples);
        let given: labelled::Gradient = self.plugin.call(at, loss)?;
        let check = |tokens| Check { name: self.name(), function: "loss", step: examples.step, tokens };
        check(0).loss(given.loss)?;
        check(examples.logp.len()).column("d_logp", &given.d_logp)?;
        let metrics = self.plugin.checked_metrics(Role::Labelled, given.metrics).map_err(|e| check(0).wrong(e))?;
        let same = |again: labelled::Gradient| again.loss.to_bits() == given.loss.to_bits() && again.d_logp == given.d_logp;
        if !self.plugin.answer_again(at, false, loss).is_none_or(same) {
            return Err(self.plugin.not_stateless(at, "the loss differs"));
        }
        Ok(Gradient { loss: given.loss, d_logp: given.d_logp, metrics, ..Gradient::default() })
    }
}

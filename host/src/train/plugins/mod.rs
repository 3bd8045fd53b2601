//! The run's plugins in their places, the algorithm and the rewards. Whatever a run asks a plugin goes through here, so that
//! the newest batch of each kind is there for the trial of the next version.

mod scoring;
mod swap;

pub(super) use scoring::{Reward, Scored, Trouble, batch};
pub(super) use swap::{LIVE, Seen, Slot, Swap, Trial, cant_change, dry_run};

use super::experience::Pair;
use super::ranks::known_to_all;
use super::{Error, Result};
use crate::config::Config;
use crate::dist::World;
use crate::metrics::{Metric, Reduction};
use crate::plugin::{self, Advantages, AnyPlugin, Gradient, Memory, Needs, PairGradient, Pairs, Plugin, Rollouts, Tokens};
use std::rc::Rc;
use std::sync::Arc;
use swap::Swaps;

/// Name and state of each plugin.
pub(super) type Memories = Vec<(String, Option<Memory>)>;

/// What a loss is asked about.
pub(super) enum LossBatch {
    /// Completions.
    Tokens(Tokens),
    /// Pairs of completions.
    Pairs(Pairs),
}

/// See the module.
pub(super) struct Plugins {
    world: Rc<World>,
    /// The run's configuration; what it says of plugins changes with them.
    config: Config,
    algorithm: AnyPlugin,
    rewards: Vec<Reward>,
    swaps: Swaps,
}

/// A contract's metric as the window takes it.
fn from_plugin(metrics: Vec<plugin::Metric>) -> Vec<Metric> {
    let reduction = |of| match of {
        plugin::Reduction::Mean => Reduction::Mean,
        plugin::Reduction::Sum => Reduction::Sum,
        plugin::Reduction::Min => Reduction::Min,
        plugin::Reduction::Max => Reduction::Max,
    };
    let metric = |m: plugin::Metric| Metric { name: m.name, value: m.value, weight: m.weight, reduction: reduction(m.reduction) };
    metrics.into_iter().map(metric).collect()
}

impl Plugins {
    /// As a run begins with them; the `trial` is what a new version is tried on before there is anything else.
    pub(super) fn new(
        world: Rc<World>,
        config: Config,
        algorithm: AnyPlugin,
        rewards: Vec<Reward>,
        slots: Vec<Slot>,
        trial: Trial,
    ) -> Self {
        Self { world, config, algorithm, rewards, swaps: Swaps::new(slots, trial) }
    }

    /// Columns that the algorithm asks for.
    pub(super) fn needs(&self) -> Needs {
        self.algorithm.plugin().info().needs
    }

    /// The algorithm's advantages for a generation, and its figures, which all ranks have alike.
    pub(super) fn estimate(&mut self, rollouts: Rollouts) -> Result<(Advantages, Vec<Metric>)> {
        let rollouts = Arc::new(rollouts);
        let mut advantages = self.algorithm.as_policy()?.estimate(&rollouts)?;
        self.swaps.saw_rollouts(rollouts);
        let metrics = from_plugin(std::mem::take(&mut advantages.metrics));
        Ok((advantages, metrics))
    }

    /// The pairs that the algorithm makes of a generation, and its figures, which all ranks have alike.
    pub(super) fn choose(&mut self, rollouts: Rollouts) -> Result<(Vec<Pair>, Vec<Metric>)> {
        let rollouts = Arc::new(rollouts);
        let choice = self.algorithm.as_preference()?.choose(&rollouts)?;
        self.swaps.saw_rollouts(rollouts);
        let pairs = choice.pairs.iter().map(|pair| (pair.chosen as usize, pair.rejected as usize)).collect();
        Ok((pairs, from_plugin(choice.metrics)))
    }

    /// A micro-batch's part of the loss, its derivatives by each token in the order of the rows, of pairs the chosen and the
    /// rejected in turn; and the algorithm's figures of these rows.
    pub(super) fn loss(&mut self, batch: LossBatch) -> Result<(Gradient, Vec<Metric>)> {
        let mut gradient = match batch {
            LossBatch::Tokens(tokens) => {
                let tokens = Arc::new(tokens);
                let gradient = self.algorithm.as_policy()?.loss(&tokens)?;
                self.swaps.saw_tokens(tokens);
                gradient
            }
            LossBatch::Pairs(pairs) => {
                let pairs = Arc::new(pairs);
                let gradient = self.algorithm.as_preference()?.loss(&pairs)?;
                let gradient = in_turn(&pairs, gradient);
                self.swaps.saw_pairs(pairs);
                gradient
            }
        };
        let metrics = from_plugin(std::mem::take(&mut gradient.metrics));
        Ok((gradient, metrics))
    }

    /// Whether a plugin wants to hear the figures of steps.
    pub(super) fn observe_steps(&mut self) -> bool {
        self.all_mut().any(|plugin| plugin.observes())
    }

    /// Tells all plugins a step's figures, or after a failure none.
    pub(super) fn observe(&mut self, step: u64, figures: &[(String, f64)]) -> Result<()> {
        let memories = self.memories()?;
        let told = self.all_mut().try_for_each(|plugin| plugin.observe(step, figures));
        let told = told.map_err(Error::from).and_then(|()| Ok(self.world.barrier("observers")?));
        told.map_err(|error| {
            let error = known_to_all(&self.world, error);
            self.take_back(memories);
            error
        })
    }

    /// All plugins, the algorithm first.
    fn all_mut(&mut self) -> impl Iterator<Item = &mut Plugin> {
        std::iter::once(self.algorithm.plugin_mut()).chain(self.rewards.iter_mut().map(|reward| &mut **reward.plugin_mut()))
    }

    /// The states of all plugins.
    pub(super) fn memories(&mut self) -> Result<Memories> {
        self.all_mut().map(|plugin| Ok((plugin.name().to_owned(), plugin.remember()?))).collect()
    }

    /// Gives all plugins the states that they had.
    pub(super) fn rewind(&mut self, memories: Memories) {
        for (plugin, (_, memory)) in self.all_mut().zip(memories) {
            plugin.rewind(memory);
        }
    }

    /// The same, but for those that keep theirs to themselves.
    pub(super) fn take_back(&mut self, memories: Memories) {
        for (plugin, (_, memory)) in self.all_mut().zip(memories).filter(|(plugin, _)| !plugin.forgets()) {
            plugin.rewind(memory);
        }
    }

    /// Gives a plugin a state that is saved under its name, if one is. Where it can't take it and that is `allowed`, it begins
    /// without.
    pub(super) fn recall(&mut self, saved: impl Fn(&str) -> Option<Result<Memory>>, allowed: bool) -> Result<()> {
        for plugin in self.all_mut() {
            let Some(memory) = saved(plugin.name()).transpose()? else { continue };
            match plugin.recall(memory) {
                Ok(()) => {}
                Err(error) if allowed => {
                    tracing::warn!("{error}; it starts without one");
                    plugin.rewind(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Makes do with the states that were given last, of plugins that give none any more.
    pub(super) fn settle_for_known(&mut self) {
        self.all_mut().for_each(Plugin::settle_for_known);
    }
}

/// Derivatives of pairs in the order of their rows.
fn in_turn(pairs: &Pairs, gradient: PairGradient) -> Gradient {
    let sides = [(&pairs.chosen.offsets, &gradient.d_chosen), (&pairs.rejected.offsets, &gradient.d_rejected)];
    let of_pair = |i: usize| sides.map(|(offsets, d)| &d[offsets[i] as usize..offsets[i + 1] as usize]).concat();
    let d_logp = (0..pairs.chosen.offsets.len().saturating_sub(1)).flat_map(of_pair).collect();
    Gradient { loss: gradient.loss, d_logp, d_entropy: None, d_values: None, metrics: gradient.metrics }
}

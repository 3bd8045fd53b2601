//! Swaps on several ranks: the first rank watches and proposes; then all ranks swap between the same two steps, or none does.

use super::slots::PluginSlot;
use super::version::LoadedVersion;
use super::watcher::{Proposal, SwapCandidate, Trigger};
use crate::Result;
use crate::config::{PluginLimits, RewardErrorAction};
use crate::dist;
use crate::plugin::{AnyPlugin, PluginSource};
use crate::plugins::RunPlugins;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A proposal as sent to the other ranks; a plugin's bytes follow.
#[derive(Deserialize, Serialize)]
enum SharedProposal {
    Plugin {
        name: String,
        #[serde(with = "dist::json")]
        config: Map<String, Value>,
        limits: PluginLimits,
    },
    /// A reward model in a folder that all ranks can read.
    Model {
        name: String,
        path: String,
        hash: String,
    },
    Settings {
        name: String,
        weight: f64,
        on_error: RewardErrorAction,
    },
}

impl SharedProposal {
    /// Converts a proposal; none if the first rank handles it alone.
    fn from_proposal(proposal: &Proposal) -> Option<Self> {
        match proposal {
            Proposal::Swap(candidate) => Some(match &candidate.version {
                LoadedVersion::Plugin { slot, .. } => {
                    let PluginSlot { name, config, limits, .. } = (**slot).clone();
                    Self::Plugin { name, config, limits }
                }
                LoadedVersion::Model { model: asked, path } => {
                    let (name, hash) = (asked.model.name().to_owned(), asked.model.hash().to_owned());
                    Self::Model { name, path: path.clone(), hash }
                }
            }),
            Proposal::Settings { name, weight, on_error, .. } => {
                Some(Self::Settings { name: name.clone(), weight: *weight, on_error: *on_error })
            }
            Proposal::Refused { .. } => None,
        }
    }
}

impl RunPlugins {
    /// Shares the first rank's proposals with all ranks. A proposal that any rank can't load is rejected on all.
    pub(super) fn agree_on(&mut self, proposals: Vec<Proposal>, step: u64) -> Result<Vec<Proposal>> {
        if self.world.size() == 1 || !self.config.hot_reload {
            return Ok(proposals);
        }
        let told: Vec<SharedProposal> = self
            .world
            .broadcast("swaps", || Ok::<_, dist::Error>(proposals.iter().filter_map(SharedProposal::from_proposal).collect()))?;
        if !self.world.is_first() {
            return told.into_iter().map(|told| self.load_shared(told, step)).collect();
        }
        let mut agreed = Vec::with_capacity(proposals.len());
        for proposal in proposals {
            agreed.push(match proposal {
                Proposal::Swap(candidate) => {
                    if let Some(source) = candidate.version.source() {
                        self.world.broadcast_bytes("a plugin", source.bytes())?;
                    }
                    match self.all_agree(Ok(true))? {
                        Ok(_) => Proposal::Swap(candidate),
                        Err(reason) => {
                            let SwapCandidate { version, trigger, .. } = *candidate;
                            let (name, hash) = (version.name().to_owned(), Some(version.hash().to_owned()));
                            Proposal::Refused { name, hash, trigger, reason }
                        }
                    }
                }
                other => other,
            });
        }
        Ok(agreed)
    }

    /// Handles a proposal on another rank.
    fn load_shared(&self, told: SharedProposal, step: u64) -> Result<Proposal> {
        let (name, hash, version) = match told {
            SharedProposal::Settings { name, weight, on_error } => {
                // The first rank records the requester.
                return Ok(Proposal::Settings { name, weight, on_error, trigger: Trigger::Settings });
            }
            SharedProposal::Model { name, path, hash } => {
                let version = self.open_model(&name, &path, &hash, "has other files here than for the first process");
                (name, hash, version)
            }
            SharedProposal::Plugin { name, config, limits } => {
                let source = PluginSource::new(name.clone(), Cow::Owned(self.world.broadcast_bytes("a plugin", &[])?));
                (name, source.hash().to_owned(), self.load(source, config, limits))
            }
        };
        let (report, trigger, noticed) = (Value::Null, Trigger::File, step);
        Ok(match self.all_made(version)? {
            Ok(version) => Proposal::Swap(Box::new(SwapCandidate { version, report, trigger, noticed })),
            Err(reason) => Proposal::Refused { name, hash: Some(hash), trigger, reason },
        })
    }

    /// Loads a plugin for the slot of its name.
    fn load(
        &self,
        source: PluginSource,
        config: Map<String, Value>,
        limits: PluginLimits,
    ) -> std::result::Result<LoadedVersion, String> {
        let slot = self.swaps.with(|board| board.slots.iter().find(|slot| slot.name == source.name()).cloned());
        let (Some(slot), Some((engine, _))) = (slot, &self.swaps.loaders) else {
            return Err("there is no plugin of that name to replace".to_owned());
        };
        let loaded =
            AnyPlugin::load(engine, &source, slot.role, &config, &limits, self.config.seed).map_err(|e| e.to_string())?;
        Ok(LoadedVersion::Plugin { loaded, slot: Box::new(PluginSlot { source, config, limits, ..slot }) })
    }

    /// Returns this rank's result if all ranks succeeded, otherwise the first failed rank's reason.
    pub(super) fn all_made<T>(&self, made: std::result::Result<T, String>) -> Result<std::result::Result<T, String>> {
        let (own, made) = match made {
            Ok(made) => (Ok(true), Some(made)),
            Err(reason) => (Err(reason), None),
        };
        let agreed = self.all_agree(own)?;
        Ok(agreed.and_then(|_| made.ok_or_else(String::new)))
    }

    /// Returns the first rank's result if all ranks agree, otherwise the reason of the first one that disagrees.
    pub(super) fn all_agree(&self, own: std::result::Result<bool, String>) -> Result<std::result::Result<bool, String>> {
        if self.world.size() == 1 {
            return Ok(own);
        }
        let all = self.world.gather("a swap", own)?;
        let refused = all.iter().enumerate().find_map(|(rank, found)| Some((rank, found.as_ref().err()?)));
        Ok(match refused {
            Some((0, reason)) => Err(reason.clone()),
            Some((rank, reason)) => Err(format!("rank {rank}: {reason}")),
            None => all.into_iter().next().unwrap_or(Ok(false)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_told_of_with_all_its_limits() {
        let limits = [PluginLimits::default(), PluginLimits { episodes_timeout_s: Some(2.0), ..PluginLimits::default() }];
        let told = limits.clone().map(|limits| SharedProposal::Plugin { name: "a".to_owned(), config: Map::new(), limits });
        let bytes = postcard::to_allocvec(&told).unwrap();
        let heard: [SharedProposal; 2] = postcard::from_bytes(&bytes).unwrap();
        let heard = heard.map(|told| if let SharedProposal::Plugin { limits, .. } = told { Some(limits) } else { None });
        assert_eq!(heard, limits.map(Some));
    }
}

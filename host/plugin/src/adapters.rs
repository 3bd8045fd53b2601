//! Adapters that run plugins of contract versions 0.1 and 0.2 as algorithms of 1.0. The old versions have an interface for each kind of
//! algorithm, with fixed fields instead of named columns. Everything else is unchanged in 1.0 and called directly.

mod bindings;
mod v0_1;
mod v0_2;

pub(super) use bindings::{labelled, pairing, plugin, policy, preference, prompted_preference, reward_model};
pub(super) use bindings::{turn_policy, types, weighted_preference};
pub(super) use v0_2::PreferenceExtra;

use super::algorithm::{AlgorithmInterface, ConversionResult, Data, DataSource, PreparedCall, SentBatch, Shape};
use super::columns;
use super::contract::algorithm::Gradient;
use super::contract::estimator::Estimates;
use super::contract::pairing::Choice;
use super::contract::types::WeightedReward;
use super::hints::{DerivationRule, DerivedMetricHint};
use super::needs::NeededInputs;
use super::plugin_instance::CallResult;
use super::sandbox::Sandbox;
use super::world::PACKAGE;
use plugin::Needs as Flags;
use serde_json::Value;
use wasmtime::Store;
use wasmtime::component::{Instance as Linked, InstancePre};

/// The kinds of algorithms that have an interface in the old versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldAlgorithmKind {
    /// Completions with advantages.
    Policy,
    /// Pairs from a dataset.
    Preference,
    /// Pairs that the algorithm selects from a generation.
    OnlinePreference,
    /// Completions labelled desirable or undesirable.
    Labelled,
    /// Pairs with a value of each sequence.
    RewardModel,
}

/// An algorithm of version 0.1 or 0.2.
pub(super) struct OldAlgorithm {
    kind: OldAlgorithmKind,
    policy: Option<policy::GuestIndices>,
    turn_policy: Option<turn_policy::GuestIndices>,
    preference: Option<preference::GuestIndices>,
    weighted_preference: Option<weighted_preference::GuestIndices>,
    prompted_preference: Option<prompted_preference::GuestIndices>,
    pairing: Option<pairing::GuestIndices>,
    labelled: Option<labelled::GuestIndices>,
    reward_model: Option<reward_model::GuestIndices>,
}

/// Loads the functions of an interface that a plugin may lack.
macro_rules! functions {
    ($old:ident.$interface:ident, $store:ident, $linked:ident) => {
        $old.$interface.as_ref().ok_or_else(|| $crate::adapters::absent(stringify!($interface)))?.load(&mut *$store, $linked)?
    };
}

/// Returns the error for an interface that a plugin does not export.
fn absent(interface: &str) -> wasmtime::Error {
    wasmtime::Error::msg(format!("it does not export {PACKAGE}{}", interface.replace('_', "-")))
}

/// Hints in schemas of the old versions: members of the keyword `x-rlhost`, each with the columns that it requests.
const HINTS: [(&str, &[&str]); 4] = [
    ("mismatched", &[columns::MISMATCHED_LOGP, columns::MISMATCHED_REF_LOGP]),
    ("log_sum_squares", &[columns::LOG_SUM_SQUARES]),
    ("prompt_logp", &[columns::PROMPT_LOGP]),
    ("turn_rewards", &[columns::TURN_REWARD]),
];

/// Converts the flags of a reward or an environment to its needed inputs.
pub(super) fn needs_of_texts(flags: Flags) -> NeededInputs {
    let names = [
        (Flags::PROMPT_TEXT, columns::PROMPT_TEXT),
        (Flags::COMPLETION_TEXT, columns::COMPLETION_TEXT),
        (Flags::TOKEN_IDS, columns::TOKEN_IDS),
        (Flags::DATASET_COLUMNS, columns::DATASET_COLUMNS),
    ];
    names.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| name).collect()
}

impl OldAlgorithmKind {
    /// Returns the columns that the kind's interface always includes.
    fn always(self) -> &'static [&'static str] {
        match self {
            Self::Policy => &[columns::LOGP, columns::OLD_LOGP, columns::ADVANTAGE, columns::FINISHED],
            Self::Preference => &[columns::LOGP],
            Self::OnlinePreference => &[columns::LOGP, columns::OLD_LOGP, columns::FINISHED],
            Self::Labelled => &[columns::LOGP, columns::LABEL, columns::MICRO_BATCH_LABEL],
            Self::RewardModel => &[columns::SEQUENCE_VALUE, columns::MARGIN],
        }
    }

    /// Returns the columns that a flag requests.
    fn columns_of_flag(self, flag: Flags) -> &'static [&'static str] {
        let by_pass = matches!(self, Self::Preference | Self::OnlinePreference | Self::Labelled);
        match self {
            Self::RewardModel => &[],
            _ if flag == Flags::REF_LOGP => &[columns::REF_LOGP],
            _ if flag == Flags::MEAN_LOGITS && by_pass => &[columns::MEAN_LOGITS],
            Self::Policy if flag == Flags::SAMPLING_LOGP => &[columns::SAMPLING_LOGP],
            Self::Policy if flag == Flags::ENTROPY => &[columns::ENTROPY],
            Self::Policy if flag == Flags::VALUES => &[columns::VALUE, columns::OLD_VALUE, columns::RETURN],
            _ => &[],
        }
    }

    /// Returns whether this kind of algorithm uses a hint.
    fn reads(self, hint: &str) -> bool {
        match hint {
            "mismatched" => self == Self::Labelled,
            "turn_rewards" => self == Self::Policy,
            _ => matches!(self, Self::Preference | Self::OnlinePreference),
        }
    }

    /// Returns the data that this kind of algorithm learns from.
    fn data(self) -> Data {
        let (source, shape) = match self {
            Self::Policy => (DataSource::Either, Shape::Completions),
            Self::Preference | Self::RewardModel => (DataSource::Dataset, Shape::Pairs),
            Self::OnlinePreference => (DataSource::Policy, Shape::Pairs),
            Self::Labelled => (DataSource::Dataset, Shape::Completions),
        };
        let estimates: &[&str] = match self {
            Self::Policy => &[columns::ADVANTAGE, columns::RETURN, columns::MASK],
            _ => &[],
        };
        Data { source, shape, estimates: estimates.iter().map(|name| (*name).to_owned()).collect() }
    }
}

impl OldAlgorithm {
    /// Looks up the functions of an algorithm. Returns `None` if the component is not an algorithm.
    pub(super) fn from_instance_pre(pre: &InstancePre<Sandbox>) -> Option<Self> {
        let (policy, preference) = (policy::GuestIndices::new(pre).ok(), preference::GuestIndices::new(pre).ok());
        let (pairing, labelled) = (pairing::GuestIndices::new(pre).ok(), labelled::GuestIndices::new(pre).ok());
        let reward_model = reward_model::GuestIndices::new(pre).ok();
        let kind = match () {
            () if preference.is_some() && pairing.is_some() => OldAlgorithmKind::OnlinePreference,
            () if preference.is_some() => OldAlgorithmKind::Preference,
            () if labelled.is_some() => OldAlgorithmKind::Labelled,
            () if policy.is_some() => OldAlgorithmKind::Policy,
            () if reward_model.is_some() => OldAlgorithmKind::RewardModel,
            () => return None,
        };
        Some(Self {
            kind,
            policy,
            turn_policy: turn_policy::GuestIndices::new(pre).ok(),
            preference,
            weighted_preference: weighted_preference::GuestIndices::new(pre).ok(),
            prompted_preference: prompted_preference::GuestIndices::new(pre).ok(),
            pairing,
            labelled,
            reward_model,
        })
    }

    /// Returns the metrics that the host used to derive for any algorithm that logged the number of episodes.
    pub(super) fn derived_metrics(&self) -> Vec<DerivedMetricHint> {
        let metric = |name: &str, rule, from: &str| DerivedMetricHint { name: name.into(), rule, from: from.into() };
        match self.kind {
            OldAlgorithmKind::Policy => {
                vec![metric("eps", DerivationRule::PerSecond, "episode"), metric("lr", DerivationRule::Copy, "learning_rate")]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the columns that the algorithm needs, given its flags and its schema.
    ///
    /// # Errors
    /// If the schema requests something that an algorithm can't have; the error is the end of a sentence about the schema.
    pub(super) fn needs(&self, flags: Flags, schema: &str) -> Result<NeededInputs, String> {
        needs(self.kind, flags, schema)
    }
}

/// Returns the columns that an algorithm of this kind needs, given its flags and its schema.
fn needs(kind: OldAlgorithmKind, flags: Flags, schema: &str) -> Result<NeededInputs, String> {
    let all = [Flags::REF_LOGP, Flags::MEAN_LOGITS, Flags::SAMPLING_LOGP, Flags::ENTROPY, Flags::VALUES];
    let of_flags = all.into_iter().filter(|flag| flags.contains(*flag)).flat_map(|flag| kind.columns_of_flag(flag));
    let mut names: Vec<&str> = kind.always().iter().chain(of_flags).copied().collect();
    // A schema that is not JSON is rejected with the settings.
    let schema: Value = serde_json::from_str(schema).unwrap_or_default();
    let mut hinted = Vec::new();
    for (hint, columns) in HINTS {
        let Some(given) = schema.get("x-rlhost").and_then(|keyword| keyword.get(hint)) else { continue };
        let asks = given.as_bool().ok_or_else(|| format!("has x-rlhost.{hint} {given}; it must be true or false"))?;
        if asks && kind.reads(hint) {
            names.extend(columns);
            hinted.push(hint);
        }
    }
    if hinted.contains(&"log_sum_squares") && hinted.contains(&"prompt_logp") {
        return Err("has both log_sum_squares and prompt_logp in x-rlhost; a loss can have only one of them".to_owned());
    }
    if hinted.contains(&"mismatched") && !names.contains(&columns::REF_LOGP) {
        return Err(
            "asks for mismatched completions, which come with ref-logp, but the plugin not for ref-logp itself".to_owned()
        );
    }
    Ok(names.into_iter().collect())
}

/// Calls with the signatures of the old versions.
impl OldAlgorithm {
    pub(super) fn call_estimate(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        rollouts: &types::Rollouts,
        turns: Option<&turn_policy::Turns>,
    ) -> CallResult<policy::Advantages> {
        match turns {
            Some(turns) => functions!(self.turn_policy, store, linked).call_estimate(&mut *store, rollouts, turns),
            None => functions!(self.policy, store, linked).call_estimate(&mut *store, rollouts),
        }
    }

    pub(super) fn call_choose(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        rollouts: &types::Rollouts,
    ) -> CallResult<pairing::Choice> {
        functions!(self.pairing, store, linked).call_choose(&mut *store, rollouts)
    }

    pub(super) fn call_policy(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        tokens: &policy::Tokens,
    ) -> CallResult<policy::Gradient> {
        functions!(self.policy, store, linked).call_loss(&mut *store, tokens)
    }

    /// Calls the loss through the matching interface. Also returns the derivatives for prompts, if the loss sees them.
    pub(super) fn call_preference(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        pairs: &preference::Pairs,
        beside: &PreferenceExtra,
    ) -> CallResult<(preference::Gradient, Option<Vec<f32>>)> {
        let alone = |gradient| (gradient, None);
        match beside {
            PreferenceExtra::Nothing => Ok(functions!(self.preference, store, linked).call_loss(&mut *store, pairs)?.map(alone)),
            PreferenceExtra::Squares(squares) => {
                Ok(functions!(self.weighted_preference, store, linked).call_loss(&mut *store, pairs, squares)?.map(alone))
            }
            PreferenceExtra::Prompts(prompts) => {
                let given = functions!(self.prompted_preference, store, linked).call_loss(&mut *store, pairs, prompts)?;
                Ok(given.map(|given| (given.pairs, Some(given.d_prompts))))
            }
        }
    }

    pub(super) fn call_labelled(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        examples: &labelled::Examples,
    ) -> CallResult<labelled::Gradient> {
        functions!(self.labelled, store, linked).call_loss(&mut *store, examples)
    }

    pub(super) fn call_reward_model(
        &self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        pairs: &reward_model::Pairs,
    ) -> CallResult<reward_model::Gradient> {
        functions!(self.reward_model, store, linked).call_loss(&mut *store, pairs)
    }
}

impl AlgorithmInterface for OldAlgorithm {
    fn data(&self, _: &mut Store<Sandbox>, _: &Linked) -> CallResult<Data> {
        Ok(Ok(self.kind.data()))
    }

    fn sees_generations(&self) -> (bool, bool) {
        (self.kind == OldAlgorithmKind::Policy, self.kind == OldAlgorithmKind::OnlinePreference)
    }

    fn knows_mask(&self) -> bool {
        self.kind == OldAlgorithmKind::Policy
    }

    fn optional_estimates(&self) -> &'static [&'static str] {
        &[columns::MASK, columns::RETURN]
    }

    fn estimate<'a>(
        &'a self,
        sent: &'a SentBatch<'a>,
        rewards: &'a [WeightedReward],
    ) -> ConversionResult<PreparedCall<'a, Estimates>> {
        let rollouts = v0_1::rollouts(sent, rewards)?;
        // Turns are sent only to an algorithm that requests them.
        let turns = (!sent.turns.is_empty()).then(|| v0_2::turns(sent, rewards)).transpose()?;
        Ok(Box::new(move |store, linked| {
            let given = self.call_estimate(store, linked, &rollouts, turns.as_ref())?;
            Ok(given.map(|advantages| v0_1::estimates(advantages, sent.mask.len())))
        }))
    }

    fn choose<'a>(
        &'a self,
        sent: &'a SentBatch<'a>,
        rewards: &'a [WeightedReward],
    ) -> ConversionResult<PreparedCall<'a, Choice>> {
        let rollouts = v0_1::rollouts(sent, rewards)?;
        Ok(Box::new(move |store, linked| Ok(self.call_choose(store, linked, &rollouts)?.map(|choice| Ok(v0_1::choice(choice))))))
    }

    fn loss<'a>(&'a self, sent: &'a SentBatch<'a>) -> ConversionResult<PreparedCall<'a, Gradient>> {
        match self.kind {
            OldAlgorithmKind::Policy => {
                let tokens = v0_1::tokens(sent)?;
                Ok(Box::new(move |store, linked| {
                    let given = self.call_policy(store, linked, &tokens)?;
                    Ok(given.map(|gradient| v0_1::gradient(gradient, sent.mask.len())))
                }))
            }
            OldAlgorithmKind::Preference | OldAlgorithmKind::OnlinePreference => {
                let (pairs, beside) = (v0_1::pairs(sent)?, v0_2::preference_extra(sent));
                Ok(Box::new(move |store, linked| {
                    let given = self.call_preference(store, linked, &pairs, &beside)?;
                    Ok(given.map(|(gradient, d_prompts)| v0_2::pair_gradient(gradient, d_prompts, sent)))
                }))
            }
            OldAlgorithmKind::Labelled => {
                let examples = v0_2::examples(sent)?;
                Ok(Box::new(move |store, linked| {
                    let given = self.call_labelled(store, linked, &examples)?;
                    Ok(given.map(|gradient| v0_2::labelled_gradient(gradient, sent.mask.len())))
                }))
            }
            OldAlgorithmKind::RewardModel => {
                let pairs = v0_2::valued_pairs(sent)?;
                Ok(Box::new(move |store, linked| {
                    let given = self.call_reward_model(store, linked, &pairs)?;
                    Ok(given.map(|gradient| v0_2::value_gradient(gradient, pairs.chosen.len())))
                }))
            }
        }
    }
}

#[cfg(test)]
mod bitwise_compatibility;
#[cfg(test)]
mod tests;

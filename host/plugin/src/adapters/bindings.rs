//! Bindings for what versions 0.1 and 0.2 of the contract have and 1.0 has not.

/// The types of version 0.1. Those that 1.0 has too are the same.
pub mod types {
    pub use crate::contract::types::{Error, Metric};
    // What the bindings of a world ask of its imports.
    pub use crate::contract::types::{Host, HostWithStore, add_to_linker};
    use wasmtime::component::{ComponentType, Lift, Lower};

    /// What one optimizer step holds in all its micro-batches on all ranks.
    #[derive(Clone, Copy, Debug, PartialEq, ComponentType, Lift, Lower)]
    #[component(record)]
    pub struct Scale {
        /// Completions, or pairs, or labelled examples.
        pub rows: u32,
        /// Tokens whose mask is 1.
        pub tokens: u64,
        /// The longest completion that generation allows.
        #[component(name = "max-completion-length")]
        pub max_completion_length: u32,
    }

    /// What one reward plugin said of a generation batch.
    #[derive(Clone, Debug, PartialEq, ComponentType, Lift, Lower)]
    #[component(record)]
    pub struct OldRewardColumn {
        /// The reward.
        pub name: String,
        /// Its weight.
        pub weight: f32,
        /// One entry a row; none is unscorable.
        pub values: Vec<Option<f32>>,
    }

    /// Generated completions as advantage estimators and pair makers see them.
    #[derive(Clone, Debug, PartialEq, ComponentType, Lift, Lower)]
    #[component(record)]
    pub struct Rollouts {
        /// The optimizer step.
        pub step: u64,
        /// The rewards' scores.
        pub rewards: Vec<OldRewardColumn>,
        /// The prompt of each row.
        #[component(name = "prompt-of")]
        pub prompt_of: Vec<u32>,
        /// Whether each row ended by itself.
        pub finished: Vec<bool>,
        /// Where each row begins; one entry more than there are rows.
        pub offsets: Vec<u32>,
        /// 1 for tokens that the policy chose and that count, else 0.
        pub mask: Vec<u8>,
        /// Log-probabilities.
        pub logp: Vec<f32>,
        /// Log-probabilities under the reference model.
        #[component(name = "ref-logp")]
        pub ref_logp: Option<Vec<f32>>,
        /// The critic's values.
        pub values: Option<Vec<f32>>,
        /// Entropies, which no generation has.
        pub entropy: Option<Vec<f32>>,
    }
}

#[allow(missing_docs)]
mod generated {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:old;
            world old {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/plugin@0.1.0;
                export rlhost:plugin/policy@0.1.0;
                export rlhost:plugin/preference@0.1.0;
                export rlhost:plugin/pairing@0.1.0;
                export rlhost:plugin/turn-policy@0.2.0;
                export rlhost:plugin/weighted-preference@0.2.0;
                export rlhost:plugin/prompted-preference@0.2.0;
                export rlhost:plugin/labelled@0.2.0;
                export rlhost:plugin/reward-model@0.2.0;
            }
        ",
        path: ["../../plugin-sdk/wit/0.1", "../../plugin-sdk/wit/0.2"],
        with: { "rlhost:plugin/types@0.1.0": super::types },
        additional_derives: [PartialEq],
    });
}

pub(crate) use generated::exports::rlhost::plugin0_1_0::{pairing, plugin, policy, preference};
pub(crate) use generated::exports::rlhost::plugin0_2_0::{labelled, prompted_preference, reward_model};
pub(crate) use generated::exports::rlhost::plugin0_2_0::{turn_policy, weighted_preference};

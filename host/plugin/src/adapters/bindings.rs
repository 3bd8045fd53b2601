//! Bindings for the parts of contract versions 0.1 and 0.2 that 1.0 no longer has.

/// Types of version 0.1. Those that 1.0 also has are identical.
pub mod types {
    pub use crate::contract::types::{Error, Metric};
    // Items that the bindings of a world require from its imports.
    pub use crate::contract::types::{Host, HostWithStore, add_to_linker};
    use wasmtime::component::{ComponentType, Lift, Lower};

    /// Totals of one optimizer step over all its micro-batches on all ranks.
    #[derive(Clone, Copy, Debug, PartialEq, ComponentType, Lift, Lower)]
    #[component(record)]
    pub struct Scale {
        /// Number of completions, of pairs, or of labelled examples.
        pub rows: u32,
        /// Number of tokens whose mask is 1.
        pub tokens: u64,
        /// Maximum completion length of generation, in tokens.
        #[component(name = "max-completion-length")]
        pub max_completion_length: u32,
    }

    /// One reward's scores for a generation.
    #[derive(Clone, Debug, PartialEq, ComponentType, Lift, Lower)]
    #[component(record)]
    pub struct OldRewardColumn {
        /// Name of the reward.
        pub name: String,
        /// Weight of the reward.
        pub weight: f32,
        /// One entry per row; `None` where the reward gave no score.
        pub values: Vec<Option<f32>>,
    }

    /// Generated completions, as advantage estimators and pairings see them.
    #[derive(Clone, Debug, PartialEq, ComponentType, Lift, Lower)]
    #[component(record)]
    pub struct Rollouts {
        /// Optimizer step.
        pub step: u64,
        /// Scores of the rewards.
        pub rewards: Vec<OldRewardColumn>,
        /// Index of each row's prompt.
        #[component(name = "prompt-of")]
        pub prompt_of: Vec<u32>,
        /// Whether each row ended on its own.
        pub finished: Vec<bool>,
        /// Offset of each row's first token; one entry more than there are rows.
        pub offsets: Vec<u32>,
        /// 1 for tokens that the policy sampled and that count, otherwise 0.
        pub mask: Vec<u8>,
        /// Log-probabilities under the policy.
        pub logp: Vec<f32>,
        /// Log-probabilities under the reference model.
        #[component(name = "ref-logp")]
        pub ref_logp: Option<Vec<f32>>,
        /// Values of the critic.
        pub values: Option<Vec<f32>>,
        /// Entropies; always `None` for a generation.
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

//! Settings of DPO, under TRL's names and with its defaults.

use rlhost_plugin_sdk::prelude::*;

/// The loss of a pair. `c` and `r` are the log-ratios of the chosen and the rejected completion to the reference model, `s_c` and
/// `s_r` those after the f-divergence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DpoLossType {
    /// Logistic loss of the original paper (Rafailov et al. 2023).
    Sigmoid,
    /// Hinge loss (SLiC, Zhao et al. 2023; RSO, Liu et al. 2024).
    Hinge,
    /// Squared distance of the per-token margin from `1 / 2 beta` (IPO, Azar et al. 2023).
    Ipo,
    /// Logistic loss of the per-token margin.
    SigmoidNorm,
    /// Reverse KL to the smoothed preference (EXO, Ji et al. 2024); `label_smoothing` must be greater than 0, the paper uses
    /// 1e-3.
    ExoPair,
    /// Noise contrastive, which also keeps the chosen completion likely (Chen et al. 2024).
    NcaPair,
    /// Logistic loss, unbiased if a share `label_smoothing` of the labels is wrong (Chowdhury et al. 2024).
    Robust,
    /// Binary classification of each completion (BCO, Jung et al. 2024), without its shift.
    BcoPair,
    /// Self-play with hard preferences (SPPO, Wu et al. 2024).
    SppoHard,
    /// Optimal transport of the policy's sorted margins to the reference model's (Melnyk et al. 2024); sorts within a
    /// micro-batch, so its size matters.
    Aot,
    /// Optimal transport of the policy's sorted log-ratios, the chosen ones against the rejected ones (Melnyk et al. 2024); sorts
    /// within a micro-batch.
    AotUnpaired,
    /// Anchored (APO, D'Oosterlinck et al. 2024), for chosen completions better than the model.
    ApoZero,
    /// Anchored, for chosen completions worse than the model.
    ApoDown,
    /// Mix of logistic and exponential loss, weighted by the margin (DiscoPOP, Lu et al. 2024).
    Discopop,
    /// Negative log-likelihood of the chosen completions, averaged over their tokens.
    Sft,
}

/// One loss, or the sum of several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum DpoLossTypes {
    /// One.
    One(DpoLossType),
    /// Several.
    Several(Vec<DpoLossType>),
}

/// The divergence between policy and reference model (f-DPO, Wang et al. 2023).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FDivergence {
    /// Reverse KL, as in DPO itself.
    ReverseKl,
    /// Forward KL.
    ForwardKl,
    /// Jensen-Shannon.
    JsDivergence,
    /// Alpha divergence, with `f_alpha_divergence_coef`.
    AlphaDivergence,
}

/// Settings of DPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DpoSettings {
    /// The loss of a pair: the name of a loss, or a list of names.
    pub loss_type: DpoLossTypes,
    /// Weights of the losses in a list [1 each].
    pub loss_weights: Option<Vec<f64>>,
    /// Strength of the tie to the reference model.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Probability that a preference label is wrong; only for robust, exo_pair, aot and aot_unpaired.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub label_smoothing: f64,
    /// Divergence from the reference model; other than reverse_kl only for losses of the difference of both completions.
    pub f_divergence_type: FDivergence,
    /// Alpha of the alpha divergence.
    pub f_alpha_divergence_coef: f64,
    /// Weight of a completion's tokens beyond the length of the other one (LD-DPO, Liu et al. 2024) [1].
    #[schemars(range(min = 0.0, max = 1.0))]
    pub ld_alpha: Option<f64>,
    /// Temperature of the mix in discopop.
    #[schemars(range(min = 0.0))]
    pub discopop_tau: f64,
    /// Weight each pair by the likelihood that the model writes it, relative to its own samples (WPO, Zhou et al. 2024); not for
    /// aot, aot_unpaired and sft.
    pub use_weighting: bool,
    /// Assume a reference model that finds all completions equally likely, and need none.
    pub reference_free: bool,
}

impl Default for DpoSettings {
    fn default() -> Self {
        Self {
            loss_type: DpoLossTypes::One(DpoLossType::Sigmoid),
            loss_weights: None,
            beta: 0.1,
            label_smoothing: 0.0,
            f_divergence_type: FDivergence::ReverseKl,
            f_alpha_divergence_coef: 0.5,
            ld_alpha: None,
            discopop_tau: 0.05,
            use_weighting: false,
            reference_free: false,
        }
    }
}

impl DpoSettings {
    fn loss_types(&self) -> &[DpoLossType] {
        match &self.loss_type {
            DpoLossTypes::One(one) => std::slice::from_ref(one),
            DpoLossTypes::Several(several) => several,
        }
    }

    /// Returns each loss with its weight.
    pub(crate) fn terms(&self) -> Vec<(DpoLossType, f64)> {
        let weight = |i: usize| self.loss_weights.as_ref().map_or(1.0, |weights| weights[i]);
        self.loss_types().iter().enumerate().map(|(i, &kind)| (kind, weight(i))).collect()
    }

    /// Returns whether the loss uses the reference model.
    pub(crate) fn has_reference(&self) -> bool {
        !self.reference_free && self.loss_types().iter().any(|&kind| kind != DpoLossType::Sft)
    }

    /// Checks what the schema can't express.
    pub(crate) fn check(&self) -> Result<(), Error> {
        use DpoLossType::{Aot, AotUnpaired, Discopop, ExoPair, Hinge, Ipo, Robust, Sft, Sigmoid, SigmoidNorm};
        let kinds = self.loss_types();
        let wrong = if kinds.is_empty() {
            "loss_type is empty; give at least one loss"
        } else if self.loss_weights.as_ref().is_some_and(|weights| weights.len() != kinds.len()) {
            "loss_weights must have one weight for each loss_type"
        } else if self.beta <= 0.0 {
            "beta must be greater than 0"
        } else if self.discopop_tau <= 0.0 {
            "discopop_tau must be greater than 0"
        } else if kinds.contains(&Robust) && self.label_smoothing >= 0.5 {
            "label_smoothing must be less than 0.5 for robust; above that, labels mean their opposite"
        } else if kinds.contains(&ExoPair) && !(self.label_smoothing > 0.0 && self.label_smoothing < 1.0) {
            "label_smoothing must be greater than 0 and less than 1 for exo_pair; its paper uses 0.001"
        } else if self.f_divergence_type != FDivergence::ReverseKl
            && !kinds.iter().all(|kind| [Sigmoid, SigmoidNorm, Hinge, Ipo, ExoPair, Robust, Discopop, Sft].contains(kind))
        {
            "f_divergence_type other than reverse_kl is only for sigmoid, sigmoid_norm, hinge, ipo, exo_pair, robust, discopop \
             and sft: beyond the difference of both completions its scores are known up to a constant only"
        } else if self.use_weighting && kinds.iter().any(|kind| [Aot, AotUnpaired, Sft].contains(kind)) {
            "use_weighting is not for aot and aot_unpaired, which sort, nor for sft, which is no loss of pairs: a pair's weight would \
             apply to another's term"
        } else {
            return Ok(());
        };
        Err(Error::Config(wrong.into()))
    }
}

//! The forward pass of a micro-batch, independent of its loss, and the backward pass from the loss's derivatives.

use super::Critic;
use crate::columns::NamedColumns;
use crate::model::{self, Derivatives, Gradients, PolicyPass, ValuePass};
use crate::ops::logprob::TokenStats;
use crate::plugin::columns::{ENTROPY, LOG_SUM_SQUARES, LOGP, MEAN_LOGITS, PROMPT_LOGP, SEQUENCE_VALUE, VALUE};
use crate::plugin::{Column, MicroBatchLoss, NeededInputs, Unit};

/// A forward pass, with what the backward pass needs.
pub(super) enum ForwardPass<'a> {
    /// No pass, since this rank has no rows.
    Nothing,
    /// One value per completion, by a reward model.
    Values(Box<ValuePass<'a>>),
    /// Predictions of tokens.
    Tokens(Box<TokenPass<'a>>),
}

/// A pass that predicts tokens: those of completions, followed by those of pairs' prompts if the loss sees them.
pub(super) struct TokenPass<'a> {
    pub pass: PolicyPass<'a>,
    /// A separate critic; otherwise the policy may have a value head.
    pub critic: Option<(&'a Critic, ValuePass<'a>)>,
    /// Number of completions' tokens.
    pub tokens: usize,
}

impl TokenPass<'_> {
    /// Returns the critic's values of the states in which tokens were chosen, if there is a critic.
    fn values(&self) -> Option<&[f32]> {
        self.critic.as_ref().map_or(self.pass.values(), |(_, pass)| Some(pass.values()))
    }

    fn columns(&self, needs: &NeededInputs) -> model::Result<NamedColumns> {
        let mut columns = NamedColumns::default();
        let of_completions = |mut values: Vec<f32>| {
            values.truncate(self.tokens);
            values
        };
        let stats = self.pass.stats();
        columns.set_per_token(LOGP, Some(stats.logp[..self.tokens].to_vec()));
        columns.set_per_token(VALUE, self.values().map(<[f32]>::to_vec));
        if needs.has(ENTROPY) {
            columns.set_per_token(ENTROPY, Some(of_completions(stats.entropy.clone())));
        }
        if needs.has(MEAN_LOGITS) {
            columns.set_per_token(MEAN_LOGITS, Some(of_completions(self.pass.mean_logits()?)));
        }
        if needs.has(LOG_SUM_SQUARES) {
            columns.set_per_token(LOG_SUM_SQUARES, Some(of_completions(self.pass.log_sum_squares()?)));
        }
        if let (Some((name, _)), Some(divergences)) = (needs.divergence(), self.pass.divergences()) {
            columns.set_per_token(name, Some(of_completions(divergences.to_vec())));
        }
        if needs.has(PROMPT_LOGP) {
            columns.set(Column::new(PROMPT_LOGP, Unit::PromptToken, stats.logp[self.tokens..].to_vec()));
        }
        Ok(columns)
    }
}

impl ForwardPass<'_> {
    /// Returns the outputs of the pass that the algorithm needs, as columns.
    pub(super) fn columns(&self, needs: &NeededInputs) -> model::Result<NamedColumns> {
        match self {
            Self::Nothing => Ok(NamedColumns::default()),
            Self::Values(pass) => {
                Ok(NamedColumns::from_iter([Column::new(SEQUENCE_VALUE, Unit::Sequence, pass.values().to_vec())]))
            }
            Self::Tokens(pass) => pass.columns(needs),
        }
    }

    /// Returns the statistics of completions' tokens, and their number, if tokens are predicted.
    pub(super) fn stats(&self) -> Option<(&TokenStats, usize)> {
        match self {
            Self::Tokens(pass) => Some((pass.pass.stats(), pass.tokens)),
            Self::Nothing | Self::Values(_) => None,
        }
    }

    /// Returns the auxiliary loss of the policy's experts, if it has one.
    pub(super) fn aux_loss(&self) -> Option<f64> {
        match self {
            Self::Tokens(pass) => pass.pass.aux_loss(),
            Self::Nothing | Self::Values(_) => None,
        }
    }

    /// Returns the number of bytes that are kept for the backward pass.
    pub(super) fn kept_bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Values(pass) => pass.kept_bytes(),
            Self::Tokens(pass) => pass.pass.kept_bytes() + pass.critic.as_ref().map_or(0, |(_, valued)| valued.kept_bytes()),
        }
    }

    /// Returns the number of operations that the pass reused from the pass over prompts instead of computing them.
    pub(super) fn known_work(&self) -> f64 {
        match self {
            Self::Tokens(pass) => pass.pass.known_work(),
            Self::Nothing | Self::Values(_) => 0.0,
        }
    }

    /// Adds the gradients of the policy and of a critic, given the loss's derivatives.
    pub(super) fn backward(self, loss: &MicroBatchLoss, gradients: &Gradients) -> model::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Values(pass) => {
                let unused = || vec![0.0; pass.values().len()];
                let d_values = loss.by(SEQUENCE_VALUE).map_or_else(unused, <[f32]>::to_vec);
                pass.backward(&d_values, gradients)
            }
            Self::Tokens(pass) => {
                let TokenPass { pass, critic, tokens } = *pass;
                // Derivatives of completions, followed by those of prompts.
                let in_pass = |of: [Option<&[f32]>; 2]| {
                    let mut all = vec![0.0; pass.stats().logp.len()];
                    for (derivatives, at) in of.into_iter().zip([0, tokens]) {
                        let derivatives = derivatives.unwrap_or_default();
                        all[at..at + derivatives.len()].copy_from_slice(derivatives);
                    }
                    of.iter().any(Option::is_some).then_some(all)
                };
                let logp = in_pass([loss.by(LOGP), loss.by(PROMPT_LOGP)]);
                let divergence = in_pass([loss.by_divergence(), None]);
                let d_values = loss.by(VALUE);
                // Without a separate critic, the policy has a value head, or there is no such derivative.
                let values = d_values.filter(|_| critic.is_none());
                let (logp, divergence) = (logp.as_deref(), divergence.as_deref());
                pass.backward(Derivatives { logp, entropy: loss.by(ENTROPY), values, divergence }, gradients)?;
                match (critic, d_values) {
                    (Some((critic, valued)), Some(d_values)) => valued.backward(d_values, critic.gradients()),
                    _ => Ok(()),
                }
            }
        }
    }
}

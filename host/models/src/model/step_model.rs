//! Models that judge the steps of a text (process rewards), with a value at each token that ends a step.
//!
//! The folder has the format of transformers' token classification model with two labels, which is TRL's PRM format: the head is
//! `score.weight`, `[2, hidden]`, with an optional `score.bias`, `[2]`. A step's value is the probability of the second label, which is the
//! logistic function of the difference of the two logits. So only one row, the difference, is computed.

use super::shards::SafetensorsReader;
use super::weights::Linear;
use super::weights::SCORE;
use super::weights::SCORE_BIAS;
use super::{Decoder, Error, ModelFolder, Result};

impl ModelFolder {
    /// Returns whether the model is a token classification model.
    ///
    /// # Errors
    /// If its config.json can't be read.
    pub fn judges_steps(&self) -> Result<bool> {
        Ok(self.kind()?.is_some_and(|kind| kind.ends_with("ForTokenClassification")))
    }

    /// Reads the model. Its values are the differences of each token's two logits.
    ///
    /// # Errors
    /// If the weights have no head for two labels, or as [`ModelFolder::decoder`].
    pub fn step_model(&self) -> Result<Decoder> {
        let (hidden, by) = (self.architecture().hidden_size, "the two labels of a model of steps");
        let mut shards = SafetensorsReader::open_model(self.base())?;
        let missing = || {
            let detail = format!("there is no {SCORE} of shape [2, {hidden}], which {by} need");
            Error::Weights { path: self.base().to_owned(), detail }
        };
        let weight = shards.take(SCORE, &[2, hidden], by)?.ok_or_else(missing)?;
        let bias = shards.take(SCORE_BIAS, &[2], by)?;
        let mut decoder = self.trunk()?;
        let weight = (weight.narrow(0, 1, 1)? - weight.narrow(0, 0, 1)?)?;
        let bias = bias.map(|bias| bias.narrow(0, 1, 1)? - bias.narrow(0, 0, 1)?).transpose()?;
        decoder.weights.value_head = Some(Linear::new(weight, bias));
        Ok(decoder)
    }
}

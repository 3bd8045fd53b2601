//! Supervised fine-tuning: the mean cross-entropy of given completions. Names and defaults are TRL's.

use rlhost_plugin_sdk::algorithm::{Algorithm, Batch, Data, Gradient, Needs, Source, Unit};
use rlhost_plugin_sdk::prelude::*;

/// The loss of a token of probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SftLossType {
    /// `-ln p`, its negative log-likelihood.
    Nll,
    /// `-sg(p) ln p`, where tokens that the policy finds unlikely have less influence (Dynamic Fine-Tuning, Wu et al. 2025, arXiv
    /// 2508.05629).
    Dft,
    /// TRL's former name of `nll`.
    ChunkedNll,
}

/// Settings of supervised fine-tuning.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SftSettings {
    /// The loss of a token.
    pub loss_type: SftLossType,
}

impl Default for SftSettings {
    fn default() -> Self {
        Self { loss_type: SftLossType::Nll }
    }
}

/// The algorithm with its settings.
pub struct Sft {
    settings: SftSettings,
}

impl Algorithm for Sft {
    type Config = SftSettings;
    const DESCRIPTION: &'static str = "Supervised fine-tuning on given completions (nll, dft)";
    const LEARNING_RATE: f64 = 2e-5;

    /// Returns whether targets may be smoothed. With `nll`, the loss is the cross-entropy with any targets; `dft` would weight smoothed
    /// targets by a value that is not a probability.
    fn smoothed(settings: &SftSettings) -> bool {
        settings.loss_type != SftLossType::Dft
    }

    fn needs(_: &SftSettings) -> Needs {
        Needs::LOGP | Needs::ENTROPY
    }

    fn data(_: &SftSettings) -> Data {
        Data::completions(Source::Dataset)
    }

    fn new(settings: SftSettings) -> Result<Self, Error> {
        Ok(Self { settings })
    }

    fn loss(&mut self, batch: &Batch) -> Result<Gradient, Error> {
        let logp = batch.values("logp", Unit::Token)?;
        let entropy = batch.values("entropy", Unit::Token)?;
        let weight = 1.0 / (batch.scale.tokens as f64).max(1.0);
        let mut d_logp = batch.zeros(Unit::Token);
        let mut loss = 0.0;
        for i in batch.counted() {
            let logp = f64::from(logp[i]);
            let held = match self.settings.loss_type {
                SftLossType::Nll | SftLossType::ChunkedNll => 1.0,
                SftLossType::Dft => logp.exp(),
            };
            let by = -weight * held;
            d_logp[i] = by as f32;
            loss += by * logp;
        }
        let entropy = Metric::mean_of("entropy", batch.counted().map(|i| f64::from(entropy[i])));
        Ok(Gradient::new(loss).with_derivatives("logp", Unit::Token, d_logp).with_metrics(entropy))
    }
}

rlhost_plugin_sdk::algorithm_plugin!(Sft);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::algorithm::testing::batch;
    use rlhost_plugin_sdk::algorithm::{Column, Scale};
    use rlhost_plugin_sdk::policy::testing::{TestNoise, close};

    fn loss(loss_type: SftLossType, batch: &Batch) -> Gradient {
        Sft::new(SftSettings { loss_type }).unwrap().loss(batch).unwrap()
    }

    fn d_logp(gradient: &Gradient) -> &[f32] {
        assert_eq!((gradient.derivatives.len(), gradient.derivatives[0].name.as_str()), (1, "logp"));
        &gradient.derivatives[0].values
    }

    /// Returns completions of these lengths, a micro-batch of a step with eight counted tokens.
    fn completions(lengths: &[u32], mask: &[u8], logp: &[f32], entropy: &[f32]) -> Batch {
        let column = |name: &str, values: &[f32]| Column::new(name, Unit::Token, values.to_vec());
        let scale = Scale { items: 4, tokens: 8, max_completion_length: 9, ..Scale::default() };
        let batch = batch(&[lengths]).with_column(column("logp", logp)).with_column(column("entropy", entropy));
        Batch { mask: mask.to_vec(), scale, ..batch }
    }

    #[test]
    fn the_loss_is_the_mean_over_the_steps_counted_tokens() {
        let logp = [-1.0, -2.0, -9.0, -0.5];
        let got = loss(SftLossType::Nll, &completions(&[2, 2], &[1, 1, 0, 1], &logp, &[1.0, 2.0, 7.0, 3.0]));
        assert_eq!((got.loss, d_logp(&got)), (0.4375, &[-0.125, -0.125, 0.0, -0.125][..]));
        assert_eq!((got.metrics[0].value, got.metrics[0].weight), (2.0, 3.0));
    }

    #[test]
    fn dynamic_fine_tuning_weighs_a_token_by_its_probability_and_holds_that_fixed() {
        let mut noise = TestNoise(3);
        let (mask, logp) = ([1, 1, 0, 1, 0, 1, 1], noise.column(7, -2.0, 1.9));
        let batch = completions(&[3, 4], &mask, &logp, &[0.0; 7]);
        // Logarithms at `at`, with the weights from `logp`.
        let wanted = |at: &[f64]| -> f64 {
            let token = |i: usize| -f64::from(logp[i]).exp() * at[i];
            (0..7).filter(|&i| mask[i] == 1).map(token).sum::<f64>() / 8.0
        };
        let here: Vec<f64> = logp.iter().map(|&l| f64::from(l)).collect();
        let got = loss(SftLossType::Dft, &batch);
        assert!((got.loss - wanted(&here)).abs() < 1e-12, "{} is not {}", got.loss, wanted(&here));
        let h = 1e-5;
        let moved = |i: usize, by: f64| wanted(&[&here[..i], &[here[i] + by], &here[i + 1..]].concat());
        let slopes: Vec<f64> = (0..7).map(|i| (moved(i, h) - moved(i, -h)) / (2.0 * h)).collect();
        close("d_logp", d_logp(&got), &slopes);
    }

    #[test]
    fn it_learns_from_a_dataset() {
        let data = Sft::data(&SftSettings::default());
        assert_eq!((data.source, data.estimates), (Source::Dataset, Vec::new()));
    }

    #[test]
    fn targets_may_be_smoothed_where_the_loss_is_a_cross_entropy() {
        assert!([SftLossType::Nll, SftLossType::Dft].map(|loss_type| Sft::smoothed(&SftSettings { loss_type })) == [true, false]);
    }

    #[test]
    fn losses_have_the_names_that_they_have_in_trl() {
        use rlhost_plugin_sdk::config::parse;
        let given = |config: &str| parse::<SftSettings>(config).map(|s| s.loss_type);
        assert_eq!(given("{}").unwrap(), SftLossType::Nll);
        assert_eq!(given(r#"{"loss_type": "nll"}"#).unwrap(), SftLossType::Nll);
        assert_eq!(given(r#"{"loss_type": "dft"}"#).unwrap(), SftLossType::Dft);
        assert!(given(r#"{"loss_type": "dapo"}"#).is_err());
    }
}

//! Self-distillation fine-tuning (Shenfeld et al. 2026, arXiv 2601.19897): on its own completions, the policy learns the output distributions
//! of a teacher that is the same model, but reads what the policy is not told. Names and defaults are those of TRL's `SDFTTrainer`.

use rlhost_plugin_sdk::algorithm::{Algorithm, Batch, Data, DefaultTeacher, Defaults, Gradient, Needs, Source, Unit};
use rlhost_plugin_sdk::config::UpperBound;
use rlhost_plugin_sdk::distillation::{DistillationMode, TeacherComparison};
use rlhost_plugin_sdk::prelude::*;

/// Settings of self-distillation.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SdftSettings {
    /// What is compared at each token.
    pub distillation_mode: DistillationMode,
    /// Which divergence: 0 is the forward one, KL(teacher || policy), 1 the reverse one, KL(policy || teacher), and numbers between are
    /// generalised Jensen-Shannon divergences.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub distillation_alpha: f64,
    /// Number of likeliest tokens that topk_logits compares.
    #[schemars(range(min = 1, max = 16384))]
    pub distillation_topk: u32,
    /// Whether all other tokens together count as one more in topk_logits. Otherwise probabilities are divided by their sum.
    pub distillation_add_tail: bool,
    /// Maximum of the ratio of a token's probability to that when it was sampled, by which its divergence is weighted; without one there are no
    /// weights.
    pub distillation_is_clip: UpperBound,
    /// Number of a completion's first tokens that are not learned.
    pub num_loss_tokens_to_skip: u32,
}

impl Default for SdftSettings {
    fn default() -> Self {
        Self {
            distillation_mode: DistillationMode::TopkLogits,
            distillation_alpha: 0.5,
            distillation_topk: 100,
            distillation_add_tail: false,
            distillation_is_clip: UpperBound::At(2.0),
            num_loss_tokens_to_skip: 0,
        }
    }
}

impl SdftSettings {
    /// Returns how the policy is compared with the teacher.
    fn compared(&self) -> TeacherComparison {
        TeacherComparison {
            mode: self.distillation_mode,
            alpha: self.distillation_alpha,
            top: self.distillation_topk,
            with_rest: self.distillation_add_tail,
            max_ratio: self.distillation_is_clip.value(),
        }
    }
}

/// The algorithm with its settings.
pub struct Sdft {
    settings: SdftSettings,
}

impl Algorithm for Sdft {
    type Config = SdftSettings;
    const DESCRIPTION: &'static str = "Self-distillation fine-tuning (SDFT): the divergence from the model itself, told more";
    /// TRL's, which has eight completions of a prompt.
    const DEFAULTS: Defaults = Defaults {
        max_completion_length: Some(256),
        teacher_model_kind: Some(DefaultTeacher::Base),
        teacher_prompt_template: Some("{prompt}\n\n{privileged_context}"),
        ..Defaults::NO_AUX_LOSS
    };

    fn needs(settings: &SdftSettings) -> Needs {
        settings.compared().needs() | Needs::ENTROPY
    }

    /// Learns from each token alike, so a generation is neither scored nor estimated.
    fn data(_: &SdftSettings) -> Data {
        Data::completions(Source::Policy)
    }

    fn new(settings: SdftSettings) -> Result<Self, Error> {
        settings.compared().check()?;
        Ok(Self { settings })
    }

    fn loss(&mut self, batch: &Batch) -> Result<Gradient, Error> {
        let entropy = batch.values("entropy", Unit::Token)?;
        let entropy = Metric::mean_of("entropy", batch.counted().map(|i| f64::from(entropy[i])));
        let compared = self.settings.compared();
        let tokens = compared.tokens(batch)?;
        let (mut loss, mut slopes, mut distances) = (0.0, batch.zeros(Unit::Token), Vec::new());
        for of_sequence in batch.sequences() {
            let first = of_sequence.start.saturating_add(self.settings.num_loss_tokens_to_skip as usize);
            let learned: Vec<usize> = (first..of_sequence.end).filter(|&i| batch.mask[i] == 1).collect();
            // The mean over a sequence's tokens, then over the step's sequences.
            let weight = 1.0 / (learned.len().max(1) as f64 * f64::from(batch.scale.items.max(1)));
            for i in learned {
                loss += weight * tokens[i].loss;
                slopes[i] = (weight * tokens[i].slope) as f32;
                distances.push(tokens[i].distance);
            }
        }
        let divergence = Metric::mean_of("divergence", distances);
        let gradient = Gradient::new(loss).with_derivatives(&compared.column(), Unit::Token, slopes);
        Ok(gradient.with_metrics(entropy.into_iter().chain(divergence)))
    }
}

rlhost_plugin_sdk::algorithm_plugin!(Sdft);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::algorithm::testing::batch;
    use rlhost_plugin_sdk::algorithm::{Column, Scale};
    use rlhost_plugin_sdk::columns::{LOGP, OLD_LOGP, TEACHER_LOGP};
    use rlhost_plugin_sdk::config::NoBound;

    const LOGPS: [f32; 5] = [-1.0, -2.0, -9.0, -0.5, -1.5];

    /// Returns two completions of three and two tokens, in a step of two sequences. The third token does not count.
    fn completions(column: (&str, [f32; 5]), old: [f32; 5]) -> Batch {
        let mut made = batch(&[&[3, 2]]).with_column(Column::new("entropy", Unit::Token, vec![1.0; 5]));
        let columns = [(LOGP, LOGPS), (OLD_LOGP, old), column];
        made.columns.extend(columns.iter().map(|(name, values)| Column::new(*name, Unit::Token, values.to_vec())));
        Batch { mask: vec![1, 1, 0, 1, 1], scale: Scale { items: 2, tokens: 4, ..Scale::default() }, ..made }
    }

    fn learned(settings: SdftSettings, batch: &Batch) -> (f64, String, Vec<f32>) {
        let gradient = Sdft::new(settings).unwrap().loss(batch).unwrap();
        let [own] = <[_; 1]>::try_from(gradient.derivatives).ok().unwrap();
        (gradient.loss, own.name, own.values)
    }

    #[test]
    fn a_sequences_tokens_weigh_as_much_as_anothers() {
        let full = SdftSettings { distillation_mode: DistillationMode::FullLogits, ..SdftSettings::default() };
        let given = completions(("teacher_divergence/0.5", [1.0, 3.0, 9.0, 2.0, 6.0]), LOGPS);
        let (loss, name, slopes) = learned(full.clone(), &given);
        assert_eq!((loss, name.as_str()), ((2.0 + 4.0) / 2.0, "teacher_divergence/0.5"));
        assert_eq!(slopes, [0.25, 0.25, 0.0, 0.25, 0.25]);
        let (loss, _, slopes) = learned(SdftSettings { num_loss_tokens_to_skip: 1, ..full }, &given);
        assert_eq!((loss, slopes), ((3.0 + 6.0) / 2.0, vec![0.0, 0.5, 0.0, 0.0, 0.5]));
        for more in [9, u32::MAX] {
            let all_skipped = SdftSettings { num_loss_tokens_to_skip: more, ..full };
            assert_eq!(learned(all_skipped, &given).0, 0.0);
        }
    }

    #[test]
    fn divergences_are_weighted_by_clipped_ratios() {
        let given = completions(("teacher_divergence/0.5/top100", [1.0; 5]), [-1.0, -2.0 - 0.5f32.exp(), -9.0, -0.5 + 1.0, -9.5]);
        let (loss, name, slopes) = learned(SdftSettings::default(), &given);
        let ratios = [1.0, 2.0, 0.0, (-1f64).exp(), 2.0];
        assert_eq!(name, "teacher_divergence/0.5/top100");
        assert!((loss - ratios.iter().sum::<f64>() / 4.0).abs() < 1e-6, "{loss}");
        assert!(slopes.iter().zip(ratios).all(|(slope, ratio)| (f64::from(*slope) - ratio / 4.0).abs() < 1e-6), "{slopes:?}");
        let free = SdftSettings { distillation_is_clip: UpperBound::Lifted(NoBound::None), ..SdftSettings::default() };
        assert_eq!(learned(free, &given).2, [0.25, 0.25, 0.0, 0.25, 0.25]);
    }

    #[test]
    fn sampled_tokens_estimate_the_reverse_divergence() {
        let settings = SdftSettings {
            distillation_mode: DistillationMode::SampledToken,
            distillation_alpha: 1.0,
            ..SdftSettings::default()
        };
        let given = completions((TEACHER_LOGP, [-0.5, -3.0, -1.0, -0.5, -2.5]), LOGPS);
        let (loss, name, slopes) = learned(settings.clone(), &given);
        let distances = [-0.5, 1.0, 0.0, 0.0, 1.0];
        assert_eq!(name, LOGP);
        assert_eq!(slopes, distances.map(|d| d as f32 / 4.0));
        let want: f64 = distances.iter().zip(LOGPS).map(|(d, logp)| d * f64::from(logp) / 4.0).sum();
        assert!((loss - want).abs() < 1e-6);
        let gradient = Sdft::new(settings).unwrap().loss(&given).unwrap();
        let divergence = gradient.metrics.iter().find(|metric| metric.name == "divergence").unwrap();
        assert!((divergence.value - 1.5 / 4.0).abs() < 1e-6);
    }

    #[test]
    fn names_and_defaults_are_those_of_trl() {
        use rlhost_plugin_sdk::config::parse;
        let s = parse::<SdftSettings>("{}").unwrap();
        assert_eq!((s.distillation_mode, s.distillation_alpha, s.distillation_topk), (DistillationMode::TopkLogits, 0.5, 100));
        assert_eq!((s.distillation_is_clip, s.distillation_add_tail, s.num_loss_tokens_to_skip), (UpperBound::At(2.0), false, 0));
        let tail = SdftSettings { distillation_add_tail: true, ..s };
        assert_eq!(Sdft::needs(&tail).names(), ["logp", "old_logp", "entropy", "teacher_divergence/0.5/top100+rest"]);
        let mixed = SdftSettings { distillation_mode: DistillationMode::SampledToken, ..SdftSettings::default() };
        assert!(matches!(Sdft::new(mixed), Err(Error::Config(_))));
    }
}

//! Distillation: the policy learns the output distributions of a teacher, another model, on its own completions (Agarwal et al. 2023, arXiv
//! 2306.13649; Lu et al. 2025, "On-policy distillation") or on a dataset's. Names and defaults are TRL's.

use rlhost_plugin_sdk::algorithm::{Algorithm, Batch, Data, Defaults, Gradient, Needs, Source, Unit};
use rlhost_plugin_sdk::columns::{OLD_LOGP, TEACHER_LOGP, teacher_divergence, teacher_divergence_of_teacher_top};
use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::prelude::*;

/// What is minimised at each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DistillationLossType {
    /// The divergence of both distributions, which `beta` selects, over the tokens that `loss_top_k` selects.
    Divergence,
    /// The reverse divergence as the sampled tokens estimate it: a policy gradient whose advantage is by how much more likely the teacher
    /// finds a token than the policy that sampled it.
    PolicyGradient,
}

/// Settings of distillation.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DistillationSettings {
    /// What is minimised at each token.
    pub loss_type: DistillationLossType,
    /// Which divergence: 0 is the forward one, KL(teacher || policy), 1 the reverse one, KL(policy || teacher), and numbers between are
    /// generalised Jensen-Shannon divergences.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub beta: f64,
    /// Number of the teacher's likeliest tokens over which the divergence is computed; 0 is the whole vocabulary. A teacher on a server or in
    /// the dataset says no more than these.
    #[schemars(range(min = 0, max = 16_384))]
    pub loss_top_k: u32,
    /// Whether all other tokens together count as one more; otherwise the probabilities of the likeliest ones are divided by their sum.
    pub loss_add_tail: bool,
}

impl Default for DistillationSettings {
    fn default() -> Self {
        Self { loss_type: DistillationLossType::Divergence, beta: 1.0, loss_top_k: 0, loss_add_tail: true }
    }
}

impl DistillationSettings {
    /// Returns the name of the column with the divergence.
    fn divergence(&self) -> String {
        match self.loss_top_k {
            0 => teacher_divergence(self.beta),
            count => teacher_divergence_of_teacher_top(self.beta, count as usize, self.loss_add_tail),
        }
    }
}

/// The algorithm with its settings.
pub struct Distillation {
    settings: DistillationSettings,
}

impl Algorithm for Distillation {
    type Config = DistillationSettings;
    const DESCRIPTION: &'static str = "Distillation: the divergence from a teacher (GKD, on-policy distillation)";
    const DEFAULTS: Defaults = Defaults { num_generations: Some(1), ..Defaults::NO_AUX_LOSS };

    fn needs(settings: &DistillationSettings) -> Needs {
        match settings.loss_type {
            DistillationLossType::Divergence => Needs::ENTROPY | Needs::column(&settings.divergence()),
            DistillationLossType::PolicyGradient => Needs::LOGP | Needs::OLD_LOGP | Needs::TEACHER_LOGP | Needs::ENTROPY,
        }
    }

    /// Learns from each token alike, so a generation is neither scored nor estimated.
    fn data(settings: &DistillationSettings) -> Data {
        Data::completions(match settings.loss_type {
            DistillationLossType::Divergence => Source::Either,
            DistillationLossType::PolicyGradient => Source::Policy,
        })
    }

    fn new(settings: DistillationSettings) -> Result<Self, Error> {
        if settings.loss_type == DistillationLossType::PolicyGradient && settings.loss_top_k > 0 {
            let detail = "loss_top_k is about loss_type divergence; policy_gradient compares the sampled tokens";
            return Err(Error::Config(detail.into()));
        }
        if settings.loss_top_k == 1 && !settings.loss_add_tail {
            let detail = "loss_top_k = 1 without loss_add_tail compares one token with itself: both find it certain";
            return Err(Error::Config(detail.into()));
        }
        Ok(Self { settings })
    }

    fn loss(&mut self, batch: &Batch) -> Result<Gradient, Error> {
        let entropy = batch.values("entropy", Unit::Token)?;
        let entropy = Metric::mean_of("entropy", batch.counted().map(|i| f64::from(entropy[i])));
        let gradient = match self.settings.loss_type {
            DistillationLossType::Divergence => divergence(batch, &self.settings.divergence())?,
            DistillationLossType::PolicyGradient => policy_gradient(batch)?,
        };
        Ok(gradient.with_metrics(entropy))
    }
}

/// Returns the mean divergence over the tokens of the step.
fn divergence(batch: &Batch, column: &str) -> Result<Gradient, Error> {
    let divergences = batch.values(column, Unit::Token)?;
    let weight = 1.0 / (batch.scale.tokens as f64).max(1.0);
    let mut slopes = batch.zeros(Unit::Token);
    batch.counted().for_each(|i| slopes[i] = weight as f32);
    let loss = batch.counted().map(|i| weight * f64::from(divergences[i])).sum();
    Ok(Gradient::new(loss).with_derivatives(column, Unit::Token, slopes))
}

/// Returns the mean over the tokens of the step of `-ratio A` with `A = ln teacher - ln sampled`, which is constant in the derivatives.
fn policy_gradient(batch: &Batch) -> Result<Gradient, Error> {
    let [logp, old, teacher] = ["logp", OLD_LOGP, TEACHER_LOGP].map(|name| batch.values(name, Unit::Token));
    let (logp, old, teacher) = (logp?, old?, teacher?);
    let weight = 1.0 / (batch.scale.tokens as f64).max(1.0);
    let (mut loss, mut d_logp) = (0.0, batch.zeros(Unit::Token));
    let distance = |i: usize| f64::from(old[i]) - f64::from(teacher[i]);
    for i in batch.counted() {
        let term = (Dual::variable(logp[i]) - old[i]).exp() * (weight * distance(i));
        loss += term.value;
        d_logp[i] = term.slope() as f32;
    }
    let teacher_kl = Metric::mean_of("teacher_kl", batch.counted().map(distance));
    Ok(Gradient::new(loss).with_derivatives("logp", Unit::Token, d_logp).with_metrics(teacher_kl))
}

rlhost_plugin_sdk::algorithm_plugin!(Distillation);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::algorithm::testing::batch;
    use rlhost_plugin_sdk::algorithm::{Column, Scale};

    /// Returns two completions of two tokens each, in a step of eight tokens. The third token does not count.
    fn completions(columns: &[(&str, [f32; 4])]) -> Batch {
        let mut made = batch(&[&[2, 2]]).with_column(Column::new("entropy", Unit::Token, vec![1.0, 2.0, 7.0, 3.0]));
        made.columns.extend(columns.iter().map(|(name, values)| Column::new(*name, Unit::Token, values.to_vec())));
        Batch { mask: vec![1, 1, 0, 1], scale: Scale { items: 4, tokens: 8, ..Scale::default() }, ..made }
    }

    #[test]
    fn the_loss_is_the_mean_divergence_over_the_steps_counted_tokens() {
        let settings = DistillationSettings { beta: 0.5, ..DistillationSettings::default() };
        assert_eq!(Distillation::needs(&settings).names(), ["entropy", "teacher_divergence/0.5"]);
        let got = Distillation { settings }.loss(&completions(&[("teacher_divergence/0.5", [0.5, 1.0, 9.0, 2.5])])).unwrap();
        let d = &got.derivatives[0];
        assert_eq!((got.loss, d.name.as_str(), &d.values[..]), (0.5, "teacher_divergence/0.5", &[0.125, 0.125, 0.0, 0.125][..]));
        assert_eq!((got.metrics[0].value, got.metrics[0].weight), (2.0, 3.0));
    }

    #[test]
    fn the_teachers_likeliest_tokens_may_be_compared_alone() {
        let of = |loss_top_k, loss_add_tail| DistillationSettings { beta: 0.0, loss_top_k, loss_add_tail, ..Default::default() };
        let needs = |settings: DistillationSettings| Distillation::needs(&settings).names().concat();
        assert!(needs(of(8, true)).ends_with("teacher_divergence/0/teacher_top8+rest"));
        assert!(needs(of(8, false)).ends_with("teacher_divergence/0/teacher_top8"));
        assert!(Distillation::new(of(1, true)).is_ok() && Distillation::new(of(0, false)).is_ok());
        let sampled = DistillationSettings { loss_type: DistillationLossType::PolicyGradient, ..of(8, true) };
        for (wrong, part) in [(of(1, false), "certain"), (sampled, "sampled tokens")] {
            let refused = Distillation::new(wrong).err();
            assert!(matches!(&refused, Some(Error::Config(detail)) if detail.contains(part)), "{refused:?}");
        }
    }

    #[test]
    fn a_policy_gradient_raises_what_the_teacher_finds_more_likely() {
        let columns =
            [("logp", [-1.0, -2.0, -9.0, -0.5]), (OLD_LOGP, [-1.0, -2.0, -9.0, -1.0]), (TEACHER_LOGP, [-0.5, -3.0, -1.0, -2.0])];
        let settings =
            DistillationSettings { loss_type: DistillationLossType::PolicyGradient, ..DistillationSettings::default() };
        let got = Distillation { settings }.loss(&completions(&columns)).unwrap();
        let ratio = 0.5f32.exp();
        let wanted = [-0.5 / 8.0, 1.0 / 8.0, 0.0, ratio / 8.0];
        assert!(
            got.derivatives[0].values.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6),
            "{:?}",
            got.derivatives[0].values
        );
        assert!((got.loss - f64::from(wanted.iter().sum::<f32>())).abs() < 1e-6);
        let kl = got.metrics.iter().find(|metric| metric.name == "teacher_kl").unwrap();
        assert!((kl.value - 0.5).abs() < 1e-6, "{}", kl.value);
    }

    #[test]
    fn it_learns_from_its_own_completions_or_given_ones_without_scores() {
        let of = |loss_type| Distillation::data(&DistillationSettings { loss_type, ..DistillationSettings::default() });
        assert_eq!(
            (of(DistillationLossType::Divergence).source, of(DistillationLossType::PolicyGradient).source),
            (Source::Either, Source::Policy)
        );
        assert!(of(DistillationLossType::Divergence).estimates.is_empty());
    }

    #[test]
    fn settings_have_the_names_and_defaults_of_trl() {
        use rlhost_plugin_sdk::config::parse;
        assert_eq!(parse::<DistillationSettings>("{}").map(|s| s.beta).unwrap(), 1.0);
        assert!(
            parse::<DistillationSettings>(r#"{"beta": 1.5}"#).is_err()
                || DistillationSettings { beta: 1.5, ..DistillationSettings::default() }.beta > 1.0
        );
    }
}

//! Preference algorithms: compute a loss over pairs of completions, with its derivatives per token.

pub mod testing;

pub use crate::algorithm::Scale;
use crate::algorithm::{Algorithm, Data, Source};
use crate::batch::{Batch, Column, SelectedTokens, Unit};
use crate::config::Config;
pub use crate::config::Defaults;
use crate::dual::Dual;
pub use crate::needs::Needs;
pub use crate::rows::rows;
use crate::{Error, Metric, algorithm, columns};
use std::ops::Range;

/// A preference algorithm.
///
/// ```
/// use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::dual::Dual;
/// use rlhost_plugin_sdk::prelude::*;
/// use rlhost_plugin_sdk::preference::{PreferenceGradient, Needs, PreferencePairs, Preference, PreferenceLossSum, pair_metrics};
///
/// /// Raises the chosen completion over the rejected one, without a reference model.
/// struct Margin;
///
/// impl Preference for Margin {
///     type Config = NoConfig;
///     const DESCRIPTION: &'static str = "Logistic loss of the difference";
///
///     fn needs(_: &NoConfig) -> Needs {
///         Needs::empty()
///     }
///
///     fn new(_: NoConfig) -> Result<Self, Error> {
///         Ok(Self)
///     }
///
///     fn loss(&mut self, pairs: &PreferencePairs) -> Result<PreferenceGradient, Error> {
///         let (chosen, rejected) = (pairs.chosen.logps(), pairs.rejected.logps());
///         let mut total = PreferenceLossSum::new(pairs);
///         for row in 0..chosen.len() {
///             let [c, r] = Dual::variables([chosen[row], rejected[row]]);
///             total.add(row, row, -(c - r).log_sigmoid() / f64::from(pairs.scale.items));
///         }
///         Ok(total.gradient(pairs, pair_metrics(pairs, None, [&chosen, &rejected])))
///     }
/// }
///
/// preference_plugin!(Margin);
/// ```
pub trait Preference: Sized + Send + 'static {
    /// The settings of the algorithm.
    type Config: Config;
    /// One line that says what the algorithm does.
    const DESCRIPTION: &'static str;
    /// The peak learning rate of a run that sets none, for a full-size model.
    const LEARNING_RATE: f64 = crate::config::LEARNING_RATE;
    /// The algorithm's own defaults for keys of the run, if it builds its pairs from new completions.
    const DEFAULTS: Defaults = Defaults::NONE;
    /// Whether a dataset's pairs begin and end with the tokenizer's beginning-of-text and end-of-text tokens, even where a chat template
    /// writes something else.
    const FRAMED: bool = false;

    /// Returns the columns that the algorithm needs under these settings, besides `logp`.
    fn needs(config: &Self::Config) -> Needs;

    /// Creates the algorithm from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives. Divide by `pairs.scale`: its `items` count the pairs of the
    /// complete step, its `tokens` the tokens of their chosen completions, its `prompt_tokens` the tokens of [`PreferencePairs::prompts`].
    fn loss(&mut self, pairs: &PreferencePairs) -> Result<PreferenceGradient, Error>;
}

/// The chosen or the rejected completion of each pair, per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairSide {
    /// The tokens of pair i are at `offsets[i]..offsets[i+1]`.
    pub offsets: Vec<u32>,
    /// Current log-probabilities.
    pub logp: Vec<f32>,
    /// Log-probabilities under the reference model, with `Needs::REF_LOGP`.
    pub ref_logp: Option<Vec<f32>>,
    /// Means over the vocabulary of the raw logits, with `Needs::MEAN_LOGITS`.
    pub mean_logits: Option<Vec<f32>>,
    /// Logarithms of the sums over the vocabulary of the squared probabilities, with `Needs::LOG_SUM_SQUARES`: how concentrated the model's
    /// distribution was at each token. A token's log-probability minus this value is 0 on average.
    pub log_sum_squares: Option<Vec<f32>>,
}

/// The prompts of pairs, per token. A prompt's first token has no entry, because nothing predicts it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairPrompts {
    /// The tokens of pair i's prompt are at `offsets[i]..offsets[i+1]`.
    pub offsets: Vec<u32>,
    /// Current log-probabilities.
    pub logp: Vec<f32>,
}

/// One micro-batch of pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreferencePairs {
    /// The optimizer step.
    pub step: u64,
    /// The chosen, better completions.
    pub chosen: PairSide,
    /// The rejected completions.
    pub rejected: PairSide,
    /// The prompts, with `Needs::PROMPT_LOGP`.
    pub prompts: Option<PairPrompts>,
    /// Totals of the complete step, to divide by.
    pub scale: Scale,
}

/// A micro-batch's part of the loss and its derivatives per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreferenceGradient {
    /// The micro-batch's part of the step's loss.
    pub loss: f64,
    /// Derivatives of the loss with respect to `chosen.logp`.
    pub d_chosen: Vec<f32>,
    /// Derivatives of the loss with respect to `rejected.logp`.
    pub d_rejected: Vec<f32>,
    /// Derivatives of the loss with respect to `prompts.logp`, if it depends on them.
    pub d_prompts: Option<Vec<f32>>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

impl PairSide {
    /// Returns the number of tokens of each completion.
    #[must_use]
    pub fn lengths(&self) -> Vec<f64> {
        rows(&self.offsets).map(|tokens| tokens.len() as f64).collect()
    }

    /// Returns the log-probability of each completion: the sum over its tokens.
    #[must_use]
    pub fn logps(&self) -> Vec<f64> {
        self.sums(&self.logp)
    }

    /// Returns the log-probability of each completion under the reference model.
    ///
    /// # Errors
    /// If the host sent none, which happens only if `needs` lacks `REF_LOGP`.
    pub fn ref_logps(&self) -> Result<Vec<f64>, Error> {
        let missing = || Error::Input("the reference log-probabilities are missing".into());
        Ok(self.sums(self.ref_logp.as_deref().ok_or_else(missing)?))
    }

    fn sums(&self, values: &[f32]) -> Vec<f64> {
        rows(&self.offsets).map(|tokens| values[tokens].iter().map(|&v| f64::from(v)).sum()).collect()
    }

    /// Expands one derivative per completion to all its tokens.
    #[must_use]
    pub fn spread(&self, by_row: &[f64]) -> Vec<f32> {
        let mut by_token = vec![0.0; self.logp.len()];
        for (tokens, &slope) in rows(&self.offsets).zip(by_row) {
            by_token[tokens].fill(slope as f32);
        }
        by_token
    }

    fn from_batch(batch: &Batch, selected: &SelectedTokens) -> Result<Self, Error> {
        Ok(Self {
            offsets: selected.offsets.clone(),
            logp: selected.values(batch, columns::LOGP)?,
            ref_logp: selected.optional(batch, columns::REF_LOGP)?,
            mean_logits: selected.optional(batch, columns::MEAN_LOGITS)?,
            log_sum_squares: selected.optional(batch, columns::LOG_SUM_SQUARES)?,
        })
    }
}

/// The tokens of the chosen and of the rejected completions.
struct SelectedSides {
    chosen: SelectedTokens,
    rejected: SelectedTokens,
}

impl SelectedSides {
    fn new(batch: &Batch) -> Result<Self, Error> {
        let pairs = groups_of_two(batch)?;
        let chosen = SelectedTokens::new(batch, pairs.iter().map(|pair| pair.start));
        Ok(Self { chosen, rejected: SelectedTokens::new(batch, pairs.iter().map(|pair| pair.start + 1)) })
    }

    /// Returns a gradient as derivatives with respect to the batch's columns.
    fn gradient(&self, batch: &Batch, gradient: PreferenceGradient) -> Result<algorithm::Gradient, Error> {
        let PreferenceGradient { loss, d_chosen, d_rejected, d_prompts, metrics } = gradient;
        let mut d_logp = batch.zeros(Unit::Token);
        self.chosen.put(&d_chosen, &mut d_logp)?;
        self.rejected.put(&d_rejected, &mut d_logp)?;
        let mut all = algorithm::Gradient::new(loss).with_derivatives(columns::LOGP, Unit::Token, d_logp).with_metrics(metrics);
        all.derivatives.extend(d_prompts.map(|d| Column::new(columns::PROMPT_LOGP, Unit::PromptToken, d)));
        Ok(all)
    }
}

/// Returns the sequences of each pair.
///
/// # Errors
/// If a group doesn't have two sequences.
pub(crate) fn groups_of_two(batch: &Batch) -> Result<Vec<Range<usize>>, Error> {
    let pairs: Vec<Range<usize>> = batch.grouped().collect();
    match pairs.iter().find(|pair| pair.len() != 2) {
        Some(pair) => Err(Error::Input(format!("a group has {} sequences; a pair has two", pair.len()))),
        None => Ok(pairs),
    }
}

impl PreferencePairs {
    /// Reads a micro-batch, keeping only the completions' tokens that count.
    ///
    /// # Errors
    /// If its groups are not pairs, or it has no log-probabilities.
    pub fn from_batch(batch: &Batch) -> Result<Self, Error> {
        Self::from_sides(batch, &SelectedSides::new(batch)?)
    }

    fn from_sides(batch: &Batch, sides: &SelectedSides) -> Result<Self, Error> {
        let prompts = batch.optional(columns::PROMPT_LOGP, Unit::PromptToken)?;
        Ok(Self {
            step: batch.step,
            chosen: PairSide::from_batch(batch, &sides.chosen)?,
            rejected: PairSide::from_batch(batch, &sides.rejected)?,
            prompts: prompts.map(|logp| PairPrompts { offsets: batch.prompt_tokens.clone(), logp: logp.to_vec() }),
            scale: batch.scale,
        })
    }
}

/// The loss of a micro-batch and its derivatives with respect to each completion's log-probability.
#[derive(Clone, Debug)]
pub struct PreferenceLossSum {
    /// The sum of all terms.
    pub loss: f64,
    /// Derivatives of the loss with respect to the chosen completions' log-probabilities.
    pub by_chosen: Vec<f64>,
    /// Derivatives of the loss with respect to the rejected completions' log-probabilities.
    pub by_rejected: Vec<f64>,
}

impl PreferenceLossSum {
    /// Starts an empty sum.
    #[must_use]
    pub fn new(pairs: &PreferencePairs) -> Self {
        let zeros = vec![0.0; pairs.chosen.offsets.len().saturating_sub(1)];
        Self { loss: 0.0, by_chosen: zeros.clone(), by_rejected: zeros }
    }

    /// Adds a term that depends on the log-probabilities of a chosen and a rejected completion.
    pub fn add(&mut self, chosen: usize, rejected: usize, term: Dual<2>) {
        self.loss += term.value;
        self.by_chosen[chosen] += term.slopes[0];
        self.by_rejected[rejected] += term.slopes[1];
    }

    /// Returns the loss with its derivatives per token, for losses that weight all tokens of a completion equally.
    #[must_use]
    pub fn gradient(self, pairs: &PreferencePairs, metrics: Vec<Metric>) -> PreferenceGradient {
        let (d_chosen, d_rejected) = (pairs.chosen.spread(&self.by_chosen), pairs.rejected.spread(&self.by_rejected));
        PreferenceGradient { loss: self.loss, d_chosen, d_rejected, d_prompts: None, metrics }
    }
}

/// Returns the metrics that every preference algorithm reports, under TRL's names: `rewards/*` of the chosen and rejected completions if
/// rewards are given, `logps/*`, and `logits/*` if the host sends mean logits. Completions' metrics are averaged over pairs, logits over
/// tokens.
#[must_use]
pub fn pair_metrics(pairs: &PreferencePairs, rewards: Option<[&[f64]; 2]>, logps: [&[f64]; 2]) -> Vec<Metric> {
    let mut figures = Vec::new();
    if let Some([chosen, rejected]) = rewards {
        let both = || chosen.iter().zip(rejected);
        figures.push(mean("rewards/chosen", chosen));
        figures.push(mean("rewards/rejected", rejected));
        figures.push(Metric::mean_of("rewards/accuracies", both().map(|(c, r)| f64::from(u8::from(c > r)))));
        figures.push(Metric::mean_of("rewards/margins", both().map(|(c, r)| c - r)));
    }
    figures.extend([mean("logps/chosen", logps[0]), mean("logps/rejected", logps[1])]);
    for (name, side) in [("logits/chosen", &pairs.chosen), ("logits/rejected", &pairs.rejected)] {
        let logits = side.mean_logits.iter().flatten();
        figures.push(Metric::mean_of(name, logits.map(|&l| f64::from(l))));
    }
    figures.into_iter().flatten().collect()
}

fn mean(name: &str, values: &[f64]) -> Option<Metric> {
    Metric::mean_of(name, values.iter().copied())
}

/// Returns one micro-batch's part of a preference algorithm's loss.
pub(crate) fn loss<P: Preference>(algorithm: &mut P, batch: &Batch) -> Result<algorithm::Gradient, Error> {
    let sides = SelectedSides::new(batch)?;
    let gradient = algorithm.loss(&PreferencePairs::from_sides(batch, &sides)?)?;
    sides.gradient(batch, gradient)
}

/// Adapts a [`Preference`] that learns from a dataset's pairs to [`Algorithm`].
#[doc(hidden)]
pub struct PreferenceAlgorithm<P>(P);

impl<P: Preference> Algorithm for PreferenceAlgorithm<P> {
    type Config = P::Config;
    const DESCRIPTION: &'static str = P::DESCRIPTION;
    const LEARNING_RATE: f64 = P::LEARNING_RATE;
    const DEFAULTS: Defaults = P::DEFAULTS;
    const FRAMED: bool = P::FRAMED;

    fn needs(config: &P::Config) -> Needs {
        P::needs(config) | Needs::LOGP
    }

    fn data(_: &P::Config) -> Data {
        Data::pairs(Source::Dataset)
    }

    fn new(config: P::Config) -> Result<Self, Error> {
        P::new(config).map(Self)
    }

    fn loss(&mut self, batch: &Batch) -> Result<algorithm::Gradient, Error> {
        loss(&mut self.0, batch)
    }
}

/// Exports a type that implements [`Preference`](crate::preference::Preference). Name and version are the crate's.
#[macro_export]
macro_rules! preference_plugin {
    ($algorithm:ty) => {
        $crate::algorithm_plugin!($crate::preference::PreferenceAlgorithm<$algorithm>);
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(offsets: &[u32], logp: &[f32]) -> PairSide {
        let mean_logits = Some(logp.iter().map(|l| l * 10.0).collect());
        PairSide { offsets: offsets.to_vec(), logp: logp.to_vec(), mean_logits, ..PairSide::default() }
    }

    fn pairs() -> PreferencePairs {
        let chosen = side(&[0, 2, 3], &[-1.0, -2.0, -4.0]);
        let rejected = side(&[0, 1, 4], &[-1.0, -0.5, -0.5, -1.0]);
        PreferencePairs {
            chosen,
            rejected,
            scale: Scale { items: 2, tokens: 3, ..Scale::default() },
            ..PreferencePairs::default()
        }
    }

    #[test]
    fn sums_are_by_completion_and_derivatives_go_to_all_of_its_tokens() {
        let p = pairs();
        assert_eq!((p.chosen.logps(), p.chosen.lengths()), (vec![-3.0, -4.0], vec![2.0, 1.0]));
        assert!(matches!(p.chosen.ref_logps(), Err(Error::Input(_))));
        let mut total = PreferenceLossSum::new(&p);
        total.add(0, 1, Dual { value: 0.5, slopes: [0.25, -0.25] });
        total.add(1, 1, Dual { value: 1.5, slopes: [2.0, -2.0] });
        let gradient = total.gradient(&p, Vec::new());
        assert_eq!((gradient.loss, gradient.d_chosen), (2.0, vec![0.25, 0.25, 2.0]));
        assert_eq!(gradient.d_rejected, [0.0, -2.25, -2.25, -2.25]);
    }

    #[test]
    fn figures_are_weighted_by_pairs_and_tokens() {
        let p = pairs();
        let figures = pair_metrics(&p, Some([&[1.0, 2.0], &[0.0, 3.0]]), [&p.chosen.logps(), &p.rejected.logps()]);
        let given: Vec<(&str, f64, f64)> = figures.iter().map(|m| (m.name.as_str(), m.value, m.weight)).collect();
        let wanted = [
            ("rewards/chosen", 1.5, 2.0),
            ("rewards/rejected", 1.5, 2.0),
            ("rewards/accuracies", 0.5, 2.0),
            ("rewards/margins", 0.0, 2.0),
            ("logps/chosen", -3.5, 2.0),
            ("logps/rejected", -1.5, 2.0),
            ("logits/chosen", -70.0 / 3.0, 3.0),
            ("logits/rejected", -7.5, 4.0),
        ];
        assert_eq!(given, wanted);
    }

    /// Returns a batch of the same pairs, chosen and rejected completions alternating, with one additional, masked token.
    fn batch() -> Batch {
        let mut batch = crate::batch::testing::batch(&[&[2, 1], &[2, 3]]);
        batch.prompt_tokens = vec![0, 2, 5];
        batch.mask[4] = 0;
        batch.scale = Scale { items: 2, tokens: 3, prompt_tokens: 7, max_completion_length: 0 };
        let logp = vec![-1.0, -2.0, -1.0, -4.0, -99.0, -0.5, -0.5, -1.0];
        let logits = logp.iter().map(|l| l * 10.0).collect();
        batch
            .with_column(Column::new("logp", Unit::Token, logp))
            .with_column(Column::new("mean_logits", Unit::Token, logits))
            .with_column(Column::new("prompt_logp", Unit::PromptToken, vec![-0.1; 5]))
    }

    #[test]
    fn pairs_are_groups_of_two_with_the_chosen_first() {
        let scale = batch().scale;
        let prompts = Some(PairPrompts { offsets: vec![0, 2, 5], logp: vec![-0.1; 5] });
        assert_eq!(PreferencePairs::from_batch(&batch()).unwrap(), PreferencePairs { prompts, scale, ..pairs() });
        let three = Batch { groups: vec![0, 3, 4], ..batch() };
        assert!(PreferencePairs::from_batch(&three).unwrap_err().to_string().contains("a group has 3 sequences"));
        let without = Batch { columns: Vec::new(), ..batch() };
        assert!(matches!(PreferencePairs::from_batch(&without), Err(Error::Input(_))));
    }

    #[test]
    fn derivatives_go_back_to_the_tokens_of_the_batch() {
        let batch = batch();
        let sides = SelectedSides::new(&batch).unwrap();
        let (d_chosen, d_rejected) = (vec![0.1, 0.2, 0.3], vec![1.0, 2.0, 3.0, 4.0]);
        let gradient = PreferenceGradient { loss: 0.5, d_chosen, d_rejected, d_prompts: Some(vec![9.0; 5]), metrics: Vec::new() };
        let got = sides.gradient(&batch, gradient.clone()).unwrap();
        let want = [
            Column::new("logp", Unit::Token, vec![0.1, 0.2, 1.0, 0.3, 0.0, 2.0, 3.0, 4.0]),
            Column::new("prompt_logp", Unit::PromptToken, vec![9.0; 5]),
        ];
        assert_eq!((got.loss, &got.derivatives[..]), (0.5, &want[..]));
        let few = PreferenceGradient { d_rejected: vec![1.0; 3], ..gradient };
        assert!(sides.gradient(&batch, few).unwrap_err().to_string().contains("3 derivatives for 4 tokens"));
    }
}

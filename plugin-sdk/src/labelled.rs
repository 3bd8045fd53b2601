//! Algorithms for labelled completions: compute a loss over completions labelled desirable or undesirable, with its derivatives per token.

pub use crate::algorithm::Scale;
use crate::algorithm::{Algorithm, Data, Source};
use crate::batch::{Batch, SelectedTokens, Unit};
use crate::config::{Config, Defaults};
use crate::dual::Dual;
pub use crate::needs::Needs;
pub use crate::rows::rows;
use crate::{Error, Metric, algorithm, columns};

/// An algorithm for labelled completions.
///
/// ```
/// use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::dual::Dual;
/// use rlhost_plugin_sdk::labelled::{Examples, LabelledGradient, Labelled, Needs, LabelledLossSum};
/// use rlhost_plugin_sdk::prelude::*;
///
/// /// Raises desirable completions and lowers the others, within bounds.
/// struct Bounded;
///
/// impl Labelled for Bounded {
///     type Config = NoConfig;
///     const DESCRIPTION: &'static str = "Logistic loss of each log-ratio";
///
///     fn needs(_: &NoConfig) -> Needs {
///         Needs::REF_LOGP
///     }
///
///     fn new(_: NoConfig) -> Result<Self, Error> {
///         Ok(Self)
///     }
///
///     fn loss(&mut self, examples: &Examples) -> Result<LabelledGradient, Error> {
///         let mut total = LabelledLossSum::new(examples);
///         for (row, ratio) in examples.log_ratios()?.into_iter().enumerate() {
///             let [ratio] = Dual::variables([ratio]);
///             let wrong = if examples.labels[row] { -ratio } else { ratio };
///             total.add(row, wrong.sigmoid() / f64::from(examples.scale.items));
///         }
///         Ok(total.gradient(examples, Vec::new()))
///     }
/// }
///
/// labelled_plugin!(Bounded);
/// ```
pub trait Labelled: Sized + Send + 'static {
    /// The settings of the algorithm.
    type Config: Config;
    /// One line that says what the algorithm does.
    const DESCRIPTION: &'static str;
    /// The peak learning rate of a run that sets none, for a full-size model.
    const LEARNING_RATE: f64 = crate::config::LEARNING_RATE;
    /// The algorithm's own defaults for keys of the run.
    const DEFAULTS: Defaults = Defaults::NONE;

    /// Returns the columns that the algorithm needs under these settings, besides `logp` and the labels.
    fn needs(config: &Self::Config) -> Needs;

    /// Creates the algorithm from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives. Divide by `examples.scale`: its `items` count the completions of
    /// the complete step, its `tokens` their tokens.
    fn loss(&mut self, examples: &Examples) -> Result<LabelledGradient, Error>;
}

/// Log-probabilities of mismatched completions (each prompt with another row's completion), summed over tokens. There is one per row of the
/// whole micro-batch, parts of which other calls may get. They have no gradient.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MismatchedLogps {
    /// Log-probabilities under the policy, with `Needs::MISMATCHED_LOGP`.
    pub logp: Vec<f32>,
    /// Log-probabilities under the reference model, with `Needs::MISMATCHED_REF_LOGP`.
    pub ref_logp: Vec<f32>,
}

/// One micro-batch of labelled completions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Examples {
    /// The optimizer step.
    pub step: u64,
    /// Per row: whether it is desirable.
    pub labels: Vec<bool>,
    /// Number of desirable rows in the whole micro-batch, parts of which other calls may get.
    pub desirable: u32,
    /// Number of undesirable rows in the whole micro-batch, parts of which other calls may get.
    pub undesirable: u32,
    /// The tokens of row i are at `offsets[i]..offsets[i+1]`.
    pub offsets: Vec<u32>,
    /// Per token: current log-probabilities.
    pub logp: Vec<f32>,
    /// Per token: log-probabilities under the reference model, with `Needs::REF_LOGP`.
    pub ref_logp: Option<Vec<f32>>,
    /// Per token: means over the vocabulary of the raw logits, with `Needs::MEAN_LOGITS`.
    pub mean_logits: Option<Vec<f32>>,
    /// Mismatched completions, with `Needs::MISMATCHED_LOGP | Needs::MISMATCHED_REF_LOGP`.
    pub mismatched: Option<MismatchedLogps>,
    /// Totals of the complete step, to divide by.
    pub scale: Scale,
}

/// A micro-batch's part of the loss and its derivatives per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelledGradient {
    /// The micro-batch's part of the step's loss.
    pub loss: f64,
    /// Derivatives of the loss with respect to `logp`.
    pub d_logp: Vec<f32>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

impl Examples {
    /// Returns the log-probability of each completion: the sum over its tokens.
    #[must_use]
    pub fn logps(&self) -> Vec<f64> {
        self.sums(&self.logp)
    }

    /// Returns the log-probability of each completion minus that under the reference model.
    ///
    /// # Errors
    /// If the host sent no reference log-probabilities, which happens only if `needs` lacks `REF_LOGP`.
    pub fn log_ratios(&self) -> Result<Vec<f64>, Error> {
        let missing = || Error::Input("the reference log-probabilities are missing".into());
        let reference = self.sums(self.ref_logp.as_deref().ok_or_else(missing)?);
        Ok(self.logps().iter().zip(reference).map(|(logp, reference)| logp - reference).collect())
    }

    /// Returns the mean log-ratio of the mismatched completions.
    ///
    /// # Errors
    /// If the host sent none, which happens only if `needs` lacks `MISMATCHED_LOGP` or `MISMATCHED_REF_LOGP`.
    pub fn mismatched_log_ratio(&self) -> Result<f64, Error> {
        let missing = || Error::Input("the mismatched completions are missing".into());
        let MismatchedLogps { logp, ref_logp } = self.mismatched.as_ref().ok_or_else(missing)?;
        let sum: f64 = logp.iter().zip(ref_logp).map(|(&logp, &reference)| f64::from(logp) - f64::from(reference)).sum();
        Ok(sum / (logp.len() as f64).max(1.0))
    }

    /// Returns the rows with this label.
    pub fn rows(&self, label: bool) -> impl Iterator<Item = usize> + '_ {
        self.labels.iter().enumerate().filter(move |(_, l)| **l == label).map(|(row, _)| row)
    }

    fn sums(&self, values: &[f32]) -> Vec<f64> {
        rows(&self.offsets).map(|tokens| values[tokens].iter().map(|&v| f64::from(v)).sum()).collect()
    }

    /// Reads a micro-batch, keeping only the tokens that count.
    ///
    /// # Errors
    /// If it has no log-probabilities or labels.
    pub fn from_batch(batch: &Batch) -> Result<Self, Error> {
        Self::from_tokens(batch, &SelectedTokens::new(batch, 0..batch.entries(Unit::Sequence)))
    }

    fn from_tokens(batch: &Batch, tokens: &SelectedTokens) -> Result<Self, Error> {
        let of_micro_batch = |name: &str| batch.optional(name, Unit::MicroBatch);
        let all = batch.values(columns::MICRO_BATCH_LABEL, Unit::MicroBatch)?;
        let desirable = all.iter().filter(|&&label| label != 0.0).count();
        let mismatched = of_micro_batch(columns::MISMATCHED_LOGP)?.zip(of_micro_batch(columns::MISMATCHED_REF_LOGP)?);
        Ok(Self {
            step: batch.step,
            labels: batch.values(columns::LABEL, Unit::Sequence)?.iter().map(|&label| label != 0.0).collect(),
            desirable: desirable as u32,
            undesirable: (all.len() - desirable) as u32,
            offsets: tokens.offsets.clone(),
            logp: tokens.values(batch, columns::LOGP)?,
            ref_logp: tokens.optional(batch, columns::REF_LOGP)?,
            mean_logits: tokens.optional(batch, columns::MEAN_LOGITS)?,
            mismatched: mismatched.map(|(logp, reference)| MismatchedLogps { logp: logp.to_vec(), ref_logp: reference.to_vec() }),
            scale: batch.scale,
        })
    }
}

/// The loss of a micro-batch and its derivatives with respect to each completion's log-probability.
#[derive(Clone, Debug)]
pub struct LabelledLossSum {
    /// The sum of all terms.
    pub loss: f64,
    /// Derivatives of the loss, one per row.
    pub by_row: Vec<f64>,
}

impl LabelledLossSum {
    /// Starts an empty sum.
    #[must_use]
    pub fn new(examples: &Examples) -> Self {
        Self { loss: 0.0, by_row: vec![0.0; examples.labels.len()] }
    }

    /// Adds a term that depends on the log-probability of a completion.
    pub fn add(&mut self, row: usize, term: Dual<1>) {
        self.loss += term.value;
        self.by_row[row] += term.slopes[0];
    }

    /// Returns the loss with its derivatives per token.
    #[must_use]
    pub fn gradient(self, examples: &Examples, metrics: Vec<Metric>) -> LabelledGradient {
        let mut d_logp = vec![0.0; examples.logp.len()];
        for (tokens, slope) in rows(&examples.offsets).zip(self.by_row) {
            d_logp[tokens].fill(slope as f32);
        }
        LabelledGradient { loss: self.loss, d_logp, metrics }
    }
}

/// Adapts a [`Labelled`] to [`Algorithm`].
#[doc(hidden)]
pub struct LabelledAlgorithm<L>(L);

impl<L: Labelled> Algorithm for LabelledAlgorithm<L> {
    type Config = L::Config;
    const DESCRIPTION: &'static str = L::DESCRIPTION;
    const LEARNING_RATE: f64 = L::LEARNING_RATE;
    const DEFAULTS: Defaults = L::DEFAULTS;

    fn needs(config: &L::Config) -> Needs {
        L::needs(config) | Needs::LOGP | Needs::LABEL | Needs::MICRO_BATCH_LABEL
    }

    fn data(_: &L::Config) -> Data {
        Data::completions(Source::Dataset)
    }

    fn new(config: L::Config) -> Result<Self, Error> {
        L::new(config).map(Self)
    }

    fn loss(&mut self, batch: &Batch) -> Result<algorithm::Gradient, Error> {
        let tokens = SelectedTokens::new(batch, 0..batch.entries(Unit::Sequence));
        let LabelledGradient { loss, d_logp: by_token, metrics } = self.0.loss(&Examples::from_tokens(batch, &tokens)?)?;
        let mut d_logp = batch.zeros(Unit::Token);
        tokens.put(&by_token, &mut d_logp)?;
        Ok(algorithm::Gradient::new(loss).with_derivatives(columns::LOGP, Unit::Token, d_logp).with_metrics(metrics))
    }
}

/// Exports a type that implements [`Labelled`](crate::labelled::Labelled). Name and version are the crate's.
#[macro_export]
macro_rules! labelled_plugin {
    ($algorithm:ty) => {
        $crate::algorithm_plugin!($crate::labelled::LabelledAlgorithm<$algorithm>);
    };
}

/// Synthetic completions and a check of gradients, for an algorithm's own tests.
pub mod testing {
    use super::{Examples, LabelledGradient, MismatchedLogps, Scale};
    use crate::policy::testing::TestNoise;

    /// Returns five completions of unequal lengths, two of them undesirable, with all columns: a micro-batch of a step with seven
    /// rows of 31 tokens.
    #[must_use]
    pub fn examples(seed: u64) -> Examples {
        let mut noise = TestNoise(seed);
        let offsets = vec![0, 4, 5, 8, 14, 16];
        let logp: Vec<f32> = (0..16).map(|_| -3.0 * noise.unit()).collect();
        let ref_logp = Some(logp.iter().map(|l| l + 4.0 * noise.unit() - 2.0).collect());
        let mean_logits = Some(logp.iter().map(|_| noise.unit()).collect());
        let sums: Vec<f32> = (0..5).map(|_| -30.0 * noise.unit()).collect();
        let ref_sums = sums.iter().map(|l| l + 4.0 * noise.unit() - 3.0).collect();
        let labels = vec![true, false, true, true, false];
        let scale = Scale { items: 7, tokens: 31, ..Scale::default() };
        let mismatched = Some(MismatchedLogps { logp: sums, ref_logp: ref_sums });
        let (desirable, undesirable) = (3, 2);
        Examples { step: 0, labels, desirable, undesirable, offsets, logp, ref_logp, mean_logits, mismatched, scale }
    }

    /// Compares a gradient with an independent implementation of the loss, a function of all tokens' log-probabilities: its value and, by
    /// central differences, each derivative, to 1e-5 relative.
    ///
    /// # Panics
    /// If they differ.
    pub fn assert_follows(got: &LabelledGradient, examples: &Examples, what: &str, wanted: impl Fn(&[f64]) -> f64) {
        let close = |got: f64, want: f64, where_: &str| {
            assert!((got - want).abs() <= 1e-5 * want.abs() + 1e-9, "{what}: {where_}: {got} against {want}");
        };
        let logp: Vec<f64> = examples.logp.iter().map(|&v| f64::from(v)).collect();
        close(got.loss, wanted(&logp), "loss");
        let h = 1e-5;
        let moved = |i: usize, by: f64| wanted(&[&logp[..i], &[logp[i] + by], &logp[i + 1..]].concat());
        assert_eq!(got.d_logp.len(), logp.len(), "{what}");
        for (i, &slope) in got.d_logp.iter().enumerate() {
            close(f64::from(slope), (moved(i, h) - moved(i, -h)) / (2.0 * h), &format!("token {i}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Column;

    #[test]
    fn sums_are_by_completion_and_derivatives_go_to_all_of_its_tokens() {
        let mut e = testing::examples(1);
        e.logp = (0..16).map(|i| -(i as f32)).collect();
        e.ref_logp = Some(vec![-1.0; 16]);
        assert_eq!(e.logps(), [-6.0, -4.0, -18.0, -63.0, -29.0]);
        assert_eq!(e.log_ratios().unwrap(), [-2.0, -3.0, -15.0, -57.0, -27.0]);
        assert_eq!((e.rows(true).collect::<Vec<_>>(), e.rows(false).collect::<Vec<_>>()), (vec![0, 2, 3], vec![1, 4]));
        e.mismatched = Some(MismatchedLogps { logp: vec![-1.0, -2.0], ref_logp: vec![-4.0, -1.0] });
        assert_eq!(e.mismatched_log_ratio().unwrap(), 1.0);
        let mut total = LabelledLossSum::new(&e);
        total.add(1, Dual { value: 0.5, slopes: [0.25] });
        total.add(4, Dual { value: 1.5, slopes: [-2.0] });
        let gradient = total.gradient(&e, Vec::new());
        assert_eq!(gradient.loss, 2.0);
        assert_eq!(gradient.d_logp[3..6], [0.0, 0.25, 0.0]);
        assert_eq!(gradient.d_logp[13..], [0.0, -2.0, -2.0]);
    }

    #[test]
    fn examples_are_columns_and_counts_are_of_the_whole_micro_batch() {
        let mut batch = crate::batch::testing::batch(&[&[2], &[1]])
            .with_column(Column::new("logp", Unit::Token, vec![-1.0, -2.0, -3.0]))
            .with_column(Column::new("label", Unit::Sequence, vec![0.0, 1.0]))
            .with_column(Column::new("micro_batch/label", Unit::MicroBatch, vec![0.0, 1.0, 1.0, 0.0, 1.0]))
            .with_column(Column::new("micro_batch/mismatched_logp", Unit::MicroBatch, vec![-5.0; 5]))
            .with_column(Column::new("micro_batch/mismatched_ref_logp", Unit::MicroBatch, vec![-6.0; 5]));
        batch.mask[0] = 0;
        let want = Examples {
            labels: vec![false, true],
            desirable: 3,
            undesirable: 2,
            offsets: vec![0, 1, 2],
            logp: vec![-2.0, -3.0],
            mismatched: Some(MismatchedLogps { logp: vec![-5.0; 5], ref_logp: vec![-6.0; 5] }),
            scale: batch.scale,
            ..Examples::default()
        };
        assert_eq!(Examples::from_batch(&batch).unwrap(), want);

        let gradient = LabelledAlgorithm(LogpSum).loss(&batch).unwrap();
        assert_eq!(gradient.derivatives, [Column::new("logp", Unit::Token, vec![0.0, 1.0, 1.0])]);
        batch.columns.truncate(2);
        assert!(matches!(Examples::from_batch(&batch), Err(Error::Input(_))));
    }

    #[test]
    fn what_was_not_asked_for_is_missed_where_it_is_used() {
        let absent = Examples { ref_logp: None, mismatched: None, ..testing::examples(2) };
        assert!(absent.log_ratios().is_err() && absent.mismatched_log_ratio().is_err());
    }

    /// A loss that sums up log-probabilities.
    struct LogpSum;

    impl Labelled for LogpSum {
        type Config = crate::config::NoConfig;
        const DESCRIPTION: &'static str = "";

        fn needs(_: &Self::Config) -> Needs {
            Needs::empty()
        }

        fn new(_: Self::Config) -> Result<Self, Error> {
            Ok(Self)
        }

        fn loss(&mut self, examples: &Examples) -> Result<LabelledGradient, Error> {
            Ok(LabelledGradient { d_logp: vec![1.0; examples.logp.len()], ..LabelledGradient::default() })
        }
    }
}

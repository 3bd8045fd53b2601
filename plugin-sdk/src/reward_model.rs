//! Losses of reward models, which assign each completion one value. They learn from pairs of a preferred and a rejected completion.

pub use crate::algorithm::Scale;
use crate::algorithm::{Algorithm, Data, Source};
use crate::batch::{Batch, Unit};
use crate::config::{Config, Defaults};
use crate::dual::Dual;
use crate::needs::Needs;
use crate::preference::groups_of_two;
use crate::{Error, Metric, algorithm, columns};

/// A loss of a reward model.
///
/// ```
/// use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::prelude::*;
/// use rlhost_plugin_sdk::reward_model::{RewardModelGradient, RewardModelPairs, RewardModel, RewardModelLossSum};
///
/// /// Wants the chosen completion's value to be greater by one.
/// struct Hinge;
///
/// impl RewardModel for Hinge {
///     type Config = NoConfig;
///     const DESCRIPTION: &'static str = "Hinge loss of the difference";
///
///     fn new(_: NoConfig) -> Result<Self, Error> {
///         Ok(Self)
///     }
///
///     fn loss(&mut self, pairs: &RewardModelPairs) -> Result<RewardModelGradient, Error> {
///         let mut total = RewardModelLossSum::default();
///         for (chosen, rejected) in pairs.values() {
///             total.add((rejected - chosen + 1.0).max(0.0) / f64::from(pairs.scale.items));
///         }
///         Ok(total.gradient(Vec::new()))
///     }
/// }
///
/// reward_model_plugin!(Hinge);
/// ```
pub trait RewardModel: Sized + Send + 'static {
    /// The settings of the algorithm.
    type Config: Config;
    /// One line that says what the algorithm does.
    const DESCRIPTION: &'static str;
    /// The peak learning rate of a run that sets none, for a full-size model.
    const LEARNING_RATE: f64 = 1e-4;
    /// The algorithm's own defaults for keys of the run.
    const DEFAULTS: Defaults = Defaults::NONE;

    /// Creates the loss from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives. Divide by `pairs.scale`: its `items` count the pairs of the
    /// complete step.
    fn loss(&mut self, pairs: &RewardModelPairs) -> Result<RewardModelGradient, Error>;
}

/// One micro-batch of pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardModelPairs {
    /// The optimizer step.
    pub step: u64,
    /// The model's values of the chosen completions, one per pair.
    pub chosen: Vec<f32>,
    /// The model's values of the rejected completions, one per pair.
    pub rejected: Vec<f32>,
    /// Margins by which the chosen completions are better, if the dataset has them for all pairs.
    pub margin: Option<Vec<f32>>,
    /// Totals of the complete step, to divide by.
    pub scale: Scale,
}

/// A micro-batch's part of the loss and its derivatives, one per pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardModelGradient {
    /// The micro-batch's part of the step's loss.
    pub loss: f64,
    /// Derivatives of the loss with respect to `chosen`.
    pub d_chosen: Vec<f32>,
    /// Derivatives of the loss with respect to `rejected`.
    pub d_rejected: Vec<f32>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

impl RewardModelPairs {
    /// Returns the values of each pair, chosen and rejected, as variables of its loss term.
    pub fn values(&self) -> impl Iterator<Item = (Dual<2>, Dual<2>)> {
        self.chosen.iter().zip(&self.rejected).map(|(&chosen, &rejected)| {
            let [chosen, rejected] = Dual::variables([f64::from(chosen), f64::from(rejected)]);
            (chosen, rejected)
        })
    }

    /// Reads a micro-batch.
    ///
    /// # Errors
    /// If its groups are not pairs, or it has no values.
    pub fn from_batch(batch: &Batch) -> Result<Self, Error> {
        let values = batch.values(columns::SEQUENCE_VALUE, Unit::Sequence)?;
        let pairs = groups_of_two(batch)?;
        let margin = batch.column(columns::MARGIN).filter(|column| column.unit == Unit::Group);
        Ok(Self {
            step: batch.step,
            chosen: pairs.iter().map(|pair| values[pair.start]).collect(),
            rejected: pairs.iter().map(|pair| values[pair.start + 1]).collect(),
            margin: margin.and_then(|column| column.entries().collect()),
            scale: batch.scale,
        })
    }
}

/// The loss of a micro-batch and its derivatives, pair by pair.
#[derive(Clone, Debug, Default)]
pub struct RewardModelLossSum {
    loss: f64,
    d_chosen: Vec<f32>,
    d_rejected: Vec<f32>,
}

impl RewardModelLossSum {
    /// Adds the term of the next pair, a function of the two variables from [`RewardModelPairs::values`].
    pub fn add(&mut self, term: Dual<2>) {
        self.loss += term.value;
        self.d_chosen.push(term.slopes[0] as f32);
        self.d_rejected.push(term.slopes[1] as f32);
    }

    /// Returns the sum with its derivatives.
    #[must_use]
    pub fn gradient(self, metrics: Vec<Metric>) -> RewardModelGradient {
        RewardModelGradient { loss: self.loss, d_chosen: self.d_chosen, d_rejected: self.d_rejected, metrics }
    }
}

/// Returns the gradient of this many pairs as derivatives with respect to the column of values.
fn by_sequence(gradient: RewardModelGradient, pairs: usize) -> Result<algorithm::Gradient, Error> {
    let RewardModelGradient { loss, d_chosen, d_rejected, metrics } = gradient;
    if d_chosen.len() != pairs || d_rejected.len() != pairs {
        let (chosen, rejected) = (d_chosen.len(), d_rejected.len());
        return Err(Error::Internal(format!("the loss has {chosen} and {rejected} derivatives for {pairs} pairs")));
    }
    let alternating = d_chosen.into_iter().zip(d_rejected).flat_map(|(chosen, rejected)| [chosen, rejected]);
    Ok(algorithm::Gradient::new(loss)
        .with_derivatives(columns::SEQUENCE_VALUE, Unit::Sequence, alternating.collect())
        .with_metrics(metrics))
}

/// Adapts a [`RewardModel`] to [`Algorithm`].
#[doc(hidden)]
pub struct RewardModelAlgorithm<R>(R);

impl<R: RewardModel> Algorithm for RewardModelAlgorithm<R> {
    type Config = R::Config;
    const DESCRIPTION: &'static str = R::DESCRIPTION;
    const LEARNING_RATE: f64 = R::LEARNING_RATE;
    const DEFAULTS: Defaults = R::DEFAULTS;

    fn needs(_: &R::Config) -> Needs {
        Needs::SEQUENCE_VALUE | Needs::MARGIN
    }

    fn data(_: &R::Config) -> Data {
        Data::pairs(Source::Dataset)
    }

    fn new(config: R::Config) -> Result<Self, Error> {
        R::new(config).map(Self)
    }

    fn loss(&mut self, batch: &Batch) -> Result<algorithm::Gradient, Error> {
        by_sequence(self.0.loss(&RewardModelPairs::from_batch(batch)?)?, batch.entries(Unit::Group))
    }
}

/// Exports a type that implements [`RewardModel`](crate::reward_model::RewardModel). Name and version are the crate's.
#[macro_export]
macro_rules! reward_model_plugin {
    ($loss:ty) => {
        $crate::algorithm_plugin!($crate::reward_model::RewardModelAlgorithm<$loss>);
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Column;

    fn pairs() -> RewardModelPairs {
        let scale = Scale { items: 2, tokens: 3, ..Scale::default() };
        RewardModelPairs { step: 0, chosen: vec![1.0, -2.0], rejected: vec![0.5, 3.0], margin: Some(vec![0.0, 1.0]), scale }
    }

    #[test]
    fn terms_become_derivatives_of_their_own_pair() {
        let mut total = RewardModelLossSum::default();
        for (chosen, rejected) in pairs().values() {
            total.add(chosen * rejected);
        }
        let gradient = total.gradient(Vec::new());
        assert_eq!((gradient.loss, gradient.d_chosen, gradient.d_rejected), (-5.5, vec![0.5, 3.0], vec![1.0, -2.0]));
    }

    #[test]
    fn pairs_are_groups_of_two_values() {
        let mut batch = crate::batch::testing::batch(&[&[1, 2], &[1, 1]])
            .with_column(Column::new("sequence_value", Unit::Sequence, vec![1.0, 0.5, -2.0, 3.0]))
            .with_column(Column::new("margin", Unit::Group, vec![0.0, 1.0]));
        batch.scale = pairs().scale;
        assert_eq!(RewardModelPairs::from_batch(&batch).unwrap(), pairs());
        // A margin that only some pairs have is dropped.
        batch.columns[1].missing = vec![0];
        assert_eq!(RewardModelPairs::from_batch(&batch).unwrap(), RewardModelPairs { margin: None, ..pairs() });
        let gradient =
            RewardModelGradient { loss: 2.0, d_chosen: vec![0.1, 0.2], d_rejected: vec![0.3, 0.4], metrics: Vec::new() };
        let wanted = [Column::new("sequence_value", Unit::Sequence, vec![0.1, 0.3, 0.2, 0.4])];
        assert_eq!(by_sequence(gradient.clone(), 2).unwrap().derivatives, wanted);
        assert!(matches!(by_sequence(gradient, 3), Err(Error::Internal(_))));
        batch.groups = vec![0, 4];
        assert!(RewardModelPairs::from_batch(&batch).is_err());
    }
}

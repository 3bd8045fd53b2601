//! Online policy algorithms: compute advantages from a generation's rewards, and a loss with its derivatives per token.

pub mod testing;

use crate::algorithm::{Algorithm, Data, Estimates, Source, WeightedReward};
pub use crate::algorithm::{Observing, Scale, Stateful, find_metric};
use crate::batch::{Batch, Column, Unit};
use crate::config::Config;
pub use crate::config::{Defaults, Derivation, DerivedMetric};
pub use crate::needs::Needs;
pub use crate::rollouts::{RewardColumn, Rollouts};
pub use crate::rows::rows;
pub use crate::turns::Turns;
use crate::{Error, Metric, algorithm, columns};

/// An online policy algorithm.
pub trait Policy: Sized + Send + 'static {
    /// The settings of the algorithm.
    type Config: Config;
    /// One line that says what the algorithm does.
    const DESCRIPTION: &'static str;
    /// The peak learning rate of a run that sets none, for a full-size model.
    const LEARNING_RATE: f64 = crate::config::LEARNING_RATE;
    /// The algorithm's own defaults for keys of the run.
    const DEFAULTS: Defaults = Defaults::NONE;
    /// Metrics that the host derives from others, in log rows that have all of their inputs.
    const DERIVED_METRICS: &'static [DerivedMetric] = &[];
    /// Source of the completions. A dataset's completions have advantages of 1.
    const SOURCE: Source = Source::Either;

    /// Returns the columns that the algorithm needs under these settings, besides `logp` and `old_logp`, the advantages, and whether
    /// completions finished. With [`Needs::RETURN`], the loss receives the returns that [`Self::estimate`] computes for a critic.
    fn needs(config: &Self::Config) -> Needs;

    /// Returns whether label smoothing is valid under these settings. With `label_smoothing_factor`, the host replaces the `logp` of each
    /// dataset token with that of a smoothed target, which spreads this share of the probability evenly over the vocabulary. This is valid
    /// if the loss is a sum of `logp` with fixed weights, its derivatives.
    fn smoothed(_config: &Self::Config) -> bool {
        false
    }

    /// Returns whether the algorithm compares the completions of a prompt with each other under these settings, so that training needs at
    /// least two. An evaluation may generate one, which then has nothing to be compared with.
    fn compares(_config: &Self::Config) -> bool {
        false
    }

    /// Creates the algorithm from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns advantages for the complete generation batch of all ranks. With [`Needs::TURN_REWARD`], the batch has the rewards of turns,
    /// and runs without an environment refuse the algorithm.
    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives.
    fn loss(&mut self, tokens: &Tokens) -> Result<PolicyGradient, Error>;
}

/// Advantages of a generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advantages {
    /// Advantages, per token.
    pub advantages: Vec<f32>,
    /// Returns, the critic's targets, per token.
    pub returns: Option<Vec<f32>>,
    /// Mask per token that replaces the batch's, for example to exclude truncated or unscorable rows.
    pub mask: Option<Vec<u8>>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

/// One micro-batch, per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    /// The optimizer step.
    pub step: u64,
    /// The tokens of row i are at `offsets[i]..offsets[i+1]`.
    pub offsets: Vec<u32>,
    /// 1 for tokens that the policy chose and that count, else 0.
    pub mask: Vec<u8>,
    /// Advantages from [`Policy::estimate`]; 1 for a dataset's completions.
    pub advantages: Vec<f32>,
    /// Current log-probabilities.
    pub logp: Vec<f32>,
    /// Log-probabilities under the policy that generated the completions; the current ones if the batch has no others.
    pub old_logp: Vec<f32>,
    /// Log-probabilities under the reference model, with `Needs::REF_LOGP`.
    pub ref_logp: Option<Vec<f32>>,
    /// Log-probabilities that the sampler computed, with `Needs::SAMPLING_LOGP`.
    pub sampling_logp: Option<Vec<f32>>,
    /// Entropies of the policy's distributions, with `Needs::ENTROPY`.
    pub entropy: Option<Vec<f32>>,
    /// The critic's current values, with `Needs::VALUE`.
    pub values: Option<Vec<f32>>,
    /// The critic's values at the time of generation, with `Needs::OLD_VALUE`.
    pub old_values: Option<Vec<f32>>,
    /// Returns from [`Policy::estimate`], the critic's targets, with `Needs::RETURN`.
    pub returns: Option<Vec<f32>>,
    /// Totals of the complete step, to divide by.
    pub scale: Scale,
}

/// A micro-batch's part of the loss and its derivatives per token, which are 0 where the mask is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyGradient {
    /// The micro-batch's part of the step's loss.
    pub loss: f64,
    /// Derivatives of the loss with respect to `logp`.
    pub d_logp: Vec<f32>,
    /// Derivatives of the loss with respect to `entropy`, if it depends on that.
    pub d_entropy: Option<Vec<f32>>,
    /// Derivatives of the loss with respect to `values`, if it depends on them.
    pub d_values: Option<Vec<f32>>,
    /// Metrics to log.
    pub metrics: Vec<Metric>,
}

impl Tokens {
    /// Reads a micro-batch.
    ///
    /// # Errors
    /// If it has no log-probabilities.
    pub fn from_batch(batch: &Batch) -> Result<Self, Error> {
        let optional = |name: &str| Ok::<_, Error>(batch.optional(name, Unit::Token)?.map(<[f32]>::to_vec));
        let logp = batch.values(columns::LOGP, Unit::Token)?.to_vec();
        Ok(Self {
            step: batch.step,
            offsets: batch.tokens.clone(),
            mask: batch.mask.clone(),
            advantages: optional(columns::ADVANTAGE)?.unwrap_or_else(|| vec![1.0; batch.mask.len()]),
            old_logp: optional(columns::OLD_LOGP)?.unwrap_or_else(|| logp.clone()),
            logp,
            ref_logp: optional(columns::REF_LOGP)?,
            sampling_logp: optional(columns::SAMPLING_LOGP)?,
            entropy: optional(columns::ENTROPY)?,
            values: optional(columns::VALUE)?,
            old_values: optional(columns::OLD_VALUE)?,
            returns: optional(columns::RETURN)?,
            scale: batch.scale,
        })
    }
}

impl From<PolicyGradient> for algorithm::Gradient {
    fn from(gradient: PolicyGradient) -> Self {
        let PolicyGradient { loss, d_logp, d_entropy, d_values, metrics } = gradient;
        let mut all = Self::new(loss).with_derivatives(columns::LOGP, Unit::Token, d_logp).with_metrics(metrics);
        for (name, derivatives) in [(columns::ENTROPY, d_entropy), (columns::VALUE, d_values)] {
            all.derivatives.extend(derivatives.map(|values| Column::new(name, Unit::Token, values)));
        }
        all
    }
}

/// Adapts a [`Policy`] to [`Algorithm`].
#[doc(hidden)]
pub struct PolicyAlgorithm<P>(P);

impl<P: Policy> Algorithm for PolicyAlgorithm<P> {
    type Config = P::Config;
    const DESCRIPTION: &'static str = P::DESCRIPTION;
    const LEARNING_RATE: f64 = P::LEARNING_RATE;
    const DEFAULTS: Defaults = P::DEFAULTS;
    const DERIVED_METRICS: &'static [DerivedMetric] = P::DERIVED_METRICS;

    fn smoothed(config: &P::Config) -> bool {
        P::smoothed(config)
    }

    fn compares(config: &P::Config) -> bool {
        P::compares(config)
    }

    fn needs(config: &P::Config) -> Needs {
        let of_generations = match P::SOURCE {
            Source::Dataset => Needs::empty(),
            Source::Policy | Source::Either => Needs::OLD_LOGP | Needs::ADVANTAGE | Needs::FINISHED,
        };
        P::needs(config) | Needs::LOGP | of_generations
    }

    fn data(_: &P::Config) -> Data {
        let data = Data::completions(P::SOURCE);
        match P::SOURCE {
            Source::Dataset => data,
            Source::Policy | Source::Either => data.estimating([columns::ADVANTAGE, columns::RETURN, columns::MASK]),
        }
    }

    fn new(config: P::Config) -> Result<Self, Error> {
        P::new(config).map(Self)
    }

    fn loss(&mut self, batch: &Batch) -> Result<algorithm::Gradient, Error> {
        self.0.loss(&Tokens::from_batch(batch)?).map(Into::into)
    }

    fn estimate(&mut self, generation: &Batch, rewards: &[WeightedReward]) -> Result<Estimates, Error> {
        let Advantages { advantages, returns, mask, metrics } = self.0.estimate(&Rollouts::from_batch(generation, rewards)?)?;
        let mask = mask.map(|mask| mask.into_iter().map(f32::from).collect());
        let named = [(columns::ADVANTAGE, Some(advantages)), (columns::RETURN, returns), (columns::MASK, mask)];
        let given = named.into_iter().filter_map(|(name, values)| Some(Column::new(name, Unit::Token, values?)));
        Ok(Estimates { columns: given.collect(), metrics })
    }
}

impl<P: Stateful> Stateful for PolicyAlgorithm<P> {
    type State = P::State;

    fn state(&mut self) -> &mut P::State {
        self.0.state()
    }
}

impl<P: Observing> Observing for PolicyAlgorithm<P> {
    fn observe(&mut self, step: u64, metrics: &[(String, f64)]) {
        self.0.observe(step, metrics);
    }
}

/// Exports a type that implements [`Policy`](crate::policy::Policy). With `stateful`, it also exports its
/// [state](crate::policy::Stateful), and with `observing`, its state and its [observer](crate::policy::Observing). Name and version
/// are the crate's.
///
/// ```
/// use rlhost_plugin_sdk::policy::{Advantages, PolicyGradient, Needs, Observing, Policy, Rollouts, Stateful, Tokens, find_metric};
/// use rlhost_plugin_sdk::{config::NoConfig, prelude::*};
///
/// /// The highest KL divergence so far.
/// #[derive(Default, Deserialize, Serialize)]
/// struct Peak(f64);
///
/// #[derive(Default)]
/// struct Watching {
///     peak: Peak,
/// }
///
/// impl Policy for Watching {
///     // ...
/// #   type Config = NoConfig;
/// #   const DESCRIPTION: &'static str = "Watches";
/// #   fn needs(_: &NoConfig) -> Needs {
/// #       Needs::empty()
/// #   }
/// #   fn new(_: NoConfig) -> Result<Self, Error> {
/// #       Ok(Self::default())
/// #   }
/// #   fn estimate(&mut self, _: &Rollouts) -> Result<Advantages, Error> {
/// #       Err(Error::Internal("a test".into()))
/// #   }
/// #   fn loss(&mut self, _: &Tokens) -> Result<PolicyGradient, Error> {
/// #       Err(Error::Internal("a test".into()))
/// #   }
/// }
///
/// impl Stateful for Watching {
///     type State = Peak;
///     fn state(&mut self) -> &mut Peak {
///         &mut self.peak
///     }
/// }
///
/// impl Observing for Watching {
///     fn observe(&mut self, _step: u64, metrics: &[(String, f64)]) {
///         self.peak.0 = find_metric(metrics, "kl").map_or(self.peak.0, |kl| kl.max(self.peak.0));
///     }
/// }
///
/// policy_plugin!(Watching, observing);
///
/// # use rlhost_plugin_sdk::bindings::contract::{observer::Guest as _, plugin::Guest as _, state::Guest as _};
/// # assert!(__Plugin::snapshot().is_err());
/// # __Plugin::configure("{}".into()).unwrap();
/// # __Plugin::observe(1, vec![("reward".into(), 9.0), ("kl".into(), 2.5)]);
/// # __Plugin::observe(2, vec![("kl".into(), 1.5)]);
/// # let snapshot = __Plugin::snapshot().unwrap();
/// # assert_eq!(snapshot, b"2.5");
/// # __Plugin::configure("{}".into()).unwrap();
/// # assert_eq!(__Plugin::snapshot().unwrap(), b"0.0");
/// # __Plugin::restore(snapshot, "watching 0.1.0".into()).unwrap();
/// # assert_eq!(__Plugin::snapshot().unwrap(), b"2.5");
/// # assert!(__Plugin::restore(b"{".to_vec(), "watching 0.1.0".into()).is_err());
/// # assert!(!__Plugin::describe().stateless);
/// ```
#[macro_export]
macro_rules! policy_plugin {
    ($policy:ty $(, $more:ident)*) => {
        $crate::algorithm_plugin!($crate::policy::PolicyAlgorithm<$policy>, estimating $(, $more)*);
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Shape;
    use crate::batch::testing::batch;
    use crate::config::NoConfig;

    /// A policy that returns its inputs.
    struct EchoPolicy<const CRITIC: bool>;

    impl<const CRITIC: bool> Policy for EchoPolicy<CRITIC> {
        type Config = NoConfig;
        const DESCRIPTION: &'static str = "";

        fn needs(_: &NoConfig) -> Needs {
            if CRITIC { Needs::VALUE | Needs::RETURN } else { Needs::ENTROPY }
        }

        fn new(_: NoConfig) -> Result<Self, Error> {
            Ok(Self)
        }

        fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error> {
            let advantages = rollouts.logp.iter().map(|logp| 2.0 * logp).collect();
            Ok(Advantages { advantages, mask: Some(vec![1, 0, 1]), ..Advantages::default() })
        }

        fn loss(&mut self, tokens: &Tokens) -> Result<PolicyGradient, Error> {
            let (d_logp, d_values) = (tokens.advantages.clone(), tokens.values.clone());
            Ok(PolicyGradient { loss: 1.5, d_logp, d_values, ..PolicyGradient::default() })
        }
    }

    fn column(name: &str, values: [f32; 3]) -> Column {
        Column::new(name, Unit::Token, values.to_vec())
    }

    #[test]
    fn tokens_are_columns_and_a_datasets_advantages_are_1() {
        let given = batch(&[&[2], &[1]]).with_column(column("logp", [-1.0, -2.0, -3.0]));
        let tokens = Tokens::from_batch(&given).unwrap();
        assert_eq!((tokens.advantages, tokens.old_logp), (vec![1.0; 3], vec![-1.0, -2.0, -3.0]));
        assert_eq!((tokens.offsets, tokens.mask, tokens.ref_logp), (vec![0, 2, 3], vec![1; 3], None));
        let learned = given.with_column(column("advantage", [0.5; 3])).with_column(column("old_logp", [-4.0; 3]));
        let tokens = Tokens::from_batch(&learned.with_column(column("return", [7.0; 3]))).unwrap();
        assert_eq!((tokens.advantages, tokens.old_logp, tokens.returns), (vec![0.5; 3], vec![-4.0; 3], Some(vec![7.0; 3])));
        assert!(matches!(Tokens::from_batch(&batch(&[&[1]])), Err(Error::Input(_))));
    }

    #[test]
    fn estimates_and_derivatives_are_columns_too() {
        let mut seen = PolicyAlgorithm::<EchoPolicy<true>>::new(NoConfig {}).unwrap();
        let finished = Column::new("finished", Unit::Sequence, vec![1.0, 0.0]);
        let generation = batch(&[&[2, 1]]).with_column(column("old_logp", [-1.0, -2.0, -3.0])).with_column(finished);
        let estimates = seen.estimate(&generation, &[]).unwrap();
        assert_eq!(estimates.columns, [column("advantage", [-2.0, -4.0, -6.0]), column("mask", [1.0, 0.0, 1.0])]);
        let given = generation.with_column(column("logp", [0.0; 3])).with_column(column("value", [4.0, 5.0, 6.0]));
        let gradient = seen.loss(&given.with_column(column("advantage", [1.0, 2.0, 3.0]))).unwrap();
        let want = [column("logp", [1.0, 2.0, 3.0]), column("value", [4.0, 5.0, 6.0])];
        assert_eq!((gradient.loss, &gradient.derivatives[..]), (1.5, &want[..]));
    }

    #[test]
    fn needs_include_what_every_policy_reads() {
        let names = |needs: Needs| needs.names();
        let critic = PolicyAlgorithm::<EchoPolicy<true>>::needs(&NoConfig {});
        assert_eq!(names(critic), ["logp", "old_logp", "value", "finished", "advantage", "return"]);
        let plain = PolicyAlgorithm::<EchoPolicy<false>>::needs(&NoConfig {});
        assert_eq!(names(plain), ["logp", "old_logp", "entropy", "finished", "advantage"]);
        let data = PolicyAlgorithm::<EchoPolicy<false>>::data(&NoConfig {});
        assert_eq!((data.source, data.shape), (Source::Either, Shape::Completions));
        assert_eq!(data.estimates, ["advantage", "return", "mask"]);
    }
}

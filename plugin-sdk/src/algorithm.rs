//! Algorithms over named columns: a loss of any columns that the host provides or that the algorithm itself computed from a generation,
//! with its derivatives. [`policy`](crate::policy), [`preference`](crate::preference), [`labelled`](crate::labelled) and
//! [`reward_model`](crate::reward_model) are layers over this module, with the usual columns as fields.

pub use crate::batch::{Batch, Column, Scale, Turn, Unit, WeightedReward, testing};
pub use crate::bindings::contract::algorithm::{Data, Gradient, Shape, Source};
pub use crate::bindings::contract::estimator::Estimates;
pub use crate::bindings::contract::pairing::{Choice, Pair};
use crate::bindings::contract::plugin::Info;
pub use crate::bindings::contract::teacher_prompts::{Generation as TaughtGeneration, Prompts as TeacherPrompts};
use crate::config::Config;
pub use crate::config::{DefaultTeacher, Defaults, Derivation, DerivedMetric};
pub use crate::needs::Needs;
use crate::stateful::PersistentState;
use crate::{Error, Metric};

/// An algorithm.
///
/// ```
/// use rlhost_plugin_sdk::algorithm::{Algorithm, Batch, Column, Data, Gradient, Needs, Source, Unit};
/// use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::dual::Dual;
/// use rlhost_plugin_sdk::prelude::*;
///
/// /// Keeps the policy near the reference model on a dataset's completions.
/// struct Distill;
///
/// impl Algorithm for Distill {
///     type Config = NoConfig;
///     const DESCRIPTION: &'static str = "Squared distance from the reference model";
///
///     fn needs(_: &NoConfig) -> Needs {
///         Needs::LOGP | Needs::REF_LOGP
///     }
///
///     fn data(_: &NoConfig) -> Data {
///         Data::completions(Source::Dataset)
///     }
///
///     fn new(_: NoConfig) -> Result<Self, Error> {
///         Ok(Self)
///     }
///
///     fn loss(&mut self, batch: &Batch) -> Result<Gradient, Error> {
///         let (logp, ref_logp) = (batch.values("logp", Unit::Token)?, batch.values("ref_logp", Unit::Token)?);
///         let (mut loss, mut d_logp) = (0.0, batch.zeros(Unit::Token));
///         for i in batch.counted() {
///             let term = (Dual::variable(logp[i]) - ref_logp[i]).square() / batch.scale.tokens as f64;
///             loss += term.value;
///             d_logp[i] = term.slope() as f32;
///         }
///         Ok(Gradient::new(loss).with_derivatives("logp", Unit::Token, d_logp))
///     }
/// }
///
/// algorithm_plugin!(Distill);
///
/// # use rlhost_plugin_sdk::algorithm::testing::batch;
/// // One completion of three tokens, of which the last doesn't count.
/// let mut batch = batch(&[&[3]])
///     .with_column(Column::new("logp", Unit::Token, vec![-1.0, -2.0, -9.0]))
///     .with_column(Column::new("ref_logp", Unit::Token, vec![-2.0, -2.0, -1.0]));
/// (batch.mask[2], batch.scale.tokens) = (0, 2);
/// let gradient = Distill.loss(&batch).unwrap();
/// assert_eq!((gradient.loss, &gradient.derivatives[0].values[..]), (0.5, &[1.0, 0.0, 0.0][..]));
/// ```
pub trait Algorithm: Sized + Send + 'static {
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
    /// Whether a dataset's pairs begin and end with the tokenizer's beginning-of-text and end-of-text tokens, even where a chat template
    /// writes something else.
    const FRAMED: bool = false;

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

    /// Returns the columns that the algorithm reads under these settings. The host sends no others.
    fn needs(config: &Self::Config) -> Needs;

    /// Returns the algorithm's data source under these settings, and the columns that [`Self::estimate`] returns.
    fn data(config: &Self::Config) -> Data;

    /// Creates the algorithm from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives with respect to the columns that it depends on, which are 0 where
    /// the mask is 0. Divide by `batch.scale`, which counts the complete step.
    fn loss(&mut self, batch: &Batch) -> Result<Gradient, Error>;

    /// Returns columns for the loss, such as advantages, from the complete generation of all ranks. The scores of its rewards are the
    /// columns `reward/NAME`. Export this method with `algorithm_plugin!(MyType, estimating);`.
    fn estimate(&mut self, _generation: &Batch, _rewards: &[WeightedReward]) -> Result<Estimates, Error> {
        Err(Error::Unsupported("this algorithm makes nothing of a generation".into()))
    }

    /// Chooses which sequences of a generation become pairs. Sequences in no pair are not trained on. Export this method with
    /// `algorithm_plugin!(MyType, pairing);`.
    fn choose(&mut self, _generation: &Batch, _rewards: &[WeightedReward]) -> Result<Choice, Error> {
        Err(Error::Unsupported("this algorithm makes no pairs".into()))
    }

    /// Writes what the teacher reads before each completion of a scored generation in place of its question. Export this method with
    /// `algorithm_plugin!(MyType, teaching);`.
    fn teacher_prompts(&mut self, _generation: &TaughtGeneration) -> Result<TeacherPrompts, Error> {
        Err(Error::Unsupported("this algorithm writes no prompts for a teacher".into()))
    }
}

/// An algorithm with a state, such as an adapted coefficient, that survives checkpoints and hot swaps. Export it with the word `stateful`:
/// `policy_plugin!(MyType, stateful);`.
pub trait Stateful {
    /// The state of the algorithm, without its settings. Settings may change when a run is forked or a plugin swapped, so a state must work
    /// with new settings.
    type State: PersistentState;

    /// Returns the algorithm's state, to be read for a snapshot or replaced by one.
    fn state(&mut self) -> &mut Self::State;
}

/// An algorithm that adapts to the metrics of training. The word `observing` exports it together with its state, because without the state
/// everything adapted would be lost at every resume.
pub trait Observing: Stateful {
    /// Receives the metrics of each optimizer step, reduced over micro-batches and ranks, so that all ranks adapt alike. Metrics for which
    /// a step had no values are missing.
    fn observe(&mut self, step: u64, metrics: &[(String, f64)]);
}

/// Returns a metric by name from those passed to [`Observing::observe`].
#[must_use]
pub fn find_metric(metrics: &[(String, f64)], name: &str) -> Option<f64> {
    metrics.iter().find(|(n, _)| n == name).map(|&(_, value)| value)
}

impl Data {
    /// Learns from single completions.
    #[must_use]
    pub fn completions(source: Source) -> Self {
        Self { source, shape: Shape::Completions, estimates: Vec::new() }
    }

    /// Learns from pairs: groups of two, the chosen sequence first.
    #[must_use]
    pub fn pairs(source: Source) -> Self {
        Self { source, shape: Shape::Pairs, estimates: Vec::new() }
    }

    /// Names the columns that [`Algorithm::estimate`] returns.
    #[must_use]
    pub fn estimating<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { estimates: names.into_iter().map(str::to_owned).collect(), ..self }
    }
}

impl Gradient {
    /// Creates a loss that depends on nothing yet.
    #[must_use]
    pub fn new(loss: f64) -> Self {
        Self { loss, derivatives: Vec::new(), metrics: Vec::new() }
    }

    /// Adds derivatives with respect to the entries of a column.
    #[must_use]
    pub fn with_derivatives(mut self, column: &str, unit: Unit, derivatives: Vec<f32>) -> Self {
        self.derivatives.push(Column::new(column, unit, derivatives));
        self
    }

    /// Adds metrics.
    #[must_use]
    pub fn with_metrics(mut self, metrics: impl IntoIterator<Item = Metric>) -> Self {
        self.metrics.extend(metrics);
        self
    }
}

/// An exported algorithm with its settings.
#[doc(hidden)]
pub struct ConfiguredAlgorithm<A: Algorithm> {
    config: A::Config,
    pub algorithm: A,
}

#[doc(hidden)]
pub fn configured<A: Algorithm>(config: &str) -> Result<ConfiguredAlgorithm<A>, Error> {
    let config: A::Config = crate::config::parse(config)?;
    Ok(ConfiguredAlgorithm { algorithm: A::new(config.clone())?, config })
}

/// Name and version of an exported algorithm's crate, and whether the algorithm is stateless.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct PluginIdentity {
    pub name: &'static str,
    pub version: &'static str,
    pub stateless: bool,
}

#[doc(hidden)]
#[must_use]
pub fn described<A: Algorithm>(identity: PluginIdentity, exported: Option<&ConfiguredAlgorithm<A>>) -> Info {
    let config = exported.map_or_else(A::Config::default, |e| e.config.clone());
    let hints = serde_json::json!({
        "learning_rate": A::LEARNING_RATE,
        "defaults": A::DEFAULTS,
        "derived_metrics": crate::config::derived(A::DERIVED_METRICS),
        "framed": A::FRAMED,
        "smoothed": A::smoothed(&config),
        "compares": A::compares(&config),
    });
    Info {
        name: identity.name.into(),
        version: identity.version.into(),
        description: A::DESCRIPTION.into(),
        config_schema: crate::config::algorithm_schema::<A::Config>(hints),
        needs: A::needs(&config).names(),
        stateless: identity.stateless,
    }
}

#[doc(hidden)]
pub fn data<A: Algorithm>(exported: &ConfiguredAlgorithm<A>) -> Data {
    A::data(&exported.config)
}

/// Exports a type that implements [`Algorithm`](crate::algorithm::Algorithm). The words after the type export more methods: `estimating`
/// its [estimate](crate::algorithm::Algorithm::estimate), `pairing` its [choice](crate::algorithm::Algorithm::choose), `teaching` its
/// [prompts for a teacher](crate::algorithm::Algorithm::teacher_prompts), `stateful` its [state](crate::algorithm::Stateful), and
/// `observing` its state and its [observer](crate::algorithm::Observing). Name and version are the crate's.
#[macro_export]
macro_rules! algorithm_plugin {
    ($algorithm:ty $(, $more:ident)*) => {
        #[doc(hidden)]
        pub struct __Plugin;
        static __ALGORITHM: $crate::slot::ExportSlot<$crate::algorithm::ConfiguredAlgorithm<$algorithm>> = $crate::slot::ExportSlot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                let stateless = true $(&& $crate::algorithm_plugin!(@stateless $more))*;
                let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
                let identity = $crate::algorithm::PluginIdentity { name, version, stateless };
                __ALGORITHM.read(|exported| $crate::algorithm::described(identity, exported))
            }

            fn configure(config: ::std::string::String) -> ::core::result::Result<(), $crate::Error> {
                $crate::algorithm::configured(&config).map(|exported| __ALGORITHM.set(exported))
            }
        }

        impl $crate::bindings::contract::algorithm::Guest for __Plugin {
            fn describe_data() -> ::core::result::Result<$crate::algorithm::Data, $crate::Error> {
                __ALGORITHM.with(|exported| ::core::result::Result::Ok($crate::algorithm::data(exported)))
            }

            fn loss(
                batch: $crate::algorithm::Batch,
            ) -> ::core::result::Result<$crate::algorithm::Gradient, $crate::Error> {
                batch.check()?;
                __ALGORITHM.with(|exported| $crate::algorithm::Algorithm::loss(&mut exported.algorithm, &batch))
            }
        }

        $crate::export_interfaces!(__Plugin, plugin, algorithm);
        $($crate::algorithm_plugin!(@$more);)*
    };
    (@stateless stateful) => { false };
    (@stateless observing) => { false };
    (@stateless $other:ident) => { true };
    (@estimating) => {
        impl $crate::bindings::contract::estimator::Guest for __Plugin {
            fn estimate(
                generation: $crate::algorithm::Batch,
                rewards: ::std::vec::Vec<$crate::algorithm::WeightedReward>,
            ) -> ::core::result::Result<$crate::algorithm::Estimates, $crate::Error> {
                generation.check()?;
                __ALGORITHM.with(|exported| $crate::algorithm::Algorithm::estimate(&mut exported.algorithm, &generation, &rewards))
            }
        }

        $crate::export_interfaces!(__Plugin, estimator);
    };
    (@pairing) => {
        impl $crate::bindings::contract::pairing::Guest for __Plugin {
            fn choose(
                generation: $crate::algorithm::Batch,
                rewards: ::std::vec::Vec<$crate::algorithm::WeightedReward>,
            ) -> ::core::result::Result<$crate::algorithm::Choice, $crate::Error> {
                generation.check()?;
                __ALGORITHM.with(|exported| $crate::algorithm::Algorithm::choose(&mut exported.algorithm, &generation, &rewards))
            }
        }

        $crate::export_interfaces!(__Plugin, pairing);
    };
    (@teaching) => {
        impl $crate::bindings::contract::teacher_prompts::Guest for __Plugin {
            fn write(
                generation: $crate::algorithm::TaughtGeneration,
            ) -> ::core::result::Result<$crate::algorithm::TeacherPrompts, $crate::Error> {
                __ALGORITHM.with(|exported| $crate::algorithm::Algorithm::teacher_prompts(&mut exported.algorithm, &generation))
            }
        }

        $crate::export_interfaces!(__Plugin, teacher_prompts);
    };
    (@stateful) => {
        impl $crate::bindings::contract::state::Guest for __Plugin {
            fn snapshot() -> ::core::result::Result<::std::vec::Vec<u8>, $crate::Error> {
                __ALGORITHM.with(|exported| {
                    $crate::stateful::snapshot($crate::algorithm::Stateful::state(&mut exported.algorithm))
                })
            }

            fn restore(
                snapshot: ::std::vec::Vec<u8>,
                _written_by: ::std::string::String,
            ) -> ::core::result::Result<(), $crate::Error> {
                __ALGORITHM.with(|exported| {
                    let state = $crate::algorithm::Stateful::state(&mut exported.algorithm);
                    $crate::stateful::restored(&snapshot).map(|restored| *state = restored)
                })
            }
        }

        $crate::export_interfaces!(__Plugin, state);
    };
    (@observing) => {
        $crate::algorithm_plugin!(@stateful);

        impl $crate::bindings::contract::observer::Guest for __Plugin {
            fn observe(step: u64, metrics: ::std::vec::Vec<(::std::string::String, f64)>) {
                // Before `configure` there is no plugin to notify, and the contract has no error to return.
                let _ = __ALGORITHM.with(|exported| {
                    $crate::algorithm::Observing::observe(&mut exported.algorithm, step, &metrics);
                    ::core::result::Result::Ok(())
                });
            }
        }

        $crate::export_interfaces!(__Plugin, observer);
    };
}

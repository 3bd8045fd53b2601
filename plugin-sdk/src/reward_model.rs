//! Losses of reward models, which give each completion one value. They learn from pairs of completions, of which one is
//! preferred.

use crate::bindings::contract::plugin::Info;
pub use crate::bindings::contract::reward_model::{Gradient, Pairs};
pub use crate::bindings::types::Scale;
use crate::config::Config;
use crate::dual::Dual;
use crate::{Error, Metric};

/// A loss of a reward model.
///
/// ```
/// use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::prelude::*;
/// use rlhost_plugin_sdk::reward_model::{Gradient, Pairs, RewardModel, Total};
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
///     fn loss(&mut self, pairs: &Pairs) -> Result<Gradient, Error> {
///         let mut total = Total::default();
///         for (chosen, rejected) in pairs.values() {
///             total.add((rejected - chosen + 1.0).max(0.0) / f64::from(pairs.scale.rows));
///         }
///         Ok(total.gradient(Vec::new()))
///     }
/// }
///
/// reward_model_plugin!(Hinge);
/// ```
pub trait RewardModel: Sized + Send + 'static {
    /// Its settings.
    type Config: Config;
    /// One line that says what it does.
    const DESCRIPTION: &'static str;
    /// The peak learning rate of a run that sets none, for a full-size model.
    const LEARNING_RATE: f64 = 1e-4;

    /// Creates the loss from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives. Divide by `pairs.scale`: its `rows` are the pairs of the
    /// complete step.
    fn loss(&mut self, pairs: &Pairs) -> Result<Gradient, Error>;
}

impl Pairs {
    /// Returns the values of each pair, chosen and rejected, as the variables of its term of a loss.
    pub fn values(&self) -> impl Iterator<Item = (Dual<2>, Dual<2>)> {
        self.chosen.iter().zip(&self.rejected).map(|(&chosen, &rejected)| {
            let [chosen, rejected] = Dual::variables([f64::from(chosen), f64::from(rejected)]);
            (chosen, rejected)
        })
    }

    /// Checks the lengths of the columns; the exported plugin calls this before `loss`.
    ///
    /// # Errors
    /// If they don't fit together.
    pub fn check(&self) -> Result<(), Error> {
        let (chosen, rejected) = (self.chosen.len(), self.rejected.len());
        if chosen != rejected || self.margin.as_ref().is_some_and(|margin| margin.len() != chosen) {
            let margins = self.margin.as_ref().map_or_else(String::new, |margin| format!(" and {} margins", margin.len()));
            return Err(Error::Input(format!("{chosen} chosen completions, {rejected} rejected{margins}")));
        }
        Ok(())
    }
}

/// The loss of a micro-batch and its derivatives, pair by pair.
#[derive(Clone, Debug, Default)]
pub struct Total {
    loss: f64,
    d_chosen: Vec<f32>,
    d_rejected: Vec<f32>,
}

impl Total {
    /// Adds the term of the next pair, a function of the two variables that [`Pairs::values`] gives.
    pub fn add(&mut self, term: Dual<2>) {
        self.loss += term.value;
        self.d_chosen.push(term.slopes[0] as f32);
        self.d_rejected.push(term.slopes[1] as f32);
    }

    /// Returns the sum with its derivatives.
    #[must_use]
    pub fn gradient(self, metrics: Vec<Metric>) -> Gradient {
        Gradient { loss: self.loss, d_chosen: self.d_chosen, d_rejected: self.d_rejected, metrics }
    }
}

/// Holds an exported loss.
#[doc(hidden)]
pub fn configured<R: RewardModel>(config: &str) -> Result<R, Error> {
    R::new(crate::config::parse(config)?)
}

#[doc(hidden)]
#[must_use]
pub fn described<R: RewardModel>(name: &str, version: &str) -> Info {
    let hints = serde_json::json!({ "learning_rate": R::LEARNING_RATE });
    Info {
        name: name.into(),
        version: version.into(),
        description: R::DESCRIPTION.into(),
        config_schema: crate::config::algorithm_schema::<R::Config>(hints),
        needs: crate::preference::Needs::empty(),
        stateless: true,
    }
}

/// Exports a type that implements [`RewardModel`](crate::reward_model::RewardModel). Name and version are the crate's.
#[macro_export]
macro_rules! reward_model_plugin {
    ($loss:ty) => {
        #[doc(hidden)]
        pub struct __Plugin;
        static __LOSS: $crate::slot::Slot<$loss> = $crate::slot::Slot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                $crate::reward_model::described::<$loss>(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
            }

            fn configure(config: ::std::string::String) -> ::core::result::Result<(), $crate::Error> {
                $crate::reward_model::configured(&config).map(|loss| __LOSS.set(loss))
            }
        }

        impl $crate::bindings::contract::reward_model::Guest for __Plugin {
            fn loss(
                pairs: $crate::reward_model::Pairs,
            ) -> ::core::result::Result<$crate::reward_model::Gradient, $crate::Error> {
                pairs.check()?;
                __LOSS.with(|loss| $crate::reward_model::RewardModel::loss(loss, &pairs))
            }
        }

        $crate::export_interfaces!(__Plugin, REWARD_MODEL, reward_model: __export_rlhost_plugin_reward_model_0_2_0_cabi);
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs() -> Pairs {
        let scale = Scale { rows: 2, tokens: 3, max_completion_length: 0 };
        Pairs { step: 0, chosen: vec![1.0, -2.0], rejected: vec![0.5, 3.0], margin: Some(vec![0.0, 1.0]), scale }
    }

    #[test]
    fn terms_become_derivatives_of_their_own_pair() {
        let mut total = Total::default();
        for (chosen, rejected) in pairs().values() {
            total.add(chosen * rejected);
        }
        let gradient = total.gradient(Vec::new());
        assert_eq!((gradient.loss, gradient.d_chosen, gradient.d_rejected), (-5.5, vec![0.5, 3.0], vec![1.0, -2.0]));
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        assert!(pairs().check().is_ok());
        let fault = |breaks: fn(&mut Pairs)| {
            let mut pairs = pairs();
            breaks(&mut pairs);
            pairs.check().unwrap_err().to_string()
        };
        assert!(fault(|p| p.rejected.truncate(1)).contains("2 chosen completions, 1 rejected"));
        assert!(fault(|p| p.margin = Some(Vec::new())).contains("0 margins"));
    }
}

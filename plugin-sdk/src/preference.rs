//! Preference algorithms: compute a loss over pairs of completions, with its derivatives per token.

pub mod testing;

use crate::bindings::contract::plugin::Info;
pub use crate::bindings::contract::plugin::Needs;
pub use crate::bindings::contract::preference::{Gradient, Pairs, Side};
pub use crate::bindings::contract::prompted_preference::{PromptedGradient, Prompts};
pub use crate::bindings::contract::weighted_preference::LogSumSquares;
pub use crate::bindings::types::Scale;
use crate::config::Config;
pub use crate::config::Defaults;
use crate::dual::Dual;
pub use crate::policy::rows;
use crate::{Error, Metric};

/// A preference algorithm.
///
/// ```
/// use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::dual::Dual;
/// use rlhost_plugin_sdk::prelude::*;
/// use rlhost_plugin_sdk::preference::{Gradient, Needs, Pairs, Preference, Total, figures};
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
///     fn loss(&mut self, pairs: &Pairs) -> Result<Gradient, Error> {
///         let (chosen, rejected) = (pairs.chosen.logps(), pairs.rejected.logps());
///         let mut total = Total::new(pairs);
///         for row in 0..chosen.len() {
///             let [c, r] = Dual::variables([chosen[row], rejected[row]]);
///             total.add(row, row, -(c - r).log_sigmoid() / f64::from(pairs.scale.rows));
///         }
///         Ok(total.gradient(pairs, figures(pairs, None, [&chosen, &rejected])))
///     }
/// }
///
/// preference_plugin!(Margin);
/// ```
pub trait Preference: Sized + Send + 'static {
    /// Its settings.
    type Config: Config;
    /// One line that says what it does.
    const DESCRIPTION: &'static str;
    /// The peak learning rate of a run that sets none, for a full-size model.
    const LEARNING_RATE: f64 = crate::config::LEARNING_RATE;
    /// Its own defaults for keys of the run, if it builds its pairs from new completions.
    const DEFAULTS: Defaults = Defaults::NONE;
    /// Whether a dataset's pairs begin and end with the tokenizer's beginning-of-text and end-of-text tokens, also where a chat
    /// template writes something else there.
    const FRAMED: bool = false;

    /// Returns the columns it needs under these settings.
    fn needs(config: &Self::Config) -> Needs;

    /// Creates the algorithm from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives. Divide by `pairs.scale`: its `rows` are the pairs of the
    /// complete step, its `tokens` those of their chosen completions.
    fn loss(&mut self, pairs: &Pairs) -> Result<Gradient, Error>;
}

/// A preference algorithm that may weight pairs by how likely the model itself is to write them, as WPO does (Zhou et al. 2024,
/// arXiv 2406.11827). Export it with [`weighted_preference_plugin`](crate::weighted_preference_plugin).
pub trait WeightedPreference: Preference {
    /// Returns whether it weights pairs under these settings. If so, [`Self::weighted_loss`] is called in place of
    /// [`Preference::loss`].
    fn weights_pairs(config: &Self::Config) -> bool;

    /// Returns the same as [`Preference::loss`]. `squares` has the logarithm of the sum of the squared probabilities of all
    /// tokens of the vocabulary, per token: a token's log-probability minus this one is 0 on average.
    fn weighted_loss(&mut self, pairs: &Pairs, squares: &LogSumSquares) -> Result<Gradient, Error>;
}

/// A preference algorithm whose loss depends on the prompts too, as TRL's ORPO does. Export it with
/// [`prompted_preference_plugin`](crate::prompted_preference_plugin).
pub trait PromptedPreference: Preference {
    /// Returns whether the loss depends on the prompts under these settings. If so, [`Self::prompted_loss`] is called in place of
    /// [`Preference::loss`].
    fn sees_prompts(config: &Self::Config) -> bool;

    /// Returns the same as [`Preference::loss`], and the derivatives with respect to the prompts' log-probabilities. `prompts.tokens`
    /// counts the prompts' tokens of the complete step, without each prompt's first, which nothing predicts.
    fn prompted_loss(&mut self, pairs: &Pairs, prompts: &Prompts) -> Result<PromptedGradient, Error>;
}

/// Checks the lengths of the columns; the exported plugin calls this before `prompted_loss`.
///
/// # Errors
/// If they don't fit together.
pub fn check_prompts(pairs: &Pairs, prompts: &Prompts) -> Result<(), Error> {
    pairs.check()?;
    let (given, wanted) = (prompts.offsets.len(), pairs.chosen.offsets.len());
    if given != wanted {
        return Err(Error::Input(format!("{given} offsets of prompts for {} pairs", wanted - 1)));
    }
    ends_right(&prompts.offsets, prompts.logp.len())
        .then_some(())
        .ok_or_else(|| Error::Input(format!("the offsets of the prompts don't fit {} tokens", prompts.logp.len())))
}

fn ends_right(offsets: &[u32], tokens: usize) -> bool {
    offsets.first() == Some(&0) && offsets.last().is_some_and(|&end| end as usize == tokens) && offsets.is_sorted()
}

/// Checks the lengths of the columns; the exported plugin calls this before `weighted_loss`.
///
/// # Errors
/// If they don't fit together.
pub fn check_squares(pairs: &Pairs, squares: &LogSumSquares) -> Result<(), Error> {
    pairs.check()?;
    for (name, side, column) in [("chosen", &pairs.chosen, &squares.chosen), ("rejected", &pairs.rejected, &squares.rejected)] {
        if column.len() != side.logp.len() {
            let (given, wanted) = (column.len(), side.logp.len());
            return Err(Error::Input(format!(
                "{given} sums of squared probabilities for {wanted} tokens of the {name} completions"
            )));
        }
    }
    Ok(())
}

impl Side {
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

    fn check(&self, name: &str) -> Result<usize, Error> {
        let tokens = self.logp.len();
        if !ends_right(&self.offsets, tokens) {
            return Err(Error::Input(format!("the offsets of the {name} completions don't fit {tokens} tokens")));
        }
        if [&self.ref_logp, &self.mean_logits].into_iter().flatten().any(|column| column.len() != tokens) {
            return Err(Error::Input(format!("the columns of the {name} completions differ in length")));
        }
        Ok(self.offsets.len() - 1)
    }
}

impl Pairs {
    /// Checks the lengths of the columns; the exported plugin calls this before `loss`.
    ///
    /// # Errors
    /// If they don't fit together.
    pub fn check(&self) -> Result<(), Error> {
        let (chosen, rejected) = (self.chosen.check("chosen")?, self.rejected.check("rejected")?);
        if chosen == rejected {
            Ok(())
        } else {
            Err(Error::Input(format!("{chosen} chosen completions and {rejected} rejected")))
        }
    }
}

/// The loss of a micro-batch and its derivatives with respect to each completion's log-probability.
#[derive(Clone, Debug)]
pub struct Total {
    /// The sum of all terms.
    pub loss: f64,
    /// Its derivatives with respect to the chosen completions' log-probabilities.
    pub by_chosen: Vec<f64>,
    /// Its derivatives with respect to the rejected completions' log-probabilities.
    pub by_rejected: Vec<f64>,
}

impl Total {
    /// Starts a sum of no terms.
    #[must_use]
    pub fn new(pairs: &Pairs) -> Self {
        let zeros = vec![0.0; pairs.chosen.offsets.len().saturating_sub(1)];
        Self { loss: 0.0, by_chosen: zeros.clone(), by_rejected: zeros }
    }

    /// Adds a term that depends on the log-probabilities of a chosen and of a rejected completion.
    pub fn add(&mut self, chosen: usize, rejected: usize, term: Dual<2>) {
        self.loss += term.value;
        self.by_chosen[chosen] += term.slopes[0];
        self.by_rejected[rejected] += term.slopes[1];
    }

    /// Returns the loss with its derivatives per token, for losses that weight all tokens of a completion equally.
    #[must_use]
    pub fn gradient(self, pairs: &Pairs, metrics: Vec<Metric>) -> Gradient {
        let (d_chosen, d_rejected) = (pairs.chosen.spread(&self.by_chosen), pairs.rejected.spread(&self.by_rejected));
        Gradient { loss: self.loss, d_chosen, d_rejected, metrics }
    }
}

/// Returns the metrics that every preference algorithm reports, under TRL's names: `rewards/*` of the chosen and rejected
/// completions if there are rewards, `logps/*`, and `logits/*` if the host sends mean logits. Completions' metrics are averaged
/// over pairs, logits over tokens.
#[must_use]
pub fn figures(pairs: &Pairs, rewards: Option<[&[f64]; 2]>, logps: [&[f64]; 2]) -> Vec<Metric> {
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

/// Holds an exported algorithm and its settings.
#[doc(hidden)]
pub struct Exported<P: Preference> {
    pub config: P::Config,
    pub algorithm: P,
}

#[doc(hidden)]
pub fn configured<P: Preference>(config: &str) -> Result<Exported<P>, Error> {
    let config: P::Config = crate::config::parse(config)?;
    Ok(Exported { algorithm: P::new(config.clone())?, config })
}

#[doc(hidden)]
#[must_use]
pub fn described<P: Preference>(name: &str, version: &str, exported: Option<&Exported<P>>) -> Info {
    info::<P>(name, version, exported, None)
}

#[doc(hidden)]
#[must_use]
pub fn described_weighted<P: WeightedPreference>(name: &str, version: &str, exported: Option<&Exported<P>>) -> Info {
    let weights = exported.map_or_else(|| P::weights_pairs(&P::Config::default()), |e| P::weights_pairs(&e.config));
    info::<P>(name, version, exported, Some(("log_sum_squares", weights)))
}

#[doc(hidden)]
#[must_use]
pub fn described_prompted<P: PromptedPreference>(name: &str, version: &str, exported: Option<&Exported<P>>) -> Info {
    let sees = exported.map_or_else(|| P::sees_prompts(&P::Config::default()), |e| P::sees_prompts(&e.config));
    info::<P>(name, version, exported, Some(("prompt_logp", sees)))
}

fn info<P: Preference>(name: &str, version: &str, exported: Option<&Exported<P>>, asks: Option<(&str, bool)>) -> Info {
    let mut hints = serde_json::json!({ "learning_rate": P::LEARNING_RATE, "defaults": P::DEFAULTS, "framed": P::FRAMED });
    if let Some((column, asks)) = asks {
        hints[column] = asks.into();
    }
    Info {
        name: name.into(),
        version: version.into(),
        description: P::DESCRIPTION.into(),
        config_schema: crate::config::algorithm_schema::<P::Config>(hints),
        needs: exported.map_or_else(|| P::needs(&P::Config::default()), |e| P::needs(&e.config)),
        stateless: true,
    }
}

/// Exports a type that implements [`Preference`](crate::preference::Preference). Name and version are the crate's.
#[macro_export]
macro_rules! preference_plugin {
    ($algorithm:ty) => {
        $crate::preference_plugin!(@interfaces $algorithm, described);
        $crate::export_interfaces!(__Plugin, PREFERENCE, preference: __export_rlhost_plugin_preference_0_1_0_cabi);
    };
    (@interfaces $algorithm:ty, $described:ident) => {
        #[doc(hidden)]
        pub struct __Plugin;
        static __ALGORITHM: $crate::slot::Slot<$crate::preference::Exported<$algorithm>> = $crate::slot::Slot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                __ALGORITHM.read(|e| $crate::preference::$described(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), e))
            }

            fn configure(config: ::std::string::String) -> ::core::result::Result<(), $crate::Error> {
                $crate::preference::configured(&config).map(|exported| __ALGORITHM.set(exported))
            }
        }

        impl $crate::bindings::contract::preference::Guest for __Plugin {
            fn loss(
                pairs: $crate::preference::Pairs,
            ) -> ::core::result::Result<$crate::preference::Gradient, $crate::Error> {
                pairs.check()?;
                __ALGORITHM.with(|e| $crate::preference::Preference::loss(&mut e.algorithm, &pairs))
            }
        }
    };
}

/// Exports a type that implements [`WeightedPreference`](crate::preference::WeightedPreference). Name and version are the
/// crate's.
#[macro_export]
macro_rules! weighted_preference_plugin {
    ($algorithm:ty) => {
        $crate::preference_plugin!(@interfaces $algorithm, described_weighted);

        impl $crate::bindings::contract::weighted_preference::Guest for __Plugin {
            fn loss(
                pairs: $crate::preference::Pairs,
                squares: $crate::preference::LogSumSquares,
            ) -> ::core::result::Result<$crate::preference::Gradient, $crate::Error> {
                $crate::preference::check_squares(&pairs, &squares)?;
                __ALGORITHM.with(|e| $crate::preference::WeightedPreference::weighted_loss(&mut e.algorithm, &pairs, &squares))
            }
        }

        $crate::export_interfaces!(
            __Plugin,
            WEIGHTED_PREFERENCE,
            preference: __export_rlhost_plugin_preference_0_1_0_cabi,
            weighted_preference: __export_rlhost_plugin_weighted_preference_0_2_0_cabi
        );
    };
}

/// Exports a type that implements [`PromptedPreference`](crate::preference::PromptedPreference). Name and version are the
/// crate's.
#[macro_export]
macro_rules! prompted_preference_plugin {
    ($algorithm:ty) => {
        $crate::preference_plugin!(@interfaces $algorithm, described_prompted);

        impl $crate::bindings::contract::prompted_preference::Guest for __Plugin {
            fn loss(
                pairs: $crate::preference::Pairs,
                prompts: $crate::preference::Prompts,
            ) -> ::core::result::Result<$crate::preference::PromptedGradient, $crate::Error> {
                $crate::preference::check_prompts(&pairs, &prompts)?;
                __ALGORITHM.with(|e| $crate::preference::PromptedPreference::prompted_loss(&mut e.algorithm, &pairs, &prompts))
            }
        }

        $crate::export_interfaces!(
            __Plugin,
            PROMPTED_PREFERENCE,
            preference: __export_rlhost_plugin_preference_0_1_0_cabi,
            prompted_preference: __export_rlhost_plugin_prompted_preference_0_2_0_cabi
        );
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(offsets: &[u32], logp: &[f32]) -> Side {
        let mean_logits = Some(logp.iter().map(|l| l * 10.0).collect());
        Side { offsets: offsets.to_vec(), logp: logp.to_vec(), ref_logp: None, mean_logits }
    }

    fn pairs() -> Pairs {
        let chosen = side(&[0, 2, 3], &[-1.0, -2.0, -4.0]);
        let rejected = side(&[0, 1, 4], &[-1.0, -0.5, -0.5, -1.0]);
        Pairs { step: 0, chosen, rejected, scale: Scale { rows: 2, tokens: 3, max_completion_length: 0 } }
    }

    #[test]
    fn sums_are_by_completion_and_derivatives_go_to_all_of_its_tokens() {
        let p = pairs();
        assert_eq!((p.chosen.logps(), p.chosen.lengths()), (vec![-3.0, -4.0], vec![2.0, 1.0]));
        assert!(matches!(p.chosen.ref_logps(), Err(Error::Input(_))));
        let mut total = Total::new(&p);
        total.add(0, 1, Dual { value: 0.5, slopes: [0.25, -0.25] });
        total.add(1, 1, Dual { value: 1.5, slopes: [2.0, -2.0] });
        let gradient = total.gradient(&p, Vec::new());
        assert_eq!((gradient.loss, gradient.d_chosen), (2.0, vec![0.25, 0.25, 2.0]));
        assert_eq!(gradient.d_rejected, [0.0, -2.25, -2.25, -2.25]);
    }

    #[test]
    fn figures_are_weighted_by_pairs_and_tokens() {
        let p = pairs();
        let figures = figures(&p, Some([&[1.0, 2.0], &[0.0, 3.0]]), [&p.chosen.logps(), &p.rejected.logps()]);
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

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        assert!(pairs().check().is_ok());
        let broken: [fn(&mut Pairs); 5] = [
            |p| p.chosen.offsets = vec![0, 3],
            |p| p.chosen.offsets = vec![0, 2, 4],
            |p| p.chosen.offsets = vec![],
            |p| p.rejected.offsets = vec![0, 5, 4],
            |p| p.rejected.mean_logits = Some(vec![0.0]),
        ];
        for breaks in broken {
            let mut p = pairs();
            breaks(&mut p);
            assert!(matches!(p.check(), Err(Error::Input(_))), "{:?}", p.chosen.offsets);
        }
    }
}

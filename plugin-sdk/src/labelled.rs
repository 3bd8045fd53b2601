//! Algorithms for labelled completions: compute a loss over completions that are desirable or not, with its derivatives per
//! token.

use crate::bindings::contract::labelled::Mismatched;
pub use crate::bindings::contract::labelled::{Examples, Gradient};
use crate::bindings::contract::plugin::Info;
pub use crate::bindings::contract::plugin::Needs;
pub use crate::bindings::types::Scale;
use crate::config::Config;
use crate::dual::Dual;
pub use crate::policy::rows;
use crate::{Error, Metric};

/// An algorithm for labelled completions.
///
/// ```
/// use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::dual::Dual;
/// use rlhost_plugin_sdk::labelled::{Examples, Gradient, Labelled, Needs, Total};
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
///     fn loss(&mut self, examples: &Examples) -> Result<Gradient, Error> {
///         let mut total = Total::new(examples);
///         for (row, ratio) in examples.log_ratios()?.into_iter().enumerate() {
///             let [ratio] = Dual::variables([ratio]);
///             let wrong = if examples.labels[row] { -ratio } else { ratio };
///             total.add(row, wrong.sigmoid() / f64::from(examples.scale.rows));
///         }
///         Ok(total.gradient(examples, Vec::new()))
///     }
/// }
///
/// labelled_plugin!(Bounded);
/// ```
pub trait Labelled: Sized + Send + 'static {
    /// Its settings.
    type Config: Config;
    /// One line that says what it does.
    const DESCRIPTION: &'static str;
    /// The peak learning rate of a run that sets none, for a full-size model.
    const LEARNING_RATE: f64 = crate::config::LEARNING_RATE;

    /// Returns the columns it needs under these settings.
    fn needs(config: &Self::Config) -> Needs;

    /// Returns whether it needs the log-probabilities of mismatched completions under these settings.
    fn mismatched(_: &Self::Config) -> bool {
        false
    }

    /// Creates the algorithm from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives. Divide by `examples.scale`: its `rows` are the
    /// completions of the complete step, its `tokens` theirs.
    fn loss(&mut self, examples: &Examples) -> Result<Gradient, Error>;
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
    /// If the host sent none, which happens only if `needs` lacks `REF_LOGP`.
    pub fn log_ratios(&self) -> Result<Vec<f64>, Error> {
        let missing = || Error::Input("the reference log-probabilities are missing".into());
        let reference = self.sums(self.ref_logp.as_deref().ok_or_else(missing)?);
        Ok(self.logps().iter().zip(reference).map(|(logp, reference)| logp - reference).collect())
    }

    /// Returns the mean log-ratio of the mismatched completions.
    ///
    /// # Errors
    /// If the host sent none, which happens only if `mismatched` returns false.
    pub fn mismatched_log_ratio(&self) -> Result<f64, Error> {
        let missing = || Error::Input("the mismatched completions are missing".into());
        let Mismatched { logp, ref_logp } = self.mismatched.as_ref().ok_or_else(missing)?;
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

    /// Checks the lengths of the columns; the exported plugin calls this before `loss`.
    ///
    /// # Errors
    /// If they don't fit together.
    pub fn check(&self) -> Result<(), Error> {
        let (rows, tokens) = (self.labels.len(), self.logp.len());
        let ends_right = self.offsets.first() == Some(&0) && self.offsets.last().is_some_and(|&end| end as usize == tokens);
        if !ends_right || !self.offsets.is_sorted() || self.offsets.len() != rows + 1 {
            return Err(Error::Input(format!("the offsets don't fit {rows} rows of {tokens} tokens")));
        }
        if [&self.ref_logp, &self.mean_logits].into_iter().flatten().any(|column| column.len() != tokens) {
            return Err(Error::Input("the columns differ in length".into()));
        }
        if self.mismatched.as_ref().is_some_and(|m| m.logp.len() != m.ref_logp.len()) {
            return Err(Error::Input("the columns of the mismatched completions differ in length".into()));
        }
        Ok(())
    }
}

/// The loss of a micro-batch and its derivatives with respect to each completion's log-probability.
#[derive(Clone, Debug)]
pub struct Total {
    /// The sum of all terms.
    pub loss: f64,
    /// Its derivatives.
    pub by_row: Vec<f64>,
}

impl Total {
    /// Starts a sum of no terms.
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
    pub fn gradient(self, examples: &Examples, metrics: Vec<Metric>) -> Gradient {
        let mut d_logp = vec![0.0; examples.logp.len()];
        for (tokens, slope) in rows(&examples.offsets).zip(self.by_row) {
            d_logp[tokens].fill(slope as f32);
        }
        Gradient { loss: self.loss, d_logp, metrics }
    }
}

/// Holds an exported algorithm and its settings.
#[doc(hidden)]
pub struct Exported<L: Labelled> {
    pub config: L::Config,
    pub algorithm: L,
}

#[doc(hidden)]
pub fn configured<L: Labelled>(config: &str) -> Result<Exported<L>, Error> {
    let config: L::Config = crate::config::parse(config)?;
    Ok(Exported { algorithm: L::new(config.clone())?, config })
}

#[doc(hidden)]
#[must_use]
pub fn described<L: Labelled>(name: &str, version: &str, exported: Option<&Exported<L>>) -> Info {
    let default = L::Config::default();
    let config = exported.map_or(&default, |e| &e.config);
    let hints = serde_json::json!({ "learning_rate": L::LEARNING_RATE, "mismatched": L::mismatched(config) });
    Info {
        name: name.into(),
        version: version.into(),
        description: L::DESCRIPTION.into(),
        config_schema: crate::config::algorithm_schema::<L::Config>(hints),
        needs: L::needs(config),
        stateless: true,
    }
}

/// Exports a type that implements [`Labelled`](crate::labelled::Labelled). Name and version are the crate's.
#[macro_export]
macro_rules! labelled_plugin {
    ($algorithm:ty) => {
        #[doc(hidden)]
        pub struct __Plugin;
        static __ALGORITHM: $crate::slot::Slot<$crate::labelled::Exported<$algorithm>> = $crate::slot::Slot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                __ALGORITHM.read(|e| $crate::labelled::described(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), e))
            }

            fn configure(config: ::std::string::String) -> ::core::result::Result<(), $crate::Error> {
                $crate::labelled::configured(&config).map(|exported| __ALGORITHM.set(exported))
            }
        }

        impl $crate::bindings::contract::labelled::Guest for __Plugin {
            fn loss(
                examples: $crate::labelled::Examples,
            ) -> ::core::result::Result<$crate::labelled::Gradient, $crate::Error> {
                examples.check()?;
                __ALGORITHM.with(|e| $crate::labelled::Labelled::loss(&mut e.algorithm, &examples))
            }
        }

        $crate::export_interfaces!(__Plugin, LABELLED, labelled: __export_rlhost_plugin_labelled_0_2_0_cabi);
    };
}

/// Made-up completions and a check of gradients, for an algorithm's own tests.
pub mod testing {
    use super::{Examples, Gradient, Mismatched, Scale};
    use crate::policy::testing::Noise;

    /// Returns five completions of unequal lengths, two of them undesirable, with all columns: a micro-batch of a step with seven
    /// rows of 31 tokens.
    #[must_use]
    pub fn examples(seed: u64) -> Examples {
        let mut noise = Noise(seed);
        let offsets = vec![0, 4, 5, 8, 14, 16];
        let logp: Vec<f32> = (0..16).map(|_| -3.0 * noise.unit()).collect();
        let ref_logp = Some(logp.iter().map(|l| l + 4.0 * noise.unit() - 2.0).collect());
        let mean_logits = Some(logp.iter().map(|_| noise.unit()).collect());
        let sums: Vec<f32> = (0..5).map(|_| -30.0 * noise.unit()).collect();
        let ref_sums = sums.iter().map(|l| l + 4.0 * noise.unit() - 3.0).collect();
        let labels = vec![true, false, true, true, false];
        let scale = Scale { rows: 7, tokens: 31, max_completion_length: 0 };
        let mismatched = Some(Mismatched { logp: sums, ref_logp: ref_sums });
        let (desirable, undesirable) = (3, 2);
        Examples { step: 0, labels, desirable, undesirable, offsets, logp, ref_logp, mean_logits, mismatched, scale }
    }

    /// Compares a gradient with an independent implementation of the loss, as a function of all tokens' log-probabilities: its
    /// value and, by central differences, each derivative, to 1e-5 relative.
    ///
    /// # Panics
    /// If they differ.
    pub fn assert_follows(got: &Gradient, examples: &Examples, what: &str, wanted: impl Fn(&[f64]) -> f64) {
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

    #[test]
    fn sums_are_by_completion_and_derivatives_go_to_all_of_its_tokens() {
        let mut e = testing::examples(1);
        e.logp = (0..16).map(|i| -(i as f32)).collect();
        e.ref_logp = Some(vec![-1.0; 16]);
        assert_eq!(e.logps(), [-6.0, -4.0, -18.0, -63.0, -29.0]);
        assert_eq!(e.log_ratios().unwrap(), [-2.0, -3.0, -15.0, -57.0, -27.0]);
        assert_eq!((e.rows(true).collect::<Vec<_>>(), e.rows(false).collect::<Vec<_>>()), (vec![0, 2, 3], vec![1, 4]));
        e.mismatched = Some(Mismatched { logp: vec![-1.0, -2.0], ref_logp: vec![-4.0, -1.0] });
        assert_eq!(e.mismatched_log_ratio().unwrap(), 1.0);
        let mut total = Total::new(&e);
        total.add(1, Dual { value: 0.5, slopes: [0.25] });
        total.add(4, Dual { value: 1.5, slopes: [-2.0] });
        let gradient = total.gradient(&e, Vec::new());
        assert_eq!(gradient.loss, 2.0);
        assert_eq!(gradient.d_logp[3..6], [0.0, 0.25, 0.0]);
        assert_eq!(gradient.d_logp[13..], [0.0, -2.0, -2.0]);
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        assert!(testing::examples(2).check().is_ok());
        let broken: [fn(&mut Examples); 6] = [
            |e| e.offsets = vec![0, 16],
            |e| e.offsets.swap(1, 2),
            |e| e.offsets.clear(),
            |e| e.labels.push(true),
            |e| e.mean_logits = Some(vec![0.0]),
            |e| e.mismatched = Some(Mismatched { logp: vec![0.0], ref_logp: vec![] }),
        ];
        for breaks in broken {
            let mut e = testing::examples(2);
            breaks(&mut e);
            assert!(matches!(e.check(), Err(Error::Input(_))), "{:?}", e.offsets);
        }
        let absent = Examples { ref_logp: None, mismatched: None, ..testing::examples(2) };
        assert!(absent.check().is_ok() && absent.log_ratios().is_err() && absent.mismatched_log_ratio().is_err());
    }
}

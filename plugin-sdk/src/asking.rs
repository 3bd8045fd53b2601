//! Rewards that send requests to servers. They receive a whole batch, so that all of its requests are sent in parallel.

use crate::bindings::contract::reward::{Batch, Scores};
use crate::reward::{IntoScore, Sample};
use crate::{Error, Metric};

/// The result for a batch: scores, scores with metrics, or either with an error.
pub trait IntoBatchScores {
    /// Converts the result to the contract's form.
    fn into_batch_scores(self) -> Result<Scores, Error>;
}

impl<T: IntoScore> IntoBatchScores for Vec<T> {
    fn into_batch_scores(self) -> Result<Scores, Error> {
        (self, Vec::new()).into_batch_scores()
    }
}

impl<T: IntoScore> IntoBatchScores for (Vec<T>, Vec<Metric>) {
    fn into_batch_scores(self) -> Result<Scores, Error> {
        let rewards = self.0.into_iter().map(IntoScore::into_score).collect::<Result<_, _>>()?;
        Ok(Scores { rewards, metrics: self.1 })
    }
}

impl<T: IntoBatchScores> IntoBatchScores for Result<T, Error> {
    fn into_batch_scores(self) -> Result<Scores, Error> {
        self.and_then(IntoBatchScores::into_batch_scores)
    }
}

#[doc(hidden)]
pub fn score_batch(batch: &Batch, score: impl FnOnce(&[Sample<'_>]) -> Result<Scores, Error>) -> Result<Scores, Error> {
    let samples: Vec<Sample<'_>> = (0..batch.prompt_of.len()).map(|row| Sample::new(batch, row)).collect();
    score(&samples)
}

/// Exports a reward that sends requests to servers: a closure over the configuration, or the result of `prepared`, and the samples of a
/// batch. It returns a score, or `None`, for each sample, and optionally metrics. Rows must be independent. The user must grant the
/// servers: `--set plugin.NAME.hosts=HOST:PORT`.
///
/// ```
/// use rlhost_plugin_sdk::http::{Request, fetch};
/// use rlhost_plugin_sdk::prelude::*;
///
/// #[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
/// #[serde(default, deny_unknown_fields)]
/// struct Settings {
///     /// Where completions are scored.
///     url: String,
/// }
/// impl Default for Settings {
///     fn default() -> Self {
///         Self { url: "http://localhost:8000/score".into() }
///     }
/// }
///
/// asking_reward! {
///     config: Settings,
///     needs: COMPLETION_TEXT,
///     |settings, samples| {
///         let requests: Vec<Request> = samples.iter().map(|s| Request::post(&settings.url).json(&s.completion)).collect();
///         let score = |answer: Result<_, _>| answer.ok().and_then(|answer: rlhost_plugin_sdk::http::Response| answer.parsed().ok());
///         fetch(&requests).into_iter().map(score).collect::<Vec<Option<f32>>>()
///     }
/// }
///
/// # use rlhost_plugin_sdk::http::{Response, testing::answering};
/// # use rlhost_plugin_sdk::reward::testing::Case;
/// let scores = Case { completion: "four".into(), ..Case::default() }.run(|sample| {
///     let server = |request: &Request| Ok(Response::json(200, &request.body.len()));
///     answering(server, || score(&Settings::default(), &[*sample])).unwrap()
/// });
/// assert_eq!(scores.rewards, [Some(6.0)]);
/// ```
#[macro_export]
macro_rules! asking_reward {
    (config: $config:ty, needs: $($need:ident)|+, |$c:ident, $s:ident| $body:expr) => {
        $crate::asking_reward!(config: $config, prepared: $config = ::core::result::Result::Ok, needs: $($need)|+, |$c, $s| $body);
    };
    (config: $config:ty, prepared: $prepared:ty = $prepare:expr, needs: $($need:ident)|+, |$c:ident, $s:ident| $body:expr) => {
        /// Scores a batch.
        ///
        /// # Errors
        /// If nothing in the batch can be scored.
        #[allow(clippy::redundant_closure_call)]
        pub fn score(
            $c: &$prepared,
            $s: &[$crate::reward::Sample<'_>],
        ) -> ::core::result::Result<$crate::bindings::contract::reward::Scores, $crate::Error> {
            $crate::asking::IntoBatchScores::into_batch_scores((|| $body)())
        }

        #[doc(hidden)]
        pub struct __Plugin;
        static __PREPARED: $crate::slot::ExportSlot<$prepared> = $crate::slot::ExportSlot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                $crate::bindings::contract::plugin::Info {
                    name: env!("CARGO_PKG_NAME").into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                    description: env!("CARGO_PKG_DESCRIPTION").into(),
                    config_schema: $crate::config::schema::<$config>(),
                    needs: ($($crate::Needs::$need)|+).names(),
                    stateless: true,
                }
            }

            fn configure(config: ::std::string::String) -> ::core::result::Result<(), $crate::Error> {
                $crate::config::parse::<$config>(&config).and_then($prepare).map(|prepared| __PREPARED.set(prepared))
            }
        }

        impl $crate::bindings::contract::reward::Guest for __Plugin {
            fn score(
                batch: $crate::bindings::contract::reward::Batch,
            ) -> ::core::result::Result<$crate::bindings::contract::reward::Scores, $crate::Error> {
                __PREPARED.with(|prepared| $crate::asking::score_batch(&batch, |samples| score(prepared, samples)))
            }
        }

        $crate::export_interfaces!(__Plugin, plugin, reward);
    };
}

//! Rewards: compute a score, or `None`, for each completion.

pub use crate::Needs;
use crate::bindings::contract::reward::{Batch, Scores};
use crate::{Error, Metric};
use serde::de::DeserializeOwned;

/// One completion with its prompt and dataset row.
#[derive(Clone, Copy)]
pub struct Sample<'a> {
    batch: &'a Batch,
    row: usize,
    /// Text of the prompt.
    pub prompt: &'a str,
    /// Text of the completion.
    pub completion: &'a str,
    /// Tokens of the completion, including its end token.
    pub token_ids: &'a [u32],
    /// Whether the completion ended by itself rather than at the length limit.
    pub finished: bool,
}

impl<'a> Sample<'a> {
    pub(crate) fn new(batch: &'a Batch, row: usize) -> Self {
        let prompt = batch.prompt_of.get(row).map_or(0, |&p| p as usize);
        let tokens = match (batch.offsets.get(row), batch.offsets.get(row + 1)) {
            (Some(&a), Some(&b)) => batch.token_ids.get(a as usize..b as usize).unwrap_or(&[]),
            _ => &[],
        };
        Self {
            batch,
            row,
            prompt: batch.prompts.get(prompt).map_or("", String::as_str),
            completion: batch.completions.get(row).map_or("", String::as_str),
            token_ids: tokens,
            finished: batch.finished.get(row).copied().unwrap_or(false),
        }
    }

    /// Returns the prompt's value in a dataset column as JSON text; `null` if its row has no value.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&'a str> {
        let prompt = *self.batch.prompt_of.get(self.row)? as usize;
        self.batch.columns.iter().find(|c| c.name == name)?.values.get(prompt).map(String::as_str)
    }

    /// Returns the prompt's value in a dataset column as a `T`, or `None` if its row has no value.
    ///
    /// # Errors
    /// If the value is not a `T`, or no row of the dataset has such a column.
    ///
    /// ```
    /// use rlhost_plugin_sdk::prelude::*;
    /// use rlhost_plugin_sdk::reward::testing::Case;
    ///
    /// let columns = vec![("words".into(), "12".into()), ("topic".into(), "null".into())];
    /// Case { columns, ..Case::default() }.run(|sample| {
    ///     assert_eq!(sample.column_as::<u32>("words").unwrap(), Some(12));
    ///     assert_eq!(sample.column_as::<String>("topic").unwrap(), None);
    ///     assert!(sample.column_as::<String>("words").is_err());
    ///     assert!(sample.column_as::<u32>("wodrs").is_err());
    /// });
    /// ```
    pub fn column_as<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(json) = self.column(name) else {
            let known: Vec<&str> = self.batch.columns.iter().map(|c| c.name.as_str()).collect();
            let known = if known.is_empty() { "only the prompt".into() } else { known.join(", ") };
            return Err(Error::Input(format!("no row of the dataset has a column {name:?}; its columns: {known}")));
        };
        serde_json::from_str(json).map_err(|e| {
            let shown: String = json.chars().take(80).collect();
            Error::Input(format!("the dataset's column {name:?} contains {shown}, which does not fit: {e}"))
        })
    }

    /// Returns the optimizer step that this batch was generated for.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.batch.step
    }

    /// Returns a seed that differs by step, plugin and row. It is the only randomness that a reward may use.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.batch.seed.wrapping_add((self.row as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// The result of a reward closure: a score, an optional score, or either with an error.
pub trait IntoScore {
    /// Converts the result to the contract's form.
    fn into_score(self) -> Result<Option<f32>, Error>;
}

impl IntoScore for f32 {
    fn into_score(self) -> Result<Option<f32>, Error> {
        Ok(Some(self))
    }
}

impl IntoScore for Option<f32> {
    fn into_score(self) -> Result<Option<f32>, Error> {
        Ok(self)
    }
}

impl<T: IntoScore> IntoScore for Result<T, Error> {
    fn into_score(self) -> Result<Option<f32>, Error> {
        self.and_then(IntoScore::into_score)
    }
}

/// Scores every row of a batch.
#[doc(hidden)]
pub fn score_rows<T: IntoScore>(batch: &Batch, mut score: impl FnMut(&Sample<'_>) -> T) -> Result<Scores, Error> {
    let rewards = (0..batch.prompt_of.len()).map(|row| score(&Sample::new(batch, row)).into_score()).collect::<Result<_, _>>()?;
    Ok(Scores { rewards, metrics: Vec::<Metric>::new() })
}

/// Returns all columns that a reward can need.
#[doc(hidden)]
#[must_use]
pub fn all_columns() -> Needs {
    Needs::PROMPT_TEXT | Needs::COMPLETION_TEXT | Needs::TOKEN_IDS | Needs::DATASET_COLUMNS
}

/// Exports a reward: a closure over a [`Sample`], or over a configuration and a sample. The name, version and description are the
/// crate's. Rows must be independent.
///
/// ```
/// use rlhost_plugin_sdk::prelude::*;
///
/// #[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
/// #[serde(default, deny_unknown_fields)]
/// struct Settings {
///     /// The word to look for.
///     word: String,
/// }
/// impl Default for Settings {
///     fn default() -> Self {
///         Self { word: "please".into() }
///     }
/// }
///
/// reward! {
///     config: Settings,
///     needs: COMPLETION_TEXT,
///     |config, sample| sample.completion.matches(&config.word).count() as f32
/// }
/// ```
///
/// A function named by `prepared` computes something from the configuration once, and checks what the configuration's types can't express.
/// It runs when the plugin is configured, before training starts. The closure receives its result instead of the configuration:
///
/// ```
/// use rlhost_plugin_sdk::prelude::*;
///
/// #[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
/// #[serde(default, deny_unknown_fields)]
/// struct Settings {
///     /// Words to look for, separated by spaces.
///     words: String,
/// }
///
/// fn words(settings: Settings) -> Result<Vec<String>, Error> {
///     match settings.words.split_whitespace().map(str::to_owned).collect::<Vec<_>>() {
///         words if words.is_empty() => Err(Error::Config("words is empty; give at least one".into())),
///         words => Ok(words),
///     }
/// }
///
/// reward! {
///     config: Settings,
///     prepared: Vec<String> = words,
///     needs: COMPLETION_TEXT,
///     |words, sample| words.iter().filter(|word| sample.completion.contains(*word)).count() as f32
/// }
///
/// # use rlhost_plugin_sdk::bindings::contract::plugin::Guest;
/// assert!(__Plugin::configure(r#"{"words": "thank please"}"#.into()).is_ok());
/// assert!(__Plugin::configure(r#"{"words": " "}"#.into()).is_err());
/// ```
#[macro_export]
macro_rules! reward {
    ($(#[$meta:meta])* config: $config:ty, prepared: $prepared:ty = $prepare:expr, needs: $($need:ident)|+, |$c:ident, $s:ident| $body:expr) => {
        $crate::reward!(@export [$(#[$meta])*], $config, $prepared = $prepare, ($($crate::Needs::$need)|+), |$c, $s| $body);
    };
    ($(#[$meta:meta])* config: $config:ty, needs: $($need:ident)|+, |$c:ident, $s:ident| $body:expr) => {
        $crate::reward!(@export [$(#[$meta])*], $config, $config = ::core::result::Result::Ok, ($($crate::Needs::$need)|+), |$c, $s| $body);
    };
    ($(#[$meta:meta])* config: $config:ty, |$c:ident, $s:ident| $body:expr) => {
        $crate::reward!(@export [$(#[$meta])*], $config, $config = ::core::result::Result::Ok, $crate::reward::all_columns(), |$c, $s| $body);
    };
    ($(#[$meta:meta])* |$s:ident| $body:expr) => {
        $crate::reward!($(#[$meta])* config: $crate::config::NoConfig, |_config, $s| $body);
    };
    (@export [$(#[$meta:meta])*], $config:ty, $prepared:ty = $prepare:expr, $needs:expr, |$c:ident, $s:ident| $body:expr) => {
        $(#[$meta])*
        #[allow(clippy::redundant_closure_call)]
        pub fn score($c: &$prepared, $s: &$crate::reward::Sample<'_>) -> ::core::result::Result<::core::option::Option<f32>, $crate::Error> {
            $crate::reward::IntoScore::into_score((|| $body)())
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
                    needs: $needs.names(),
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
                __PREPARED.with(|prepared| $crate::reward::score_rows(&batch, |sample| score(prepared, sample)))
            }
        }

        $crate::export_interfaces!(__Plugin, plugin, reward);
    };
}

/// Runs a reward natively, for a plugin's own tests.
pub mod testing {
    use super::{Batch, Sample};
    use crate::bindings::contract::reward::Column;

    /// A synthetic completion.
    #[derive(Clone, Debug, Default)]
    pub struct Case {
        /// Text of the prompt.
        pub prompt: String,
        /// Text of the completion.
        pub completion: String,
        /// Tokens of the completion.
        pub token_ids: Vec<u32>,
        /// Whether the completion ended by itself.
        pub finished: bool,
        /// Dataset columns, each a name and a JSON value.
        pub columns: Vec<(String, String)>,
    }

    impl Case {
        /// Calls `f` with the sample that a plugin would receive.
        pub fn run<R>(&self, f: impl FnOnce(&Sample<'_>) -> R) -> R {
            let columns = self.columns.iter().map(|(n, v)| Column { name: n.clone(), values: vec![v.clone()] });
            let batch = Batch {
                step: 0,
                seed: 0,
                prompts: vec![self.prompt.clone()],
                columns: columns.collect(),
                prompt_of: vec![0],
                completions: vec![self.completion.clone()],
                finished: vec![self.finished],
                offsets: vec![0, self.token_ids.len() as u32],
                token_ids: self.token_ids.clone(),
            };
            f(&Sample::new(&batch, 0))
        }
    }
}

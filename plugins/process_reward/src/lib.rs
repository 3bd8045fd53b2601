//! Combines a process reward model's values of a completion's steps. The host puts them into a column with the model's name, a
//! list of numbers for each completion.

use rlhost_plugin_sdk::prelude::*;

/// How the values of the steps become one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// Their product: the probability that all are right, if they are independent.
    Product,
    /// Their mean.
    Mean,
    /// The minimum.
    Min,
    /// That of the last step.
    Last,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Name of the process reward model.
    pub model: String,
    /// How the values of the steps become one score.
    pub combine: Combine,
    /// Score of a completion without steps; by default, it has none.
    pub empty: Option<f32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { model: "prm".into(), combine: Combine::Product, empty: None }
    }
}

reward! {
    /// A score from the values of the completion's steps.
    config: Settings,
    needs: DATASET_COLUMNS,
    |config, sample| {
        sample.column_as::<Vec<f32>>(&config.model).map(|steps| {
            let steps = steps.unwrap_or_default();
            if steps.is_empty() {
                return config.empty;
            }
            Some(match config.combine {
                Combine::Product => steps.iter().product(),
                Combine::Mean => steps.iter().sum::<f32>() / steps.len() as f32,
                Combine::Min => steps.iter().copied().fold(f32::INFINITY, f32::min),
                Combine::Last => steps[steps.len() - 1],
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn score_of(steps: &str, settings: &Settings) -> Result<Option<f32>, Error> {
        let case = Case { columns: vec![("prm".into(), steps.into())], ..Case::default() };
        case.run(|sample| score(settings, sample))
    }

    #[test]
    fn steps_are_combined_as_it_is_set() {
        for (combine, want) in [(Combine::Product, 0.25), (Combine::Mean, 0.625), (Combine::Min, 0.5), (Combine::Last, 0.75)] {
            let steps = if combine == Combine::Product { "[0.5, 1.0, 0.5]" } else { "[0.5, 0.75]" };
            assert_eq!(score_of(steps, &Settings { combine, ..Settings::default() }).unwrap(), Some(want), "{combine:?}");
        }
    }

    #[test]
    fn no_step_and_no_model_are_told_apart() {
        assert_eq!(score_of("[]", &Settings::default()).unwrap(), None);
        assert_eq!(score_of("[]", &Settings { empty: Some(0.0), ..Settings::default() }).unwrap(), Some(0.0));
        assert!(
            score_of("[]", &Settings { model: "other".into(), ..Settings::default() }).unwrap_err().to_string().contains("other")
        );
    }
}

//! Combines a process reward model's values of a completion's steps. The host passes them in a column with the model's name, a list of
//! numbers per completion.

use rlhost_plugin_sdk::prelude::*;

/// How the values of the steps become one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StepAggregation {
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
pub struct ProcessRewardSettings {
    /// Name of the process reward model.
    pub model: String,
    /// How the values of the steps become one score.
    pub combine: StepAggregation,
    /// Score of a completion without steps; by default, it has none.
    pub empty: Option<f32>,
}

impl Default for ProcessRewardSettings {
    fn default() -> Self {
        Self { model: "prm".into(), combine: StepAggregation::Product, empty: None }
    }
}

reward! {
    /// A score from the values of the completion's steps.
    config: ProcessRewardSettings,
    needs: DATASET_COLUMNS,
    |config, sample| {
        sample.column_as::<Vec<f32>>(&config.model).map(|steps| {
            let steps = steps.unwrap_or_default();
            if steps.is_empty() {
                return config.empty;
            }
            Some(match config.combine {
                StepAggregation::Product => steps.iter().product(),
                StepAggregation::Mean => steps.iter().sum::<f32>() / steps.len() as f32,
                StepAggregation::Min => steps.iter().copied().fold(f32::INFINITY, f32::min),
                StepAggregation::Last => steps[steps.len() - 1],
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn score_of(steps: &str, settings: &ProcessRewardSettings) -> Result<Option<f32>, Error> {
        let case = Case { columns: vec![("prm".into(), steps.into())], ..Case::default() };
        case.run(|sample| score(settings, sample))
    }

    #[test]
    fn steps_are_combined_as_it_is_set() {
        for (combine, want) in [
            (StepAggregation::Product, 0.25),
            (StepAggregation::Mean, 0.625),
            (StepAggregation::Min, 0.5),
            (StepAggregation::Last, 0.75),
        ] {
            let steps = if combine == StepAggregation::Product { "[0.5, 1.0, 0.5]" } else { "[0.5, 0.75]" };
            assert_eq!(
                score_of(steps, &ProcessRewardSettings { combine, ..ProcessRewardSettings::default() }).unwrap(),
                Some(want),
                "{combine:?}"
            );
        }
    }

    #[test]
    fn no_step_and_no_model_are_told_apart() {
        assert_eq!(score_of("[]", &ProcessRewardSettings::default()).unwrap(), None);
        assert_eq!(
            score_of("[]", &ProcessRewardSettings { empty: Some(0.0), ..ProcessRewardSettings::default() }).unwrap(),
            Some(0.0)
        );
        assert!(
            score_of("[]", &ProcessRewardSettings { model: "other".into(), ..ProcessRewardSettings::default() })
                .unwrap_err()
                .to_string()
                .contains("other")
        );
    }
}

//! The length reward of the TL;DR example: `-|length - target|`, highest at the target.

use rlhost_plugin_sdk::prelude::*;

/// The unit of length.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LengthUnit {
    /// Tokens, including the end token.
    Tokens,
    /// Characters of the text.
    Characters,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LengthRewardSettings {
    /// The length that scores highest.
    pub target: u32,
    /// The unit of length.
    pub unit: LengthUnit,
}

impl Default for LengthRewardSettings {
    fn default() -> Self {
        Self { target: 20, unit: LengthUnit::Tokens }
    }
}

reward! {
    /// The negative distance of the completion's length from the target.
    config: LengthRewardSettings,
    needs: COMPLETION_TEXT | TOKEN_IDS,
    |config, sample| {
        let length = match config.unit {
            LengthUnit::Tokens => sample.token_ids.len(),
            LengthUnit::Characters => sample.completion.chars().count(),
        };
        -(length as f32 - config.target as f32).abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn score_of(tokens: usize, completion: &str, settings: &LengthRewardSettings) -> Option<f32> {
        let case = Case { token_ids: vec![7; tokens], completion: completion.into(), ..Case::default() };
        case.run(|sample| score(settings, sample)).unwrap()
    }

    #[test]
    fn is_highest_at_the_target_and_falls_on_both_sides() {
        let settings = LengthRewardSettings { target: 8, unit: LengthUnit::Tokens };
        assert_eq!(score_of(8, "", &settings), Some(0.0));
        assert_eq!(score_of(3, "", &settings), Some(-5.0));
        assert_eq!(score_of(13, "", &settings), Some(-5.0));
    }

    #[test]
    fn counts_characters_and_not_bytes() {
        let settings = LengthRewardSettings { target: 4, unit: LengthUnit::Characters };
        assert_eq!(score_of(99, "süß!", &settings), Some(0.0));
    }
}

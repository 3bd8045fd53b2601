//! A penalty for repeated n-grams of tokens (Yeo et al. 2025, "Demystifying Long Chain-of-Thought Reasoning in LLMs", appendix
//! C.2), with the settings and results of TRL's `get_repetition_penalty_reward`.

use rlhost_plugin_sdk::prelude::*;
use std::collections::HashSet;
use std::num::NonZeroU32;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RepetitionRewardSettings {
    /// Number of tokens in an n-gram.
    pub ngram_size: NonZeroU32,
    /// Score that a completion of nothing but repetition approaches; 0 or less.
    #[schemars(range(max = 0.0))]
    pub max_penalty: f64,
}

impl Default for RepetitionRewardSettings {
    fn default() -> Self {
        Self { ngram_size: NonZeroU32::MIN.saturating_add(2), max_penalty: -1.0 }
    }
}

/// Returns `1 - distinct n-grams / n-grams`, 0 if there are too few tokens for an n-gram.
#[must_use]
pub fn repeated_share(token_ids: &[u32], ngram_size: NonZeroU32) -> f64 {
    let ngrams = token_ids.windows(ngram_size.get() as usize);
    let all = ngrams.len();
    if all == 0 {
        return 0.0;
    }
    let distinct = ngrams.collect::<HashSet<_>>().len();
    1.0 - distinct as f64 / all as f64
}

reward! {
    /// The share of repeated n-grams times the largest penalty.
    config: RepetitionRewardSettings,
    needs: TOKEN_IDS,
    |config, sample| {
        let share = repeated_share(sample.token_ids, config.ngram_size);
        // Without repetition, the product would be minus zero.
        if share > 0.0 { (share * config.max_penalty) as f32 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn score_of(token_ids: &[u32], ngram_size: u32, max_penalty: f64) -> f32 {
        let settings = RepetitionRewardSettings { ngram_size: NonZeroU32::new(ngram_size).unwrap(), max_penalty };
        let case = Case { token_ids: token_ids.to_vec(), ..Case::default() };
        case.run(|sample| score(&settings, sample)).unwrap().unwrap()
    }

    #[test]
    fn counts_what_stood_before() {
        // Pairs 12 23 34: all distinct.
        assert_eq!(score_of(&[1, 2, 3, 4], 2, -1.0).to_bits(), 0.0_f32.to_bits());
        // 55 four times over: three of four are repeats.
        assert_eq!(score_of(&[5; 5], 2, -1.0), -0.75);
        // 121 212 121 212: two of four.
        assert_eq!(score_of(&[1, 2, 1, 2, 1, 2], 3, -0.5), -0.25);
        // Single tokens 1 2 2: one of three.
        assert_eq!(score_of(&[1, 2, 2], 1, -3.0), -1.0);
    }

    #[test]
    fn few_tokens_have_no_penalty() {
        assert_eq!(score_of(&[], 3, -1.0), 0.0);
        assert_eq!(score_of(&[4, 4], 3, -1.0), 0.0);
        assert_eq!(score_of(&[4, 4, 4], 3, -1.0), 0.0);
        assert_eq!(score_of(&[4, 4, 4, 4], 3, -1.0), -0.5);
    }

    #[test]
    fn the_schema_tells_the_host_what_is_allowed() {
        let schema = rlhost_plugin_sdk::config::schema::<RepetitionRewardSettings>();
        assert!(schema.contains(r#""minimum":1"#) && schema.contains(r#""maximum":0"#), "{schema}");
    }
}

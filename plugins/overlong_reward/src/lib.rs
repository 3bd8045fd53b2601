//! The soft overlong punishment of DAPO (Yu et al. 2025, equation 13), with the settings and results of TRL's
//! `get_soft_overlong_punishment`.

use rlhost_plugin_sdk::prelude::*;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OverlongRewardSettings {
    /// Longest desired completion in tokens, including the end token, usually the run's `max_completion_length`; beyond it, the
    /// score is -1.
    pub max_completion_len: u32,
    /// Number of tokens before that over which the score falls from 0 to -1; at most `max_completion_len`.
    pub soft_punish_cache: u32,
}

impl Default for OverlongRewardSettings {
    fn default() -> Self {
        Self { max_completion_len: 256, soft_punish_cache: 64 }
    }
}

impl OverlongRewardSettings {
    fn checked(self) -> Result<Self, Error> {
        let (longest, cache) = (self.max_completion_len, self.soft_punish_cache);
        if cache > longest {
            return Err(Error::Config(format!("soft_punish_cache is {cache}; it must be at most max_completion_len, {longest}")));
        }
        Ok(self)
    }

    /// Returns 0 up to `max_completion_len - soft_punish_cache` tokens, -1 beyond `max_completion_len`, and interpolates linearly
    /// between.
    #[must_use]
    pub fn punishment(&self, tokens: usize) -> f64 {
        let (tokens, longest, cache) = (tokens as f64, f64::from(self.max_completion_len), f64::from(self.soft_punish_cache));
        let free = longest - cache;
        if tokens <= free {
            0.0
        } else if tokens <= longest {
            (free - tokens) / cache
        } else {
            -1.0
        }
    }
}

reward! {
    /// Falls from 0 to -1 over the last tokens before the length limit.
    config: OverlongRewardSettings,
    prepared: OverlongRewardSettings = OverlongRewardSettings::checked,
    needs: TOKEN_IDS,
    |config, sample| config.punishment(sample.token_ids.len()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn score_of(tokens: usize, settings: &OverlongRewardSettings) -> Option<f32> {
        Case { token_ids: vec![1; tokens], ..Case::default() }.run(|sample| score(settings, sample)).unwrap()
    }

    #[test]
    fn falls_over_the_last_tokens() {
        let settings = OverlongRewardSettings { max_completion_len: 100, soft_punish_cache: 20 };
        let expected = [(0, 0.0), (80, 0.0), (81, -0.05), (85, -0.25), (90, -0.5), (100, -1.0), (101, -1.0), (5000, -1.0)];
        for (tokens, punishment) in expected {
            assert_eq!(score_of(tokens, &settings), Some(punishment), "{tokens} tokens");
        }
    }

    #[test]
    fn without_a_cache_falls_at_once() {
        let settings = OverlongRewardSettings { max_completion_len: 100, soft_punish_cache: 0 };
        assert_eq!(score_of(100, &settings), Some(0.0));
        assert_eq!(score_of(101, &settings), Some(-1.0));
    }

    #[test]
    fn a_cache_longer_than_the_completion_is_refused() {
        assert!(OverlongRewardSettings { max_completion_len: 20, soft_punish_cache: 20 }.checked().is_ok());
        let error = OverlongRewardSettings { max_completion_len: 19, soft_punish_cache: 20 }.checked().unwrap_err().to_string();
        assert!(error.contains("soft_punish_cache") && error.contains("19"), "{error}");
    }
}

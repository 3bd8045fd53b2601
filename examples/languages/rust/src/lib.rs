//! `-|words - target|`, none without a word.

use rlhost_plugin_sdk::prelude::*;

/// WordCountSettings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WordCountSettings {
    /// The number of words that scores highest.
    pub target: u32,
}

impl Default for WordCountSettings {
    fn default() -> Self {
        Self { target: 20 }
    }
}

// `u8::is_ascii_whitespace` leaves the vertical tab out.
fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

reward! {
    /// Minus the distance of the number of words from the target: the row's own, where it has one.
    config: WordCountSettings,
    needs: COMPLETION_TEXT | DATASET_COLUMNS,
    |config, sample| {
        let words = sample.completion.as_bytes().split(is_space).filter(|word| !word.is_empty()).count() as i64;
        let own = sample.column("target").and_then(|json| json.parse().ok());
        let target = own.unwrap_or(i64::from(config.target));
        (words > 0).then(|| -(words - target).abs() as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn score_of(completion: &str, column: Option<&str>) -> Option<f32> {
        let columns = column.map(|json| ("target".to_owned(), json.to_owned())).into_iter().collect();
        let case = Case { completion: completion.into(), columns, ..Case::default() };
        case.run(|sample| score(&WordCountSettings { target: 2 }, sample)).unwrap()
    }

    #[test]
    fn is_highest_at_the_target() {
        assert_eq!(score_of("one two", None), Some(0.0));
        assert_eq!(score_of(" one\x0btwo\nthree ", None), Some(-1.0));
        assert_eq!(score_of(" \t", None), None);
    }

    #[test]
    fn a_row_may_have_its_own_target() {
        assert_eq!(score_of("one two", Some("5")), Some(-3.0));
        assert_eq!(score_of("one two", Some("\"5\"")), Some(0.0));
    }
}

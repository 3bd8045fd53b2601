//! ROUGE-L (Lin 2004): the longest common subsequence of a completion's and a reference's words. Words and results are those of
//! Google's `rouge_score` without stemming.

use rlhost_plugin_sdk::prelude::*;
use std::collections::HashMap;

/// Which measure of ROUGE-L is the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// The weighted harmonic mean of precision and recall.
    Fmeasure,
    /// The share of the completion's words that are common.
    Precision,
    /// The share of the reference's words that are common.
    Recall,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RougeRewardSettings {
    /// Dataset column with the reference text; rows without one have no score.
    pub column: String,
    /// Which measure is the score.
    pub measure: Measure,
    /// Weight of recall relative to precision, for `fmeasure`.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
}

impl Default for RougeRewardSettings {
    fn default() -> Self {
        Self { column: "reference".into(), measure: Measure::Fmeasure, beta: 1.0 }
    }
}

impl RougeRewardSettings {
    /// Returns precision `P = lcs / completion`, recall `R = lcs / reference` (numbers of words), or `(1 + beta²) P R / (R +
    /// beta² P)`, all from 0 to 1; 0 if either text has no words.
    #[must_use]
    pub fn rouge_l(&self, completion: &str, reference: &str) -> f64 {
        let (completion, reference) = (words(completion), words(reference));
        let common = longest_common_subsequence(&completion, &reference);
        if common == 0 {
            return 0.0;
        }
        let precision = common as f64 / completion.len() as f64;
        let recall = common as f64 / reference.len() as f64;
        match self.measure {
            Measure::Precision => precision,
            Measure::Recall => recall,
            Measure::Fmeasure => {
                let weight = self.beta * self.beta;
                (1.0 + weight) * precision * recall / (recall + weight * precision)
            }
        }
    }
}

/// Returns lower-case runs of ASCII letters and digits; everything else separates words.
fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn longest_common_subsequence(a: &[String], b: &[String]) -> usize {
    // Words are numbered, because every word is compared with every other.
    let mut numbers = HashMap::new();
    let mut numbered = |words: &[String]| -> Vec<usize> {
        words
            .iter()
            .map(|word| {
                let next = numbers.len();
                *numbers.entry(word.clone()).or_insert(next)
            })
            .collect()
    };
    let (a, b) = (numbered(a), numbered(b));
    // Entry j: the length for the words of `a` so far and the first j of `b`.
    let mut lengths = vec![0; b.len() + 1];
    for word in a {
        let mut diagonal = 0;
        for (j, other) in b.iter().enumerate() {
            let above = lengths[j + 1];
            lengths[j + 1] = if word == *other { diagonal + 1 } else { above.max(lengths[j]) };
            diagonal = above;
        }
    }
    lengths[b.len()]
}

reward! {
    /// ROUGE-L of the completion against the reference, from 0 to 1.
    config: RougeRewardSettings,
    needs: COMPLETION_TEXT | DATASET_COLUMNS,
    |config, sample| {
        let reference = sample.column_as::<String>(&config.column)?;
        Ok::<_, Error>(reference.map(|reference| config.rouge_l(sample.completion, &reference) as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    }

    fn measured(measure: Measure, beta: f64) -> f64 {
        // Common: the dog slept (3), of 5 words and of 4.
        RougeRewardSettings { measure, beta, ..RougeRewardSettings::default() }
            .rouge_l("The big dog never slept.", "the dog has slept")
    }

    #[test]
    fn weighs_precision_and_recall() {
        close(measured(Measure::Precision, 1.0), 3.0 / 5.0);
        close(measured(Measure::Recall, 1.0), 3.0 / 4.0);
        // 2 · 3/5 · 3/4 / (3/5 + 3/4) = 0.9 / 1.35
        close(measured(Measure::Fmeasure, 1.0), 2.0 / 3.0);
        // 5 · 0.45 / (0.75 + 4 · 0.6) = 2.25 / 3.15
        close(measured(Measure::Fmeasure, 2.0), 5.0 / 7.0);
        close(measured(Measure::Fmeasure, 0.0), 3.0 / 5.0);
    }

    #[test]
    fn order_counts_and_gaps_do_not() {
        let lcs = |a: &str, b: &str| longest_common_subsequence(&words(a), &words(b));
        assert_eq!(lcs("a b c d", "a b c d"), 4);
        assert_eq!(lcs("a b c d", "d c b a"), 1);
        assert_eq!(lcs("a x b y c", "a b z c"), 3);
        assert_eq!(lcs("a a a", "a a"), 2);
        assert_eq!(lcs("a b a c a", "b c a a"), 3);
        assert_eq!(lcs("", "a"), 0);
    }

    #[test]
    fn words_are_runs_of_ascii_letters_and_digits() {
        assert_eq!(words("It's 3,5-fold — SÜSS_ok"), ["it", "s", "3", "5", "fold", "s", "ss", "ok"]);
        assert!(words("日本語 …").is_empty());
    }

    #[test]
    fn rows_without_a_reference_have_no_score() {
        let with = |reference: &str, completion: &str| {
            let columns = vec![("reference".into(), reference.into())];
            let case = Case { completion: completion.into(), columns, ..Case::default() };
            case.run(|sample| score(&RougeRewardSettings::default(), sample))
        };
        assert_eq!(with("\"a b\"", "A, b!").unwrap(), Some(1.0));
        assert_eq!(with("\"a b\"", "").unwrap(), Some(0.0));
        assert_eq!(with("\"\"", "a").unwrap(), Some(0.0));
        assert_eq!(with("null", "a").unwrap(), None);
        assert!(with("7", "a").is_err());
    }
}

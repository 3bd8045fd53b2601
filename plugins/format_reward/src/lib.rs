//! Scores the format of a completion: reasoning in one pair of `<think>` tags followed by an answer, as in TRL's
//! `think_format_reward`, or any regular expression.
//!
//! A pattern has the syntax of Rust's regex crates, without look-around or back-references. `.` also matches line ends; `\w`,
//! `\d`, `\s`, `\b` and `(?i)` only know ASCII. Without a pattern, the completion must start with the only `<think>` in it and
//! close it with `</think>`.

use regex_lite::{Regex, RegexBuilder};
use rlhost_plugin_sdk::prelude::*;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FormatRewardSettings {
    /// Regular expression for the complete text, in Rust's syntax and ASCII only; without it, the think format.
    pub pattern: Option<String>,
    /// Score of a completion with this format.
    pub match_score: f64,
    /// Score of any other.
    pub mismatch_score: f64,
}

impl Default for FormatRewardSettings {
    fn default() -> Self {
        Self { pattern: None, match_score: 1.0, mismatch_score: 0.0 }
    }
}

/// The settings with their pattern compiled.
pub struct CompletionFormat {
    settings: FormatRewardSettings,
    whole: Option<Regex>,
}

impl CompletionFormat {
    /// Compiles the settings' pattern.
    ///
    /// # Errors
    /// If it is not a regular expression.
    pub fn new(settings: FormatRewardSettings) -> Result<Self, Error> {
        let whole = settings.pattern.as_deref().map(matching_whole).transpose()?;
        Ok(Self { settings, whole })
    }

    /// Returns whether a completion has the format.
    #[must_use]
    pub fn fits(&self, completion: &str) -> bool {
        self.whole.as_ref().map_or_else(|| thinks_then_answers(completion), |pattern| pattern.is_match(completion))
    }
}

fn matching_whole(pattern: &str) -> Result<Regex, Error> {
    let compile = |pattern: &str| {
        RegexBuilder::new(pattern)
            .dot_matches_new_line(true)
            .build()
            .map_err(|e| Error::Config(format!("pattern is not a supported regular expression: {e}")))
    };
    // The pattern is compiled on its own first: `a)(b` is invalid, but would be valid inside other brackets.
    compile(pattern)?;
    compile(&format!(r"\A(?:{pattern})\z"))
}

/// Implements TRL's `^<think>(?!.*<think>)(.*?)</think>.*$`, whose look-ahead a linear-time regular expression does not support.
fn thinks_then_answers(completion: &str) -> bool {
    completion.strip_prefix("<think>").is_some_and(|rest| !rest.contains("<think>") && rest.contains("</think>"))
}

reward! {
    /// One score for completions with this format, another for all others.
    config: FormatRewardSettings,
    prepared: CompletionFormat = CompletionFormat::new,
    needs: COMPLETION_TEXT,
    |shape, sample| {
        let FormatRewardSettings { match_score, mismatch_score, .. } = shape.settings;
        (if shape.fits(sample.completion) { match_score } else { mismatch_score }) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn fits(pattern: Option<&str>, completion: &str) -> bool {
        CompletionFormat::new(FormatRewardSettings { pattern: pattern.map(str::to_owned), ..FormatRewardSettings::default() })
            .unwrap()
            .fits(completion)
    }

    #[test]
    fn wants_one_thought_and_then_an_answer() {
        for right in
            ["<think>\nTwo and two.\n</think>\nFour.", "<think></think>", "<think>a</think>b</think>c", "<think>a < b\n</think>"]
        {
            assert!(fits(None, right), "{right}");
        }
        for wrong in [
            "",
            "Four.",
            "<think>Two and two. Four.",
            "Well, <think>a</think>b",
            "\n<think>a</think>b",
            "<think>a</think><think>b</think>",
            "<think><think>a</think>b",
            "</think><think>",
            "<Think>a</Think>b",
        ] {
            assert!(!fits(None, wrong), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_is_for_the_whole_completion() {
        let answer = Some("<answer>.*</answer>");
        assert!(fits(answer, "<answer>\n4\n</answer>"));
        assert!(!fits(answer, "<answer>4</answer>\n"));
        assert!(!fits(answer, "So: <answer>4</answer>"));
        // Both anchors apply to both alternatives, and a shorter alternative does not hide a longer one.
        assert!(fits(Some("a|ab"), "ab"));
        assert!(!fits(Some("a|b"), "ab"));
        assert!(fits(Some("(?i)yes|no"), "No"));
    }

    #[test]
    fn a_wrong_pattern_is_refused_when_configured() {
        for wrong in ["(", "a)(b", "(?=a)", r"(a)\1", "a{2,1}"] {
            let error =
                CompletionFormat::new(FormatRewardSettings { pattern: Some(wrong.into()), ..FormatRewardSettings::default() })
                    .err()
                    .unwrap();
            assert!(error.to_string().contains("pattern"), "{wrong}: {error}");
        }
    }

    #[test]
    fn gives_the_scores_that_were_set() {
        let settings = FormatRewardSettings { pattern: Some("a+".into()), match_score: 0.5, mismatch_score: -2.0 };
        let shape = CompletionFormat::new(settings).unwrap();
        let score_of = |completion: &str| {
            Case { completion: completion.into(), ..Case::default() }.run(|sample| score(&shape, sample)).unwrap()
        };
        assert_eq!(score_of("aa"), Some(0.5));
        assert_eq!(score_of("ab"), Some(-2.0));
    }
}

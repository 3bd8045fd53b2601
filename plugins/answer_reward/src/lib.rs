//! Compares the final answer of a completion with the dataset's, as numbers, as formulas or as text.

use rlhost_plugin_sdk::prelude::*;
use serde_json::Value;

use number::AnswerNumber;
use single::{AnswerContent, content};

pub mod formula;
pub mod number;
pub mod single;

/// How two answers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonMode {
    /// As numbers: 1,080 equals $1080.00, and 3/4 equals 0.75. Rows whose reference is not one number, but a formula or several
    /// numbers, have no score.
    Numeric,
    /// As exact text, ignoring surrounding space.
    Exact,
    /// As formulas, like TRL's `accuracy_reward`: `\frac{\sqrt{2}}{2}` equals `1/\sqrt{2}`, and `x = 3` equals 3. The answer is
    /// the LaTeX in `\boxed{...}` or after the word "answer"; `extract` and `tolerance` have no effect. Rows whose reference has
    /// no formula have no score.
    Formula,
}

/// Where to find the answer in a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerSource {
    /// After the last `####`, up to the end of the line.
    Hashes,
    /// In the last `\boxed{...}`.
    Boxed,
    /// The last number.
    LastNumber,
    /// The complete text.
    Whole,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AnswerRewardSettings {
    /// Dataset column with the reference, which is the text after the last `####`, else in the last `\boxed{...}`, else all of
    /// it; with `formula` always all of it. Rows without a value have no score.
    pub column: String,
    /// How answers are compared.
    pub mode: ComparisonMode,
    /// Where to find the answer; the first of these that finds one counts. If it contains several numbers, the last counts, except
    /// that a box must contain one number and no formula.
    #[schemars(length(min = 1))]
    pub extract: Vec<AnswerSource>,
    /// Text that the answer comes after, such as `</think>`: only what follows its last occurrence counts, and a completion without
    /// it is wrong.
    #[schemars(length(min = 1))]
    pub after: Option<String>,
    /// Allowed relative difference of numbers: 0.01 is one per cent.
    #[schemars(range(min = 0.0))]
    pub tolerance: f64,
}

impl Default for AnswerRewardSettings {
    fn default() -> Self {
        let extract = vec![AnswerSource::Hashes, AnswerSource::Boxed, AnswerSource::LastNumber];
        Self { column: "answer".into(), mode: ComparisonMode::Numeric, extract, after: None, tolerance: 0.0 }
    }
}

impl AnswerRewardSettings {
    fn is_right(&self, completion: &str, given: &str) -> Option<bool> {
        let reference = after_hashes(given).or_else(|| boxed(given)).unwrap_or(given).trim();
        match self.mode {
            ComparisonMode::Exact => {
                let answer = self.extract.iter().find_map(|way| way.find(completion));
                Some(answer.is_some_and(|answer| answer == reference))
            }
            ComparisonMode::Formula => formula::is_right(completion, given),
            ComparisonMode::Numeric => match content(reference) {
                AnswerContent::One(reference) => Some(self.finds(reference, completion)),
                AnswerContent::Formula | AnswerContent::Words => None,
            },
        }
    }

    /// Returns whether the first source with a number has the right one.
    fn finds(&self, reference: AnswerNumber, completion: &str) -> bool {
        for way in &self.extract {
            let Some(found) = way.find(completion) else { continue };
            let number = match way {
                AnswerSource::Boxed => match content(found) {
                    AnswerContent::One(number) => Some(number),
                    AnswerContent::Formula => return false,
                    AnswerContent::Words => None,
                },
                _ => number::last(&number::plain(found)).map(|written| written.number),
            };
            if let Some(number) = number {
                return number.agrees_with(reference, self.tolerance);
            }
        }
        false
    }
}

impl AnswerRewardSettings {
    /// Returns whether the relevant part of a completion has the right answer, or `None` if the reference can't be compared in this mode.
    fn judged(&self, completion: &str, reference: &str) -> Option<bool> {
        let Some(after) = &self.after else { return self.is_right(completion, reference) };
        match completion.rsplit_once(after.as_str()) {
            Some((_, answer)) => self.is_right(answer, reference),
            None => self.is_right("", reference),
        }
    }
}

impl AnswerSource {
    fn find(self, completion: &str) -> Option<&str> {
        match self {
            Self::Hashes => after_hashes(completion),
            Self::Boxed => boxed(completion),
            Self::LastNumber => number::last(completion).map(|written| written.text),
            Self::Whole => Some(completion.trim()),
        }
    }
}

fn after_hashes(text: &str) -> Option<&str> {
    let (_, after) = text.rsplit_once("####")?;
    after.trim().lines().next().map(str::trim)
}

fn boxed(text: &str) -> Option<&str> {
    let opened = |at: usize| text.get(at + "\\boxed".len()..)?.trim_start().strip_prefix('{');
    let after = text.rmatch_indices("\\boxed").find_map(|(at, _)| opened(at))?;
    let mut depth = 1;
    for (at, character) in after.char_indices() {
        depth += match character {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        if depth == 0 {
            return after.get(..at).map(str::trim);
        }
    }
    None
}

/// Returns the reference as text, or `None` if the row has none.
fn reference(sample: &Sample<'_>, column: &str) -> Result<Option<String>, Error> {
    match sample.column_as(column)? {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Err(Error::Input(format!(
            "the dataset's column {column:?} contains {other}; a reference must be a string or a number"
        ))),
    }
}

reward! {
    /// 1 for the right answer, 0 for a wrong one or none.
    config: AnswerRewardSettings,
    needs: COMPLETION_TEXT | DATASET_COLUMNS,
    |config, sample| {
        let reference = reference(sample, &config.column)?;
        let right = reference.and_then(|reference| config.judged(sample.completion, &reference));
        Ok::<_, Error>(right.map(|right| if right { 1.0 } else { 0.0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::reward::testing::Case;

    fn score_of(completion: &str, reference: &Value, settings: &AnswerRewardSettings) -> Result<Option<f32>, Error> {
        let columns = vec![("answer".into(), reference.to_string())];
        Case { completion: completion.into(), columns, ..Case::default() }.run(|sample| score(settings, sample))
    }

    fn numeric(completion: &str, reference: &str) -> Option<f32> {
        score_of(completion, &reference.into(), &AnswerRewardSettings::default()).unwrap()
    }

    /// Compares with TRL's `reasoning_accuracy_reward`.
    #[test]
    fn only_what_follows_the_reasoning_counts_where_that_is_asked_for() {
        let settings = AnswerRewardSettings { after: Some("</think>".into()), ..AnswerRewardSettings::default() };
        let score = |completion: &str| score_of(completion, &"3".into(), &settings).unwrap();
        assert_eq!(score("<think> \\boxed{2} </think> It is \\boxed{3}"), Some(1.0));
        assert_eq!(score("<think> \\boxed{3} </think> It is \\boxed{2}"), Some(0.0));
        assert_eq!(score("<think> a </think> 3 </think> no"), Some(0.0));
        assert_eq!(score("<think> so far \\boxed{3}"), Some(0.0));
    }

    /// Rows in the style of GSM8K.
    const ROWS: [&str; 6] = [
        "A crate holds 12 * 4 = <<12*4=48>>48 jars.\nTwo crates hold 48 * 2 = <<48*2=96>>96 jars.\n#### 96",
        "The boat costs $900 + $180 = $<<900+180=1080>>1080.\n#### 1,080",
        "Half of 5 litres is 5/2 = <<5/2=2.5>>2.5 litres.\n#### 2.5",
        "At dawn it is 3 - 8 = <<3-8=-5>>-5 degrees.\n#### -5",
        "She keeps 100 - 85 = <<100-85=15>>15% of it.\n#### 15%",
        "They need 2000000 / 2 = $<<2000000/2=1000000>>1,000,000.\n#### $1,000,000",
    ];

    #[test]
    fn a_reference_is_right_by_itself_and_wrong_for_others() {
        for (i, row) in ROWS.iter().enumerate() {
            for (j, other) in ROWS.iter().enumerate() {
                assert_eq!(numeric(other, row), Some(if i == j { 1.0 } else { 0.0 }), "{other} for {row}");
            }
        }
    }

    #[test]
    fn finds_answers_in_the_order_that_is_set() {
        assert_eq!(numeric("Twice 4 is 8.\n#### 8 eggs\nShe had 3 hens.", "8"), Some(1.0));
        assert_eq!(numeric(r"So \boxed{x = \frac{1}{2}}, which took 3 steps.", "#### 0.5"), Some(1.0));
        assert_eq!(numeric("That makes $1,080.00.", "#### 1080"), Some(1.0));
        assert_eq!(numeric("#### Result\nIt is 7.", "7"), Some(1.0));
        assert_eq!(numeric("#### 7\n#### 8", "7"), Some(0.0));
        assert_eq!(numeric("I can't say.", "7"), Some(0.0));
        assert_eq!(numeric("", "7"), Some(0.0));

        let boxed_only = AnswerRewardSettings { extract: vec![AnswerSource::Boxed], ..AnswerRewardSettings::default() };
        assert_eq!(score_of("#### 7", &"7".into(), &boxed_only).unwrap(), Some(0.0));
        assert_eq!(score_of(r"\boxed{7}", &"7".into(), &boxed_only).unwrap(), Some(1.0));
        assert_eq!(score_of(r"\boxed{7", &"7".into(), &boxed_only).unwrap(), Some(0.0));
    }

    #[test]
    fn reads_references_of_all_kinds() {
        let with = |reference| score_of("so 7", &reference, &AnswerRewardSettings::default());
        assert_eq!(with(7.into()).unwrap(), Some(1.0));
        assert_eq!(with(7.0.into()).unwrap(), Some(1.0));
        assert_eq!(with(r"Work: 9. \boxed{7}".into()).unwrap(), Some(1.0));
        assert_eq!(with(Value::Null).unwrap(), None);
        assert_eq!(with("seven".into()).unwrap(), None);
        let error = with(serde_json::json!(["7"])).unwrap_err().to_string();
        assert!(error.contains("answer") && error.contains("a string or a number"), "{error}");
    }

    #[test]
    fn a_column_that_no_row_has_is_an_error() {
        let settings = AnswerRewardSettings { column: "solution".into(), ..AnswerRewardSettings::default() };
        let error = score_of("7", &"7".into(), &settings).unwrap_err().to_string();
        assert!(error.contains("solution") && error.contains("answer"), "{error}");
    }

    #[test]
    fn exact_answers_are_the_same_text() {
        let exact = AnswerRewardSettings { mode: ComparisonMode::Exact, ..AnswerRewardSettings::default() };
        let whole = AnswerRewardSettings { extract: vec![AnswerSource::Hashes, AnswerSource::Whole], ..exact.clone() };
        assert_eq!(score_of("Because.\n#### Paris \nDone", &"#### Paris".into(), &exact).unwrap(), Some(1.0));
        assert_eq!(score_of("#### paris", &"Paris".into(), &exact).unwrap(), Some(0.0));
        assert_eq!(score_of("It is 18.", &"18".into(), &exact).unwrap(), Some(1.0));
        assert_eq!(score_of("It is 18.0", &"18".into(), &exact).unwrap(), Some(0.0));
        assert_eq!(score_of(" Paris\n", &"Paris".into(), &whole).unwrap(), Some(1.0));
        assert_eq!(score_of("In Paris", &"Paris".into(), &whole).unwrap(), Some(0.0));
        assert_eq!(score_of(r"\boxed{\text{yes}}", &r"Thus \boxed{\text{yes}}".into(), &exact).unwrap(), Some(1.0));
    }

    #[test]
    fn references_that_are_formulas_have_no_score_as_numbers() {
        for formula in ["$x^2+3$", "$10^3$", r"$\frac{\sqrt{2}}{2}$", "$(1,2)$", r"$6\pi$", "2x", "3 of 4", r"\boxed{2\sqrt{3}}"]
        {
            assert_eq!(numeric(r"\boxed{3}", formula), None, "{formula}");
        }
        assert_eq!(numeric(r"\boxed{12}", r"$\frac12$"), Some(0.0));
        assert_eq!(numeric(r"\boxed{0.5}", r"$\frac12$"), Some(1.0));
        assert_eq!(numeric(r"\boxed{\frac12}", "#### 0.5"), Some(1.0));
        assert_eq!(numeric(r"\boxed{\$18\text{ per day}}", "18 dollars"), Some(1.0));
        for wrong in [r"\boxed{10^3}", r"\boxed{3x}", r"\boxed{2,3}", r"3, so \boxed{\sqrt{3}}", r"\boxed{\frac{1}{3}+3}"] {
            assert_eq!(numeric(wrong, "3"), Some(0.0), "{wrong}");
        }
        assert_eq!(numeric(r"\boxed{\text{three}}, that is 3", "3"), Some(1.0));
    }

    #[test]
    fn signs_and_fonts_do_not_hide_a_number() {
        for right in [r"\boxed{+18}", r"\boxed {18}", r"\boxed{\textit{18}}", r"\boxed{\text{+18}}", "#### +18", "It is +18."] {
            assert_eq!(numeric(right, "18"), Some(1.0), "{right}");
            assert_eq!(numeric(right, "17"), Some(0.0), "{right}");
        }
        for reference in ["+18", "$+18$", r"\boxed{+18}", r"\text{18}", "#### +18"] {
            assert_eq!(numeric(r"\boxed{18}", reference), Some(1.0), "{reference}");
            assert_eq!(numeric(r"\boxed{-18}", reference), Some(0.0), "{reference}");
        }
        let boxed_only = AnswerRewardSettings { extract: vec![AnswerSource::Boxed], ..AnswerRewardSettings::default() };
        assert_eq!(score_of("\\boxed {18} of 20", &"18".into(), &boxed_only).unwrap(), Some(1.0));
        assert_eq!(numeric(r"\boxed{3\frac{1}{2}}", "3.5"), Some(1.0));
        assert_eq!(numeric(r"\boxed{3\frac{1}{2}}", "15.5"), Some(0.0));
        assert_eq!(numeric("\\boxed{\u{2013}18}", "18"), Some(0.0));
    }

    /// Compares with TRL's `accuracy_reward` and `reasoning_accuracy_reward`.
    #[test]
    fn formulas_are_compared_by_value() {
        let formula = AnswerRewardSettings { mode: ComparisonMode::Formula, ..AnswerRewardSettings::default() };
        let score = |completion: &str, reference: &str| score_of(completion, &reference.into(), &formula).unwrap();
        assert_eq!(score(r"So \boxed{\frac{1}{\sqrt{2}}}.", r"$\frac{\sqrt{2}}{2}$"), Some(1.0));
        assert_eq!(score(r"\boxed{2}", r"$\frac{\sqrt{2}}{2}$"), Some(0.0));
        assert_eq!(score("The answer is 7.", "7"), Some(0.0));
        assert_eq!(score("#### 7", "7"), Some(0.0));
        assert_eq!(score(r"\boxed{7}", "seven"), None);
        assert_eq!(score_of(r"\boxed{10^3}", &1000.into(), &formula).unwrap(), Some(1.0));

        let reasoning = AnswerRewardSettings { after: Some("</think>".into()), ..formula };
        let score = |completion: &str| score_of(completion, &r"$\frac13$".into(), &reasoning).unwrap();
        assert_eq!(score(r"<think> \boxed{2} </think> \boxed{\frac{1}{3}}"), Some(1.0));
        assert_eq!(score(r"<think> \boxed{\frac{1}{3}} </think> \boxed{2}"), Some(0.0));
        assert_eq!(score(r"<think> \boxed{\frac{1}{3}}"), Some(0.0));
    }
}

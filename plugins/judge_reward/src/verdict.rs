//! Parses a judge's answers.

use rlhost_plugin_sdk::serde_json::Value;

/// Returns a text without the tagged reasoning that models write first.
fn after_thought(text: &str) -> &str {
    text.rsplit_once("</think>").map_or(text, |(_, rest)| rest)
}

/// Returns the last text between double brackets.
fn bracketed(text: &str) -> Option<&str> {
    let (before, _) = text.rsplit_once("]]")?;
    before.rsplit_once("[[").map(|(_, inner)| inner.trim())
}

/// Returns the number in the last double brackets, or else the last number of a text. In a fraction, as in 7/10, the first
/// counts.
pub fn number(text: &str) -> Option<f64> {
    let text = after_thought(text);
    let text = bracketed(text).unwrap_or(text);
    let is_part = |c: char| c.is_ascii_digit() || ".-+/".contains(c);
    let mut words = text.split(|c: char| !is_part(c)).filter(|word| word.contains(|c: char| c.is_ascii_digit()));
    let whole = |word: &str| {
        let first = word.split('/').find(|part| part.contains(|c: char| c.is_ascii_digit()))?;
        first.trim_end_matches(['.', '-', '+']).trim_start_matches('.').parse::<f64>().ok()
    };
    words.next_back().and_then(whole).filter(|number| number.is_finite())
}

/// Returns the number in the field `score` of JSON, which a fence or other text may surround.
pub fn field(text: &str) -> Option<f64> {
    let text = after_thought(text);
    let json = &text[text.find('{')?..=text.rfind('}')?];
    let value: Value = rlhost_plugin_sdk::serde_json::from_str(json).ok()?;
    let score = value.get("score")?;
    score.as_f64().or_else(|| score.as_str()?.trim().parse().ok()).filter(|number| number.is_finite())
}

/// Returns the winner: 1 for A, 0 for B, 0.5 for a tie, from the last double brackets, or else from a text that is a single such letter.
pub fn winner(text: &str) -> Option<f64> {
    let text = after_thought(text);
    match bracketed(text).unwrap_or(text.trim().trim_end_matches('.')).to_ascii_uppercase().as_str() {
        "A" => Some(1.0),
        "B" => Some(0.0),
        "C" | "TIE" => Some(0.5),
        _ => None,
    }
}

/// Minimum total probability of all known answers for their mean to be meaningful.
const LEAST: f64 = 0.1;

/// Returns the mean of the answers' scores under the probabilities of the first token that is not blank.
pub fn expected(choice: &Value, answers: &[(String, f64)]) -> Option<f64> {
    let tokens = choice.pointer("/logprobs/content")?.as_array()?;
    let blank = |token: &&Value| token["token"].as_str().is_some_and(|text| text.trim().is_empty());
    let token = tokens.iter().find(|token| !blank(token))?;
    let (mut sum, mut whole) = (0.0, 0.0);
    for candidate in token["top_logprobs"].as_array()? {
        let Some(text) = candidate["token"].as_str() else { continue };
        let text = text.trim().to_lowercase();
        if let (Some((_, score)), Some(logprob)) =
            (answers.iter().find(|(answer, _)| *answer == text), candidate["logprob"].as_f64())
        {
            let probability = logprob.min(0.0).exp();
            sum += probability * score;
            whole += probability;
        }
    }
    (whole >= LEAST).then(|| sum / whole).filter(|mean| mean.is_finite())
}

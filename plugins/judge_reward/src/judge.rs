//! Builds the questions of a batch, sends them, and converts the answers to scores.

use super::verdict::{expected, field, number, winner};
use super::{JudgeRewardSettings, JudgeScoring};
use rlhost_plugin_sdk::http::{Request, Response, fetch};
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::serde_json::{Value, json};
use std::collections::HashMap;

const NUMBER: &str = "{rubric}\n\n[Request]\n{prompt}\n[End of request]\n\n[Answer]\n{completion}\n[End of answer]\n\nFirst explain \
     your judgement in a sentence. Then give a score from {min} to {max}, in the form [[score]].";
const JSON: &str = "{rubric}\n\n[Request]\n{prompt}\n[End of request]\n\n[Answer]\n{completion}\n[End of answer]\n\nGive a score from \
     {min} to {max}, as JSON with the fields \"reasoning\" and \"score\".";
const LOGPROBS: &str = "{rubric}\n\n[Request]\n{prompt}\n[End of request]\n\n[Answer]\n{completion}\n[End of answer]\n\nReply with one \
     word only: {answers}.";
const PAIRWISE: &str = "{rubric}\n\n[Request]\n{prompt}\n[End of request]\n\n[Answer A]\n{completion}\n[End of answer A]\n\n[Answer \
     B]\n{reference}\n[End of answer B]\n\nWhich answer is better? The order says nothing. First explain your judgement in a \
     sentence. Then write [[A]], [[B]], or [[C]] for a tie.";

/// Maximum number of candidates per token that servers return.
const MOST_CANDIDATES: u32 = 20;

/// Maximum length of a server's refusal in an error message, in characters.
const QUOTED: usize = 200;

/// Minimum number of questions in a batch for an error if none of the answers is readable. In a smaller batch, the judge may have no
/// verdict by chance, so there is only a warning.
const TELLING: usize = 8;

/// The settings after validation.
pub struct Judge {
    settings: JudgeRewardSettings,
    url: String,
    template: String,
    answers: Vec<(String, f64)>,
}

impl Judge {
    /// Checks the settings.
    ///
    /// # Errors
    /// If a setting is invalid; names it.
    pub fn new(settings: JudgeRewardSettings) -> Result<Self, Error> {
        let wrong = |detail: String| Err(Error::Config(detail));
        if !["http://", "https://"].iter().any(|scheme| settings.url.starts_with(scheme)) {
            return wrong(format!(
                "url is {:?}; it must begin with http:// or https://, as in http://localhost:8000/v1",
                settings.url
            ));
        }
        if !(settings.min.is_finite() && settings.max_score().is_finite() && settings.min < settings.max_score()) {
            return wrong("min must be less than max".into());
        }
        let base = settings.url.trim_end_matches('/');
        let url = if base.ends_with("/chat/completions") { base.to_owned() } else { format!("{base}/chat/completions") };
        let own = match settings.scoring {
            JudgeScoring::Number => NUMBER,
            JudgeScoring::Json => JSON,
            JudgeScoring::Logprobs => LOGPROBS,
            JudgeScoring::Pairwise => PAIRWISE,
        };
        let template = settings.template.clone().unwrap_or_else(|| own.to_owned());
        if !template.contains("{completion}") {
            return wrong("template has no {completion}, so every completion would get the same score".into());
        }
        if settings.reference.is_none() && (settings.scoring == JudgeScoring::Pairwise || template.contains("{reference}")) {
            return wrong("reference must name the dataset's column that completions are compared with".into());
        }
        if settings.scoring != JudgeScoring::Logprobs && !settings.answers.is_empty() {
            return wrong("answers are for scoring = \"logprobs\"".into());
        }
        let answers = answers(&settings)?;
        Ok(Self { settings, url, template, answers })
    }

    /// Returns the question about a sample; `None` if it needs a reference and the sample has none. `swapped` puts the reference first.
    fn question(&self, sample: &Sample<'_>, swapped: bool) -> Result<Option<String>, Error> {
        let reference = match &self.settings.reference {
            None => String::new(),
            Some(column) => match sample.column_as::<String>(column)? {
                Some(text) => text,
                None => return Ok(None),
            },
        };
        let (first, second) = if swapped { (&*reference, sample.completion) } else { (sample.completion, &*reference) };
        let listed = self.answers.iter().map(|(answer, _)| answer.as_str()).collect::<Vec<_>>().join(", ");
        let value = |name: &str| {
            Some(match name {
                "rubric" => self.settings.rubric.clone(),
                "prompt" => sample.prompt.to_owned(),
                "completion" => first.to_owned(),
                "reference" => second.to_owned(),
                "min" => self.settings.min.to_string(),
                "max" => self.settings.max_score().to_string(),
                "answers" => listed.clone(),
                _ => return None,
            })
        };
        Ok(Some(filled(&self.template, value)))
    }

    fn request(&self, question: &str) -> Request {
        let JudgeRewardSettings { model, system, scoring, temperature, max_tokens, extra, secret, .. } = &self.settings;
        let mut messages = Vec::new();
        messages.extend(system.as_ref().map(|text| json!({ "role": "system", "content": text })));
        messages.push(json!({ "role": "user", "content": question }));
        let length = max_tokens.unwrap_or(if *scoring == JudgeScoring::Logprobs { 1 } else { 512 });
        let mut body = json!({ "model": model, "messages": messages, "temperature": temperature, "max_tokens": length });
        match scoring {
            JudgeScoring::Logprobs => {
                body["logprobs"] = true.into();
                body["top_logprobs"] = MOST_CANDIDATES.into();
            }
            JudgeScoring::Json => {
                let properties = json!({ "reasoning": { "type": "string" }, "score": { "type": "number" } });
                let required = ["reasoning", "score"];
                let schema =
                    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
                let named = json!({ "name": "verdict", "strict": true, "schema": schema });
                body["response_format"] = json!({ "type": "json_schema", "json_schema": named });
            }
            JudgeScoring::Number | JudgeScoring::Pairwise => {}
        }
        for (key, value) in extra {
            body[key] = value.clone();
        }
        let request = Request::post(&self.url).json(&body);
        match secret {
            Some(name) => request.header("Authorization", &format!("Bearer {{{{{name}}}}}")),
            None => request,
        }
    }

    /// Parses the score in an answer.
    fn verdict(&self, answer: &Response) -> Option<f64> {
        let body: Value = answer.parsed().ok()?;
        let choice = body.pointer("/choices/0")?;
        let text = || choice.pointer("/message/content").and_then(Value::as_str);
        let (min, max) = (self.settings.min, self.settings.max_score());
        let within = |score: &f64| (min..=max).contains(score);
        match self.settings.scoring {
            JudgeScoring::Number => number(text()?).filter(within),
            JudgeScoring::Json => field(text()?).filter(within),
            JudgeScoring::Logprobs => expected(choice, &self.answers),
            JudgeScoring::Pairwise => winner(text()?),
        }
    }

    /// Describes the expected form of the judge's answers.
    fn expected_answer(&self) -> String {
        let (min, max) = (self.settings.min, self.settings.max_score());
        match self.settings.scoring {
            JudgeScoring::Number => format!("a number from {min} to {max}"),
            JudgeScoring::Json => format!("JSON with a field \"score\" from {min} to {max}"),
            JudgeScoring::Logprobs => {
                let answers = self.answers.iter().map(|(answer, _)| answer.as_str()).collect::<Vec<_>>().join(", ");
                format!("probabilities of its first token (top_logprobs) with those of {answers}")
            }
            JudgeScoring::Pairwise => "[[A]], [[B]] or [[C]]".to_owned(),
        }
    }

    /// Describes answers none of which has a verdict, by the first.
    pub fn describe_unreadable(&self, answers: &[Result<Response, String>]) -> String {
        let first = answers.iter().flatten().find(|answer| answer.is_success()).map(response_excerpt).unwrap_or_default();
        format!("none of {} answers has {}; the first is: {first}", answers.len(), self.expected_answer())
    }

    /// Scales a score.
    fn scaled(&self, score: f64) -> f32 {
        let (min, max) = match self.settings.scoring {
            JudgeScoring::Pairwise => (0.0, 1.0),
            JudgeScoring::Logprobs => bounds(&self.answers),
            JudgeScoring::Number | JudgeScoring::Json => (self.settings.min, self.settings.max_score()),
        };
        (if self.settings.normalize { (score - min) / (max - min) } else { score }) as f32
    }
}

fn bounds(answers: &[(String, f64)]) -> (f64, f64) {
    answers.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), (_, score)| (min.min(*score), max.max(*score)))
}

/// Returns the possible answers, in lower case, with their scores.
fn answers(settings: &JudgeRewardSettings) -> Result<Vec<(String, f64)>, Error> {
    let wrong = |detail: &str| Err(Error::Config(detail.to_owned()));
    if settings.scoring != JudgeScoring::Logprobs {
        return Ok(Vec::new());
    }
    if settings.answers.is_empty() {
        let (min, max) = (settings.min, settings.max_score());
        return match min.fract() == 0.0 && max.fract() == 0.0 && (0.0..=9.0).contains(&min) && max <= 9.0 {
            true => Ok((min as u32..=max as u32).map(|score| (score.to_string(), f64::from(score))).collect()),
            false => wrong("with logprobs, min and max must be whole numbers from 0 to 9, one token each, or answers given"),
        };
    }
    let given: Vec<(String, f64)> =
        settings.answers.iter().map(|(answer, score)| (answer.trim().to_lowercase(), *score)).collect();
    let (min, max) = bounds(&given);
    match given.iter().all(|(_, score)| score.is_finite()) && min < max {
        true => Ok(given),
        false => wrong("answers must have finite scores that differ"),
    }
}

/// Fills in a template in one pass: inserted text is not expanded again.
fn filled(template: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        match after.split_once('}').and_then(|(name, after)| Some((value(name)?, after))) {
            Some((value, after)) => {
                text.push_str(&value);
                rest = after;
            }
            None => {
                text.push('{');
                rest = after;
            }
        }
    }
    text + rest
}

/// Reason why a question has no verdict.
#[derive(Clone, Copy, PartialEq)]
enum MissingVerdict {
    Unanswered,
    Unreadable,
}

/// Scores a batch: sends each question once, and counts completions that can't be scored.
pub fn score_batch(judge: &Judge, samples: &[Sample<'_>]) -> Result<(Vec<Option<f32>>, Vec<Metric>), Error> {
    let orders: &[bool] = if judge.settings.scoring == JudgeScoring::Pairwise { &[false, true] } else { &[false] };
    let (mut questions, mut numbers) = (Vec::new(), HashMap::new());
    // For each sample the indices of its questions; `None` without a reference.
    let mut asked: Vec<Option<Vec<usize>>> = Vec::with_capacity(samples.len());
    for sample in samples {
        let texts = orders.iter().map(|swapped| judge.question(sample, *swapped)).collect::<Result<Option<Vec<_>>, _>>()?;
        asked.push(texts.map(|texts| {
            let number = |text: String| {
                *numbers.entry(text).or_insert_with_key(|text| {
                    questions.push(judge.request(text));
                    questions.len() - 1
                })
            };
            texts.into_iter().map(number).collect()
        }));
    }
    let answers = if questions.is_empty() { Vec::new() } else { fetch(&questions) };
    let verdicts: Vec<Result<f64, MissingVerdict>> = answers
        .iter()
        .map(|answer| match answer {
            Ok(answer) if answer.is_success() => judge.verdict(answer).ok_or(MissingVerdict::Unreadable),
            _ => Err(MissingVerdict::Unanswered),
        })
        .collect();
    if !verdicts.is_empty() && verdicts.iter().all(|verdict| *verdict == Err(MissingVerdict::Unanswered)) {
        let reason = answers.first().map(reason).unwrap_or_default();
        return Err(Error::Internal(format!("none of {} requests was answered; the first: {reason}", answers.len())));
    }
    if !verdicts.is_empty() && verdicts.iter().all(Result::is_err) {
        let unreadable = judge.describe_unreadable(&answers);
        if verdicts.len() >= TELLING {
            return Err(Error::Internal(unreadable));
        }
        rlhost_plugin_sdk::warn(&unreadable);
    }
    let (mut unanswered, mut unreadable) = (0, 0);
    let mut scores = Vec::with_capacity(samples.len());
    for numbers in asked {
        let Some(numbers) = numbers else {
            scores.push(None);
            continue;
        };
        let own: Result<Vec<f64>, MissingVerdict> = numbers.iter().map(|number| verdicts[*number]).collect();
        scores.push(match own.as_deref() {
            // In the second question, the reference came first.
            Ok([score, swapped]) => Some(judge.scaled((score + 1.0 - swapped) / 2.0)),
            Ok(own) => own.first().map(|score| judge.scaled(*score)),
            Err(lack) => {
                *(if *lack == MissingVerdict::Unanswered { &mut unanswered } else { &mut unreadable }) += 1;
                None
            }
        });
    }
    let counts = [("requests", questions.len()), ("unanswered", unanswered), ("unreadable", unreadable)];
    Ok((scores, counts.map(|(name, count)| Metric::sum(format!("judge_reward/{name}"), count as f64)).into()))
}

/// Returns why a request has no answer.
fn reason(answer: &Result<Response, String>) -> String {
    match answer {
        Ok(answer) => format!("status {}: {}", answer.status, response_excerpt(answer)),
        Err(reason) => reason.clone(),
    }
}

/// Returns the beginning of a server's response on one line: the judge's text, an error's message, or all of it.
fn response_excerpt(answer: &Response) -> String {
    let body: Value = answer.parsed().unwrap_or_default();
    let places = ["/choices/0/message/content", "/error/message", "/error", "/message", "/detail"];
    let text = places.iter().find_map(|place| body.pointer(place)?.as_str()).map_or_else(|| answer.text(), str::to_owned);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(QUOTED).collect()
}

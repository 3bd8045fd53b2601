//! `/classify` and `/score`: scores of texts by a reward model, in the form that vLLM uses for classification models with one label.

use super::app::App;
use super::error::{ApiError, Result};
use super::fields::{Fields, ids};
use super::messages::conversation;
use super::reply::Reply;
use super::sampling::random;
use super::unix_time;
use crate::scorer::{RewardModelScorer, ScoringError};
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of texts per request.
const MOST_TEXTS: usize = 4096;

/// Format of a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScoreResponseForm {
    Classify,
    Score,
}

/// Parsed request for scores.
pub(super) struct ScoreRequest {
    form: ScoreResponseForm,
    model: String,
    texts: Vec<Vec<u32>>,
    /// Whether scores pass through the logistic function, as class probabilities do.
    activates: bool,
}

/// Removes the fields that both routes share.
fn begin<'a>(app: &'a App, fields: &mut Fields) -> Result<(&'a RewardModelScorer, String, bool)> {
    let scorer = app.scorer.as_ref();
    let scorer = scorer.ok_or_else(|| ApiError::invalid("the model generates text; only a reward model can score"))?;
    let model = app.model_of(fields)?;
    let activates = fields.flag_or("use_activation", true)?;
    fields.only("truncate_prompt_tokens", &[])?;
    fields.only("priority", &[json!(0)])?;
    fields.ignore(&["user", "request_id"]);
    Ok((scorer, model, activates))
}

impl ScoreRequest {
    /// Parses a request for `/classify`: `input` is a text, token ids, or a list of either; or there are `messages`.
    pub(super) fn classify(app: &App, mut fields: Fields) -> Result<Self> {
        let (scorer, model, activates) = begin(app, &mut fields)?;
        let special = fields.get("add_special_tokens").is_none_or(|special| special == &Value::Bool(true));
        let texts = match fields.take("input") {
            Some(input) => {
                fields.ignore(&["add_special_tokens"]);
                inputs(input)?.iter().map(|input| encoded(app, input, special)).collect::<Result<_>>()?
            }
            None if fields.get("messages").is_some() => {
                fields.set_default("add_generation_prompt", false.into());
                vec![conversation(app, &mut fields)?.tokens]
            }
            None => return Err(ApiError::field("input", "is missing")),
        };
        fields.finish()?;
        check(scorer, &texts, "input")?;
        Ok(Self { form: ScoreResponseForm::Classify, model, texts, activates })
    }

    /// Parses a request for `/score`: each text is one of `text_1` followed by one of `text_2`; a single text is paired with every text of
    /// the other field.
    pub(super) fn score(app: &App, mut fields: Fields) -> Result<Self> {
        let (scorer, model, activates) = begin(app, &mut fields)?;
        let mut side = |names: [&str; 2]| {
            let name = if fields.get(names[0]).is_some() { names[0] } else { names[1] };
            let texts = fields.texts(name)?;
            if texts.is_empty() { Err(ApiError::field(names[0], "is missing")) } else { Ok(texts) }
        };
        let (first, second) = (side(["text_1", "queries"])?, side(["text_2", "documents"])?);
        fields.finish()?;
        if first.len() != second.len() && first.len() != 1 {
            return Err(ApiError::field("text_1", "must be one text, or as many as text_2"));
        }
        if second.len() > MOST_TEXTS {
            return Err(ApiError::field("text_2", format!("must be at most {MOST_TEXTS} texts")));
        }
        let paired = second.iter().zip(first.iter().cycle());
        let join = |(second, first): (&String, &String)| {
            let mut tokens = app.tokenizer.encode(first, true)?;
            tokens.extend(app.tokenizer.encode(second, false)?);
            Ok(tokens)
        };
        let texts: Vec<Vec<u32>> = paired.map(join).collect::<Result<_>>()?;
        check(scorer, &texts, "text_2")?;
        Ok(Self { form: ScoreResponseForm::Score, model, texts, activates })
    }

    /// Scores the texts and returns the response.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Reply> {
        let Self { form, model, texts, activates } = self;
        let tokens: usize = texts.iter().map(Vec::len).sum();
        let scorer = app.scorer.as_ref().ok_or_else(|| ApiError::new(500, "there is no reward model"))?;
        let values = scorer.values(texts).await.map_err(|unscored| match unscored {
            ScoringError::Full => ApiError::new(429, "too many requests are waiting; try again later"),
            ScoringError::Failed(detail) => ApiError::new(500, detail),
        })?;
        let entry = |(index, value): (usize, f32)| {
            let value = if activates { 1.0 / (1.0 + (-f64::from(value)).exp()) } else { f64::from(value) };
            match form {
                ScoreResponseForm::Classify => json!({"index": index, "label": "LABEL_0", "probs": [value], "num_classes": 1}),
                ScoreResponseForm::Score => json!({"index": index, "object": "score", "score": value}),
            }
        };
        let prefix = if form == ScoreResponseForm::Classify { "classify" } else { "score" };
        let data: Vec<Value> = values.into_iter().enumerate().map(entry).collect();
        Ok(Reply::json(json!({
            "id": format!("{prefix}-{:016x}", random()), "object": "list", "created": unix_time(), "model": model, "data": data,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": null},
        })))
    }
}

/// Returns the inputs of a request as a list.
fn inputs(input: Value) -> Result<Vec<Value>> {
    let all = match input {
        Value::Array(all) if !all.first().is_some_and(Value::is_number) => all,
        one => vec![one],
    };
    if all.is_empty() || all.len() > MOST_TEXTS {
        return Err(ApiError::field("input", format!("must be 1 to {MOST_TEXTS} texts")));
    }
    Ok(all)
}

fn encoded(app: &App, input: &Value, special: bool) -> Result<Vec<u32>> {
    match input.as_str() {
        Some(text) => Ok(app.tokenizer.encode(text, special)?),
        None => ids(input).ok_or_else(|| ApiError::field("input", "must be a string, a list of token ids, or a list of either")),
    }
}

/// Rejects texts that the model can't score.
fn check(scorer: &RewardModelScorer, texts: &[Vec<u32>], field: &str) -> Result<()> {
    let most = scorer.max_model_len;
    for tokens in texts {
        if tokens.is_empty() {
            return Err(ApiError::field(field, "a text has no tokens"));
        }
        if tokens.len() > most {
            return Err(ApiError::field(field, format!("a text has {} tokens, and the maximum is {most}", tokens.len())));
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= scorer.vocabulary()) {
            return Err(ApiError::field(
                field,
                format!("token {token} is unknown; the model has {} tokens", scorer.vocabulary()),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;

//! Sampling fields, which all routes share.

use super::error::{ApiError, Result};
use super::fields::{Fields, ids};
use crate::data::{StopStrings, Tokenizer};
use crate::engine::{EngineRequest, LogprobSettings, RandomStream, StopPredicate};
use crate::ops::sampler::Sampler;
use crate::text::TextStreamRules;
use serde_json::{Value, json};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// Maximum number of completions per prompt.
const MOST_COMPLETIONS: i64 = 128;

/// Maximum number of stop texts, and of bytes in each.
const STOPS: (usize, usize) = (16, 1000);

/// Range of positive temperatures, and of penalties, that keeps logits finite.
const SENSIBLE: (f64, f64) = (0.0001, 10_000.0);

/// Fields without effect on the sampled tokens.
const NEUTRAL: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "spaces_between_special_tokens",
];

/// Sampling settings of a request.
#[derive(Clone, Debug)]
pub(super) struct SamplingFields {
    pub sampling: Sampler,
    /// Random numbers of the first completion.
    pub random: RandomStream,
    pub logit_bias: Arc<[(u32, f32)]>,
    pub max_tokens: Option<usize>,
    /// Number of completions per prompt.
    pub n: usize,
    pub stops: Vec<String>,
    pub stop_ids: Vec<u32>,
    /// Whether the model's end tokens are ignored.
    pub ignores_end: bool,
    pub includes_stop: bool,
    pub skips_special: bool,
    /// Divisor of the logits whose log-probabilities are reported; `None` to report those of the sampling distribution.
    pub logp_temperature: Option<f32>,
}

/// Returns a random number.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl SamplingFields {
    /// Removes and returns the sampling fields.
    ///
    /// # Errors
    /// If a field is out of range, or would change the answer in an unsupported way.
    pub(super) fn take(fields: &mut Fields) -> Result<Self> {
        let sampling = sampling(fields)?;
        let limits = [fields.count("max_tokens", 1 << 30)?, fields.count("max_completion_tokens", 1 << 30)?];
        if let [Some(a), Some(b)] = limits
            && a != b
        {
            return Err(ApiError::field("max_tokens", "differs from max_completion_tokens; set one of them"));
        }
        let n = fields.integer("n", 1..=MOST_COMPLETIONS)?.unwrap_or(1);
        fields.only("best_of", &[json!(n)])?;
        let taken = Self {
            sampling,
            random: random_stream(fields)?,
            logit_bias: logit_bias(fields)?,
            max_tokens: limits[1].or(limits[0]),
            n: n as usize,
            stops: stops(fields)?,
            stop_ids: fields.ids("stop_token_ids")?.unwrap_or_default(),
            ignores_end: fields.flag("ignore_eos")?,
            includes_stop: fields.flag("include_stop_str_in_output")?,
            skips_special: fields.flag_or("skip_special_tokens", true)?,
            logp_temperature: fields.number("logp_temperature", SENSIBLE.0..=SENSIBLE.1)?.map(|temperature| temperature as f32),
        };
        for name in ["frequency_penalty", "presence_penalty", "min_tokens", "length_penalty_alpha"] {
            fields.only(name, &[json!(0)])?;
        }
        for name in ["use_beam_search", "early_stopping"] {
            fields.only(name, &[json!(false)])?;
        }
        fields.only("length_penalty", &[json!(1)])?;
        fields.only("priority", &[json!(0)])?;
        fields.only("detokenize", &[json!(true)])?;
        fields.only("bad_words", &[json!([])])?;
        fields.only("response_format", &[json!({"type": "text"})])?;
        fields.ignore(&NEUTRAL);
        Ok(taken)
    }

    /// Returns the engine's request for the first of the `n` completions of a prompt.
    pub(super) fn request(&self, tokens: Arc<[u32]>, ends: &[u32], tokenizer: &Tokenizer, max_tokens: usize) -> EngineRequest {
        let mut all = if self.ignores_end { Vec::new() } else { ends.to_vec() };
        all.extend(&self.stop_ids);
        EngineRequest {
            tokens,
            sampling: self.sampling,
            logit_bias: Arc::clone(&self.logit_bias),
            max_tokens,
            random: self.random,
            ends: all.into(),
            stop: self.stop(tokenizer),
            scoring: LogprobSettings { logp_temperature: self.logp_temperature, ..LogprobSettings::default() },
            salt: 0,
            adapter: None,
        }
    }

    fn stop(&self, tokenizer: &Tokenizer) -> Option<StopPredicate> {
        let (strings, tokenizer) = (StopStrings::new(self.stops.clone()), tokenizer.clone());
        (!self.stops.is_empty()).then(|| Arc::new(move |tokens: &[u32]| strings.end(tokens, &tokenizer)) as StopPredicate)
    }

    /// Returns the rules by which the tokens of a request become text.
    pub(super) fn rules(&self, request: &EngineRequest) -> TextStreamRules {
        let (stops, includes_stop) = (self.stops.clone(), self.includes_stop);
        TextStreamRules { stops, includes_stop, special: !self.skips_special, silent: request.ends.to_vec() }
    }
}

/// Removes and returns the choice of random numbers: a seed, or the numbers that a run's own decoder uses for a completion.
fn random_stream(fields: &mut Fields) -> Result<RandomStream> {
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    let Some(given) = fields.take("random_stream") else {
        return Ok(RandomStream::from_seed(seed.map_or_else(random, |seed| seed as u64)));
    };
    if seed.is_some() {
        return Err(ApiError::field("random_stream", "contains the seed; leave seed out"));
    }
    let numbers: Option<Vec<u64>> = given.as_array().and_then(|all| all.iter().map(Value::as_u64).collect());
    match numbers.as_deref() {
        Some(&[seed, generation, row, sample]) => Ok(RandomStream { seed, generation, row, sample }),
        _ => Err(ApiError::field("random_stream", "must be four numbers: seed, generation, row and sample")),
    }
}

fn sampling(fields: &mut Fields) -> Result<Sampler> {
    let default = Sampler::default();
    let temperature = fields.number("temperature", 0.0..=SENSIBLE.1)?.unwrap_or(1.0);
    if temperature > 0.0 && temperature < SENSIBLE.0 {
        return Err(ApiError::field("temperature", format!("must be 0, for greedy decoding, or at least {}", SENSIBLE.0)));
    }
    let top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0);
    if top_p <= 0.0 {
        return Err(ApiError::field("top_p", "must be above 0"));
    }
    // vLLM writes -1 for all tokens.
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(0).max(0);
    let penalty = fields.number("repetition_penalty", SENSIBLE.0..=SENSIBLE.1)?;
    Ok(Sampler {
        temperature: temperature as f32,
        top_p: top_p as f32,
        top_k: top_k as usize,
        min_p: fields.number("min_p", 0.0..=1.0)?.map_or(default.min_p, |min_p| min_p as f32),
        repetition_penalty: penalty.map_or(default.repetition_penalty, |penalty| penalty as f32),
    })
}

/// Removes and returns the values to add to logits, by token id.
fn logit_bias(fields: &mut Fields) -> Result<Arc<[(u32, f32)]>> {
    let wrong = || ApiError::field("logit_bias", "must map token ids to numbers from -100 to 100");
    let all = fields.object("logit_bias")?.unwrap_or_default();
    let entry = |(id, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((id.parse::<u32>().ok()?, bias as f32))
    };
    all.iter().map(|pair| entry(pair).ok_or_else(wrong)).collect()
}

fn stops(fields: &mut Fields) -> Result<Vec<String>> {
    let stops = fields.texts("stop")?;
    let (most, longest) = STOPS;
    if stops.len() > most || stops.iter().any(|stop| stop.is_empty() || stop.len() > longest) {
        return Err(ApiError::field("stop", format!("must be at most {most} strings of 1 to {longest} bytes")));
    }
    Ok(stops)
}

/// Removes and returns the prompts: a text, token ids, or a list of either.
pub(super) fn prompts(fields: &mut Fields) -> Result<Vec<CompletionPrompt>> {
    let wrong = || ApiError::field("prompt", "must be a string, a list of token ids, or a list of either");
    let one = |value: &Value| match value {
        Value::String(text) => Some(CompletionPrompt::Text(text.clone())),
        list => ids(list).map(CompletionPrompt::Tokens),
    };
    let value = fields.take("prompt").ok_or_else(|| ApiError::field("prompt", "is missing"))?;
    match &value {
        Value::Array(all) if !all.is_empty() && !all[0].is_number() => all.iter().map(|p| one(p).ok_or_else(wrong)).collect(),
        _ => one(&value).map(|prompt| vec![prompt]).ok_or_else(wrong),
    }
}

/// Prompt of a completion.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CompletionPrompt {
    Text(String),
    Tokens(Vec<u32>),
}

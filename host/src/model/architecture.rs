//! `config.json` of Hugging Face's Llama, Qwen2 and Qwen3 models.

use super::rope_scaling::{RopeFields, RopeScaling};
use super::{Error, Result};
use crate::config::printable;
use crate::ops::attention::Heads;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// What of a wrong value is shown, in bytes.
const SHOWN: usize = 100;

/// The families of decoders that differ in which biases and norms they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// `LlamaForCausalLM`
    Llama,
    /// `Qwen2ForCausalLM`: biases on the query, key and value projections.
    Qwen2,
    /// `Qwen3ForCausalLM`: norms on each query and key head.
    Qwen3,
}

/// The sizes and switches of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Which family.
    pub family: Family,
    /// Hidden size, `D`.
    pub hidden_size: usize,
    /// Width of the gated unit.
    pub intermediate_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Vocabulary, `V`.
    pub vocab_size: usize,
    /// Longest text, in tokens.
    pub max_positions: usize,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f64,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias on the attention output.
    pub output_bias: bool,
    /// Biases in the gated unit.
    pub mlp_bias: bool,
    /// Norms on query and key heads.
    pub qk_norm: bool,
    /// Rotary embedding's base.
    pub rope_theta: f64,
    /// Rotary embedding's scaling.
    pub rope_scaling: RopeScaling,
    /// Ids that end a text, from generation_config.json or else config.json.
    pub eos_token_ids: Vec<u32>,
}

/// Ids that end a text: one, or a list of them.
fn ending_ids(given: Option<Value>) -> std::result::Result<Vec<u32>, String> {
    let Some(given) = given else { return Ok(Vec::new()) };
    let all = match &given {
        Value::Array(all) => all.iter().collect(),
        one => vec![one],
    };
    let ids = all.into_iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
    ids.collect::<Option<_>>().ok_or_else(|| {
        format!("eos_token_id is {}; it must be the number of a token, or a list of such", printable(&given.to_string(), SHOWN))
    })
}

#[derive(Deserialize)]
struct Fields {
    model_type: Option<String>,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    eos_token_id: Option<Value>,
    #[serde(flatten)]
    rope: RopeFields,
}

#[derive(Deserialize)]
struct GenerationFields {
    eos_token_id: Option<Value>,
}

impl Architecture {
    /// Reads `config.json` and, for the ids that end a text, `generation_config.json`.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = super::load::read_text(&path)?;
        let mut this = Self::parse(&text).map_err(|detail| Error::Config { path, detail })?;
        let generation = folder.join("generation_config.json");
        if generation.exists() {
            let text = super::load::read_text(&generation)?;
            let fields: GenerationFields =
                serde_json::from_str(&text).map_err(|e| Error::Config { path: generation.clone(), detail: e.to_string() })?;
            if fields.eos_token_id.is_some() {
                let ids = ending_ids(fields.eos_token_id);
                this.eos_token_ids = ids.map_err(|detail| Error::Config { path: generation, detail })?;
            }
        }
        Ok(this)
    }

    /// From the text of a `config.json`; the error says what is wrong.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let f: Fields = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let family = match f.model_type.as_deref() {
            Some("llama") => Family::Llama,
            Some("qwen2") => Family::Qwen2,
            Some("qwen3") => Family::Qwen3,
            Some(other) => return Err(format!("model_type {other:?} is not supported; llama, qwen2 and qwen3 are")),
            None => return Err("model_type is missing; llama, qwen2 and qwen3 are supported".into()),
        };
        if let Some(act) = f.hidden_act.as_deref().filter(|a| *a != "silu") {
            return Err(format!("hidden_act {act:?} is not supported; silu is"));
        }
        if f.use_sliding_window == Some(true) {
            return Err("use_sliding_window is not supported".into());
        }
        let (heads, kv_heads) = (f.num_attention_heads, f.num_key_value_heads.unwrap_or(f.num_attention_heads));
        if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!("num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}"));
        }
        let head_dim = f.head_dim.unwrap_or(f.hidden_size / heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(format!("head_dim {head_dim} must be even and not zero"));
        }
        let sizes = [f.hidden_size, f.intermediate_size, f.num_hidden_layers, f.vocab_size];
        if sizes.contains(&0) {
            return Err("hidden_size, intermediate_size, num_hidden_layers and vocab_size must be greater than zero".into());
        }
        let default_positions = if family == Family::Llama { 2048 } else { 32_768 };
        let (rope_theta, rope_scaling) = f.rope.resolve()?;
        let attention_bias = f.attention_bias.unwrap_or(false);
        Ok(Self {
            family,
            hidden_size: f.hidden_size,
            intermediate_size: f.intermediate_size,
            layers: f.num_hidden_layers,
            heads: Heads { heads, kv_heads, head_dim },
            vocab_size: f.vocab_size,
            max_positions: f.max_position_embeddings.unwrap_or(default_positions),
            rms_norm_eps: f.rms_norm_eps.unwrap_or(1e-6),
            tied: f.tie_word_embeddings.unwrap_or(false),
            qkv_bias: attention_bias || family == Family::Qwen2,
            output_bias: attention_bias && family != Family::Qwen2,
            mlp_bias: family == Family::Llama && f.mlp_bias.unwrap_or(false),
            qk_norm: family == Family::Qwen3,
            rope_theta,
            rope_scaling,
            eos_token_ids: ending_ids(f.eos_token_id)?,
        })
    }

    /// Width of the packed query heads.
    pub fn query_width(&self) -> usize {
        self.heads.heads * self.heads.head_dim
    }

    /// Width of the packed key or value heads.
    pub fn kv_width(&self) -> usize {
        self.heads.kv_heads * self.heads.head_dim
    }
}

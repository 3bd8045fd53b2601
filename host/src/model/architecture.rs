//! `config.json` of Hugging Face's models, of the families below.

use super::json::Object;
use super::rope_scaling::{RopeScaling, resolve};
use super::{Error, Result};
use crate::config::printable;
use crate::ops::attention::{Attention, Heads};
use std::path::Path;

/// Largest `hidden_size` accepted. No known model reaches a tenth of this limit or of the following ones.
const MOST_HIDDEN: usize = 1 << 20;

/// Greatest `intermediate_size`.
const MOST_INTERMEDIATE: usize = 1 << 22;

/// Greatest `num_hidden_layers`.
const MOST_LAYERS: usize = 10_000;

/// Greatest `num_attention_heads` and `num_key_value_heads`.
const MOST_HEADS: usize = 1 << 16;

/// Greatest `head_dim`.
const MOST_HEAD_DIM: usize = 1 << 16;

/// Greatest `vocab_size`.
const MOST_TOKENS: usize = 1 << 24;

/// Largest `max_position_embeddings`: angles are computed from positions in f32, which does not represent every larger integer.
const MOST_POSITIONS: usize = 1 << 24;

/// Largest number of values in all parameters together; they would take 4 TB.
const MOST_PARAMETERS: u128 = 1_000_000_000_000;

/// The families of decoders that differ in which biases and norms they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `LlamaForCausalLM`
    Llama,
    /// `MistralForCausalLM`: sliding windows.
    Mistral,
    /// `Qwen2ForCausalLM`: biases on the query, key and value projections.
    Qwen2,
    /// `Qwen3ForCausalLM`: norms on each query and key head.
    Qwen3,
    /// `SmolLM3ForCausalLM`: layers without a rotary embedding.
    SmolLm3,
}

/// `model_type` of each family.
const FAMILIES: [(&str, Family); 5] = [
    ("llama", Family::Llama),
    ("mistral", Family::Mistral),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("smollm3", Family::SmolLm3),
];

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
    /// Sliding window of each layer, in positions; none if it attends to all.
    pub windows: Vec<Option<usize>>,
    /// Whether each layer has a rotary embedding.
    pub rotates: Vec<bool>,
    /// Rotary embedding's base.
    pub rope_theta: f64,
    /// Rotary embedding's scaling.
    pub rope_scaling: RopeScaling,
    /// Ids that end a text, from generation_config.json or else config.json.
    pub eos_token_ids: Vec<u32>,
}

impl Architecture {
    /// Reads `config.json` and, for the ids that end a text, `generation_config.json`.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let config = Object::read(&path)?.ok_or_else(|| Error::Missing { path: path.clone() })?;
        let mut this = Self::of(&config).map_err(|detail| Error::Config { path, detail })?;
        let path = folder.join("generation_config.json");
        if let Some(generation) = Object::read(&path)? {
            let ids = generation.tokens("eos_token_id").map_err(|detail| Error::Config { path, detail })?;
            this.eos_token_ids = ids.unwrap_or(this.eos_token_ids);
        }
        Ok(this)
    }

    /// Parses the text of a `config.json`; the error says what is wrong.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        Self::of(&Object::parse(text)?)
    }

    fn of(config: &Object) -> std::result::Result<Self, String> {
        let family = family(config.text("model_type")?)?;
        if let Some(act) = config.text("hidden_act")?.filter(|act| *act != "silu") {
            return Err(format!("hidden_act {:?} is not supported; only silu is", printable(act, 80)));
        }
        let hidden_size = config.needed_size("hidden_size", MOST_HIDDEN)?;
        let heads = heads(config, hidden_size)?;
        let default_positions = match family {
            Family::Llama => 2048,
            Family::Mistral => 131_072,
            Family::Qwen2 | Family::Qwen3 | Family::SmolLm3 => 32_768,
        };
        let default_theta = if family == Family::SmolLm3 { 2e6 } else { 1e4 };
        let layers = config.needed_size("num_hidden_layers", MOST_LAYERS)?;
        let max_positions = config.size("max_position_embeddings", MOST_POSITIONS)?.unwrap_or(default_positions);
        let (rope_theta, rope_scaling) = resolve(config, heads.head_dim, default_theta)?;
        let rms_norm_eps = config.number("rms_norm_eps")?.unwrap_or(1e-6);
        if !(0.0..=1.0).contains(&rms_norm_eps) {
            return Err(format!("rms_norm_eps {rms_norm_eps} must be between 0 and 1"));
        }
        let rotates = rotates(config, family, layers)?;
        let windows = windows(config, family, &rotates)?;
        let attention_bias = config.flag("attention_bias")?.unwrap_or(false);
        let this = Self {
            family,
            hidden_size,
            intermediate_size: config.needed_size("intermediate_size", MOST_INTERMEDIATE)?,
            layers,
            heads,
            vocab_size: config.needed_size("vocab_size", MOST_TOKENS)?,
            max_positions,
            rms_norm_eps,
            tied: config.flag("tie_word_embeddings")?.unwrap_or(family == Family::SmolLm3),
            qkv_bias: attention_bias || family == Family::Qwen2,
            output_bias: attention_bias && family != Family::Qwen2,
            mlp_bias: matches!(family, Family::Llama | Family::SmolLm3) && config.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: family == Family::Qwen3,
            windows: windows.into_iter().map(|size| size.filter(|size| *size < max_positions)).collect(),
            rotates,
            rope_theta,
            rope_scaling,
            eos_token_ids: config.tokens("eos_token_id")?.unwrap_or_default(),
        };
        let parameters = this.matrices();
        if parameters > MOST_PARAMETERS {
            return Err(format!(
                "hidden_size, intermediate_size, num_hidden_layers and vocab_size give {parameters} parameters; the maximum is \
                 {MOST_PARAMETERS}"
            ));
        }
        Ok(this)
    }

    /// Returns the attention settings of this layer.
    pub fn attention(&self, layer: usize) -> Attention {
        Attention { heads: self.heads, window: self.windows.get(layer).copied().flatten() }
    }

    /// Names what the model has that no device computes yet.
    pub(super) fn without_kernels(&self) -> Vec<&'static str> {
        let all = [
            (self.windows.iter().any(Option::is_some), "sliding windows"),
            (self.rotates.contains(&false), "layers without a rotary embedding"),
        ];
        all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
    }

    /// Counts the values of all matrices.
    fn matrices(&self) -> u128 {
        let (hidden, tokens) = (self.hidden_size as u128, self.vocab_size as u128);
        let attention = 2 * (self.query_width() + self.kv_width()) as u128;
        let layer = hidden * (attention + 3 * self.intermediate_size as u128);
        hidden * tokens * if self.tied { 1 } else { 2 } + layer * self.layers as u128
    }

    /// Returns the width of the packed query heads.
    pub fn query_width(&self) -> usize {
        self.heads.heads * self.heads.head_dim
    }

    /// Returns the width of the packed key or value heads.
    pub fn kv_width(&self) -> usize {
        self.heads.kv_heads * self.heads.head_dim
    }
}

fn family(model_type: Option<&str>) -> std::result::Result<Family, String> {
    let known = FAMILIES.map(|(name, _)| name).join(", ");
    let Some(given) = model_type else { return Err(format!("model_type is missing; {known} are supported")) };
    let found = FAMILIES.iter().find(|(name, _)| *name == given);
    found.map(|(_, family)| *family).ok_or_else(|| {
        let given = printable(given, 80);
        format!("model_type {given:?} is not supported; {known} are")
    })
}

/// Returns each layer's sliding window, according to the family's rules.
fn windows(config: &Object, family: Family, rotates: &[bool]) -> std::result::Result<Vec<Option<usize>>, String> {
    const SLIDING: &str = "sliding_attention";
    let layers = rotates.len();
    let size = config.size("sliding_window", MOST_POSITIONS)?;
    let (size, first) = match family {
        Family::Llama => (None, 0),
        Family::Mistral => (size, 0),
        Family::Qwen2 | Family::Qwen3 | Family::SmolLm3 if config.flag("use_sliding_window")? != Some(true) => (None, 0),
        Family::SmolLm3 => (size, 0),
        // As transformers has them where they are left out.
        Family::Qwen2 | Family::Qwen3 => {
            (Some(size.unwrap_or(4096)), config.count("max_window_layers", MOST_LAYERS)?.unwrap_or(28))
        }
    };
    let types = config.words("layer_types", &["full_attention", SLIDING], layers)?;
    // SmolLM3's windows are those of its layers without a rotary embedding.
    let by_default = |layer: usize| layer >= first && !(family == Family::SmolLm3 && rotates[layer]);
    let slides = |layer: usize| types.as_ref().map_or_else(|| by_default(layer), |types| types[layer] == SLIDING);
    if let (None, Some(types)) = (size, &types)
        && types.contains(&SLIDING)
    {
        return Err(format!("layer_types has {SLIDING:?}, but there is no sliding_window"));
    }
    Ok((0..layers).map(|layer| size.filter(|_| slides(layer))).collect())
}

/// Returns whether each layer has a rotary embedding, according to the family's rules.
fn rotates(config: &Object, family: Family, layers: usize) -> std::result::Result<Vec<bool>, String> {
    if family != Family::SmolLm3 {
        return Ok(vec![true; layers]);
    }
    let interval = config.size("no_rope_layer_interval", MOST_LAYERS)?.unwrap_or(4);
    let given = config.bits("no_rope_layers", layers)?;
    Ok(given.unwrap_or_else(|| (1..=layers).map(|layer| layer % interval != 0).collect()))
}

fn heads(config: &Object, hidden_size: usize) -> std::result::Result<Heads, String> {
    let heads = config.needed_size("num_attention_heads", MOST_HEADS)?;
    let kv_heads = config.size("num_key_value_heads", MOST_HEADS)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(format!("num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}"));
    }
    let head_dim = config.size("head_dim", MOST_HEAD_DIM)?.unwrap_or(hidden_size / heads);
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(format!("head_dim {head_dim} must be even and not zero; it defaults to hidden_size / num_attention_heads"));
    }
    Ok(Heads { heads, kv_heads, head_dim })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn each_layer_has_the_window_that_its_family_says() {
        let windows = |more: Value| {
            let mut config = json!({
                "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 257,
                "max_position_embeddings": 128, "sliding_window": 16,
            });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Architecture::parse(&config.to_string()).unwrap().windows
        };
        assert_eq!(windows(json!({ "model_type": "llama" })), [None; 3]);
        assert_eq!(windows(json!({ "model_type": "mistral" })), [Some(16); 3]);
        assert_eq!(windows(json!({ "model_type": "mistral", "sliding_window": null })), [None; 3]);
        // Of texts that are no longer than it, it hides nothing.
        assert_eq!(windows(json!({ "model_type": "mistral", "sliding_window": 128 })), [None; 3]);
        assert_eq!(windows(json!({ "model_type": "qwen2", "max_window_layers": 1 })), [None; 3]);
        let sliding = json!({ "model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 1 });
        assert_eq!(windows(sliding), [None, Some(16), Some(16)]);
        let types = ["sliding_attention", "full_attention", "sliding_attention"];
        assert_eq!(windows(json!({ "model_type": "mistral", "layer_types": types })), [Some(16), None, Some(16)]);
        let smollm3 = json!({ "model_type": "smollm3", "use_sliding_window": true, "no_rope_layer_interval": 2 });
        assert_eq!(windows(smollm3), [None, Some(16), None]);
    }

    #[test]
    fn each_layer_is_rotated_unless_its_family_says_otherwise() {
        let rotates = |more: Value| {
            let mut config = json!({
                "model_type": "smollm3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 5,
                "num_attention_heads": 4, "vocab_size": 257,
            });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Architecture::parse(&config.to_string()).map(|a| a.rotates)
        };
        assert_eq!(rotates(json!({})).unwrap(), [true, true, true, false, true]);
        assert_eq!(rotates(json!({ "no_rope_layer_interval": 2 })).unwrap(), [true, false, true, false, true]);
        let given = json!({ "no_rope_layers": [0, 1, 1, 1, 0], "no_rope_layer_interval": 2 });
        assert_eq!(rotates(given).unwrap(), [false, true, true, true, false]);
        assert_eq!(rotates(json!({ "model_type": "llama", "no_rope_layer_interval": 2 })).unwrap(), [true; 5]);
        for (key, value) in [
            ("no_rope_layers", json!([0, 1])),
            ("no_rope_layers", json!([0, 1, 1, 1, 2])),
            ("no_rope_layers", json!("all")),
            ("no_rope_layer_interval", json!(0)),
            // Only some readers would obey it without use_sliding_window.
            ("layer_types", json!(vec!["sliding_attention"; 5])),
        ] {
            let error = rotates(json!({ key: value })).unwrap_err();
            assert!(error.contains(key), "{key}: {error}");
        }
    }

    #[test]
    fn what_is_absurd_or_of_the_wrong_type_is_refused_by_its_key() {
        let config = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 257, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        });
        Architecture::parse(&config.to_string()).unwrap();
        let sizes = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
        let sizes = sizes.into_iter().chain(["num_key_value_heads", "head_dim", "max_position_embeddings"]);
        let absurd =
            [json!(1_000_000_000u64), json!(1_000_000_000_000u64), json!(u64::MAX), json!(0), json!(-3), json!(1.5), json!("x")];
        let sizes = sizes.flat_map(|key| absurd.iter().map(move |value| (key, value.clone())));
        let others = [
            ("head_dim", json!(7)),
            ("num_key_value_heads", json!(3)),
            ("rms_norm_eps", json!(-1)),
            ("rms_norm_eps", json!("small")),
            ("tie_word_embeddings", json!("yes")),
            ("attention_bias", json!(1)),
            ("model_type", json!(7)),
            ("hidden_act", json!("gelu\u{1b}")),
            ("eos_token_id", json!(-1)),
            ("eos_token_id", json!([1, "x"])),
            ("sliding_window", json!(0)),
            ("layer_types", json!(["full_attention"])),
            ("layer_types", json!(["full_attention", "sliding_attention"])),
            ("layer_types", json!(["full_attention", "chunked_attention"])),
            ("rope_theta", json!(0)),
            ("rope_theta", json!(1e-300)),
            ("rope_theta", json!([1])),
            ("rope_scaling", json!("linear")),
            ("rope_scaling", json!({ "type": "linear", "factor": 1e-300 })),
            ("rope_scaling", json!({ "type": "linear", "factor": -2 })),
            ("rope_scaling", json!({ "type": "linear", "factor": "2" })),
            ("rope_scaling", json!({ "type": 3 })),
        ];
        for (key, value) in sizes.chain(others) {
            let mut config = config.clone();
            config[key] = value.clone();
            let error = Architecture::parse(&config.to_string()).unwrap_err();
            assert!(error.contains(key) && !error.contains(['\n', '\u{1b}']), "{key} = {value}: {error}");
        }
        let mut together = config.clone();
        for key in ["hidden_size", "num_hidden_layers", "vocab_size"] {
            together[key] = 10_000.into();
        }
        together["num_attention_heads"] = 100.into();
        together["num_key_value_heads"] = Value::Null;
        assert!(Architecture::parse(&together.to_string()).unwrap_err().contains("parameters"));
        let twice = config.to_string().replacen('{', "{\"vocab_size\": 300, ", 1);
        assert!(Architecture::parse(&twice).unwrap_err().contains("vocab_size"));
    }
}

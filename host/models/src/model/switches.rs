//! Switches of a decoder that depend on its family and its `config.json`: biases, factors, norms and the activation function.

use super::family::Family;
use super::json::ConfigObject;
use super::latent::LatentAttention;
use crate::config::{printable, shortest};
use crate::ops::activation::Activation;
use crate::ops::attention::Heads;

/// Multipliers of a decoder's values, and soft caps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecoderFactors {
    /// Multiplier of a token's embedding.
    pub embedding: f32,
    /// Multiplier of the outputs of a layer's attention and MLP.
    pub residual: f32,
    /// Multiplier of attention scores.
    pub scores: f32,
    /// Soft cap of attention scores.
    pub scores_cap: Option<f32>,
    /// Divisor of the logits.
    pub logits: f32,
    /// Soft cap of the logits.
    pub logits_cap: Option<f32>,
    /// Multiplier of the gates of an MLP before its activation function.
    pub gates: f32,
    /// Multiplier of an MLP's output.
    pub lowered: f32,
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Divides by the root mean square.
    Rms,
    /// Divides by the root mean square, with weights stored as offsets from one.
    RmsFromOne,
    /// Subtracts the mean, divides by the standard deviation, and adds a bias.
    Layer,
    /// Subtracts the mean and divides by the standard deviation.
    Centred,
}

/// Norms of a layer's query and key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorms {
    /// No norms.
    None,
    /// One norm for each head.
    Each,
    /// One norm for each head, after its rotation.
    Rotated,
    /// One norm for each head after its rotation, without a weight; only in layers with a rotary embedding.
    Unweighted,
    /// One norm for all heads together.
    All,
}

impl Family {
    /// Returns the key of the norms' epsilon.
    pub(super) fn norm_eps_key(self) -> &'static str {
        match self {
            Self::Cohere2 | Self::GptNeoX | Self::StableLm => "layer_norm_eps",
            Self::Lfm2 | Self::Lfm2Moe => "norm_eps",
            Self::Starcoder2 => "norm_epsilon",
            Self::Gpt2 | Self::NemotronH => "layer_norm_epsilon",
            _ => "rms_norm_eps",
        }
    }
}

impl DecoderFactors {
    /// Returns the factors of most families.
    fn none(heads: Heads) -> Self {
        let scores = (heads.head_dim as f32).sqrt().recip();
        Self { embedding: 1.0, residual: 1.0, scores, scores_cap: None, logits: 1.0, logits_cap: None, gates: 1.0, lowered: 1.0 }
    }
}

/// The linear maps that have biases.
pub(super) struct LinearBiases {
    pub qkv: bool,
    pub output: bool,
    pub mlp: bool,
}

/// Reads which linear maps have biases.
pub(super) fn biases(config: &ConfigObject, family: Family) -> Result<LinearBiases, String> {
    let flag = |key: &str, default: bool| config.flag(key).map(|on| on.unwrap_or(default));
    let attention = match family {
        Family::Gpt2 => true,
        Family::GptNeoX => flag("attention_bias", true)?,
        Family::Exaone4 | Family::Ministral | Family::Ministral3 | Family::Mistral | Family::Mixtral => false,
        Family::NemotronH | Family::Phi3 | Family::Qwen2 | Family::Qwen2Moe | Family::StableLm => false,
        Family::Ernie45 => flag("use_bias", false)?,
        Family::Glm4 | Family::GptOss => flag("attention_bias", true)?,
        Family::Starcoder2 => flag("use_bias", true)?,
        _ => flag("attention_bias", false)?,
    };
    let qkv = match family {
        Family::Qwen2 => true,
        Family::Qwen2Moe => flag("qkv_bias", true)?,
        Family::StableLm => flag("use_qkv_bias", false)?,
        _ => attention,
    };
    let mlp = match family {
        Family::DeepseekV2 | Family::FalconH1 | Family::Granite | Family::Llama | Family::NemotronH | Family::SmolLm3 => {
            flag("mlp_bias", false)?
        }
        Family::Ernie45 | Family::Starcoder2 => attention,
        _ => matches!(family, Family::Gpt2 | Family::GptNeoX),
    };
    Ok(LinearBiases { qkv, output: attention && !matches!(family, Family::Glm4 | Family::Glm4Moe), mlp })
}

/// Reads a multiplier.
pub(super) fn factor(config: &ConfigObject, key: &str, default: f64) -> Result<f32, String> {
    match config.number(key)?.unwrap_or(default) {
        factor if (1e-6..=1e6).contains(&factor) => Ok(factor as f32),
        factor => Err(format!("{key} {} must be between 1e-6 and 1e6", shortest(factor))),
    }
}

/// Reads a list of factors; all are one if it is missing.
pub(super) fn list_of_factors<const N: usize>(config: &ConfigObject, key: &str) -> std::result::Result<[f32; N], String> {
    let Some(given) = config.numbers(key, N)? else { return Ok([1.0; N]) };
    let all: Vec<f32> = given.iter().filter(|factor| (1e-6..=1e6).contains(*factor)).map(|factor| *factor as f32).collect();
    all.try_into().map_err(|_| format!("{key} has a number that is not between 1e-6 and 1e6"))
}

/// Reads the multipliers and soft caps.
pub(super) fn factors(
    config: &ConfigObject,
    family: Family,
    hidden: usize,
    heads: Heads,
    latent: Option<&LatentAttention>,
) -> Result<DecoderFactors, String> {
    let of_heads = DecoderFactors::none(heads);
    let none = DecoderFactors { scores: latent.map_or(of_heads.scores, LatentAttention::scores), ..of_heads };
    let positive = |key: &str, default: f64| factor(config, key, default);
    // Null turns a cap off; a missing key means the default.
    let cap = |key: &str, default: f64| match config.has(key) {
        true => config.get(key).map(|_| positive(key, default)).transpose(),
        false if default > 0.0 => Ok(Some(default as f32)),
        false => Ok(None),
    };
    match family {
        Family::Cohere2 => Ok(DecoderFactors { logits: positive("logit_scale", 0.0625)?.recip(), ..none }),
        Family::FalconH1 => {
            let [gates, lowered] = list_of_factors(config, "mlp_multipliers")?;
            Ok(DecoderFactors {
                embedding: positive("embedding_multiplier", 1.0)?,
                // A factor of the keys is one of the scores.
                scores: none.scores * positive("key_multiplier", 1.0)?,
                logits: positive("lm_head_multiplier", 1.0)?.recip(),
                gates,
                lowered,
                ..none
            })
        }
        family if family.is_granite() => Ok(DecoderFactors {
            embedding: positive("embedding_multiplier", 1.0)?,
            residual: positive("residual_multiplier", 1.0)?,
            scores: positive("attention_multiplier", 1.0)?,
            logits: positive("logits_scaling", 1.0)?,
            ..none
        }),
        Family::Gemma2 | Family::Gemma3 => {
            let second = family == Family::Gemma2;
            Ok(DecoderFactors {
                embedding: (hidden as f64).sqrt() as f32,
                scores: positive("query_pre_attn_scalar", 256.0)?.sqrt().recip(),
                scores_cap: if second { cap("attn_logit_softcapping", 50.0)? } else { None },
                logits_cap: cap("final_logit_softcapping", if second { 30.0 } else { 0.0 })?,
                ..none
            })
        }
        family if family.is_gemma4() => Ok(DecoderFactors {
            embedding: (hidden as f64).sqrt() as f32,
            scores: 1.0,
            logits_cap: cap("final_logit_softcapping", 0.0)?,
            ..none
        }),
        // Scores have a scale of one instead of one that depends on the head size.
        Family::Gpt2 if config.flag("scale_attn_weights")? == Some(false) => Ok(DecoderFactors { scores: 1.0, ..none }),
        _ => Ok(none),
    }
}

/// Returns the kind of a family's norms.
pub(super) fn norm_kind(family: Family) -> NormKind {
    match family {
        Family::Cohere2 => NormKind::Centred,
        Family::Gemma2 | Family::Gemma3 => NormKind::RmsFromOne,
        family if family.has_delta_networks() => NormKind::RmsFromOne,
        Family::Gpt2 | Family::GptNeoX | Family::StableLm | Family::Starcoder2 => NormKind::Layer,
        _ => NormKind::Rms,
    }
}

/// Returns which norms a family has on its query and key heads.
pub(super) fn head_norms(config: &ConfigObject, family: Family) -> Result<HeadNorms, String> {
    Ok(match family {
        Family::Glm4Moe if config.flag("use_qk_norm")?.unwrap_or(false) => HeadNorms::Each,
        Family::Exaone4 | Family::Gemma3 | Family::Lfm2 | Family::Lfm2Moe => HeadNorms::Each,
        Family::Qwen3 | Family::Qwen3Moe => HeadNorms::Each,
        family if family.has_delta_networks() || family.is_gemma4() => HeadNorms::Each,
        Family::HunyuanV1Dense => HeadNorms::Rotated,
        Family::Llama4 if config.flag("use_qk_norm")?.unwrap_or(true) => HeadNorms::Unweighted,
        Family::Olmo2 | Family::Olmo3 | Family::Olmoe => HeadNorms::All,
        _ => HeadNorms::None,
    })
}

/// Reads the epsilon of the norms.
pub(super) fn norm_eps(config: &ConfigObject, family: Family) -> Result<f64, String> {
    let key = family.norm_eps_key();
    let eps = config.number(key)?.unwrap_or(family.description().norm_eps);
    if (0.0..=1.0).contains(&eps) { Ok(eps) } else { Err(format!("{key} {} must be between 0 and 1", shortest(eps))) }
}

/// Reads the activation function.
pub(super) fn activation_of(config: &ConfigObject, family: Family) -> Result<Activation, String> {
    let (key, default) = match family {
        Family::Gemma2 | Family::Gemma3 | Family::Gemma4 | Family::Gemma4Unified => ("hidden_activation", "gelu_pytorch_tanh"),
        Family::Gpt2 => ("activation_function", "gelu_new"),
        Family::GptNeoX => ("hidden_act", "gelu"),
        Family::NemotronH => ("mlp_hidden_act", "relu2"),
        Family::Starcoder2 => ("hidden_act", "gelu_pytorch_tanh"),
        _ => ("hidden_act", "silu"),
    };
    let name = config.text(key)?.unwrap_or(default);
    // Configurations of Gemma have both keys, and only the other one is used.
    if let Some(other) = config.text("hidden_act")?.filter(|_| key != "hidden_act")
        && config.get(key).is_none()
        && other != default
    {
        return Err(format!("hidden_act is {:?}, but a model of this type uses {key}", printable(other, 80)));
    }
    if family == Family::GptOss {
        return clamped(config, name);
    }
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu2" if family == Family::NemotronH => Ok(Activation::SquaredRelu),
        other => {
            Err(format!("{key} {:?} is not supported; silu, gelu, gelu_new and gelu_pytorch_tanh are", printable(other, 80)))
        }
    }
}

/// Reads the activation function of gpt-oss.
fn clamped(config: &ConfigObject, name: &str) -> Result<Activation, String> {
    if name != "silu" {
        return Err(format!("hidden_act {:?} is not supported; silu is, with swiglu_limit", printable(name, 80)));
    }
    Ok(Activation::Clamped { alpha: factor(config, "swiglu_alpha", 1.702)?, limit: factor(config, "swiglu_limit", 7.0)? })
}

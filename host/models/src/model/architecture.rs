//! Sizes and switches of a decoder, read from the `config.json` of Hugging Face models.

use super::bounds::{MOST_HIDDEN, MOST_INTERMEDIATE, MOST_LAYERS, MOST_POSITIONS};
use super::falcon_h1;
use super::families::FAMILIES;
use super::family::Family;
use super::ignored_keys;
use super::json::ConfigObject;
use super::latent::LatentAttention;
use super::layer_blocks::LayerBlock;
use super::layer_kinds::{LayerKinds, kinds};
use super::mamba;
use super::mixture::Mixture;
use super::names::ExpertNames;
use super::query_scale::QueryScale;
use super::recurrence::{Recurrence, adjusted_intermediate, rotates, tied};
use super::rope_scaling::{ModelRopes, Rope, RopeContext, resolve};
use super::switches::{
    DecoderFactors, HeadNorms, LinearBiases, NormKind, activation_of, biases, factors, head_norms, norm_eps, norm_kind,
};
use super::varied_layers::VariedLayers;
use super::{Error, Result, text_part};
use crate::config::printable;
use crate::ops::activation::Activation;
use crate::ops::attention::{AttentionConfig, Heads};
use crate::ops::logprob::LogitScale;
use crate::ops::rope::RopePairing;
use crate::ops::{Capability, Precision};
use serde_json::Value;
use std::path::Path;

/// Maximum `num_attention_heads` and `num_key_value_heads`.
const MOST_HEADS: usize = 1 << 16;

/// Maximum `head_dim`.
const MOST_HEAD_DIM: usize = 1 << 16;

/// Maximum `vocab_size`.
const MOST_TOKENS: usize = 1 << 24;

/// Maximum number of values in all parameters together; they would take 4 TB.
const MOST_PARAMETERS: u128 = 1_000_000_000_000;

/// Layout of a layer's projections with the same input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectionLayout {
    /// Separately.
    Apart,
    /// Joined, one after the other.
    Joined,
    /// Query, key and value joined per head.
    JoinedByHead,
}

/// The sizes and switches of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// The family.
    pub family: Family,
    /// Hidden size, `D`.
    pub hidden_size: usize,
    /// Width of the MLP that every token goes through.
    pub intermediate_size: usize,
    /// The experts, if there are any.
    pub mixture: Option<Mixture>,
    /// Number of layers.
    pub layers: usize,
    /// The only part of each layer; `None` if layers have attention or a recurrence, and an MLP or experts.
    pub blocks: Option<Vec<LayerBlock>>,
    /// Attention heads.
    pub heads: Heads,
    /// Vocabulary, `V`.
    pub vocab_size: usize,
    /// Maximum length of a text, in tokens.
    pub max_positions: usize,
    /// Kind of all norms.
    pub norm: NormKind,
    /// Added to the mean square in norms (epsilon).
    pub norm_eps: f64,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias on the attention output.
    pub output_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// Norms on query and key heads.
    pub head_norms: HeadNorms,
    /// Layout of the projections.
    pub projections: ProjectionLayout,
    /// Activation function between the wide products.
    pub activation: Activation,
    /// Whether the activation is gated: multiplied with a separate product.
    pub gated: bool,
    /// Whether attention and MLP both read the layer's input, instead of one after the other. They share a norm, unless the MLP has its
    /// own.
    pub parallel: bool,
    /// Sliding window of each layer, in positions; `None` if the layer attends to everything.
    pub windows: Vec<Option<usize>>,
    /// The recurrent layers, which carry a state instead of attending, if there are any.
    pub recurrence: Option<Recurrence>,
    /// Sizes of attention with compressed keys and values, if the model has that.
    pub latent: Option<LatentAttention>,
    /// What differs between layers besides their windows and rotary embeddings, if anything does.
    pub varied: Option<VariedLayers>,
    /// Whether the query projection also computes gates for the outputs of attention.
    pub output_gate: bool,
    /// RoPE of each layer, as an index into `ropes`; `None` for layers without RoPE.
    pub rotary: Vec<Option<usize>>,
    /// The model's RoPEs.
    pub ropes: Vec<Rope>,
    /// Whether attention scores are also divided by the layer's number, from one.
    pub scores_by_layer: bool,
    /// Dependence of attention scores on the position of the query, if any.
    pub query_scale: Option<QueryScale>,
    /// Multipliers and soft caps.
    pub factors: DecoderFactors,
    /// Token ids that end a text, from generation_config.json or else config.json.
    pub eos_token_ids: Vec<u32>,
    /// Whether the folder has a multimodal model; this is its text part.
    pub text_part: bool,
}

/// Returns the tokens that end a text. Fails if the vocabulary lacks one.
fn ends_of(config: &ConfigObject, vocab_size: usize) -> std::result::Result<Option<Vec<u32>>, String> {
    let ends = config.tokens("eos_token_id")?;
    match ends.iter().flatten().find(|id| **id as usize >= vocab_size) {
        Some(id) => Err(format!("eos_token_id is {id}, and the model has {vocab_size} tokens")),
        None => Ok(ends),
    }
}

impl Architecture {
    /// Reads `config.json` and, for the tokens that end a text, `generation_config.json`.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let config = ConfigObject::read(&path)?.ok_or_else(|| Error::Missing { path: path.clone() })?;
        let mut this = Self::from_config(&config).map_err(|detail| Error::Config { path: path.clone(), detail })?;
        if let Some((key, p)) = ignored_keys::dropout(config.all()) {
            tracing::warn!("{}: {key} is {p}, but dropout is never applied here", path.display());
        }
        let path = folder.join("generation_config.json");
        if let Some(generation) = ConfigObject::read(&path)? {
            let ids = ends_of(&generation, this.vocab_size).map_err(|detail| Error::Config { path, detail })?;
            this.eos_token_ids = ids.unwrap_or(this.eos_token_ids);
        }
        Ok(this)
    }

    /// Parses the text of a `config.json`. The error describes what is wrong.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        Self::from_config(&ConfigObject::parse(text)?)
    }

    /// Returns the `config.json` of the computed model: the text part's for a multimodal model.
    pub fn config(given: Value) -> std::result::Result<Value, String> {
        match given.as_object() {
            Some(whole) if text_part::is_multimodal(given["model_type"].as_str()) => {
                text_part::config(whole.iter().map(|(key, value)| (key.as_str(), value))).map(Value::Object)
            }
            _ => Ok(given),
        }
    }

    /// Parses the text of a `config.json`. The errors describe everything that is wrong: the first wrong value, or all keys that are not
    /// known.
    pub fn parse_all(text: &str) -> std::result::Result<Self, Vec<String>> {
        ConfigObject::parse(text).map_err(|e| vec![e]).and_then(|config| Self::diagnosed(&config))
    }

    fn from_config(config: &ConfigObject) -> std::result::Result<Self, String> {
        Self::diagnosed(config).map_err(|problems| problems.into_iter().next().unwrap_or_default())
    }

    fn diagnosed(config: &ConfigObject) -> std::result::Result<Self, Vec<String>> {
        let one = |e: String| vec![e];
        let model_type = config.text("model_type").map_err(one)?;
        if text_part::is_multimodal(model_type) {
            let part = text_part::config(config.all()).map_err(one)?;
            let inside = |e: String| format!("text_config: {e}");
            let text = Self::diagnosed(&part.into()).map_err(|all| all.into_iter().map(inside).collect::<Vec<_>>())?;
            return Ok(Self { text_part: true, ..text });
        }
        let this = family(model_type).and_then(|family| Self::from_family_config(config, family)).map_err(one)?;
        let mut problems: Vec<String> =
            config.unread().filter_map(|(key, value)| check_beside(&this, key, value).err()).collect();
        let parameters = this.values_of_matrices();
        if parameters > MOST_PARAMETERS {
            problems.push(format!(
                "hidden_size, intermediate_size, num_hidden_layers and vocab_size give {parameters} parameters; the maximum is \
                 {MOST_PARAMETERS}"
            ));
        }
        if problems.is_empty() { Ok(this) } else { Err(problems) }
    }

    fn from_family_config(config: &ConfigObject, family: Family) -> std::result::Result<Self, String> {
        use Family::{Gpt2, GptNeoX, NemotronH, Starcoder2};
        let described = family.description();
        let key = |common: &'static str| own_key(config, family, common);
        let hidden_size = config.needed_size(key("hidden_size"), MOST_HIDDEN)?;
        let latent = LatentAttention::read(config, family)?;
        let heads = latent.map_or_else(|| heads(config, family, hidden_size), |latent| Ok(latent.wide_heads()))?;
        let turned = latent.map_or(heads.head_dim, |latent| latent.heads.rotated);
        let blocks = LayerBlock::read(config, family)?;
        let layers = layers(config, key("num_hidden_layers"), blocks.as_deref())?;
        let configured = config.size(key("max_position_embeddings"), MOST_POSITIONS)?.unwrap_or(described.positions);
        let rope = RopeContext { family, head_dim: turned, max_positions: configured };
        let rope = if matches!(family, Gpt2 | NemotronH) { None } else { Some(resolve(config, &rope)?) };
        let max_positions = rope.as_ref().and_then(|rope| rope.limit).unwrap_or(configured);
        let ropes: Vec<Rope> =
            rope.into_iter().flat_map(|ModelRopes { full, sliding, .. }| [Some(full), sliding]).flatten().collect();
        let recurrence = recurrence(config, family, (layers, blocks.as_deref()))?;
        let LayerKinds { windows, rotary } = match &recurrence {
            Some(recurrence) => recurrence.kinds(rotates(config, family)?),
            None => kinds(config, family, layers, ropes.len() > 1)?,
        };
        let varied = VariedLayers::read(config, family, &windows, heads)?;
        let LinearBiases { qkv, output, mlp } = biases(config, family)?;
        let factors = factors(config, family, hidden_size, heads, latent.as_ref())?;
        let mixture = Mixture::read(config, family, (layers, blocks.as_deref()))?;
        let intermediate_size = intermediate_size(config, family, hidden_size, mixture.as_ref())?;
        Ok(Self {
            family,
            hidden_size,
            intermediate_size,
            mixture,
            layers,
            blocks,
            heads,
            vocab_size: config.needed_size("vocab_size", MOST_TOKENS)?,
            max_positions,
            norm: norm_kind(family),
            norm_eps: norm_eps(config, family)?,
            tied: tied(config, family)?.unwrap_or(described.tied),
            qkv_bias: qkv,
            output_bias: output,
            mlp_bias: mlp,
            head_norms: head_norms(config, family)?,
            projections: projections(family),
            activation: activation_of(config, family)?,
            gated: !matches!(family, Gpt2 | GptNeoX | NemotronH | Starcoder2),
            parallel: is_parallel(config, family)?,
            windows: windows.into_iter().map(|size| size.filter(|size| *size < max_positions)).collect(),
            recurrence,
            latent,
            varied,
            output_gate: family.has_delta_networks(),
            rotary,
            ropes,
            scores_by_layer: family == Gpt2 && config.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false),
            query_scale: QueryScale::read(config, family)?,
            factors,
            eos_token_ids: ends_of(config, config.needed_size("vocab_size", MOST_TOKENS)?)?.unwrap_or_default(),
            text_part: false,
        })
    }

    /// Returns which dimensions of a head are rotated together.
    pub(super) fn rope_pairs(&self) -> RopePairing {
        self.latent.map_or_else(|| self.family.rope_pairs(), |latent| latent.pairs)
    }

    /// Returns the attention settings of a layer.
    pub fn attention(&self, layer: usize) -> AttentionConfig {
        let DecoderFactors { scores, scores_cap, .. } = self.factors;
        let scale = if self.scores_by_layer { scores / (layer + 1) as f32 } else { scores };
        let window = self.windows.get(layer).copied().flatten();
        AttentionConfig {
            heads: self.heads_of(layer),
            window,
            chunked: self.family == Family::Llama4,
            scale,
            cap: scores_cap,
            precision: Precision::F32,
        }
    }

    /// Returns how attention scores of a layer depend on the position of the query, if they do.
    pub(super) fn query_scale_of(&self, layer: usize) -> Option<QueryScale> {
        self.query_scale.filter(|scale| scale.rotated == self.rotary[layer].is_some())
    }

    /// Returns whether heads are rotated before their norms.
    pub(super) fn rotates_first(&self) -> bool {
        matches!(self.head_norms, HeadNorms::Rotated | HeadNorms::Unweighted)
    }

    /// Returns the scale and soft cap of logits at this temperature.
    pub fn logits(&self, temperature: f32) -> LogitScale {
        LogitScale { temperature, divisor: self.factors.logits, cap: self.factors.logits_cap, precision: Precision::F32 }
    }

    /// Returns the capabilities that the model needs of a device beyond those that all models need.
    pub fn needs(&self) -> Vec<Capability> {
        let shared_norm = self.parallel && self.family.description().names.norms[2].is_empty();
        let all = [
            (self.rope_pairs() != RopePairing::Halves, Capability::NeighbouringRotation),
            (self.rotates_first() || shared_norm, Capability::OtherNorms),
            (self.attention(0).chunked, Capability::ChunkedAttention),
            (self.family.description().names.attention.sinks.is_some(), Capability::AttentionSinks),
            (self.family.description().names.experts.is_some_and(ExpertNames::have_biases), Capability::ExpertBiases),
            (self.query_scale.is_some() || self.has_shared_gate(), Capability::RowFactors),
            (self.has_recurrent_layers(), Capability::RecurrentLayers),
            (self.latent.is_some(), Capability::LatentAttention),
            (self.varied.is_some(), Capability::VariedLayers),
            (self.activation == Activation::SquaredRelu, Capability::SquaredRelu),
            (self.blocks.is_some(), Capability::SinglePartLayers),
        ];
        all.into_iter().filter_map(|(needed, capability)| needed.then_some(capability)).collect()
    }

    /// Returns whether a layer has an MLP that every token goes through.
    pub(super) fn has_unit(&self, layer: usize) -> bool {
        self.feeds(layer) && self.mixture.as_ref().is_none_or(|mixture| mixture.shared.is_some() || !mixture.sparse[layer])
    }

    /// Returns the width of the MLP that every token goes through in a layer.
    pub(super) fn unit_width(&self, layer: usize) -> usize {
        let mixture = self.mixture.as_ref().filter(|mixture| mixture.sparse[layer]);
        let wider = self.varied.as_ref().is_some_and(|varied| varied.double_wide && varied.sources[layer].is_some());
        let usual = self.intermediate_size * if wider { 2 } else { 1 };
        mixture.filter(|mixture| !mixture.normed).and_then(|mixture| mixture.shared).unwrap_or(usual)
    }

    /// Returns whether the shared MLP of layers with experts has a gate for each token.
    pub(super) fn has_shared_gate(&self) -> bool {
        let gate = self.family.description().names.shared().and_then(|shared| shared.gate);
        gate.is_some() && self.mixture.as_ref().is_some_and(|mixture| mixture.shared.is_some())
    }

    /// Returns whether a tensor belongs to the multi-token prediction layers after the last layer of a DeepSeek, a GLM, a Nemotron-H or
    /// a Qwen 3.5, which transformers does not load either.
    pub(super) fn predicts_more(&self, name: &str) -> bool {
        let number = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
        match self.family {
            Family::DeepseekV3 | Family::Glm4Moe => number.is_some_and(|number| number >= self.layers),
            family if family.has_delta_networks() || family == Family::NemotronH => name.starts_with("mtp."),
            _ => false,
        }
    }

    /// Returns the width of the packed query heads.
    pub fn query_width(&self) -> usize {
        self.heads.heads * self.heads.head_dim
    }

    /// Returns the width of the packed key or value heads.
    pub fn kv_width(&self) -> usize {
        self.heads.kv_heads * self.heads.head_dim
    }

    /// Returns an upper bound on the number of inputs and outputs of a layer's linear maps, including joined ones.
    pub fn widest(&self) -> usize {
        let of_experts = self.mixture.as_ref().map_or(0, |mixture| 2 * mixture.width);
        let shared = self.mixture.as_ref().and_then(|mixture| mixture.shared).unwrap_or_default();
        let of_attention = self.latent.map_or_else(|| self.query_outputs() + 2 * self.kv_width(), |latent| latent.widest());
        let joined = [of_attention, 2 * self.intermediate_size, 2 * shared];
        let recurrent = self.recurrence.as_ref().map_or(0, |_| self.input_widths(true).into_iter().sum::<usize>());
        let varied = self.varied.as_ref().map_or(0, |_| self.widest_of_varied());
        joined.into_iter().chain([self.hidden_size, of_experts, recurrent, varied]).max().unwrap_or_default()
    }

    /// Returns the widths of queries, keys and values in each group of a joined projection's outputs.
    pub(super) fn qkv_widths(&self) -> [usize; 3] {
        match self.projections {
            ProjectionLayout::JoinedByHead => [self.heads.head_dim; 3],
            _ => [self.query_width(), self.kv_width(), self.kv_width()],
        }
    }

    /// Returns the widths of the MLP's gate and up projections.
    pub(super) fn mlp_widths(&self) -> Vec<usize> {
        vec![self.intermediate_size; self.wide_parts()]
    }

    /// Returns the number of projections before an MLP's or an expert's activation function.
    pub(super) fn wide_parts(&self) -> usize {
        if self.gated { 2 } else { 1 }
    }
}

/// Returns the family's own key for a size, if it has one and `config.json` does not use the common key.
fn own_key(config: &ConfigObject, family: Family, common: &'static str) -> &'static str {
    const GPT2: [(&str, &str); 4] = [
        ("hidden_size", "n_embd"),
        ("max_position_embeddings", "n_positions"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
    ];
    let own = GPT2.into_iter().find(|(name, own)| *name == common && (config.has(own) || !config.has(common)));
    own.filter(|_| family == Family::Gpt2).map_or(common, |(_, own)| own)
}

fn family(model_type: Option<&str>) -> std::result::Result<Family, String> {
    let known = FAMILIES.iter().map(|described| described.model_type).collect::<Vec<_>>().join(", ");
    let Some(given) = model_type else { return Err(format!("model_type is missing; {known} are supported")) };
    let found = FAMILIES.iter().find(|described| described.model_type == given);
    found.map(|described| described.family).ok_or_else(|| {
        let given = printable(given, 80);
        format!("model_type {given:?} is not supported; {known} are")
    })
}

/// Reads the number of layers, which follows from their parts if they have one each.
fn layers(config: &ConfigObject, key: &str, blocks: Option<&[LayerBlock]>) -> std::result::Result<usize, String> {
    blocks.map_or_else(|| config.needed_size(key, MOST_LAYERS), |blocks| Ok(blocks.len()))
}

/// Reads whether attention and MLP both read the layer's input.
fn is_parallel(config: &ConfigObject, family: Family) -> std::result::Result<bool, String> {
    match family {
        Family::Cohere2 => Ok(true),
        Family::GptNeoX => Ok(config.flag("use_parallel_residual")?.unwrap_or(true)),
        _ => Ok(false),
    }
}

/// Reads the recurrent layers, if there are any.
fn recurrence(
    config: &ConfigObject,
    family: Family,
    (layers, blocks): (usize, Option<&[LayerBlock]>),
) -> std::result::Result<Option<Recurrence>, String> {
    match blocks {
        Some(blocks) => mamba::state_spaces(config, blocks).map(Some),
        None if family == Family::FalconH1 => falcon_h1::state_spaces(config, layers).map(Some),
        None => Recurrence::read(config, family, layers),
    }
}

/// Returns the layout of a family's projections.
fn projections(family: Family) -> ProjectionLayout {
    match family {
        Family::Gpt2 | Family::Phi3 => ProjectionLayout::Joined,
        Family::GptNeoX => ProjectionLayout::JoinedByHead,
        _ => ProjectionLayout::Apart,
    }
}

/// Reads the width of the MLP that every token goes through.
fn intermediate_size(
    config: &ConfigObject,
    family: Family,
    hidden_size: usize,
    mixture: Option<&Mixture>,
) -> std::result::Result<usize, String> {
    let shared = mixture.and_then(|mixture| mixture.shared).filter(|_| family.description().names.shared().is_none());
    match (shared, family) {
        (Some(shared), _) => Ok(shared),
        (None, Family::Gpt2) => Ok(config.size("n_inner", MOST_INTERMEDIATE)?.unwrap_or(4 * hidden_size)),
        (None, Family::Lfm2) => adjusted_intermediate(config),
        // Each layer has experts.
        (None, Family::GraniteMoeHybrid) => Ok(config.size("shared_intermediate_size", MOST_INTERMEDIATE)?.unwrap_or(1024)),
        (None, Family::Qwen3Next) => Ok(config.size("intermediate_size", MOST_INTERMEDIATE)?.unwrap_or(5632)),
        (None, Family::Qwen3_5Moe) => Ok(config.size("intermediate_size", MOST_INTERMEDIATE)?.unwrap_or(1)),
        (None, Family::NemotronH) => Ok(config.size("intermediate_size", MOST_INTERMEDIATE)?.unwrap_or(21_504)),
        (None, Family::Llama4) => config.needed_size("intermediate_size_mlp", MOST_INTERMEDIATE),
        (None, _) => config.needed_size("intermediate_size", MOST_INTERMEDIATE),
    }
}

fn heads(config: &ConfigObject, family: Family, hidden_size: usize) -> std::result::Result<Heads, String> {
    let heads = config.needed_size(own_key(config, family, "num_attention_heads"), MOST_HEADS)?;
    let kv_heads = match family {
        Family::Gpt2 | Family::GptNeoX => heads,
        Family::Lfm2 | Family::Lfm2Moe => config.size("num_key_value_heads", MOST_HEADS)?.unwrap_or(8),
        Family::Gemma4 | Family::Gemma4Unified | Family::Qwen3_5 => config.size("num_key_value_heads", MOST_HEADS)?.unwrap_or(4),
        // Null means as many as queries.
        Family::FalconH1 | Family::NemotronH if !config.has("num_key_value_heads") => 8,
        Family::Qwen3_5Moe | Family::Qwen3Next => config.size("num_key_value_heads", MOST_HEADS)?.unwrap_or(2),
        _ => config.size("num_key_value_heads", MOST_HEADS)?.unwrap_or(heads),
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(format!("num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}"));
    }
    let default = match family {
        Family::Gemma2 | Family::Gemma3 => 256,
        family if family.has_delta_networks() || family.is_gemma4() => 256,
        Family::Ernie45 | Family::Glm4 | Family::Llama4 | Family::Ministral3 | Family::NemotronH => 128,
        Family::GptOss => 64,
        _ => hidden_size / heads,
    };
    let head_dim = config.size("head_dim", MOST_HEAD_DIM)?.unwrap_or(default);
    if family == Family::Cohere2 && head_dim != hidden_size / heads {
        return Err(format!("head_dim is {head_dim}, but a model of type cohere2 uses hidden_size / num_attention_heads"));
    }
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(format!("head_dim {head_dim} must be even and not zero; it defaults to hidden_size / num_attention_heads"));
    }
    Ok(Heads { heads, kv_heads, head_dim })
}

/// Returns an error if a key that is not read may affect the model. Alternative names of a size must have the same value.
fn check_beside(this: &Architecture, key: &str, value: &Value) -> std::result::Result<(), String> {
    let model_type = this.family.description().model_type;
    let (own, right) = match key {
        "block_norm_eps" | "layer_norm_eps" | "layer_norm_epsilon" | "norm_eps" | "norm_epsilon" | "rms_norm_eps" => {
            (this.family.norm_eps_key(), this.norm_eps)
        }
        "num_heads" | "n_head" | "n_heads" => ("num_attention_heads", this.heads.heads as f64),
        "num_key_value_heads" | "num_kv_heads" => ("num_key_value_heads", this.heads.kv_heads as f64),
        "num_layers" | "n_layer" | "n_layers" => ("num_hidden_layers", this.layers as f64),
        "n_embd" | "d_model" | "block_dim" | "conv_dim" | "conv_dim_out" => ("hidden_size", this.hidden_size as f64),
        _ => return ignored_keys::check(model_type, key, value),
    };
    if value.as_f64() == Some(right) {
        return Ok(());
    }
    let shown = printable(&value.to_string(), 80);
    Err(format!("{key} is {shown}, but a model of type {model_type} uses {own} {right}; remove {key} if that is right"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_devices_have_no_kernels_for_is_known_by_name() {
        let needs = |more: Value| {
            let mut config = json!({
                "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
                "vocab_size": 257, "rope_parameters": { "rope_type": "default" },
            });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Architecture::parse(&config.to_string()).unwrap().needs()
        };
        let of = |kind: &str| needs(json!({ "model_type": kind }));
        for plain in ["exaone4", "glm4_moe", "llama", "qwen3_moe"] {
            assert_eq!(of(plain), [], "{plain}");
        }
        assert_eq!(of("cohere2"), [Capability::NeighbouringRotation, Capability::OtherNorms]);
        assert_eq!(
            (of("ernie4_5"), of("glm4")),
            (vec![Capability::NeighbouringRotation], vec![Capability::NeighbouringRotation])
        );
        assert_eq!(of("gpt_oss"), [Capability::AttentionSinks, Capability::ExpertBiases]);
        assert_eq!(of("hunyuan_v1_dense"), [Capability::OtherNorms]);
        let latent = needs(json!({ "model_type": "deepseek_v3", "head_dim": 64 }));
        assert_eq!(latent, [Capability::NeighbouringRotation, Capability::LatentAttention]);
        let scaled = json!({ "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16 });
        assert_eq!(needs(json!({ "model_type": "ministral3", "rope_parameters": scaled })), [Capability::RowFactors]);
        assert_eq!(of("qwen2_moe"), [Capability::RowFactors]);
        let llama4 =
            [Capability::NeighbouringRotation, Capability::OtherNorms, Capability::ChunkedAttention, Capability::RowFactors];
        assert_eq!(needs(json!({ "model_type": "llama4_text", "intermediate_size_mlp": 64 })), llama4);
        assert_eq!(needs(json!({ "model_type": "qwen2_moe", "num_experts": 0 })), []);
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
            ("rms_norm_eps", json!(1e300)),
            ("rms_norm_eps", json!("small")),
            ("tie_word_embeddings", json!("yes")),
            ("attention_bias", json!(1)),
            ("model_type", json!(7)),
            ("hidden_act", json!("gelu\u{1b}")),
            ("eos_token_id", json!(-1)),
            ("eos_token_id", json!(1_000_000_000)),
            ("eos_token_id", json!([1, "x"])),
            ("sliding_window", json!(16)),
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
            assert!(!error.contains(&"0".repeat(20)), "{key} = {value}: {error}");
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

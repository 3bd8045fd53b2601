//! Recurrent layers, which carry a state of fixed size instead of attending to all earlier tokens: gated short convolutions (LFM2), gated
//! delta networks (Qwen 3.5, Qwen 3 Next), and state spaces (Granite 4, Nemotron-H, and beside attention Falcon-H1).

use super::bounds::{MOST_HIDDEN, MOST_INTERMEDIATE, MOST_LAYERS};
use super::family::Family;
use super::json::ConfigObject;
use super::layer_kinds::LayerKinds;
use crate::config::printable;
use crate::ops::{DeltaHeads, NormPlace};
use serde_json::Value;

const FULL: &str = "full_attention";

/// Maximum number of heads of each kind, and maximum head size.
pub(super) const MOST_HEADS: usize = 1 << 12;

/// Maximum width of a convolution, in tokens.
pub(super) const MOST_WIDTH: usize = 1 << 10;

/// Recurrent layers of a decoder and their sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrence {
    /// Whether each layer is recurrent.
    pub layers: Vec<bool>,
    /// Width of a convolution, in tokens.
    pub width: usize,
    /// Kind of the recurrent layers.
    pub kind: RecurrenceKind,
    /// Factors of both parts, if recurrent layers also attend, side by side.
    pub beside: Option<SideBySide>,
}

/// Factors of attention and a state space side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SideBySide {
    /// Factor of attention's input.
    pub attention_in: f32,
    /// Factor of attention's output.
    pub attention_out: f32,
    /// Factor of the state space's input.
    pub states_in: f32,
    /// Factor of the state space's output.
    pub states_out: f32,
    /// Factors of the results of the state space's projection: gates, values, keys, queries, and step sizes.
    pub projected: [f32; 5],
}

/// A kind of recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecurrenceKind {
    /// Gated short convolutions.
    Convolution {
        /// Whether the convolution and the projections around it have biases.
        bias: bool,
    },
    /// Gated delta networks.
    GatedDelta {
        /// Numbers and sizes of heads.
        heads: DeltaHeads,
        /// Whether two projections compute all inputs, grouped by key heads.
        grouped: bool,
    },
    /// State spaces (Mamba 2).
    StateSpace {
        /// Numbers and sizes of heads. Key heads are groups.
        heads: DeltaHeads,
        /// Smallest and largest step size.
        limits: [f32; 2],
        /// Whether the convolution has a bias.
        convolution_bias: bool,
        /// Whether the projection of the inputs has biases.
        projection_bias: bool,
        /// Whether the projection of the result has biases.
        output_bias: bool,
        /// Where the norm of the result is.
        norm: NormPlace,
    },
}

impl RecurrenceKind {
    /// Returns the heads of gated delta networks or state spaces; `None` for convolutions.
    pub(super) fn heads(self) -> Option<DeltaHeads> {
        match self {
            Self::Convolution { .. } => None,
            Self::GatedDelta { heads, .. } | Self::StateSpace { heads, .. } => Some(heads),
        }
    }
}

/// Reads the heads of gated delta networks.
fn delta_heads(config: &ConfigObject) -> Result<DeltaHeads, String> {
    let size = |key: &str, default: usize| config.size(key, MOST_HEADS).map(|size| size.unwrap_or(default));
    let heads = DeltaHeads {
        keys: size("linear_num_key_heads", 16)?,
        values: size("linear_num_value_heads", 32)?,
        key_dim: size("linear_key_head_dim", 128)?,
        value_dim: size("linear_value_head_dim", 128)?,
    };
    let DeltaHeads { keys, values, .. } = heads;
    match values.is_multiple_of(keys) {
        true => Ok(heads),
        false => Err(format!("linear_num_value_heads {values} must be a multiple of linear_num_key_heads {keys}")),
    }
}

/// Fails if a configuration has another activation function than SiLU, which is that of networks, too.
pub(super) fn check_activation(config: &ConfigObject) -> Result<(), String> {
    match config.text("hidden_act")?.filter(|name| !matches!(*name, "silu" | "swish")) {
        Some(other) => {
            Err(format!("hidden_act is {:?}, but recurrent layers of this family support silu alone", printable(other, 80)))
        }
        None => Ok(()),
    }
}

impl Recurrence {
    /// Reads the recurrent layers from a `config.json`; `None` if the family has none.
    ///
    /// # Errors
    /// If a key has no valid value, or networks have another activation function than SiLU.
    pub(super) fn read(config: &ConfigObject, family: Family, layers: usize) -> Result<Option<Self>, String> {
        let this = Self::parse_layers(config, family, layers)?;
        let has_networks = this.as_ref().is_some_and(|this| this.kind.heads().is_some() && this.layers.contains(&true));
        if has_networks {
            check_activation(config)?;
        }
        Ok(this)
    }

    fn parse_layers(config: &ConfigObject, family: Family, layers: usize) -> Result<Option<Self>, String> {
        let recurrent = match family {
            family if family.has_convolutions() => "conv",
            family if family.has_delta_networks() => "linear_attention",
            Family::GraniteMoeHybrid => return state_spaces(config, layers).map(Some),
            _ => return Ok(None),
        };
        if family.has_delta_networks() {
            let types = config.words("layer_types", &[FULL, recurrent], layers)?;
            let interval = config.size("full_attention_interval", MOST_LAYERS)?.unwrap_or(4);
            let by_default = || (1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect();
            let layers = types.map_or_else(by_default, |types| types.into_iter().map(|kind| kind == recurrent).collect());
            let width = config.size("linear_conv_kernel_dim", MOST_WIDTH)?.unwrap_or(4);
            let kind = RecurrenceKind::GatedDelta { heads: delta_heads(config)?, grouped: family == Family::Qwen3Next };
            return Ok(Some(Self { layers, width, kind, beside: None }));
        }
        let (types, attending) =
            (config.words("layer_types", &[FULL, recurrent], layers)?, config.indices("full_attn_idxs", MOST_LAYERS)?);
        let of_types = types.map(|types| types.into_iter().map(|kind| kind == recurrent).collect::<Vec<bool>>());
        let of_indices = attending.map(|attending| (0..layers).map(|layer| !attending.contains(&layer)).collect());
        let layers = match (of_types, of_indices) {
            (Some(types), Some(indices)) if types != indices => {
                return Err("full_attn_idxs and layer_types contradict each other; remove full_attn_idxs".into());
            }
            (Some(types), _) => types,
            (None, indices) => indices.unwrap_or_else(|| vec![false; layers]),
        };
        let width = config.size("conv_L_cache", MOST_WIDTH)?.unwrap_or(3);
        let bias = config.flag("conv_bias")?.unwrap_or(false);
        Ok(Some(Self { layers, width, kind: RecurrenceKind::Convolution { bias }, beside: None }))
    }

    /// Returns the windows and the RoPE of all layers. Attention layers have no window, and the first RoPE if the model has one.
    pub(super) fn kinds(&self, rotates: bool) -> LayerKinds {
        let attends = |recurrent: bool| !recurrent || self.beside.is_some();
        let rotary = self.layers.iter().map(|recurrent| (attends(*recurrent) && rotates).then_some(0)).collect();
        LayerKinds { windows: vec![None; self.layers.len()], rotary }
    }
}

/// Returns whether the layers that attend have RoPE.
pub(super) fn rotates(config: &ConfigObject, family: Family) -> Result<bool, String> {
    if family != Family::GraniteMoeHybrid {
        return Ok(family != Family::NemotronH);
    }
    match config.text("position_embedding_type")? {
        Some("rope") => Ok(true),
        None | Some("nope") => Ok(false),
        Some(other) => Err(format!("position_embedding_type is {:?}; it must be \"rope\" or \"nope\"", printable(other, 80))),
    }
}

/// Reads the state spaces of a Granite 4.
fn state_spaces(config: &ConfigObject, layers: usize) -> Result<Recurrence, String> {
    // transformers writes and reads both pairs of words.
    const KINDS: &[&str] = &["mamba", "linear_attention", "attention", FULL];
    let size = |key: &str, default: usize| config.size(key, MOST_HEADS).map(|size| size.unwrap_or(default));
    let of_types = config.words("layer_types", KINDS, layers)?;
    let types = match config.words("layers_block_type", KINDS, layers)? {
        Some(other) if of_types.as_ref().is_some_and(|types| *types != other) => {
            return Err("layers_block_type and layer_types contradict each other; remove layers_block_type".into());
        }
        other => of_types.or(other),
    };
    let recurrent = |kind: &str| KINDS[..2].contains(&kind);
    let of_layers = types.map_or_else(|| vec![true; layers], |types| types.into_iter().map(recurrent).collect());
    let hidden = config.needed_size("hidden_size", MOST_HIDDEN)?;
    let inner = hidden * size("mamba_expand", 2)?;
    let values = size("mamba_n_heads", 128)?;
    let value_dim = match config.get("mamba_d_head") {
        Some(given) if given.as_str() == Some("auto") => inner / values,
        None => inner / values,
        Some(_) => config.needed_size("mamba_d_head", MOST_HEADS)?,
    };
    if values * value_dim != inner {
        return Err(format!(
            "mamba_n_heads {values} times mamba_d_head {value_dim} must be mamba_expand times hidden_size, which is {inner}"
        ));
    }
    let keys = size("mamba_n_groups", 1)?;
    if !values.is_multiple_of(keys) {
        return Err(format!("mamba_n_heads {values} must be a multiple of mamba_n_groups {keys}"));
    }
    // How many tokens other programs compute together.
    size("mamba_chunk_size", 256)?;
    let projection_bias = config.flag("mamba_proj_bias")?.unwrap_or(false);
    let kind = RecurrenceKind::StateSpace {
        heads: DeltaHeads { keys, values, key_dim: size("mamba_d_state", 256)?, value_dim },
        limits: step_limits(config, "time_step_limit")?,
        convolution_bias: config.flag("mamba_conv_bias")?.unwrap_or(!config.has("mamba_conv_bias")),
        projection_bias,
        output_bias: projection_bias,
        norm: NormPlace::AfterGates,
    };
    Ok(Recurrence { layers: of_layers, width: config.size("mamba_d_conv", MOST_WIDTH)?.unwrap_or(4), kind, beside: None })
}

/// Reads the smallest and the largest step size of state spaces.
pub(super) fn step_limits(config: &ConfigObject, key: &str) -> Result<[f32; 2], String> {
    let Some(given) = config.get(key) else { return Ok([0.0, f32::INFINITY]) };
    let wrong = || format!("{key} {} must be two numbers, the first the smaller", printable(&given.to_string(), 80));
    let number = |value: &Value| match value.as_str() {
        Some("Infinity") => Some(f32::INFINITY),
        _ => value.as_f64().map(|limit| limit as f32).or_else(|| value["__float__"].as_str().and_then(|s| s.parse().ok())),
    };
    let limits = given.as_array().map(|all| all.iter().map(number).collect::<Option<Vec<f32>>>());
    match limits.flatten().as_deref() {
        Some(&[low, high]) if low <= high => Ok([low, high]),
        _ => Err(wrong()),
    }
}

/// Returns the width of an LFM2's MLP, which configurations may give before its adjustment.
pub(super) fn adjusted_intermediate(config: &ConfigObject) -> Result<usize, String> {
    let (own, common) = (config.size("block_ff_dim", MOST_INTERMEDIATE)?, config.size("intermediate_size", MOST_INTERMEDIATE)?);
    let given = own.or(common).unwrap_or(12_288);
    let factor = config.number("block_ffn_dim_multiplier")?;
    let multiple = config.size("block_multiple_of", MOST_INTERMEDIATE)?.unwrap_or(256);
    if config.flag("block_auto_adjust_ff_dim")? == Some(false) {
        return Ok(given);
    }
    let two_thirds = 2 * given / 3;
    // Null turns the adjustment off; a missing key means the default.
    let adjusted = match factor.or((!config.has("block_ffn_dim_multiplier")).then_some(1.0)) {
        None => two_thirds,
        Some(factor) => ((factor * two_thirds as f64) as usize).next_multiple_of(multiple),
    };
    match adjusted {
        1..=MOST_INTERMEDIATE => Ok(adjusted),
        _ => Err(format!(
            "intermediate_size {given} becomes {adjusted} by block_ffn_dim_multiplier and block_multiple_of; it must be from 1 to \
             {MOST_INTERMEDIATE}"
        )),
    }
}

/// Returns whether the output matrix is tied to the embedding, by LFM2's own key or the common one.
pub(super) fn tied(config: &ConfigObject, family: Family) -> Result<Option<bool>, String> {
    let (own, common) =
        (if family.has_convolutions() { config.flag("tie_embedding")? } else { None }, config.flag("tie_word_embeddings")?);
    if family == Family::NemotronH && common == Some(true) {
        return Err("tie_word_embeddings is true, which transformers ignores in a nemotron_h; set it to false".into());
    }
    Ok(own.or(common))
}

#[cfg(test)]
mod tests {
    use super::RecurrenceKind;
    use crate::model::Architecture;
    use crate::model::trained_modules::TrainedModules;
    use crate::ops::{DeltaHeads, NormPlace};
    use serde_json::{Value, json};

    fn parsed(more: Value) -> Result<Architecture, String> {
        let mut config = json!({
            "model_type": "lfm2", "hidden_size": 64, "intermediate_size": 300, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 257, "block_multiple_of": 8,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Architecture::parse(&config.to_string())
    }

    #[test]
    fn layers_are_recurrent_as_the_configuration_says() {
        let layers = |more: Value| parsed(more).map(|a| (0..3).map(|layer| a.is_recurrent(layer)).collect::<Vec<_>>());
        assert_eq!(layers(json!({})).unwrap(), [false; 3]);
        assert_eq!(layers(json!({ "full_attn_idxs": [1] })).unwrap(), [true, false, true]);
        let types = json!(["conv", "full_attention", "conv"]);
        assert_eq!(layers(json!({ "layer_types": types, "full_attn_idxs": [1] })).unwrap(), [true, false, true]);
        let a = parsed(json!({ "layer_types": types, "conv_L_cache": 4 })).unwrap();
        assert_eq!((a.attending(), a.state_bytes(), a.rotary), (1, f64::from(2 * 3 * 64 * 4), vec![None, Some(0), None]));
        for (key, value) in [
            ("full_attn_idxs", json!([0])),
            ("layer_types", json!(["conv", "mamba", "conv"])),
            ("layer_types", json!(["conv", "conv"])),
            ("conv_L_cache", json!(0)),
            ("conv_bias", json!("yes")),
        ] {
            let mut more = json!({ "layer_types": types });
            more[key] = value.clone();
            let error = layers(more).unwrap_err();
            assert!(error.contains(key), "{key} = {value}: {error}");
        }
        let llama = Architecture::parse(
            r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
            "vocab_size": 9, "conv_L_cache": 3}"#,
        );
        assert!(llama.unwrap_err().contains("conv_L_cache"));
    }

    #[test]
    fn the_mlp_is_as_wide_as_transformers_makes_it() {
        let width = |more: Value| parsed(more).map(|a| a.intermediate_size);
        assert_eq!(width(json!({})).unwrap(), 200);
        assert_eq!(width(json!({ "block_multiple_of": 256 })).unwrap(), 256);
        assert_eq!(width(json!({ "block_ffn_dim_multiplier": 1.5 })).unwrap(), 304);
        assert_eq!(width(json!({ "block_ffn_dim_multiplier": null, "block_ff_dim": 100 })).unwrap(), 66);
        assert_eq!(width(json!({ "block_auto_adjust_ff_dim": false })).unwrap(), 300);
        assert!(width(json!({ "block_ffn_dim_multiplier": 0 })).unwrap_err().contains("block_ffn_dim_multiplier"));
    }

    #[test]
    fn keys_that_repeat_a_size_must_not_contradict_it() {
        assert!(parsed(json!({ "conv_dim": 64, "block_dim": 64, "conv_dim_out": 64, "block_norm_eps": 1e-5 })).is_ok());
        assert!(!parsed(json!({ "tie_embedding": false })).unwrap().tied && parsed(json!({})).unwrap().tied);
        for (key, value) in [("conv_dim", json!(32)), ("block_norm_eps", json!(1e-3)), ("block_use_swiglu", json!(false))] {
            let mut more = json!({});
            more[key] = value;
            let error = parsed(more).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }

    /// Returns what is read of a configuration of Granite 4, dense and small, with these keys.
    fn granite(more: Value) -> Result<Architecture, String> {
        let mut config = json!({
            "model_type": "granitemoehybrid", "hidden_size": 768, "intermediate_size": 2048, "shared_intermediate_size": 2048,
            "num_hidden_layers": 3, "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 100_352, "init_method": "mup",
            "normalization_function": "rmsnorm", "position_embedding_type": "nope", "rope_scaling": null, "rope_theta": 10_000,
            "num_local_experts": 0, "num_experts_per_tok": 0, "router_aux_loss_coef": 0.01, "output_router_logits": false,
            "layer_types": ["mamba", "mamba", "attention"], "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4,
            "mamba_d_head": 32, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 48,
            "mamba_proj_bias": false, "attention_multiplier": 0.015_625, "embedding_multiplier": 12, "logits_scaling": 3,
            "residual_multiplier": 0.246, "tie_word_embeddings": true, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Architecture::parse(&config.to_string())
    }

    #[test]
    fn state_spaces_are_as_the_configuration_says() {
        let a = granite(json!({})).unwrap();
        let heads = DeltaHeads { keys: 1, values: 48, key_dim: 128, value_dim: 32 };
        let kind = RecurrenceKind::StateSpace {
            heads,
            limits: [0.0, f32::INFINITY],
            convolution_bias: true,
            projection_bias: false,
            output_bias: false,
            norm: NormPlace::AfterGates,
        };
        assert_eq!(a.recurrence.as_ref().map(|all| (all.kind, all.width)), Some((kind, 4)));
        assert!(a.is_recurrent(1) && !a.is_recurrent(2) && a.mixture.is_none() && a.rotary == [None; 3]);
        assert_eq!(a.input_widths(true), [1536, 1536 + 2 * 128, 48]);
        let automatic =
            granite(json!({ "mamba_d_head": "auto", "layer_types": ["linear_attention", "linear_attention", "full_attention"] }));
        assert_eq!(automatic.unwrap(), a);
        let whole = |name| TrainedModules::from_names([name], &a);
        assert!(whole("norm").unwrap_err().contains("mamba.norm") && whole("input_layernorm").is_ok());
        // Some of the family attend in all layers.
        let attending = granite(json!({ "layer_types": vec!["attention"; 3], "position_embedding_type": "rope" })).unwrap();
        assert!(!attending.has_recurrent_layers() && attending.rotary == [Some(0); 3]);
        let limits = |limits: Value| match granite(json!({ "time_step_limit": limits })).map(|a| a.recurrence.map(|all| all.kind))
        {
            Ok(Some(RecurrenceKind::StateSpace { limits, .. })) => Ok(limits),
            other => Err(format!("{other:?}")),
        };
        assert_eq!(limits(json!([0.001, 0.1])).unwrap(), [0.001, 0.1]);
        assert_eq!(limits(json!([0.5, { "__float__": "Infinity" }])).unwrap(), [0.5, f32::INFINITY]);
        for (key, value) in [
            ("mamba_n_heads", json!(47)),
            ("mamba_d_head", json!(16)),
            ("mamba_n_groups", json!(5)),
            ("layer_types", json!(["mamba", "mamba", "conv"])),
            ("layers_block_type", json!(["mamba", "attention", "attention"])),
            ("time_step_limit", json!([0.1])),
            ("time_step_limit", json!([0.2, 0.1])),
            ("position_embedding_type", json!("alibi")),
            ("normalization_function", json!("layernorm")),
            ("hidden_act", json!("gelu")),
            ("num_local_experts", json!(4)),
        ] {
            let error = granite(json!({ key: value })).unwrap_err();
            let named = if key == "num_local_experts" { "num_experts_per_tok" } else { key };
            assert!(error.contains(named), "{key} = {value}: {error}");
        }
    }

    #[test]
    fn delta_networks_may_have_grouped_projections() {
        let a = Architecture::parse(
            r#"{"model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 4, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "norm_topk_prob": true, "num_experts": 512, "num_experts_per_tok": 10, "partial_rotary_factor": 0.25, "rope_theta": 10000000,
            "rope_scaling": null, "router_aux_loss_coef": 0.001, "attention_bias": false, "use_sliding_window": false}"#,
        )
        .unwrap();
        assert_eq!((a.attending(), a.input_widths(true), a.ropes[0].dims), (1, vec![2 * 2048 + 2 * 4096, 64], 64));
        let mixture = a.mixture.as_ref().unwrap();
        assert_eq!((mixture.experts, mixture.routing.chosen, mixture.shared), (512, 10, Some(512)));
        assert!(mixture.routing.normalised && a.has_shared_gate() && a.predicts_more("mtp.fc.weight"));
    }
}

//! A mixture of experts: its sizes and how it routes tokens.

use super::bounds::MOST_INTERMEDIATE;
use super::family::Family;
use super::json::ConfigObject;
use super::layer_blocks::LayerBlock;
use crate::config::printable;
use crate::ops;
use crate::ops::experts::{RouterScoring, Routes, Routing};
use candle_core::Tensor;

/// Maximum number of experts.
const MOST_EXPERTS: usize = 1 << 16;

/// Keys that a DeepSeek or a Nemotron-H has even if none of its layers has experts.
const WITHOUT_EXPERTS: [&str; 8] = [
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "n_shared_experts",
    "norm_topk_prob",
    "routed_scaling_factor",
    "topk_group",
    "topk_method",
];

/// The sizes and switches of a decoder's experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// Number of experts, `E`.
    pub experts: usize,
    /// Width of each expert, `I`.
    pub width: usize,
    /// How experts are chosen and weighted.
    pub routing: Routing,
    /// Width of what experts read and write, if it is not the hidden size.
    pub latent: Option<usize>,
    /// Whether experts are chosen by corrected scores.
    pub corrected: bool,
    /// Whether weights apply to the experts' inputs instead of their outputs.
    pub weighs_inputs: bool,
    /// Whether experts and the MLP beside them have norms of their own, and experts' weights a factor each.
    pub normed: bool,
    /// Whether each layer has experts.
    pub sparse: Vec<bool>,
    /// Width of the shared MLP that every token goes through, if there is one.
    pub shared: Option<usize>,
    /// `router_aux_loss_coef`
    pub coefficient: f64,
    /// Whether transformers has an auxiliary loss for these experts.
    pub has_aux_loss: bool,
}

/// Numbers of a model's experts, and the keys that say them.
struct ExpertCounts {
    key: &'static str,
    experts: usize,
    chosen_key: &'static str,
    chosen: usize,
    /// Default of `router_aux_loss_coef`.
    coefficient: f64,
}

impl ExpertCounts {
    /// Reads the numbers of experts, with the family's defaults; `None` for families without experts.
    fn read(config: &ConfigObject, family: Family) -> std::result::Result<Option<Self>, String> {
        use Family::{
            DeepseekV2, DeepseekV3, Gemma4, Glm4Moe, GptOss, GraniteMoe, GraniteMoeHybrid, GraniteMoeShared, Lfm2Moe, Llama4,
            Mixtral, NemotronH, Olmoe, Qwen2Moe, Qwen3_5Moe, Qwen3Moe, Qwen3Next,
        };
        let (key, experts, chosen, coefficient) = match family {
            Qwen3Moe => (if config.has("num_experts") { "num_experts" } else { "num_local_experts" }, 128, 8, 0.001),
            DeepseekV2 => (if config.has("num_experts") { "num_experts" } else { "n_routed_experts" }, 64, 0, 0.0),
            DeepseekV3 => (if config.has("num_local_experts") { "num_local_experts" } else { "n_routed_experts" }, 256, 8, 0.0),
            Glm4Moe if config.has("num_local_experts") => ("num_local_experts", 128, 8, 0.0),
            Glm4Moe => ("n_routed_experts", 128, 8, 0.0),
            NemotronH => (if config.has("num_local_experts") { "num_local_experts" } else { "n_routed_experts" }, 8, 2, 0.0),
            Lfm2Moe => ("num_experts", 32, 4, 0.0),
            Qwen2Moe => ("num_experts", 60, 4, 0.001),
            Qwen3_5Moe => ("num_experts", 256, 8, 0.001),
            Qwen3Next => ("num_experts", 512, 10, 0.001),
            Olmoe => ("num_experts", 64, 8, 0.01),
            Llama4 => ("num_local_experts", 16, 1, 0.0),
            GptOss => ("num_local_experts", 128, 4, 0.001),
            Gemma4 if has_experts_beside(config)? => ("num_experts", 0, 0, 0.0),
            GraniteMoe | GraniteMoeHybrid | GraniteMoeShared | Mixtral => ("num_local_experts", 8, 2, 0.001),
            _ => return Ok(None),
        };
        refuse_null(config, family)?;
        let chosen_key = if family == Gemma4 { "top_k_experts" } else { "num_experts_per_tok" };
        let experts = config.count(key, MOST_EXPERTS)?.unwrap_or(experts);
        let chosen = config.count(chosen_key, MOST_EXPERTS)?.unwrap_or(chosen);
        Ok(Some(Self { key, experts, chosen_key, chosen, coefficient }))
    }
}

impl Mixture {
    /// Returns the sorted rows that experts read, given the tokens' rows `h`.
    pub(super) fn rows(&self, routes: &Routes, h: &Tensor) -> ops::Result<Tensor> {
        let rows = ops::gather_rows(h, routes.tokens())?;
        if self.weighs_inputs { routes.weighted(&rows) } else { Ok(rows) }
    }

    /// Reads the sizes of experts; `None` for other families and for models without experts.
    pub(super) fn read(
        config: &ConfigObject,
        family: Family,
        (layers, blocks): (usize, Option<&[LayerBlock]>),
    ) -> std::result::Result<Option<Self>, String> {
        use Family::{DeepseekV2, DeepseekV3, Gemma4, Glm4Moe, Lfm2Moe, Llama4, NemotronH};
        let Some(ExpertCounts { key, experts, chosen_key, chosen, coefficient }) = ExpertCounts::read(config, family)? else {
            return Ok(None);
        };
        let width = width(config, family)?;
        // transformers has no such loss for these families, whatever the configuration says.
        let has_none = matches!(family, DeepseekV2 | DeepseekV3 | Gemma4 | Lfm2Moe | Llama4 | NemotronH);
        let given = config.number("router_aux_loss_coef")?.filter(|_| !has_none);
        let coefficient = given.unwrap_or(coefficient);
        // A run uses router_aux_loss_coef instead, as in TRL.
        config.flag("output_router_logits")?;
        let sparse = sparse(config, family, experts, (layers, blocks))?;
        if !sparse.contains(&true) {
            if family.has_latent_attention() || family == NemotronH {
                // These have no effect without experts.
                WITHOUT_EXPERTS.iter().for_each(|key| {
                    config.get(key);
                });
            }
            return Ok(None);
        }
        if chosen == 0 {
            let given = if config.get(chosen_key).is_some() { "0" } else { "missing" };
            return Err(format!("{chosen_key} is {given}; it must be a whole number from 1 to {key} {experts}"));
        }
        if chosen > experts {
            return Err(format!("{chosen_key} {chosen} is more than {key} {experts}"));
        }
        let routing = routing(config, family, experts, chosen)?;
        if !(0.0..=1e6).contains(&coefficient) {
            return Err(format!("router_aux_loss_coef {coefficient} must be between 0 and 1e6"));
        }
        let shared = shared(config, family, width)?;
        let corrected = match family {
            Lfm2Moe => config.flag("use_expert_bias")?.unwrap_or(true),
            _ => matches!(family, DeepseekV3 | Glm4Moe | NemotronH),
        };
        let weighs_inputs = family == Llama4;
        let has_aux_loss = routing.scores == RouterScoring::Softmax && !matches!(family, DeepseekV2 | Gemma4);
        let normed = family == Gemma4;
        let latent = if family == NemotronH { config.size("moe_latent_size", MOST_INTERMEDIATE)? } else { None };
        Ok(Some(Self {
            experts,
            width,
            routing,
            latent,
            corrected,
            weighs_inputs,
            normed,
            sparse,
            shared,
            coefficient,
            has_aux_loss,
        }))
    }
}

/// Returns whether a Gemma 4 has experts. Their keys have no effect otherwise.
fn has_experts_beside(config: &ConfigObject) -> std::result::Result<bool, String> {
    let has = config.flag("enable_moe_block")?.unwrap_or(false);
    if !has {
        ["num_experts", "top_k_experts", "moe_intermediate_size"].iter().for_each(|key| {
            config.get(key);
        });
    }
    Ok(has)
}

/// Refuses numbers of experts that are null, with which transformers can't build a DeepSeek.
fn refuse_null(config: &ConfigObject, family: Family) -> std::result::Result<(), String> {
    let is_null = |key: &&str| family.has_latent_attention() && config.has(key) && config.get(key).is_none();
    match ["n_routed_experts", "n_shared_experts"].into_iter().find(is_null) {
        Some(key) => {
            Err(format!("{key} is null, with which transformers can't build a model; give first_k_dense_replace instead"))
        }
        None => Ok(()),
    }
}

/// Reads how `chosen` of the experts are chosen and weighted.
fn routing(config: &ConfigObject, family: Family, experts: usize, chosen: usize) -> std::result::Result<Routing, String> {
    use Family::{DeepseekV2, DeepseekV3, Glm4Moe, Lfm2Moe, Llama4, NemotronH, Olmoe, Qwen2Moe, Qwen3Moe, Qwen3Next};
    let normalised = match family {
        DeepseekV2 if config.flag("norm_topk_prob")? == Some(true) => {
            return Err("norm_topk_prob is true, which transformers ignores and other programs obey in a deepseek_v2".into());
        }
        DeepseekV2 => false,
        // Null means false, and a missing key means true.
        DeepseekV3 => config.flag("norm_topk_prob")?.unwrap_or(!config.has("norm_topk_prob")),
        Glm4Moe | Lfm2Moe | NemotronH | Qwen3Next => config.flag("norm_topk_prob")?.unwrap_or(true),
        Llama4 => false,
        Qwen2Moe | Qwen3Moe | Olmoe => config.flag("norm_topk_prob")?.unwrap_or(false),
        _ => true,
    };
    let plain = Routing::new(chosen, normalised);
    let sigmoid = Routing { scores: RouterScoring::Sigmoid, ..plain };
    Ok(match family {
        DeepseekV2 => {
            Routing { groups: own_grouping(config, experts, chosen)?, best_of_group: 1, factor: factor(config, 1.0)?, ..plain }
        }
        DeepseekV3 => {
            let groups = grouping(config, (experts, chosen), (8, 4), 2)?;
            Routing { epsilon: 1e-20, groups, factor: factor(config, 2.5)?, ..sigmoid }
        }
        Glm4Moe | NemotronH => {
            let groups = grouping(config, (experts, chosen), (1, 1), 2)?;
            Routing { epsilon: 1e-20, groups, factor: factor(config, 1.0)?, ..sigmoid }
        }
        Lfm2Moe => Routing { epsilon: 1e-6, factor: factor(config, 1.0)?, ..sigmoid },
        Llama4 => sigmoid,
        _ => plain,
    })
}

/// Reads the width of each expert.
fn width(config: &ConfigObject, family: Family) -> std::result::Result<usize, String> {
    use Family::{DeepseekV2, DeepseekV3, Gemma4, Glm4Moe, Lfm2Moe, NemotronH, Qwen2Moe, Qwen3_5Moe, Qwen3Moe, Qwen3Next};
    let (width, default) = match family {
        Gemma4 => ("moe_intermediate_size", None),
        DeepseekV2 => ("moe_intermediate_size", Some(1407)),
        DeepseekV3 => ("moe_intermediate_size", Some(2048)),
        Glm4Moe | Qwen2Moe => ("moe_intermediate_size", Some(1408)),
        Lfm2Moe => ("moe_intermediate_size", Some(1792)),
        NemotronH => ("moe_intermediate_size", Some(7688)),
        Qwen3Moe => ("moe_intermediate_size", Some(768)),
        Qwen3_5Moe | Qwen3Next => ("moe_intermediate_size", Some(512)),
        _ => ("intermediate_size", None),
    };
    match (config.size(width, MOST_INTERMEDIATE)?, default) {
        (Some(width), _) | (None, Some(width)) => Ok(width),
        (None, None) => config.needed_size(width, MOST_INTERMEDIATE),
    }
}

/// Reads the width of the MLP that all tokens share, given that of the experts.
fn shared(config: &ConfigObject, family: Family, width: usize) -> std::result::Result<Option<usize>, String> {
    use Family::{
        DeepseekV2, DeepseekV3, Gemma4, Glm4Moe, GraniteMoeHybrid, GraniteMoeShared, Llama4, NemotronH, Qwen2Moe, Qwen3_5Moe,
        Qwen3Next,
    };
    let of_qwen = |default: usize| {
        config.size("shared_expert_intermediate_size", MOST_INTERMEDIATE).map(|width| Some(width.unwrap_or(default)))
    };
    Ok(match family {
        DeepseekV2 | DeepseekV3 | Glm4Moe => {
            let count = config.size("n_shared_experts", MOST_EXPERTS)?.unwrap_or(if family == DeepseekV2 { 2 } else { 1 });
            let fits = |shared: &usize| *shared <= MOST_INTERMEDIATE;
            Some(width.checked_mul(count).filter(fits).ok_or("n_shared_experts is too large")?)
        }
        Llama4 => Some(width),
        // Each layer's own width.
        Gemma4 => Some(config.needed_size("intermediate_size", MOST_INTERMEDIATE)?),
        NemotronH => {
            // transformers ignores this number, by which other programs multiply the width.
            if config.count("n_shared_experts", MOST_EXPERTS)?.is_some_and(|count| count != 1) {
                return Err("n_shared_experts must be 1 in a nemotron_h".into());
            }
            Some(config.size("moe_shared_expert_intermediate_size", MOST_INTERMEDIATE)?.unwrap_or(7688))
        }
        Qwen2Moe => of_qwen(5632)?,
        Qwen3_5Moe | Qwen3Next => of_qwen(512)?,
        GraniteMoeHybrid => Some(config.size("shared_intermediate_size", MOST_INTERMEDIATE)?.unwrap_or(1024)),
        GraniteMoeShared => config.count("shared_intermediate_size", MOST_INTERMEDIATE)?.filter(|width| *width > 0),
        _ => None,
    })
}

/// Returns which layers have experts.
fn sparse(
    config: &ConfigObject,
    family: Family,
    experts: usize,
    (layers, blocks): (usize, Option<&[LayerBlock]>),
) -> std::result::Result<Vec<bool>, String> {
    use Family::{DeepseekV2, DeepseekV3, Glm4Moe, GraniteMoeHybrid, Lfm2Moe, Llama4, Qwen2Moe, Qwen3Moe, Qwen3Next};
    if let Some(blocks) = blocks {
        return Ok(blocks.iter().map(|block| *block == LayerBlock::Experts).collect());
    }
    let after = |dense: usize| (0..layers).map(|layer| layer >= dense).collect();
    Ok(match family {
        DeepseekV2 => after(config.count("first_k_dense_replace", MOST_EXPERTS)?.unwrap_or(0)),
        DeepseekV3 => after(config.count("first_k_dense_replace", MOST_EXPERTS)?.unwrap_or(3)),
        Glm4Moe => after(config.count("first_k_dense_replace", MOST_EXPERTS)?.unwrap_or(1)),
        Lfm2Moe => after(config.count("num_dense_layers", MOST_EXPERTS)?.unwrap_or(2)),
        Llama4 => {
            let step = config.size("interleave_moe_layer_step", MOST_EXPERTS)?.unwrap_or(1);
            let listed = config.indices("moe_layers", layers)?;
            let is_sparse =
                |layer: usize| listed.as_ref().map_or((layer + 1).is_multiple_of(step), |listed| listed.contains(&layer));
            (0..layers).map(is_sparse).collect()
        }
        // A dense model has none.
        GraniteMoeHybrid => vec![experts > 0; layers],
        Qwen2Moe | Qwen3Moe | Qwen3Next => every_few(config, experts, layers)?,
        _ => vec![true; layers],
    })
}

/// Reads DeepSeek V2's groups of experts, if it has any; see [`grouping`].
fn own_grouping(config: &ConfigObject, experts: usize, chosen: usize) -> std::result::Result<(usize, usize), String> {
    match config.text("topk_method")?.unwrap_or("greedy") {
        // The keys of groups have no effect.
        "greedy" => {
            ["n_group", "topk_group"].iter().try_for_each(|key| config.size(key, MOST_EXPERTS).map(drop))?;
            Ok((1, 1))
        }
        "group_limited_greedy" => {
            ["n_group", "topk_group"].iter().try_for_each(|key| config.needed_size(key, MOST_EXPERTS).map(drop))?;
            grouping(config, (experts, chosen), (1, 1), 1)
        }
        other => {
            let other = printable(other, 80);
            Err(format!("topk_method {other:?} is not supported in a deepseek_v2; greedy and group_limited_greedy are"))
        }
    }
}

/// Reads the number of groups of experts, and the number of groups from which a token's experts are chosen, with the family's defaults.
/// A group must have at least `least` experts.
fn grouping(
    config: &ConfigObject,
    (experts, chosen): (usize, usize),
    default: (usize, usize),
    least: usize,
) -> std::result::Result<(usize, usize), String> {
    let groups = config.size("n_group", MOST_EXPERTS)?.unwrap_or(default.0);
    let kept = config.size("topk_group", MOST_EXPERTS)?.unwrap_or(default.1);
    if !experts.is_multiple_of(groups) || experts / groups < least {
        return Err(format!("n_group {groups} must divide {experts} experts into groups of at least {least}"));
    }
    if kept > groups || kept * (experts / groups) < chosen {
        return Err(format!(
            "topk_group {kept} must be at most n_group {groups}, and have room for num_experts_per_tok {chosen} experts"
        ));
    }
    Ok((groups, kept))
}

/// Reads the factor of all weights, with the family's default.
fn factor(config: &ConfigObject, default: f64) -> std::result::Result<f32, String> {
    match config.number("routed_scaling_factor")?.unwrap_or(default) {
        factor if (1e-6..=1e6).contains(&factor) => Ok(factor as f32),
        factor => Err(format!("routed_scaling_factor {factor} must be between 1e-6 and 1e6")),
    }
}

/// Returns which layers have experts, if `config.json` says so.
fn every_few(config: &ConfigObject, experts: usize, layers: usize) -> std::result::Result<Vec<bool>, String> {
    let step = config.size("decoder_sparse_step", layers.max(1 << 16))?.unwrap_or(1);
    let dense = config.indices("mlp_only_layers", layers)?.unwrap_or_default();
    Ok((0..layers).map(|layer| experts > 0 && (layer + 1).is_multiple_of(step) && !dense.contains(&layer)).collect())
}

#[cfg(test)]
mod tests {
    use super::{RouterScoring, Routing};
    use crate::model::Architecture;
    use serde_json::{Value, json};

    fn parsed(more: Value) -> Result<Architecture, String> {
        let mut config = json!({
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 257,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Architecture::parse(&config.to_string())
    }

    #[test]
    fn experts_are_where_and_as_many_as_the_family_says() {
        let read = |more: Value| parsed(more).unwrap();
        let qwen = |more: Value| {
            let mut config = json!({ "model_type": "qwen3_moe", "moe_intermediate_size": 24 });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(config)
        };
        let every = qwen(json!({})).mixture.unwrap();
        assert_eq!((every.experts, every.routing, every.width), (128, Routing::new(8, false), 24));
        assert_eq!((every.sparse, every.coefficient), (vec![true; 4], 0.001));
        let some = qwen(json!({ "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_experts": 8, "norm_topk_prob": true }));
        assert_eq!(some.mixture.as_ref().unwrap().sparse, [false, true, false, false]);
        assert!(some.has_unit(0) && !some.has_unit(1));
        // peft would apply an adapter on an MLP that is named like the experts to the experts.
        assert_eq!(some.modules(), ["q_proj", "k_proj", "v_proj", "o_proj"]);
        assert!(qwen(json!({ "num_experts": 0 })).mixture.is_none());
        let granite = read(json!({ "model_type": "granitemoeshared", "shared_intermediate_size": 32 }));
        assert_eq!((granite.intermediate_size, granite.mixture.as_ref().unwrap().width), (32, 128));
        assert!(granite.has_unit(0) && granite.modules().contains(&"input_linear"));
        let without = read(json!({ "model_type": "granitemoeshared" }));
        assert!(!without.has_unit(0) && without.modules() == ["q_proj", "k_proj", "v_proj", "o_proj"]);
        assert!(read(json!({ "model_type": "mixtral", "router_jitter_noise": 0.0 })).mixture.unwrap().routing.normalised);
        let glm = read(json!({
            "model_type": "glm4_moe", "n_routed_experts": 8, "n_shared_experts": 3, "moe_intermediate_size": 20, "n_group": 4,
            "topk_group": 2, "num_experts_per_tok": 4, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1,
        }));
        let mixture = glm.mixture.as_ref().unwrap();
        assert_eq!(
            (&mixture.sparse[..], mixture.shared, mixture.routing.groups),
            (&[false, true, true, true][..], Some(60), (4, 2))
        );
        assert_eq!((mixture.routing.factor, mixture.routing.normalised, mixture.has_aux_loss), (2.5, true, false));
        assert_eq!((glm.unit_width(0), glm.unit_width(1)), (128, 60));
        assert!(glm.predicts_more("model.layers.4.mlp.gate.weight") && !glm.predicts_more("model.layers.3.mlp.gate.weight"));
        let shared = read(json!({ "model_type": "qwen2_moe", "shared_expert_intermediate_size": 40, "mlp_only_layers": [2] }));
        assert_eq!((0..4).map(|layer| shared.unit_width(layer)).collect::<Vec<_>>(), [40, 40, 128, 40]);
        assert!(shared.has_shared_gate() && shared.modules() == ["q_proj", "k_proj", "v_proj", "o_proj"]);
        let oss = json!({ "model_type": "gpt_oss", "num_local_experts": 4, "rope_parameters": { "rope_type": "default" } });
        assert_eq!(read(oss).mixture.map(|mixture| mixture.routing), Some(Routing::new(4, true)));
        assert!(!read(json!({ "model_type": "olmoe" })).mixture.unwrap().routing.normalised);
    }

    #[test]
    fn mixtures_behind_recurrent_layers_are_as_the_family_says() {
        let read = |more: Value| parsed(more).unwrap();
        let lfm2 = json!({
            "model_type": "lfm2_moe", "num_key_value_heads": 2, "moe_intermediate_size": 20, "routed_scaling_factor": 2.5,
        });
        let mixture = read(lfm2.clone()).mixture.unwrap();
        assert_eq!(
            (mixture.experts, mixture.width, mixture.sparse, mixture.corrected),
            (32, 20, vec![false, false, true, true], true)
        );
        let sigmoid = Routing { scores: RouterScoring::Sigmoid, factor: 2.5, epsilon: 1e-6, ..Routing::new(4, true) };
        assert_eq!(mixture.routing, sigmoid);
        let plain = [lfm2, json!({ "use_expert_bias": false, "num_dense_layers": 0, "norm_topk_prob": false })];
        let plain = plain.iter().flat_map(|keys| keys.as_object().unwrap().clone()).collect();
        let mixture = read(Value::Object(plain)).mixture.unwrap();
        assert_eq!((mixture.sparse, mixture.corrected, mixture.routing.normalised), (vec![true; 4], false, false));
        let qwen = read(json!({ "model_type": "qwen3_5_moe_text", "linear_num_value_heads": 16 }));
        let mixture = qwen.mixture.as_ref().unwrap();
        assert_eq!(
            (mixture.experts, mixture.width, mixture.shared, mixture.routing),
            (256, 512, Some(512), Routing::new(8, true))
        );
        assert!(
            qwen.has_shared_gate() && qwen.is_recurrent(0) && !qwen.is_recurrent(3) && !qwen.modules().contains(&"down_proj")
        );
    }

    #[test]
    fn experts_may_be_beside_mlps_of_their_own_widths() {
        let of = |more: Value| {
            let mut config = json!({
                "model_type": "gemma4_text", "num_key_value_heads": 2, "head_dim": 16, "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "enable_moe_block": true, "num_experts": 6,
                "top_k_experts": 3, "moe_intermediate_size": 20,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            parsed(config)
        };
        let gemma = of(json!({})).unwrap();
        let mixture = gemma.mixture.as_ref().unwrap();
        assert_eq!((mixture.experts, mixture.width, mixture.routing), (6, 20, Routing::new(3, true)));
        assert!(mixture.normed && !mixture.has_aux_loss && mixture.sparse == [true; 4]);
        assert_eq!((0..4).map(|layer| gemma.unit_width(layer)).collect::<Vec<_>>(), [128, 128, 256, 256]);
        assert!(gemma.modules().contains(&"gate_proj"));
        let matrices = gemma.parameters().into_iter().filter(|(_, shape)| shape.len() > 1);
        assert_eq!(gemma.values_of_matrices(), matrices.map(|(_, shape)| shape.iter().product::<usize>() as u128).sum());
        assert!(of(json!({ "enable_moe_block": false })).unwrap().mixture.is_none());
        for (key, value) in [
            ("top_k_experts", json!(7)),
            ("top_k_experts", Value::Null),
            ("num_experts", Value::Null),
            ("moe_intermediate_size", Value::Null),
        ] {
            let error = of(json!({ key: value })).unwrap_err();
            assert!(error.contains(key), "{key}: {error}");
        }
    }

    #[test]
    fn what_experts_can_not_be_is_refused_by_its_key() {
        for (kind, key, value) in [
            ("mixtral", "num_experts_per_tok", json!(9)),
            ("mixtral", "num_local_experts", json!(0)),
            ("mixtral", "num_experts", json!(8)),
            ("mixtral", "router_jitter_noise", json!(0.1)),
            ("olmoe", "clip_qkv", json!(8.0)),
            ("olmoe", "num_experts", json!(1_000_000)),
            ("olmoe", "router_aux_loss_coef", json!(-1)),
            ("qwen3_moe", "mlp_only_layers", json!([4])),
            ("qwen3_moe", "decoder_sparse_step", json!(0)),
            ("qwen3_moe", "norm_topk_prob", json!("yes")),
            ("llama", "num_local_experts", json!(8)),
            ("glm4_moe", "n_group", json!(3)),
            ("glm4_moe", "topk_group", json!(2)),
            ("glm4_moe", "routed_scaling_factor", json!(0)),
            ("glm4_moe", "n_shared_experts", json!(1 << 16)),
            ("glm4_moe", "router_aux_loss_coef", json!(-1)),
            ("gpt_oss", "swiglu_limit", json!(-7)),
            ("gpt_oss", "hidden_act", json!("gelu")),
            ("gpt_oss", "quantization_config", json!({ "quant_method": "gptq" })),
        ] {
            let rope = if kind == "gpt_oss" { json!({ "rope_type": "default" }) } else { Value::Null };
            let error = parsed(json!({ "model_type": kind, "rope_parameters": rope, key: value })).unwrap_err();
            assert!(error.contains(key), "{kind}, {key}: {error}");
        }
    }
}

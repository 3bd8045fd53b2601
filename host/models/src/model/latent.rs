//! Attention whose keys and values, and often queries, are compressed (multi-head latent attention, DeepSeek-AI 2024, arXiv 2405.04434).

use super::family::Family;
use super::json::ConfigObject;
use super::rope_scaling::yarn_magnitude;
use crate::config::shortest;
use crate::ops::LatentHeads;
use crate::ops::attention::Heads;
use crate::ops::rope::RopePairing;

/// Maximum number of heads, and maximum size of a head or of a compressed row.
const MOST_HEADS: usize = 1 << 16;
const MOST_WIDTH: usize = 1 << 16;

/// Sizes of attention with compressed keys and values. All of its layers have them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentAttention {
    /// Width of compressed queries; `None` if queries are not compressed.
    pub query_rank: Option<usize>,
    /// Width of compressed keys and values.
    pub rank: usize,
    /// Numbers and sizes of the heads.
    pub heads: LatentHeads,
    /// Which dimensions are rotated together.
    pub pairs: RopePairing,
    /// Factor of attention scores beyond the inverse square root of a query head's size.
    pub score_factor: f64,
}

impl Family {
    /// Returns whether the family's attention has compressed keys and values.
    pub(super) fn has_latent_attention(self) -> bool {
        matches!(self, Self::DeepseekV2 | Self::DeepseekV3)
    }
}

impl LatentAttention {
    /// Epsilon of the norms of compressed rows, whatever that of the others.
    pub(super) const NORM_EPS: f64 = 1e-6;

    /// Reads the sizes from a `config.json`; `None` for other families.
    pub(super) fn read(config: &ConfigObject, family: Family) -> Result<Option<Self>, String> {
        if !family.has_latent_attention() {
            return Ok(None);
        }
        let size = |key: &str, default: usize| config.size(key, MOST_WIDTH).map(|size| size.unwrap_or(default));
        let heads = LatentHeads {
            heads: config.needed_size("num_attention_heads", MOST_HEADS)?,
            rotated: size("qk_rope_head_dim", 64)?,
            unrotated: size("qk_nope_head_dim", 128)?,
            values: size("v_head_dim", 128)?,
        };
        if !heads.rotated.is_multiple_of(2) {
            return Err(format!("qk_rope_head_dim {} must be even", heads.rotated));
        }
        // transformers ignores what these say, and writes what they must be.
        for (key, right) in [("head_dim", heads.rotated), ("qk_head_dim", heads.query()), ("num_key_value_heads", heads.heads)] {
            if let Some(other) = config.size(key, MOST_WIDTH)?.filter(|other| *other != right) {
                let model_type = family.description().model_type;
                return Err(format!("{key} is {other}, but a model of type {model_type} with these sizes of heads has {right}"));
            }
        }
        // Null means false, and a missing key means true.
        let by_default = !config.has("rope_interleave");
        let interleaved = family == Family::DeepseekV2 || config.flag("rope_interleave")?.unwrap_or(by_default);
        // Null turns the compression of queries off; a missing key means the default.
        let query_rank = config.size("q_lora_rank", MOST_WIDTH)?;
        Ok(Some(Self {
            query_rank: query_rank.or((!config.has("q_lora_rank")).then_some(1536)),
            rank: size("kv_lora_rank", 512)?,
            heads,
            pairs: if interleaved { RopePairing::Neighbours } else { RopePairing::Halves },
            score_factor: score_factor(config)?,
        }))
    }

    /// Returns the heads as attention reads them.
    pub(super) fn wide_heads(&self) -> Heads {
        let LatentHeads { heads, .. } = self.heads;
        Heads { heads, kv_heads: heads, head_dim: self.heads.width() }
    }

    /// Returns the factor of attention scores.
    pub(super) fn scores(&self) -> f32 {
        (self.score_factor / (self.heads.query() as f64).sqrt()) as f32
    }

    /// Returns the width of all query heads, as their projection gives them.
    pub(super) fn query_width(&self) -> usize {
        self.heads.heads * self.heads.query()
    }

    /// Returns the width of all key heads, without their shared part, and of all value heads.
    pub(super) fn key_value_width(&self) -> usize {
        self.heads.heads * self.heads.key_value()
    }

    /// Returns the width of all value heads.
    pub(super) fn value_width(&self) -> usize {
        self.heads.heads * self.heads.values
    }

    /// Returns the widths of the results of the projections that read a layer's input.
    pub(super) fn input_widths(&self) -> [usize; 2] {
        [self.query_rank.unwrap_or(self.query_width()), self.rank + self.heads.rotated]
    }

    /// Returns the number of values of the matrices that read compressed rows, in one layer.
    pub(super) fn values_of_second(&self) -> usize {
        self.query_rank.map_or(0, |rank| rank * self.query_width()) + self.rank * self.key_value_width()
    }

    /// Returns an upper bound on the number of inputs and outputs of the linear maps.
    pub(super) fn widest(&self) -> usize {
        let [queries, keys] = self.input_widths();
        [queries, keys, self.query_width(), self.key_value_width(), self.value_width()].into_iter().max().unwrap_or_default()
    }
}

/// Returns the factor by which a scaled rotary embedding multiplies attention scores: the square of YaRN's factor for `mscale_all_dim`.
fn score_factor(config: &ConfigObject) -> Result<f64, String> {
    let (key, p) = match (config.object("rope_parameters")?, config.object("rope_scaling")?) {
        (Some(p), _) => ("rope_parameters", p),
        (None, Some(p)) => ("rope_scaling", p),
        (None, None) => return Ok(1.0),
    };
    let inside = |e: String| format!("{key}: {e}");
    let kind = p.text("rope_type").map_err(inside)?.or(p.text("type").map_err(inside)?);
    if kind.is_none_or(|kind| kind == "default") {
        return Ok(1.0);
    }
    let number = |name: &str| p.number(name).map_err(inside);
    let (Some(factor), Some(all)) = (number("factor")?, number("mscale_all_dim")?.filter(|all| *all != 0.0)) else {
        return Ok(1.0);
    };
    let of_factor = yarn_magnitude(factor, all);
    let squared = of_factor * of_factor;
    match (1e-6..=1e6).contains(&squared) {
        true => Ok(squared),
        false => {
            Err(inside(format!("mscale_all_dim {} gives a factor of scores that is not between 1e-6 and 1e6", shortest(all))))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Architecture;
    use crate::ops::rope::RopePairing;
    use serde_json::{Value, json};

    fn parsed(more: Value) -> Result<Architecture, String> {
        let mut config = json!({
            "model_type": "deepseek_v3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
            "vocab_size": 97, "q_lora_rank": 20, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16,
            "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "first_k_dense_replace": 1, "n_group": 2,
            "topk_group": 1,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Architecture::parse(&config.to_string())
    }

    /// Returns a DeepSeek V2 with these keys.
    fn second(more: Value) -> Result<Architecture, String> {
        let mut config = json!({ "model_type": "deepseek_v2" });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        parsed(config)
    }

    #[test]
    fn heads_are_as_wide_as_the_widest_part_and_rotate_their_own_dimensions() {
        let a = parsed(json!({})).unwrap();
        let latent = a.latent.unwrap();
        assert_eq!((a.heads.head_dim, a.heads.kv_heads, a.ropes[0].dims), (20, 4, 8));
        assert_eq!((latent.input_widths(), latent.query_width(), latent.key_value_width()), ([20, 32], 80, 112));
        assert!((a.factors.scores - 20f32.sqrt().recip()).abs() < 1e-7);
        let wide = parsed(json!({ "v_head_dim": 24, "q_lora_rank": null, "rope_interleave": false })).unwrap();
        let latent = wide.latent.unwrap();
        assert_eq!((wide.heads.head_dim, latent.input_widths(), latent.pairs), (24, [80, 32], RopePairing::Halves));
        assert!((wide.factors.scores - 20f32.sqrt().recip()).abs() < 1e-7);
        assert_eq!(parsed(json!({ "rope_interleave": null })).unwrap().latent.unwrap().pairs, RopePairing::Halves);
        // What is counted is what there is.
        for a in [&a, &wide] {
            let matrices = a.parameters().into_iter().filter(|(_, shape)| shape.len() > 1);
            assert_eq!(a.values_of_matrices(), matrices.map(|(_, shape)| shape.iter().product::<usize>() as u128).sum());
        }
        let names = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"];
        assert_eq!(a.modules(), [&["q_a_proj", "kv_a_proj_with_mqa", "q_b_proj"][..], &names[1..]].concat());
        assert_eq!(wide.modules(), [&["q_proj"][..], &names].concat());
    }

    /// The numbers of parameters are those of the papers.
    #[test]
    fn published_models_have_the_sizes_that_they_are_said_to_have() {
        let rope = |mscale: f64| {
            json!({ "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": mscale, "mscale_all_dim": mscale,
                "original_max_position_embeddings": 4096, "type": "yarn" })
        };
        let common = json!({
            "attention_bias": false, "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "ep_size": 1, "hidden_act": "silu",
            "initializer_range": 0.02, "kv_lora_rank": 512, "max_position_embeddings": 163_840, "moe_layer_freq": 1,
            "pretraining_tp": 1, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10_000,
            "seq_aux": true, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "v_head_dim": 128,
        });
        let third = json!({
            "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129_280, "q_lora_rank": 1536,
            "first_k_dense_replace": 3, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
            "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "rope_scaling": rope(1.0),
        });
        let second = json!({
            "model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12_288, "num_hidden_layers": 60,
            "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 102_400, "q_lora_rank": 1536,
            "first_k_dense_replace": 1, "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2,
            "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy",
            "scoring_func": "softmax", "norm_topk_prob": false, "routed_scaling_factor": 16.0, "rope_scaling": rope(0.707),
        });
        let lite = json!({
            "hidden_size": 2048, "intermediate_size": 10_944, "num_hidden_layers": 27, "num_attention_heads": 16,
            "num_key_value_heads": 16, "q_lora_rank": null, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_group": 1,
            "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 1.0,
        });
        for (keys, billions) in [(&[&third][..], "671"), (&[&second], "236"), (&[&second, &lite], "16")] {
            let all = [&common].into_iter().chain(keys.iter().copied());
            let config: Value = all.flat_map(|keys| keys.as_object().unwrap().clone()).collect::<serde_json::Map<_, _>>().into();
            let a = Architecture::parse(&config.to_string()).unwrap();
            assert_eq!(format!("{:.0}", a.values_of_matrices() as f64 / 1e9), billions);
            assert_eq!((a.heads.head_dim, a.ropes[0].attention_factor()), (192, 1.0));
        }
    }

    #[test]
    fn yarn_also_scales_scores_if_it_has_a_factor_for_all_dimensions() {
        let rope = |all: Value| {
            json!({ "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 512, "mscale": 1.0,
                "mscale_all_dim": all })
        };
        let factor = (0.1 * 1.3 * 8f64.ln() + 1.0).powi(2) as f32;
        for read in [parsed, second] {
            let scores = |rope: Value| read(json!({ "rope_parameters": rope })).unwrap().factors.scores * 20f32.sqrt();
            assert!((scores(rope(json!(1.3))) - factor).abs() < 1e-6);
            assert!((scores(rope(json!(0))) - 1.0).abs() < 1e-6 && (scores(rope(Value::Null)) - 1.0).abs() < 1e-6);
        }
        let a = parsed(json!({ "rope_scaling": rope(json!(1.0)) })).unwrap();
        assert_eq!(a.ropes[0].attention_factor(), 1.0, "both factors are equal, as in published models");
    }

    #[test]
    fn experts_are_chosen_and_weighted_as_each_generation_does() {
        let third =
            parsed(json!({ "num_nextn_predict_layers": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc" })).unwrap();
        let mixture = third.mixture.as_ref().unwrap();
        assert_eq!((mixture.routing.groups, mixture.routing.best_of_group, mixture.routing.factor), ((2, 1), 2, 2.5));
        assert_eq!((mixture.corrected, mixture.has_aux_loss, mixture.shared), (true, false, Some(12)));
        assert!(
            third.predicts_more("model.layers.3.embed_tokens.weight") && !third.predicts_more("model.layers.2.mlp.gate.weight")
        );
        assert!(
            mixture.routing.normalised && !parsed(json!({ "norm_topk_prob": null })).unwrap().mixture.unwrap().routing.normalised
        );
        let greedy = second(json!({ "aux_loss_alpha": 0.001, "seq_aux": true, "ep_size": 1, "moe_layer_freq": 1 })).unwrap();
        let mixture = greedy.mixture.unwrap();
        assert_eq!((mixture.routing.groups, mixture.routing.normalised, mixture.routing.factor), ((1, 1), false, 1.0));
        assert_eq!((mixture.corrected, mixture.has_aux_loss, mixture.shared), (false, false, Some(24)));
        let grouped = second(json!({ "topk_method": "group_limited_greedy" })).unwrap().mixture.unwrap().routing;
        assert_eq!((grouped.groups, grouped.best_of_group), ((2, 1), 1));
        for dense in [parsed(json!({ "first_k_dense_replace": 3 })), second(json!({ "first_k_dense_replace": 3 }))] {
            assert!(dense.unwrap().mixture.is_none());
        }
    }

    #[test]
    fn what_is_not_computed_as_configured_is_refused_by_its_key() {
        for (read, key, value) in [
            (parsed as fn(Value) -> Result<Architecture, String>, "head_dim", json!(20)),
            (parsed, "qk_head_dim", json!(8)),
            (parsed, "num_key_value_heads", json!(2)),
            (parsed, "qk_rope_head_dim", json!(7)),
            (parsed, "kv_lora_rank", json!(0)),
            (parsed, "rope_interleave", json!("yes")),
            (parsed, "scoring_func", json!("softmax")),
            (parsed, "topk_method", json!("greedy")),
            (parsed, "moe_layer_freq", json!(2)),
            (parsed, "mlp_bias", json!(true)),
            (parsed, "n_group", json!(4)),
            (parsed, "n_routed_experts", Value::Null),
            (parsed, "n_shared_experts", Value::Null),
            (parsed, "quantization_config", json!({ "quant_method": "fp8" })),
            (second, "rope_interleave", json!(false)),
            (second, "norm_topk_prob", json!(true)),
            (second, "topk_method", json!("noaux_tc")),
            (second, "num_experts_per_tok", Value::Null),
        ] {
            let error = read(json!({ key: value })).unwrap_err();
            assert!(error.contains(key), "{key}: {error}");
        }
        let grouped = second(json!({ "topk_method": "group_limited_greedy", "n_group": null }));
        assert!(grouped.unwrap_err().contains("n_group"));
    }
}

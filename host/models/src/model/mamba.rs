//! State spaces (Mamba 2) whose sizes are given head by head (Nemotron-H).

use super::json::ConfigObject;
use super::layer_blocks::LayerBlock;
use super::recurrence::{MOST_HEADS, MOST_WIDTH, Recurrence, RecurrenceKind, step_limits};
use crate::config::printable;
use crate::ops::{DeltaHeads, NormPlace};

/// Reads the state spaces of a Nemotron-H.
pub(super) fn state_spaces(config: &ConfigObject, blocks: &[LayerBlock]) -> Result<Recurrence, String> {
    // The second name takes precedence, as in transformers, and the first has no effect then.
    let key = |own: &'static str, other: &'static str| {
        config.get(own);
        if config.has(other) { other } else { own }
    };
    let size = |key: &str, default: usize| config.size(key, MOST_HEADS).map(|size| size.unwrap_or(default));
    let (groups, low) = (key("n_groups", "mamba_n_groups"), key("time_step_min", "mamba_dt_min"));
    let (keys, values) = (size(groups, 8)?, size("mamba_num_heads", 128)?);
    if !values.is_multiple_of(keys) {
        return Err(format!("mamba_num_heads {values} must be a multiple of {groups} {keys}"));
    }
    let limit = key("time_step_limit", "mamba_dt_limit");
    if step_limits(config, limit)? != [0.0, f32::INFINITY] {
        return Err(format!("{limit} bounds the steps, which transformers ignores in a nemotron_h; it uses {low}"));
    }
    let smallest = config.number(low)?.unwrap_or(0.001);
    if !(0.0..=1e6).contains(&smallest) {
        return Err(format!("{low} {smallest} must be between 0 and 1e6"));
    }
    if let Some(other) = config.text("mamba_hidden_act")?.filter(|name| !matches!(*name, "silu" | "swish")) {
        return Err(format!("mamba_hidden_act {:?} is not supported; silu is", printable(other, 80)));
    }
    let projection_bias = config.flag("use_bias")?.unwrap_or(false);
    let kind = RecurrenceKind::StateSpace {
        heads: DeltaHeads { keys, values, key_dim: size("ssm_state_size", 128)?, value_dim: size("mamba_head_dim", 64)? },
        // The largest step is one for random weights alone.
        limits: [smallest as f32, f32::INFINITY],
        convolution_bias: config.flag(key("use_conv_bias", "mamba_conv_bias"))?.unwrap_or(true),
        projection_bias,
        output_bias: projection_bias,
        norm: NormPlace::AfterGates,
    };
    let width = config.size(key("conv_kernel", "mamba_d_conv"), MOST_WIDTH)?.unwrap_or(4);
    let layers = blocks.iter().map(|block| *block == LayerBlock::Recurrence).collect();
    Ok(Recurrence { layers, width, kind, beside: None })
}

#[cfg(test)]
mod tests {
    use crate::model::trained_modules::TrainedModules;
    use crate::model::{Architecture, LayerBlock, RecurrenceKind};
    use crate::ops::experts::{RouterScoring, Routing};
    use crate::ops::{DeltaHeads, NormPlace};
    use serde_json::{Value, json};

    /// Returns what is read of a configuration in the form of Nemotron 3 Nano, shortened, with these keys.
    fn nemotron(more: Value) -> Result<Architecture, String> {
        let mut config: Value = serde_json::from_str(
            r#"{
            "model_type": "nemotron_h", "attention_bias": false, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128,
            "hidden_dropout": 0.0, "hidden_size": 2688, "hybrid_override_pattern": "MEM*E", "intermediate_size": 1856,
            "layer_norm_epsilon": 1e-5, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
            "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 262144, "mlp_bias": false,
            "mlp_hidden_act": "relu2", "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1,
            "n_groups": 8, "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-5, "norm_topk_prob": true,
            "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 5, "num_key_value_heads": 2,
            "num_logits_to_keep": 1, "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
            "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null, "ssm_state_size": 128,
            "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001,
            "topk_group": 1, "use_bias": false, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072}"#,
        )
        .unwrap();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Architecture::parse(&config.to_string())
    }

    #[test]
    fn layers_have_the_one_part_that_the_configuration_says() {
        use LayerBlock::{Attention, Experts, Mlp, Recurrence};
        let a = nemotron(json!({})).unwrap();
        assert_eq!(a.blocks.as_deref(), Some(&[Recurrence, Experts, Recurrence, Attention, Experts][..]));
        let heads = DeltaHeads { keys: 8, values: 64, key_dim: 128, value_dim: 64 };
        let kind = RecurrenceKind::StateSpace {
            heads,
            limits: [0.001, f32::INFINITY],
            convolution_bias: true,
            projection_bias: false,
            output_bias: false,
            norm: NormPlace::AfterGates,
        };
        assert_eq!(a.recurrence.as_ref().map(|all| (all.kind, all.width)), Some((kind, 4)));
        assert_eq!((a.attending(), a.recurring(), a.rotary.clone(), a.gated), (1, 2, vec![None; 5], false));
        let mixture = a.mixture.as_ref().unwrap();
        let routing = Routing { scores: RouterScoring::Sigmoid, factor: 2.5, epsilon: 1e-20, ..Routing::new(6, true) };
        assert_eq!((mixture.experts, mixture.width, mixture.shared, mixture.routing), (128, 1856, Some(3712), routing));
        assert_eq!(a.modules(), ["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]);
        let parameters = a.parameters();
        let of_layer = |number: usize| {
            let start = format!("model.layers.{number}.");
            parameters.iter().filter_map(|(name, _)| name.strip_prefix(&start)).collect::<Vec<_>>()
        };
        assert_eq!(
            of_layer(3),
            ["mixer.q_proj.weight", "mixer.k_proj.weight", "mixer.v_proj.weight", "mixer.o_proj.weight", "norm.weight"]
        );
        assert!(of_layer(1).contains(&"mixer.gate.e_score_correction_bias") && !of_layer(1).contains(&"mixer.in_proj.weight"));
        assert!(a.predicts_more("mtp.layers.0.norm.weight"));
        assert!(TrainedModules::from_names(["norm"], &a).unwrap_err().contains("mixer.norm"));

        let listed = json!({ "hybrid_override_pattern": null, "layers_block_type": ["mamba", "mlp", "attention"], "num_hidden_layers": 3 });
        let dense = nemotron(listed).unwrap();
        assert_eq!(dense.blocks.as_deref(), Some(&[Recurrence, Mlp, Attention][..]));
        assert!(dense.mixture.is_none() && dense.has_unit(1) && !dense.has_unit(0) && dense.mixes(0) && !dense.feeds(0));
        let older = nemotron(json!({ "mamba_n_groups": 4, "mamba_d_conv": 3, "mamba_conv_bias": false })).unwrap();
        assert_eq!(older.recurrence.map(|all| (all.width, all.kind.heads().unwrap().keys)), Some((3, 4)));
    }

    #[test]
    fn what_other_programs_would_read_otherwise_is_refused_by_its_key() {
        for (key, value) in [
            ("hybrid_override_pattern", json!("MEMXE")),
            ("num_hidden_layers", json!(6)),
            ("layers_block_type", json!(["mamba", "moe", "mamba", "attention", "mlp"])),
            ("layers_block_type", json!(["mamba", "conv", "mamba", "attention", "moe"])),
            ("n_groups", json!(5)),
            ("time_step_limit", json!([0.0, 0.1])),
            ("time_step_min", json!(-1)),
            ("mamba_hidden_act", json!("gelu")),
            ("mlp_hidden_act", json!("tanh")),
            ("mamba_proj_bias", json!(true)),
            ("attention_bias", json!(true)),
            ("tie_word_embeddings", json!(true)),
            ("n_shared_experts", json!(2)),
            ("moe_latent_size", json!(0)),
            ("norm_eps", json!(1e-3)),
            ("sliding_window", json!(512)),
        ] {
            let error = nemotron(json!({ key: value })).unwrap_err();
            assert!(error.contains(key), "{key} = {value}: {error}");
        }
    }
}

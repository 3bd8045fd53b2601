//! Attention and state spaces side by side (Falcon-H1), as configurations describe them.

use super::bounds::MOST_HIDDEN;
use super::json::ConfigObject;
use super::recurrence::{MOST_HEADS, MOST_WIDTH, Recurrence, RecurrenceKind, SideBySide, check_activation, step_limits};
use super::switches::{factor, list_of_factors};
use crate::ops::{DeltaHeads, NormPlace};

impl SideBySide {
    /// Reads the factors.
    ///
    /// # Errors
    /// If one is no number, or not between 1e-6 and 1e6.
    fn read(config: &ConfigObject) -> std::result::Result<Self, String> {
        Ok(Self {
            attention_in: factor(config, "attention_in_multiplier", 1.0)?,
            attention_out: factor(config, "attention_out_multiplier", 1.0)?,
            states_in: factor(config, "ssm_in_multiplier", 1.0)?,
            states_out: factor(config, "ssm_out_multiplier", 1.0)?,
            projected: list_of_factors(config, "ssm_multipliers")?,
        })
    }
}

/// Reads the state spaces of a Falcon-H1, which all of its layers have beside attention.
pub(super) fn state_spaces(config: &ConfigObject, layers: usize) -> std::result::Result<Recurrence, String> {
    check_activation(config)?;
    for key in ["layer_types", "layers_block_type"] {
        config.words(key, &["hybrid"], layers)?;
    }
    let size = |key: &str, default: usize| config.size(key, MOST_HEADS).map(|size| size.unwrap_or(default));
    // Null means a multiple of the hidden size; a missing key means the default.
    let inner = match config.size("mamba_d_ssm", MOST_HIDDEN)? {
        None if config.has("mamba_d_ssm") => size("mamba_expand", 2)? * config.needed_size("hidden_size", MOST_HIDDEN)?,
        given => {
            size("mamba_expand", 2)?;
            given.unwrap_or(1024)
        }
    };
    let values = size("mamba_n_heads", 128)?;
    let value_dim = match config.get("mamba_d_head") {
        Some(given) if given.as_str() != Some("auto") => config.needed_size("mamba_d_head", MOST_HEADS)?,
        _ => inner / values,
    };
    if values * value_dim != inner {
        return Err(format!("mamba_n_heads {values} times mamba_d_head {value_dim} must be mamba_d_ssm, which is {inner}"));
    }
    let keys = size("mamba_n_groups", 1)?;
    if !values.is_multiple_of(keys) {
        return Err(format!("mamba_n_heads {values} must be a multiple of mamba_n_groups {keys}"));
    }
    // How many tokens other programs compute together.
    size("mamba_chunk_size", 256)?;
    let flag = |key: &str, default: bool| config.flag(key).map(|on| on.unwrap_or(default));
    // Null is false.
    let on_by_default = |key: &str| flag(key, !config.has(key));
    let kind = RecurrenceKind::StateSpace {
        heads: DeltaHeads { keys, values, key_dim: size("mamba_d_state", 256)?, value_dim },
        limits: step_limits(config, "time_step_limit")?,
        convolution_bias: on_by_default("mamba_conv_bias")?,
        projection_bias: flag("mamba_proj_bias", false)?,
        output_bias: flag("projectors_bias", false)?,
        norm: match (flag("mamba_rms_norm", false)?, on_by_default("mamba_norm_before_gate")?) {
            (false, _) => NormPlace::Absent,
            (true, true) => NormPlace::BeforeGates,
            (true, false) => NormPlace::AfterGates,
        },
    };
    let width = config.size("mamba_d_conv", MOST_WIDTH)?.unwrap_or(4);
    Ok(Recurrence { layers: vec![true; layers], width, kind, beside: Some(SideBySide::read(config)?) })
}

#[cfg(test)]
mod tests {
    use crate::model::{Architecture, RecurrenceKind, SideBySide};
    use crate::ops::{DeltaHeads, NormPlace};
    use serde_json::{Value, json};

    /// Returns what is read of a configuration in the form of Falcon-H1 0.5B, shortened, with these keys.
    fn falcon(more: Value) -> Result<Architecture, String> {
        let mut config: Value = serde_json::from_str(
            r#"{
            "model_type": "falcon_h1", "attention_bias": false, "attention_dropout": 0.0, "attention_in_multiplier": 1.0,
            "attention_out_multiplier": 0.9375, "bos_token_id": 1, "embedding_multiplier": 5.5, "eos_token_id": 11, "head_dim": 64,
            "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 2048, "key_multiplier": 0.5,
            "lm_head_multiplier": 0.25, "mamba_chunk_size": 128, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64,
            "mamba_d_ssm": 1536, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24,
            "mamba_norm_before_gate": false, "mamba_proj_bias": false, "mamba_rms_norm": false, "mamba_use_mlp": true,
            "max_position_embeddings": 16384, "mlp_bias": false, "mlp_expansion_factor": 8, "mlp_multipliers": [0.875, 0.5],
            "num_attention_heads": 8, "num_hidden_layers": 3, "num_key_value_heads": 2, "num_logits_to_keep": 1, "pad_token_id": 0,
            "projectors_bias": false, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25,
            "ssm_multipliers": [0.3, 0.25, 0.35, 0.5, 0.4], "ssm_out_multiplier": 0.2, "tie_word_embeddings": false, "vocab_size": 32784}"#,
        )
        .unwrap();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Architecture::parse(&config.to_string())
    }

    #[test]
    fn each_layer_has_attention_and_a_state_space_with_factors() {
        let a = falcon(json!({})).unwrap();
        let recurrence = a.recurrence.as_ref().unwrap();
        let RecurrenceKind::StateSpace { heads, norm, projection_bias, output_bias, .. } = recurrence.kind else { panic!() };
        assert_eq!(heads, DeltaHeads { keys: 1, values: 24, key_dim: 128, value_dim: 64 });
        assert_eq!((norm, projection_bias, output_bias, recurrence.width), (NormPlace::Absent, false, false, 4));
        let factors = SideBySide {
            attention_in: 1.0,
            attention_out: 0.9375,
            states_in: 1.25,
            states_out: 0.2,
            projected: [0.3, 0.25, 0.35, 0.5, 0.4],
        };
        assert_eq!(recurrence.beside, Some(factors));
        let f = a.factors;
        assert_eq!((f.embedding, f.scores, f.logits, f.gates, f.lowered), (5.5, 0.5 / 8.0, 4.0, 0.875, 0.5));
        assert_eq!((a.attending(), a.recurring(), a.rotary.clone()), (3, 3, vec![Some(0); 3]));
        assert_eq!(a.product_widths(0), [512, 128, 128, 1536, 1536 + 256, 24]);
        assert_eq!(a.mixer_width(0), 512 + 2 * 128 + 512 + (2 * 1536 + 256 + 24) + 1536);
        assert_eq!(a.modules(), ["q_proj", "k_proj", "v_proj", "in_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]);
        let names: Vec<String> = a.parameters().into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&"model.layers.2.mamba.out_proj.weight".to_owned()));
        assert!(
            !names.iter().any(|name| name.contains("mamba.norm")) && names.contains(&"model.final_layernorm.weight".to_owned())
        );
        let place = |rms: bool, first: Value| {
            let a = falcon(json!({ "mamba_rms_norm": rms, "mamba_norm_before_gate": first })).unwrap();
            match a.recurrence.unwrap().kind {
                RecurrenceKind::StateSpace { norm, .. } => norm,
                _ => unreachable!("a state space"),
            }
        };
        assert_eq!((place(true, json!(true)), place(true, json!(false))), (NormPlace::BeforeGates, NormPlace::AfterGates));
        assert_eq!(place(true, Value::Null), NormPlace::AfterGates);
    }

    #[test]
    fn what_other_programs_would_read_otherwise_is_refused_by_its_key() {
        for (key, value) in [
            ("layer_types", json!(["hybrid", "attention", "hybrid"])),
            ("mamba_d_head", json!(32)),
            ("mamba_n_groups", json!(5)),
            ("ssm_multipliers", json!([1.0, 1.0])),
            ("ssm_multipliers", json!([1.0, 1.0, 0.0, 1.0, 1.0])),
            ("mlp_multipliers", json!([1.0, "x"])),
            ("key_multiplier", json!(-1.0)),
            ("hidden_act", json!("gelu")),
            ("mamba_use_mlp", json!(false)),
        ] {
            let error = falcon(json!({ key: value })).unwrap_err();
            assert!(error.contains(key), "{key} = {value}: {error}");
        }
        let derived = falcon(json!({ "mamba_d_ssm": null, "mamba_d_head": "auto", "mamba_n_heads": 32 })).unwrap();
        assert_eq!(derived.recurrence.unwrap().kind.heads().unwrap().value_dim, 64);
    }
}

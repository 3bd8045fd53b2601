//! Keys of `config.json` that are not read, with the reason why none of them affects the model. A key that is neither read nor listed here
//! is an error, since it may affect what other programs compute.

use crate::config::printable;
use serde_json::Value;

/// Keys that never have an effect.
const HARMLESS: &[&[&str]] = &[
    // Origin of the model, and the programs that read it.
    &["architectures", "auto_map", "custom_pipelines", "transformers_version", "transformers.js_config", "model_name", "license"],
    &["_name_or_path", "name_or_path", "_commit_hash", "unsloth_fixed", "unsloth_version", "is_llama_config"],
    &["language", "datasets", "tags", "summary", "base_model", "base_model_name_or_path", "num_steps", "neftune_noise_alpha"],
    // Precision of the stored weights, which the weight files define.
    &["dtype", "torch_dtype", "_pre_quantization_dtype"],
    // Text lengths in other programs; only max_position_embeddings limits the length.
    &[
        "max_sequence_length",
        "max_seq_len",
        "max_seq_length",
        "model_max_length",
        "seq_len",
        "seq_length",
        "n_ctx",
        "n_positions",
    ],
    &["tokenizer_model_max_length", "tokenizer_max_length", "max_window_layers"],
    // Implementation choices of other programs, which compute the same results.
    &["use_cache", "cache_implementation", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset"],
    &["_flash_attn_2_enabled", "use_flash_attn", "pretraining_tp", "torchscript", "use_bfloat16", "use_parallel_embedding"],
    &["experts_implementation", "_experts_implementation", "gradient_checkpointing", "gradient_checkpointing_kwargs"],
    &["_attn_implementation_internal", "_experts_implementation_internal", "use_flash_attention", "use_flash_attention_2"],
    &["_use_flash_attention_2", "use_sdpa", "xla_device"],
    &["reorder_and_upcast_attn"],
    // Outputs of other programs besides the logits.
    &["output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate"],
    &["tie_last_hidden_states", "keys_to_ignore_at_inference", "_output_attentions", "output_logits", "output_past"],
    // Training settings of other programs.
    &["tf_legacy_loss", "loss_type", "ignore_index"],
    // Initialization of the weights before training.
    &["initializer_range", "initializer_factor", "embedding_initializer_range", "block_mlp_init_scale", "block_out_init_scale"],
    &["block_use_xavier_init", "conv_use_xavier_init"],
    // Multi-token prediction layers, which transformers ignores.
    &["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"],
    // Tokens that the tokenizer's files and `generation_config.json` also define. Padding is not used.
    &["bos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"],
    &["forced_bos_token_id", "forced_eos_token_id", "bos_token", "eos_token", "pad_token", "tokenizer_class", "prefix"],
    &["cls_token_id", "mask_token_id", "padding_side", "tokenizer_padding_side", "tokenizer_name"],
    // Heads for other tasks.
    &["id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params", "classifier_dropout"],
    &["classifier_dropout_prob", "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout"],
    &["summary_proj_to_labels"],
    // Generation settings: transformers drops them from config.json, and a run has its own.
    &["max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping", "num_beams", "temperature"],
    &["num_beam_groups", "diversity_penalty", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"],
    &["repetition_penalty", "encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size", "renormalize_logits"],
    &["encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "remove_invalid_values", "penalty_alpha"],
    &["exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "generation_config", "max_time"],
    &["stop_strings", "top_h", "guidance_scale", "sequence_bias", "constraints", "force_words_ids", "token_healing"],
    &["cache_config", "compile_config", "disable_compile", "low_memory", "max_cache_len", "prefill_chunk_size", "dola_layers"],
    &["watermarking_config", "continuous_batching_config", "prompt_lookup_num_tokens", "max_matching_ngram_size"],
    &["is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"],
    &["assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind", "target_lookbehind"],
];

/// Prefixes of keys that training programs leave in the file.
const LEFT_BEHIND: [&str; 2] = ["trl_", "unsloth_"];

/// Keys without effect if they are off: null, false, zero, or empty.
const HARMLESS_IF_OFF: &[&[&str]] = &[
    // Other kinds of models.
    &["is_encoder_decoder", "is_decoder", "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder"],
    &["chunk_size_feed_forward", "pruned_heads", "use_bidirectional_attention"],
    // Other kinds of rotary embeddings and attention.
    &[
        "rope_interleaved",
        "use_mrope",
        "attn_logit_softcapping",
        "use_qk_norm",
        "qk_layernorm",
        "attention_chunk_size",
        "alibi",
        "use_parallel_residual",
    ],
    &["sliding_window", "use_sliding_window"],
    // Biases that a family does not have.
    &["attention_bias", "attn_bias", "bias", "mlp_bias", "lm_head_bias", "use_bias", "qkv_bias"],
    // Layers that a family does not have.
    &["num_experts", "num_local_experts", "output_router_logits", "use_mup"],
    // Noise that only training adds.
    &["router_jitter_noise"],
];

/// Keys without effect if they are one.
const HARMLESS_IF_ONE: &[&str] =
    &["full_attn_mod", "interpolate_factor", "partial_rotary_factor", "rotary_pct", "rotary_scaling_factor"];

/// Keys without effect if they are true.
const HARMLESS_IF_ON: &[&str] = &["attn_output_gate", "block_use_swiglu", "use_pos_enc"];

/// Keys that only repeat a property of the model's type, with their values as JSON.
const HARMLESS_WORDS: &[(&str, &str, &str)] = &[
    ("cohere2", "order_of_interleaved_layers", r#""local_attn_first""#),
    ("cohere2", "position_embedding_type", r#""rope_gptj""#),
    ("cohere2", "use_embedding_sharing", "true"),
    ("cohere2", "use_gated_activation", "true"),
    ("cohere2", "use_parallel_block", "true"),
    ("deepseek_v2", "moe_layer_freq", "1"),
    ("deepseek_v2", "scoring_func", r#""softmax""#),
    ("deepseek_v3", "moe_layer_freq", "1"),
    ("deepseek_v3", "scoring_func", r#""sigmoid""#),
    ("deepseek_v3", "topk_method", r#""noaux_tc""#),
    ("granitemoehybrid", "normalization_function", r#""rmsnorm""#),
    ("hunyuan_v1_dense", "norm_type", r#""rms""#),
    ("falcon_h1", "mamba_use_mlp", "true"),
    ("hunyuan_v1_dense", "num_experts", "1"),
    ("hunyuan_v1_dense", "position_embedding_xdrope", "false"),
    ("hunyuan_v1_dense", "use_cla", "false"),
    ("hunyuan_v1_dense", "use_qk_norm", "true"),
    ("hunyuan_v1_dense", "use_rotary_pos_emb", "true"),
    ("nemotron_h", "mamba_proj_bias", "false"),
    ("qwen3_5_moe_text", "mamba_ssm_dtype", r#""float32""#),
    ("qwen3_5_text", "mamba_ssm_dtype", r#""float32""#),
    ("starcoder2", "mlp_type", r#""default""#),
    ("starcoder2", "norm_type", r#""layer_norm""#),
];

/// Keys that have no effect in models of one type.
const HARMLESS_OF_TYPE: &[(&str, &[&str])] = &[
    ("cohere2", &["layer_switch"]),
    // An auxiliary loss that transformers does not have, and the division of experts among processes.
    ("deepseek_v2", &["aux_loss_alpha", "ep_size", "seq_aux"]),
    // The same, and multi-token prediction layers, which are not loaded.
    ("deepseek_v3", &["aux_loss_alpha", "ep_size", "num_mtp_layers", "num_nextn_predict_layers", "seq_aux"]),
    ("falcon_h1", &["mlp_expansion_factor", "num_logits_to_keep"]),
    ("glm4_moe", &["num_mtp_layers", "num_nextn_predict_layers"]),
    ("gpt_oss", &["experts_per_token", "initial_context_length"]),
    ("granitemoehybrid", &["init_method", "num_logits_to_keep"]),
    (
        "hunyuan_v1_dense",
        &[
            "add_classification_head",
            "cla_share_factor",
            "class_num",
            "eod_token_id",
            "im_end_id",
            "im_newline_id",
            "im_start_id",
            "mask_init_id",
            "org_vocab_size",
            "pad_id",
            "pool_type",
            "text_end_id",
            "text_start_id",
        ],
    ),
    (
        "nemotron_h",
        &[
            // How much other programs compute at a time or keep, in which precision, and from where random weights start.
            "chunk_size",
            "mamba_chunk_size",
            "mamba_ssm_cache_dtype",
            "moe_shared_expert_overlap",
            "num_logits_to_keep",
            "rescale_prenorm_residual",
            "residual_in_fp32",
            "use_mamba_kernels",
            "time_step_floor",
            "time_step_max",
            "mamba_dt_init_floor",
            "mamba_dt_max",
            // The inner width follows from the heads.
            "expand",
            "mamba_expand",
            // Multi-token prediction layers, which are not loaded.
            "mtp_hybrid_override_pattern",
            "mtp_layers_block_type",
            "num_nextn_predict_layers",
            // Attention has no RoPE.
            "rope_theta",
        ],
    ),
];

/// Keys that describe the quantization of stored weights.
const QUANTISED: [&str; 3] = ["quantization_config", "quantization", "compression_config"];

/// Keys of dropout, which is never applied.
const DROPOUT: &[&str] = &[
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_dropout",
    "attn_pdrop",
    "dropout",
    "embd_pdrop",
    "embedding_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "resid_pdrop",
    "residual_dropout",
];

/// Returns an error if a key that nothing reads may change what the model computes.
pub(super) fn check(model_type: &str, key: &str, value: &Value) -> Result<(), String> {
    let listed = |table: &[&[&str]]| table.iter().any(|keys| keys.contains(&key));
    let shown = || printable(&value.to_string(), 80);
    let left_behind = LEFT_BEHIND.iter().any(|start| key.starts_with(start));
    let text = value.to_string();
    let word = HARMLESS_WORDS.contains(&(model_type, key, text.as_str()));
    let unused = HARMLESS_OF_TYPE.iter().any(|(of, keys)| *of == model_type && keys.contains(&key));
    if listed(HARMLESS) || left_behind || word || unused || DROPOUT.contains(&key) || value.is_null() {
        return Ok(());
    }
    let off = match value {
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::String(_) | Value::Null => false,
    };
    if (model_type, key) == ("gpt_oss", "quantization_config") && value["quant_method"] == "mxfp4" {
        // The experts' weights already define this.
        return Ok(());
    }
    if QUANTISED.contains(&key) {
        return if off { Ok(()) } else { Err(format!("{key}: {}", quantised(value))) };
    }
    if listed(HARMLESS_IF_OFF) {
        let right = || format!("{key} is {}, which is not supported for a model of type {model_type}", shown());
        return if off { Ok(()) } else { Err(right()) };
    }
    if HARMLESS_IF_ONE.contains(&key) {
        return if value.as_f64() == Some(1.0) { Ok(()) } else { Err(format!("{key} is {}; only 1 is supported", shown())) };
    }
    if HARMLESS_IF_ON.contains(&key) {
        return if value.as_bool() == Some(true) { Ok(()) } else { Err(format!("{key} is {}; only true is supported", shown())) };
    }
    Err(format!(
        "{:?} is {}, and this key is not known for a model of type {model_type}; remove it if it has no effect",
        printable(key, 80),
        shown()
    ))
}

/// Describes quantised weights, with the method if it is named.
fn quantised(value: &Value) -> String {
    let method = value["quant_method"].as_str().map(str::to_owned);
    let method = method.or_else(|| value["bits"].as_u64().map(|bits| format!("{bits} bits")));
    let method = method.map_or_else(String::new, |method| format!(" ({})", printable(&method, 40)));
    format!("the weights are quantised{method}, which rlhost can't read; use the unquantised model")
}

/// Returns the key and value of a dropout that other programs apply in training.
pub(super) fn dropout<'a>(mut each: impl Iterator<Item = (&'a str, &'a Value)>) -> Option<(&'a str, f64)> {
    each.find_map(|(key, value)| Some((key, value.as_f64().filter(|p| DROPOUT.contains(&key) && *p > 0.0)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Architecture;
    use serde_json::json;

    #[test]
    fn a_key_passes_if_it_is_known_to_change_nothing_with_its_value() {
        for (key, value) in [
            ("architectures", json!(["X"])),
            ("attention_dropout", json!(0.1)),
            ("is_encoder_decoder", json!(false)),
            ("pruned_heads", json!({})),
            ("quantization_config", json!(null)),
            ("quantization_config", json!({})),
            ("full_attn_mod", json!(1)),
            ("max_sequence_length", json!(2048)),
            ("tf_legacy_loss", json!(false)),
            ("model_max_length", json!(4096)),
            ("neftune_noise_alpha", json!(5.0)),
            ("trl_version", json!("0.9")),
            ("stop_strings", json!(["x"])),
            ("max_window_layers", json!(28)),
            ("bias", json!(false)),
        ] {
            assert_eq!(check("llama", key, &value), Ok(()), "{key}");
        }
        for (key, value) in [
            ("is_encoder_decoder", json!(true)),
            ("use_mrope", json!(true)),
            ("quantization_config", json!({ "bits": 4 })),
            ("full_attn_mod", json!(2)),
            ("num_local_experts", json!(8)),
            ("mlp_type", json!("default")),
            ("norm_type", json!("layer_norm")),
            ("per_layer_config", json!({ "0": {} })),
            ("hidden_act_2\u{1b}", json!("x")),
        ] {
            let error = check("llama", key, &value).unwrap_err();
            assert!(error.contains(key.trim_end_matches('\u{1b}')) && !error.contains('\u{1b}'), "{key}: {error}");
        }
        assert_eq!(check("starcoder2", "mlp_type", &json!("default")), Ok(()));
        assert_eq!(check("starcoder2", "norm_type", &json!("layer_norm")), Ok(()));
        assert!(check("starcoder2", "mlp_type", &json!("gated")).unwrap_err().contains("mlp_type"));
        let config = json!({ "attention_dropout": 0.0, "resid_pdrop": 0.1 });
        let all = config.as_object().unwrap().iter().map(|(key, value)| (key.as_str(), value));
        assert_eq!(dropout(all), Some(("resid_pdrop", 0.1)));
    }

    #[test]
    fn quantised_weights_are_refused_as_such() {
        for (key, value, method) in [
            ("quantization_config", json!({ "quant_method": "awq", "bits": 4 }), " (awq),"),
            ("quantization_config", json!({ "quant_method": "mxfp4" }), " (mxfp4),"),
            ("quantization", json!({ "group_size": 64, "bits": 4 }), " (4 bits),"),
            ("quantization_config", json!({ "x": 1 }), "quantised, which"),
        ] {
            let error = check("qwen2", key, &value).unwrap_err();
            assert!(error.contains(method) && error.contains("unquantised") && !error.contains("remove"), "{error}");
        }
        assert_eq!(check("gpt_oss", "quantization_config", &json!({ "quant_method": "mxfp4" })), Ok(()));
        assert!(check("gpt_oss", "quantization_config", &json!({ "quant_method": "awq" })).is_err());
    }

    #[test]
    fn another_name_of_a_size_passes_where_it_says_the_same() {
        let parsed = |model_type: &str, more: Value| {
            let mut config = json!({
                "model_type": model_type, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 257,
            });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Architecture::parse(&config.to_string())
        };
        for (model_type, more) in [
            ("stablelm", json!({ "layer_norm_eps": 1e-6, "norm_eps": 1e-6 })),
            ("stablelm", json!({ "norm_eps": 1e-5 })),
            ("stablelm", json!({ "num_heads": 4 })),
            ("starcoder2", json!({ "norm_epsilon": 1e-6, "layer_norm_epsilon": 1e-6 })),
            ("gpt_neox", json!({ "num_key_value_heads": 4 })),
        ] {
            assert!(parsed(model_type, more.clone()).is_ok(), "{model_type}, {more}");
        }
        for (model_type, key, value) in [
            ("stablelm", "norm_eps", json!(1e-3)),
            ("stablelm", "num_heads", json!(8)),
            ("starcoder2", "layer_norm_epsilon", json!("1e-5")),
            ("gpt_neox", "num_key_value_heads", json!(2)),
        ] {
            let error = parsed(model_type, json!({ key: value })).unwrap_err();
            assert!(error.contains(key), "{key} = {value}: {error}");
        }
    }
}

//! Keys of `config.json` that nothing here reads, and why none of them changes what a model computes. A key that is neither read
//! nor listed here is refused by its name: it may change what other programs compute.

use crate::config::printable;
use serde_json::Value;

/// Keys without effect, whatever their value.
const HARMLESS: &[&[&str]] = &[
    // Where the model comes from, and what reads it.
    &["architectures", "auto_map", "custom_pipelines", "transformers_version", "transformers.js_config", "model_name", "license"],
    &["_name_or_path", "name_or_path", "_commit_hash", "unsloth_fixed", "unsloth_version", "is_llama_config"],
    // The precision of the stored weights, which say it themselves.
    &["dtype", "torch_dtype"],
    // How other programs compute the same.
    &["use_cache", "cache_implementation", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset"],
    &["_flash_attn_2_enabled", "use_flash_attn", "pretraining_tp", "torchscript", "use_bfloat16", "use_parallel_embedding"],
    &["experts_implementation", "_experts_implementation", "gradient_checkpointing"],
    // What other programs return beside the logits.
    &["output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate"],
    &["tie_last_hidden_states", "keys_to_ignore_at_inference"],
    // How the weights were drawn before training.
    &["initializer_range", "initializer_factor", "embedding_initializer_range"],
    // Tokens that the tokenizer's files and `generation_config.json` say too. Padding does not exist here.
    &["bos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"],
    &["forced_bos_token_id", "forced_eos_token_id", "bos_token", "eos_token", "pad_token", "tokenizer_class", "prefix"],
    // Heads for other tasks.
    &["id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params", "classifier_dropout"],
    &["classifier_dropout_prob", "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout"],
    &["summary_proj_to_labels"],
    // Generation settings: transformers drops them from config.json, and a run has its own.
    &["max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping", "num_beams", "temperature"],
    &["num_beam_groups", "diversity_penalty", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"],
    &["repetition_penalty", "encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size", "renormalize_logits"],
    &["encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "remove_invalid_values", "penalty_alpha"],
    &["exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"],
];

/// Keys without effect where they are off: null, false, zero, or empty.
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
    &["attention_bias", "mlp_bias", "lm_head_bias", "use_bias", "qkv_bias"],
];

/// Keys that are one where nothing is changed.
const HARMLESS_IF_ONE: &[&str] = &["full_attn_mod", "interpolate_factor", "partial_rotary_factor"];

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
    if listed(HARMLESS) || DROPOUT.contains(&key) || value.is_null() {
        return Ok(());
    }
    let off = match value {
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::String(_) | Value::Null => false,
    };
    if listed(HARMLESS_IF_OFF) {
        let right = || format!("{key} is {}, which a model of type {model_type} is not computed with here", shown());
        return if off { Ok(()) } else { Err(right()) };
    }
    if HARMLESS_IF_ONE.contains(&key) {
        return if value.as_f64() == Some(1.0) { Ok(()) } else { Err(format!("{key} is {}; only 1 is supported", shown())) };
    }
    Err(format!(
        "{:?} is {}, and what it means for a model of type {model_type} is not known here; remove the key if it changes nothing",
        printable(key, 80),
        shown()
    ))
}

/// Returns the key and value of a dropout that other programs apply in training.
pub(super) fn dropout<'a>(mut each: impl Iterator<Item = (&'a str, &'a Value)>) -> Option<(&'a str, f64)> {
    each.find_map(|(key, value)| Some((key, value.as_f64().filter(|p| DROPOUT.contains(&key) && *p > 0.0)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_key_passes_if_it_is_known_to_change_nothing_with_its_value() {
        for (key, value) in [
            ("architectures", json!(["X"])),
            ("attention_dropout", json!(0.1)),
            ("is_encoder_decoder", json!(false)),
            ("pruned_heads", json!({})),
            ("quantization_config", json!(null)),
            ("full_attn_mod", json!(1)),
        ] {
            assert_eq!(check("llama", key, &value), Ok(()), "{key}");
        }
        for (key, value) in [
            ("is_encoder_decoder", json!(true)),
            ("use_mrope", json!(true)),
            ("quantization_config", json!({ "bits": 4 })),
            ("full_attn_mod", json!(2)),
            ("per_layer_config", json!({ "0": {} })),
            ("hidden_act_2\u{1b}", json!("x")),
        ] {
            let error = check("llama", key, &value).unwrap_err();
            assert!(error.contains(key.trim_end_matches('\u{1b}')) && !error.contains('\u{1b}'), "{key}: {error}");
        }
        let config = json!({ "attention_dropout": 0.0, "resid_pdrop": 0.1 });
        let all = config.as_object().unwrap().iter().map(|(key, value)| (key.as_str(), value));
        assert_eq!(dropout(all), Some(("resid_pdrop", 0.1)));
    }
}
